// CTAs of a cluster that share the depth of the experts' tiles (expert_gemm.cu): a CTA's part of it, and how sums of others arrive.
#pragma once

#include "ops/cuda/cluster.cuh"
#include "ops/cuda/expert_gemm.cuh"

namespace warpweave::gpu {

// x in boxes of as many places as each width of the WGMMAs has; in tiles of more than 64 places, of twice as many.
struct PlaceMaps {
  static constexpr int kCount = 6;
  CUtensorMap of[kCount];

  template <int kMostPlaces>
  static constexpr int kStep = kMostPlaces > 64 ? 16 : 8;
  // Of the narrowest width that holds so many places.
  template <int kMostPlaces>
  static __device__ __forceinline__ int index(int places) {
    constexpr int kOf = kStep<kMostPlaces>;
    return places <= 4 * kOf ? (places - 1) / kOf : places <= 6 * kOf ? 4 : 5;
  }
  template <int kMostPlaces>
  static constexpr int width(int index) {
    return kStep<kMostPlaces> * (index < 4 ? index + 1 : 2 * (index - 1));
  }
};

// Tiles of experts that have all rows, at the last places (ExpertGemmCall::early).
struct EarlyTiles {
  int tiles = 0;
  int tiles_each = 1, places = 1;  // of an expert, of its tiles but the last one
  int first_expert = 0, first_place = 0, rows = 0;
};

// As the plan has them, but for x.
inline EarlyTiles early_tiles(const ExpertGemmCall& call) {
  EarlyTiles out{};
  out.rows = static_cast<int>(call.early.rows);
  if (out.rows == 0) return out;
  out.places = expert_tile_places(out.rows, call.tile_places);
  out.tiles_each = (out.rows + out.places - 1) / out.places;
  out.tiles = out.tiles_each * call.early.experts;
  out.first_expert = call.weights.experts - call.early.experts;
  out.first_place = static_cast<int>(call.places - call.early.rows * call.early.experts);
  return out;
}

struct ExpertShareArgs : ExpertGemmArgs {
  int sharers = 1;              // CTAs of a tile, a cluster: a power of two
  PlaceMaps places, other_places;  // of x, and of early.x or of x for crowded tiles
  CUtensorMap crowded_w;
  int most_tiles = 1;           // of the plan's array
  EarlyTiles early;
  int certain = 0, first_certain = 0;  // experts whose tiles come first, whatever the plan says
};

constexpr int kMostSharers = 8;                 // CTAs of a cluster
constexpr int kRun = 8;                         // places whose sums one of them adds up: 4 of a thread
constexpr int kRunBytes = 128 * 16;

// A CTA's part of the chunks of a tile's depth, at least one; C::kBlocks chunks are a stage.
template <class C>
struct Depth {
  int begin, count;

  __device__ explicit Depth(const ExpertShareArgs& a)
      : begin(C::kSplit ? rank(a) * a.chunks / a.sharers : 0),
        count(C::kSplit ? (rank(a) + 1) * a.chunks / a.sharers - begin : (a.chunks + C::kBlocks - 1) / C::kBlocks) {}
  static __device__ int rank(const ExpertShareArgs& a) { return static_cast<int>(blockIdx.x) & (a.sharers - 1); }
};

// Where the sums of other CTAs arrive, behind the ring. Run r of a tile's places is the CTA's of rank r % sharers.
template <class C>
struct SumsOfSharers {
  u32 base, arrived;

  __device__ explicit SumsOfSharers(const char* memory)
      : base(ptx::smem_address(memory) + ExpertRing<C>::kSmemBytes), arrived(base + C::kSumsBytes) {}
  static constexpr int kBytes = C::kSplit ? C::kSumsBytes + 8 : 0;

  // By one thread, before the cluster meets.
  __device__ void init() const {
    ptx::mbarrier_init(arrived, 1);
    ptx::mbarrier_init_fence();
  }
  // Of `sharer`, not of the owner itself.
  __device__ u32 at(const ExpertShareArgs& a, int run, int owner, int sharer) const {
    const int slot = run / a.sharers * (a.sharers - 1) + sharer - (sharer > owner ? 1 : 0);
    return base + slot * kRunBytes + threadIdx.x * 16;
  }
  template <int kSums>
  __device__ __forceinline__ void send(const ExpertShareArgs& a, int places, const float (&sum)[kSums]) const {
    const int rank = Depth<C>::rank(a);
#pragma unroll
    for (int run = 0; run < kSums / 4; ++run) {
      const int owner = run & (a.sharers - 1);
      if (owner == rank || run * kRun >= places) continue;
      const u32 values[4] = {__float_as_uint(sum[4 * run]), __float_as_uint(sum[4 * run + 1]), __float_as_uint(sum[4 * run + 2]),
                             __float_as_uint(sum[4 * run + 3])};
      cluster::send_16(at(a, run, owner, rank), arrived, owner, values);
    }
  }
  // Until all sums of this CTA's runs are there.
  __device__ __forceinline__ void wait(const ExpertShareArgs& a, int places) const {
    if (threadIdx.x == 0) {
      const int runs = (places + kRun - 1) / kRun, own = (runs - Depth<C>::rank(a) + a.sharers - 1) / a.sharers;
      ptx::mbarrier_arrive_expect_tx(arrived, own * (a.sharers - 1) * kRunBytes);
    }
    ptx::mbarrier_wait(arrived, 0);
  }
  __device__ __forceinline__ void add(const ExpertShareArgs& a, int run, float (&sum)[4]) const {
    const int rank = Depth<C>::rank(a);
    for (int sharer = 0; sharer < a.sharers; ++sharer) {
      if (sharer == rank) continue;
      u32 values[4];
      ptx::load_shared_16(values, at(a, run, rank, sharer));
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] += __uint_as_float(values[i]);
    }
  }
};

}  // namespace warpweave::gpu
