#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "attention/registry.h"
#include "attention/select.h"
#include "attention/select_json.h"
#include "cli/commands.h"
#include "cli/model_facts.h"
#include "conformance/matrix.h"
#include "engine/attention_modifiers.h"
#include "engine/engine_impl.h"
#include "engine/start_device.h"

namespace warpweave {
namespace {

struct Selector {
  HardwareFacts hardware;
  ModelFacts model;
  AttentionFlags flags;
  Result<Resolved> select(std::span<const KnownBackend> backends) const {
    return select_attention(hardware, model, flags, backends);
  }
};

Result<HardwareFacts> hardware_of(const ServerArgs& args) {
  if (!args.hardware.empty()) return named_hardware(args.hardware);
  WW_ASSIGN_OR_RETURN(const std::optional<GpuChoice> gpu, resolve_device(args.device));
  return gpu ? gpu->facts : cpu_hardware_facts();
}

bool is_built(const Caps* caps) {
  for (const KnownBackend& backend : known_backends()) {
    if (backend.caps == caps) return backend.built;
  }
  return false;
}

std::string pair_text(const Resolved& resolved) {
  if (resolved.prefill == resolved.decode) return resolved.prefill;
  return fmt::format("prefill {}, decode {}", resolved.prefill, resolved.decode);
}

// A described machine is judged as if every backend were built; what this program lacks is said.
std::vector<std::string> missing_notes(const Selector& selector, const Resolved& resolved) {
  std::vector<std::string> notes;
  for (const Caps* caps : {resolved.prefill_caps, resolved.decode_caps}) {
    if (is_built(caps)) continue;
    std::string note = fmt::format("{} for {} is not built into this program", caps->name,
                                   arch_name(selector.hardware.arch));
    if (notes.empty() || notes.back() != note) notes.push_back(std::move(note));
  }
  if (notes.empty()) return notes;
  const Result<Resolved> here = selector.select(known_backends());
  notes.push_back(here.ok() ? fmt::format("this program would run there: {}", pair_text(*here))
                            : "this program would refuse to serve there");
  return notes;
}

bool mixed_chunk(const ServerArgs& args, const Selector& selector) {
  const DeviceArch arch = selector.hardware.arch;
  return resolve_mixed_chunk(args, arch >= DeviceArch::sm_75 && arch <= DeviceArch::sm_121);
}

void print_json(const ServerArgs& args, const Selector& selector, const Resolved& resolved,
                const std::vector<std::string>& notes) {
  nlohmann::json json = to_json(resolved);
  json["hardware"] = {{"name", selector.hardware.name},
                      {"arch", std::string(arch_name(selector.hardware.arch))}};
  json["model"] = {{"architecture", selector.model.architecture},
                   {"kind", std::string(kind_name(selector.model.kind))},
                   {"num_attention_heads", selector.model.num_q_heads},
                   {"num_key_value_heads", selector.model.num_kv_heads},
                   {"head_dim", selector.model.head_dim}};
  json["enable_mixed_chunk"] = mixed_chunk(args, selector);
  json["notes"] = notes;
  std::printf("%s\n", json.dump(2).c_str());
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
  Result<HardwareFacts> hardware = hardware_of(args);
  if (!hardware.ok()) return fail(hardware.status(), kExitUsage);
  Result<ModelFacts> model = explain_model_facts(args);
  if (!model.ok()) return fail(model.status(), kExitFailed);
  const Result<std::optional<TuningTable>> tuning = attention_tuning(args);
  if (!tuning.ok()) return fail(tuning.status(), kExitFailed);
  Selector selector = {*std::move(hardware), *std::move(model), attention_flags(args)};
  if (*tuning) selector.flags.tuning = &**tuning;

  const std::vector<KnownBackend> as_built = known_backends_as_built();
  const Result<Resolved> resolved =
      selector.select(args.hardware.empty() ? known_backends() : std::span(as_built));
  if (!resolved.ok()) return refuse(resolved.status(), args.json);
  const Result<mods::Modifiers> modifiers = attention_modifiers(args, *resolved);
  if (!modifiers.ok()) return refuse(modifiers.status(), args.json);
  const std::vector<std::string> notes = missing_notes(selector, *resolved);
  if (args.json) {
    print_json(args, selector, *resolved, notes);
    return 0;
  }
  std::printf("%s on %s\n", selector.model.architecture.c_str(), selector.hardware.name.c_str());
  for (const std::string& line : explain_lines(*resolved)) std::printf("%s\n", line.c_str());
  std::printf("%s\n", mixed_chunk(args, selector) ? "batches: prefill chunks and decodes together"
                                                  : "batches: prefill and decode apart");
  for (const std::string& note : notes) std::printf("note: %s\n", note.c_str());
  return 0;
}

int backends_command(std::span<const std::string> argv) {
  bool matrix = false;
  CLI::App app("Lists the attention backends by the names of the flags.", "warpweave backends");
  app.add_flag("--matrix", matrix, "What is proven of each, on which device, and what is refused");
  if (const auto exit_code = parse_command(app, argv)) return *exit_code;
  if (matrix) {
    std::fputs(conformance::matrix_markdown(conformance::committed_reports(),
                                            cpu_hardware_facts().name).c_str(), stdout);
    return 0;
  }
  for (const KnownBackend& backend : known_backends()) {
    std::printf("%-22s %-9s %.*s\n%32s devices: %s\n", std::string(backend.caps->name).c_str(),
                backend.built ? "built in" : "not here",
                static_cast<int>(backend.caps->summary.size()), backend.caps->summary.data(), "",
                devices_of(*backend.caps).c_str());
  }
  return 0;
}

}  // namespace warpweave
