// warpweave replay: a forward recorded by --dump-batch, through one backend against another.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "attention/plugin.h"
#include "cli/commands.h"
#include "replay/compare.h"

namespace warpweave {
namespace {

struct ReplayFlags {
  std::string file, plugin;
  ReplayOptions options;
  int threads = available_cpus();
  bool json = false;
};

nlohmann::json to_json(const DifferenceAt& at) {
  return {{"request", at.request}, {"row", at.row},          {"position", at.position},
          {"head", at.head},       {"element", at.element},  {"difference", at.difference},
          {"value", at.value},     {"expected", at.expected}};
}

void print_json(const ReplayFlags& flags, const std::vector<LayerDifference>& differences,
                bool passed) {
  nlohmann::json layers = nlohmann::json::array();
  for (const LayerDifference& d : differences) {
    nlohmann::json layer = {{"layer", d.layer},
                            {"tolerance", d.tolerance},
                            {"largest", to_json(d.largest)},
                            {"by_head", d.by_head}};
    if (d.first) layer["first"] = to_json(*d.first);
    layers.push_back(std::move(layer));
  }
  const nlohmann::json out = {{"backend", flags.options.backend},
                              {"against", flags.options.against},
                              {"passed", passed},
                              {"layers", layers}};
  std::printf("%s\n", out.dump(2).c_str());
}

std::string where(const DifferenceAt& at) {
  return fmt::format("request {} position {} head {} element {}: {:.6g}, not {:.6g}", at.request,
                     at.position, at.head, at.element, at.value, at.expected);
}

void print_text(const ReplayFlags& flags, const Recording& r,
                const std::vector<LayerDifference>& differences) {
  std::printf("Forward %lld of %s, run by %s: %d requests, %d rows, page size %d\n",
              static_cast<long long>(r.forward), r.program.c_str(), r.backend.c_str(), r.num_reqs(),
              r.num_tokens(), r.page_size);
  std::printf("%s against %s\n%5s %12s %12s  %s\n", flags.options.backend.c_str(),
              flags.options.against.c_str(), "layer", "max|diff|", "tolerance",
              "largest of each query head");
  for (const LayerDifference& d : differences) {
    std::string heads;
    for (const double head : d.by_head) heads += fmt::format(" {:.1e}", head);
    std::printf("%5d %12.3e %12.3e %s\n", d.layer, d.largest.difference, d.tolerance,
                heads.c_str());
    if (d.first) {
      std::printf("      first beyond it: %s\n      largest:         %s\n", where(*d.first).c_str(),
                  where(d.largest).c_str());
    }
  }
}

int run_replay(ReplayFlags& flags) {
  if (!flags.plugin.empty()) {
    const Result<const Caps*> caps = load_attention_plugin(flags.plugin);
    if (!caps.ok()) return fail(caps.status(), kExitUsage);
    if (flags.options.backend.empty()) flags.options.backend = (*caps)->name;
  }
  const Result<Recording> recording = read_recording(flags.file);
  if (!recording.ok()) return fail(recording.status(), kExitUsage);
  if (flags.options.backend.empty()) flags.options.backend = recording->backend;
  ThreadTeam team(flags.threads);
  const auto differences = replay(*recording, flags.options, team);
  if (!differences.ok()) return fail(differences.status(), kExitUsage);
  bool passed = true;
  for (const LayerDifference& d : *differences) passed &= !d.first;
  flags.json ? print_json(flags, *differences, passed)
             : print_text(flags, *recording, *differences);
  return passed ? 0 : kExitFailed;
}

}  // namespace

int replay_command(std::span<const std::string> argv) {
  ReplayFlags flags;
  CLI::App app(
      "Runs a forward that --dump-batch recorded: the differences of a backend per layer, head and "
      "position. "
      "Exit code 1: one is beyond the tolerance.",
      "warpweave replay");
  app.add_option("file", flags.file, "The recording")->required();
  app.add_option("--backend", flags.options.backend,
                 "The backend to judge; unset: the one that was recorded");
  app.add_option("--against", flags.options.against,
                 "What it is held to: a backend, reference, or recorded");
  app.add_option("--plugin,--attention-backend-plugin", flags.plugin,
                 "A backend in a shared library");
  app.add_option("--layer", flags.options.layer, "Only this layer");
  app.add_option(
      "--tolerance", flags.options.tolerance,
      "Largest difference that passes; unset: by the KV format, relative to the largest value");
  app.add_option("--threads", flags.threads, "Compute threads")->check(CLI::Range(1, 1024));
  app.add_flag("--json", flags.json, "Print JSON");
  if (const auto exit_code = parse_command(app, argv)) return *exit_code;
  return run_replay(flags);
}

}  // namespace warpweave
