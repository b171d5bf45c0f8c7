// Experts with many places, 8-bit weights: two warpgroups share a tile, 64 weight rows each. Each goes through the stages at
// its own speed: while one brings a stage's sums to f32, or writes a tile, the other multiplies (expert_wide.cuh has the rest).
// Other warps bring what a tile begins and ends with, its place and its scales, while the tile before is multiplied: read by
// the warpgroups themselves they are three loads that wait for each other, as long as several stages take.
#include "device/cuda/wgmma_fp8_wide.h"
#include "ops/cuda/expert_fp8.cuh"
#include "ops/cuda/expert_wide.cuh"

namespace warpweave::gpu {
namespace expert_wide {
namespace {

constexpr int kMostChunks = kExpertCodeColumns / kFp8Block;
constexpr int kLag = 2;                         // stages that the second warpgroup begins behind the first

struct TileScales {
  float of_blocks[2][kMostChunks];              // by chunk, of gate's rows and of up's; without a GLU of all, in the first
  float of_rows[kRows];                         // with scales of rows
  float of_places[kExpertWidePlaces];
  ExpertTile tile;
};

// Two tiles' scales, by turns.
struct Scales {
  TileScales of[2];
  uint64_t full[2], empty[2];

  static constexpr int kBytes = 2 * (sizeof(TileScales) + 2 * sizeof(uint64_t));
};

// Of Scales: whose turn it is.
struct Turn {
  int at = 0;
  u32 parity = 0;

  __device__ void next() {
    at ^= 1;
    if (at == 0) parity ^= 1;
  }
};

template <class C>
__device__ __forceinline__ void bring_scales(const ExpertGemmArgs& a, const Walk& walk, TileScales& to) {
  constexpr bool kGlu = C::kGlu != Glu::none;
  const int thread = static_cast<int>(threadIdx.x) - (kThreads - kAssistants);
  const float* const scales = a.scales[walk.tile.expert];
  for (int i = thread; i < kExpertWidePlaces; i += kAssistants) {
    to.of_places[i] = i < walk.tile.count ? __ldcg(a.x_scales + walk.tile.first + i) : 0.0f;
  }
  if (a.scale_stride > 0) {  // rows beyond the last are not written later: their scales are any
    const int first = kGlu ? walk.row / 2 : walk.row;
    for (int half = 0; half < (kGlu ? 2 : 1); ++half) {
      const int block = min(first + half * (a.rows / 2), a.rows - 1) / static_cast<int>(kFp8Block);
      for (int i = thread; i < a.chunks; i += kAssistants) to.of_blocks[half][i] = __ldg(scales + int64_t{block} * a.scale_stride + i);
    }
  } else {
    for (int i = thread; i < kRows; i += kAssistants) {
      const int row = min(walk.row + i, a.rows - 1);
      to.of_rows[i] = __ldg(scales + (kGlu ? row / 16 * 8 + row % 8 + row / 8 % 2 * (a.rows / 2) : row));
    }
  }
  if (thread == 0) to.tile = walk.tile;
}

// What a warpgroup has of a tile.
struct Share {
  int group;
  bool first;                   // whether it is the CTA's first tile
  const TileScales& scales;
  u32 scales_empty;             // the barrier that says so
};

template <int kPlaces>
__device__ __forceinline__ void finish(const TileScales& scales, int first_row, bool by_block, float (&sum)[kPlaces / 2]) {
  const float first = by_block ? 1.0f : scales.of_rows[first_row], second = by_block ? 1.0f : scales.of_rows[first_row + 8];
#pragma unroll
  for (int j = 0; j < kPlaces / 8; ++j) {
    const float2 of_places = *reinterpret_cast<const float2*>(scales.of_places + j * 8 + threadIdx.x % 4 * 2);
    sum[4 * j] *= first * of_places.x;
    sum[4 * j + 1] *= first * of_places.y;
    sum[4 * j + 2] *= second * of_places.x;
    sum[4 * j + 3] *= second * of_places.y;
  }
}

template <class C, int kPlaces>
__device__ __forceinline__ void run_tile(const ExpertGemmArgs& a, Ring& ring, const Walk& walk, const Share& share) {
  const int first_row = walk.row + share.group * 64;
  const bool by_block = a.scale_stride > 0;
  const int lag = share.first && share.group == 0 ? min(kLag, a.chunks) - 1 : -1;
  float sum[kPlaces / 2], part[1][kPlaces / 2];
#pragma unroll
  for (float& value : sum) value = 0;
  for (int chunk = 0; chunk < a.chunks; ++chunk, ring.next()) {
    const float first = by_block ? share.scales.of_blocks[0][chunk] : 1.0f;
    const float second = by_block && C::kGlu != Glu::none ? share.scales.of_blocks[1][chunk] : first;
    ptx::mbarrier_wait(ring.full(), ring.parity);
    multiply_codes<kPlaces>(ring.at() + share.group * 64 * kRowBytes, ring.at() + kWeightBytes, part);
    ptx::wgmma_wait<0>();
    release(ring);
    if (chunk == lag) ptx::named_barrier_arrive(3, kConsumers);
    ExpertFp8Scales<C>::add(first, second, part[0], sum);
  }
  finish<kPlaces>(share.scales, expert_row(share.group * 64), by_block, sum);
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(share.scales_empty);
  const ExpertOut<C, kPlaces> out = {a, walk.tile, ring.staging(share.group), share.group, first_row};
  out.add_bias(sum);
  out.write(sum);
}

template <class Element_, Glu kGlu_>
struct Config {
  using Element = Element_;
  static constexpr Glu kGlu = kGlu_;
  static constexpr int kSharers = kWarpgroups, kElements = 2, kOwnBytes = Scales::kBytes;
  static constexpr bool kTakesRows = false;     // the other warps bring scales

  static __device__ void init(char* own) {
    auto& scales = *reinterpret_cast<Scales*>(own);
    for (int i = 0; i < 2; ++i) {
      ptx::mbarrier_init(ptx::smem_address(scales.full + i), kAssistants);
      ptx::mbarrier_init(ptx::smem_address(scales.empty + i), kConsumers / 32);
    }
  }
  static __device__ void assist(const ExpertGemmArgs& a, char* own) {
    auto& scales = *reinterpret_cast<Scales*>(own);
    Turn turn;
    wait_for_predecessor();
    for (Walk walk(a); walk.valid(); walk.next(a), turn.next()) {
      ptx::mbarrier_wait(ptx::smem_address(scales.empty + turn.at), turn.parity ^ 1);  // the first round is free
      bring_scales<Config>(a, walk, scales.of[turn.at]);
      ptx::mbarrier_arrive(ptx::smem_address(scales.full + turn.at));
    }
  }
  static __device__ __forceinline__ void consume(const ExpertGemmArgs& a, Ring ring, char* own) {
    auto& scales = *reinterpret_cast<Scales*>(own);
    Turn turn;
    Walk walk(a);
    const int group = static_cast<int>(threadIdx.x) / 128;
    if (group == 1 && walk.valid()) ptx::named_barrier_sync(3, kConsumers);
    for (bool first = true; walk.valid(); walk.unit += Walk::step(), turn.next(), first = false) {
      ptx::mbarrier_wait(ptx::smem_address(scales.full + turn.at), turn.parity);
      const Share share = {group, first, scales.of[turn.at], ptx::smem_address(scales.empty + turn.at)};
      walk.take(share.scales.tile);
      with_width(walk.tile.count, [&]<typename Places>(Places) { run_tile<Config, Places::value>(a, ring, walk, share); });
    }
  }
};

}  // namespace
}  // namespace expert_wide

void expert_wide_codes(const ExpertGemmCall& call, Stream stream) { expert_wide::run<expert_wide::Config>(call, stream); }

}  // namespace warpweave::gpu
