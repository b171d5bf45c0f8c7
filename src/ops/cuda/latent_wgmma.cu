// A CTA has 64 rows of a head and 32, 64 or 128 columns of its result, of the whole depth: all of it is asked for at once by TMA,
// weights ahead of the predecessor's end, and multiplied 64 columns of the depth at a time as they arrive.
#include "ops/cuda/latent_wgmma.h"

#include <cuda_runtime.h>

#include <cstdint>

#include "device/cuda/ptx.h"
#include "device/cuda/shared_memory_limit.h"
#include "device/cuda/tensor_map.h"
#include "device/cuda/wgmma_wide.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/stream_gemm.h"

namespace warpweave::gpu {
namespace {

using ptx::u32;

constexpr int kThreads = 128, kRows = 64;
constexpr int kBoxDepth = 64, kBoxRowBytes = 2 * kBoxDepth, kMostBoxes = 8;
constexpr int64_t kLeastRows = 33;

struct GemmArgs {
  CUtensorMap w, x;
  void* y;
  int64_t y_stride, y_head_stride;
  int rows, boxes, column_blocks, row_blocks;
  bool x_settled;
};

constexpr int box_bytes(int columns) { return (kRows + columns) * kBoxRowBytes; }

// Rows of a head's result, of which a CTA writes up to kRows.
struct HeadRows {
  uint16_t* data;
  int64_t stride;
  int count;
};

// wgmma leaves a thread two neighbours of every 8 columns, of two rows, whose stores would be 16 bytes of a row each. So
// a warp's 16 rows leave through the memory of as many input rows, 64 columns at a time, swizzled like these.
template <class E, int kColumns>
__device__ __forceinline__ void store_rows(const HeadRows& to, const float (&sum)[kColumns / 2], u32 memory, int boxes) {
  constexpr int kBlock = kColumns < kBoxDepth ? kColumns : kBoxDepth, kUnits = kBlock / 8;  // of 16 bytes
  const int lane = threadIdx.x % 32, warp_row = static_cast<int>(threadIdx.x) / 32 * 16;
#pragma unroll
  for (int block = 0; block < kColumns / kBlock; ++block) {
    const u32 rows = memory + block % boxes * box_bytes(kColumns) + warp_row * kBoxRowBytes;
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      const int row = below * 8 + lane / 4;
#pragma unroll
      for (int j = 0; j < kUnits; ++j) {
        const float* const pair = sum + (block * kUnits + j) * 4 + 2 * below;
        ptx::store_shared_4(rows + row * kBoxRowBytes + (j ^ row % 8) * 16 + lane % 4 * 4, E::pack(pair[0], pair[1]));
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = lane; i < 16 * kUnits; i += 32) {
      const int row = i / kUnits, unit = i % kUnits;
      u32 values[4];
      ptx::load_shared_16(values, rows + row * kBoxRowBytes + (unit ^ row % 8) * 16);
      if (warp_row + row >= to.count) continue;
      *reinterpret_cast<uint4*>(to.data + (warp_row + row) * to.stride + block * kBlock + unit * 8) =
          make_uint4(values[0], values[1], values[2], values[3]);
    }
    __syncwarp();
  }
}

// `block`: of the heads x row blocks x column blocks, the latter fastest. `memory` has boxes, then their barriers.
template <class E, int kColumns>
__device__ __forceinline__ void multiply_heads(const GemmArgs& a, int block, u32 memory) {
  const int column = block % a.column_blocks * kColumns, of_rows = block / a.column_blocks;
  const int first_row = of_rows % a.row_blocks * kRows, head = of_rows / a.row_blocks;
  const u32 barriers = memory + a.boxes * box_bytes(kColumns);
  if (threadIdx.x == 0) {
    ptx::tensor_map_prefetch(&a.w);
    ptx::tensor_map_prefetch(&a.x);
    for (int i = 0; i < a.boxes; ++i) ptx::mbarrier_init(barriers + 8 * i, 1);
    ptx::mbarrier_init_fence();
    for (int i = 0; i < a.boxes; ++i) {
      ptx::mbarrier_arrive_expect_tx(barriers + 8 * i, box_bytes(kColumns));
      const u32 weights = memory + i * box_bytes(kColumns) + kRows * kBoxRowBytes;
      ptx::tma_load_4d(weights, &a.w, barriers + 8 * i, i * kBoxDepth, column, head, 0);
    }
  }
  __syncthreads();
  if (!a.x_settled) wait_for_predecessor();
  if (threadIdx.x == 0) {
    for (int i = 0; i < a.boxes; ++i) {
      ptx::tma_load_4d(memory + i * box_bytes(kColumns), &a.x, barriers + 8 * i, i * kBoxDepth, first_row, head, 0);
    }
  }
  __syncwarp();
  float sum[kColumns / 2];
  for (int i = 0; i < a.boxes; ++i) {
    ptx::mbarrier_wait(barriers + 8 * i, 0);
    const u32 x = ptx::wgmma_descriptor(memory + i * box_bytes(kColumns), 0);
    const u32 w = ptx::wgmma_descriptor(memory + i * box_bytes(kColumns) + kRows * kBoxRowBytes, 0);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kBoxDepth / 16; ++k) {
      ptx::Wgmma<E, kColumns>::qk(sum, ptx::wgmma_advance(x, k * 32), ptx::wgmma_advance(w, k * 32), i > 0 || k > 0);
    }
    ptx::wgmma_commit();
  }
  ptx::wgmma_wait<0>();
  __syncthreads();  // the inputs' memory is free
  const HeadRows to = {static_cast<uint16_t*>(a.y) + first_row * a.y_stride + head * a.y_head_stride + column, a.y_stride,
                       a.rows - first_row};
  store_rows<E, kColumns>(to, sum, memory, a.boxes);
}

template <class E, int kColumns>
__global__ void __launch_bounds__(kThreads) head_gemm_wgmma_kernel(const __grid_constant__ GemmArgs a) {
  extern __shared__ __align__(1024) char memory[];
  start_successor();
  multiply_heads<E, kColumns>(a, static_cast<int>(blockIdx.x), ptx::smem_address(memory));
  if (a.x_settled) wait_for_predecessor();  // whose results those behind this kernel take to be there when it has ended
}

// A matrix of each head, `stride` elements from row to row.
struct HeadMatrices {
  const void* data;
  int64_t rows, stride, head_stride;
};
bool make_map(CUtensorMap* map, const HeadMatrices& m, const HeadGemmCall& call, int box_rows) {
  const auto u = [](int64_t value) { return static_cast<cuuint64_t>(value); };
  const cuda::TensorShape shape = {.dims = {u(call.in_dim), u(m.rows), u(call.num_heads), 1},
                                   .strides_bytes = {u(m.stride * 2), u(m.head_stride * 2), u(m.stride * 2)},
                                   .promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B};
  return cuda::make_tensor_map(map, m.data, shape, box_rows) == cudaSuccess;
}

template <int kColumns>
bool make_args(const HeadGemmCall& call, GemmArgs& args) {
  args.y = call.y;
  args.y_stride = call.y_stride;
  args.y_head_stride = call.y_head_stride;
  args.rows = static_cast<int>(call.rows);
  args.x_settled = call.x_settled;
  args.boxes = call.in_dim / kBoxDepth;
  args.column_blocks = call.out_dim / kColumns;
  args.row_blocks = (args.rows + kRows - 1) / kRows;
  return make_map(&args.w, {call.weight, call.out_dim, call.in_dim, call.weight_head_stride}, call, kColumns) &&
         make_map(&args.x, {call.x, call.rows, call.x_stride, call.x_head_stride}, call, kRows);
}

size_t shared_bytes(const GemmArgs& args, int columns) { return static_cast<size_t>(args.boxes) * (box_bytes(columns) + 8); }

template <class E, int kColumns>
void launch(const HeadGemmCall& call, cudaStream_t stream) {
  GemmArgs args;
  if (!make_args<kColumns>(call, args)) return;  // the driver is older than the chip: latent_wgmma_takes() has asked
  const auto kernel = head_gemm_wgmma_kernel<E, kColumns>;
  static SharedMemoryLimit limit;
  limit.raise(kernel, kMostBoxes * (box_bytes(kColumns) + 8));
  const auto blocks = static_cast<unsigned>(args.column_blocks * args.row_blocks * call.num_heads);
  launch_dependent({dim3(blocks), kThreads, shared_bytes(args, kColumns), stream}, kernel, static_cast<const GemmArgs&>(args));
}

// Deep ones have few columns a CTA: there are CTAs for most SMs, whose memory is full.
template <class E>
void launch(const HeadGemmCall& call, cudaStream_t stream) {
  constexpr int kDeep = 256;
  if (call.in_dim <= kDeep && call.out_dim % 128 == 0) return launch<E, 128>(call, stream);
  call.rows <= kRows || call.out_dim % 64 != 0 ? launch<E, 32>(call, stream) : launch<E, 64>(call, stream);
}

}  // namespace

bool latent_wgmma_takes(const HeadGemmCall& call) {
  const int64_t strides = call.weight_head_stride | call.x_stride | call.x_head_stride | call.y_stride | call.y_head_stride;
  const auto aligned = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; };
  return call.by_rows && call.rows >= kLeastRows && call.dtype != DType::f32 && call.in_dim % kBoxDepth == 0 &&
         call.in_dim <= kMostBoxes * kBoxDepth && call.out_dim % 32 == 0 && strides % 8 == 0 && aligned(call.x) && aligned(call.y) &&
         aligned(call.weight) && has_wgmma();
}

void head_gemm_wgmma(const HeadGemmCall& call, Stream stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  call.dtype == DType::bf16 ? launch<ptx::Bf16>(call, on) : launch<ptx::F16>(call, on);
}

}  // namespace warpweave::gpu
