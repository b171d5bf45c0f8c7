// A prompt's chunks in one launch: what chunk_prepare leaves in memory for chunk_scan stays in the shared memory of the
// multiprocessor that reads it. GDN of 128 x 128; prompt_forms.h says for which heads.
//
// Of a block's four groups of 128 threads two multiply the state (fused_states.cuh, 64 columns of V each), one makes T and P of the
// chunks ahead of them (fused_prepare.cuh), and of the last one warp brings k and q (TMA) and three find what tokens are multiplied
// by, of which one brings v and stores outputs. What one group leaves for others stands in rings whose entries mbarriers call full and
// empty.
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
  float far_a[64], far_p[64];            // -k_norm 2^(G - R), scale q_norm 2^(G - R)
  float near_a[64], near_p[64];          // beta k_norm, scale q_norm
  float far[3][64];                      // for i in block 1, 2, 3 of 16: k_norm_j 2^(R - G_j)
  float k_norm[64], beta[64];
  float log2_decay[64];                  // G; at first the token's own
  float sums[64];                        // of log2 decays, of each half of the chunk
  float q_squares[64];                   // of q's second half
  float all, unused[3];                  // 2^G of the last token
};

// Of the group that prepares. Blocks of 16 x 16 in half precision, rows of 32 bytes, whose two pieces change places every four rows, so
// that rows of ldmatrix are in different banks: [i (i - 1) / 2 + j] of A, [i (i + 1) / 2 + j] of T, [2 i + j] of Z.
struct FusedScratch {
  static constexpr int kBlock = 512;  // bytes
  alignas(16) unsigned char a[6 * kBlock], t[10 * kBlock];
  union {  // z comes when all blocks of the diagonal are inverted
    alignas(16) float diagonal[8][8][8];
    alignas(16) unsigned char z[4 * kBlock];
  };
};

// The chunk whose outputs stand where v was.
struct FusedOutputs {
  int row, head, tokens;
};

template <class Element_>
struct FusedConfig {
  using Element = Element_;
  static constexpr int kDim = 128, kGroups = 2, kStages = 4, kSlots = 2, kThreads = 512;
  static constexpr int kTileBytes = kDim / 64 * kBlockBytes;
  // A stage: k, q and FusedTokens. A slot: T and P. Beside each slot stands v, whose columns make room for a group's outputs,
  // turned round, once it has read them: so four stages fit.
  static constexpr int kQ = kTileBytes, kStageBytes = 2 * kTileBytes;
  static constexpr int kV = kStages * kStageBytes, kSlotsAt = kV + kSlots * kTileBytes, kSlotBytes = 2 * kBlockBytes;
  static constexpr int kTokens = kSlotsAt + kSlots * kSlotBytes;
  static constexpr int kScratch = kTokens + kStages * static_cast<int>(sizeof(FusedTokens));
  static constexpr int kBarriers = kScratch + static_cast<int>(sizeof(FusedScratch));
  static constexpr int kOutputs = kBarriers + 8 * (4 * kStages + 4 * kSlots);
  static constexpr int kSmemBytes = kOutputs + kSlots * static_cast<int>(sizeof(FusedOutputs));
  // Registers of a thread: of those that multiply, that prepare, and of the others.
  static constexpr int kOfStates = 200, kOfPrepare = 80, kOfOthers = 32;
};
static_assert(sizeof(FusedTokens) % 16 == 0);

// x, of which the compiler knows nothing: what is computed from it within a loop is not kept in registers from round to round.
WW_DEVICE int opaque(int x) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+r"(x));
#endif
  return x;
}

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
        ptx::mbarrier_init(full(i), 2), ptx::mbarrier_init(empty(i), 4 * C::kGroups + 4);
        ptx::mbarrier_init(known(i), 2), ptx::mbarrier_init(known_q(i), 1);
      }
      for (int i = 0; i < C::kSlots; ++i) {
        ptx::mbarrier_init(slot_full(i), 4), ptx::mbarrier_init(slot_empty(i), 4 * C::kGroups);
        ptx::mbarrier_init(v_full(i), 1), ptx::mbarrier_init(out_full(i), 4 * C::kGroups);
      }
      ptx::mbarrier_init_fence();
    }
    __syncthreads();
  }
  u32 WW_DEVICE stage(int i) const { return memory_ + i * C::kStageBytes; }
  u32 WW_DEVICE slot(int i) const { return memory_ + C::kSlotsAt + i * C::kSlotBytes; }
  u32 WW_DEVICE v(int i) const { return memory_ + C::kV + i * C::kTileBytes; }
  u32 WW_DEVICE factors(int i) const { return memory_ + C::kTokens + i * static_cast<int>(sizeof(FusedTokens)); }
  WW_DEVICE FusedTokens& tokens(int i) const { return reinterpret_cast<FusedTokens*>(shared_ + C::kTokens)[i]; }
  WW_DEVICE FusedOutputs& outputs(int i) const { return reinterpret_cast<FusedOutputs*>(shared_ + C::kOutputs)[i]; }
  WW_DEVICE FusedScratch& scratch() const { return *reinterpret_cast<FusedScratch*>(shared_ + C::kScratch); }

  // A stage's k, q, beta and decays are there; its tokens' factors, those of q apart; all has been read. A slot's T and P are
  // there; have been read. v is there; outputs are, in its place.
  WW_DEVICE u32 full(int i) const { return memory_ + C::kBarriers + 8 * i; }
  WW_DEVICE u32 known(int i) const { return full(C::kStages + i); }
  WW_DEVICE u32 empty(int i) const { return full(2 * C::kStages + i); }
  WW_DEVICE u32 slot_full(int i) const { return full(3 * C::kStages + i); }
  WW_DEVICE u32 slot_empty(int i) const { return full(3 * C::kStages + C::kSlots + i); }
  WW_DEVICE u32 v_full(int i) const { return full(3 * C::kStages + 2 * C::kSlots + i); }
  WW_DEVICE u32 out_full(int i) const { return full(3 * C::kStages + 3 * C::kSlots + i); }
  WW_DEVICE u32 known_q(int i) const { return full(3 * C::kStages + 4 * C::kSlots + i); }
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

// What one warp copies: a tile of 64 rows of a head.
template <class C>
WW_DEVICE void copy_head(ptx::u32 to, const LinearAttnRows& rows, int row, int head, int tokens) {
  const auto* const from = static_cast<const unsigned short*>(rows.data) + row * rows.token_stride + head * rows.head_stride;
  copy_tile<C::kDim, 32, 1>(to, from, rows.token_stride, tokens, C::kDim);
}
// The same by TMA: `barrier` waits for so many bytes; a head's.
WW_DEVICE void expect_bytes(ptx::u32 barrier, int bytes) {
#if defined(__CUDA_ARCH__)
  ptx::mbarrier_arrive_expect_tx(barrier, bytes);
#endif
}
template <class C>
WW_DEVICE void load_head(ptx::u32 to, const ScanMap& map, ptx::u32 barrier, int row, int head) {
#if defined(__CUDA_ARCH__)
#pragma unroll
  for (int block = 0; block < C::kDim / 64; ++block) ptx::tma_load_4d(to + block * kBlockBytes, &map, barrier, 64 * block, row, head, 0);
#endif
}
// Back, what copy and load bring: by one thread, until memory has been read; by one warp.
template <class C>
WW_DEVICE void store_head_by_tma(const ScanMap& map, ptx::u32 from, int row, int head) {
#if defined(__CUDA_ARCH__)
#pragma unroll
  for (int block = 0; block < C::kDim / 64; ++block) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];\n" ::"l"(&map),
                 "r"(from + block * kBlockBytes), "r"(64 * block), "r"(row), "r"(head), "r"(0) : "memory");
  }
  ptx::bulk_commit();
  ptx::bulk_wait_read();
#endif
}
template <class C>
WW_DEVICE void store_head(const LinearParams& p, ptx::u32 from, const FusedOutputs& o) {
  constexpr int kPieces = C::kDim / 8;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) % 32; i < o.tokens * kPieces; i += 32) {
    ptx::u32 w[4];
    ptx::load_shared_16(w, from + piece_offset(i / kPieces, i % kPieces));
    auto* const to = static_cast<unsigned short*>(p.out) + (o.row + i / kPieces) * p.out_token_stride + o.head * C::kDim;
    reinterpret_cast<uint4*>(to)[i % kPieces] = make_uint4(w[0], w[1], w[2], w[3]);
  }
}
// Whether a chunk comes by TMA. `maps`: null: all is copied by cp.async.
WW_DEVICE bool by_tma(const ScanMaps* maps, int tokens) { return maps != nullptr && maps->usable && tokens == kChunk; }

// One warp brings k and q, and finds beta and the decays of their tokens, two a lane, ahead of all others.
template <class C>
class FusedLoader {
  using u32 = ptx::u32;

 public:
  WW_DEVICE FusedLoader(const FusedBlock<C>& block, const ScanMaps* maps) : b_(block), p_(block.p), maps_(maps) {}

  WW_DEVICE void run() {
    typename FusedBlock<C>::Stages at;
    for (; b_.more(); b_.next()) {
      if (b_.padded()) continue;
      take_head();
      bring(at);
    }
  }

 private:
  WW_DEVICE void bring(typename FusedBlock<C>::Stages& at) {
    ChunkWalk walk(p_, b_.request);
    ask(walk);
    for (; walk.more(); at.advance()) {
      const int tokens = walk.length(p_), row = b_.first + walk.position, token = opaque(threadIdx.x) % 32;
      float beta[2] = {}, decay[2] = {};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (token + 32 * i < tokens) beta[i] = beta_of(p_, gates_[i]), decay[i] = log2_decay(gates_[i]);
      }
      walk.advance(p_, tokens);
      ask(walk);
      if (at.round > 0) ptx::mbarrier_wait(b_.empty(at.entry), (at.round + 1) & 1);
      const u32 k = b_.stage(at.entry), barrier = b_.full(at.entry);
      if (by_tma(maps_, tokens)) {
        if (token == 0) {
          expect_bytes(barrier, C::kStageBytes);
          load_head<C>(k, maps_->k, barrier, row, k_head_);
          load_head<C>(k + C::kQ, maps_->q, barrier, row, k_head_);
        }
      } else {
        copy_head<C>(k, p_.k, row, k_head_, tokens);
        copy_head<C>(k + C::kQ, p_.q, row, k_head_, tokens);
        ptx::cp_async_commit();
        ptx::cp_async_wait<0>();
        ptx::fence_proxy_async();
        b_.arrive(barrier);
      }
      FusedTokens& t = b_.tokens(at.entry);
#pragma unroll
      for (int i = 0; i < 2; ++i) t.beta[token + 32 * i] = beta[i], t.log2_decay[token + 32 * i] = decay[i];
      b_.arrive(barrier);
    }
  }
  // Of a head: what its decays are made from beside their tokens' part.
  WW_DEVICE void take_head() {
    k_head_ = b_.head / p_.heads_per_k;
    slope_ = bias_ = 0;
    if (!p_.has_gates) return;
    slope_ = -expf(p_.gates.a_log[b_.head]);
    if (p_.gates.dt_bias != nullptr) bias_ = p_.gates.dt_bias[b_.head];
  }
  WW_DEVICE float log2_decay(const GateBits& bits) const {
    if (!p_.has_gates) return bounded_log2(__uint_as_float(bits.a) * kLog2e);
    return bounded_log2(slope_ * softplus_log2(value_of(bits.a, p_.gates.a.dtype) + bias_));
  }
  // Gates of tokens, asked for a chunk ahead.
  WW_DEVICE void ask(const ChunkWalk& walk) {
    if (!walk.more()) return;
    const LinearAttnRows &a = p_.has_gates ? p_.gates.a : p_.g, &b = p_.has_gates ? p_.gates.b : p_.beta;
    const int tokens = walk.length(p_);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = static_cast<int>(threadIdx.x) % 32 + 32 * i;
      const int64_t token = b_.first + walk.position + min(at, tokens - 1);
      gates_[i].a = load_bits(a.data, token * a.token_stride + b_.head * a.head_stride, a.dtype);
      gates_[i].b = load_bits(b.data, token * b.token_stride + b_.head * b.head_stride, b.dtype);
    }
  }

  FusedBlock<C> b_;
  const LinearParams& p_;
  const ScanMaps* const maps_;
  int k_head_ = 0;
  float slope_ = 0, bias_ = 0;
  GateBits gates_[2];
};

// Three warps find what tokens are multiplied by: two k's, a thread a token, then one q's, two tokens a lane. The latter brings v
// and stores the outputs that have been left in its place.
template <class C>
class FusedFactors {
  using E = typename C::Element;
  using u32 = ptx::u32;
  static constexpr int kBarrier = 13;  // of the warps with k

 public:
  WW_DEVICE explicit FusedFactors(const FusedBlock<C>& block)
      : b_(block), p_(block.p), i_(static_cast<int>(threadIdx.x) % 64), lane_(static_cast<int>(threadIdx.x) % 32) {}

  // Of the warp with q.
  WW_DEVICE void run_q(const FusedMaps* maps) {
    typename FusedBlock<C>::Stages at;
    typename FusedBlock<C>::Slots v;
    for (; b_.more(); b_.next()) {
      if (!b_.padded()) put_all_q(at, v, maps);
    }
    for (int place = 0; place < C::kSlots; ++place, v.advance()) empty_place(v, maps);
  }
  WW_DEVICE void run() {
    typename FusedBlock<C>::Stages at;
    for (; b_.more(); b_.next()) {
      if (!b_.padded()) put_all(at);
    }
  }

 private:
  WW_DEVICE void put_all_q(typename FusedBlock<C>::Stages& at, typename FusedBlock<C>::Slots& v, const FusedMaps* maps) {
    for (ChunkWalk walk(p_, b_.request); walk.more(); at.advance(), v.advance()) {
      lane_ = opaque(lane_);
      const int tokens = walk.length(p_), row = b_.first + walk.position;
      walk.advance(p_, tokens);
      ptx::mbarrier_wait(b_.full(at.entry), at.round & 1);
      float squares[2];
      squares_of<8>(squares, b_.stage(at.entry) + C::kQ, lane_);
      ptx::mbarrier_wait(b_.known(at.entry), at.round & 1);
      FusedTokens& t = b_.tokens(at.entry);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = lane_ + 32 * half;
        const float g = t.log2_decay[i], norm = p_.scale * norm_of(squares[half] + t.q_squares[i], i < tokens);
        const float before = half == 0 ? t.log2_decay[15] : t.log2_decay[lane_ < 16 ? 31 : 47];
        t.out[i] = norm * ptx::exp2_approx(g), t.near_p[i] = norm;
        t.far_p[i] = norm * ptx::exp2_approx(fminf(g - before, 0));
      }
      b_.arrive(b_.known_q(at.entry));
      bring_v(v, row, tokens, maps);
    }
  }
  // Stores the outputs that stand in a place of v. At first those of no chunk are on their way to the last place, until the first chunk
  // begins (FusedStates::turn).
  WW_DEVICE void empty_place(const typename FusedBlock<C>::Slots& at, const FusedMaps* maps) const {
    const bool last = at.entry + 1 == C::kSlots;
    if (at.round > 0 || last) ptx::mbarrier_wait(b_.out_full(at.entry), (at.round + (last ? 0 : 1)) & 1);
    if (at.round == 0) return;
    const FusedOutputs outputs = b_.outputs(at.entry);
    if (by_tma(maps, outputs.tokens)) {
      if (lane_ == 0) store_head_by_tma<C>(maps->out, b_.v(at.entry), outputs.row, outputs.head);
    } else {
      store_head<C>(p_, b_.v(at.entry), outputs);
    }
    __syncwarp();
  }
  WW_DEVICE void bring_v(const typename FusedBlock<C>::Slots& at, int row, int tokens, const FusedMaps* maps) const {
    empty_place(at, maps);
    if (lane_ == 0) b_.outputs(at.entry) = {row, b_.head, tokens};
    const u32 to = b_.v(at.entry), barrier = b_.v_full(at.entry);
    if (by_tma(maps, tokens)) {
      if (lane_ == 0) {
        ptx::fence_proxy_async();  // ahead of it other lanes may have read the place
        expect_bytes(barrier, C::kTileBytes);
        load_head<C>(to, maps->v, barrier, row, b_.head);
      }
    } else {
      copy_head<C>(to, p_.v, row, b_.head, tokens);
      ptx::cp_async_commit();
      ptx::cp_async_wait<0>();
      b_.arrive(barrier);
    }
  }
  WW_DEVICE void put_all(typename FusedBlock<C>::Stages& at) {
    for (ChunkWalk walk(p_, b_.request); walk.more(); at.advance()) {
      i_ = opaque(i_), lane_ = i_ % 32;
      const int tokens = walk.length(p_);
      walk.advance(p_, tokens);
      ptx::mbarrier_wait(b_.full(at.entry), at.round & 1);
      FusedTokens& t = b_.tokens(at.entry);
      float squares[1];
      squares_of<8>(squares, b_.stage(at.entry) + C::kQ + kBlockBytes, i_);
      t.q_squares[i_] = squares[0];
      squares_of<16>(squares, b_.stage(at.entry), i_);
      put_factors(t, {t.beta[i_], t.log2_decay[i_], squares[0]}, i_ < tokens);
      b_.arrive(b_.known(at.entry));
    }
  }
  // Sums of squares, of rows 32 apart. Not by tensor cores: short products one after another would wait there for the other groups'
  // long ones each time.
  template <int kPieces, int kRows>
  WW_DEVICE void squares_of(float (&sums)[kRows], u32 tile, int row) const {
    [[maybe_unused]] constexpr int kUnroll = 2 / kRows;
    float even[kRows] = {}, odd[kRows] = {};
#pragma unroll kUnroll
    for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        u32 w[4];
        ptx::load_shared_16(w, tile + piece_offset(row, piece) + 32 * 128 * r);
#pragma unroll
        for (int i = 0; i < 4; ++i) even[r] += E::low(w[i]) * E::low(w[i]), odd[r] += E::high(w[i]) * E::high(w[i]);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) sums[r] = even[r] + odd[r];
  }
  WW_DEVICE float norm_of(float squares, bool there) const {
    if (!there) return 0;
    return p_.l2norm ? rsqrtf(squares + p_.l2norm_eps) : 1.0f;
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
    const float half = t.sums[31], last = half + t.sums[63], ends[3] = {t.sums[15], half, half + t.sums[47]};
    const float g = i_ < 32 ? sum : sum + half;
    const float all = ptx::exp2_approx(g);
    const float k_norm = norm_of(own.squares, there);
    const int block = i_ / 16;
    const float to_end = ptx::exp2_approx(fminf(g - (block == 1 ? ends[0] : block == 2 ? ends[1] : ends[2]), 0));
    t.state[i_] = k_norm * all;
    t.update[i_] = k_norm * ptx::exp2_approx(fminf(last - g, 0));
    t.near_a[i_] = beta * k_norm, t.far_a[i_] = -k_norm * to_end;
#pragma unroll
    for (int later = 0; later < 3; ++later) t.far[later][i_] = later < block ? 0.0f : k_norm * ptx::exp2_approx(fminf(ends[later] - g, 0));
    t.log2_decay[i_] = g, t.k_norm[i_] = k_norm;
    if (i_ == 0) t.all = ptx::exp2_approx(last);
  }

  FusedBlock<C> b_;
  const LinearParams& p_;
  int i_, lane_;
};

}  // namespace warpweave::linear
