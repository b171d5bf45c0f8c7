#include "conformance/determinism.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/threads.h"
#include "conformance/suite.h"

namespace warpweave::conformance {
namespace {

constexpr int kRepeats = 20;

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

bool same_bits(const Output& a, const Output& b) {
  return a.error.empty() && b.error.empty() && same_bits(a.out, b.out) && same_bits(a.lse, b.lse);
}

// Within `share` of the largest value: some roundings of the 16-bit types, or of fp8 if one of the two ran in it.
bool close(const Output& a, const Output& b, float share) {
  if (!a.error.empty() || a.out.size() != b.out.size()) return false;
  float largest = 0, difference = 0;
  for (size_t i = 0; i < a.out.size(); ++i) {
    largest = std::max(largest, std::abs(a.out[i]));
    if (std::isnan(a.out[i] - b.out[i])) return false;
    difference = std::max(difference, std::abs(a.out[i] - b.out[i]));
  }
  return difference <= share * largest;
}

void append(Output& to, const Output& part) {
  to.out.insert(to.out.end(), part.out.begin(), part.out.end());
  to.lse.insert(to.lse.end(), part.lse.begin(), part.lse.end());
  to.error += part.error;
}

BackendContext context(ThreadTeam& team, int page_size) {
  return {.team = &team, .page_size = page_size, .deterministic = true};
}

// Each request alone, in chunks of `chunk` rows; single rows by forward_decode if `decode`.
Output run_in_chunks(const Problem& problem, const Variant& variant, AttentionBackend& backend,
                     int chunk, bool decode) {
  Output output;
  for (const Slice& request : problem.all()) {
    for (int q = 0; q < request.q_end; q += chunk) {
      const Slice slice = {request.request, q, std::min(request.q_end, q + chunk)};
      append(output, variant.run_problem(problem, backend, {slice}, decode));
    }
  }
  return output;
}

// The rows of every request as a tree of two branches: row i follows row i - 2, and both branches row 0. From the root
// to a row.
std::vector<int> path_to(int row) {
  std::vector<int> path;
  for (; row > 0; row -= 2) path.insert(path.begin(), row);
  path.insert(path.begin(), 0);
  return path;
}

Output run(const Problem& problem, AttentionBackend& backend, const Forward& forward, bool decode) {
  Status status = backend.init_forward_metadata(forward.batch);
  if (status.ok()) {
    status = decode ? backend.forward_decode(forward.batch, forward.call)
                    : backend.forward_extend(forward.batch, forward.call);
  }
  return status.ok() ? problem.collect(forward) : Output{{}, {}, status.message()};
}

Output run_as_trees(const Problem& problem, AttentionBackend& backend) {
  Forward forward = problem.prepare(problem.all(), false);
  ForwardBatch& batch = forward.batch;
  batch.mode = ForwardMode::target_verify;
  batch.tree_mask_words = (batch.max_q_len + 31) / 32;
  forward.tree_mask.assign(static_cast<size_t>(batch.num_tokens) * batch.tree_mask_words, 0);
  for (int r = 0; r < batch.num_reqs; ++r) {
    for (int row = 0; row < batch.q_len(r); ++row) {
      const std::vector<int> path = path_to(row);
      const int at = batch.q_indptr[r] + row, prefix = batch.kv_lens[r] - batch.q_len(r);
      forward.positions[at] = prefix + static_cast<int>(path.size()) - 1;
      for (const int node : path) forward.tree_mask[at * batch.tree_mask_words + node / 32] |= 1u << node % 32;
    }
  }
  batch.tree_mask = forward.tree_mask;
  return run(problem, backend, forward, false);
}

// The texts of those trees' nodes, one by one on pages of one token.
Output run_paths(const Problem& problem, AttentionBackend& backend) {
  Forward forward = problem.prepare(problem.all(), true);
  const ForwardBatch rows = forward.batch;
  const std::vector<int32_t> pages = forward.page_table, lens = forward.kv_lens, indptr = forward.q_indptr;
  const int64_t tokens_apart = forward.call.k.page_stride / forward.call.k.token_stride;
  forward.kv_lens.clear(), forward.q_indptr = {0};
  forward.page_table.assign(static_cast<size_t>(rows.num_tokens) * rows.max_kv_len, 0);
  for (int r = 0; r < rows.num_reqs; ++r) {
    const int q_len = indptr[r + 1] - indptr[r], prefix = lens[r] - q_len;
    const auto place = [&](int token) {
      const int32_t page = pages[r * rows.page_table_stride + token / rows.page_size];
      return static_cast<int32_t>(page * tokens_apart + token % rows.page_size);
    };
    for (int row = 0; row < q_len; ++row) {
      int32_t* table = forward.page_table.data() + static_cast<int64_t>(indptr[r] + row) * rows.max_kv_len;
      for (int token = 0; token < prefix; ++token) *table++ = place(token);
      const std::vector<int> path = path_to(row);
      for (const int node : path) *table++ = place(prefix + node);
      forward.kv_lens.push_back(prefix + static_cast<int>(path.size()));
      forward.q_indptr.push_back(indptr[r] + row + 1);
    }
  }
  ForwardBatch& batch = forward.batch;
  batch.mode = ForwardMode::decode;
  batch.num_reqs = rows.num_tokens;
  batch.max_q_len = batch.page_size = 1;
  batch.q_indptr = forward.q_indptr, batch.kv_lens = forward.kv_lens, batch.page_table = forward.page_table;
  batch.page_table_stride = rows.max_kv_len;
  forward.call.k.page_stride = forward.call.k.token_stride;
  forward.call.v.page_stride = forward.call.v.token_stride;
  return run(problem, backend, forward, true);
}

// Of backends that read host memory and run pages of one token.
bool runs_trees(const Variant& variant, const Case& c) {
  const Caps& caps = *variant.caps;
  const bool claims = caps.spec == SpecSupport::tree && caps.deterministic_drafts && caps.deterministic_trees;
  return claims && !variant.run && caps.page_sizes.accepts(1) && c.causal && c.dual_chunk_len == 0;
}

}  // namespace

int other_page_size(const Caps& caps, int page_size) {
  for (int size : {53, 1, 64, 128, 32, 16}) {
    if (size != page_size && (caps.page_sizes.accepts(size) || caps.expands_pages)) return size;
  }
  return 0;
}

std::string first_difference(const BitProblems& problems, const Variant& variant) {
  const Problem& problem = problems.problem;
  const Case& c = problem.shape();
  const int page_size = problem.page_size();
  ThreadTeam team(2), alone(1), crowd(5);
  const auto backend = variant.create(context(team, page_size));
  const Output expected = variant.run_problem(problem, *backend, problem.all(), c.decode);
  if (!expected.error.empty()) return expected.error;
  // The case list proves the backend without the flag; with it the rows may be summed in another order.
  const auto usual = variant.create({.team = &team, .page_size = page_size});
  const float share = runs_in_fp8(variant, c, problem.kv_format()) ? 0.1f : 0.02f;
  if (!close(variant.run_problem(problem, *usual, problem.all(), c.decode), expected, share)) {
    return "from the backend without the flag by more than rounding";
  }
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const Output again = variant.run_problem(problem, *backend, problem.all(), c.decode);
    if (!same_bits(again, expected)) return "repeat " + std::to_string(repeat);
  }
  for (ThreadTeam* other : {&alone, &crowd}) {
    const auto twin = variant.create(context(*other, page_size));
    if (!same_bits(variant.run_problem(problem, *twin, problem.all(), c.decode), expected)) {
      return "with " + std::to_string(other->size()) + " threads";
    }
  }
  if (const Problem* other = problems.other_pages) {
    const auto twin = variant.create(context(team, other->page_size()));
    if (!same_bits(variant.run_problem(*other, *twin, other->all(), c.decode), expected)) {
      return "with page size " + std::to_string(other->page_size());
    }
  }
  if (!same_bits(run_in_chunks(problem, variant, *backend, 1 << 20, false), expected)) {
    return "each request alone";
  }
  if (!same_bits(run_in_chunks(problem, variant, *backend, 7, false), expected)) {
    return "in chunks of 7";
  }
  if (!same_bits(run_in_chunks(problem, variant, *backend, 1, false), expected)) return "row by row";
  if (!same_bits(run_in_chunks(problem, variant, *backend, 1, true), expected)) return "by decode";
  if (!runs_trees(variant, c)) return {};
  const auto of_one = variant.create(context(team, 1));
  return same_bits(run_as_trees(problem, *backend), run_paths(problem, *of_one)) ? "" : "in a tree";
}

}  // namespace warpweave::conformance
