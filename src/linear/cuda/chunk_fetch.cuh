// What brings chunks to chunk_scan: a ring of stages in shared memory that threads of their own fill ahead. On Hopper whole chunks
// come by TMA, and mbarriers say which stages are full and which are empty; elsewhere by cp.async, with one barrier a chunk.
#pragma once

#include "linear/cuda/chunk_list.cuh"
#include "linear/cuda/scan_maps.h"
#include "linear/cuda/tile.cuh"

namespace warpweave::linear {

// What a scan goes through and computes: all of a request, one of its Pieces (linear_params.h), or only states at the ends of these
// (chunk_scan_ends.cuh).
enum class ScanPart { whole, piece, ends };

template <class Element_, int kDim_, bool kKda_, template <class> class Mma_, int kGroups_, int kStages_, ScanPart kPart = ScanPart::whole>
struct ScanConfig {
  using Element = Element_;
  using Mma = Mma_<Element_>;
  static constexpr int kDim = kDim_;  // of k, at least
  static constexpr bool kKda = kKda_;
  static constexpr int kGroups = kGroups_, kStages = kStages_;
  static constexpr bool kRing = Mma::kAsync;
  static constexpr bool kPieces = kPart != ScanPart::whole, kEnds = kPart == ScanPart::ends;
  static constexpr bool kWide = kDim > 128;  // registers do not hold S rounded
  // Where a multiprocessor has 64 columns of V, a second group computes their outputs (chunk_scan_roles.cuh). KDA's stages leave no
  // room for what one hands over to the other, but for two of them: no faster.
  static constexpr bool kRoles = kRing && !kWide && kGroups == 1 && !kKda && !kEnds;
  static constexpr int kMultipliers = kRoles ? 2 : kGroups;
  // Threads that copy. Beside two groups they are a third one, which leaves its registers to them.
  static constexpr bool kMovesRegisters = kRing && kMultipliers == 2;
  static constexpr int kCopiers = kMovesRegisters ? 128 : 64;
  static constexpr int kUnroll = kMovesRegisters ? 2 : 8;  // of copies by cp.async
  static constexpr int kThreads = 128 * kMultipliers + kCopiers;
  static constexpr int kTileBytes = kDim / 64 * kBlockBytes;
  // A stage: k (KDA: kg), q (qg), KDA: kd; then V of every group, T, P, and factors (KDA: decay of every channel). For ends alone
  // neither q nor P.
  static constexpr int kKd = (kEnds ? 1 : 2) * kTileBytes, kV = kKd + (kKda ? kTileBytes : 0), kT = kV + kGroups * kBlockBytes,
                       kP = kT + kBlockBytes, kFactors = kP + (kEnds ? 0 : kBlockBytes), kStageBytes = kFactors + 1024;
  static constexpr int kOut = kStages * kStageBytes;  // outputs, turned round; with roles what one group hands over to the other
  static constexpr int kValues = kDim * 128, kPlaceBytes = kValues + kBlockBytes;  // there: S, then V' and, in their place, outputs
  // Of mbarriers. KDA's stand behind the decays of the first stage where there is room: its stages leave no other.
  static constexpr bool kStoresLater = kGroups == 1 && !kRoles;  // a chunk's outputs, beside the next one's first product
  static constexpr int kDecayPieces = kKda ? kDim / 4 : 64;  // of 16 bytes, of the factors
  static constexpr int kEnd = kOut + (kRoles ? 2 * kPlaceBytes : kEnds ? 0 : kGroups * kBlockBytes);
  static constexpr bool kBarriersInStage = kKda && kDecayPieces < 64;
  static constexpr int kFull = kBarriersInStage ? kFactors + 16 * kDecayPieces : kEnd, kEmpty = kFull + kStages * 8;
  static constexpr int kHanded = kEmpty + kStages * 8;  // with roles: of both places, S is there; V' are; all has been read
  static constexpr int kBarrierBytes = kHanded - kFull + (kRoles ? 48 : 0);
  static constexpr int kSmemBytes = kEnd + (kRing && !kBarriersInStage ? kBarrierBytes : 0);
};

// Copies `bytes` (a multiple of 16) of contiguous memory by TMA; `barrier` counts them.
WW_DEVICE void bulk_load(ptx::u32 smem, const void* global, ptx::u32 bytes, ptx::u32 barrier) {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(smem), "l"(global),
               "r"(bytes), "r"(barrier) : "memory");
#endif
}

// 16 bytes to global memory where `stores`, without a branch.
WW_DEVICE void store_global_16_if(const void* to, const ptx::u32 (&w)[4], bool stores) {
#if defined(__CUDA_ARCH__)
  asm volatile("{.reg .pred p; setp.ne.u32 p, %5, 0; @p st.global.v4.u32 [%0], {%1, %2, %3, %4};}\n" ::"l"(to), "r"(w[0]), "r"(w[1]), "r"(w[2]),
               "r"(w[3]), "r"(static_cast<ptx::u32>(stores)) : "memory");
#else
  if (stores) *static_cast<uint4*>(const_cast<void*>(to)) = make_uint4(w[0], w[1], w[2], w[3]);
#endif
}

// Where a ring stands.
template <int kEntries>
struct RingPlace {
  int entry = 0;
  ptx::u32 round = 0;
  WW_DEVICE void advance() {
    if (++entry == kEntries) entry = 0, ++round;
  }
};

// What a block of the scan computes.
struct ScanBlock {
  int request, head, column;  // column: the first one of V, or of the transfer matrix
  int piece = 0;
  bool transfer = false;
};
template <class C>
WW_DEVICE ScanBlock scan_block(const LinearParams& p) {
  constexpr int kColumns = 64 * C::kGroups;
  const int of_v = (p.v_dim + kColumns - 1) / kColumns, splits = of_v + (C::kEnds ? (p.k_dim + kColumns - 1) / kColumns : 0);
  const int split = static_cast<int>(blockIdx.x % splits);
  ScanBlock block = {static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x / splits), kColumns * split};
  if constexpr (C::kPieces) {
    if (split >= of_v) block.transfer = true, block.column = kColumns * (split - of_v);
    const int each = p.work.pieces.most - C::kEnds;  // ends are not asked for of the last piece
    block.request /= each, block.piece = blockIdx.y % each;
  }
  return block;
}
template <class C>
WW_DEVICE Segment segment_of(const LinearParams& p, int piece) {
  if constexpr (C::kPieces) {
    const int tokens = p.work.pieces.chunks * kChunk;
    return {piece, piece * tokens, (piece + 1) * tokens};
  }
  return p.work.segment;
}

template <class C>
class ChunkFetch {
  using u32 = ptx::u32;

 public:
  // `maps`: null: all is copied by cp.async.
  WW_DEVICE ChunkFetch(const LinearParams& p, const ScanMaps* maps, u32 memory, const ScanBlock& block)
      : p_(p), maps_(maps), memory_(memory), request_(block.request), head_(block.head), split_(block.column),
        piece_(block.piece), transfer_(block.transfer), first_(first_row(p.batch, block.request)) {}

  // A stage is full when its chunk is there, and empty when every warp that multiplies has let go of it.
  WW_DEVICE u32 full(int stage) const { return memory_ + C::kFull + 8 * stage; }
  WW_DEVICE u32 empty(int stage) const { return memory_ + C::kEmpty + 8 * stage; }
  WW_DEVICE void make_barriers() const {
    if (threadIdx.x == 0) {
#pragma unroll
      for (int stage = 0; stage < C::kStages; ++stage) ptx::mbarrier_init(full(stage), 1), ptx::mbarrier_init(empty(stage), 4 * C::kMultipliers);
      if constexpr (C::kRoles) {
#pragma unroll
        for (int i = 0; i < 6; ++i) ptx::mbarrier_init(memory_ + C::kHanded + 8 * i, 4);
      }
      ptx::mbarrier_init_fence();
    }
    __syncthreads();
  }
  // Of those that multiply, a whole warp.
  WW_DEVICE void let_go(int stage) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(empty(stage));
  }

  // By those that copy, all chunks in their order: with mbarriers, and with one barrier a chunk.
  WW_DEVICE void fill_ring() const {
    constexpr int kCopied = 14;  // a barrier of those that copy
    ChunkWalk ahead(p_, request_);
    int index = chunk_base(p_, request_) + ahead.skip_to(p_, segment_of<C>(p_, piece_)), stage = 0;
    u32 round = 0;
    const bool first = threadIdx.x == 128 * C::kMultipliers;
    while (ahead.more()) {
      const int tokens = ahead.length(p_);
      const int row = first_ + ahead.position;
      if (round > 0) ptx::mbarrier_wait(empty(stage), (round + 1) & 1);
      if (maps_ != nullptr && maps_->usable && tokens == kChunk) {
        if (first) copy_whole(stage, row, index);
      } else {
        copy(stage, row, tokens, index);
        ptx::cp_async_commit();
        ptx::cp_async_wait<0>();
        ptx::fence_proxy_async();
        ptx::named_barrier_sync(kCopied, C::kCopiers);
        if (first) ptx::mbarrier_arrive(full(stage));
      }
      ++index;
      ahead.advance(p_, tokens);
      if (++stage == C::kStages) stage = 0, ++round;
    }
  }
  // Chunk c goes where chunk c - kStages was, when the barrier of chunk c - kStages + 1 says that it is done with.
  WW_DEVICE void copy_all() const {
    ChunkWalk ahead(p_, request_);
    int index = chunk_base(p_, request_) + ahead.skip_to(p_, segment_of<C>(p_, piece_)), stage = 0, left = 0;
    const auto fetch = [&] {
      if (ahead.more()) {
        const int tokens = ahead.length(p_);
        copy(stage, first_ + ahead.position, tokens, index++);
        ahead.advance(p_, tokens);
        ++left;
      }
      ptx::cp_async_commit();
      stage = stage + 1 == C::kStages ? 0 : stage + 1;
    };
    constexpr int kAhead = C::kStages > 1 ? C::kStages - 1 : 1;
    for (int i = 0; i < kAhead; ++i) fetch();
    for (; left > 0; --left) {
      ptx::cp_async_wait<kAhead - 1>();
      __syncthreads();
      if constexpr (C::kStages == 1) __syncthreads();
      fetch();
    }
  }

 private:
  WW_DEVICE bool transfer() const { return C::kEnds && transfer_; }

  // A chunk of 64 tokens, by one thread.
  WW_DEVICE void copy_whole(int stage, int row, int index) const {
#if defined(__CUDA_ARCH__)
    const u32 to = memory_ + stage * C::kStageBytes, barrier = full(stage);
    constexpr int kBlocks = C::kDim / 64;
    constexpr int kFactorBytes = C::kKda ? 0 : 1024;
    const u32 decay_bytes = C::kKda ? 4 * p_.k_dim : 0;
    const u32 left_out = transfer() ? C::kGroups * kBlockBytes : 0;
    ptx::mbarrier_arrive_expect_tx(barrier, C::kFactors - left_out + kFactorBytes + decay_bytes);
    const int operand_head = C::kKda ? head_ : head_ / p_.heads_per_k;
    const auto tiles = [&](const ScanMap& map, u32 at) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) ptx::tma_load_4d(at + block * kBlockBytes, &map, barrier, 64 * block, row, operand_head, 0);
    };
    tiles(maps_->k, to);
#pragma unroll
    for (int group = 0; group < C::kGroups; ++group) {
      if (transfer()) break;
      ptx::tma_load_4d(to + C::kV + group * kBlockBytes, &maps_->v, barrier, split_ + 64 * group, row, head_, 0);
    }
    if constexpr (!C::kEnds) tiles(maps_->q, to + C::kTileBytes);
    ptx::tma_load_4d(to + C::kT, &maps_->t, barrier, 0, row, head_, 0);
    if constexpr (C::kKda) {
      tiles(maps_->kd, to + C::kKd);
      bulk_load(to + C::kFactors, p_.work.decay + (head_ * p_.work.capacity + index) * p_.k_dim, decay_bytes, barrier);
    } else {
      bulk_load(to + C::kFactors, p_.work.factors + 4 * (head_ * p_.work.rows + row), kFactorBytes, barrier);
    }
    if constexpr (!C::kEnds) ptx::tma_load_4d(to + C::kP, &maps_->p, barrier, 0, row, head_, 0);
#endif
  }
  WW_DEVICE void copy(int stage, int64_t row, int tokens, int index) const {
    const u32 to = memory_ + stage * C::kStageBytes;
    const int thread = threadIdx.x - 128 * C::kMultipliers;
    const int64_t work_row = head_ * p_.work.rows + row;
    if constexpr (C::kKda) {
      const void* const operands[3] = {p_.work.kg, p_.work.qg, p_.work.kd};
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        if (C::kEnds && i == 1) continue;
        const auto* const from = static_cast<const unsigned short*>(operands[i]) + work_row * p_.k_dim;
        copy_tile<C::kDim, C::kCopiers, C::kUnroll>(to + (i == 2 ? C::kKd : i * C::kTileBytes), from, p_.k_dim, tokens, p_.k_dim);
      }
    } else {
      const int k_head = head_ / p_.heads_per_k;
      const LinearAttnRows* const operands[2] = {&p_.k, &p_.q};
#pragma unroll
      for (int i = 0; i < (C::kEnds ? 1 : 2); ++i) {
        const LinearAttnRows& rows = *operands[i];
        const auto* const from = static_cast<const unsigned short*>(rows.data) + row * rows.token_stride + k_head * rows.head_stride;
        copy_tile<C::kDim, C::kCopiers, C::kUnroll>(to + i * C::kTileBytes, from, rows.token_stride, tokens, p_.k_dim);
      }
    }
    const auto* const v = static_cast<const unsigned short*>(p_.v.data) + row * p_.v.token_stride + head_ * p_.v.head_stride + split_;
    if (!transfer()) {
      copy_tile<64 * C::kGroups, C::kCopiers, C::kUnroll>(to + C::kV, v, p_.v.token_stride, tokens, p_.v_dim - split_);
    }
    copy_tile<64, C::kCopiers, C::kUnroll>(to + C::kT, static_cast<const unsigned short*>(p_.work.t) + work_row * kChunk, kChunk, tokens, 64);
    if constexpr (!C::kEnds) {
      copy_tile<64, C::kCopiers, C::kUnroll>(to + C::kP, static_cast<const unsigned short*>(p_.work.p) + work_row * kChunk, kChunk, tokens, 64);
    }
#pragma unroll
    for (int i = thread; i < C::kDecayPieces; i += C::kCopiers) {
      if constexpr (C::kKda) {
        const float* const decay = p_.work.decay + (head_ * p_.work.capacity + index) * p_.k_dim;
        const bool there = i * 4 < p_.k_dim;
        ptx::cp_async_16(to + C::kFactors + i * 16, there ? decay + i * 4 : decay, there ? 16 : 0);
      } else {
        const float* const factors = p_.work.factors + 4 * work_row;
        ptx::cp_async_16(to + C::kFactors + i * 16, i < tokens ? factors + 4 * i : factors, i < tokens ? 16 : 0);
      }
    }
  }

  const LinearParams& p_;
  const ScanMaps* const maps_;
  const u32 memory_;
  const int request_, head_, split_, piece_;
  const bool transfer_;  // then there is no V
  const int first_;
};

}  // namespace warpweave::linear
