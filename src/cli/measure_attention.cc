#include "cli/measure_attention.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>

#include "device/cpu/cpu_info.h"
#include "kv/kv_codec.h"
#include "machine_peak.h"

namespace warpweave {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Touched memory in huge pages where the kernel gives them.
class PoolMemory {
 public:
  explicit PoolMemory(size_t bytes) : bytes_(bytes) {
    void* memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    data_ = static_cast<char*>(memory);
    madvise(data_, bytes, MADV_HUGEPAGE);
    std::memset(data_, 0, bytes);
  }
  ~PoolMemory() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  PoolMemory(const PoolMemory&) = delete;
  PoolMemory& operator=(const PoolMemory&) = delete;
  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  char* data_ = nullptr;
  size_t bytes_;
};

// K or V pages: one page of random values, in all of them.
class Pool {
 public:
  Pool(const TuningShape& shape, int page_size, int pages)
      : head_(kv_stored_dim(shape.kv_format, shape.head_dim)),
        token_(int64_t{shape.num_kv_heads} * head_),
        page_(token_ * page_size),
        data_(static_cast<size_t>(page_) * pages * kv_format_bits(shape.kv_format) / 8),
        scales_(static_cast<size_t>(page_) * pages / kFp4BlockElements + 1),
        view_{data_.data(), shape.kv_format, page_, token_, head_} {
    if (!ok()) return;
    if (shape.kv_format == KvFormat::fp4_e2m1) {
      view_.block_scales = reinterpret_cast<const uint8_t*>(scales_.data());
    }
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    std::vector<float> values(shape.head_dim);
    for (int64_t at = 0; at < page_; at += head_) {
      for (float& value : values) value = normal(random);
      const int head = static_cast<int>(at % token_ / head_);
      kv_encode_run(view_, head, at, shape.head_dim, values.data());
    }
    const size_t page_bytes = data_.bytes() / pages;
    for (int p = 1; p < pages; ++p) {
      std::memcpy(data_.data() + p * page_bytes, data_.data(), page_bytes);
      std::memcpy(scales_.data() + p * page_ / kFp4BlockElements, scales_.data(),
                  page_ / kFp4BlockElements);
    }
  }
  bool ok() const { return data_.data() != nullptr && scales_.data() != nullptr; }
  const KvPoolView& view() const { return view_; }

 private:
  int64_t head_, token_, page_;
  PoolMemory data_, scales_;
  KvPoolView view_;
};

struct Arrays : MeasuredArrays {
  std::vector<float> q, out;
};

AttentionCall make_call(const TuningShape& shape, const Pool& k, const Pool& v, int num_tokens,
                        Arrays& arrays) {
  const int64_t row = int64_t{shape.num_q_heads} * shape.head_dim;
  const int v_dim = shape.v_head_dim > 0 ? shape.v_head_dim : shape.head_dim;
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  arrays.q.resize(num_tokens * row);
  for (float& x : arrays.q) x = normal(random);
  arrays.out.resize(int64_t{num_tokens} * shape.num_q_heads * v_dim);
  AttentionCall call;
  call.num_q_heads = shape.num_q_heads;
  call.num_kv_heads = shape.num_kv_heads;
  call.head_dim = shape.head_dim;
  call.v_head_dim = v_dim;
  call.scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
  call.q = arrays.q.data();
  call.out = arrays.out.data();
  call.q_token_stride = row;
  call.out_token_stride = int64_t{shape.num_q_heads} * v_dim;
  call.k = k.view();
  call.v = shape.v_head_dim > 0 ? k.view() : v.view();
  return call;
}

double median_seconds(const MeasureOptions& options, const std::function<void()>& body) {
  body();
  std::vector<double> times;
  const Clock::time_point begin = Clock::now();
  while (static_cast<int>(times.size()) < options.max_repeats &&
         (times.size() < 3 || seconds_since(begin) < options.max_seconds)) {
    const Clock::time_point start = Clock::now();
    body();
    times.push_back(seconds_since(start));
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

// The best of some runs of `body` on every thread, in operations (that it returns) per second.
double best_rate(ThreadTeam& team, const std::function<double(int member, int members)>& body) {
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    std::vector<double> done(team.size());
    const Clock::time_point start = Clock::now();
    team.run([&](int member, int members) { done[member] = body(member, members); });
    best = std::max(best, std::accumulate(done.begin(), done.end(), 0.0) / seconds_since(start));
  }
  return best;
}

}  // namespace

ForwardBatch measured_batch(const AttentionPoint& point, int page_size, MeasuredArrays& arrays) {
  const int pages_each = (point.kv_len + page_size - 1) / page_size;
  arrays.page_table.resize(static_cast<size_t>(pages_each) * point.batch_size);
  std::iota(arrays.page_table.begin(), arrays.page_table.end(), 0);
  std::shuffle(arrays.page_table.begin(), arrays.page_table.end(), std::mt19937(3));
  for (int r = 0; r < point.batch_size; ++r) {
    arrays.q_indptr.push_back(arrays.q_indptr.back() + point.q_len);
    arrays.kv_lens.push_back(point.kv_len);
    for (int i = 0; i < point.q_len; ++i) {
      arrays.positions.push_back(point.kv_len - point.q_len + i);
    }
  }
  ForwardBatch batch;
  batch.mode = point.phase == AttentionPhase::decode ? ForwardMode::decode : ForwardMode::extend;
  batch.num_reqs = point.batch_size;
  batch.num_tokens = arrays.q_indptr.back();
  batch.max_q_len = point.q_len;
  batch.max_kv_len = point.kv_len;
  batch.page_size = page_size;
  arrays.slots.assign(batch.num_tokens, 0);
  batch.kv_slots = arrays.slots;
  batch.positions = arrays.positions;
  batch.q_indptr = arrays.q_indptr;
  batch.kv_lens = arrays.kv_lens;
  batch.page_table = arrays.page_table;
  batch.page_table_stride = pages_each;
  return batch;
}

int64_t token_bytes(const TuningShape& shape) {
  const int64_t side = int64_t{shape.num_kv_heads} * kv_stored_dim(shape.kv_format, shape.head_dim) *
                       kv_format_bits(shape.kv_format) / 8;
  return shape.v_head_dim > 0 ? side : 2 * side;
}

double AttentionPoint::kv_bytes(const TuningShape& shape) const {
  return static_cast<double>(token_bytes(shape)) * batch_size * kv_len;
}

double AttentionPoint::flops(const TuningShape& shape) const {
  const double pairs = 0.5 * q_len * (2.0 * kv_len - q_len + 1);
  const int v_dim = shape.v_head_dim > 0 ? shape.v_head_dim : shape.head_dim;
  return 2.0 * batch_size * pairs * shape.num_q_heads * (shape.head_dim + v_dim);
}

std::string AttentionPoint::text() const {
  return phase == AttentionPhase::decode
             ? fmt::format("decode b{} kv {}", batch_size, kv_len)
             : fmt::format("prefill b{} q {} kv {}", batch_size, q_len, kv_len);
}

Result<double> measure_attention(AttentionBackend& backend, const TuningShape& shape,
                                 const AttentionPoint& point, const MeasureOptions& options) {
  Arrays arrays;
  const ForwardBatch batch = measured_batch(point, options.page_size, arrays);
  const int pages = static_cast<int>(arrays.page_table.size());
  const Pool k(shape, options.page_size, pages), v(shape, options.page_size, shape.v_head_dim > 0 ? 1 : pages);
  if (!k.ok() || !v.ok()) {
    return Status::resource_exhausted(
        fmt::format("no memory for a pool of {:.1f} GB; try a shorter --kv-len",
                    point.kv_bytes(shape) / 1e9));
  }
  const AttentionCall call = make_call(shape, k, v, batch.num_tokens, arrays);
  WW_RETURN_IF_ERROR(backend.init_forward_metadata(batch));
  Status failed;
  const double seconds = median_seconds(options, [&] {
    const bool decode = point.phase == AttentionPhase::decode;
    Status ran = decode ? backend.forward_decode(batch, call) : backend.forward_extend(batch, call);
    if (!ran.ok()) failed = std::move(ran);
  });
  WW_RETURN_IF_ERROR(failed);
  return seconds * 1e6;
}

MachineLimits measure_machine(ThreadTeam& team) {
  MachineLimits limits;
#if defined(__x86_64__)
  if (cpu_info().tier >= CpuTier::avx512) {
    const PoolMemory memory(size_t{1} << 29);
    if (memory.data() != nullptr) {
      limits.read_gb_per_s = best_rate(team, [&](int member, int members) {
        const size_t part = memory.bytes() / members / 512 * 512;
        read_memory(memory.data() + part * member, part);
        return static_cast<double>(part);
      }) / 1e9;
    }
    constexpr int64_t kIterations = 1 << 20;
    const bool bf16 = cpu_info().tier >= CpuTier::avx512_bf16;
    limits.instruction = bf16 ? "bf16 dot" : "f32 fma";
    limits.gflop_per_s = best_rate(team, [bf16](int, int) {
      return 2.0 * static_cast<double>(bf16 ? run_bf16_dot(kIterations) : run_f32_fma(kIterations));
    }) / 1e9;
  }
#endif
  return limits;
}

}  // namespace warpweave
