// What a chunk's tokens are to each other, for every chunk at once (the WY form of Yang, Wang et al. 2024, in the variant whose
// inverse meets V - K S when the state is known): ChunkWork's t, p and factors, or KDA's operands in their place. A draft tree
// is a chunk in which a token follows its ancestors only.
// No exponent is positive, but for KDA's bounded ones (chunk_prepare_kda.cuh).
//
// GDN: block (x, k head) makes chunk x of all v heads of that k head. KDA: block (x, v head), whose members are defined in
// chunk_prepare_kda.cuh and chunk_prepare_far.cuh: launches of either kind include the former.
#pragma once

#include "linear/cuda/chunk_inverse.cuh"
#include "linear/cuda/chunk_list.cuh"
#include "linear/cuda/tile.cuh"

namespace warpweave::linear {

// Whether exponents reach as far as those of f32 do, so that KDA's chunks may have a short way (chunk_prepare_kda.cuh).
template <class Element>
inline constexpr bool kWideExponents = false;
template <>
inline constexpr bool kWideExponents<ptx::Bf16> = true;

template <class Element_, int kDim_, bool kKda_>
struct PrepareConfig {
  using Element = Element_;
  static constexpr int kDim = kDim_;  // of k, at least
  static constexpr bool kKda = kKda_;
  // KDA: of 256 threads those of the first four warps make K K^T, T and what comes of it, the others Q K^T and P.
  static constexpr int kThreads = kKda ? 256 : 128;
  // At once on a multiprocessor, at least: so few of KDA that its long way's registers need not be spilled.
  static constexpr int kBlocksOfKda = kDim > 128 || !kWideExponents<Element> ? 2 : 3, kBlocksOfGdn = kDim > 128 ? 1 : kDim == 64 ? 3 : 4;
  static constexpr int kBlocks = kKda ? kBlocksOfKda : kBlocksOfGdn;
  static constexpr int kTileBytes = kDim / 64 * kBlockBytes;
  // KDA's channels come in parts, so that more than 128 of them leave room for a second block.
  static constexpr int kPart = kDim == 192 ? 64 : kDim < 128 ? kDim : 128, kParts = kDim / kPart;
  static constexpr int kDecayStride = kPart + 8;  // floats
  // Of a part's decays a thread has four channels of a run of tokens.
  static constexpr int kFours = kPart / 4, kRuns = kThreads / kFours, kRunTokens = 64 / kRuns;
  // Tiles of K and Q; KDA: G of a part. When they are done with, the inverse's scratch and P.
  static constexpr int kPStride = 72;
  static constexpr int kScratchBytes = static_cast<int>(sizeof(InverseScratch)) + 64 * kPStride * 2;
  static constexpr int kTilesBytes = 2 * kTileBytes + (kKda ? 64 * kDecayStride * 4 : 0);
  static constexpr int kUnionBytes = (kTilesBytes > kScratchBytes ? kTilesBytes : kScratchBytes) + 15 & ~15;
  struct Tokens {
    ptx::u64 ancestors[64];
    float log2_decay[64], beta[64], k_norm[64], q_norm[64], qk[64];
    float fours[2][kKda ? 64 : 1][4];  // k k and q k of a token with those before it of its four
    int parent[64];
    alignas(8) bool far[8];  // by warps: whether decays of this chunk are too large for multiply_near()
  };
  static constexpr int kSmemBytes = kUnionBytes + static_cast<int>(sizeof(Tokens)) + 1024;
};

template <class C>
class ChunkPrepare {
  using E = typename C::Element;
  using Inverse = BlockInverse<!C::kKda>;
  using u32 = ptx::u32;
  static constexpr int kStepsAtOnce = 2;  // of 16 channels: registers hold no more
  static constexpr int kBarrierOfP = 2;   // of KDA's threads that make P

 public:
  WW_DEVICE ChunkPrepare(const LinearParams& p, char* shared, const Chunk& chunk)
      : p_(p), shared_(shared), tokens_(*reinterpret_cast<typename C::Tokens*>(shared + C::kUnionBytes)), chunk_(chunk),
        k_(ptx::smem_address(shared)), q_(k_ + C::kTileBytes), warp_(block_of(threadIdx.x / 32)), lane_(threadIdx.x % 32),
        row_(16 * warp_ + lane_ / 4), column_(lane_ % 4 * 2) {}

  WW_DEVICE void run(int head) {
    const int k_head = C::kKda ? head / p_.heads_per_k : head;
    __syncthreads();  // what the last chunk left has been read
    copy(k_, p_.k, k_head);
    copy(q_, p_.q, k_head);
    if constexpr (!C::kKda) ptx::cp_async_commit();
    find_ancestors();
    if constexpr (C::kKda) {
      ask_gates(head);
      for (part_ = 0; part_ < C::kParts; ++part_) multiply_part(head);
      finish(head);
    } else {
      ask_gates(head * p_.heads_per_k);
      ptx::cp_async_wait<0>();
      __syncthreads();
      multiply();
      for (int v_head = head * p_.heads_per_k; v_head < (head + 1) * p_.heads_per_k; ++v_head) {
        __syncthreads();
        sum_scalars(v_head);
        write_factors(v_head);
        finish(v_head);
      }
    }
  }

 private:
  // ---- who does what: all threads all of it, or KDA's first four warps what has K K^T and the others what has Q K^T. Those have their
  // rows in the other order, so that each scheduler gets as many products.
  static WW_DEVICE int block_of(u32 warp) { return static_cast<int>(C::kKda ? (warp < 4 ? warp : ~warp) % 4 : warp); }
  static WW_DEVICE bool has_k() { return !C::kKda || threadIdx.x < 128; }

  // ---- loads
  WW_DEVICE void copy(u32 tile, const LinearAttnRows& rows, int head) const {
    const auto* const from = static_cast<const unsigned short*>(rows.data) + chunk_.first * rows.token_stride + head * rows.head_stride;
    copy_tile<C::kDim, C::kThreads>(tile, from, rows.token_stride, chunk_.tokens, p_.k_dim);
  }
  // A token's gates, a thread each; asked for one head ahead.
  WW_DEVICE void ask_gates(int head) {
    const int i = threadIdx.x;
    if (i < chunk_.tokens) gates_ = load_gates(p_, chunk_.first + i, head, C::kKda);
  }
  WW_DEVICE void put_beta() {
    const int i = threadIdx.x;
    if (i < 64) tokens_.beta[i] = i < chunk_.tokens ? beta_of(p_, gates_) : 0.0f;
  }
  WW_DEVICE float* decays() const { return reinterpret_cast<float*>(shared_ + 2 * C::kTileBytes); }
  WW_DEVICE float& decay(int token, int channel) const { return decays()[token * C::kDecayStride + channel]; }

  // ---- which tokens a token follows
  WW_DEVICE bool is_tree() const { return p_.batch.parents != nullptr; }
  WW_DEVICE bool follows(int i, int j) const { return is_tree() ? tokens_.ancestors[i] >> j & 1 : j < i; }
  WW_DEVICE int parent_of(int i) const { return is_tree() && i < chunk_.tokens ? p_.batch.parents[chunk_.first + i] : i - 1; }
  // By doubling: what the parent's ancestors are after n rounds, up to 2^n generations off.
  WW_DEVICE void find_ancestors() {
    if (!is_tree()) return;
    const int i = threadIdx.x;
    int parent = -1;
    ptx::u64 ancestors = 0;
    if (i < 64) {
      parent = i < chunk_.tokens ? parent_of(i) : -1;
      ancestors = parent < 0 ? 0 : ptx::u64{1} << parent;
      tokens_.parent[i] = parent;
      tokens_.ancestors[i] = ancestors;
    }
    for (int round = 0; round < 6; ++round) {
      __syncthreads();
      const ptx::u64 more = parent < 0 ? 0 : tokens_.ancestors[parent];
      const int next = parent < 0 ? -1 : tokens_.parent[parent];
      __syncthreads();
      if (i < 64) {
        tokens_.ancestors[i] = ancestors |= more;
        tokens_.parent[i] = parent = next;
      }
    }
    __syncthreads();
  }

  // ---- GDN: a decay per token
  // G of every token.
  WW_DEVICE void sum_scalars(int head) {
    const int i = threadIdx.x;
    put_beta();
    float sum = 0;
    if (i < 64) {
      sum = i < chunk_.tokens ? log2_decay_of(p_, gates_) : 0.0f;
      tokens_.log2_decay[i] = sum;
    }
    if (head + 1 < p_.v_heads) ask_gates(head + 1);
    if (!is_tree()) {
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const float before = __shfl_up_sync(~0u, sum, step);
        if (lane_ >= step) sum += before;
      }
      if (i < 32) tokens_.log2_decay[i] = sum;
      __syncthreads();
      if (i >= 32 && i < 64) tokens_.log2_decay[i] = sum + tokens_.log2_decay[31];
    } else {
      __syncthreads();
      const float own = sum;
      if (i < 64) {
        for (int j = 0; j < i; ++j) sum += follows(i, j) ? tokens_.log2_decay[j] : 0.0f;
      }
      __syncthreads();
      if (i < 64) tokens_.log2_decay[i] = i < chunk_.tokens ? sum : own;
    }
    __syncthreads();
  }
  WW_DEVICE void write_factors(int head) const {
    const int i = threadIdx.x;
    if (i >= chunk_.tokens) return;
    const float sum = tokens_.log2_decay[i], last = tokens_.log2_decay[chunk_.tokens - 1];
    const float decay = ptx::exp2_approx(sum);
    reinterpret_cast<float4*>(p_.work.factors)[head * p_.work.rows + chunk_.first + i] =
        make_float4(tokens_.k_norm[i] * decay, p_.scale * tokens_.q_norm[i] * decay,
                    tokens_.k_norm[i] * ptx::exp2_approx(fminf(last - sum, 0)), ptx::exp2_approx(last));
  }
  // K K^T and Q K^T of this warp's rows, as far as they are not above the diagonal; norms.
  WW_DEVICE void multiply() {
    float kk_sum[2] = {}, qq_sum[2] = {};
    clear();
#pragma unroll
    for (int step = 0; step < C::kDim / 16; ++step) {
      u32 k[4], q[4];
      load_left(k, k_, 16 * warp_, step);
      load_left(q, q_, 16 * warp_, step);
      add_squares(kk_sum, k, k);
      add_squares(qq_sum, q, q);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        if (n > warp_) continue;
        u32 b[4];
        load_right_rows(b, k_, 16 * n, step);
        add(kk_, 2 * n, k, b[0], b[1]);
        add(kk_, 2 * n + 1, k, b[2], b[3]);
        add(qk_, 2 * n, q, b[0], b[1]);
        add(qk_, 2 * n + 1, q, b[2], b[3]);
      }
    }
    put_norms(tokens_.k_norm, kk_sum);
    put_norms(tokens_.q_norm, qq_sum);
  }
  WW_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < 32; ++i) kk_[i] = 0, qk_[i] = 0;
  }
  static WW_DEVICE void add(float (&d)[32], int tile, const u32 (&a)[4], u32 b0, u32 b1) {
    E::mma(*reinterpret_cast<float(*)[4]>(&d[4 * tile]), a, b0, b1);
  }
  // Of rows lane / 4 and lane / 4 + 8, this lane's columns.
  static WW_DEVICE void add_squares(float (&sum)[2], const u32 (&a)[4], const u32 (&b)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i % 2] += E::low(a[i]) * E::low(b[i]) + E::high(a[i]) * E::high(b[i]);
  }
  static WW_DEVICE float row_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
  }
  WW_DEVICE void put_norms(float* to, const float (&squares)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float sum = row_sum(squares[i]);
      if (column_ == 0) to[row_ + 8 * i] = p_.l2norm ? rsqrtf(sum + p_.l2norm_eps) : 1.0f;
    }
  }
  // ---- KDA: a decay per token and channel (chunk_prepare_kda.cuh)
  // Steps of 16 channels before this part's.
  WW_DEVICE int first_step() const { return C::kParts == 1 ? 0 : part_ * (C::kPart / 16); }
  // G of this thread's channels: before its run of tokens, of the chunk's middle token and of its last one.
  struct Sums {
    float before[4], middle[4], end[4];
  };
  static WW_DEVICE int run_token() { return static_cast<int>(threadIdx.x / C::kFours * C::kRunTokens); }
  static WW_DEVICE int run_channel() { return static_cast<int>(threadIdx.x % C::kFours * 4); }
  WW_DEVICE const LinearAttnRows& decay_rows() const { return p_.has_gates ? p_.gates.a : p_.g; }
  WW_DEVICE bool copies_decays() const;
  WW_DEVICE void copy_decays(int head) const;
  WW_DEVICE void start_sums(int head) const;
  WW_DEVICE void finish_sums(Sums& sums);
  WW_DEVICE void sum_tree(Sums& sums);
  WW_DEVICE bool is_near() const;
  WW_DEVICE u32 near_address(u32 row, u32 piece) const;
  template <bool kNear>
  WW_DEVICE void write_operands(const Sums& sums, int head) const;
  static WW_DEVICE void take_four(float (&to)[4], const float* from);
  static WW_DEVICE void put_four(float* to, const float (&x)[4]);
  static WW_DEVICE void put_four(u32 to, const float (&x)[4]);
  static WW_DEVICE void store_four(void* to, int64_t at, const float (&x)[4]);
  WW_DEVICE void multiply_part(int head);
  WW_DEVICE void norms();
  WW_DEVICE void multiply_near();
  struct Scales {
    float2 low[2], high[2];  // of columns 2 (lane % 4) and 8 further on, of the two rows
  };
  WW_DEVICE Scales scales(const int (&row)[2], const int (&reference)[2], const bool (&later)[2], int step) const;
  static WW_DEVICE u32 scaled(u32 pair, float2 by);
  static WW_DEVICE void scale(u32 (&r)[4], const Scales& s);
  WW_DEVICE u32 own_tile() const { return has_k() ? k_ : q_; }
  WW_DEVICE void turn_to_others(int first_step);
  template <int kBlock, bool kNext>
  WW_DEVICE void multiply_block(int first_step);
  WW_DEVICE void multiply_others();
  WW_DEVICE void multiply_fours();
  WW_DEVICE void take_fours();
  WW_DEVICE void clear_cross();
  template <int kHalf>
  WW_DEVICE void multiply_within();
  WW_DEVICE void take_own();
  WW_DEVICE void multiply_far();
  WW_DEVICE float value(u32 tile, int row, int channel) const;
  WW_DEVICE void multiply_pairs();
  WW_DEVICE void finish_kda(Inverse& inverse, int head) const;
  template <bool kOfK, bool kTree>
  WW_DEVICE void put_products(Inverse& inverse) const;

  // ---- A and P to what is kept
  // Where they are made: the tiles, or the last head's scratch, are done with, since run() and finish() wait for all before.
  WW_DEVICE InverseScratch& scratch() const { return *reinterpret_cast<InverseScratch*>(shared_); }
  WW_DEVICE unsigned short* p_rows() const { return reinterpret_cast<unsigned short*>(shared_ + sizeof(InverseScratch)); }
  WW_DEVICE void finish(int head) {
    Inverse inverse(scratch());
    if constexpr (C::kKda) return finish_kda(inverse, head);
    if (is_tree()) put_elements<true>(inverse, p_rows());
    else put_elements<false>(inverse, p_rows());
    inverse.run();
    for (int i = threadIdx.x; i < chunk_.tokens * 8; i += C::kThreads) {
      const int row = i / 8, piece = i % 8;
      const int64_t at = (head * p_.work.rows + chunk_.first + row) * kChunk + 8 * piece;
      store_p(row, piece, at);
      const float4* const beta = reinterpret_cast<const float4*>(&tokens_.beta[8 * piece]);
      store_t(row, piece, at, beta[0], beta[1]);
    }
  }
  WW_DEVICE void store_p(int row, int piece, int64_t at) const {
    u32 w[4];
    ptx::load_shared_16(w, ptx::smem_address(&p_rows()[row * C::kPStride + 8 * piece]));
    store_16(p_.work.p, at, w);
  }
  // low, high: beta of the piece's tokens.
  WW_DEVICE void store_t(int row, int piece, int64_t at, const float4& low, const float4& high) const {
    u32 w[4];
    if (piece / 2 > row / 16) {
      w[0] = w[1] = w[2] = w[3] = 0;
    } else {
      ptx::load_shared_16(w, ptx::smem_address(&scratch().t[row][8 * piece]));
      w[0] = E::pack(ptx::F16::low(w[0]) * low.x, ptx::F16::high(w[0]) * low.y);
      w[1] = E::pack(ptx::F16::low(w[1]) * low.z, ptx::F16::high(w[1]) * low.w);
      w[2] = E::pack(ptx::F16::low(w[2]) * high.x, ptx::F16::high(w[2]) * high.y);
      w[3] = E::pack(ptx::F16::low(w[3]) * high.z, ptx::F16::high(w[3]) * high.w);
    }
    store_16(p_.work.t, at, w);
  }
  // Elements of A, to be inverted, and of P. What is the same for a row or a column is read once.
  template <bool kTree>
  WW_DEVICE void put_elements(Inverse& inverse, unsigned short* p) const {
    float left[2], right[2], of_row[2];
    ptx::u64 ancestors[2] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = row_ + 8 * i;
      left[i] = tokens_.beta[row] * tokens_.k_norm[row], right[i] = p_.scale * tokens_.q_norm[row];
      of_row[i] = tokens_.log2_decay[row];
      if constexpr (kTree) ancestors[i] = tokens_.ancestors[row];
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int column = 8 * n + column_;
      u32* const to = reinterpret_cast<u32*>(&p[row_ * C::kPStride + column]);
      if (n / 2 > warp_) {
        to[0] = to[4 * C::kPStride] = 0;
        continue;
      }
      const float2 norm = *reinterpret_cast<const float2*>(&tokens_.k_norm[column]);
      const float2 decay = *reinterpret_cast<const float2*>(&tokens_.log2_decay[column]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = row_ + 8 * i, at = 4 * n + 2 * i;
        float2 by = norm;
        by.x *= ptx::exp2_approx(fminf(of_row[i] - decay.x, 0)), by.y *= ptx::exp2_approx(fminf(of_row[i] - decay.y, 0));
        float2 a = make_float2(kk_[at] * (left[i] * by.x), kk_[at + 1] * (left[i] * by.y));
        float2 q = make_float2(qk_[at] * (right[i] * by.x), qk_[at + 1] * (right[i] * by.y));
        if (kTree || n / 2 == warp_) {
          const bool first = kTree ? ancestors[i] >> column & 1 : column < row;
          const bool second = kTree ? ancestors[i] >> (column + 1) & 1 : column + 1 < row;
          a.x = first ? a.x : 0.0f, a.y = second ? a.y : 0.0f;
          q.x = first || column == row ? q.x : 0.0f, q.y = second || column + 1 == row ? q.y : 0.0f;
        }
        to[i * 4 * C::kPStride] = E::pack(q.x, q.y);
        inverse.put_pair(n, i, a.x, a.y);
      }
    }
  }
  static WW_DEVICE void store_16(void* to, int64_t at, const u32 (&w)[4]) {
    *reinterpret_cast<uint4*>(static_cast<unsigned short*>(to) + at) = make_uint4(w[0], w[1], w[2], w[3]);
  }

  const LinearParams& p_;
  char* const shared_;
  typename C::Tokens& tokens_;
  const Chunk chunk_;
  const u32 k_, q_;
  const int warp_, lane_, row_, column_;  // row_, column_: the first ones of this thread in accumulators
  GateBits gates_;
  float kk_[32], qk_[32];  // KDA: kk_ is the one of both that is this thread's
  float cross_[2][4];
  int part_ = 0;
  u32 left_[kStepsAtOnce][4];
};

template <class C>
WW_DEVICE void chunk_prepare(const LinearParams& p, char* shared) {
  const Segment& segment = p.work.segment;
  const bool in_segments = segment.index >= 0;
  if (segment.index == 0 && blockIdx.x == 0 && blockIdx.y == 0) {
    for (int i = threadIdx.x; i < kMostScanBlocks; i += C::kThreads) p.work.handed_over[i] = 0;
  }
  const int base = in_segments ? chunk_from(p, segment.begin) : 0;
  for (int index = base + blockIdx.x;; index += p.work.grid_chunks) {
    Chunk chunk;
    const bool found = find_chunk(p, index, chunk);
    if (found && (!in_segments || chunk.first - first_row(p.batch, 0) < segment.end)) {
      if (chunk.tokens >= p.least_nodes) ChunkPrepare<C>(p, shared, chunk).run(blockIdx.y);  // a draft is one chunk
    } else if (found || p.work.list == nullptr || index >= p.work.list_first[p.batch.num_requests]) {
      return;
    }
    if (p.work.list == nullptr) return;
  }
}

}  // namespace warpweave::linear
