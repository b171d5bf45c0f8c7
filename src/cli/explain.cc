#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "attention/registry.h"
#include "attention/select.h"
#include "attention/select_json.h"
#include "cli/commands.h"
#include "cli/model_search.h"
#include "engine/engine_impl.h"

namespace warpweave {
namespace {

Result<HardwareFacts> hardware_of(const std::string& device) {
  if (device == "auto" || device == "cpu") return cpu_hardware_facts();
  Result<HardwareFacts> named = named_hardware(device);
  if (named.ok()) return named;
  return Status::invalid_argument(
      fmt::format("--device {}: {}; try: warpweave explain --device h200", device,
                  named.status().message()),
      "--device");
}

// The model's side from its configuration alone: a folder with only config.json will do.
Result<ModelFacts> model_facts(ServerArgs args) {
  WW_ASSIGN_OR_RETURN(const ModelSource source, find_model(args.model_path));
  args.skip_tokenizer_init = true;
  if (std::filesystem::is_directory(source.path())) args.load_format = "dummy";
  WW_ASSIGN_OR_RETURN(const ModelBundle bundle, open_served_model(args, source.path()));
  WW_ASSIGN_OR_RETURN(const DType dtype, resolve_dtype(args.dtype, bundle.config.dtype));
  return attention_model_facts(bundle.config, dtype);
}

int refuse(const Status& status, bool json) {
  if (!json) return fail(status, kExitRefused);
  std::printf("%s\n", selection_error_json(status).dump(2).c_str());
  return kExitRefused;
}

std::string devices_of(const Caps& caps) {
  std::string names;
  for (int i = 0; i < 32; ++i) {
    if ((caps.archs.bits >> i & 1) == 0) continue;
    names += (names.empty() ? "" : " ") + std::string(arch_name(static_cast<DeviceArch>(i)));
  }
  return names;
}

}  // namespace

int explain_command(std::span<const std::string> argv) {
  const Started started = start_command(Command::explain, argv);
  if (started.exit_code) return *started.exit_code;
  const ServerArgs& args = started.args;
  const Result<HardwareFacts> hardware = hardware_of(args.device);
  if (!hardware.ok()) return fail(hardware.status(), kExitUsage);
  const Result<ModelFacts> model = model_facts(args);
  if (!model.ok()) return fail(model.status(), kExitFailed);
  const Result<Resolved> resolved = select_attention(*hardware, *model, attention_flags(args));
  if (!resolved.ok()) return refuse(resolved.status(), args.json);
  if (args.json) {
    std::printf("%s\n", to_json(*resolved).dump(2).c_str());
    return 0;
  }
  std::printf("%s on %s\n", model->architecture.c_str(), hardware->name.c_str());
  for (const std::string& line : explain_lines(*resolved)) std::printf("%s\n", line.c_str());
  return 0;
}

int backends_command(std::span<const std::string> argv) {
  if (!argv.empty()) {
    return fail(Status::invalid_argument("warpweave backends takes no arguments"), kExitUsage);
  }
  for (const KnownBackend& backend : known_backends()) {
    std::printf("%-20s %-9s %.*s\n%30s devices: %s\n", std::string(backend.caps->name).c_str(),
                backend.built ? "built in" : "not here",
                static_cast<int>(backend.caps->summary.size()), backend.caps->summary.data(), "",
                devices_of(*backend.caps).c_str());
  }
  return 0;
}

}  // namespace warpweave
