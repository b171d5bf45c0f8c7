// Plain attention, one block per query row and head: each warp takes every fourth KV position, the
// lanes share the head dim, and the warps' running softmaxes merge at the end. No tiles, no tensor
// cores, nothing planned: what the fast kernels are compared with on the GPU.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "attention/backends/torch_native/cuda_attention.h"
#include "base/float8.h"
#include "device/cuda/cuda_check.h"
#include "kv/latent_token.h"

namespace warpweave::torch_native {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxHeadDim = 512;
constexpr int kMaxLatentDim = 576;  // of latent attention (DeepSeek)

// What the kernel reads of ForwardBatch and AttentionCall.
struct Args {
  const int32_t* q_indptr;
  const int32_t* kv_lens;
  const int32_t* positions;
  const int32_t* page_table;
  const uint32_t* tree_mask;
  int num_reqs, page_size, page_table_stride, tree_mask_words;
  bool causal;
  int num_q_heads, num_kv_heads, head_dim, v_head_dim, window_left;
  float scale, softcap;
  const float* sinks;
  const void* q;
  void* out;
  int64_t q_token_stride, out_token_stride;
  DType dtype;
  KvPoolView k, v;
  float* lse;
};

__device__ float load_element(const void* data, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::f32: return static_cast<const float*>(data)[i];
    case DType::f16: return __half2float(static_cast<const __half*>(data)[i]);
    default: return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
  }
}

__device__ void store_element(void* data, DType dtype, int64_t i, float value) {
  switch (dtype) {
    case DType::f32: static_cast<float*>(data)[i] = value; break;
    case DType::f16: static_cast<__half*>(data)[i] = __float2half_rn(value); break;
    default: static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(value); break;
  }
}

template <KvFormat kFormat>
__device__ __forceinline__ float pool_element(const KvPoolView& pool, int64_t i) {
  if constexpr (kFormat == KvFormat::f32) return static_cast<const float*>(pool.data)[i];
  if constexpr (kFormat == KvFormat::bf16) return __bfloat162float(static_cast<const __nv_bfloat16*>(pool.data)[i]);
  if constexpr (kFormat == KvFormat::f16) return __half2float(static_cast<const __half*>(pool.data)[i]);
  if constexpr (kFormat == KvFormat::fp8_e4m3) return e4m3_to_f32(static_cast<const uint8_t*>(pool.data)[i]);
  if constexpr (kFormat == KvFormat::fp8_e5m2) return e5m2_to_f32(static_cast<const uint8_t*>(pool.data)[i]);
  const uint8_t pair = static_cast<const uint8_t*>(pool.data)[i / 2];
  return e2m1_to_f32(i % 2 == 0 ? pair : pair >> 4) * e4m3_to_f32(pool.block_scales[i / kFp4BlockElements]);
}

// Value `i` of a packed token.
template <KvFormat kFormat>
__device__ __forceinline__ float load_packed(const uint8_t* token, int i) {
  constexpr bool kFp4 = kFormat == KvFormat::fp4_mla;
  if (i >= kPackedLatentDim) {
    const auto* const rope = reinterpret_cast<const __nv_bfloat16*>(token + (kFp4 ? kFp4MlaRopeAt : kDsMlaRopeAt));
    return __bfloat162float(rope[i - kPackedLatentDim]);
  }
  if constexpr (kFp4) {
    return e2m1_to_f32(token[i / 2] >> i % 2 * 4) * e4m3_to_f32(token[kFp4MlaScaleAt + i / kFp4BlockElements]);
  }
  return e4m3_to_f32(token[i]) * *reinterpret_cast<const float*>(token + kDsMlaScaleAt + i / kDsMlaScaleDim * 4);
}

// Value `i` of the head that begins at element `row`.
template <KvFormat kFormat>
__device__ __forceinline__ float load_kv(const KvPoolView& pool, int64_t row, int i) {
  const auto* const bytes = static_cast<const uint8_t*>(pool.data);
  if constexpr (kv_format_is_packed(kFormat)) return load_packed<kFormat>(bytes + row, i);
  return pool_element<kFormat>(pool, row + i);
}

__device__ __forceinline__ float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

// The request that owns a row: the last one that begins at or before it and is not empty.
__device__ int request_of(const Args& args, int token) {
  int low = 0, high = args.num_reqs - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (args.q_indptr[middle] <= token) low = middle; else high = middle - 1;
  }
  return low;
}

// Of 32 nodes of a request of `q_len` rows, those that a row sees. Bits past the request's rows say nothing.
__device__ uint32_t nodes_of(const uint32_t* mask, int word, int q_len) {
  const int rows = q_len - 32 * word;
  return rows >= 32 ? mask[word] : rows > 0 ? mask[word] & ((1u << rows) - 1) : 0;
}
// The `n`-th node that a row sees; it sees more than `n`.
__device__ int node_of(const uint32_t* mask, int q_len, int n) {
  int word = 0;
  for (; __popc(nodes_of(mask, word, q_len)) <= n; ++word) n -= __popc(nodes_of(mask, word, q_len));
  uint32_t bits = mask[word];
  for (; n > 0; --n) bits &= bits - 1;
  return word * 32 + __ffs(static_cast<int>(bits)) - 1;
}
// A tree's row counts the nodes that it sees as neighbours, as its text would have them: its sums are those of decode.
__device__ int num_nodes(const uint32_t* mask, int q_len) {
  int nodes = 0;
  for (int word = 0; 32 * word < q_len; ++word) nodes += __popc(nodes_of(mask, word, q_len));
  return nodes;
}

template <KvFormat kFormat, int kMaxHeadDim>
__global__ void __launch_bounds__(32 * kWarps) attention_kernel(Args args) {
  constexpr int kMaxPerLane = kMaxHeadDim / 32;
  // Within what every supported GPU gives a block without asking.
  static_assert(sizeof(float) * kWarps * (kMaxHeadDim + 2) <= 48 * 1024);
  __shared__ float top_of[kWarps], sum_of[kWarps], out_of[kWarps][kMaxHeadDim];
  const int token = blockIdx.x, head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int request = request_of(args, token);
  const int q_begin = args.q_indptr[request], q_len = args.q_indptr[request + 1] - q_begin;
  const int kv_len = args.kv_lens[request], prefix = kv_len - q_len;
  const bool tree = args.tree_mask != nullptr;
  const int position = tree ? args.positions[token] : prefix + token - q_begin;
  const uint32_t* mask = tree ? args.tree_mask + int64_t{token} * args.tree_mask_words : nullptr;
  int first = args.window_left < 0 ? 0 : max(0, position - args.window_left);
  if (tree) first = min(first, prefix);
  const bool empty = kv_len == 0 || token >= q_begin + q_len;
  const int end = empty ? first : tree ? prefix + num_nodes(mask, q_len) : args.causal ? position + 1 : kv_len;

  const int kv_head = head / (args.num_q_heads / args.num_kv_heads);
  const float k_scale = args.scale * (args.k.head_scales != nullptr ? args.k.head_scales[kv_head] : 1.0f);
  const int64_t q_base = token * args.q_token_stride + int64_t{head} * args.head_dim;
  float q[kMaxPerLane], out[kMaxPerLane] = {};
#pragma unroll
  for (int j = 0; j < kMaxPerLane; ++j) {
    const int i = lane + 32 * j;
    q[j] = i < args.head_dim ? load_element(args.q, args.dtype, q_base + i) * k_scale : 0.0f;
  }
  float top = -INFINITY, sum = 0;
  for (int at = first + warp; at < end; at += kWarps) {
    const int kv = tree && at >= prefix ? prefix + node_of(mask, q_len, at - prefix) : at;
    const int64_t page = args.page_table[int64_t{request} * args.page_table_stride + kv / args.page_size];
    const auto row_of = [&](const KvPoolView& pool) {
      return page * pool.page_stride + kv % args.page_size * pool.token_stride + kv_head * pool.head_stride;
    };
    const int64_t k_row = row_of(args.k), v_row = row_of(args.v);
    float dot = 0;
#pragma unroll
    for (int j = 0; j < kMaxPerLane; ++j) {
      const int i = lane + 32 * j;
      if (i < args.head_dim) dot += q[j] * load_kv<kFormat>(args.k, k_row, i);
    }
    float score = warp_sum(dot);
    if (args.softcap > 0) score = args.softcap * tanhf(score / args.softcap);
    const float new_top = fmaxf(top, score);
    const float keep = __expf(top - new_top), weight = __expf(score - new_top);
    sum = sum * keep + weight;
    top = new_top;
#pragma unroll
    for (int j = 0; j < kMaxPerLane; ++j) {
      const int i = lane + 32 * j;
      if (i < args.v_head_dim) out[j] = out[j] * keep + weight * load_kv<kFormat>(args.v, v_row, i);
    }
  }
  if (lane == 0) {
    top_of[warp] = top;
    sum_of[warp] = sum;
  }
#pragma unroll
  for (int j = 0; j < kMaxPerLane; ++j) {
    const int i = lane + 32 * j;
    if (i < args.v_head_dim) out_of[warp][i] = out[j];
  }
  __syncthreads();
  const float sink = args.sinks != nullptr && !empty ? args.sinks[head] : -INFINITY;
  top = sink;
  for (int w = 0; w < kWarps; ++w) top = fmaxf(top, top_of[w]);
  sum = top == -INFINITY ? 0 : __expf(sink - top);
  float share[kWarps];
  for (int w = 0; w < kWarps; ++w) {
    share[w] = top_of[w] == -INFINITY ? 0 : __expf(top_of[w] - top);
    sum += share[w] * sum_of[w];
  }
  const float v_scale = args.v.head_scales != nullptr ? args.v.head_scales[kv_head] : 1.0f;
  const float inverse = sum > 0 ? v_scale / sum : 0;
  const int64_t out_base = token * args.out_token_stride + int64_t{head} * args.v_head_dim;
  for (int i = threadIdx.x; i < args.v_head_dim; i += 32 * kWarps) {
    float value = 0;
    for (int w = 0; w < kWarps; ++w) value += share[w] * out_of[w][i];
    store_element(args.out, args.dtype, out_base + i, value * inverse);
  }
  if (args.lse != nullptr && threadIdx.x == 0) {
    args.lse[int64_t{token} * args.num_q_heads + head] = sum > 0 ? top + logf(sum) : -INFINITY;
  }
}

Args make_args(const ForwardBatch& batch, const AttentionCall& call) {
  Args args{};
  args.q_indptr = batch.device.q_indptr;
  args.kv_lens = batch.device.kv_lens;
  args.positions = batch.device.positions;
  args.page_table = batch.device.page_table;
  args.tree_mask = batch.device.tree_mask;
  args.num_reqs = batch.num_reqs;
  args.page_size = batch.page_size;
  args.page_table_stride = batch.page_table_stride;
  args.tree_mask_words = batch.tree_mask_words;
  args.causal = batch.causal;
  args.num_q_heads = call.num_q_heads;
  args.num_kv_heads = call.num_kv_heads;
  args.head_dim = call.head_dim;
  args.v_head_dim = call.v_head_dim;
  args.window_left = call.window_left;
  args.scale = call.scale;
  args.softcap = call.logit_softcap;
  args.sinks = call.sinks;
  args.q = call.q;
  args.out = call.out;
  args.q_token_stride = call.q_token_stride;
  args.out_token_stride = call.out_token_stride;
  args.dtype = call.q_dtype;
  args.k = call.k;
  args.v = call.v;
  args.lse = call.lse;
  return args;
}

template <int kMaxDim>
Status launch_for(const ForwardBatch& batch, const AttentionCall& call) {
  const Args args = make_args(batch, call);
  const dim3 grid(batch.num_tokens, call.num_q_heads);
  const auto stream = static_cast<cudaStream_t>(batch.device.stream);
  const auto launch = [&](auto kernel) {
    kernel<<<grid, 32 * kWarps, 0, stream>>>(args);
    return cuda_status(cudaPeekAtLastError(), "attention");
  };
  switch (call.k.format) {
    case KvFormat::f32: return launch(attention_kernel<KvFormat::f32, kMaxDim>);
    case KvFormat::bf16: return launch(attention_kernel<KvFormat::bf16, kMaxDim>);
    case KvFormat::f16: return launch(attention_kernel<KvFormat::f16, kMaxDim>);
    case KvFormat::fp8_e4m3: return launch(attention_kernel<KvFormat::fp8_e4m3, kMaxDim>);
    case KvFormat::fp8_e5m2: return launch(attention_kernel<KvFormat::fp8_e5m2, kMaxDim>);
    case KvFormat::fp4_e2m1:
      if constexpr (kMaxDim == kMaxHeadDim) return launch(attention_kernel<KvFormat::fp4_e2m1, kMaxDim>);
      return Status::internal("attention: latent rows are not kept in fp4_e2m1");
    case KvFormat::fp8_ds_mla:
      if constexpr (kMaxDim == kMaxLatentDim) return launch(attention_kernel<KvFormat::fp8_ds_mla, kMaxDim>);
      break;
    case KvFormat::fp4_mla:
      if constexpr (kMaxDim == kMaxLatentDim) return launch(attention_kernel<KvFormat::fp4_mla, kMaxDim>);
      break;
  }
  return Status::internal("attention: an unknown KV format");
}

}  // namespace

int cuda_code_version() {
  cudaFuncAttributes attributes = {};
  if (cudaFuncGetAttributes(&attributes, attention_kernel<KvFormat::bf16, kMaxHeadDim>) == cudaSuccess)
    return attributes.ptxVersion;
  cudaGetLastError();
  return 0;
}

Status launch_cuda_attention(const ForwardBatch& batch, const AttentionCall& call) {
  if (batch.num_tokens == 0) return {};
  return call.head_dim <= kMaxHeadDim ? launch_for<kMaxHeadDim>(batch, call) : launch_for<kMaxLatentDim>(batch, call);
}

}  // namespace warpweave::torch_native
