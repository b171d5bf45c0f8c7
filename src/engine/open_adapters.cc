#include "engine/open_adapters.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include <fmt/format.h>

namespace warpweave {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

// Modules that --lora-target-modules names, each one of the model's; empty: all.
Result<std::vector<std::string>> target_modules(const ServerArgs& args, const LoraTargets& targets) {
  const std::vector<std::string> names = lines_of(args.lora_target_modules), known = targets.names();
  if (names.size() == 1 && names[0] == "all") return std::vector<std::string>();
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    return Status::invalid_argument(
        fmt::format("--lora-target-modules {}: {} has {} for adapters; try: --lora-target-modules all", name,
                    targets.model, fmt::join(known, ", ")),
        "--lora-target-modules");
  }
  return names;
}

Status load_named(const ServerArgs& args, LoraRegistry& registry) {
  for (const std::string& line : lines_of(args.lora_paths)) {
    if (line.starts_with('{')) {
      return Status::unsupported("--lora-paths takes NAME=FOLDER, not JSON; try: --lora-paths my-adapter=/path/to/it",
                                 "--lora-paths");
    }
    const size_t equals = line.find('=');
    const std::string name = line.substr(0, equals), folder = equals == line.npos ? line : line.substr(equals + 1);
    const auto loaded = registry.load(name, folder);
    if (!loaded.ok()) return loaded.status().with_context("--lora-paths " + line);
  }
  return {};
}

}  // namespace

Status check_adapters(const ServerArgs& args, const ModelConfig& config) {
  return args.wants_lora() ? lora_targets(config).status() : Status();
}

Result<std::unique_ptr<LoraRegistry>> open_adapters(const ServerArgs& args, const AdapterSetup& setup) {
  std::unique_ptr<LoraRegistry> out;
  if (!args.wants_lora()) return out;
  LoraRegistryOptions options;
  WW_ASSIGN_OR_RETURN(options.targets, lora_targets(setup.config));
  WW_ASSIGN_OR_RETURN(options.limits.modules, target_modules(args, options.targets));
  options.limits.max_rank = args.max_lora_rank;
  options.dtype = setup.dtype;
  options.placer = setup.placer;
  options.max_loaded = args.max_loaded_loras;
  std::error_code error;
  if (!args.lora_root.empty() && !std::filesystem::is_directory(args.lora_root, error)) {
    return Status::not_found("--lora-root " + args.lora_root + ": is no folder; /load_lora_adapter reads from below it",
                             "--lora-root");
  }
  options.root = args.lora_root;
  options.reserved_names = {setup.info.served_model_name, setup.info.model_path, "default"};
  out = std::make_unique<LoraRegistry>(std::move(options));
  WW_RETURN_IF_ERROR(load_named(args, *out));
  return out;
}

}  // namespace warpweave
