// Attention backends on a GPU, one layer: milliseconds and TFLOP/s of prefill, TB/s of decode, the
// backends interleaved.
//
//   backend_bench BACKEND[=MASK] ...     flex_attention=window(1024): with this mask modifier
//   backend_bench --decode COUNT SEED BACKEND ...
//     decode of COUNT batches of requests of unlike lengths, drawn from the seed: microseconds of a launch in a graph,
//     K and V read from memory, the plan made before
//
// 32/8 heads of 128, causal, pages of 64 in random order, median of 15 runs after 3.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "attention/mods/parse.h"
#include "attention/registry.h"
#include "attention/select.h"
#include "cuda_bench.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "paged_batch.h"

using namespace warpweave;
using bench::check;
using bench::take;

namespace {

constexpr int kHeads = 32, kKvHeads = 8, kDim = 128, kPage = 64, kRuns = 15, kWarmRuns = 3;

struct Point {
  const char* name;
  int requests, q_len, kv_len;
  KvFormat format = KvFormat::bf16;
  std::vector<int32_t> kv_lens{};  // of unlike requests
};

struct Contender {
  std::string name;
  mods::Modifiers modifiers;
  const Caps* caps = nullptr;
  std::unique_ptr<AttentionBackend> backend;
};

// Random bf16 values of about unit variance, or random small fp8 codes, repeated over the buffer.
void fill(const DeviceBuffer& buffer, KvFormat format) {
  static std::mt19937 random(1);
  std::vector<uint16_t> block(1 << 20);
  for (uint16_t& bits : block) {
    const uint16_t sign = random() & 0x8000, mantissa = random() & 0x7f, exponent = 0x3f00 + (random() & 0x80);
    bits = format == KvFormat::bf16 ? sign | exponent | mantissa : random() & 0xb7b7;
  }
  const size_t bytes = block.size() * 2;
  char* const to = buffer.as<char>();
  cudaMemcpy(to, block.data(), std::min(bytes, buffer.size_bytes()), cudaMemcpyHostToDevice);
  for (size_t at = bytes; at < buffer.size_bytes(); at += bytes) {
    cudaMemcpy(to + at, to, std::min(bytes, buffer.size_bytes() - at), cudaMemcpyDeviceToDevice);
  }
}

void* allocate(size_t bytes, KvFormat format, bench::Owner& owner) {
  auto buffer = DeviceBuffer::allocate(bytes, "the benchmark");
  check(buffer.status());
  fill(*buffer, format);
  owner.push_back(std::move(*buffer));
  return owner.back().as<void>();
}

// Of e4m3, 1/4 to 2: blocks of fp4.
std::vector<uint8_t> random_scales(size_t count) {
  std::mt19937 random(3);
  std::vector<uint8_t> scales(count);
  for (uint8_t& code : scales) code = static_cast<uint8_t>(0x28 + random() % 24);
  return scales;
}

struct Work {
  bench::PagedBatch paged;
  bench::Owner owner;
  AttentionCall call;

  Work(const Point& p, cudaStream_t stream)
      : paged({.requests = p.requests, .q_len = p.q_len, .kv_len = p.kv_len, .page_tokens = kPage, .kv_lens = p.kv_lens},
              stream) {
    const size_t q_bytes = static_cast<size_t>(paged.get().num_tokens) * kHeads * kDim * 2;
    call.num_q_heads = kHeads;
    call.num_kv_heads = kKvHeads;
    call.head_dim = call.v_head_dim = kDim;
    call.scale = 0.088f;
    call.q = allocate(q_bytes, KvFormat::bf16, owner);
    call.out = allocate(q_bytes, KvFormat::bf16, owner);
    call.q_dtype = call.out_dtype = DType::bf16;
    call.q_token_stride = call.out_token_stride = kHeads * kDim;
    const size_t pool_bytes = paged.pool_tokens() * kKvHeads * kDim * kv_format_bits(p.format) / 8;
    call.k.format = p.format;
    call.k.page_stride = kPage * kKvHeads * kDim;
    call.k.token_stride = kKvHeads * kDim;
    call.k.head_stride = kDim;
    call.v = call.k;
    call.k.data = allocate(pool_bytes, p.format, owner);
    call.v.data = allocate(pool_bytes, p.format, owner);
    if (p.format == KvFormat::fp4_e2m1) {
      call.k.block_scales = bench::upload(random_scales(paged.pool_tokens() * kKvHeads * kDim / 16), owner);
      call.v.block_scales = call.k.block_scales;
    }
  }

  // One forward; a plan is made for it, too.
  void run(AttentionBackend& backend) {
    const ForwardBatch& batch = paged.get();
    check(backend.init_forward_metadata(batch));
    check(batch.mode == ForwardMode::decode ? backend.forward_decode(batch, call) : backend.forward_extend(batch, call));
  }
};

void measure(const Point& p, std::vector<Contender>& contenders, cudaStream_t stream) {
  Work work(p, stream);
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<std::vector<float>> times(contenders.size());
  for (int i = 0; i < kWarmRuns + kRuns; ++i) {
    for (size_t c = 0; c < contenders.size(); ++c) {
      if (!contenders[c].caps->kv_formats.has(p.format)) continue;
      cudaEventRecord(begin, stream);
      work.run(*contenders[c].backend);
      cudaEventRecord(end, stream);
      cudaEventSynchronize(end);
      float ms = 0;
      cudaEventElapsedTime(&ms, begin, end);
      if (i >= kWarmRuns) times[c].push_back(ms);
    }
  }
  const double pairs = p.q_len == 1 ? p.kv_len : (p.kv_len - p.q_len / 2.0) * p.q_len;
  const double tflop = 4e-12 * p.requests * pairs * kHeads * kDim;
  const double terabyte = 2e-12 * p.requests * p.kv_len * kKvHeads * kDim * kv_format_bits(p.format) / 8;
  fmt::print("{:<24}", p.name);
  for (size_t c = 0; c < contenders.size(); ++c) {
    if (times[c].empty()) {
      fmt::print(" | {:<14} -", contenders[c].name);
      continue;
    }
    std::sort(times[c].begin(), times[c].end());
    const double seconds = times[c][times[c].size() / 2] * 1e-3;
    fmt::print(" | {:<14} {:8.3f} ms {:7.1f} TFLOP/s {:5.2f} TB/s", contenders[c].name, seconds * 1e3,
               tflop / seconds, terabyte / seconds);
  }
  fmt::print("\n");
  std::fflush(stdout);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
}

// Microseconds of one of a graph's decode launches, which take K and V of as many pools as do not fit the L2 cache.
double decode_us(const Point& p, AttentionBackend& backend, cudaStream_t stream) {
  constexpr size_t kUncachedBytes = size_t{300} << 20;
  std::vector<std::unique_ptr<Work>> works = {};
  for (size_t bytes = 0; bytes < kUncachedBytes && works.size() < 32;) {
    works.push_back(std::make_unique<Work>(p, stream));
    bytes += works.back()->paged.pool_tokens() * kKvHeads * kDim * 4;
  }
  const ForwardBatch& batch = works[0]->paged.get();
  check(backend.init_forward_metadata(batch));
  check(backend.forward_decode(batch, works[0]->call));
  const int launches = std::max<int>(16, static_cast<int>(works.size()));
  return bench::time_us(stream, launches, [&] {
    for (int i = 0; i < launches; ++i) {
      AttentionCall call = works[0]->call;
      call.k.data = works[i % works.size()]->call.k.data;
      call.v.data = works[i % works.size()]->call.v.data;
      check(backend.forward_decode(batch, call));
    }
  });
}

void measure_decode(int count, unsigned seed, std::vector<Contender>& contenders, cudaStream_t stream) {
  for (int i = 0; i < count; ++i) {
    std::mt19937 random(seed + static_cast<unsigned>(i));
    Point p = {"", 1 << random() % 9, 1, 64 << random() % 10};
    while (static_cast<int64_t>(p.requests) * p.kv_len > 1 << 20) p.kv_len /= 2;
    const auto length = [&] { return p.kv_len / 4 + 1 + static_cast<int32_t>(random() % (3 * p.kv_len / 4)); };
    for (int r = 0; r < p.requests; ++r) p.kv_lens.push_back(length());
    fmt::print("random {:<8} {:3} requests to {:5}", seed + i, p.requests, p.kv_len);
    for (Contender& contender : contenders) {
      fmt::print(" | {} {:8.1f} us", contender.name, decode_us(p, *contender.backend, stream));
    }
    fmt::print("\n");
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto gpu = probe_cuda_device();
  check(gpu.status());
  const auto arch = arch_of_compute_capability(gpu->compute_capability);
  std::vector<Contender> contenders;
  const bool decodes = argc > 3 && std::strcmp(argv[1], "--decode") == 0;
  for (int i = decodes ? 4 : 1; i < argc; ++i) {
    Contender& contender = contenders.emplace_back();
    contender.name = argv[i];
    const std::string name = contender.name.substr(0, contender.name.find('='));
    if (name.size() < contender.name.size()) {
      auto parsed = mods::parse_mask_modifier(contender.name.substr(name.size() + 1));
      check(parsed.status());
      contender.modifiers.mask = std::move(*parsed);
    }
    for (const BackendRegistration& backend : built_backends()) {
      if (backend.caps->name != name || !backend.caps->kinds.has(AttentionKind::mha)) continue;
      if (!arch || !backend.caps->archs.has(*arch)) continue;
      contender.caps = backend.caps;
      contender.backend = backend.create({.page_size = kPage, .modifiers = &contender.modifiers});
    }
    if (contender.backend == nullptr) check(Status::not_found("no backend " + name + " for this GPU"));
  }
  auto stream = create_stream();
  check(stream.status());
  fmt::print("{}\n", gpu->name);
  if (decodes) {
    measure_decode(std::stoi(argv[2]), static_cast<unsigned>(std::stoul(argv[3])), contenders, stream->get());
    return 0;
  }
  for (const Point& point : {Point{"prefill 16x1024", 16, 1024, 1024}, Point{"prefill 4x4096", 4, 4096, 4096},
                             Point{"prefill 1x16384", 1, 16384, 16384}, Point{"extend 8x512 on 16k", 8, 512, 16384},
                             Point{"prefill fp8 4x4096", 4, 4096, 4096, KvFormat::fp8_e4m3},
                             Point{"decode 1x4k", 1, 1, 4096}, Point{"decode 1x32k", 1, 1, 32768},
                             Point{"decode 8x8k", 8, 1, 8192}, Point{"decode 64x2k", 64, 1, 2048},
                             Point{"decode 64x8k", 64, 1, 8192}, Point{"decode fp8 64x8k", 64, 1, 8192, KvFormat::fp8_e4m3},
                             Point{"decode fp8 1x32k", 1, 1, 32768, KvFormat::fp8_e4m3},
                             Point{"prefill fp4 4x4096", 4, 4096, 4096, KvFormat::fp4_e2m1},
                             Point{"decode fp4 64x8k", 64, 1, 8192, KvFormat::fp4_e2m1},
                             Point{"decode fp4 1x32k", 1, 1, 32768, KvFormat::fp4_e2m1}}) {
    measure(point, contenders, stream->get());
  }
}
