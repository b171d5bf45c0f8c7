// A prompt's chunks in one launch: what chunk_prepare leaves in memory for chunk_scan stays in the shared memory of the
// multiprocessor that reads it. GDN of 128 x 128; chosen where requests and heads fill the device (chunked_kernel.cc).
//
// Of a block's four groups of 128 threads two multiply the state (fused_states.cuh, 64 columns of V each), one makes T and P of the
// chunks ahead of them (fused_prepare.cuh), and of the last one warp brings chunks (TMA) and two find norms and decays of their
// tokens. What one group leaves for others stands in rings whose entries mbarriers call full and empty.
//
// Grid: x = p.fused_blocks; a block has pairs of a request and a v head, so many apart. Rings go on from one to the next.
#pragma once

#include <cstddef>

#include "linear/cuda/chunk_fetch.cuh"

namespace warpweave::linear {

// Of a chunk's tokens i; 2^G: the product of decays from the chunk's beginning to a token, that token's included. R: G of the last
// token before i's block of 16, so that 2^(G_i - G_j) = 2^(G_i - R) 2^(R - G_j) for j before that block, no exponent being positive.
struct FusedTokens {
  float state[64], out[64], update[64];  // ChunkWork's factors
  float far_a[64], far_p[64];            // beta k_norm 2^(G - R), scale q_norm 2^(G - R)
  float near_a[64], near_p[64];          // beta k_norm, scale q_norm
  float far[3][64];                      // for i in block 1, 2, 3 of 16: k_norm_j 2^(R - G_j)
  float k_norm[64], beta[64], log2_decay[64];  // k_norm: first the sum of its squares
  float q_norm[64];                      // the sum of its squares
  float sums[64];                        // of log2 decays, of each half of the chunk
  float all, unused[3];                  // 2^G of the last token
};

struct FusedScratch {
  static constexpr int kAStride = 56, kStride = 72, kZStride = 40, kDiagonalStride = 20;  // rows of ldmatrix in different banks
  alignas(16) unsigned short a[48][kAStride];  // rows from 16 on
  alignas(16) unsigned short t[64][kStride];
  alignas(16) float diagonal[4][16][kDiagonalStride];
  alignas(16) unsigned short z[32][kZStride];
};

template <class Element_>
struct FusedConfig {
  using Element = Element_;
  static constexpr int kDim = 128, kGroups = 2, kStages = 3, kSlots = 2, kThreads = 512;
  static constexpr int kTileBytes = kDim / 64 * kBlockBytes;
  // A stage: k, q, v and FusedTokens. A slot: T and P.
  static constexpr int kQ = kTileBytes, kV = 2 * kTileBytes, kTokens = 3 * kTileBytes, kStageBytes = kTokens + 4096;
  static constexpr int kSlotsAt = kStages * kStageBytes, kSlotBytes = 2 * kBlockBytes;
  static constexpr int kOut = kSlotsAt + kSlots * kSlotBytes;  // outputs, turned round
  static constexpr int kScratch = kOut + kGroups * kBlockBytes;
  static constexpr int kBarriers = kScratch + static_cast<int>(sizeof(FusedScratch));
  static constexpr int kSmemBytes = kBarriers + 8 * (3 * kStages + 2 * kSlots);
  // Registers of a thread: of those that multiply, that prepare, and of the others.
  static constexpr int kOfStates = 200, kOfPrepare = 80, kOfOthers = 32;
};
static_assert(sizeof(FusedTokens) <= 4096);

// x, of which the compiler knows nothing: what is computed from it within a loop is not kept in registers from round to round.
WW_DEVICE int opaque(int x) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+r"(x));
#endif
  return x;
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

// What a block's threads share.
template <class C>
class FusedBlock {
  using u32 = ptx::u32;

 public:
  using Stages = RingPlace<C::kStages>;
  using Slots = RingPlace<C::kSlots>;

  WW_DEVICE FusedBlock(const LinearParams& params, char* shared)
      : p(params), pair(static_cast<int>(blockIdx.x)), shared_(shared), memory_(ptx::smem_address(shared)) {
    place();
  }
  WW_DEVICE bool more() const { return pair < p.batch.num_requests * p.v_heads; }
  WW_DEVICE void next() {
    pair += p.fused_blocks;
    place();
  }
  WW_DEVICE bool padded() const { return p.batch.slots[request] < 0; }

  WW_DEVICE void make_barriers() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < C::kStages; ++i) {
        ptx::mbarrier_init(full(i), 1), ptx::mbarrier_init(known(i), 2), ptx::mbarrier_init(empty(i), 4 * C::kGroups + 4);
      }
      for (int i = 0; i < C::kSlots; ++i) ptx::mbarrier_init(slot_full(i), 4), ptx::mbarrier_init(slot_empty(i), 4 * C::kGroups);
      ptx::mbarrier_init_fence();
    }
    __syncthreads();
  }
  u32 WW_DEVICE stage(int i) const { return memory_ + i * C::kStageBytes; }
  u32 WW_DEVICE slot(int i) const { return memory_ + C::kSlotsAt + i * C::kSlotBytes; }
  WW_DEVICE FusedTokens& tokens(int i) const {
    return *reinterpret_cast<FusedTokens*>(shared_ + i * C::kStageBytes + C::kTokens);
  }
  WW_DEVICE FusedScratch& scratch() const { return *reinterpret_cast<FusedScratch*>(shared_ + C::kScratch); }
  WW_DEVICE u32 out_tile(int group) const { return memory_ + C::kOut + group * kBlockBytes; }

  // A stage's k, q and v are there; its tokens' factors; all has been read. A slot's T and P are there; have been read.
  WW_DEVICE u32 full(int i) const { return memory_ + C::kBarriers + 8 * i; }
  WW_DEVICE u32 known(int i) const { return full(C::kStages + i); }
  WW_DEVICE u32 empty(int i) const { return full(2 * C::kStages + i); }
  WW_DEVICE u32 slot_full(int i) const { return full(3 * C::kStages + i); }
  WW_DEVICE u32 slot_empty(int i) const { return full(3 * C::kStages + C::kSlots + i); }
  // Of a whole warp.
  WW_DEVICE void arrive(u32 barrier) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(barrier);
  }

  const LinearParams& p;
  int pair, request = 0, head = 0, first = 0;

 private:
  WW_DEVICE void place() {
    if (!more()) return;
    request = pair / p.v_heads, head = pair % p.v_heads, first = first_row(p.batch, request);
  }

  char* const shared_;
  const u32 memory_;
};

// One warp brings k, q and v.
template <class C>
class FusedLoader {
  using u32 = ptx::u32;

 public:
  // `maps`: null: all is copied by cp.async.
  WW_DEVICE FusedLoader(const FusedBlock<C>& block, const ScanMaps* maps) : b_(block), p_(block.p), maps_(maps) {}

  WW_DEVICE void run() {
    typename FusedBlock<C>::Stages at;
    for (; b_.more(); b_.next()) {
      if (!b_.padded()) bring(at);
    }
  }

 private:
  WW_DEVICE void bring(typename FusedBlock<C>::Stages& at) const {
    for (ChunkWalk walk(p_, b_.request); walk.more(); at.advance()) {
      const int tokens = walk.length(p_), row = b_.first + walk.position;
      if (at.round > 0) ptx::mbarrier_wait(b_.empty(at.entry), (at.round + 1) & 1);
      if (maps_ != nullptr && maps_->usable && tokens == kChunk) {
        if (threadIdx.x % 32 == 0) copy_whole(at.entry, row);
        __syncwarp();
      } else {
        copy(at.entry, row, tokens);
        ptx::cp_async_commit();
        ptx::cp_async_wait<0>();
        ptx::fence_proxy_async();
        b_.arrive(b_.full(at.entry));
      }
      walk.advance(p_, tokens);
    }
  }
  WW_DEVICE void copy_whole(int stage, int row) const {
#if defined(__CUDA_ARCH__)
    const u32 to = b_.stage(stage), barrier = b_.full(stage);
    ptx::mbarrier_arrive_expect_tx(barrier, C::kTokens);
    const auto tile = [&](const ScanMap& map, u32 at, int head) {
#pragma unroll
      for (int block = 0; block < C::kDim / 64; ++block) ptx::tma_load_4d(at + block * kBlockBytes, &map, barrier, 64 * block, row, head, 0);
    };
    tile(maps_->k, to, b_.head / p_.heads_per_k);
    tile(maps_->q, to + C::kQ, b_.head / p_.heads_per_k);
    tile(maps_->v, to + C::kV, b_.head);
#endif
  }
  WW_DEVICE void copy(int stage, int row, int tokens) const {
    const u32 to = b_.stage(stage);
    const auto one = [&](const LinearAttnRows& rows, int head, u32 at) {
      const auto* const from = static_cast<const unsigned short*>(rows.data) + row * rows.token_stride + head * rows.head_stride;
      copy_tile<C::kDim, 32, 1>(at, from, rows.token_stride, tokens, C::kDim);
    };
    one(p_.k, b_.head / p_.heads_per_k, to);
    one(p_.q, b_.head / p_.heads_per_k, to + C::kQ);
    one(p_.v, b_.head, to + C::kV);
  }

  FusedBlock<C> b_;
  const LinearParams& p_;
  const ScanMaps* const maps_;
};

// Three warps find what tokens are multiplied by: the first one the norms of q, the others those of k, and then a thread a token.
template <class C>
class FusedFactors {
  using E = typename C::Element;
  using u32 = ptx::u32;
  static constexpr int kBarrier = 13, kNormsBarrier = 14;  // of those with a token; of all three

 public:
  WW_DEVICE explicit FusedFactors(const FusedBlock<C>& block)
      : b_(block), p_(block.p), i_(static_cast<int>(threadIdx.x) % 64), lane_(static_cast<int>(threadIdx.x) % 32) {}

  // Of the warp with q.
  WW_DEVICE void run_norms() {
    typename FusedBlock<C>::Stages at;
    for (; b_.more(); b_.next()) {
      if (!b_.padded()) put_norms(at);
    }
  }
  WW_DEVICE void run() {
    typename FusedBlock<C>::Stages at;
    for (; b_.more(); b_.next()) {
      if (b_.padded()) continue;
      take_head();
      put_all(at);
    }
  }

 private:
  WW_DEVICE void put_norms(typename FusedBlock<C>::Stages& at) {
    for (ChunkWalk walk(p_, b_.request); walk.more(); at.advance()) {
      lane_ = opaque(lane_);
      ptx::mbarrier_wait(b_.full(at.entry), at.round & 1);
      const u32 stage = b_.stage(at.entry);
#pragma unroll 1
      for (int row = 0; row < 64; row += 16) put_squares(stage + C::kQ, row, b_.tokens(at.entry).q_norm);
      ptx::named_barrier_sync(kNormsBarrier, 96);  // not a chunk ahead of the others
      walk.advance(p_, walk.length(p_));
    }
  }
  WW_DEVICE void put_all(typename FusedBlock<C>::Stages& at) {
    ChunkWalk walk(p_, b_.request);
    ask(walk);
    while (walk.more()) {
      i_ = opaque(i_), lane_ = i_ % 32;
      const int tokens = walk.length(p_);
      const float beta = i_ < tokens ? beta_of(p_, gates_) : 0.0f, decay = i_ < tokens ? log2_decay() : 0.0f;
      walk.advance(p_, tokens);
      ask(walk);
      ptx::mbarrier_wait(b_.full(at.entry), at.round & 1);
      FusedTokens& t = b_.tokens(at.entry);
      const int first = i_ - lane_;
#pragma unroll 1
      for (int row = 0; row < 32; row += 16) put_squares(b_.stage(at.entry), first + row, t.k_norm);
      __syncwarp();
      put_factors(t, {beta, decay, t.k_norm[i_]}, i_ < tokens);
      b_.arrive(b_.known(at.entry));
      at.advance();
    }
  }
  // Of a head: what its decays are made from beside their tokens' part.
  WW_DEVICE void take_head() {
    slope_ = bias_ = 0;
    if (!p_.has_gates) return;
    slope_ = -expf(p_.gates.a_log[b_.head]);
    if (p_.gates.dt_bias != nullptr) bias_ = p_.gates.dt_bias[b_.head];
  }
  WW_DEVICE float log2_decay() const {
    if (!p_.has_gates) return bounded_log2(__uint_as_float(gates_.a) * kLog2e);
    return bounded_log2(slope_ * softplus_log2(value_of(gates_.a, p_.gates.a.dtype) + bias_));
  }
  // A token's gates, asked for a chunk ahead.
  WW_DEVICE void ask(const ChunkWalk& walk) {
    if (!walk.more() || i_ >= walk.length(p_)) return;
    const LinearAttnRows &a = p_.has_gates ? p_.gates.a : p_.g, &b = p_.has_gates ? p_.gates.b : p_.beta;
    const int64_t token = b_.first + walk.position + i_;
    gates_.a = load_bits(a.data, token * a.token_stride + b_.head * a.head_stride, a.dtype);
    gates_.b = load_bits(b.data, token * b.token_stride + b_.head * b.head_stride, b.dtype);
  }
  // Sums of squares of 16 rows: the diagonal of their product with themselves.
  WW_DEVICE void put_squares(u32 tile, int row, float (&to)[64]) const {
    float low[4] = {}, high[4] = {};
    const u32 first = tile + piece_offset(row + lane_ % 16, lane_ / 16);
#pragma unroll
    for (int step = 0; step < C::kDim / 16; ++step) {
      u32 a[4];
      ptx::ldmatrix_x4(a, (first ^ step % 4 * 32) + step / 4 * kBlockBytes);
      E::mma(low, a, a[0], a[2]);
      E::mma(high, a, a[1], a[3]);
    }
    const bool odd = lane_ / 4 % 2 != 0;
    if (lane_ % 4 == lane_ / 8) to[row + lane_ / 4] = odd ? low[1] : low[0], to[row + 8 + lane_ / 4] = odd ? high[3] : high[2];
  }
  struct Token {
    float beta, decay, squares;
  };
  WW_DEVICE void put_factors(FusedTokens& t, const Token& own, bool there) const {
    const float beta = own.beta;
    float sum = own.decay;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const float before = __shfl_up_sync(~0u, sum, step);
      if (lane_ >= step) sum += before;
    }
    t.sums[i_] = sum;
    ptx::named_barrier_sync(kBarrier, 64);
    ptx::named_barrier_sync(kNormsBarrier, 96);
    const float half = t.sums[31], last = half + t.sums[63], ends[3] = {t.sums[15], half, half + t.sums[47]};
    const float g = i_ < 32 ? sum : sum + half;
    const float all = ptx::exp2_approx(g);
    float k_norm = there ? 1.0f : 0.0f, q_norm = there ? p_.scale : 0.0f;
    if (p_.l2norm && there) k_norm = rsqrtf(own.squares + p_.l2norm_eps), q_norm *= rsqrtf(t.q_norm[i_] + p_.l2norm_eps);
    const int block = i_ / 16;
    const float to_end = ptx::exp2_approx(fminf(g - (block == 1 ? ends[0] : block == 2 ? ends[1] : ends[2]), 0));
    t.state[i_] = beta * k_norm * all, t.out[i_] = q_norm * all;
    t.update[i_] = k_norm * ptx::exp2_approx(fminf(last - g, 0));
    t.near_a[i_] = beta * k_norm, t.near_p[i_] = q_norm;
    t.far_a[i_] = beta * k_norm * to_end, t.far_p[i_] = q_norm * to_end;
#pragma unroll
    for (int later = 0; later < 3; ++later) t.far[later][i_] = later < block ? 0.0f : k_norm * ptx::exp2_approx(fminf(ends[later] - g, 0));
    t.beta[i_] = beta, t.log2_decay[i_] = g, t.k_norm[i_] = k_norm;
    if (i_ == 0) t.all = ptx::exp2_approx(last);
  }

  FusedBlock<C> b_;
  const LinearParams& p_;
  int i_, lane_;
  float slope_ = 0, bias_ = 0;
  GateBits gates_;
};

}  // namespace warpweave::linear
