#include "cli/model_search.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <cctype>
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

constexpr size_t kMaxHubIdBytes = 200;
constexpr int kMaxHubEntries = 100000;  // folders that are looked at for one name

bool is_hub_word(std::string_view word) {
  return !word.empty() && word.front() != '.' &&
         std::all_of(word.begin(), word.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
         });
}

// The folders of the cache that `id` names: one for "owner/name", any for a name alone.
std::vector<fs::path> hub_repositories(const fs::path& cache, const std::string& id) {
  std::vector<fs::path> found;
  std::error_code error;
  if (const size_t slash = id.find('/'); slash != std::string::npos) {
    const fs::path folder = cache / ("models--" + id.substr(0, slash) + "--" + id.substr(slash + 1));
    if (fs::is_directory(folder, error)) found.push_back(folder);
    return found;
  }
  int seen = 0;
  for (const auto& entry : fs::directory_iterator(cache, error)) {
    if (++seen > kMaxHubEntries) break;
    const std::string name = entry.path().filename().string();
    if (name.starts_with("models--") && name.ends_with("--" + id)) found.push_back(entry.path());
  }
  return found;
}

bool is_snapshot(const fs::path& folder) {
  std::error_code error;
  if (is_model(folder)) return true;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".gguf") return true;
  }
  return false;
}

// The snapshot that refs/main names, else the only one there is; empty for none.
fs::path snapshot_of(const fs::path& repository) {
  std::ifstream file(repository / "refs" / "main");
  std::string revision(kMaxHubIdBytes, '\0');
  file.read(revision.data(), static_cast<std::streamsize>(revision.size()));
  revision.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  while (!revision.empty() && std::isspace(static_cast<unsigned char>(revision.back())) != 0) revision.pop_back();
  if (is_hub_word(revision) && is_snapshot(repository / "snapshots" / revision)) {
    return repository / "snapshots" / revision;
  }
  std::vector<fs::path> snapshots;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(repository / "snapshots", error)) {
    if (is_snapshot(entry.path())) snapshots.push_back(entry.path());
  }
  return snapshots.size() == 1 ? snapshots[0] : fs::path();
}

// The folder of a model in the Hub cache; empty when it is not there.
Result<std::string> find_in_hub_cache(const std::string& id) {
  const size_t slash = id.find('/');
  const bool has_owner = slash != std::string::npos;
  if (id.size() > kMaxHubIdBytes || !is_hub_word(has_owner ? id.substr(slash + 1) : id) ||
      (has_owner && !is_hub_word(id.substr(0, slash)))) {
    return std::string();
  }
  const std::string cache = hub_cache_folder();
  if (cache.empty()) return std::string();
  std::vector<fs::path> snapshots;
  std::string names;
  for (const fs::path& repository : hub_repositories(cache, id)) {
    const fs::path snapshot = snapshot_of(repository);
    if (snapshot.empty()) {
      return Status::not_found(fmt::format("--model-path {}: {} has no complete snapshot of a main revision; give "
                                           "--model-path the folder of one", id, repository.string()),
                               "--model-path");
    }
    snapshots.push_back(snapshot);
    names += "\n  --model-path " + snapshot.string();
  }
  if (snapshots.size() > 1) {
    return Status::invalid_argument(fmt::format("--model-path {}: the Hub cache holds several; give one of:{}", id,
                                                names), "--model-path");
  }
  return snapshots.empty() ? std::string() : snapshots[0].string();
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

std::string hub_cache_folder() {
  const auto set = [](const char* name) {
    const char* value = getenv(name);
    return value != nullptr && *value != '\0' ? std::string(value) : std::string();
  };
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const std::string folder = set(name); !folder.empty()) return folder;
  }
  if (const std::string home = set("HF_HOME"); !home.empty()) return (fs::path(home) / "hub").string();
  if (const std::string cache = set("XDG_CACHE_HOME"); !cache.empty()) {
    return (fs::path(cache) / "huggingface" / "hub").string();
  }
  const std::string home = set("HOME");
  return home.empty() ? std::string() : (fs::path(home) / ".cache" / "huggingface" / "hub").string();
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
  if (!exists) {
    WW_ASSIGN_OR_RETURN(const std::string cached, find_in_hub_cache(name));
    if (!cached.empty()) return ModelSource(cached);
  }
  return Status::not_found(
      fmt::format("--model-path {}: {}; models are read from disk and never downloaded. Works: "
                  "warpweave serve (the embedded model){}",
                  log_safe(model_path),
                  exists ? "holds no config.json and is no .gguf file"
                         : "no such folder or file, nor in the Hub cache " + hub_cache_folder(),
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
