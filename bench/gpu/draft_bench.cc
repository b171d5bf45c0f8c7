// Attention of steps that verify drafts, and of a few new tokens on a prefix, on a GPU: microseconds a layer in a CUDA graph
// of many layers, each with K and V of its own, as a served step has them.
//
//   draft_bench [--one] [--in-order] BACKEND ...
//
// --one: one request on 8192 tokens alone. --in-order: pages follow each other, as those of one request in a server do.
// 32/8 heads of 128, bf16, pages in random order otherwise; medians of 15 replays after 3. "decode": the same with one query token.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

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

constexpr int kHeads = 32, kKvHeads = 8, kDim = 128, kRuns = 15, kWarmRuns = 3;
constexpr size_t kPoolBytes = size_t{24} << 30;  // of all layers

struct Point {
  int requests, q_len, kv_len, page;
  bool tree;
  bool in_order = false;
};

// Random bf16 values of about unit variance, repeated over the buffer.
void* filled(size_t bytes, bench::Owner& owner) {
  static std::vector<uint16_t> block;
  if (block.empty()) {
    std::mt19937 random(1);
    block.resize(1 << 20);
    for (uint16_t& bits : block) {
      const uint16_t sign = random() & 0x8000, mantissa = random() & 0x7f, exponent = 0x3f00 + (random() & 0x80);
      bits = sign | exponent | mantissa;
    }
  }
  owner.push_back(take(DeviceBuffer::allocate(bytes, "the benchmark")));
  char* const to = owner.back().as<char>();
  const size_t block_bytes = block.size() * 2;
  check(cudaMemcpy(to, block.data(), std::min(block_bytes, bytes), cudaMemcpyHostToDevice));
  for (size_t at = block_bytes; at < bytes; at += block_bytes) {
    check(cudaMemcpy(to + at, to, std::min(block_bytes, bytes - at), cudaMemcpyDeviceToDevice));
  }
  return owner.back().as<void>();
}

// A tree: each node's parent is drawn among the nodes before it.
std::vector<uint32_t> tree_mask(int requests, int q_len) {
  std::mt19937 random(4);
  const int words = (q_len + 31) / 32;
  std::vector<uint32_t> mask(static_cast<size_t>(requests) * q_len * words);
  for (int r = 0; r < requests; ++r) {
    uint32_t* rows = mask.data() + static_cast<size_t>(r) * q_len * words;
    for (int node = 0; node < q_len; ++node) {
      if (node > 0) std::copy_n(rows + random() % node * words, words, rows + node * words);
      rows[node * words + node / 32] |= 1u << node % 32;
    }
  }
  return mask;
}

class Work {
 public:
  Work(const Point& p, cudaStream_t stream)
      : paged_({.requests = p.requests, .q_len = p.q_len, .kv_len = p.kv_len, .page_tokens = p.page,
                .kv_lens = {}, .in_order = p.in_order}, stream) {
    if (p.tree) paged_.set_tree_mask(tree_mask(p.requests, p.q_len));
    add_layers(p);
  }

  int layers() const { return static_cast<int>(calls_.size()); }

  void run(AttentionBackend& backend) {
    for (const AttentionCall& call : calls_) {
      check(batch().mode == ForwardMode::decode ? backend.forward_decode(batch(), call) : backend.forward_extend(batch(), call));
    }
  }
  const ForwardBatch& batch() const { return paged_.get(); }

 private:
  void add_layers(const Point& p) {
    const size_t pool_bytes = paged_.pool_tokens() * kKvHeads * kDim * 2;
    const size_t q_bytes = static_cast<size_t>(batch().num_tokens) * kHeads * kDim * 2;
    AttentionCall call;
    call.num_q_heads = kHeads;
    call.num_kv_heads = kKvHeads;
    call.head_dim = call.v_head_dim = kDim;
    call.scale = 0.088f;
    call.earlier_kv_settled = true;
    call.q = filled(q_bytes, owner_);
    call.out = filled(q_bytes, owner_);
    call.q_dtype = call.out_dtype = DType::bf16;
    call.q_token_stride = call.out_token_stride = kHeads * kDim;
    call.k.format = KvFormat::bf16;
    call.k.page_stride = int64_t{p.page} * kKvHeads * kDim;
    call.k.token_stride = kKvHeads * kDim;
    call.k.head_stride = kDim;
    call.v = call.k;
    const size_t layers = std::clamp<size_t>(kPoolBytes / (2 * pool_bytes), 2, 32);
    for (size_t layer = 0; layer < layers; ++layer) {
      call.k.data = filled(pool_bytes, owner_);
      call.v.data = filled(pool_bytes, owner_);
      calls_.push_back(call);
    }
  }

  bench::PagedBatch paged_;
  bench::Owner owner_;
  std::vector<AttentionCall> calls_;
};

double layer_us(Work& work, AttentionBackend& backend, cudaStream_t stream) {
  check(backend.init_forward_metadata(work.batch()));
  work.run(backend);  // memory of plans is not there before
  check(backend.init_cuda_graph_state({.max_batch_size = work.batch().num_reqs, .max_tokens = work.batch().num_tokens}));
  check(backend.init_forward_metadata_capture_cuda_graph(work.batch()));
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  work.run(backend);
  cudaStreamEndCapture(stream, &graph);
  cudaGraphInstantiate(&replay, graph, 0);
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<float> times;
  for (int i = 0; i < kWarmRuns + kRuns; ++i) {
    cudaEventRecord(begin, stream);
    cudaGraphLaunch(replay, stream);
    cudaEventRecord(end, stream);
    cudaEventSynchronize(end);
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    if (i >= kWarmRuns) times.push_back(ms);
  }
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) check(Status::internal(cudaGetErrorString(error)));
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2] * 1e3 / work.layers();
}

void measure(const Point& p, const std::string& name, const BackendRegistration& backend, cudaStream_t stream) {
  auto fresh = [&] { return backend.create({.page_size = p.page}); };
  Work drafts(p, stream);
  const double us = layer_us(drafts, *fresh(), stream);
  const double bytes = 4.0 * p.requests * p.kv_len * kKvHeads * kDim;
  const double flop = 4.0 * p.requests * p.q_len * static_cast<double>(p.kv_len) * kHeads * kDim;
  fmt::print("{:<14} {:>3} requests, {:>3} {} on {:>6}, pages of {:>2}: {:8.1f} us, {:5.2f} TB/s, {:5.0f} TFLOP/s\n", name, p.requests, p.q_len,
             p.q_len == 1 ? "token " : p.tree ? "nodes " : "tokens", p.kv_len, p.page, us, bytes / us * 1e-6, flop / us * 1e-6);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const auto gpu = probe_cuda_device();
  check(gpu.status());
  const auto arch = arch_of_compute_capability(gpu->compute_capability);
  auto stream = create_stream();
  check(stream.status());
  fmt::print("{}\n", gpu->name);
  const std::vector<Point> points = {
      {1, 1, 8192, 64, false},   {1, 4, 8192, 64, false},    {1, 8, 8192, 64, true},     {1, 16, 8192, 64, true},
      {1, 24, 8192, 64, true},   {1, 32, 8192, 64, true},    {4, 16, 8192, 16, true},   {8, 64, 4096, 16, true},
      {1, 64, 8192, 64, true},   {1, 64, 8192, 1, true},     {1, 64, 8192, 16, true},    {1, 128, 8192, 64, true},
      {16, 1, 8192, 16, false},  {16, 8, 8192, 16, true},    {16, 16, 8192, 16, true},   {16, 16, 8192, 1, true},
      {64, 1, 2048, 16, false},  {64, 4, 2048, 16, true},    {64, 16, 2048, 16, true},
      {1, 32, 32768, 16, false}, {1, 128, 32768, 16, false}, {1, 512, 32768, 16, false}, {8, 32, 4096, 16, false},
      {8, 128, 4096, 16, false}, {32, 48, 4096, 16, false},  {128, 32, 1024, 16, false}, {1, 300, 2000, 16, false}};
  const std::vector<std::string_view> words(argv + 1, argv + argc);
  const auto has = [&](std::string_view word) { return std::find(words.begin(), words.end(), word) != words.end(); };
  const bool one = has("--one"), in_order = has("--in-order");
  for (Point point : points) {
    if (one && (point.requests != 1 || point.kv_len != 8192)) continue;
    point.in_order = in_order;
    for (const std::string_view name : words) {
      for (const BackendRegistration& backend : built_backends()) {
        if (backend.caps->name != name || !backend.caps->kinds.has(AttentionKind::mha) || !arch || !backend.caps->archs.has(*arch)) continue;
        measure(point, std::string(name), backend, stream->get());
      }
    }
  }
}
