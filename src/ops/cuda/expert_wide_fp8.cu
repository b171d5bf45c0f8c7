// Experts with many places, 8-bit weights: two warpgroups share a tile, 64 weight rows each. Each goes through the stages at
// its own speed: while one brings a stage's sums to f32, or writes a tile, the other multiplies (expert_wide.cuh has the rest).
#include "device/cuda/wgmma_fp8_wide.h"
#include "ops/cuda/expert_fp8.cuh"
#include "ops/cuda/expert_wide.cuh"

namespace warpweave::gpu {
namespace expert_wide {
namespace {

template <class C, int kPlaces>
__device__ __forceinline__ void run_tile(const ExpertGemmArgs& a, Ring& ring, const Walk& walk, int group) {
  const int first_row = walk.row + group * 64;
  const ExpertFp8Scales<C> scales(a, walk.tile.expert, first_row);
  float sum[kPlaces / 2], part[kPlaces / 2];
#pragma unroll
  for (float& value : sum) value = 0;
  for (int chunk = 0; chunk < a.chunks; ++chunk, ring.next()) {
    const float first = scales.of_chunk(0, chunk), second = scales.of_chunk(1, chunk);
    ptx::mbarrier_wait(ring.full(), ring.parity);
    multiply_codes<kPlaces>(ring.at() + group * 64 * kRowBytes, ring.at() + kWeightBytes, part);
    ptx::wgmma_wait<0>();
    release(ring);
    scales.add(first, second, part, sum);
  }
  scales.finish(a.x_scales + walk.tile.first, walk.tile.count, sum);
  const ExpertOut<C, kPlaces> out = {a, walk.tile, ring.staging(group), group, first_row};
  out.add_bias(sum);
  out.write(sum);
}

template <class Element_, Glu kGlu_>
struct Config {
  using Element = Element_;
  static constexpr Glu kGlu = kGlu_;
  static constexpr int kSharers = kWarpgroups, kElements = 2;

  static __device__ __forceinline__ void consume(const ExpertGemmArgs& a, Ring ring) {
    const int group = threadIdx.x / 128;
    for (Walk walk(a); walk.valid(); walk.next(a)) {
      with_width(walk.tile.count, [&]<typename Places>(Places) { run_tile<Config, Places::value>(a, ring, walk, group); });
    }
  }
};

}  // namespace
}  // namespace expert_wide

void expert_wide_codes(const ExpertGemmCall& call, Stream stream) { expert_wide::run<expert_wide::Config>(call, stream); }

}  // namespace warpweave::gpu
