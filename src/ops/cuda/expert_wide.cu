// Experts with many places, 16-bit weights: as expert_gemm.cu, but two warpgroups take tiles in turns, so that one multiplies
// while the other writes its sums (expert_wide.cuh has the rest).
#include "device/cuda/wgmma_wide.h"
#include "ops/cuda/expert_wide.cuh"

namespace warpweave::gpu {
namespace expert_wide {
namespace {

using Args = ExpertGemmArgs;

constexpr int kBlocks = kRows / 64;
constexpr int kDepth = 64;                      // of a stage

template <class C, int kPlaces>
__device__ __forceinline__ void multiply(u32 stage, float (&sum)[kBlocks][kPlaces / 2]) {
  const u32 w = ptx::wgmma_descriptor(stage, 0), x = ptx::wgmma_descriptor(stage + kWeightBytes, 0);
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      ptx::Wgmma<typename C::Element, kPlaces>::qk(sum[block], ptx::wgmma_advance(w, block * 64 * kRowBytes + k * 32),
                                                   ptx::wgmma_advance(x, k * 32), 1);
    }
  }
  ptx::wgmma_commit();
}

template <class C, int kPlaces>
__device__ __forceinline__ void run_tile(const Args& a, Ring& ring, const Walk& walk, int group) {
  float sum[kBlocks][kPlaces / 2];
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
    for (float& value : sum[block]) value = 0;  // as in expert_gemm.cu
  }
  const bool followed = walk.followed();
  for (int chunk = 0; chunk < a.chunks; ++chunk) {
    ptx::mbarrier_wait(ring.full(), ring.parity);
    if (followed && chunk == a.chunks - 1) ptx::named_barrier_arrive(3 + (group ^ 1), kConsumers);
    multiply<C, kPlaces>(ring.at(), sum);
    ptx::wgmma_wait<1>();
    if (chunk > 0) release(ring.last());
    ring.next();
  }
  ptx::wgmma_wait<0>();
  release(ring.last());
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    const ExpertOut<C, kPlaces> out = {a, walk.tile, ring.staging(group), group, walk.row + block * 64};
    out.add_bias(sum[block]);
    out.write(sum[block]);
  }
}

template <class Element_, Glu kGlu_>
struct Config {
  using Element = Element_;
  static constexpr Glu kGlu = kGlu_;
  static constexpr int kSharers = 1, kElements = 1, kOwnBytes = 0;
  static constexpr bool kTakesRows = true;

  static __device__ void init(char*) {}
  static __device__ void assist(const Args&, char*) {}

  // A warpgroup has every second tile, and every second run of stages. It looks for its stages when the other has seen its
  // last one: a barrier's parity tells only one round of the ring from the next.
  static __device__ __forceinline__ void consume(const Args& a, Ring ring, char*) {
    const int group = threadIdx.x / 128;
    Walk walk(a);
    if (group == 1) {
      walk.next(a);
      ring.skip(a.chunks);
    }
    for (bool first = group == 0; walk.valid(); first = false) {
      if (!first) ptx::named_barrier_sync(3 + group, kConsumers);
      with_width(walk.tile.count, [&]<typename Places>(Places) { run_tile<Config, Places::value>(a, ring, walk, group); });
      ring.skip(a.chunks);
      walk.next(a);
      walk.next(a);
    }
  }
};

}  // namespace
}  // namespace expert_wide

bool expert_gemm_takes_rows(int64_t pairs, int experts, DType dtype) {
  constexpr int64_t kMostPlaces = 72;      // an expert, up to where stages wait for weights and not for rows
  return dtype != DType::fp8_e4m3 && expert_gemm_tile_places(pairs, experts, dtype) == kExpertWidePlaces &&
         pairs <= kMostPlaces * experts;
}

void expert_wide_halves(const ExpertGemmCall& call, Stream stream) { expert_wide::run<expert_wide::Config>(call, stream); }

}  // namespace warpweave::gpu
