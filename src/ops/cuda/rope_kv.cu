// Norm, rotation, then q back in place or k and v into the pool. Two kernels: for the usual head dims 8 elements of
// each half of a head a thread, so that the two elements of a rotation meet in one thread and all accesses have 16
// bytes; for everything else a warp per head, through shared memory.
#include <cuda_runtime.h>

#include <type_traits>

#include "base/float8.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/rope_places.h"
#include "ops/cuda/types.cuh"

namespace warpweave::gpu {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxHeadDim = 512;

// A head in shared memory, which a warp works on.
struct WarpHead {
  float* values;
  int lane;
};

// A pool as the kernel writes it: element index to memory.
template <typename T>
__device__ void store_run(const KvPoolView& pool, int64_t index, const float* head, int dim, int lane) {
  T* out = static_cast<T*>(const_cast<void*>(pool.data)) + index;
  for (int i = lane; i < dim; i += 32) out[i] = from_f32<T>(head[i]);
}

__device__ void store_fp8(const KvPoolView& pool, int64_t index, int kv_head, WarpHead of, int dim) {
  const auto [head, lane] = of;
  uint8_t* out = static_cast<uint8_t*>(const_cast<void*>(pool.data)) + index;
  const float inverse = pool.head_scales != nullptr ? 1.0f / pool.head_scales[kv_head] : 1.0f;
  for (int i = lane; i < dim; i += 32) {
    out[i] = pool.format == KvFormat::fp8_e4m3 ? f32_to_e4m3(head[i] * inverse) : f32_to_e5m2(head[i] * inverse);
  }
}

// One lane per block of 16: its scale, then its 8 bytes. The arithmetic of kv/kv_codec.h.
__device__ void store_fp4(const KvPoolView& pool, int64_t index, int kv_head, WarpHead of, int dim) {
  const auto [head, lane] = of;
  const float scale = pool.head_scales != nullptr ? pool.head_scales[kv_head] : 1.0f;
  for (int block = lane; block < dim / kFp4BlockElements; block += 32) {
    const float* values = head + block * kFp4BlockElements;
    float top = 0;
    bool nan = false;
    for (int i = 0; i < kFp4BlockElements; ++i) {
      top = fmaxf(top, fabsf(values[i]));
      nan |= isnan(values[i]);
    }
    uint8_t code = nan ? 0x7f : f32_to_e4m3(top * ((1.0f / 6.0f) * (1.0f / scale)));
    if (code == 0) code = 1;
    const float inverse = 1.0f / (e4m3_to_f32(code) * scale);
    const int64_t at = index / kFp4BlockElements + block;
    const_cast<uint8_t*>(pool.block_scales)[at] = code;
    uint8_t* out = static_cast<uint8_t*>(const_cast<void*>(pool.data)) + at * (kFp4BlockElements / 2);
    for (int i = 0; i < kFp4BlockElements; i += 2) {
      out[i / 2] = f32_to_e2m1(values[i] * inverse) | f32_to_e2m1(values[i + 1] * inverse) << 4;
    }
  }
}

__device__ void store_head(const KvPoolView& pool, const QkvRowsCall& call, int64_t slot, int kv_head, WarpHead of) {
  const auto [head, lane] = of;
  const int64_t index = slot / call.page_size * pool.page_stride + slot % call.page_size * pool.token_stride +
                        kv_head * pool.head_stride;
  switch (pool.format) {
    case KvFormat::f32: return store_run<float>(pool, index, head, call.head_dim, lane);
    case KvFormat::bf16: return store_run<__nv_bfloat16>(pool, index, head, call.head_dim, lane);
    case KvFormat::f16: return store_run<__half>(pool, index, head, call.head_dim, lane);
    case KvFormat::fp8_e4m3:
    case KvFormat::fp8_e5m2: return store_fp8(pool, index, kv_head, of, call.head_dim);
    case KvFormat::fp4_e2m1: return store_fp4(pool, index, kv_head, of, call.head_dim);
    case KvFormat::fp8_ds_mla:
    case KvFormat::fp4_mla: return;  // of latent rows (latent_rows.cu)
  }
}

__device__ void norm_head(float* head, const float* weight, const QkvRowsCall& call, int lane) {
  float sum = 0;
  for (int i = lane; i < call.head_dim; i += 32) sum += head[i] * head[i];
  const float inverse = rsqrtf(warp_sum(sum) / static_cast<float>(call.head_dim) + call.norm_eps);
  for (int i = lane; i < call.head_dim; i += 32) {
    head[i] *= inverse * (weight[i] + call.norm_weight_offset);
  }
  __syncwarp();
}

// Of a frequency, where rows have a position for each axis.
__device__ __forceinline__ int axis_of(const RopePlaces& places, int frequency) {
  return places.axes[frequency / 16] >> 2 * (frequency % 16) & 3;
}

// Where a row stands: at `position`, or at its positions of `places`.
struct RowPlace {
  const RopePlaces& places;
  int64_t row = 0;
  int position = 0;
};

__device__ void rotate_head(float* head, const RowPlace& at, const QkvRowsCall& call, int lane) {
  const int half = call.rotary_dim / 2;
  for (int i = lane; i < half; i += 32) {
    const int position = at.places.positions == nullptr
                             ? at.position
                             : at.places.positions[axis_of(at.places, i) * call.rows + at.row];
    const float c = call.cos[int64_t{position} * half + i], s = call.sin[int64_t{position} * half + i];
    const int first = call.interleaved ? 2 * i : i, second = call.interleaved ? first + 1 : i + half;
    const float a = head[first], b = head[second];
    head[first] = a * c - b * s;
    head[second] = b * c + a * s;
  }
  __syncwarp();
}

template <typename T, int kPack>
__device__ void load_head(const T* memory, const float* norm, const QkvRowsCall& call, float* head, int lane) {
  for (int i = lane * kPack; i < call.head_dim; i += 32 * kPack) {
    float value[kPack];
    load_f32(memory + i, value);
#pragma unroll
    for (int j = 0; j < kPack; ++j) head[i + j] = value[j];
  }
  __syncwarp();
  if (norm != nullptr && !call.norm_after_rope) norm_head(head, norm, call, lane);
}

__device__ void norm_rotated_head(float* head, const float* norm, const QkvRowsCall& call, int lane) {
  if (norm != nullptr && call.norm_after_rope) norm_head(head, norm, call, lane);
}

template <typename T>
struct Query {
  const T* memory;
  T* out;  // may be `memory`
  float scale;
};

// A query, rotated for where its row stands and scaled.
template <typename T, int kPack>
__device__ void write_query(const QkvRowsCall& call, const Query<T>& query, const RowPlace& at, WarpHead of) {
  const auto [memory, out, scale] = query;
  const auto [head, lane] = of;
  load_head<T, kPack>(memory, call.q_norm, call, head, lane);
  if (call.cos != nullptr) rotate_head(head, at, call, lane);
  norm_rotated_head(head, call.q_norm, call, lane);
  for (int i = lane * kPack; i < call.head_dim; i += 32 * kPack) {
    float value[kPack];
#pragma unroll
    for (int j = 0; j < kPack; ++j) value[j] = head[i + j] * scale;
    store_f32(out + i, value);
  }
  __syncwarp();
}

// The three forms of a query under dual chunk attention; the own one, in place, last.
template <typename T, int kPack>
__device__ void write_query_forms(const QkvRowsCall& call, T* memory, int64_t row, int q_head, WarpHead head) {
  const DualChunkForms& dual = call.dual_chunk;
  const int position = call.positions[row], own = position % dual.chunk_len;
  const bool beyond = dual.original_max_positions > 0 && position >= dual.original_max_positions;
  const float scale = beyond ? 0.1f * logf((position + 1.0f) / dual.original_max_positions) + 1 : 1.0f;
  const int64_t at = (row * call.num_q_heads + q_head) * call.head_dim;
  const RopePlaces none;
  write_query<T, kPack>(call, {memory, static_cast<T*>(dual.q_succ) + at, scale},
                        {none, row, min(own + dual.chunk_len, dual.farthest)}, head);
  write_query<T, kPack>(call, {memory, static_cast<T*>(dual.q_inter) + at, scale}, {none, row, dual.farthest}, head);
  write_query<T, kPack>(call, {memory, memory, scale}, {none, row, own}, head);
}

template <typename T, int kPack>
__global__ void __launch_bounds__(32 * kWarps, 8) norm_rope_write_kv_kernel(QkvRowsCall call, const __grid_constant__ RopePlaces places) {
  __shared__ __align__(16) float heads[kWarps][kMaxHeadDim];
  start_successor();
  wait_for_predecessor();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int num_heads = call.num_q_heads + 2 * call.num_kv_heads;
  const int64_t task = int64_t{blockIdx.x} * kWarps + warp;
  if (task >= call.rows * num_heads) return;
  const int64_t row = task / num_heads;
  const int index = static_cast<int>(task % num_heads);
  const bool is_q = index < call.num_q_heads, is_k = !is_q && index < call.num_q_heads + call.num_kv_heads;
  const int32_t slot = call.kv_slots[row];
  if (!is_q && slot < 0) return;

  float* head = heads[warp];
  T* memory = static_cast<T*>(call.qkv) + row * call.row_stride + index * call.head_dim;
  if (is_q) {
    if (call.dual_chunk.chunk_len > 0) return write_query_forms<T, kPack>(call, memory, row, index, {head, lane});
    const int position = call.cos != nullptr ? call.positions[row] : 0;
    return write_query<T, kPack>(call, {memory, memory, 1.0f}, {places, row, position}, {head, lane});
  }
  load_head<T, kPack>(memory, is_k ? call.k_norm : nullptr, call, head, lane);
  if (call.cos != nullptr && is_k) {
    const int position = call.positions[row], chunk_len = call.dual_chunk.chunk_len;
    rotate_head(head, {places, row, chunk_len > 0 ? position % chunk_len : position}, call, lane);
  }
  if (is_k) norm_rotated_head(head, call.k_norm, call, lane);
  const int kv_head = (index - call.num_q_heads) % call.num_kv_heads;
  store_head(is_k ? call.k_out : call.v_out, call, slot, kv_head, {head, lane});
}

constexpr int kPack = 8;
constexpr int kRowThreads = 96;

__device__ __forceinline__ void load_pack(const float* from, float (&to)[kPack]) {
  float half[4];
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    load_f32(from + 4 * part, half);
#pragma unroll
    for (int i = 0; i < 4; ++i) to[4 * part + i] = half[i];
  }
}

__device__ __forceinline__ void store_pack(const KvPoolView& pool, int64_t index, float inverse, float (&value)[kPack]) {
  char* const data = static_cast<char*>(const_cast<void*>(pool.data));
  if (pool.format == KvFormat::bf16) return store_f32(reinterpret_cast<__nv_bfloat16*>(data) + index, value);
  if (pool.format == KvFormat::f16) return store_f32(reinterpret_cast<__half*>(data) + index, value);
  Pack<uint8_t, kPack> codes;
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    const float x = value[i] * inverse;
    codes.value[i] = pool.format == KvFormat::fp8_e4m3 ? f32_to_e4m3(x) : f32_to_e5m2(x);
  }
  *reinterpret_cast<Pack<uint8_t, kPack>*>(data + index) = codes;
}

// kLanes threads a head of 16 * kLanes.
template <int kLanes>
__device__ __forceinline__ void norm_packs(const float* weight, const QkvRowsCall& call, int lane, float (&low)[kPack],
                                           float (&high)[kPack]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPack; ++i) sum += low[i] * low[i] + high[i] * high[i];
  const unsigned mask = ((1u << kLanes) - 1) << (threadIdx.x % 32 / kLanes * kLanes);
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(mask, sum, step);
  const float inverse = rsqrtf(sum / static_cast<float>(call.head_dim) + call.norm_eps);
  float low_weight[kPack], high_weight[kPack];
  load_pack(weight + lane * kPack, low_weight);
  load_pack(weight + call.head_dim / 2 + lane * kPack, high_weight);
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    low[i] *= inverse * (low_weight[i] + call.norm_weight_offset);
    high[i] *= inverse * (high_weight[i] + call.norm_weight_offset);
  }
}

struct NoPlaces {};

// Those of a row from a frequency on.
struct FirstAngle {
  int row, frequency;
};

// At the row's position.
template <int kHalf>
__device__ __forceinline__ void load_angles(const QkvRowsCall& call, const NoPlaces&, FirstAngle from,
                                            float (&cosines)[kPack], float (&sines)[kPack]) {
  const int64_t at = int64_t{call.positions[from.row]} * kHalf + from.frequency;
  load_pack(call.cos + at, cosines);
  load_pack(call.sin + at, sines);
}

// Each at the row's position on its axis.
template <int kHalf>
__device__ __forceinline__ void load_angles(const QkvRowsCall& call, const RopePlaces& places, FirstAngle from,
                                            float (&cosines)[kPack], float (&sines)[kPack]) {
  const int32_t* const positions = places.positions + from.row;
  const int32_t time = positions[0], height = positions[call.rows], width = positions[2 * call.rows];
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    const int axis = axis_of(places, from.frequency + i);
    const int64_t at = int64_t{axis == 0 ? time : axis == 1 ? height : width} * kHalf + from.frequency + i;
    cosines[i] = call.cos[at];
    sines[i] = call.sin[at];
  }
}

// Blocks (row, some of its heads). Only qkv is the predecessor's: positions and slots were there before the step's chain of
// kernels (launch.cuh), so that they, the angles and where all goes are known when the wait ends. kSame: the pools keep T.
// Places: RopePlaces, or none.
template <typename T, int kLanes, bool kPartials, bool kSame, class Places>
__global__ void __launch_bounds__(kRowThreads) rope_row_kernel(QkvRowsCall call, const __grid_constant__ Places places) {
  constexpr int kDim = 2 * kPack * kLanes, kHalf = kDim / 2;
  start_successor();
  const int row = blockIdx.x, head = (blockIdx.y * kRowThreads + threadIdx.x) / kLanes, lane = threadIdx.x % kLanes;
  const int first_v = call.num_q_heads + call.num_kv_heads, num_heads = first_v + call.num_kv_heads;
  if (head >= num_heads) return;
  const bool is_q = head < call.num_q_heads, rotated = call.cos != nullptr && head < first_v;
  const int32_t slot = call.kv_slots[row];
  float cosines[kPack], sines[kPack];
  if (rotated) load_angles<kHalf>(call, places, {row, lane * kPack}, cosines, sines);
  const KvPoolView& pool = head < first_v ? call.k_out : call.v_out;
  const int kv_head = head - (head < first_v ? call.num_q_heads : first_v);
  const int64_t from = row * call.row_stride + head * kDim + lane * kPack;
  T* to = static_cast<T*>(call.qkv) + from;
  int64_t index = 0;
  if (!is_q) {
    index = slot / call.page_size * pool.page_stride + slot % call.page_size * pool.token_stride +
            kv_head * pool.head_stride + lane * kPack;
    to = static_cast<T*>(const_cast<void*>(pool.data)) + index;
  }
  wait_for_predecessor();
  float low[kPack] = {}, high[kPack] = {};
  PartialPack<kPack> low_parts, high_parts;
  if constexpr (kPartials) {
    low_parts.load(call.partials.data + from, call.partials.splits, call.partials.stride);
    high_parts.load(call.partials.data + from + kHalf, call.partials.splits, call.partials.stride);
  } else {
    load_f32(static_cast<const T*>(call.qkv) + from, low);
    load_f32(static_cast<const T*>(call.qkv) + from + kHalf, high);
  }
  if (!is_q && slot < 0) return;  // a branch here also keeps the compiler from adding, and waiting, between the loads
  if constexpr (kPartials) {
    low_parts.add_to(low);
    high_parts.add_to(high);
  }
  const float* const norm = is_q ? call.q_norm : head < first_v ? call.k_norm : nullptr;
  if (norm != nullptr) norm_packs<kLanes>(norm, call, lane, low, high);
  if (rotated) {
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const float a = low[i], b = high[i];
      low[i] = a * cosines[i] - b * sines[i];
      high[i] = b * cosines[i] + a * sines[i];
    }
  }
  if (kSame || is_q) {
    store_f32(to, low);
    store_f32(to + kHalf, high);
    return;
  }
  if constexpr (!kSame) {
    const float inverse = pool.head_scales != nullptr ? 1.0f / pool.head_scales[kv_head] : 1.0f;
    store_pack(pool, index, inverse, low);
    store_pack(pool, index + kHalf, inverse, high);
  }
}

bool pool_takes_packs(const KvPoolView& pool) {
  return pool.format != KvFormat::f32 && pool.format != KvFormat::fp4_e2m1 && pool.page_stride % kPack == 0 &&
         pool.token_stride % kPack == 0 && pool.head_stride % kPack == 0 &&
         reinterpret_cast<uintptr_t>(pool.data) % 16 == 0;
}

// Lanes a head of rope_row_kernel, or 0: the call is not of its kind.
int row_lanes(const QkvRowsCall& call) {
  const bool plain = call.dual_chunk.chunk_len == 0 && !call.norm_after_rope && call.dtype != DType::f32 &&
                     call.row_stride % kPack == 0 && pool_takes_packs(call.k_out) && pool_takes_packs(call.v_out) &&
                     reinterpret_cast<uintptr_t>(call.qkv) % 16 == 0;
  const bool whole = call.cos == nullptr || (!call.interleaved && call.rotary_dim == call.head_dim);
  if (!plain || !whole) return 0;
  return call.head_dim == 64 ? 4 : call.head_dim == 128 ? 8 : call.head_dim == 256 ? 16 : 0;
}

template <typename T, bool kPartials, bool kSame, class Places>
void launch_rows(const QkvRowsCall& call, const Places& places, int lanes, cudaStream_t stream) {
  const int threads = (call.num_q_heads + 2 * call.num_kv_heads) * lanes;
  const dim3 blocks(static_cast<unsigned>(call.rows), static_cast<unsigned>((threads + kRowThreads - 1) / kRowThreads));
  const auto kernel = lanes == 4   ? rope_row_kernel<T, 4, kPartials, kSame, Places>
                      : lanes == 8 ? rope_row_kernel<T, 8, kPartials, kSame, Places>
                                   : rope_row_kernel<T, 16, kPartials, kSame, Places>;
  launch_dependent({blocks, kRowThreads, 0, stream}, kernel, call, places);
}

template <typename T, bool kPartials>
void launch_rows(const QkvRowsCall& call, const RopePlaces& places, int lanes, cudaStream_t stream) {
  if (places.positions != nullptr) return launch_rows<T, kPartials, false>(call, places, lanes, stream);
  constexpr KvFormat kFormat = std::is_same_v<T, __half> ? KvFormat::f16 : KvFormat::bf16;
  const bool same = call.k_out.format == kFormat && call.v_out.format == kFormat;
  same ? launch_rows<T, kPartials, true>(call, NoPlaces(), lanes, stream)
       : launch_rows<T, kPartials, false>(call, NoPlaces(), lanes, stream);
}

template <typename T>
void launch_rows(const QkvRowsCall& call, const RopePlaces& places, int lanes, cudaStream_t stream) {
  call.partials.data != nullptr ? launch_rows<T, true>(call, places, lanes, stream)
                                : launch_rows<T, false>(call, places, lanes, stream);
}

}  // namespace

bool rope_takes_partials(const QkvRowsCall& call) { return row_lanes(call) > 0; }

void norm_rope_write_kv(const QkvRowsCall& call, Stream stream) { norm_rope_write_kv(call, {}, stream); }

void norm_rope_write_kv(const QkvRowsCall& given, const RopePlaces& places, Stream stream) {
  if (given.rows == 0) return;
  QkvRowsCall call = given;
  if (call.row_stride == 0) call.row_stride = int64_t{call.num_q_heads + 2 * call.num_kv_heads} * call.head_dim;
  if (const int lanes = row_lanes(call); lanes > 0) {
    const auto on = static_cast<cudaStream_t>(stream);
    return call.dtype == DType::bf16 ? launch_rows<__nv_bfloat16>(call, places, lanes, on)
                                     : launch_rows<__half>(call, places, lanes, on);
  }
  const int64_t tasks = call.rows * (call.num_q_heads + 2 * call.num_kv_heads);
  const unsigned blocks = static_cast<unsigned>((tasks + kWarps - 1) / kWarps);
  with_type(call.dtype, [&]<typename T>(T*) {
    const auto kernel = call.head_dim % 4 == 0 ? norm_rope_write_kv_kernel<T, 4> : norm_rope_write_kv_kernel<T, 1>;
    launch_dependent({blocks, 32 * kWarps, 0, static_cast<cudaStream_t>(stream)}, kernel, call, places);
  });
}

}  // namespace warpweave::gpu
