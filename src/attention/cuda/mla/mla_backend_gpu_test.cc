// The backend of latent attention on a GPU: with BackendContext::deterministic a row's bits are those of its own
// tokens, whatever is beside it, however its prompt was cut and whatever the page size; and every pool format comes
// through its view.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "attention/cuda/mla/mla_backend.h"
#include "attention/cuda/mla/testing.h"
#include "device/cuda/compute_capability.h"

namespace warpweave::cuda::testing {
namespace {

constexpr double kMaxCosineDifference = 5e-6;
constexpr Caps kCaps = mla_caps({.name = "a test", .summary = {}});

// Query tokens [first, first + count) of a request.
struct Part {
  int request, first, count;
};

template <typename T>
std::vector<T> host_copy(const void* from, size_t count) {
  std::vector<T> out(count);
  EXPECT_EQ(cudaMemcpy(out.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
  return out;
}
template <typename T>
DeviceBuffer device_copy(const std::vector<T>& values) {
  DeviceBuffer out = DeviceBuffer::allocate(values.size() * sizeof(T), "a test").value();
  EXPECT_EQ(cudaMemcpy(out.as<void>(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
  return out;
}

KvFormat pool_format(const MlaCase& c) {
  return c.format == MlaFormat::e4m3     ? KvFormat::fp8_e4m3
         : c.format == MlaFormat::ds_mla ? KvFormat::fp8_ds_mla
         : c.format == MlaFormat::fp4    ? KvFormat::fp4_mla
                                         : KvFormat::bf16;
}

// One problem, computed in steps of any parts.
class Steps {
 public:
  Steps(const MlaCase& c, MlaChoice choice, bool deterministic)
      : case_(c), problem_(c), p_(problem_.params()), backend_(kCaps, choice, deterministic) {
    for (const MlaRequest& r : c.requests) first_token_.push_back(first_token_.back() + r.q_len);
    q_ = host_copy<uint16_t>(p_.q, static_cast<size_t>(first_token_.back()) * q_row());
    table_ = host_copy<int32_t>(p_.page_table, c.requests.size() * p_.page_table_stride);
    out_.resize(static_cast<size_t>(first_token_.back()) * out_row());
  }

  void run(const std::vector<Part>& parts, ForwardMode mode = ForwardMode::extend);
  std::vector<Part> whole() const {
    std::vector<Part> parts;
    for (size_t r = 0; r < case_.requests.size(); ++r)
      parts.push_back({static_cast<int>(r), 0, case_.requests[r].q_len});
    return parts;
  }
  // [tokens, heads, 512] of all steps so far.
  const std::vector<uint16_t>& out() const { return out_; }
  std::vector<double> values() const {
    std::vector<double> values;
    for (const uint16_t bits : out_) values.push_back(problem_.value_of(bits));
    return values;
  }
  double difference_from_expected() const { return cosine_difference(values(), problem_.expected().out); }

 private:
  int64_t q_row() const { return int64_t{case_.num_heads} * kMlaDim; }
  int64_t out_row() const { return int64_t{case_.num_heads} * kMlaLatentDim; }

  MlaCase case_;
  MlaProblem problem_;
  MlaParams p_;
  MlaBackend backend_;
  std::vector<int> first_token_ = {0};
  std::vector<uint16_t> q_, out_;
  std::vector<int32_t> table_;
};

void Steps::run(const std::vector<Part>& parts, ForwardMode mode) {
  std::vector<int32_t> q_indptr = {0}, kv_lens, table;
  std::vector<uint16_t> q;
  int longest = 1;
  for (const Part& part : parts) {
    const MlaRequest& r = case_.requests[part.request];
    q_indptr.push_back(q_indptr.back() + part.count);
    kv_lens.push_back(r.kv_len - r.q_len + part.first + part.count);
    longest = std::max(longest, part.count);
    const auto row = table_.begin() + int64_t{part.request} * p_.page_table_stride;
    table.insert(table.end(), row, row + p_.page_table_stride);
    const auto from = q_.begin() + (first_token_[part.request] + part.first) * q_row();
    q.insert(q.end(), from, from + part.count * q_row());
  }
  const DeviceBuffer device_q = device_copy(q), device_indptr = device_copy(q_indptr),
                     device_lens = device_copy(kv_lens), device_table = device_copy(table);
  const size_t out_values = q_indptr.back() * out_row();
  const DeviceBuffer device_out = device_copy(std::vector<uint16_t>(out_values, 0xffff));
  ForwardBatch batch;
  batch.mode = mode;
  batch.num_reqs = static_cast<int>(parts.size());
  batch.num_tokens = q_indptr.back();
  batch.max_q_len = longest;
  batch.max_kv_len = *std::max_element(kv_lens.begin(), kv_lens.end());
  batch.page_size = case_.page_size;
  batch.q_indptr = q_indptr;
  batch.kv_lens = kv_lens;
  batch.page_table = table;
  batch.page_table_stride = p_.page_table_stride;
  batch.device.q_indptr = device_indptr.as<int32_t>();
  batch.device.kv_lens = device_lens.as<int32_t>();
  batch.device.page_table = device_table.as<int32_t>();
  AttentionCall call;
  call.num_q_heads = case_.num_heads;
  call.num_kv_heads = 1;
  call.head_dim = kMlaDim;
  call.v_head_dim = kMlaLatentDim;
  call.scale = p_.scale;
  call.q = device_q.as<void>();
  call.out = device_out.as<void>();
  call.q_dtype = call.out_dtype = DType::bf16;
  call.q_token_stride = q_row();
  call.out_token_stride = out_row();
  const int element_bytes = kv_format_bits(pool_format(case_)) / 8;
  call.k = {.data = p_.kv,
            .format = pool_format(case_),
            .page_stride = p_.page_stride_bytes / element_bytes,
            .token_stride = p_.token_stride_bytes / element_bytes,
            .head_stride = p_.token_stride_bytes / element_bytes};
  if (case_.format == MlaFormat::e4m3) call.k.head_scales = p_.kv_scale;
  call.v = call.k;
  ASSERT_TRUE(backend_.init_forward_metadata(batch).ok());
  const Status ran =
      mode == ForwardMode::decode ? backend_.forward_decode(batch, call) : backend_.forward_extend(batch, call);
  ASSERT_TRUE(ran.ok()) << ran.message();
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const std::vector<uint16_t> out = host_copy<uint16_t>(device_out.as<void>(), out_values);
  for (size_t i = 0; i < parts.size(); ++i) {
    std::copy(out.begin() + q_indptr[i] * out_row(), out.begin() + q_indptr[i + 1] * out_row(),
              out_.begin() + (first_token_[parts[i].request] + parts[i].first) * out_row());
  }
}

class MlaBackendGpu : public ::testing::TestWithParam<MlaChoice> {
 protected:
  void SetUp() override {
    if (current_compute_capability() != 90) GTEST_SKIP() << "not a GPU for these kernels";
  }
};

MlaCase some_case(MlaFormat format, int heads, int page_size) {
  MlaCase c;
  c.format = format;
  c.num_heads = heads;
  c.page_size = page_size;
  c.requests = {{9, 700}, {1, 1}, {40, 40}, {1, 4000}, {3, 130}, {70, 333}};
  return c;
}

TEST_P(MlaBackendGpu, ReadsEveryFormat) {
  for (const MlaFormat format : kMlaFormats) {
    for (const int page_size : {1, 64}) {
      for (const bool deterministic : {false, true}) {
        Steps steps(some_case(format, 16, page_size), GetParam(), deterministic);
        ASSERT_NO_FATAL_FAILURE(steps.run(steps.whole()));
        EXPECT_LE(steps.difference_from_expected(), kMaxCosineDifference)
            << static_cast<int>(format) << " page " << page_size << (deterministic ? " deterministic" : "");
      }
    }
  }
}

TEST_P(MlaBackendGpu, ARowsBitsAreThoseOfItsOwnTokens) {
  for (const MlaFormat format : kMlaFormats) {
    for (const int heads : {1, 16, 128}) {
      SCOPED_TRACE(::testing::Message() << "format " << static_cast<int>(format) << ", " << heads << " heads");
      const MlaCase c = some_case(format, heads, 64);
      Steps whole(c, GetParam(), true), alone(c, GetParam(), true), chunks(c, GetParam(), true),
          steps(c, GetParam(), true);
      ASSERT_NO_FATAL_FAILURE(whole.run(whole.whole()));
      for (const Part& part : whole.whole()) {
        ASSERT_NO_FATAL_FAILURE(alone.run({part}));
        for (int first = 0; first < part.count; first += 7) {
          ASSERT_NO_FATAL_FAILURE(
              chunks.run({{part.request, first, std::min(7, part.count - first)}}, ForwardMode::mixed));
        }
        for (int i = 0; i < part.count; ++i)
          ASSERT_NO_FATAL_FAILURE(steps.run({{part.request, i, 1}}, ForwardMode::decode));
      }
      EXPECT_EQ(alone.out(), whole.out()) << "alone";
      EXPECT_EQ(chunks.out(), whole.out()) << "in chunks of 7";
      EXPECT_EQ(steps.out(), whole.out()) << "a token at a time";
      std::vector<Part> crowd;
      for (int copy = 0; copy < 30; ++copy) crowd.push_back({3, 0, 1});
      crowd.push_back({0, 0, 9});
      ASSERT_NO_FATAL_FAILURE(whole.run(crowd));
      EXPECT_EQ(alone.out(), whole.out()) << "in a crowd";
    }
  }
}

// Of formats whose values do not depend on where a token stands.
TEST_P(MlaBackendGpu, AnyPageSizeGivesTheSameBits) {
  for (const MlaFormat format : {MlaFormat::same16, MlaFormat::e4m3}) {
    for (const int heads : {16, 128}) {
      Steps wanted(some_case(format, heads, 64), GetParam(), true);
      ASSERT_NO_FATAL_FAILURE(wanted.run(wanted.whole()));
      for (const int page_size : {1, 16, 53, 128}) {
        Steps got(some_case(format, heads, page_size), GetParam(), true);
        ASSERT_NO_FATAL_FAILURE(got.run(got.whole()));
        EXPECT_EQ(got.out(), wanted.out())
            << "page " << page_size << ", " << heads << " heads, format " << static_cast<int>(format);
      }
    }
  }
}

// Beside tokens alone and whole, whose plan is another kernel.
TEST_P(MlaBackendGpu, PromptsMayHaveMoreSlicesThanThePlanHasThreads) {
  MlaCase c = some_case(MlaFormat::same16, 128, 64);
  c.requests = {{500, 500}, {600, 1300}, {1, 700}, {40, 45}};
  Steps got(c, GetParam(), false), wanted(c, GetParam(), true);
  ASSERT_NO_FATAL_FAILURE(got.run(got.whole()));
  ASSERT_NO_FATAL_FAILURE(wanted.run(wanted.whole()));
  EXPECT_LE(cosine_difference(got.values(), wanted.values()), kMaxCosineDifference);
}

INSTANTIATE_TEST_SUITE_P(Choices, MlaBackendGpu, ::testing::Values(MlaChoice::wgmma, MlaChoice::mma, MlaChoice::faster),
                         [](const auto& info) {
                           return info.param == MlaChoice::wgmma ? "wgmma"
                                  : info.param == MlaChoice::mma ? "mma"
                                                                 : "faster";
                         });

}  // namespace
}  // namespace warpweave::cuda::testing
