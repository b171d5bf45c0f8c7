// What the experts' GEMMs by WGMMA share: their arguments, and how sums leave (expert_gemm.cu, expert_wide.cuh). Weight rows
// are the M side, places the N side, so that a warpgroup's sums leave transposed.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device/cuda/ptx.h"
#include "device/cuda/tensor_map.h"
#include "ops/cuda/activation.cuh"
#include "ops/cuda/experts.h"

namespace warpweave::gpu {

using ptx::u32;
using ptx::u64;

constexpr int kExpertRowBytes = 128;             // of a stage: the swizzle's width
constexpr int kPassPlaces = 32;                  // that leave through shared memory at a time
constexpr int kPassBytes = kPassPlaces * kExpertRowBytes;

struct ExpertGemmArgs {
  CUtensorMap w, x;
  const ExpertTile* tiles;
  const int32_t* num_tiles;
  char* y;
  const float* const* biases;
  const float* const* scales;   // of the weights, in 8 bits
  const float* x_scales;        // [x_rows], or where x_by_group [x_rows, 4 * chunks]
  int64_t x_rows;
  int outputs;                  // columns of y
  int rows;                     // of the weights
  int chunks;                   // of the depth
  int row_tiles;
  int scale_stride;             // of block scales; 0: a scale a row
  bool shared_rows, plan_settled, x_by_group;
  const int32_t* row_of;        // the rows of x that places have; null: x is by place
  uint8_t* codes;               // or null
  float* code_scales;
  GluActivation glu;
};

// But for the tensor maps and what depends on the tile.
ExpertGemmArgs expert_gemm_args(const ExpertGemmCall& call);
// Tiles of up to kExpertWidePlaces places, weights of 16 bits and of 8.
void expert_wide_halves(const ExpertGemmCall& call, Stream stream);
void expert_wide_codes(const ExpertGemmCall& call, Stream stream);
inline constexpr int kExpertWidePlaces = 192;
inline constexpr int64_t kExpertCodeColumns = 32768;  // of 8-bit weights with scales of blocks, at most

enum class Glu : uint8_t { none, silu, other };  // other: ExpertGemmArgs says which

constexpr int kBarrierBytes = 16;                // of a stage: it is full, it is free again

// A place in a ring of C::kStages stages of C::kStageBytes, which C::kGroups staging areas and the barriers follow (these at
// C::kBarriersAt, where it has one), and the parity of its turn. A staging area holds a pass, or two where one is written while another leaves.
template <class C>
struct ExpertRing {
  u32 base;
  int stage = 0;
  u32 parity = 0;

  static constexpr int kStagesBytes = C::kStages * C::kStageBytes;
  static constexpr int kBarriersAt = [] {
    if constexpr (requires { C::kBarriersAt; }) return C::kBarriersAt;
    else return kStagesBytes + C::kGroups * C::kStagingBytes;
  }();
  static constexpr int kSmemBytes = kBarriersAt + C::kStages * kBarrierBytes;

  __device__ explicit ExpertRing(const char* memory) : base(ptx::smem_address(memory)) {}
  __device__ u32 at() const { return base + stage * C::kStageBytes; }
  __device__ u32 staging(int group) const { return base + kStagesBytes + group * C::kStagingBytes; }
  __device__ u32 full() const { return base + kBarriersAt + kBarrierBytes * stage; }
  __device__ u32 empty() const { return full() + 8; }
  __device__ ExpertRing last() const {
    ExpertRing out = *this;
    if (--out.stage < 0) {
      out.stage = C::kStages - 1;
      out.parity ^= 1;
    }
    return out;
  }
  __device__ void next() {
    if (++stage == C::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ void skip(int stages) {
    const int to = stage + stages;
    stage = to % C::kStages;
    parity ^= to / C::kStages & 1;
  }
  // By one thread; `consumers` arrivals free a stage.
  __device__ void init_barriers(int consumers) const {
    for (ExpertRing at = *this; at.parity == 0; at.next()) {
      ptx::mbarrier_init(at.full(), 1);
      ptx::mbarrier_init(at.empty(), consumers);
    }
    ptx::mbarrier_init_fence();
  }
};

// The first of a thread's two rows among a warpgroup's 64; the second is 8 further, up's under a GLU.
__device__ __forceinline__ int expert_row(int first_row) { return first_row + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4; }

// The sums of a warpgroup's 64 weight rows leave transposed, kPassPlaces places at a time.
// Element and kGlu are those of C.
template <class C, int kPlaces>
struct ExpertOut {
  const ExpertGemmArgs& a;
  const ExpertTile& tile;
  u32 staging;                  // of the warpgroup
  int group;                    // warpgroup
  int first_row;                // of the expert's weights

  static constexpr bool kGlu = C::kGlu != Glu::none;

  // 16 bytes are 8 outputs of one place: 8 such pieces a place, 4 under a GLU; they stand where no banks meet.
  static __device__ __forceinline__ u32 at(int place, int piece) {
    return kGlu ? place * 64 + ((piece ^ (place / 2 & 3)) << 4) : place * 128 + ((piece ^ (place & 7)) << 4);
  }
  __device__ __forceinline__ void leave(u32 from, int first_place) const {
    constexpr int kPieces = kGlu ? 4 : 8;
    const int outputs = first_row / (kGlu ? 2 : 1);
#pragma unroll
    for (int i = 0; i < kPassPlaces * kPieces / 128; ++i) {
      const int piece = (threadIdx.x % 128 + i * 128) % kPieces, place = (threadIdx.x % 128 + i * 128) / kPieces;
      const int column = outputs + piece * 8;
      u32 v[4];
      ptx::load_shared_16(v, from + at(place, piece));
      if (first_place + place < tile.count && column < a.outputs) {
        *reinterpret_cast<uint4*>(a.y + ((tile.first + first_place + place) * int64_t{a.outputs} + column) * 2) =
            make_uint4(v[0], v[1], v[2], v[3]);
      }
    }
  }
  __device__ __forceinline__ float activated(float gate, float up) const {
    if constexpr (C::kGlu == Glu::silu) return activate<GluActivation::silu>(gate, up);
    return activate(a.glu, gate, up);
  }
  __device__ __forceinline__ u32 pair(const float (&sum)[kPlaces / 2], int j, int half) const {
    using E = typename C::Element;
    if constexpr (C::kGlu == Glu::none) return E::pack(sum[4 * j + 2 * half], sum[4 * j + 2 * half + 1]);
    return E::pack(activated(sum[4 * j], sum[4 * j + 2]), activated(sum[4 * j + 1], sum[4 * j + 3]));
  }
  // The places from kFirst on.
  template <int kFirst>
  __device__ __forceinline__ void pass(const float (&sum)[kPlaces / 2]) const {
    constexpr int kEach = kGlu ? 4 : 2;  // columns of 8 places that one stmatrix has
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const u32 to = staging + kFirst / kPassPlaces % 2 * kPassBytes;
#pragma unroll
    for (int step = 0; step < kPassPlaces / 8 / kEach; ++step) {
      u32 r[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int of = kFirst / 8 + step * kEach + (kGlu ? i : i / 2);
        r[i] = of < kPlaces / 8 ? pair(sum, of < kPlaces / 8 ? of : 0, i % 2) : 0;
      }
      const int place = (step * kEach + (kGlu ? lane / 8 : lane / 16)) * 8 + lane % 8;
      const int piece = kGlu ? warp : warp * 2 + lane / 8 % 2;
      ptx::stmatrix_x4_trans(to + at(place, piece), r);
    }
    ptx::named_barrier_sync(1 + group, 128);
    leave(to, kFirst);
    if constexpr (kFirst + kPassPlaces < kPlaces) pass<kFirst + kPassPlaces>(sum);
  }
  __device__ __forceinline__ void add_bias(float (&sum)[kPlaces / 2]) const {
    if (a.biases == nullptr) return;
    const int row = expert_row(first_row);
    const float* const bias = a.biases[tile.expert];
    const float first = row < a.rows ? bias[row] : 0, second = row + 8 < a.rows ? bias[row + 8] : 0;
#pragma unroll
    for (int i = 0; i < kPlaces / 2; ++i) sum[i] += i % 4 < 2 ? first : second;
  }
  __device__ __forceinline__ void write(const float (&sum)[kPlaces / 2]) const {
    pass<0>(sum);
    ptx::named_barrier_sync(1 + group, 128);  // the next tile writes where this one still leaves
  }
};

}  // namespace warpweave::gpu
