// Where the model comes from: --model-path, a model shipped beside the program, the Hub cache of this
// user, or the copy of tale-llama inside the program itself.
#pragma once

#include <string>
#include <vector>

#include "flags/server_args.h"
#include "warpweave/status.h"

namespace warpweave {

inline constexpr char kDefaultModel[] = "tale-llama";

// A model's folder or GGUF file. When it was written from the program's own copy the files are
// removed with the last ModelSource: load first (mapped files live on), then let go.
class ModelSource {
 public:
  explicit ModelSource(std::string path) : path_(std::move(path)) {}
  ModelSource(ModelSource&& other) noexcept;
  ModelSource& operator=(ModelSource&&) = delete;
  ~ModelSource();

  const std::string& path() const { return path_; }
  bool embedded() const { return !private_folder_.empty(); }

 private:
  friend Result<ModelSource> extract_embedded_model();
  std::string path_;
  std::string private_folder_;  // removed at the end; empty: the files are not ours
};

// Folders that hold models by name, in the order they are searched: $WARPWEAVE_MODELS, models/
// beside the program's folder, models/ in the working directory.
std::vector<std::string> model_folders();

// Where Hugging Face's programs keep what they downloaded: $HF_HUB_CACHE, $HF_HOME/hub, or
// $XDG_CACHE_HOME (~/.cache)/huggingface/hub.
std::string hub_cache_folder();

// A path, a name in the model folders, or an id in the Hub cache ("Qwen/Qwen3-8B", or its name alone): the
// snapshot that its main branch points to. `not_found`, field --model-path, with what can be used instead.
Result<ModelSource> find_model(const std::string& model_path);

// Writes the program's own model into a private temporary folder.
Result<ModelSource> extract_embedded_model();

}  // namespace warpweave
