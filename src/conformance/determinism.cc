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
  return {};
}

}  // namespace warpweave::conformance
