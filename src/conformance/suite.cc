#include "conformance/suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <numeric>
#include <optional>

#include "attention/select_rules.h"
#include "base/threads.h"
#include "conformance/ahead_queue.h"
#include "conformance/determinism.h"
#include "conformance/expectation.h"
#include "conformance/fp8_mma.h"

namespace warpweave::conformance {
namespace {

constexpr uint64_t kSeed = 20260121, kBitSeed = 7;
constexpr int kTreeTopk = 4;  // any topk > 1 asks for trees

// Latent attention is held to the direction of the whole result, too, as its kernels are in the field: so much may
// 1 - cos(out, reference) be.
constexpr double kLatentCosine = 5e-6;

// The draft tree as speculation would ask for it; 0 without one.
int topk_of(const Case& c) {
  return c.tree == Tree::none ? 0 : c.tree == Tree::chain ? 1 : kTreeTopk;
}

// Drafts on a backend that runs no prefill: it verifies them as --speculative-attention-mode decode asks.
bool verifies_in_decode(const Case& c, const Caps& caps) {
  return c.tree != Tree::none && !caps.phases.has(AttentionPhase::prefill);
}

AttentionPhase phase_of(const Case& c, const Caps& caps) {
  return c.decode || verifies_in_decode(c, caps) ? AttentionPhase::decode : AttentionPhase::prefill;
}

// What the engine captures: decode steps, and the verification of drafts.
bool is_captured(const Case& c) { return c.decode || c.tree != Tree::none; }

// The case's page size, or, where the case leaves it open, one at which the variant runs it.
int page_size_for(const Case& c, const Variant& variant) {
  const Caps& caps = *variant.caps;
  if (!c.any_page) return c.page_size;
  const bool paged_tree = topk_of(c) <= 1 || caps.spec_paged == SpecSupport::tree;
  const auto native = [&](int size) { return caps.page_sizes.accepts(size) || caps.expands_pages; };
  const std::array<int, 6> sizes = {c.page_size, 1, 64, 128, 32, 256};
  for (int size : sizes) {
    if (native(size) && (size == 1 || paged_tree)) return size;
  }
  // No size will do; with one of its own no page rule hides the rule that matters.
  const auto own = std::find_if(sizes.begin(), sizes.end(), native);
  return own != sizes.end() ? *own : c.page_size;
}

// Why the variant's Caps do not claim this case; nullopt when they do.
std::optional<BrokenRule> unclaimed(const Case& c, KvFormat format, const Variant& variant) {
  const ModelFacts model = model_facts_of(c, format);
  SelectionInput input;
  input.hardware = &variant.hardware;
  input.model = &model;
  input.kv_format = format;
  input.page_size = page_size_for(c, variant);
  input.topk = topk_of(c);
  input.verify_with_decode = verifies_in_decode(c, *variant.caps);
  return check_backend(input, {variant.caps, true}, phase_of(c, *variant.caps));
}

// Whether the variant's Caps say that it runs this case in fp8 arithmetic.
bool in_fp8(const Case& c, KvFormat format, const Caps& caps, int page_size) {
  int longest = 0;
  for (const Case::Request& r : c.requests) longest = std::max(longest, r.q_len);
  return !c.decode && c.tree == Tree::none && c.head_dim == c.v_head_dim &&
         caps.fp8_mma.apply(format, c.head_dim, page_size, longest);
}

Case fit_gaps(const Case& c, const Variant& variant) {
  Case fitted = c;
  fitted.gap = (c.gap + variant.gap_multiple - 1) / variant.gap_multiple * variant.gap_multiple;
  return fitted;
}

class Suite {
 public:
  Suite(std::span<const Variant> variants, const SuiteOptions& options)
      : variants_(variants), options_(options), team_(options.threads), failed_(variants.size()) {}

  // Problems and references, the costly part on the host, and kernels that are compiled at run time are made by all
  // threads ahead of this one, which runs the variants: they may own a device.
  std::vector<CheckResult> run() {
    add_jobs(options_.cases, false);
    add_jobs(options_.determinism_cases, true);
    AheadQueue queue(options_.threads, {.items = static_cast<int64_t>(jobs_.size()),
                                        .ahead = kAheadOfAThread * options_.threads,
                                        .first = costliest_jobs(options_.threads),
                                        .prepare = [this](int64_t job) { prepare(jobs_[job]); },
                                        .meanwhile = compilations()});
    for (size_t i = 0; i < jobs_.size(); ++i) {
      queue.wait_for(static_cast<int64_t>(i));
      jobs_[i].of_bits ? run_determinism(jobs_[i]) : run_case(jobs_[i]);
      jobs_[i] = {};
    }
    return std::move(results_);
  }

 private:
  // Bounds the memory of tensors; and some cases take as long as many others, so that few would leave threads idle.
  static constexpr int kAheadOfAThread = 4;

  // A case in one format: its problems, and what they must give. Values do not depend on the page size, so one
  // reference serves them all.
  struct Job {
    const Case* c = nullptr;
    KvFormat format = KvFormat::bf16;
    bool of_bits = false;  // a determinism case, which needs no reference
    std::map<std::pair<int, int>, std::unique_ptr<Problem>> problems;  // by page size and gap
    std::optional<Expectation> plain;
    std::map<std::array<int, 3>, Expectation> fp8;  // by the arithmetic that Fp8Mma describes
  };

  void add_jobs(std::span<const Case> cases, bool of_bits) {
    for (const Case& c : cases) {
      for (KvFormat format : c.kv_formats) jobs_.push_back({&c, format, of_bits, {}, {}, {}});
    }
  }

  // By the multiplications of their reference, the costliest first: some take one thread as long as the rest take all
  // threads.
  std::vector<int64_t> costliest_jobs(size_t count) const {
    std::vector<double> multiplications;
    for (const Job& job : jobs_) {
      double& sum = multiplications.emplace_back();
      for (const Case::Request& r : job.c->requests) sum += double{1} * r.q_len * r.kv_len;
      sum *= job.of_bits ? 0 : double{1} * job.c->q_heads * (job.c->head_dim + job.c->v_head_dim);
    }
    std::vector<int64_t> jobs(jobs_.size());
    std::iota(jobs.begin(), jobs.end(), 0);
    const auto end = jobs.begin() + static_cast<std::ptrdiff_t>(std::min(count, jobs.size()));
    std::partial_sort(jobs.begin(), end, jobs.end(),
                      [&](int64_t a, int64_t b) { return multiplications[a] > multiplications[b]; });
    jobs.erase(end, jobs.end());
    return jobs;
  }

  // What fails meanwhile is prepared in vain.
  bool dropped(const Variant& variant) const {
    return options_.stop_at_first_failure && failed_[&variant - variants_.data()];
  }
  bool checks_bits(const Job& job, const Variant& variant) const {
    return !dropped(variant) && variant.caps->deterministic_with(job.format) &&
           !unclaimed(*job.c, job.format, variant);
  }

  void add(const Variant& variant, CheckResult result) {
    if (!result.passed) failed_[&variant - variants_.data()] = true;
    if (options_.on_result) options_.on_result(result);
    results_.push_back(std::move(result));
  }

  static CheckResult result_of(const Case& c, KvFormat format, const Variant& variant, Check check) {
    CheckResult result;
    result.variant = variant.name;
    result.case_name = c.name;
    result.kv_format = format;
    result.check = check;
    return result;
  }

  // Kernels that are compiled at run time: met one after the other by the thread that runs them they take longer than
  // all else. What another thread compiles already is not waited for.
  void compile(const Case& c, KvFormat format, bool all_lengths) const {
    for (const Variant& variant : variants_) {
      if (!variant.compile || unclaimed(c, format, variant)) continue;
      variant.compile(fit_gaps(c, variant), format, page_size_for(c, variant), all_lengths);
    }
  }

  // Those of jobs to come: some need many kernels at once.
  std::vector<std::function<void()>> compilations() const {
    std::vector<std::function<void()>> tasks;
    for (const Job& job : jobs_) {
      tasks.push_back([this, c = job.c, format = job.format, of_bits = job.of_bits] { compile(*c, format, of_bits); });
    }
    return tasks;
  }

  // Called from many threads, each with a job of its own.
  void prepare(Job& job) const {
    compile(*job.c, job.format, job.of_bits);
    for (const Variant& variant : variants_) {
      if (job.of_bits) {
        if (checks_bits(job, variant)) bit_problems(job, variant);
      } else if (!dropped(variant) && !unclaimed(*job.c, job.format, variant)) {
        wanted_of(problem_of(job, variant), variant, job);
      }
    }
  }

  static const Problem& problem_of(Job& job, const Variant& variant) {
    return problem_of(job, variant, page_size_for(*job.c, variant), kSeed);
  }
  static const Problem& problem_of(Job& job, const Variant& variant, int page_size, uint64_t seed) {
    const Case fitted = fit_gaps(*job.c, variant);
    std::unique_ptr<Problem>& problem = job.problems[{page_size, fitted.gap}];
    if (!problem) problem = std::make_unique<Problem>(fitted, job.format, seed, page_size);
    return *problem;
  }
  static BitProblems bit_problems(Job& job, const Variant& variant) {
    const int page_size = page_size_for(*job.c, variant), other = other_page_size(*variant.caps, page_size);
    return {problem_of(job, variant, page_size, kBitSeed),
            other > 0 ? &problem_of(job, variant, other, kBitSeed) : nullptr};
  }

  static const Expectation& wanted_of(const Problem& problem, const Variant& variant, Job& job) {
    if (!job.plain) job.plain = expect(problem);
    if (!in_fp8(problem.shape(), problem.kv_format(), *variant.caps, problem.page_size())) return *job.plain;
    const Fp8Mma& mma = variant.caps->fp8_mma;
    auto [at, is_new] =
        job.fp8.try_emplace(std::array<int, 3>{mma.sum_bits, mma.sum_tokens, mma.p_scale_log2});
    if (is_new) {
      Problem rounded(problem.shape(), problem.kv_format(), kSeed, problem.page_size());
      rounded.round_queries(round_query_to_e4m3);
      at->second = expect_fp8(*job.plain, rounded, mma);
    }
    return at->second;
  }

  void run_case(Job& job) {
    const Case& c = *job.c;
    for (const Variant& variant : variants_) {
      if (dropped(variant)) continue;
      if (const auto broken = unclaimed(c, job.format, variant)) {
        add(variant, check_refusal(c, job.format, variant, *broken));
        continue;
      }
      const Problem& problem = problem_of(job, variant);
      const Expectation& wanted = wanted_of(problem, variant, job);
      add(variant, check_reference(problem, wanted, variant, problem.page_size()));
      if (variant.run_graph && variant.caps->graph_capture && is_captured(c)) {
        add(variant, check_graph(problem, wanted, variant, problem.page_size()));
      }
    }
  }

  CheckResult check_reference(const Problem& problem, const Expectation& expected,
                              const Variant& variant, int page_size) {
    const Case& c = problem.shape();
    CheckResult result = result_of(c, problem.kv_format(), variant, Check::reference);
    result.features = features_of(c, problem.kv_format(), page_size);
    if (!expected.fp8.out.empty()) result.features.push_back("fp8 mma");
    result.kv_error = problem.quantisation_error();
    const auto backend = variant.create({&team_, 0, page_size});
    if (!backend) {
      result.text = "the backend was not created";
      return result;
    }
    compare(c, variant.run_problem(problem, *backend, problem.all(), c.decode), expected, variant, result);
    return result;
  }

  // The same from a graph that was captured with other lengths.
  CheckResult check_graph(const Problem& problem, const Expectation& expected, const Variant& variant,
                          int page_size) {
    const Case& c = problem.shape();
    CheckResult result = result_of(c, problem.kv_format(), variant, Check::graphs);
    result.features = {"graph replay"};
    const auto backend = variant.create({&team_, 0, page_size});
    if (!backend) {
      result.text = "the backend was not created";
      return result;
    }
    compare(c, variant.run_graph(problem, *backend, problem.all(), c.decode), expected, variant, result);
    return result;
  }

  static void compare(const Case& c, const Output& output, const Expectation& expected, const Variant& variant,
                      CheckResult& result) {
    if (!output.error.empty()) {
      result.text = output.error;
      return;
    }
    const Worst out = worst_of(output.out, expected.output.out, expected.bound(variant), expected.fp8.out);
    const Worst lse = worst_of(output.lse, expected.output.lse, expected.lse_bound, expected.fp8.lse);
    result.error = out.difference;
    result.bound = out.bound;
    result.passed = out.passed() && lse.passed();
    const double cosine = c.latent ? cosine_difference(output.out, expected.output.out) : 0;
    if (!(cosine <= kLatentCosine)) {
      result.passed = false;
      result.text = fmt::format("cosine difference {:.3g}, at most {:.3g} allowed", cosine, kLatentCosine);
    }
    if (!out.passed()) {
      result.text = fmt::format("output differs by {:.3g}, at most {:.3g} allowed", out.difference, out.bound);
    } else if (!lse.passed()) {
      result.text = fmt::format("log-sum-exp differs by {:.3g}, at most {:.3g} allowed", lse.difference, lse.bound);
    }
  }

  // Asks selection for what the Caps do not claim, and wants the broken rule in its answer.
  CheckResult check_refusal(const Case& c, KvFormat format, const Variant& variant,
                            const BrokenRule& broken) {
    CheckResult result = result_of(c, format, variant, Check::refusal);
    result.text = broken.text;
    const ModelFacts model = model_facts_of(c, format);
    AttentionFlags flags;
    const bool decode = phase_of(c, *variant.caps) == AttentionPhase::decode;
    (decode ? flags.decode_attention_backend : flags.prefill_attention_backend) = variant.caps->name;
    flags.kv_cache_dtype = kv_format_name(format);
    if (!c.any_page) flags.page_size = c.page_size;
    if (const int topk = topk_of(c)) {
      flags.speculative_algorithm = "EAGLE";
      flags.speculative_eagle_topk = topk;
      if (decode) flags.speculative_attention_mode = "decode";
    }
    const KnownBackend known[] = {{variant.caps, true}};
    const auto selected = select_attention(variant.hardware, model, flags, known);
    result.passed = !selected.ok() &&
                    selected.status().message().find(broken.text) != std::string::npos;
    if (!result.passed) {
      result.text = fmt::format("selection does not refuse it by the rule \"{}\": {}", broken.text,
                                selected.ok() ? "it accepts" : selected.status().message());
    }
    return result;
  }

  void run_determinism(Job& job) {
    for (const Variant& variant : variants_) {
      if (!checks_bits(job, variant)) continue;
      CheckResult result = result_of(*job.c, job.format, variant, Check::determinism);
      result.text = first_difference(bit_problems(job, variant), variant);
      result.passed = result.text.empty();
      result.features = {"deterministic"};
      add(variant, std::move(result));
    }
  }

  std::span<const Variant> variants_;
  const SuiteOptions& options_;
  ThreadTeam team_;  // of backends on the host
  std::vector<Job> jobs_;
  std::vector<CheckResult> results_;
  std::vector<std::atomic<bool>> failed_;  // of each variant
};

}  // namespace

std::string_view check_name(Check check) {
  switch (check) {
    case Check::reference: return "reference";
    case Check::graphs: return "graphs";
    case Check::determinism: return "determinism";
    case Check::refusal: return "refusal";
  }
  return "unknown";
}

ModelFacts model_facts_of(const Case& c, KvFormat format) {
  ModelFacts model;
  model.architecture = "conformance case " + c.name;
  if (c.latent) model.kind = AttentionKind::mla;
  model.dtype = format == KvFormat::f32   ? ModelDType::f32
                : format == KvFormat::f16 ? ModelDType::f16
                                          : ModelDType::bf16;
  model.num_q_heads = c.q_heads;
  model.num_kv_heads = c.kv_heads;
  model.head_dim = c.head_dim;
  model.v_head_dim = c.v_head_dim;
  model.sliding_window = c.window >= 0;
  model.softcap = c.softcap > 0;
  model.sinks = c.sinks;
  model.non_causal = !c.causal;
  model.right_window = c.window_right >= 0;
  model.dual_chunk = c.dual_chunk_len > 0;
  return model;
}

std::vector<std::string> features_of(const Case& c, KvFormat format, int page_size) {
  std::vector<std::string> features = {
      c.decode ? "decode" : "prefill",
      fmt::format("KV {}", kv_format_name(format)),
      fmt::format("page {}", page_size),
      fmt::format("head dim {}", c.head_dim == c.v_head_dim
                                     ? std::to_string(c.head_dim)
                                     : fmt::format("{}/{}", c.head_dim, c.v_head_dim)),
  };
  if (format == KvFormat::fp4_mla) features.push_back("KV fp4_e2m1");  // the flag that asks for either
  if (page_size > 1) features.push_back("pages > 1");
  if (c.q_heads > c.kv_heads && !c.latent) features.push_back(fmt::format("GQA {}", c.q_heads / c.kv_heads));
  if (c.window >= 0) features.push_back("sliding window");
  if (c.window_right >= 0) features.push_back("right window");
  if (c.softcap > 0) features.push_back("softcap");
  if (c.sinks) features.push_back("sinks");
  if (c.tree == Tree::chain) features.push_back("draft chain");
  if (c.tree == Tree::random || c.tree == Tree::full) features.push_back("draft tree");
  if (!c.causal) features.push_back("not causal");
  if (c.dual_chunk_len > 0) features.push_back("dual chunk");
  if (c.shared > 0) features.push_back("shared prefix");
  const bool prefix = std::any_of(c.requests.begin(), c.requests.end(), [](const auto& request) {
    return request.q_len > 0 && request.kv_len > request.q_len;
  });
  if (!c.decode && prefix) features.push_back("cached prefix");
  return features;
}

bool claims_case(const Variant& variant, const Case& c, KvFormat format) {
  return !unclaimed(c, format, variant);
}

bool runs_in_fp8(const Variant& variant, const Case& c, KvFormat format) {
  return claims_case(variant, c, format) && in_fp8(c, format, *variant.caps, page_size_for(c, variant));
}

SuiteOptions committed_cases(const std::string& name) {
  SuiteOptions options;
  for (const CaseFile& file : embedded_case_files()) {
    auto& list = file.name == "determinism.txt" ? options.determinism_cases : options.cases;
    for (const Case& c : parse_cases(file.text, file.name)) {
      if (name.empty() || c.name == name) list.push_back(c);
    }
  }
  return options;
}

std::vector<CheckResult> run_suite(std::span<const Variant> variants, const SuiteOptions& options) {
  return Suite(variants, options).run();
}

}  // namespace warpweave::conformance
