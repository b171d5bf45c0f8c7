// Backends that claim Caps::deterministic give every row the same bits, whatever else is in the
// batch, however the prompt was cut into chunks, in extend and in decode, with any number of threads
// and any page size, run after run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/threads.h"
#include "problem.h"
#include "variants.h"

namespace warpweave::conformance {
namespace {

constexpr uint64_t kSeed = 7;

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

bool same_bits(const Output& a, const Output& b) {
  return same_bits(a.out, b.out) && same_bits(a.lse, b.lse);
}

void append(Output& to, const Output& part) {
  to.out.insert(to.out.end(), part.out.begin(), part.out.end());
  to.lse.insert(to.lse.end(), part.lse.begin(), part.lse.end());
}

// Each request alone, in chunks of `chunk` rows; single rows by forward_decode if `decode`.
Output run_in_chunks(const Problem& problem, AttentionBackend& backend, int chunk, bool decode) {
  Output output;
  for (const Slice& request : problem.all()) {
    for (int q = 0; q < request.q_end; q += chunk) {
      const Slice slice = {request.request, q, std::min(request.q_end, q + chunk)};
      append(output, problem.run(backend, {slice}, decode));
    }
  }
  return output;
}

class Determinism : public testing::TestWithParam<Case> {};

TEST_P(Determinism, SameBits) {
  const Case& c = GetParam();
  ThreadTeam team(2), alone(1), crowd(5);
  for (KvFormat format : c.kv_formats) {
    const Problem problem(c, format, kSeed, c.page_size);
    const Problem other_pages(c, format, kSeed, c.page_size == 1 ? 53 : 1);
    for (const Variant& variant : all_variants()) {
      if (!variant.caps->deterministic) continue;
      SCOPED_TRACE(c.name + " kv=" + std::string(kv_format_name(format)) + " " + variant.name);
      const auto backend = variant.create({&team, 0, c.page_size});
      const Output expected = problem.run(*backend);
      for (int repeat = 0; repeat < 20; ++repeat) {
        ASSERT_TRUE(same_bits(problem.run(*backend), expected)) << "repeat " << repeat;
      }
      EXPECT_TRUE(same_bits(problem.run(*variant.create({&alone, 0, c.page_size})), expected))
          << "one thread";
      EXPECT_TRUE(same_bits(problem.run(*variant.create({&crowd, 0, c.page_size})), expected))
          << "five threads";
      EXPECT_TRUE(same_bits(other_pages.run(*backend), expected)) << "page size";
      EXPECT_TRUE(same_bits(run_in_chunks(problem, *backend, 1 << 20, false), expected)) << "alone";
      EXPECT_TRUE(same_bits(run_in_chunks(problem, *backend, 7, false), expected)) << "chunks of 7";
      EXPECT_TRUE(same_bits(run_in_chunks(problem, *backend, 1, false), expected)) << "row by row";
      EXPECT_TRUE(same_bits(run_in_chunks(problem, *backend, 1, true), expected)) << "by decode";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Mha, Determinism,
                         testing::ValuesIn(read_cases("src/conformance/cases/determinism.txt")),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace warpweave::conformance
