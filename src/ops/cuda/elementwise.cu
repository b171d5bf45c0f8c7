#include <cuda_runtime.h>

#include <algorithm>

#include "ops/cuda/activation.cuh"
#include "ops/cuda/any_width.h"
#include "ops/cuda/cluster.cuh"
#include "ops/cuda/expert_bulk.h"
#include "ops/cuda/experts.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/gpu_ops.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/norm_codes.cuh"
#include "ops/cuda/norm_rows.cuh"
#include "ops/cuda/types.cuh"

namespace warpweave::gpu {
namespace {

cudaStream_t cuda_stream(Stream stream) { return static_cast<cudaStream_t>(stream); }

constexpr int kPrefetchBlocks = 32;

__device__ void prefetch_weights(const WeightPrefetch& prefetch, int block) {
  const int64_t lines = prefetch.prefetched_bytes / 128;
  for (int64_t i = int64_t{block} * blockDim.x + threadIdx.x; i < prefetch.rows * lines; i += kPrefetchBlocks * blockDim.x) {
    const char* line = static_cast<const char*>(prefetch.data) + i / lines * prefetch.row_bytes + i % lines * 128;
    ptx::prefetch_l2(line);
  }
}

unsigned prefetch_blocks(const WeightPrefetch& prefetch) { return prefetch.data != nullptr ? kPrefetchBlocks : 0; }

template <typename T>
__global__ void embedding_kernel(EmbeddingCall call) {
  wait_for_predecessor();
  start_successor();  // not before: launch.cuh
  const int64_t row = blockIdx.x;
  int32_t id = call.ids[row];
  if (call.future_slots != nullptr && call.future_slots[row] >= 0) id = max(call.sampled[call.future_slots[row]], 0);
  const T* from = static_cast<const T*>(call.table) + id * call.cols;
  float* to = call.out + row * call.cols;
  for (int64_t i = threadIdx.x * 4; i < call.cols; i += blockDim.x * 4) {
    float value[4];
    load_f32(from + i, value);
    for (float& v : value) v *= call.scale;
    store_f32(to + i, value);
  }
}

// Up to how many rows a cluster shares each row with its partial sums, and from how many on a thread does two threads' work,
// with more rows under way on an SM.
constexpr int kClusterRows = 32, kNormCluster = 8, kManyNormRows = 384;

// Where a row's experts left their results, and their weights, in shared memory. All threads of the CTA.
struct RowExperts {
  int32_t place[kMaxGpuExpertsPerToken + kMaxGpuSharedExperts];
  float weight[kMaxGpuExpertsPerToken + kMaxGpuSharedExperts];

  __device__ __forceinline__ void load(const ExpertSums& sums, int row) {
    const int j = threadIdx.x;
    if (j < sums.k) {
      place[j] = __ldcg(sums.place_of + row * sums.k + j);
      weight[j] = __ldcg(sums.weights + row * sums.k + j);
    }
    __syncthreads();
  }
};

// x plus what its experts left.
template <typename T, class S>
__device__ __forceinline__ void add_experts(const NormExpertsCall& of, const RowExperts& experts,
                                            float (&kept)[S::kPacks][S::kShare][4]) {
  const int cols = static_cast<int>(of.norm.cols), k = of.sums.k;
  const T* const results = static_cast<const T*>(of.sums.results);
  constexpr int kTogether = S::kPacks > 3 ? 1 : S::kPacks > 2 ? 2 : 8;  // choices whose loads are under way
#pragma unroll kTogether
  for (int j = 0; j < k; ++j) {
    add_expert<S>(results + experts.place[j] * of.norm.cols, experts.weight[j], cols, kept);
  }
}

// A thread's part of a row: pointers to its first column. They are known before the wait.
template <typename T>
struct NormPart {
  float* x;
  const float* sums;  // the first partial sum, or null
  T* out;
  int cols;  // of the row, from there on

  __device__ NormPart(const RmsNormCall& call, int64_t row, int column, bool has_sums)
      : cols(static_cast<int>(call.cols) - column) {
    int64_t at = row * call.cols + column;
    asm volatile("" : "+l"(at));
    x = call.x + at;
    sums = call.partials.data + at;
    out = static_cast<T*>(call.out) + at;
    if (has_sums) asm volatile("" : "+l"(x), "+l"(sums), "+l"(out));  // else there are no registers for them
  }
};

// Calls visit(pack, share, column), columns counted from the part's first on, for what is in registers.
template <class S, typename Visit>
__device__ __forceinline__ void for_part(int cols, const Visit& visit) {
  for_packs<S>([&](int pack, int share) {
    const int column = pack * S::kStep + share * S::kThreads * 4;
    if (column < cols) visit(pack, share, column);
  });
}

// x plus its partial sums; all loads of two packs, without partial sums of all, come before they are used. Not `live`: with
// partial sums nothing is loaded.
template <typename T, class S>
__device__ __forceinline__ void load_row(const NormExpertsCall& of, const RowExperts& experts, const NormPart<T>& part, bool live,
                                         float (&kept)[S::kPacks][S::kShare][4]) {
  if constexpr (S::kAdded != Added::partials) {
    for_part<S>(part.cols, [&](int pack, int share, int i) { load_f32(part.x + i, kept[pack][share]); });
    if constexpr (S::kAdded == Added::experts) add_experts<T, S>(of, experts, kept);
  } else {
    const PartialSums& sums = of.norm.partials;
#pragma unroll
    for (int first = 0; first < S::kPacks; first += 2) {
      PartialPack<4> partials[2];
#pragma unroll
      for (int pack = first; pack < first + 2; ++pack) {
        const int i = pack * S::kStep;
        const bool wanted = live && i < part.cols;
        if (wanted) load_f32(part.x + i, kept[pack][0]);
        partials[pack - first].load(part.sums + i, wanted ? sums.splits : 0, sums.stride);
      }
#pragma unroll
      for (int pack = first; pack < first + 2; ++pack) {
        if (pack * S::kStep >= part.cols) break;
        partials[pack - first].add_to(kept[pack][0]);
      }
    }
  }
}

// Waits for the predecessor; the row's experts are known then, and before it where they may.
template <class S>
__device__ __forceinline__ void wait_for_row(const NormExpertsCall& of, int row, RowExperts& experts) {
  constexpr bool kExperts = S::kAdded == Added::experts;
  if (kExperts && of.sums.settled) experts.load(of.sums, row);
  wait_for_predecessor();
  if (kExperts && !of.sums.settled) experts.load(of.sums, row);
}

// What a row's CTAs share.
template <class S>
struct NormShared {
  float (&sums)[S::kSums];
  uint64_t& arrived;
  const RowExperts& experts;
};

// Not `live`: with partial sums nothing is loaded or stored.
template <typename T, class S>
__device__ __forceinline__ void norm_part(const NormExpertsCodesCall& of, const NormPart<T>& part, const NormShared<S>& shared,
                                          float (&weight)[S::kPacks][S::kShare][4], bool live) {
  const RmsNormCall& call = of.norm;
  float kept[S::kPacks][S::kShare][4], sum[S::kShare] = {};
  load_row<T, S>(of, shared.experts, part, live, kept);
  for_part<S>(part.cols, [&](int pack, int share, int) {
#pragma unroll
    for (float v : kept[pack][share]) sum[share] += v * v;
  });
  if constexpr (S::kRest) {
    for (int i = S::kPacks * S::kStep; i < part.cols; i += S::kStep) {
      for (int j = 0; j < 4; ++j) sum[0] += part.x[i + j] * part.x[i + j];
    }
  }
  const float total = sum_row<S>(sum, shared.sums, shared.arrived, [&] {
    if constexpr (S::kAdds) {
      for_part<S>(part.cols, [&](int pack, int share, int i) {
        if (live) store_f32(part.x + i, kept[pack][share]);
      });
    }
  });
  const float inverse = rsqrtf(total / static_cast<float>(call.cols) + call.eps);
  const auto finish = [&](int i, float (&value)[4], const float (&scale)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) value[j] *= inverse * (scale[j] + call.weight_offset);
    if (live && call.accumulate) {
      float before[4];
      load_f32(reinterpret_cast<const float*>(part.out) + i, before);
#pragma unroll
      for (int j = 0; j < 4; ++j) value[j] += before[j];
    }
    if constexpr (S::kAdded == Added::experts && sizeof(T) == 2) {
      if (of.to.codes != nullptr) return code_block<T>(of, blockIdx.x / S::kCluster, static_cast<int>(call.cols) - part.cols + i, value);
    }
    if (live) store_f32(part.out + i, value);
    if (live && call.out_f32 != nullptr) store_f32(call.out_f32 + (part.x - call.x) + i, value);
  };
  const float* const weights = call.weight + S::column(0, 0);
  for_part<S>(part.cols, [&](int pack, int share, int i) {
    if constexpr (!S::kWeightsFirst) load_f32(weights + i, weight[pack][share]);
    finish(i, kept[pack][share], weight[pack][share]);
  });
  if constexpr (S::kRest) {
    for (int i = S::kPacks * S::kStep; i < part.cols; i += S::kStep) {
      float value[4], scale[4];
      load_f32(part.x + i, value);
      load_f32(weights + i, scale);
      finish(i, value, scale);
    }
  }
}

// With partial sums a row is normed twice, first for nothing: what waits for memory then is the code. In a served step it
// comes from the L2, since other kernels have replaced it, at some 5 cycles an instruction, and the kernel before this one
// has not ended yet.
template <typename T, class S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocksOfSm) rms_norm_kernel(const __grid_constant__ NormExpertsCodesCall of) {
  constexpr bool kRehearses = S::kAdded == Added::partials && S::kCluster == 1;
  const RmsNormCall& call = of.norm;
  __shared__ __align__(16) float sums[S::kSums];
  __shared__ __align__(8) uint64_t arrived;
  __shared__ RowExperts experts;
  const int row = blockIdx.x / S::kCluster;
  if (row >= call.rows) return prefetch_weights(call.prefetch, static_cast<int>(blockIdx.x - call.rows * S::kCluster));
  start_successor();
  const NormPart<T> part(call, row, S::column(0, 0), S::kAdded == Added::partials);
  float weight[S::kPacks][S::kShare][4];
  if constexpr (S::kWeightsFirst) {
    for_part<S>(part.cols, [&](int pack, int share, int i) { load_f32(call.weight + S::column(0, 0) + i, weight[pack][share]); });
  }
  if constexpr (S::kCluster > 1) {
    if (threadIdx.x == 0) cluster::expect(&arrived, sizeof(sums));
    __syncthreads();
    cluster::meet();
  }
#pragma unroll 1
  for (int left = kRehearses ? 2 : 1; left > 0; --left) {
    if constexpr (kRehearses) asm volatile("" : "+r"(left));  // one copy of the code
    if (left == 1) wait_for_row<S>(of, row, experts);
    norm_part<T, S>(of, part, {sums, arrived, experts}, weight, left == 1);
  }
}

template <typename T, class S>
void launch_norm(const NormExpertsCodesCall& call, cudaStream_t stream) {
  static_assert(kPrefetchBlocks % S::kCluster == 0);
  const unsigned blocks = static_cast<unsigned>(call.norm.rows) * S::kCluster + prefetch_blocks(call.norm.prefetch);
  launch_dependent({blocks, S::kThreads, 0, stream, S::kCluster}, rms_norm_kernel<T, S>, call);
}

template <typename T, int kPacks, Added kAdded>
void launch_norm(const NormExpertsCodesCall& call, cudaStream_t stream) {
  if constexpr (kAdded != Added::nothing) {
    if (call.norm.rows <= kClusterRows && has_dependent_launch()) {
      return launch_norm<T, NormShape<kNormThreads, 1, kNormCluster, kPacks, kAdded>>(call, stream);
    }
  }
  if constexpr (kPacks == 2 && kAdded == Added::nothing) {
    if (call.norm.rows >= kManyNormRows) return launch_norm<T, NormShape<kNormThreads, 2, 1, kPacks, kAdded>>(call, stream);
  }
  launch_norm<T, NormShape<kNormThreads, 1, 1, kPacks, kAdded>>(call, stream);
}

template <typename T, Added kAdded>
void launch_norm(const NormExpertsCodesCall& call, cudaStream_t stream) {
  constexpr int kPack = 4 * kNormThreads;  // columns
  if (call.norm.cols < kPack) {
    constexpr int kPacks = kPack / 4 / kNarrowThreads;
    if constexpr (kAdded == Added::experts) {  // one pack leaves registers for the loads of several choices
      if (call.norm.cols <= 4 * kNarrowThreads) return launch_norm<T, NormShape<kNarrowThreads, 1, 1, 1, kAdded>>(call, stream);
    }
    return launch_norm<T, NormShape<kNarrowThreads, 1, 1, kPacks, kAdded>>(call, stream);
  }
  if (call.norm.cols <= 2 * kPack) return launch_norm<T, 2, kAdded>(call, stream);
  if constexpr (kAdded == Added::experts) {
    if (call.norm.cols <= 3 * kPack) return launch_norm<T, 3, kAdded>(call, stream);
    if (call.norm.cols <= 4 * kPack) return launch_norm<T, 4, kAdded>(call, stream);
  }
  if (kAdded != Added::nothing || call.norm.cols <= 6 * kPack) return launch_norm<T, 6, kAdded>(call, stream);
  launch_norm<T, NormShape<kNormThreads, 1, 1, 6, Added::nothing, /*kRest=*/true>>(call, stream);
}

// Blocks (row, part of the row).
__global__ void gather_rows_kernel(const uint32_t* in, const int32_t* index, int64_t row_words, uint32_t* out) {
  const int64_t from = index[blockIdx.x] * row_words, to = blockIdx.x * row_words;
  const int64_t stride = int64_t{blockDim.x} * gridDim.y;
  for (int64_t i = int64_t{blockIdx.y} * blockDim.x + threadIdx.x; i < row_words; i += stride) out[to + i] = in[from + i];
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

constexpr int kGatePack = 2, kGateThreads = 256;

// Blocks (row, some of its columns).
template <typename T>
__global__ void __launch_bounds__(kGateThreads) gate_rows_kernel(const __grid_constant__ GateRowsCall call) {
  start_successor();
  wait_for_predecessor();
  const int64_t row = blockIdx.x, column = (int64_t{blockIdx.y} * kGateThreads + threadIdx.x) * kGatePack;
  if (column >= call.cols) return;
  T* const x = static_cast<T*>(call.x) + row * call.cols + column;
  float value[kGatePack], gate[kGatePack];
  load_f32(x, value);
  load_f32(static_cast<const T*>(call.gate) + row * call.gate_stride + column, gate);
#pragma unroll
  for (int i = 0; i < kGatePack; ++i) value[i] /= 1 + expf(-gate[i]);
  store_f32(x, value);
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

constexpr int64_t kRowPack = 4;  // columns that a thread of these loads at once

void embedding(const EmbeddingCall& call, Stream stream) {
  if (call.rows == 0) return;
  if (call.cols % kRowPack != 0) return embedding_any_width(call, stream);
  with_type(call.dtype, [&]<typename T>(T*) {
    launch_dependent({static_cast<unsigned>(call.rows), 256, 0, cuda_stream(stream)}, embedding_kernel<T>, call);
  });
}

void rms_norm(const RmsNormCall& call, Stream stream) {
  if (call.rows == 0) return;
  if (call.cols % kRowPack != 0) return rms_norm_any_width(call, stream);
  with_type(call.out_dtype, [&]<typename T>(T*) {
    if (call.partials.data != nullptr) return launch_norm<T, Added::partials>({{call, {}}}, cuda_stream(stream));
    launch_norm<T, Added::nothing>({{call, {}}}, cuda_stream(stream));
  });
}

void norm_experts(const NormExpertsCall& call, Stream stream) { norm_experts_codes({call}, stream); }

void norm_experts_codes(const NormExpertsCodesCall& call, Stream stream) {
  if (call.norm.rows == 0) return;
  if (norm_experts_bulk_takes(call)) return norm_experts_bulk(call, stream);
  with_type(call.norm.out_dtype, [&]<typename T>(T*) { launch_norm<T, Added::experts>(call, cuda_stream(stream)); });
}

void gather_rows(const GatherRowsCall& call, Stream stream) {
  if (call.rows == 0) return;
  constexpr int64_t kWordsOfBlock = 1024, kMostParts = 16;
  const int64_t words = call.row_bytes / 4, parts = std::clamp<int64_t>(words / kWordsOfBlock, 1, kMostParts);
  const dim3 grid(static_cast<unsigned>(call.rows), static_cast<unsigned>(parts));
  gather_rows_kernel<<<grid, 256, 0, cuda_stream(stream)>>>(static_cast<const uint32_t*>(call.in), call.index, words,
                                                            static_cast<uint32_t*>(call.out));
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

void add_bias(const GemmCall& call, Stream stream) {
  with_type(call.y_dtype, [&]<typename T>(T*) {
    add_bias_kernel<T><<<call.rows, 256, 0, cuda_stream(stream)>>>(static_cast<T*>(call.y), call.linear->out_features,
                                                                   call.y_stride, call.linear->bias);
  });
}

void softcap(float* x, float cap, int64_t count, Stream stream) {
  if (count == 0) return;
  softcap_kernel<<<(count + 255) / 256, 256, 0, cuda_stream(stream)>>>(x, cap, count);
}

void gate_rows(const GateRowsCall& call, Stream stream) {
  if (call.rows == 0) return;
  const int64_t of_block = kGateThreads * kGatePack;
  const dim3 blocks(static_cast<unsigned>(call.rows), static_cast<unsigned>((call.cols + of_block - 1) / of_block));
  with_type(call.dtype, [&]<typename T>(T*) {
    launch_dependent({blocks, kGateThreads, 0, cuda_stream(stream)}, gate_rows_kernel<T>, call);
  });
}

void upload_step(const StepUpload& upload, Stream stream) {
  const int copy_blocks = static_cast<int>((upload.size_bytes / 16 + kUploadThreads - 1) / kUploadThreads);
  upload_step_kernel<<<copy_blocks + upload.num_runs, kUploadThreads, 0, cuda_stream(stream)>>>(upload, copy_blocks);
}

}  // namespace warpweave::gpu
