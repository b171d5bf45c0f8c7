#include <cuda_runtime.h>

#include "ops/cuda/activation.cuh"
#include "ops/cuda/gemm.h"
#include "ops/cuda/gpu_ops.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/types.cuh"

namespace warpweave::gpu {
namespace {

cudaStream_t cuda_stream(Stream stream) { return static_cast<cudaStream_t>(stream); }

constexpr int kPrefetchBlocks = 32;

__device__ void prefetch_weights(const WeightPrefetch& prefetch, int block) {
  const int64_t lines = prefetch.prefetched_bytes / 128;
  for (int64_t i = int64_t{block} * blockDim.x + threadIdx.x; i < prefetch.rows * lines; i += kPrefetchBlocks * blockDim.x) {
    const char* line = static_cast<const char*>(prefetch.data) + i / lines * prefetch.row_bytes + i % lines * 128;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
  }
}

unsigned prefetch_blocks(const WeightPrefetch& prefetch) { return prefetch.data != nullptr ? kPrefetchBlocks : 0; }

template <typename T>
__global__ void embedding_kernel(EmbeddingCall call) {
  start_successor();
  wait_for_predecessor();
  const int64_t row = blockIdx.x;
  int32_t id = call.ids[row];
  if (call.future_slots != nullptr && call.future_slots[row] >= 0) id = call.sampled[call.future_slots[row]];
  const T* from = static_cast<const T*>(call.table) + id * call.cols;
  float* to = call.out + row * call.cols;
  for (int64_t i = threadIdx.x * 4; i < call.cols; i += blockDim.x * 4) {
    float value[4];
    load_f32(from + i, value);
    for (float& v : value) v *= call.scale;
    store_f32(to + i, value);
  }
}

constexpr int kNormThreads = 512;

// A thread keeps kNormPacks times 4 elements in registers; what is wider than that is read twice.
template <typename T, int kNormPacks, bool kPartials = false>
__global__ void __launch_bounds__(kNormThreads, kNormPacks == 2 ? 2 : 1) rms_norm_kernel(RmsNormCall call) {
  __shared__ float scratch[kNormThreads / 32];
  if (blockIdx.x >= call.rows) return prefetch_weights(call.prefetch, static_cast<int>(blockIdx.x - call.rows));
  start_successor();
  float weight[kNormPacks][4];
#pragma unroll
  for (int pack = 0; pack < kNormPacks; ++pack) {
    const int64_t i = (pack * blockDim.x + threadIdx.x) * 4;
    if (i < call.cols) load_f32(call.weight + i, weight[pack]);
  }
  wait_for_predecessor();
  float* x = call.x + blockIdx.x * call.cols;
  float kept[kNormPacks][4];
  float sum = 0;
  // All loads of two packs before the first store, which might touch what they read.
#pragma unroll
  for (int first = 0; first < kNormPacks; first += 2) {
    PartialPack<4> partials[2];
#pragma unroll
    for (int pack = first; pack < first + 2; ++pack) {
      const int64_t i = (pack * blockDim.x + threadIdx.x) * 4;
      const bool wanted = i < call.cols;
      if (wanted) load_f32(x + i, kept[pack]);
      if constexpr (kPartials) {
        partials[pack - first].load(call.partials.data + blockIdx.x * call.cols + i, call.partials.splits,
                                    call.partials.stride, wanted);
      }
    }
#pragma unroll
    for (int pack = first; pack < first + 2; ++pack) {
      const int64_t i = (pack * blockDim.x + threadIdx.x) * 4;
      if (i >= call.cols) break;
      if constexpr (kPartials) {
        partials[pack - first].add_to(kept[pack]);
        store_f32(x + i, kept[pack]);
      }
#pragma unroll
      for (float v : kept[pack]) sum += v * v;
    }
  }
  for (int64_t i = (int64_t{kNormPacks} * blockDim.x + threadIdx.x) * 4; i < call.cols; i += blockDim.x * 4) {
    for (int j = 0; j < 4; ++j) sum += x[i + j] * x[i + j];
  }
  sum = block_sum(sum, scratch);
  const float inverse = rsqrtf(sum / static_cast<float>(call.cols) + call.eps);
  const int64_t base = blockIdx.x * call.cols;
  const auto finish = [&](int64_t i, float (&value)[4], const float (&scale)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) value[j] *= inverse * (scale[j] + call.weight_offset);
    if (call.accumulate) {
      float* out = static_cast<float*>(call.out) + base + i;
      float before[4];
      load_f32(out, before);
#pragma unroll
      for (int j = 0; j < 4; ++j) value[j] += before[j];
    }
    store_f32(static_cast<T*>(call.out) + base + i, value);
    if (call.out_f32 != nullptr) store_f32(call.out_f32 + base + i, value);
  };
#pragma unroll
  for (int pack = 0; pack < kNormPacks; ++pack) {
    const int64_t i = (pack * blockDim.x + threadIdx.x) * 4;
    if (i >= call.cols) break;
    finish(i, kept[pack], weight[pack]);
  }
  for (int64_t i = (int64_t{kNormPacks} * blockDim.x + threadIdx.x) * 4; i < call.cols; i += blockDim.x * 4) {
    float value[4], scale[4];
    load_f32(x + i, value);
    load_f32(call.weight + i, scale);
    finish(i, value, scale);
  }
}

__global__ void gather_rows_kernel(const uint32_t* in, const int32_t* index, int64_t row_words, uint32_t* out) {
  const int64_t from = index[blockIdx.x] * row_words, to = blockIdx.x * row_words;
  for (int64_t i = threadIdx.x; i < row_words; i += blockDim.x) out[to + i] = in[from + i];
}

// Blocks (row, part of the row); rows past the last prefetch.
template <typename T, GluActivation kActivation, int kPack>
__global__ void glu_kernel(GluCall call) {
  if (blockIdx.x >= call.rows) {
    const int block = static_cast<int>((blockIdx.x - call.rows) * gridDim.y + blockIdx.y);
    if (block < kPrefetchBlocks) prefetch_weights(call.prefetch, block);
    return;
  }
  start_successor();
  wait_for_predecessor();
  const int64_t row = blockIdx.x, cols = call.cols, i = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kPack;
  if (i >= cols) return;
  const T* in = static_cast<const T*>(call.in) + row * 2 * cols + i;
  float gate[kPack], up[kPack];
  load_f32(in, gate);
  load_f32(in + cols, up);
#pragma unroll
  for (int j = 0; j < kPack; ++j) gate[j] = activate<kActivation>(gate[j], up[j]);
  store_f32(static_cast<T*>(call.out) + row * cols + i, gate);
}

template <typename T, GluActivation kActivation>
void launch_glu(const GluCall& call, cudaStream_t stream) {
  constexpr int kPack = 16 / sizeof(T);
  constexpr int64_t kThreads = 256;
  const bool packed = call.cols % kPack == 0;
  const int64_t packs = call.cols / (packed ? kPack : 1);
  const unsigned parts = static_cast<unsigned>((packs + kThreads - 1) / kThreads);
  const unsigned rows = static_cast<unsigned>(call.rows) + (prefetch_blocks(call.prefetch) + parts - 1) / parts;
  const auto kernel = packed ? glu_kernel<T, kActivation, kPack> : glu_kernel<T, kActivation, 1>;
  launch_dependent({dim3(rows, parts), static_cast<unsigned>(kThreads), 0, stream}, kernel, call);
}

template <typename T>
__global__ void add_bias_kernel(T* y, int64_t cols, int64_t stride, const float* bias) {
  T* row = y + blockIdx.x * stride;
  for (int64_t i = threadIdx.x; i < cols; i += blockDim.x) row[i] = from_f32<T>(to_f32(row[i]) + bias[i]);
}

__global__ void softcap_kernel(float* x, float cap, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) x[i] = cap * tanhf(x[i] / cap);
}

constexpr int kUploadThreads = 256;

__global__ void upload_step_kernel(StepUpload upload, int copy_blocks) {
  if (static_cast<int>(blockIdx.x) < copy_blocks) {
    const int64_t i = int64_t{blockIdx.x} * kUploadThreads + threadIdx.x;
    if (i * 16 < upload.size_bytes) {
      static_cast<uint4*>(upload.arrays)[i] = static_cast<const uint4*>(upload.host_arrays)[i];
    }
    return;
  }
  const PageTableRun run = upload.runs[blockIdx.x - copy_blocks];
  int32_t* to = upload.table + run.row * upload.table_stride + run.first;
  for (int i = threadIdx.x; i < run.count; i += kUploadThreads) to[i] = upload.values[run.values + i];
}

}  // namespace

void embedding(const EmbeddingCall& call, Stream stream) {
  if (call.rows == 0) return;
  with_type(call.dtype, [&]<typename T>(T*) {
    launch_dependent({static_cast<unsigned>(call.rows), 256, 0, cuda_stream(stream)}, embedding_kernel<T>, call);
  });
}

void rms_norm(const RmsNormCall& call, Stream stream) {
  if (call.rows == 0) return;
  const unsigned threads = call.cols >= 4 * kNormThreads ? kNormThreads : 128;
  with_type(call.out_dtype, [&]<typename T>(T*) {
    const bool narrow = call.cols <= int64_t{8} * threads;
    const auto kernel = call.partials.data != nullptr
                            ? (narrow ? rms_norm_kernel<T, 2, true> : rms_norm_kernel<T, 6, true>)
                            : (narrow ? rms_norm_kernel<T, 2> : rms_norm_kernel<T, 6>);
    const unsigned blocks = static_cast<unsigned>(call.rows) + prefetch_blocks(call.prefetch);
    launch_dependent({blocks, threads, 0, cuda_stream(stream)}, kernel, call);
  });
}

void gather_rows(const void* in, const int32_t* index, int64_t rows, int64_t row_bytes, void* out,
                 Stream stream) {
  if (rows == 0) return;
  gather_rows_kernel<<<rows, 256, 0, cuda_stream(stream)>>>(static_cast<const uint32_t*>(in), index,
                                                            row_bytes / 4, static_cast<uint32_t*>(out));
}

void glu(const GluCall& call, Stream stream) {
  if (call.rows == 0) return;
  with_type(call.dtype, [&]<typename T>(T*) {
    switch (call.activation) {
      case GluActivation::gelu_tanh: return launch_glu<T, GluActivation::gelu_tanh>(call, cuda_stream(stream));
      case GluActivation::swiglu_oai: return launch_glu<T, GluActivation::swiglu_oai>(call, cuda_stream(stream));
      default: return launch_glu<T, GluActivation::silu>(call, cuda_stream(stream));
    }
  });
}

void add_bias(void* y, DType dtype, int64_t rows, int64_t cols, int64_t stride, const float* bias, Stream stream) {
  with_type(dtype, [&]<typename T>(T*) {
    add_bias_kernel<T><<<rows, 256, 0, cuda_stream(stream)>>>(static_cast<T*>(y), cols, stride, bias);
  });
}

void softcap(float* x, float cap, int64_t count, Stream stream) {
  if (count == 0) return;
  softcap_kernel<<<(count + 255) / 256, 256, 0, cuda_stream(stream)>>>(x, cap, count);
}

void upload_step(const StepUpload& upload, Stream stream) {
  const int copy_blocks = static_cast<int>((upload.size_bytes / 16 + kUploadThreads - 1) / kUploadThreads);
  upload_step_kernel<<<copy_blocks + upload.num_runs, kUploadThreads, 0, cuda_stream(stream)>>>(upload, copy_blocks);
}

}  // namespace warpweave::gpu
