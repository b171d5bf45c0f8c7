// Attention of the CPU backend on large shapes: prefill in GFLOP/s, decode in GB/s of KV read and as
// a share of the read bandwidth measured in the same run.
//   attention_bench [--threads N] [--repeats N] [--backend NAME] [--only prefill|decode|plan]
//                   [--page N] [--kv bf16|fp8_e4m3]
// One line per shape and KV format: name, median milliseconds, rate. The read bandwidth is measured
// anew beside every decode line, since machines that are shared change from second to second.
// bench/attention_torch.py times the same shapes with torch's scaled_dot_product_attention.

#include <sys/mman.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "attention/registry.h"
#include "base/float16.h"
#include "base/float8.h"
#include "base/threads.h"
#include "device/cpu/cpu_info.h"

namespace warpweave {
namespace {

constexpr int kQueryHeads = 32, kKvHeads = 8, kHeadDim = 128;

struct Options {
  int threads = available_cpus();
  int repeats = 7;
  int page_size = 16;
  std::string backend = "intel_amx";
  std::vector<KvFormat> kv = {KvFormat::bf16, KvFormat::fp8_e4m3};
  std::string only;
};

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <typename F>
double median_seconds(int repeats, F body) {
  body();
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    const double start = now_s();
    body();
    times.push_back(now_s() - start);
  }
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return times[repeats / 2];
}

// Page-aligned memory in huge pages where the kernel gives them, touched.
class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) std::abort();
    madvise(data_, bytes, MADV_HUGEPAGE);
    std::memset(data_, 0, bytes);
  }
  ~Buffer() { munmap(data_, bytes_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* data_;
  size_t bytes_;
};

uint64_t sum_range(const char* begin, const char* end) {
  // Eight independent sums: enough loads in flight for any core.
  uint64_t sums[8] = {};
  for (; begin + 64 <= end; begin += 64) {
    uint64_t words[8];
    std::memcpy(words, begin, 64);
    for (int i = 0; i < 8; ++i) sums[i] += words[i];
  }
  return std::accumulate(sums, sums + 8, uint64_t{0});
}

// Reads 1 GB in order, each thread its part; the best of `rounds`.
double read_bandwidth(ThreadTeam& team, int rounds) {
  static const Buffer buffer(size_t{1} << 30);
  std::vector<uint64_t> sums(team.size() * 8);
  double best = 0;
  for (int i = 0; i < rounds; ++i) {
    const double start = now_s();
    team.run([&](int member, int members) {
      const char* data = static_cast<const char*>(buffer.data());
      const size_t part = buffer.bytes() / members / 64 * 64;
      sums[member * 8] += sum_range(data + part * member, data + part * (member + 1));
    });
    best = std::max(best, buffer.bytes() / (now_s() - start));
  }
  if (sums[0] == 1) std::printf(" ");
  return best;
}

struct Setup {
  int batch_size, q_len, kv_len, page_size;
  KvFormat kv = KvFormat::bf16;
};

// A pool with pages in random order, and the batch over it.
class Bench {
 public:
  Bench(const Setup& setup)
      : setup_(setup),
        pages_each_((setup.kv_len + setup.page_size - 1) / setup.page_size),
        k_(pool_bytes()), v_(pool_bytes()) {
    fill(k_, 1);
    fill(v_, 2);
    std::vector<int32_t> ids(pages_each_ * setup.batch_size);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(3));
    page_table_ = ids;
    q_indptr_.push_back(0);
    for (int r = 0; r < setup.batch_size; ++r) {
      q_indptr_.push_back(q_indptr_.back() + setup.q_len);
      kv_lens_.push_back(setup.kv_len);
    }
    const size_t tokens = q_indptr_.back();
    std::mt19937 random(4);
    std::normal_distribution<float> normal;
    q_.resize(tokens * kQueryHeads * kHeadDim);
    for (float& x : q_) x = normal(random);
    out_.resize(q_.size());
    batch_.mode = setup.q_len == 1 ? ForwardMode::decode : ForwardMode::extend;
    batch_.num_reqs = setup.batch_size;
    batch_.num_tokens = static_cast<int>(tokens);
    batch_.max_q_len = setup.q_len;
    batch_.max_kv_len = setup.kv_len;
    batch_.page_size = setup.page_size;
    batch_.q_indptr = q_indptr_;
    batch_.kv_lens = kv_lens_;
    batch_.page_table = page_table_;
    batch_.page_table_stride = pages_each_;
  }

  double seconds(AttentionBackend& backend, int repeats) {
    AttentionCall call;
    call.num_q_heads = kQueryHeads;
    call.num_kv_heads = kKvHeads;
    call.head_dim = call.v_head_dim = kHeadDim;
    call.scale = 1 / std::sqrt(static_cast<float>(kHeadDim));
    call.q = q_.data();
    call.q_token_stride = call.out_token_stride = kQueryHeads * kHeadDim;
    call.out = out_.data();
    call.k = view(k_);
    call.v = view(v_);
    if (!backend.init_forward_metadata(batch_).ok()) std::abort();
    return median_seconds(repeats, [&] {
      const Status ran = setup_.q_len == 1 ? backend.forward_decode(batch_, call) : backend.forward_extend(batch_, call);
      if (!ran.ok()) std::abort();
    });
  }

  double kv_bytes() const {
    return 2.0 * setup_.batch_size * setup_.kv_len * kKvHeads * kHeadDim * kv_format_bits(setup_.kv) / 8;
  }
  double causal_flops() const {
    const double pairs = 0.5 * setup_.q_len * (2.0 * setup_.kv_len - setup_.q_len + 1);
    return setup_.batch_size * pairs * kQueryHeads * kHeadDim * 4;
  }
  const ForwardBatch& batch() const { return batch_; }

 private:
  size_t pool_bytes() const {
    return size_t{1} * pages_each_ * setup_.batch_size * setup_.page_size * kKvHeads * kHeadDim *
           kv_format_bits(setup_.kv) / 8;
  }
  KvPoolView view(const Buffer& buffer) const {
    const int64_t token = kKvHeads * kHeadDim;
    return {buffer.data(), setup_.kv, token * setup_.page_size, token, kHeadDim, nullptr, nullptr};
  }
  void fill(const Buffer& buffer, int seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(65537);
    for (float& x : values) x = normal(random);
    if (setup_.kv == KvFormat::bf16) {
      repeat<uint16_t>(buffer, values, f32_to_bf16);
    } else {
      repeat<uint8_t>(buffer, values, f32_to_e4m3);
    }
  }
  template <typename Code>
  static void repeat(const Buffer& buffer, const std::vector<float>& values, Code (*encode)(float)) {
    std::vector<Code> codes;
    for (float x : values) codes.push_back(encode(x));
    Code* data = static_cast<Code*>(buffer.data());
    for (size_t i = 0; i < buffer.bytes() / sizeof(Code); ++i) data[i] = codes[i % codes.size()];
  }

  Setup setup_;
  int pages_each_;
  Buffer k_, v_;
  std::vector<int32_t> page_table_, q_indptr_, kv_lens_;
  std::vector<float> q_, out_;
  ForwardBatch batch_;
};

void bench_prefill(AttentionBackend& backend, const Options& options) {
  for (int tokens : {2048, 8192}) {
    Bench bench({1, tokens, tokens, options.page_size});
    const double s = bench.seconds(backend, tokens > 4096 ? std::min(options.repeats, 3) : options.repeats);
    std::printf("prefill b1 %5d      %9.2f ms  %7.1f GFLOP/s\n", tokens, s * 1e3,
                bench.causal_flops() / s / 1e9);
  }
}

void bench_decode(AttentionBackend& backend, const Options& options, ThreadTeam& team) {
  for (int batch_size : {1, 16}) {
    for (int kv_len : {4096, 32768}) {
      double first = 0;  // seconds of the first format
      for (KvFormat kv : options.kv) {
        Bench bench({batch_size, 1, kv_len, options.page_size, kv});
        const double before = read_bandwidth(team, 3);
        const double s = bench.seconds(backend, options.repeats);
        const double bandwidth = std::max(before, read_bandwidth(team, 3));
        const double rate = bench.kv_bytes() / s;
        if (first == 0) first = s;
        std::printf("decode  b%-2d kv %5d %-9s %9.3f ms  %7.2f GB/s  %5.1f %% of %.2f GB/s read"
                    "  %.2f x %s\n", batch_size, kv_len, std::string(kv_format_name(kv)).c_str(), s * 1e3,
                    rate / 1e9, 100 * rate / bandwidth, bandwidth / 1e9, first / s,
                    std::string(kv_format_name(options.kv[0])).c_str());
      }
    }
  }
}

void bench_plan(AttentionBackend& backend, const Options& options) {
  Bench bench({256, 1, 512, options.page_size});
  constexpr int kPlans = 1000;
  const double s = median_seconds(options.repeats, [&] {
    for (int i = 0; i < kPlans; ++i) {
      if (!backend.init_forward_metadata(bench.batch()).ok()) std::abort();
    }
  });
  std::printf("init_forward_metadata b256  %.2f us\n", s / kPlans * 1e6);
}

int bench_main(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--threads") options.threads = std::stoi(value);
    if (flag == "--repeats") options.repeats = std::stoi(value);
    if (flag == "--page") options.page_size = std::stoi(value);
    if (flag == "--backend") options.backend = value;
    if (flag == "--only") options.only = value;
    if (flag == "--kv") {
      options.kv = {value == "fp8_e4m3" ? KvFormat::fp8_e4m3 : KvFormat::bf16};
    }
  }
  ThreadTeam team(options.threads, true);
  auto backend = create_backend(options.backend, {&team, 0, options.page_size});
  if (!backend.ok()) {
    std::fprintf(stderr, "%s\n", backend.status().message().c_str());
    return 1;
  }
  std::printf("%s, %s, %d threads, page %d, heads %d/%d d %d; read bandwidth %.2f GB/s\n",
              cpu_info().model_name.c_str(), options.backend.c_str(), team.size(), options.page_size,
              kQueryHeads, kKvHeads, kHeadDim, read_bandwidth(team, 5) / 1e9);
  if (options.only.empty() || options.only == "prefill") bench_prefill(**backend, options);
  if (options.only.empty() || options.only == "decode") bench_decode(**backend, options, team);
  bench_plan(**backend, options);
  return 0;
}

}  // namespace
}  // namespace warpweave

int main(int argc, char** argv) { return warpweave::bench_main(argc, argv); }
