// warpweave conformance: the suite on this machine, as text with progress or as the JSON that
// docs/conformance/ keeps.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <map>

#include "attention/plugin.h"
#include "base/log.h"
#include "base/threads.h"
#include "cli/commands.h"
#include "conformance/matrix.h"
#include "conformance/plugin_check.h"
#include "conformance/report.h"
#include "conformance/suite.h"
#include "linear/conformance/conformance.h"

namespace warpweave {
namespace {

using namespace conformance;

struct ConformanceFlags {
  std::string backend, device, kind, case_name, commit;
  std::vector<std::string> plugins;
  int threads = available_cpus();
  bool json = false;
  bool list = false;
};

// What runs: backends of attention, and kernels of linear layers.
struct Plan {
  std::vector<Variant> variants;
  std::vector<testing_linear::LinearFamily> families;

  // Of both, as the reports have them.
  std::vector<Variant> names() const {
    std::vector<Variant> all = variants;
    for (const auto& family : families) all.insert(all.end(), family.names.begin(), family.names.end());
    return all;
  }
};

// All of this machine, the plug-ins' among them.
Result<Plan> whole_plan(const ConformanceFlags& flags, ThreadTeam& team) {
  Plan plan;
  for (const std::string& path : flags.plugins) {
    WW_ASSIGN_OR_RETURN(const Caps* caps, load_attention_plugin(path));
    WW_ASSIGN_OR_RETURN(plan.variants.emplace_back(), plugin_variant(*caps));
  }
  // With a plug-in only it runs, unless --backend names another one.
  if (!flags.plugins.empty() && flags.backend.empty()) return plan;
  for (Variant& variant : all_variants()) plan.variants.push_back(std::move(variant));
  plan.families = testing_linear::linear_families(team);
  return plan;
}

AttentionKind kind_of(std::string_view flag) {
  if (flag == "linear") return AttentionKind::linear;
  return flag == "mla" ? AttentionKind::mla : AttentionKind::mha;
}

Status no_backend(const ConformanceFlags& flags, const std::string& there_are) {
  std::vector<std::string> asked;
  if (!flags.backend.empty()) asked.push_back("named " + flags.backend);
  if (!flags.kind.empty()) asked.push_back("of kind " + flags.kind);
  if (!flags.device.empty()) asked.push_back("on device " + flags.device);
  return Status::not_found(fmt::format("no backend here is {}; there are: {}", fmt::join(asked, " and "), there_are),
                           !flags.backend.empty() ? "--backend" : !flags.kind.empty() ? "--kind" : "--device");
}

// What the flags leave of it.
Result<Plan> wanted_plan(const ConformanceFlags& flags, ThreadTeam& team) {
  WW_ASSIGN_OR_RETURN(Plan plan, whole_plan(flags, team));
  std::string names;
  for (const Variant& variant : plan.names()) {
    names += fmt::format("{}{} ({})", names.empty() ? "" : ", ", variant.name, variant.device);
  }
  const auto unwanted = [&](const Variant& variant) {
    const bool named = flags.backend.empty() || variant.name == flags.backend || variant.caps->name == flags.backend;
    return !named || (!flags.device.empty() && variant.device != flags.device) ||
           (!flags.kind.empty() && !variant.caps->kinds.has(kind_of(flags.kind)));
  };
  std::erase_if(plan.variants, unwanted);
  for (auto& family : plan.families) std::erase_if(family.names, unwanted);
  std::erase_if(plan.families, [](const auto& family) { return family.names.empty(); });
  if (plan.names().empty()) return no_backend(flags, names);
  return plan;
}

struct Tally {
  int passed = 0, failed = 0;
};

void print_failure(const CheckResult& result, FILE* out) {
  const bool linear = result.case_name.find('/') != std::string::npos;  // of layers without a KV pool
  const std::string format = linear ? "" : fmt::format(", KV {}", kv_format_name(result.kv_format));
  fmt::print(out, "FAILED {}, {}, {}{}: {}\n", result.variant, check_name(result.check), result.case_name, format,
             result.text);
}

void print_summary(const std::vector<Variant>& variants, const std::vector<CheckResult>& results) {
  std::map<std::string, std::map<Check, Tally>> tallies;
  for (const CheckResult& result : results) {
    Tally& tally = tallies[result.variant][result.check];
    ++(result.passed ? tally.passed : tally.failed);
  }
  std::printf("%-28s %10s %8s %12s %9s %8s\n", "variant", "reference", "graphs", "determinism", "refusals", "failed");
  for (const Variant& variant : variants) {
    std::map<Check, Tally>& tally = tallies[variant.name];
    int failed = 0;
    for (const auto& [check, counts] : tally) failed += counts.failed;
    std::printf("%-28s %10d %8d %12d %9d %8d\n", variant.name.c_str(), tally[Check::reference].passed,
                tally[Check::graphs].passed, tally[Check::determinism].passed, tally[Check::refusal].passed, failed);
  }
  const std::vector<KvError> errors = kv_errors_of(results);
  if (errors.empty()) return;
  std::printf("\nrounding K and V to the pool's format changes them by (root mean square, mean and largest "
              "case; backends are compared on the rounded values)\n");
  for (const KvError& error : errors) {
    std::printf("%-10s %7.3f %% %8.3f %% of %d cases\n", error.format.c_str(), error.mean * 100,
                error.largest * 100, error.cases);
  }
}

std::vector<testing_linear::LinearAttnCase> linear_cases(const std::string& name = {}) {
  std::vector<testing_linear::LinearAttnCase> cases = testing_linear::linear_attn_cases();
  if (!name.empty()) std::erase_if(cases, [&](const auto& c) { return c.name != name; });
  return cases;
}

int run_conformance(const ConformanceFlags& flags) {
  if (Status status = init_log("warning"); !status.ok()) return fail(status, kExitFailed);
  ThreadTeam team(flags.threads);
  const Result<Plan> plan = wanted_plan(flags, team);
  if (!plan.ok()) return fail(plan.status(), kExitUsage);
  const std::vector<Variant> names = plan->names();
  const bool one_device = std::all_of(names.begin(), names.end(), [&](const Variant& variant) {
    return variant.device == names.front().device && variant.hardware.arch == names.front().hardware.arch;
  });
  if (flags.json && !one_device) {
    return fail(Status::invalid_argument("--json writes the report of one architecture; add --device cpu or "
                                         "--device cuda, and --backend where kernels were compiled for another",
                                         "--json"),
                kExitUsage);
  }
  SuiteOptions options;
  if (!plan->variants.empty()) options = committed_cases(flags.case_name);
  options.threads = flags.threads;
  std::vector<testing_linear::LinearAttnCase> of_linear;
  if (!plan->families.empty()) of_linear = linear_cases(flags.case_name);
  if (options.cases.empty() && options.determinism_cases.empty() && of_linear.empty()) {
    return fail(Status::not_found(fmt::format("no case of these backends is named {}; list all with: warpweave "
                                              "conformance --list", flags.case_name), "--case"),
                kExitUsage);
  }
  // One line per case on stderr, so that a pipe gets results only.
  std::string last_case;
  options.on_result = [&](const CheckResult& result) {
    if (result.case_name != last_case) std::fprintf(stderr, "%s\n", result.case_name.c_str());
    last_case = result.case_name;
    if (!result.passed) print_failure(result, flags.json ? stderr : stdout);
  };
  std::vector<CheckResult> results = run_suite(plan->variants, options);
  for (CheckResult& result : testing_linear::run_linear_suite(plan->families, of_linear, options.on_result)) {
    results.push_back(std::move(result));
  }
  bool passed = true;
  for (const CheckResult& result : results) passed &= result.passed;
  if (flags.json) {
    const std::string date = fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)));
    std::fputs(report_json(make_report(names, results, date, flags.commit)).c_str(), stdout);
  } else {
    print_summary(names, results);
  }
  return passed ? 0 : kExitFailed;
}

int list_cases() {
  const SuiteOptions options = committed_cases();
  for (const Case& c : options.cases) std::printf("%s\n", c.name.c_str());
  for (const Case& c : options.determinism_cases) std::printf("%s (determinism)\n", c.name.c_str());
  for (const auto& c : linear_cases()) std::printf("%s\n", c.name.c_str());
  return 0;
}

}  // namespace

int conformance_command(std::span<const std::string> argv) {
  ConformanceFlags flags;
  CLI::App app(
      "Runs attention backends and kernels of linear layers against the fp64 reference: what their Caps claim must "
      "pass, what they do not claim must be refused by selection. Exit code 1: something failed.",
      "warpweave conformance");
  app.add_option("--backend", flags.backend,
                 "Only this backend or variant (intel_amx, intel_amx@avx2, cutedsl-linear@cuda)");
  app.add_option("--device", flags.device, "Only this device: cpu, cuda, opencl");
  app.add_option("--kind", flags.kind, "Only backends of this kind: mha, mla (DeepSeek), or linear (GDN and KDA)")
      ->check(CLI::IsMember({"mha", "mla", "linear"}));
  app.add_option("--case", flags.case_name, "Only the case of this name");
  app.add_option("--plugin,--attention-backend-plugin", flags.plugins,
                 "A backend in a shared library; only it runs, unless --backend is given");
  app.add_option("--threads", flags.threads, "Compute threads")->check(CLI::Range(1, 1024));
  app.add_option("--commit", flags.commit, "Written into the JSON: the tree that ran");
  app.add_flag("--json", flags.json, "Print the device's report for docs/conformance/");
  app.add_flag("--list", flags.list, "List the cases");
  if (const auto exit_code = parse_command(app, argv)) return *exit_code;
  return flags.list ? list_cases() : run_conformance(flags);
}

}  // namespace warpweave
