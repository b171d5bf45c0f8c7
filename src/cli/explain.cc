#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "attention/hardware_memory.h"
#include "attention/registry.h"
#include "attention/select.h"
#include "attention/select_json.h"
#include "cli/commands.h"
#include "cli/load_model.h"
#include "cli/model_facts.h"
#include "conformance/matrix.h"
#include "engine/engine_impl.h"
#include "engine/pool_size.h"
#include "engine/serve_plan.h"
#include "engine/speculation.h"
#include "engine/start_device.h"
#include "engine/state_slots.h"
#include "lora/target_modules.h"

namespace warpweave {
namespace {

// What explain found: what serve would start from, or all that it would refuse.
struct Explanation {
  ServeTarget target;
  ModelDescription model;
  std::optional<ServePlan> plan;
  std::vector<Status> refusals;
  // Of what is not served: what the rules would choose, were it written, or which of them would refuse it.
  std::optional<Result<Resolved>> by_rule;
};

// --hardware, or this machine.
Result<ServeTarget> target_of(const ServerArgs& args) {
  ServeTarget target;
  target.described = !args.hardware.empty();
  if (target.described) {
    WW_ASSIGN_OR_RETURN(target.hardware, named_hardware(args.hardware));
    target.memory_bytes = named_hardware_memory_bytes(args.hardware);
    return target;
  }
  WW_ASSIGN_OR_RETURN(const std::optional<GpuChoice> gpu, resolve_device(args.device));
  target.hardware = gpu ? gpu->facts : cpu_hardware_facts();
  if (gpu) target.memory_bytes = static_cast<int64_t>(gpu->info.total_bytes);
  return target;
}

// What adapters may take beside the model, with those that are loaded later; none: they are not asked for.
struct AdapterBytes {
  int64_t each = 0, all = 0;  // at most
};

std::optional<AdapterBytes> adapter_bytes(const ServerArgs& args, const Explanation& found) {
  if (!args.wants_lora() || !found.plan || !found.model.config.ok()) return std::nullopt;
  const Result<LoraTargets> targets = lora_targets(*found.model.config);
  if (!targets.ok()) return std::nullopt;  // the plan refused it by name
  const int64_t each = targets->adapter_bytes(args.max_lora_rank, dtype_info(found.plan->dtype).block_bytes);
  return AdapterBytes{each, each * args.max_loaded_loras};
}

bool is_built(const Caps* caps) {
  for (const KnownBackend& backend : known_backends()) {
    if (backend.caps == caps) return backend.built;
  }
  return false;
}

// A described machine is judged as by a program built for it; what this one lacks is said.
std::vector<std::string> notes_of(const Explanation& found) {
  std::vector<std::string> notes = found.model.notes;
  if (!found.plan) return notes;
  for (const Caps* caps : {found.plan->attention.prefill_caps, found.plan->attention.decode_caps}) {
    if (is_built(caps)) continue;
    std::string note = fmt::format("{} for {} is not built into this program; scripts/build --cuda builds it",
                                   caps->name, arch_name(found.target.hardware.arch));
    if (notes.empty() || notes.back() != note) notes.push_back(std::move(note));
  }
  return notes;
}

// Everything that serve would refuse before it asks about attention, not only the first.
std::vector<Status> early_refusals(const ServerArgs& args, const Explanation& found) {
  std::vector<Status> list = unserved_flags(args);
  auto add = [&list](const Status& status) {
    if (!status.ok()) list.push_back(status);
  };
  add(check_allowed(args));
  add(read_given_templates(args).status());
  add(check_serve_device(found.target.hardware));
  const ModelDescription& model = found.model;
  if (!model.config.ok()) {
    add(model.config.status());
    return list;
  }
  add(check_weights_fit(args, *model.config, found.target));
  add(check_state_flags(args, *model.config));
  add(check_speculation(args, *model.config));
  add(check_served_model(args, {*model.config, model.eos_token_ids, model.weights.get(), model.where, model.path},
                         found.target.hardware.arch));
  return list;
}

void explain(const ServerArgs& args, Explanation& found) {
  const ModelDescription& model = found.model;
  found.refusals = early_refusals(args, found);
  if (found.refusals.empty()) {
    Result<ServePlan> plan = plan_serving(
        args, {*model.config, model.eos_token_ids, model.weights.get(), model.where, model.path}, found.target);
    if (plan.ok()) {
      found.plan = *std::move(plan);
    } else {
      found.refusals.push_back(plan.status());
    }
  } else if (model.facts.ok()) {
    found.by_rule = select_attention(found.target.hardware, *model.facts, attention_flags(args),
                                     known_backends_as_written());
  }
}

nlohmann::json error_json(const Status& status) { return selection_error_json(status)["error"]; }

nlohmann::json explanation_json(const ServerArgs& args, const Explanation& found) {
  nlohmann::json json = found.plan ? to_json(found.plan->attention) : nlohmann::json::object();
  json["serves"] = found.plan.has_value();
  json["hardware"] = {{"name", found.target.hardware.name},
                      {"arch", std::string(arch_name(found.target.hardware.arch))}};
  if (found.model.facts.ok()) {
    const ModelFacts& model = *found.model.facts;
    json["model"] = {{"architecture", model.architecture},
                     {"kind", std::string(kind_name(model.kind))},
                     {"num_attention_heads", model.num_q_heads},
                     {"num_key_value_heads", model.num_kv_heads},
                     {"head_dim", model.head_dim}};
  }
  if (found.plan) json["enable_mixed_chunk"] = found.plan->scheduler.enable_mixed_chunk;
  if (found.plan && splits_pool(args, found.plan->scheduler))
    json["swa_full_tokens_ratio"] = *args.swa_full_tokens_ratio;
  if (const auto adapters = adapter_bytes(args, found)) {
    json["adapters"] = {{"max_bytes_each", adapters->each}, {"max_bytes", adapters->all}};
  }
  json["notes"] = notes_of(found);
  if (found.refusals.empty()) return json;
  json["error"] = error_json(found.refusals[0]);
  json["errors"] = nlohmann::json::array();
  for (const Status& refusal : found.refusals) json["errors"].push_back(error_json(refusal));
  json["attention_by_rule"] = found.by_rule && found.by_rule->ok() ? to_json(**found.by_rule) : nlohmann::json();
  if (found.by_rule && !found.by_rule->ok()) json["attention_by_rule_error"] = error_json(found.by_rule->status());
  return json;
}

void print_refusals(const Explanation& found) {
  for (const Status& refusal : found.refusals) fail(refusal, kExitRefused);
  for (const std::string& note : notes_of(found)) std::printf("note: %s\n", note.c_str());
  if (!found.by_rule) return;
  std::printf("%s on %s is not served like this; the rules of attention alone would ",
              found.model.facts->architecture.c_str(), found.target.hardware.name.c_str());
  if (!found.by_rule->ok()) {
    std::printf("refuse it, too: %s\n", std::string(found.by_rule->status().message()).c_str());
    return;
  }
  std::printf("choose\n");
  for (const std::string& line : explain_lines(**found.by_rule)) {
    if (!line.starts_with("refused ")) std::printf("  %s\n", line.c_str());
  }
}

void print_plan(const ServerArgs& args, const Explanation& found) {
  std::printf("%s on %s\n", found.plan->model.architecture.c_str(), found.target.hardware.name.c_str());
  for (const std::string& line : explain_lines(found.plan->attention)) std::printf("%s\n", line.c_str());
  std::printf("%s\n", found.plan->scheduler.enable_mixed_chunk ? "batches: prefill chunks and decodes together"
                                                               : "batches: prefill and decode apart");
  if (const auto adapters = adapter_bytes(args, found)) {
    const bool gpu = is_gpu_target(found.target.hardware.arch);
    std::printf(
        "adapters: at most %.1f MB each (--max-lora-rank %d) and %.1f MB for all (--max-loaded-loras %d)%s\n",
        adapters->each / 1e6, args.max_lora_rank, adapters->all / 1e6, args.max_loaded_loras,
        gpu ? "; those that are loaded later need it beside the KV pool, in what --mem-fraction-static leaves" : "");
  }
  if (const std::string split = pool_split_text(args, found.plan->scheduler); !split.empty()) {
    std::printf("KV pool: %s\n", split.c_str());
  }
  for (const std::string& note : notes_of(found)) std::printf("note: %s\n", note.c_str());
}

// An error before there is anything to explain: refused if a rule says so, else the given exit code.
int stop(const Status& status, bool json, int exit_code) {
  if (status.code() != StatusCode::unsupported) return fail(status, exit_code);
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
  Result<ServeTarget> target = target_of(args);
  if (!target.ok()) return stop(target.status(), args.json, kExitUsage);
  Result<ModelDescription> model = describe_model(args);
  if (!model.ok()) return stop(model.status(), args.json, kExitFailed);
  const Result<std::optional<TuningTable>> tuning = attention_tuning(args);
  if (!tuning.ok()) return fail(tuning.status(), kExitFailed);
  Explanation found;
  found.target = *std::move(target);
  found.target.tuning = *tuning ? &**tuning : nullptr;
  found.model = *std::move(model);
  explain(args, found);
  if (args.json) {
    std::printf("%s\n", explanation_json(args, found).dump(2).c_str());
  } else if (found.plan) {
    print_plan(args, found);
  } else {
    print_refusals(found);
  }
  return found.plan ? 0 : kExitRefused;
}

int backends_command(std::span<const std::string> argv) {
  bool matrix = false, json = false;
  CLI::App app("Lists the attention backends by the names of the flags.", "warpweave backends");
  app.add_flag("--matrix", matrix, "What is proven of each, on which device, and what is refused");
  app.add_flag("--json", json, "The matrix as JSON; with --matrix")->needs("--matrix");
  if (const auto exit_code = parse_command(app, argv)) return *exit_code;
  if (matrix) {
    const auto reports = conformance::committed_reports();
    const std::string here = cpu_hardware_facts().name;
    std::fputs((json ? conformance::matrix_json(reports, here) : conformance::matrix_markdown(reports, here)).c_str(),
               stdout);
    return 0;
  }
  for (const KnownBackend& backend : known_backends()) {
    std::printf("%-22s %-9s %.*s\n%32s devices: %s\n", std::string(backend.caps->name).c_str(),
                backend.built ? "built in" : backend.written ? "not here" : "to write",
                static_cast<int>(backend.caps->summary.size()), backend.caps->summary.data(), "",
                devices_of(*backend.caps).c_str());
  }
  return 0;
}

}  // namespace warpweave
