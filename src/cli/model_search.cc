#include "cli/model_search.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/log.h"
#include "cli/embedded_model.h"

namespace warpweave {
namespace fs = std::filesystem;
namespace {

bool is_model(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path / "config.json", error) ||
         (path.extension() == ".gguf" && fs::is_regular_file(path, error));
}

std::string models_by_name() {
  std::string names;
  for (const std::string& folder : model_folders()) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      if (is_model(entry.path())) names += fmt::format("\n  --model-path {}", entry.path().string());
    }
  }
  return names;
}

Status write_file(const fs::path& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (file) return {};
  return Status::unavailable(fmt::format("cannot write {} ({} bytes); set TMPDIR to a folder with "
                                         "room, or give --model-path",
                                         path.string(), bytes.size()));
}

}  // namespace

ModelSource::ModelSource(ModelSource&& other) noexcept
    : path_(std::move(other.path_)), private_folder_(std::exchange(other.private_folder_, {})) {}

ModelSource::~ModelSource() {
  std::error_code ignored;
  if (embedded()) fs::remove_all(private_folder_, ignored);
}

std::vector<std::string> model_folders() {
  std::vector<std::string> folders;
  if (const char* folder = getenv("WARPWEAVE_MODELS"); folder != nullptr && *folder != '\0') {
    folders.emplace_back(folder);
  }
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) folders.push_back((program.parent_path().parent_path() / "models").string());
  const fs::path here = fs::current_path(error);
  if (!error) folders.push_back((here / "models").string());
  folders.erase(std::unique(folders.begin(), folders.end()), folders.end());
  return folders;
}

Result<ModelSource> find_model(const std::string& model_path) {
  const std::string name = model_path.empty() ? kDefaultModel : model_path;
  if (!model_path.empty() && is_model(model_path)) return ModelSource(model_path);
  if (fs::path(name).is_relative()) {
    for (const std::string& folder : model_folders()) {
      const fs::path candidate = fs::path(folder) / name;
      if (is_model(candidate)) return ModelSource(candidate.string());
    }
  }
  if (name == kDefaultModel) return extract_embedded_model();
  std::error_code error;
  const bool exists = fs::exists(model_path, error);
  return Status::not_found(
      fmt::format("--model-path {}: {}; models are read from disk and never downloaded. Works: "
                  "warpweave serve (the embedded model){}",
                  log_safe(model_path),
                  exists ? "holds no config.json and is no .gguf file" : "no such folder or file",
                  models_by_name()),
      "--model-path");
}

Result<ModelSource> extract_embedded_model() {
  std::error_code error;
  const fs::path base = fs::temp_directory_path(error);
  std::string folder = ((error ? fs::path("/tmp") : base) / "warpweave-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) {
    return Status::unavailable(fmt::format("cannot make a folder under {}; set TMPDIR to a "
                                           "writable one, or give --model-path",
                                           fs::path(folder).parent_path().string()));
  }
  ModelSource source((fs::path(folder) / kDefaultModel).string());
  source.private_folder_ = folder;
  fs::create_directory(source.path(), error);
  for (const EmbeddedFile& file : embedded_model()) {
    WW_RETURN_IF_ERROR(write_file(fs::path(source.path()) / file.name, file.bytes));
  }
  return source;
}

}  // namespace warpweave
