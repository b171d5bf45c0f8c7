// The kernels' instances and grids, for whatever runs them. `run` is called as run.operator()<Config>(grid x, grid y); for decode
// without the grid, which decode_launch<Config> has.
#pragma once

#include <algorithm>

#include "linear/cuda/chunk_pieces.cuh"
#include "linear/cuda/chunk_prepare_kda.cuh"
#include "linear/cuda/chunk_scan_ends.cuh"
#include "linear/cuda/chunk_scan_in_turn.cuh"
#include "linear/cuda/chunk_scan_roles.cuh"
#include "linear/cuda/chunk_scan_wide.cuh"
#include "linear/cuda/decode.cuh"
#include "linear/cuda/decode_slices.cuh"
#include "linear/cuda/fused_states.cuh"
#include "linear/cuda/verify_few_kda.cuh"

namespace warpweave::linear {

// Calls `with` with the first of kDims that is at least `dim`.
template <int... kDims, class With>
void with_dim(int dim, const With& with) {
  bool done = false;
  ((done || dim > kDims ? false : (with.template operator()<kDims>(), done = true)), ...);
}

template <RecurrentMode kMode, class Run>
void recurrent_grid(const LinearParams& p, int multiprocessors, const Run& run) {
  const auto rows = [&]<class State, int kDim, int kRows, bool kKda> {
    using C = RecurrentConfig<State, kDim, kRows, kKda, kMode>;
    run.template operator()<C>((p.v_dim + C::kTileRows - 1) / C::kTileRows * p.v_heads, p.batch.num_requests);
  };
  const auto kinds = [&]<class State, int kDim, int kRows> {
    if (p.decay_channels > 1) rows.template operator()<State, kDim, kRows, true>();
    else rows.template operator()<State, kDim, kRows, false>();
  };
  const bool few = int64_t{p.batch.num_requests} * p.v_heads * ((p.v_dim + 63) / 64) < 2 * multiprocessors;
  const auto sizes = [&]<class State> {
    with_dim<64, 128, 256>(p.k_dim, [&]<int kDim> {
      constexpr int kMany = kDim > 128 ? 2 : 4;  // rows of a thread
      if constexpr (kMode == RecurrentMode::extend) {  // what nobody is in a hurry for has one form
        kinds.template operator()<State, kDim, 2>();
      } else {
        if (few) kinds.template operator()<State, kDim, 2>();
        else kinds.template operator()<State, kDim, kMany>();
      }
    });
  };
  if (p.state.dtype == DType::f32) sizes.template operator()<F32State>();
  else sizes.template operator()<Bf16State>();
}

// Of decode.cuh. A head's rows are shared out where there are fewer heads than blocks, and those of f32 in two where a block has no
// more than kHalvedHeads or the form is DecodeMany: 64 requests of 32 heads take 71.4 us so on an H200 and 73.9 by whole heads, 128 of
// them 137.1 and 141.6. But not heads of at most kWholeHeadBytes (128 requests of 32 heads of KDA, 128 x 64, take 78 us whole and 101 in
// two), nor states of 16 bits, which come so fast that beginning a unit weighs most: 64 requests of 16 heads of 192 x 128 take 29.6 us
// whole and 36.8 in two. DecodeNarrow's blocks take turns as those of f32 do (256 requests of 32 heads of 128 x 128 138.6 us, 147.1
// where each block has neighbours); for DecodeFew's of 16 bits that is no gain.
struct DecodeLaunch {
  int blocks = 0, units = 1, shared_bytes = 0;
  bool by_turns = false;
};
inline constexpr int kHalvedHeads = 8, kWholeHeadBytes = 32 * 1024;
// Where blocks would take this many turns, there are more blocks than the device holds, each with a run of neighbouring units: they
// begin in the order of their states, so that what all of them read and write stays together, where blocks that stay drift apart
// (H200, f32 states of 128 x 128: 256 requests of 32 heads 263 us in place of 268.5, of KDA 276 in place of 281; but 64 requests 73.5 in
// place of 69.9). decode_slices.cuh takes those now; what is left for runs, 256 x 64 and rows that lie unaligned, is not timed.
inline constexpr int kRunUnits = 4, kRunHeadBytes = 64 * 1024, kLeastRounds = 32;
template <class C>
constexpr int decode_shared_bytes(int steps) { return kDecodeTokensBytes<C> + std::min(steps, C::kStages) * C::kStageBytes; }
template <class C>
DecodeLaunch decode_launch(const LinearParams& p, int multiprocessors) {
  const int steps = decode_steps_of_head<C>(p), heads = p.batch.num_requests * p.v_heads, most = C::kBlocks * multiprocessors;
  const bool wide = p.state.dtype == DType::f32, whole = !wide || p.k_dim * p.v_dim * 4 <= kWholeHeadBytes;
  const int least = !whole && (C::kLanes > C::kFewLanes || heads <= kHalvedHeads * most) ? std::min(2, steps) : 1;
  const int units = p.has_norm ? 1 : std::clamp(most / heads, least, steps);
  const bool runs = units == 2 && !p.has_norm && p.k_dim * p.v_dim * 4 == kRunHeadBytes && heads * units >= kLeastRounds * most;
  const int blocks = runs ? (heads * units + kRunUnits - 1) / kRunUnits : std::min(heads * units, most);
  const int of_block = (heads * units + blocks - 1) / blocks;
  return {blocks, units, decode_shared_bytes<C>(of_block * ((steps + units - 1) / units)), (wide || C::kThreads < DecodeFew::kThreads) && !runs};
}

// Eight lanes a row are faster where each of two blocks a multiprocessor has one head at most (8 requests of 32 heads: 11.6 us on an
// H200, 13.0 by 16 lanes), sixteen and three blocks where there are more (64 requests: 71.4 us, 75.7 by 8). Of 64 rows and less a head is
// done before many bytes are under way: more and smaller blocks (256 requests of 32 heads, 64 x 64: 83 us in place of 104). But not of
// 128 rows (64 x 128, 64 requests of 32 heads: 46 us in place of 43).
// With a norm a head is one block's, and the last round of blocks may have few of them: then eight lanes, too (16 requests of 32 heads,
// f32: 21.3 us in place of 24.1).
inline bool decodes_by_few(const LinearParams& p, int multiprocessors) {
  const int heads = p.batch.num_requests * p.v_heads;
  const auto places = [&](int blocks) { return (heads + blocks - 1) / blocks * blocks; };
  const int few = places(DecodeFew::kBlocks * multiprocessors), many = places(DecodeMany::kBlocks * multiprocessors);
  return heads <= DecodeFew::kBlocks * multiprocessors || (p.has_norm && 10 * few < 9 * many);
}
// States of 16 bits that DecodeNarrow takes, whose blocks have a thread a row and a channel: 8, 64 and 256 requests of 32 heads of
// 128 x 128 take 6.7, 37.3 and 137.7 us on an H200, by DecodeFew 9.6, 59.7 and 162.4. With a norm a head is one block's, and few of them
// take DecodeFew's 256 threads (8 requests by whole heads: 7.6 us, 8.3 by DecodeNarrow).
inline bool decodes_narrow(const LinearParams& p, int multiprocessors) {
  const bool few = p.batch.num_requests * p.v_heads <= DecodeFew::kBlocks * multiprocessors;
  return (p.k_dim == 64 || p.k_dim == 128) && p.v_dim <= 128 && !(few && p.has_norm);
}
template <class Run>
void decode_grid(const LinearParams& p, int multiprocessors, const Run& run) {
  const auto kinds = [&]<class State, class Form, int kDim, bool kWhole> {
    if (p.decay_channels > 1) run.template operator()<DecodeConfig<State, kDim, kWhole, true, Form>>();
    else run.template operator()<DecodeConfig<State, kDim, kWhole, false, Form>>();
  };
  const auto sizes = [&]<class State, class Form> {
    if (p.k_dim == 192) return kinds.template operator()<State, Form, 192, true>();
    with_dim<64, 128, 256>(p.k_dim, [&]<int kDim> {
      if (p.k_dim == kDim) kinds.template operator()<State, Form, kDim, true>();
      else kinds.template operator()<State, DecodeFew, kDim, false>();
    });
  };
  if (p.state.dtype != DType::f32 && decodes_narrow(p, multiprocessors)) {
    return with_dim<64, 128>(p.k_dim, [&]<int kDim> { kinds.template operator()<Bf16State, DecodeNarrow, kDim, true>(); });
  }
  if (p.state.dtype != DType::f32) return sizes.template operator()<Bf16State, DecodeFew>();
  const bool few = decodes_by_few(p, multiprocessors);
  if (!few && p.v_dim <= 64 && p.k_dim == 64) return kinds.template operator()<F32State, DecodeSmall<6>, 64, true>();
  if (!few && p.v_dim <= 64 && p.k_dim == 128) return kinds.template operator()<F32State, DecodeSmall<5>, 128, true>();
  few ? sizes.template operator()<F32State, DecodeFew>() : sizes.template operator()<F32State, DecodeMany>();
}

// Whether decode_slices.cuh takes this step: with a norm heads of 64 or 128 rows, all of which a block has. Not those of 128 x 64, of which
// few are slower so (8 requests of 32 heads 7.5 us on an H200, 6.9 by decode.cuh).
inline bool slices_take(const LinearParams& p) {
  const bool rows = p.has_norm ? p.norm_vectors && (p.v_dim == 128 || (p.v_dim == 64 && p.k_dim == 64)) : p.v_dim % 16 == 0;
  return p.state.dtype == DType::f32 && p.vectors && rows && (p.k_dim == 64 || p.k_dim == 128);
}
// Of many heads slices of 32 rows, which begin half as often: 64 and 256 requests of 32 heads 66.4 and 256.9 us in place of 66.7 and 258
// (H200), but 32 of them 34.6 in place of 34.4. Not of KDA with 128 channels, which has no registers for seven such blocks (64 requests
// 68.1 us in place of 66.9).
template <class Run>
void slices_grid(const LinearParams& p, int multiprocessors, const Run& run) {
  constexpr int kManyHeads = 12;  // of a multiprocessor
  const bool kda = p.decay_channels > 1, wide_kda = kda && p.k_dim == 128;
  const bool many = p.batch.num_requests * p.v_heads >= kManyHeads * multiprocessors && p.v_dim % 32 == 0 && !wide_kda;
  const auto with = [&]<class C> { run.template operator()<C>(p.v_heads * (p.v_dim / C::kRows), p.batch.num_requests); };
  const auto forms = [&]<int kDim, bool kKda, bool kNarrow> {
    if (p.has_norm && p.v_dim == 64) return with.template operator()<SliceConfig<kDim, kKda, kNarrow, SliceHead<64>>>();
    if (p.has_norm) return with.template operator()<SliceConfig<kDim, kKda, kNarrow, SliceHead<128>>>();
    if constexpr (!kKda || kDim == 64) {
      if (many) return with.template operator()<SliceConfig<kDim, kKda, kNarrow, SliceMany>>();
    }
    with.template operator()<SliceConfig<kDim, kKda, kNarrow, SliceFew>>();
  };
  const auto kinds = [&]<int kDim, bool kNarrow> {
    kda ? forms.template operator()<kDim, true, kNarrow>() : forms.template operator()<kDim, false, kNarrow>();
  };
  const bool narrow = p.q.dtype == DType::bf16 && p.k.dtype == DType::bf16 && p.v.dtype == DType::bf16;
  with_dim<64, 128>(p.k_dim, [&]<int kDim> { narrow ? kinds.template operator()<kDim, true>() : kinds.template operator()<kDim, false>(); });
}

template <class Element, class Run>
void prepare_grid(const LinearParams& p, const Run& run) {
  with_dim<64, 128, 192, 256>(p.k_dim, [&]<int kDim> {
    if (p.decay_channels > 1) run.template operator()<PrepareConfig<Element, kDim, true>>(p.work.grid_chunks, p.v_heads);
    else run.template operator()<PrepareConfig<Element, kDim, false>>(p.work.grid_chunks, p.k_heads);
  });
}

// Stages that shared memory has room for.
template <class OfOneStage>
constexpr int scan_stages() {
  constexpr int kRoom = 227 * 1024 - (OfOneStage::kEnd - OfOneStage::kOut) - (OfOneStage::kKda ? 0 : 128);  // behind GDN's stand mbarriers
  constexpr int kStages = kRoom / OfOneStage::kStageBytes;
  return kStages >= 3 ? 3 : kStages;
}
template <template <class> class Mma, class Element, bool kKda, int kDim, int kGroups, ScanPart kPart = ScanPart::whole>
using ScanOf = ScanConfig<Element, kDim, kKda, Mma, kGroups, scan_stages<ScanConfig<Element, kDim, kKda, Mma, kGroups, 1, kPart>>(), kPart>;

template <template <class> class Mma, class Element, int kDim, int kGroups, class Run>
void scan_grid(const LinearParams& p, const Run& run) {
  const int blocks = (p.v_dim + 64 * kGroups - 1) / (64 * kGroups) * p.v_heads;
  if (p.decay_channels > 1) run.template operator()<ScanOf<Mma, Element, true, kDim, kGroups>>(blocks, p.batch.num_requests);
  else run.template operator()<ScanOf<Mma, Element, false, kDim, kGroups>>(blocks, p.batch.num_requests);
}

// Pieces have k_dim 65 to 128. Of ends two blocks share a multiprocessor.
template <class Element, bool kKda>
using EndsConfig = ScanConfig<Element, 128, kKda, WarpgroupMma, 1, kKda ? 2 : 3, ScanPart::ends>;
template <class Element, class Run>
void piece_ends_grid(const LinearParams& p, const Run& run) {
  const int blocks = ((p.v_dim + 63) / 64 + (p.k_dim + 63) / 64) * p.v_heads, rows = p.batch.num_requests * (p.work.pieces.most - 1);
  p.decay_channels > 1 ? run.template operator()<EndsConfig<Element, true>>(blocks, rows)
                       : run.template operator()<EndsConfig<Element, false>>(blocks, rows);
}

template <class Element, bool kKda>
using PieceConfig = ScanOf<WarpgroupMma, Element, kKda, 128, 1, ScanPart::piece>;
template <class Element, class Run>
void piece_scan_grid(const LinearParams& p, const Run& run) {
  const int blocks = (p.v_dim + 63) / 64 * p.v_heads, rows = p.batch.num_requests * p.work.pieces.most;
  p.decay_channels > 1 ? run.template operator()<PieceConfig<Element, true>>(blocks, rows)
                       : run.template operator()<PieceConfig<Element, false>>(blocks, rows);
}
template <class Run>
void join_pieces_grid(const LinearParams& p, const Run& run) {
  run.template operator()<JoinConfig>((p.v_dim + JoinConfig::kRows - 1) / JoinConfig::kRows * p.v_heads, p.batch.num_requests);
}

template <class Element, class Run>
void tile_scan_grid(const LinearParams& p, const Run& run) {
  with_dim<64, 128, 256>(p.k_dim, [&]<int kDim> { scan_grid<WarpMma, Element, kDim, 1>(p, run); });
}
template <class Element, class Run>
void wgmma_scan_grid(const LinearParams& p, int groups, const Run& run) {
  with_dim<64, 128, 192, 256>(p.k_dim, [&]<int kDim> {
    if constexpr (kDim <= 128) {
      if (groups == 2) return scan_grid<WarpgroupMma, Element, kDim, 2>(p, run);
    }
    scan_grid<WarpgroupMma, Element, kDim, 1>(p, run);
  });
}

template <class Element, class Run>
void verify_few_grid(const LinearParams& p, const Run& run) {
  with_dim<64, 128>(p.k_dim, [&]<int kDim> {
    const auto with = [&]<class C> {
      run.template operator()<C>((p.v_dim + C::kColumns - 1) / C::kColumns * p.v_heads, p.batch.num_requests);
    };
    if (p.decay_channels > 1) with.template operator()<VerifyFewKdaConfig<Element, kDim>>();
    else with.template operator()<VerifyFewConfig<Element, kDim>>();
  });
}

}  // namespace warpweave::linear
