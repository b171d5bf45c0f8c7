// The MLA kernels on a GPU against double precision. Random cases come from a seed (WARPWEAVE_SEED, else of the clock)
// that a failure names.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <random>

#include "attention/cuda/mla/mla_gather.h"
#include "attention/cuda/mla/testing.h"
#include "device/cuda/compute_capability.h"

namespace warpweave::cuda::testing {
namespace {

constexpr double kMaxCosineDifference = 5e-6;
constexpr MlaFamily kFamilies[] = {MlaFamily::wgmma, MlaFamily::mma};

unsigned first_seed() {
  const char* given = std::getenv("WARPWEAVE_SEED");
  return given != nullptr ? static_cast<unsigned>(std::atoi(given)) : static_cast<unsigned>(std::time(nullptr));
}

class MlaGpu : public ::testing::TestWithParam<MlaFamily> {
 protected:
  void SetUp() override {
    const int device = current_compute_capability();
    if (GetParam() == MlaFamily::wgmma ? device != 90 : device < 80) GTEST_SKIP() << "not a GPU for these kernels";
    int id = 0;
    ASSERT_EQ(cudaGetDevice(&id), cudaSuccess);
    ASSERT_EQ(cudaDeviceGetAttribute(&num_sms_, cudaDevAttrMultiProcessorCount, id), cudaSuccess);
  }

  // Plans and runs on `workers` SMs, of those there are: CTAs wait for each other. False: not written for that.
  bool launch(const MlaCase& c, MlaProblem& problem, int workers) {
    const MlaParams p = problem.params();
    const MlaShape shape = {c.element, c.format, GetParam()};
    const MlaLayout layout = mla_layout(shape, p, std::min(workers, num_sms_));
    if (layout.tile_rows == 0) return false;
    workspace_ = DeviceBuffer::allocate(layout.workspace_bytes, "a test").value();
    EXPECT_EQ(cudaMemset(workspace_.as<char>(), 0xff, layout.workspace_bytes), cudaSuccess);
    EXPECT_EQ(launch_mla_plan(layout, p, workspace_.as<char>(), nullptr), cudaSuccess);
    EXPECT_EQ(launch_mla_decode(shape, layout, p, workspace_.as<char>(), false, nullptr), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << c.text();
    return true;
  }

  void check(const MlaCase& c, int workers = 0) {
    MlaProblem problem(c);
    if (!launch(c, problem, workers > 0 ? workers : num_sms_)) return;
    const MlaRows got = problem.result(), wanted = problem.expected();
    for (size_t i = 0; i < got.lse.size(); ++i) {
      if (std::isinf(wanted.lse[i])) {
        ASSERT_EQ(got.lse[i], wanted.lse[i]) << c.text() << " row " << i;
      } else {
        ASSERT_NEAR(got.lse[i], wanted.lse[i], 1e-3 + 1e-4 * std::abs(wanted.lse[i])) << c.text() << " row " << i;
      }
      for (size_t d = i * 512; d < (i + 1) * 512; ++d) {
        const double bound = 0.03 + 0.02 * std::abs(wanted.out[d]);
        ASSERT_TRUE(std::abs(got.out[d] - wanted.out[d]) <= bound)
            << c.text() << " row " << i << " dim " << d % 512 << ": " << got.out[d] << ", wanted " << wanted.out[d];
      }
    }
    ASSERT_LE(cosine_difference(got.out, wanted.out), kMaxCosineDifference) << c.text();
  }

  int num_sms_ = 0;
  DeviceBuffer workspace_;
};

TEST_P(MlaGpu, LengthsAroundPages) {
  for (const MlaFormat format : kMlaFormats) {
    for (const int page_size : {1, 16, 64}) {
      MlaCase c;
      c.format = format;
      c.page_size = page_size;
      c.num_heads = 3;
      for (int length = 0; length <= 129; ++length) c.requests.push_back({length == 0 ? 0 : 1, length});
      ASSERT_NO_FATAL_FAILURE(check(c));
    }
  }
}

TEST_P(MlaGpu, HeadsAndQueryLengths) {
  for (const int heads : {1, 2, 5, 16, 33, 64, 96, 127, 128}) {
    for (const int q_len : {1, 2, 3, 5, 8}) {
      MlaCase c;
      c.num_heads = heads;
      c.seed = static_cast<unsigned>(heads * 10 + q_len);
      c.requests = {{q_len, 200}, {1, 1}, {q_len, q_len}, {q_len, 65}};
      ASSERT_NO_FATAL_FAILURE(check(c));
    }
  }
}

TEST_P(MlaGpu, CutRequests) {
  MlaCase c;
  c.num_heads = 20;
  c.requests = {{1, 3000}, {2, 70}, {1, 1500}, {4, 4}};
  for (const int workers : {2, 3, 7, 16, 131}) ASSERT_NO_FATAL_FAILURE(check(c, workers));
  c.num_heads = 128;
  for (const int workers : {2, 8, 9, 132}) ASSERT_NO_FATAL_FAILURE(check(c, workers));
}

// On some numbers of CTAs the last one of a unit merges its pieces: 40 units of 16 heads, 80 of 128; with mma.sync, two
// CTAs an SM, where requests have one query token.
MlaCase many_requests(int heads, int page_size, int most_queries = 2) {
  MlaCase c;
  c.num_heads = heads;
  c.page_size = page_size;
  std::mt19937 random(static_cast<unsigned>(heads * 100 + page_size));
  for (int r = heads == 16 ? 40 : 20; r > 0; --r) {
    const int q_len = 1 + static_cast<int>(random() % most_queries);
    c.requests.push_back({q_len, q_len + static_cast<int>(random() % 900)});
  }
  return c;
}

TEST_P(MlaGpu, ManyCutRequests) {
  for (const int heads : {16, 128}) {
    for (const int page_size : {1, 64}) {
      for (const int workers : {7, 60, 132}) {
        ASSERT_NO_FATAL_FAILURE(check(many_requests(heads, page_size), workers)) << workers;
        ASSERT_NO_FATAL_FAILURE(check(many_requests(heads, page_size, 1), workers / 2)) << workers;
      }
    }
  }
}

TEST_P(MlaGpu, DescendingScores) {
  MlaCase c;
  c.descending = true;
  c.requests = {{2, 700}, {1, 300}};
  ASSERT_NO_FATAL_FAILURE(check(c));
  ASSERT_NO_FATAL_FAILURE(check(c, 2));
}

// Of bf16 models, which reach further than f16 does.
TEST_P(MlaGpu, QueriesOfAnyMagnitude) {
  for (const MlaFormat format : kMlaFormats) {
    for (const float factor : {0x1p40f, 0x1p-40f}) {
      MlaCase c;
      c.format = format;
      c.query_factor = factor;
      c.requests = {{1, 300}, {2, 64}};
      ASSERT_NO_FATAL_FAILURE(check(c));
    }
  }
}

// Codes are copied in whole steps where pages are large, and by threads where not.
TEST_P(MlaGpu, RequestsEndWithinAndAtSteps) {
  for (const MlaFormat format : {MlaFormat::e4m3, MlaFormat::ds_mla, MlaFormat::fp4}) {
    for (const int page_size : {8, 16, 32, 48, 64, 128}) {
      for (const int heads : {16, 20}) {
        MlaCase c;
        c.format = format;
        c.page_size = page_size;
        c.num_heads = heads;
        c.requests = {{1, 64}, {1, 63}, {1, 65}, {1, 640}, {1, 1}, {1, 500}, {1, 128}, {1, 1000}};
        for (const int workers : {1, 3, 0}) ASSERT_NO_FATAL_FAILURE(check(c, workers));
      }
    }
  }
}

TEST_P(MlaGpu, RandomCases) {
  constexpr int kPages[] = {1, 2, 3, 8, 16, 32, 53, 61, 64, 69, 128, 256};
  const unsigned seed = first_seed();
  for (unsigned i = 0; i < 60; ++i) {
    MlaCase c;
    c.seed = seed + i;
    std::mt19937 random(c.seed);
    const auto draw = [&](unsigned low, unsigned high) { return static_cast<int>(low + random() % (high - low + 1)); };
    c.num_heads = random() % 3 == 0 ? 16 << random() % 4 : draw(1, 128);
    c.page_size = kPages[random() % std::size(kPages)];
    c.format = kMlaFormats[random() % std::size(kMlaFormats)];
    c.element = !mla_is_packed(c.format) && random() % 4 == 0 ? MlaElement::f16 : MlaElement::bf16;
    c.tree = random() % 4 == 0;
    c.causal = random() % 8 != 0;
    const int longest = random() % 3 == 0 ? 2500 : 400, q_len = draw(1, c.num_heads > 64 ? 4 : 10);
    for (int r = draw(1, 6); r > 0; --r) {
      const int own = random() % 2 == 0 ? q_len : draw(1, static_cast<unsigned>(q_len));
      c.requests.push_back({own, draw(static_cast<unsigned>(own), static_cast<unsigned>(longest))});
    }
    ASSERT_NO_FATAL_FAILURE(check(c, random() % 4 == 0 ? draw(2, 132) : 0));
  }
}

TEST_P(MlaGpu, PlantedFaultsAreSeen) {
  for (const MlaFormat format : {MlaFormat::ds_mla, MlaFormat::fp4}) {
    MlaCase c;
    c.format = format;
    c.requests = {{1, 130}, {2, 60}};
    MlaProblem problem(c);
    ASSERT_TRUE(launch(c, problem, num_sms_));
    const MlaRows got = problem.result();
    EXPECT_LE(cosine_difference(got.out, problem.expected().out), kMaxCosineDifference);
    for (const MlaFault fault : {MlaFault::rope_swapped, MlaFault::neighbours_scale, MlaFault::wrong_slice,
                                 MlaFault::merge_without_rescale, MlaFault::stale_tail}) {
      EXPECT_GT(cosine_difference(got.out, problem.expected(fault).out), 20 * kMaxCosineDifference)
          << static_cast<int>(format) << " " << static_cast<int>(fault);
    }
  }
}

TEST_P(MlaGpu, SameBitsEveryTime) {
  MlaCase few;
  few.num_heads = 128;
  few.requests = {{1, 2000}, {2, 777}, {1, 64}};
  MlaCase few_codes = few, fewer_bits = few;
  few_codes.format = MlaFormat::ds_mla;
  fewer_bits.format = MlaFormat::fp4;
  std::vector<std::pair<MlaCase, int>> cases = {{few, num_sms_}, {few_codes, num_sms_}, {fewer_bits, num_sms_}};
  cases.emplace_back(many_requests(16, 64), 60);
  cases.emplace_back(many_requests(16, 64, 1), 30);
  for (const auto& [c, workers] : cases) {
    MlaProblem problem(c);
    ASSERT_TRUE(launch(c, problem, workers));
    const std::vector<uint32_t> first = problem.result_bits();
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(launch(c, problem, workers));
      ASSERT_EQ(problem.result_bits(), first) << "repeat " << i;
    }
  }
}

TEST(MlaFamilies, TheFasterOneIsByFormatRequestsAndRows) {
  const auto faster = [](MlaFormat format, int requests, int heads, int q_len) {
    MlaParams p;
    p.page_size = 64;
    p.num_requests = requests;
    p.num_heads = heads;
    p.max_q_len = q_len;
    return faster_mla_family(format, p);
  };
  EXPECT_EQ(faster(MlaFormat::same16, 1, 16, 1), MlaFamily::wgmma);
  EXPECT_EQ(faster(MlaFormat::same16, 128, 16, 1), MlaFamily::wgmma);
  EXPECT_EQ(faster(MlaFormat::same16, 256, 16, 1), MlaFamily::mma);
  EXPECT_EQ(faster(MlaFormat::same16, 256, 16, 2), MlaFamily::wgmma);
  EXPECT_EQ(faster(MlaFormat::same16, 300, 16, 1), MlaFamily::wgmma);
  EXPECT_EQ(faster(MlaFormat::ds_mla, 8, 16, 1), MlaFamily::wgmma);
  EXPECT_EQ(faster(MlaFormat::ds_mla, 48, 16, 1), MlaFamily::mma);
  EXPECT_EQ(faster(MlaFormat::e4m3, 48, 16, 1), MlaFamily::wgmma);
  EXPECT_EQ(faster(MlaFormat::e4m3, 64, 16, 1), MlaFamily::mma);
  EXPECT_EQ(faster(MlaFormat::ds_mla, 128, 16, 2), MlaFamily::wgmma);
  EXPECT_EQ(faster(MlaFormat::fp4, 32, 16, 1), MlaFamily::wgmma);
  EXPECT_EQ(faster(MlaFormat::fp4, 48, 16, 1), MlaFamily::mma);
  EXPECT_EQ(faster(MlaFormat::e4m3, 128, 33, 1), MlaFamily::wgmma);
}

// Any sm_80; one family's device test stands for it.
TEST_P(MlaGpu, ChunksAreGathered) {
  if (GetParam() != MlaFamily::mma) GTEST_SKIP() << "tested with the other family";
  const std::vector<int32_t> begins = {3, 64, 7}, indptr = {0, 70, 70, 131};  // the second request gives nothing
  for (const MlaElement element : {MlaElement::bf16, MlaElement::f16}) {
    for (const MlaFormat format : kMlaFormats) {
      MlaCase c;
      c.requests = {{1, 80}, {1, 100}, {1, 68}};
      c.page_size = 5;
      c.element = element;
      c.format = format;
      MlaProblem problem(c);
      const MlaParams p = problem.params();
      const int rows = indptr.back(), spare = 20;
      const DeviceBuffer device_begins = DeviceBuffer::allocate(256, "a test").value();
      const DeviceBuffer device_indptr = DeviceBuffer::allocate(256, "a test").value();
      const DeviceBuffer out = DeviceBuffer::allocate((rows + spare) * kMlaDim * 2, "a test").value();
      ASSERT_EQ(cudaMemcpy(device_begins.as<char>(), begins.data(), begins.size() * 4, cudaMemcpyHostToDevice),
                cudaSuccess);
      ASSERT_EQ(cudaMemcpy(device_indptr.as<char>(), indptr.data(), indptr.size() * 4, cudaMemcpyHostToDevice),
                cudaSuccess);
      ASSERT_EQ(cudaMemset(out.as<char>(), 0xff, (rows + spare) * kMlaDim * 2), cudaSuccess);
      const MlaGather gather = {.begins = device_begins.as<int32_t>(), .indptr = device_indptr.as<int32_t>(),
                                .rows = out.as<char>(), .max_tokens = rows + spare};
      const cudaError_t launched = launch_mla_gather(element, format, p, gather, nullptr);
      if (element == MlaElement::f16 && mla_is_packed(format)) {
        EXPECT_EQ(launched, cudaErrorNotSupported);
        continue;
      }
      ASSERT_EQ(launched, cudaSuccess);
      std::vector<uint16_t> got((rows + spare) * kMlaDim);
      ASSERT_EQ(cudaMemcpy(got.data(), out.as<char>(), got.size() * 2, cudaMemcpyDeviceToHost), cudaSuccess);
      for (int row = 0; row < rows; ++row) {
        const int request = row < 70 ? 0 : 2;
        const std::vector<double> wanted = problem.latent(request, begins[request] + row - indptr[request]);
        for (int d = 0; d < kMlaDim; ++d) {
          ASSERT_NEAR(problem.value_of(got[row * kMlaDim + d]), wanted[d], std::abs(wanted[d]) / 256)
              << c.text() << " row " << row;
        }
      }
      for (size_t i = rows * kMlaDim; i < got.size(); ++i) ASSERT_EQ(got[i], 0xffff) << "past the last row";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, MlaGpu, ::testing::ValuesIn(kFamilies),
                         [](const auto& info) { return info.param == MlaFamily::wgmma ? "wgmma" : "mma"; });

}  // namespace
}  // namespace warpweave::cuda::testing
