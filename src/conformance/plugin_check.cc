#include "conformance/plugin_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "attention/plugin.h"
#include "attention/registry.h"
#include "conformance/suite.h"

namespace warpweave::conformance {
namespace {

constexpr int64_t kSmallCost = 300'000;  // multiplications of a case that is always run
constexpr int kCasesOfFeature = 2;
constexpr size_t kDeterminismCases = 2;

int64_t cost_of(const Case& c) {
  int64_t pairs = 0;
  for (const Case::Request& request : c.requests) pairs += int64_t{request.q_len} * request.kv_len;
  return pairs * c.q_heads * (c.head_dim + c.v_head_dim);
}

void sort_by_cost(std::vector<Case>& cases) {
  std::stable_sort(cases.begin(), cases.end(),
                   [](const Case& a, const Case& b) { return cost_of(a) < cost_of(b); });
}

void insert_all(std::set<std::string>& into, const std::vector<std::string>& names) {
  into.insert(names.begin(), names.end());
}

// The small cases, and of the others the cheapest that show a feature the variant claims.
void keep_cheap(std::vector<Case>& cases, const Variant& variant) {
  sort_by_cost(cases);
  std::map<std::string, int> shown;
  std::erase_if(cases, [&](const Case& c) {
    std::set<std::string> features;
    for (const KvFormat format : c.kv_formats) {
      if (claims_case(variant, c, format))
        insert_all(features, features_of(c, format, c.page_size));
    }
    bool fresh = false;
    for (const std::string& feature : features) fresh |= shown[feature]++ < kCasesOfFeature;
    return c.far || (!fresh && cost_of(c) > kSmallCost);
  });
}

}  // namespace

Result<Variant> plugin_variant(const Caps& caps) {
  Variant variant;
  variant.device = "cpu";
  variant.hardware = cpu_hardware_facts();
  if (!caps.archs.has(variant.hardware.arch)) {
    std::vector<Variant> here = all_variants();
    const auto same = std::find_if(here.begin(), here.end(), [&](const Variant& v) {
      return v.device == "cuda" && caps.archs.has(v.hardware.arch);
    });
    if (same == here.end()) {
      return Status::unsupported(
          fmt::format("attention backend {} is for GPUs, and there is no GPU here that it claims (or "
                      "this program was built without CUDA): what it claims cannot be checked",
                      caps.name),
          "--attention-backend-plugin");
    }
    variant = std::move(*same);
    variant.compile = {};  // compiles the other backend's kernels
  }
  variant.name = caps.name;
  variant.caps = &caps;
  variant.create = [&caps](const BackendContext& context) -> std::unique_ptr<AttentionBackend> {
    Result<std::unique_ptr<AttentionBackend>> backend = create_backend(caps, context);
    return backend.ok() ? std::move(*backend) : nullptr;
  };
  return variant;
}

Status check_claims(const Variant& variant) {
  SuiteOptions options = committed_cases();
  keep_cheap(options.cases, variant);
  sort_by_cost(options.determinism_cases);
  options.determinism_cases.resize(std::min(options.determinism_cases.size(), kDeterminismCases));
  options.stop_at_first_failure = true;
  for (const CheckResult& result : run_suite(std::span(&variant, 1), options)) {
    if (result.passed) continue;
    return Status::unsupported(
        fmt::format(
            "attention backend {} does not do what it claims: {} check, case {} with {} KV: {}",
            variant.name, check_name(result.check), result.case_name,
            kv_format_name(result.kv_format), result.text),
        "--attention-backend-plugin");
  }
  return {};
}

Result<const Caps*> load_checked_plugin(const std::string& path) {
  WW_ASSIGN_OR_RETURN(const Caps* caps, load_attention_plugin(path));
  const Result<Variant> variant = plugin_variant(*caps);
  const Status status = variant.ok() ? check_claims(*variant) : variant.status();
  if (!status.ok()) return status.with_context("plug-in " + path);
  return caps;
}

}  // namespace warpweave::conformance
