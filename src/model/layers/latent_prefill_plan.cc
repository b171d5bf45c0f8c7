#include "model/layers/latent_prefill_plan.h"

#include <algorithm>
#include <iterator>
#include <vector>

namespace warpweave {
namespace {

struct Prompt {
  int new_tokens = 0, prefix = 0;
};

// What the requests of more than one new token bring.
struct Prompts {
  std::vector<Prompt> each;
  int64_t tokens = 0;
  double pairs = 0;             // of a new token and one that it sees
  int prefixed = 0;             // with a prefix
  int longest_prefix = 0, longest = 0;
};

int64_t pages_of(int64_t tokens, const LatentPrefillShape& shape) {
  return (tokens + shape.page_tokens - 1) / shape.page_tokens;
}

// Prefixes in chunks of equal length, as many as the longest needs. False: not even a page of each fits.
bool cut_prefixes(const LatentPrefillShape& shape, const Prompts& prompts, LatentPrefillPlan& plan) {
  plan.max_chunk_tokens = prompts.longest;
  if (prompts.prefixed == 0) return true;
  const int64_t pages = shape.capacity_rows / shape.page_tokens / prompts.prefixed;
  if (pages == 0) return false;
  const int64_t wanted = pages_of(prompts.longest_prefix, shape);
  plan.num_chunks = static_cast<int>((wanted + pages - 1) / pages);
  plan.chunk_tokens = static_cast<int>((wanted + plan.num_chunks - 1) / plan.num_chunks) * shape.page_tokens;
  plan.chunk_rows = int64_t{plan.chunk_tokens} * prompts.prefixed;
  plan.max_chunk_tokens = std::max(plan.max_chunk_tokens, plan.chunk_tokens);
  return true;
}

// What prompts take together, where `us` says what a step of so many like one of them takes. Each adds its share of the
// step of as many like it as are as much work as all of them. So short prompts count as the crowd that they are, and
// beside a long one they find the GPU busy: what a short prompt alone takes is mostly waiting for launches.
template <typename Us>
double us_together(const std::vector<Prompt>& prompts, int many, Us&& us) {
  std::vector<double> work;
  double all = 0;
  for (const Prompt& prompt : prompts) {
    work.push_back(std::max(1e-3, us(many, prompt) / many));
    all += work.back();
  }
  double sum = 0;
  for (size_t i = 0; i < prompts.size(); ++i) sum += us(all / work[i], prompts[i]) * work[i] / all;
  return sum;
}

// By measured times. The new tokens are expanded first, of prompts with and without a prefix, then the prefixes. Every
// row of a chunk is expanded, also those that a shorter prefix leaves empty, though nothing attends to them.
bool expanding_is_faster(const LatentFormTimes& measured, const std::vector<Prompt>& prompts, int longest_prefix) {
  const int many = measured.most_requests(), fewest = measured.fewest_new_tokens();
  const auto expanded_us = [&](double requests, int new_tokens, int prefix) {
    return measured.estimate(requests, new_tokens, prefix).expanded_us;
  };
  std::vector<Prompt> prefixed;
  std::copy_if(prompts.begin(), prompts.end(), std::back_inserter(prefixed),
               [](const Prompt& prompt) { return prompt.prefix > 0; });
  const double absorbed = us_together(prompts, many, [&](double requests, const Prompt& prompt) {
    return measured.estimate(requests, prompt.new_tokens, prompt.prefix).absorbed_us;
  });
  double expanded = us_together(prompts, many, [&](double requests, const Prompt& prompt) {
    return expanded_us(requests, prompt.new_tokens, 0);
  });
  expanded += us_together(prefixed, many, [&](double requests, const Prompt& prompt) {
    return expanded_us(requests, prompt.new_tokens, prompt.prefix) - expanded_us(requests, prompt.new_tokens, 0);
  });
  const auto count = static_cast<double>(prefixed.size());
  for (const Prompt& prompt : prefixed)
    expanded += (expanded_us(count, fewest, longest_prefix) - expanded_us(count, fewest, prompt.prefix)) / count;
  return expanded < absorbed;
}

// Gathering a row of a prefix and moving its K and V takes as long as the multiplications of so many heads: measured on
// an H100 with 16 and 128 heads (docs/gpu-tuning.md).
constexpr double kMovedHeads = 25;

// Every row of a chunk is expanded, also those that a request with a shorter prefix leaves empty.
bool expanding_is_cheaper(const LatentPrefillShape& shape, const Prompts& prompts, const LatentPrefillPlan& plan) {
  const double expanded_dim = shape.nope_dim + shape.rope_dim + shape.v_dim;
  const double absorbed = prompts.pairs * (2 * shape.rank + shape.rope_dim) +
                          static_cast<double>(prompts.tokens) * shape.rank * (shape.nope_dim + shape.v_dim);
  const double a_row = static_cast<double>(shape.rank) * (shape.nope_dim + shape.v_dim);
  const double rows = static_cast<double>(plan.fresh_rows) +
                      static_cast<double>(plan.num_chunks * plan.chunk_rows) * (1 + kMovedHeads / shape.num_heads);
  return prompts.pairs * expanded_dim + rows * a_row < absorbed;
}

}  // namespace

LatentPrefillPlan plan_latent_prefill(const LatentPrefillShape& shape, std::span<const int32_t> q_indptr,
                                      std::span<const int32_t> kv_lens) {
  LatentPrefillPlan plan;
  Prompts prompts;
  bool singles = false;
  for (size_t r = 0; r < kv_lens.size(); ++r) {
    const int q_len = q_indptr[r + 1] - q_indptr[r], prefix = kv_lens[r] - q_len;
    if (q_len == 1) {
      if (!singles) plan.singles_begin = q_indptr[r];
      plan.singles_end = q_indptr[r + 1];
      singles = true;
    }
    if (q_len <= 1 || prefix < 0) continue;
    prompts.each.push_back({q_len, prefix});
    prompts.tokens += q_len;
    prompts.pairs += static_cast<double>(q_len) * (prefix + 0.5 * q_len);
    prompts.prefixed += prefix > 0;
    prompts.longest_prefix = std::max(prompts.longest_prefix, prefix);
    prompts.longest = std::max(prompts.longest, q_len);
    plan.fresh_rows += pages_of(q_len, shape) * shape.page_tokens;
  }
  if (prompts.tokens == 0 || plan.fresh_rows > shape.capacity_rows || shape.form == LatentForm::absorbed) return plan;
  if (prompts.prefixed > 0 && !shape.expands_prefixes) return plan;
  if (!cut_prefixes(shape, prompts, plan)) return plan;
  if (shape.form == LatentForm::expanded) {
    plan.expands = true;
  } else if (shape.measured != nullptr && !shape.measured->empty()) {
    plan.expands = expanding_is_faster(*shape.measured, prompts.each, prompts.longest_prefix);
  } else {
    plan.expands = expanding_is_cheaper(shape, prompts, plan);
  }
  return plan;
}

std::optional<int> first_expanded(const LatentPrefillShape& shape, int requests, int prefix, int most) {
  std::vector<int32_t> q_indptr(requests + 1), kv_lens(requests);
  const auto expands = [&](int new_tokens) {
    for (int r = 0; r <= requests; ++r) q_indptr[r] = r * new_tokens;
    std::fill(kv_lens.begin(), kv_lens.end(), prefix + new_tokens);
    return plan_latent_prefill(shape, q_indptr, kv_lens).expands;
  };
  if (!expands(most)) return std::nullopt;
  int low = 1, high = most;  // does not, does
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    (expands(middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace warpweave
