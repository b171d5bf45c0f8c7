#include "lora/registry.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "base/log.h"

namespace warpweave {
namespace {

namespace fs = std::filesystem;

bool usable(const std::string& name) {
  return !name.empty() && name.size() <= kMaxLoraNameBytes && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
           c == '-' || c == '/';
  });
}

// Whether `path` is `root` or below it; both are canonical.
bool is_within(const fs::path& path, const fs::path& root) {
  return std::mismatch(root.begin(), root.end(), path.begin(), path.end()).first == root.end();
}

}  // namespace

Status LoraRegistry::check_name(const std::string& name) const {
  if (!usable(name)) {
    return Status::invalid_argument(
        fmt::format("an adapter's name has 1 to {} letters, digits and . _ - /", kMaxLoraNameBytes), "lora_name");
  }
  const auto& reserved = options_.reserved_names;
  if (std::find(reserved.begin(), reserved.end(), name) != reserved.end()) {
    return Status::invalid_argument(fmt::format("{} is the model's own name; give the adapter another", name),
                                    "lora_name");
  }
  if (adapters_.contains(name)) {
    return Status::invalid_argument(
        fmt::format("an adapter called {} is loaded; unload it first or give another name", name), "lora_name");
  }
  return {};
}

Result<AdapterInfo> LoraRegistry::load(const std::string& name, const std::string& folder) {
  std::lock_guard loading(loading_);
  {
    std::lock_guard lock(mutex_);
    WW_RETURN_IF_ERROR(check_name(name));
    std::erase_if(unloaded_, [](const auto& adapter) { return adapter.expired(); });
    if (adapters_.size() + unloaded_.size() >= static_cast<size_t>(options_.max_loaded)) {
      return Status(
          StatusCode::resource_exhausted,
          fmt::format(
              "{} adapters are loaded{}, as many as --max-loaded-loras allows; unload one first or start with more",
              adapters_.size() + unloaded_.size(),
              unloaded_.empty() ? "" : fmt::format(" ({} of them for requests that still run)", unloaded_.size())),
          "--max-loaded-loras");
    }
  }
  const std::unique_ptr<LoraPlacer> placer =
      options_.placer ? options_.placer() : place_lora_on_host(options_.targets.layers.size());
  WW_ASSIGN_OR_RETURN(std::unique_ptr<LoraAdapter> adapter,
                      load_lora_adapter(folder, {options_.targets, options_.limits, options_.dtype}, *placer));
  std::lock_guard lock(mutex_);
  adapter->name = name;
  adapter->id = next_id_++;
  LOG_INFO("adapter {}: rank {}, {} bytes", name, adapter->rank, adapter->bytes);
  return info_of(adapters_[name] = {std::move(adapter), 0});
}

Result<AdapterInfo> LoraRegistry::load_from_root(const std::string& name, const std::string& path) {
  if (options_.root.empty()) {
    return Status::unsupported(
        "adapters are loaded by request only from the folder that --lora-root names, and this server was "
        "started without one; give it a folder or name the adapter in --lora-paths",
        "--lora-root");
  }
  std::error_code error;
  const fs::path root = fs::canonical(options_.root, error);
  if (error) return Status::not_found("--lora-root " + options_.root + " is no folder that can be read", "--lora-root");
  const fs::path folder = fs::canonical(root / path, error);  // an absolute path replaces the root
  // What is outside is not told apart from what is not there.
  if (error || path.empty() || path.find('\0') != path.npos || !is_within(folder, root) || folder == root) {
    return Status::not_found("lora_path names no folder below --lora-root; give the path of one from there",
                             "lora_path");
  }
  // Files may be links within the root, as those of a hub's cache are.
  for (const char* file : {kAdapterConfigName, kAdapterWeightsName}) {
    const fs::path target = fs::canonical(folder / file, error);
    if (error || is_within(target, root)) continue;  // load() says what lacks
    return Status::not_found(fmt::format("{} is a link to a file outside --lora-root; put a copy in its place", file),
                             "lora_path");
  }
  return load(name, folder.string());
}

Status LoraRegistry::not_loaded(const std::string& name) const {
  std::vector<std::string> names;
  for (const auto& [known, adapter] : adapters_) {
    if (names.size() < 16) names.push_back(known);
  }
  return Status::not_found(
      fmt::format("There is no adapter called {}; {}", log_safe(name, kMaxLoraNameBytes),
                  names.empty() ? "none is loaded." : fmt::format("there are {}.", fmt::join(names, ", "))),
      "lora_path");
}

Status LoraRegistry::unload(const std::string& name) {
  std::lock_guard lock(mutex_);
  const auto it = adapters_.find(name);
  if (it == adapters_.end()) return not_loaded(name);
  unloaded_.push_back(it->second.adapter);
  adapters_.erase(it);
  LOG_INFO("adapter {} is unloaded", name);
  return {};
}

AdapterInfo LoraRegistry::info_of(const Entry& entry) {
  const LoraAdapter& adapter = *entry.adapter;
  return {adapter.name, adapter.path, adapter.rank, adapter.bytes, entry.requests, entry.adapter};
}

Result<AdapterInfo> LoraRegistry::take(const std::string& name) {
  std::lock_guard lock(mutex_);
  const auto it = adapters_.find(name);
  if (it == adapters_.end()) return not_loaded(name);
  ++it->second.requests;
  return info_of(it->second);
}

std::vector<AdapterInfo> LoraRegistry::list() const {
  std::lock_guard lock(mutex_);
  std::vector<AdapterInfo> out;
  for (const auto& [name, entry] : adapters_) out.push_back(info_of(entry));
  return out;
}

}  // namespace warpweave
