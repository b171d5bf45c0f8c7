// What drafted nodes find, of requests that have 16 of them at most (GDN): chunk_prepare.cuh's and chunk_scan.cuh's arithmetic in one
// launch, without shared operands. Every warp has 16 columns of V: rows of the state, which it reads once, as they come, and rounds.
// What nodes are to each other each warp finds for itself, while its state is on the way.
//
// Of 16 channels of k a lane has four neighbours of every row, in k, q and the state alike: products add over channels, in whichever
// order. Grid: x = v head * splits + split of the columns of V, y = request.
#pragma once

#include "linear/cuda/gates.cuh"

namespace warpweave::linear {

template <class Element_, int kDim_>
struct VerifyFewConfig {
  using Element = Element_;
  static constexpr int kDim = kDim_;  // of k, at least
  static constexpr int kSteps = kDim / 16;
  static constexpr int kWarps = 4, kThreads = 32 * kWarps, kBlocks = 3;
};

// Of a warp.
struct VerifyFewScratch {
  float a[kFewNodes][20], t[kFewNodes][20];
  float log2_decay[kFewNodes], beta[kFewNodes], k_norm[kFewNodes], q_norm[kFewNodes];
};

template <class C>
class VerifyFew {
  using E = typename C::Element;
  using u32 = ptx::u32;
  using Accumulator = float[2][4];

 public:
  WW_DEVICE VerifyFew(const LinearParams& p, VerifyFewScratch* scratch, int request, int head, int split)
      : p_(p), s_(scratch[threadIdx.x / 32]), request_(request), head_(head), lane_(static_cast<int>(threadIdx.x) % 32), row_(lane_ / 4),
        column_(lane_ % 4 * 2), v_((split * C::kWarps + static_cast<int>(threadIdx.x) / 32) * 16), first_(first_row(p.batch, request)),
        nodes_(first_row(p.batch, request + 1) - first_) {}

  WW_DEVICE void run() {
    if (v_ >= p_.v_dim || nodes_ == 0 || nodes_ > kFewNodes) return;
    float o[2][4] = {};
    if (p_.batch.slots[request_] >= 0) multiply(o);
    store(o);
  }

 private:
  WW_DEVICE void multiply(Accumulator& o) {
    u32 state[C::kSteps][4], k[C::kSteps][2][2], q[C::kSteps][2][2], v[2][2];
    load_rows(k, p_.k);
    load_rows(q, p_.q);
    load_values(v);
    load_state(state, initial_slot(p_.batch, request_));
    find_gates();
    put_norms(k, s_.k_norm);
    put_norms(q, s_.q_norm);
    __syncwarp();
    Accumulator a = {}, p = {}, ks = {};
#pragma unroll
    for (int step = 0; step < C::kSteps; ++step) {
      const u32 rows_k[4] = {k[step][0][0], k[step][1][0], k[step][0][1], k[step][1][1]};
      const u32 rows_q[4] = {q[step][0][0], q[step][1][0], q[step][0][1], q[step][1][1]};
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        E::mma(a[n], rows_k, k[step][n][0], k[step][n][1]);
        E::mma(p[n], rows_q, k[step][n][0], k[step][n][1]);
      }
    }
    weigh(a, p);
    invert();
#pragma unroll
    for (int step = 0; step < C::kSteps; ++step) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        E::mma(ks[n], state[step], k[step][n][0], k[step][n][1]);
        E::mma(o[n], state[step], q[step][n][0], q[step][n][1]);
      }
    }
    finish(o, p, ks, v);
  }

  // ---- loads
  // k or q of nodes lane / 4 and + 8: channels 16 step + 4 (lane % 4) ..
  WW_DEVICE void load_rows(u32 (&to)[C::kSteps][2][2], const LinearAttnRows& rows) const {
    const auto* const data = static_cast<const unsigned short*>(rows.data) + first_ * rows.token_stride + head_ / p_.heads_per_k * rows.head_stride;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int node = row_ + 8 * n;
#pragma unroll
      for (int step = 0; step < C::kSteps; ++step) {
        uint2 four = make_uint2(0, 0);
        if (node < nodes_ && 16 * step < p_.k_dim) four = *reinterpret_cast<const uint2*>(data + node * rows.token_stride + 16 * step + 2 * column_);
        to[step][n][0] = four.x, to[step][n][1] = four.y;
      }
    }
  }
  // V of nodes lane / 4 and + 8, this warp's columns 8 half + 2 (lane % 4) ..
  WW_DEVICE void load_values(u32 (&to)[2][2]) const {
    const auto* const data = static_cast<const unsigned short*>(p_.v.data) + first_ * p_.v.token_stride + head_ * p_.v.head_stride + v_ + column_;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int node = row_ + 8 * n;
        to[n][half] = node < nodes_ ? *reinterpret_cast<const u32*>(data + node * p_.v.token_stride + 8 * half) : 0;
      }
    }
  }
  WW_DEVICE void load_state(u32 (&to)[C::kSteps][4], int slot) const {
    const int64_t first = slot * p_.state.slot_stride + head_ * p_.state.head_stride + int64_t{v_ + row_} * p_.k_dim + 2 * column_;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int step = 0; step < C::kSteps; ++step) {
        const int64_t at = first + 8 * row * p_.k_dim + 16 * step;
        float4 four = make_float4(0, 0, 0, 0);
        if (slot >= 0 && 16 * step < p_.k_dim) {
          if (p_.state.dtype == DType::f32) {
            four = *reinterpret_cast<const float4*>(static_cast<const float*>(p_.state.data) + at);
          } else {
            const uint2 pairs = *reinterpret_cast<const uint2*>(static_cast<const unsigned short*>(p_.state.data) + at);
            four = make_float4(ptx::Bf16::low(pairs.x), ptx::Bf16::high(pairs.x), ptx::Bf16::low(pairs.y), ptx::Bf16::high(pairs.y));
          }
        }
        to[step][row] = E::pack(four.x, four.y), to[step][2 + row] = E::pack(four.z, four.w);
      }
    }
  }

  // ---- what nodes are to each other
  // A lane a node: its ancestors, the sum of decays along its path, beta.
  WW_DEVICE void find_gates() {
    const int node = lane_ % kFewNodes;
    const bool there = node < nodes_;
    GateBits bits;
    if (there) bits = load_gates(p_, first_ + node, head_, false);
    int parent = !there ? -1 : p_.batch.parents == nullptr ? node - 1 : p_.batch.parents[first_ + node];
    ancestors_ = parent < 0 ? 0 : 1u << parent;
#pragma unroll
    for (int round = 0; round < 4; ++round) {
      const u32 more = __shfl_sync(~0u, ancestors_, parent < 0 ? node : parent);
      const int next = __shfl_sync(~0u, parent, parent < 0 ? node : parent);
      if (parent >= 0) ancestors_ |= more;
      parent = parent < 0 ? -1 : next;
    }
    const float own = there ? log2_decay_of(p_, bits) : 0.0f;
    float sum = own;
#pragma unroll
    for (int other = 0; other < kFewNodes; ++other) {
      const float decay = __shfl_sync(~0u, own, other);
      sum += ancestors_ >> other & 1 ? decay : 0.0f;
    }
    if (lane_ >= kFewNodes) return;
    s_.log2_decay[node] = sum;
    s_.beta[node] = there ? beta_of(p_, bits) : 0.0f;
  }
  WW_DEVICE void put_norms(const u32 (&rows)[C::kSteps][2][2], float* to) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      float sum = 0;
#pragma unroll
      for (int step = 0; step < C::kSteps; ++step) {
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
          const float low = E::low(rows[step][n][pair]), high = E::high(rows[step][n][pair]);
          sum += low * low + high * high;
        }
      }
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      if (lane_ % 4 == 0) to[row_ + 8 * n] = p_.l2norm ? rsqrtf(sum + p_.l2norm_eps) : 1.0f;
    }
  }
  // A to scratch, P in its place.
  WW_DEVICE void weigh(const Accumulator& a, Accumulator& p) {
    const u32 of_row[2] = {__shfl_sync(~0u, ancestors_, row_), __shfl_sync(~0u, ancestors_, row_ + 8)};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = row_ + e / 2 * 8, column = 8 * n + column_ + e % 2;
        const float by = ptx::exp2_approx(fminf(s_.log2_decay[row] - s_.log2_decay[column], 0)) * s_.k_norm[column];
        const bool before = of_row[e / 2] >> column & 1;
        s_.a[row][column] = before ? a[n][e] * s_.beta[row] * s_.k_norm[row] * by : 0.0f;
        p[n][e] = before || row == column ? p[n][e] * p_.scale * s_.q_norm[row] * by : 0.0f;
      }
    }
    __syncwarp();
  }
  // beta_j (I + A)^-1, a lane a column.
  WW_DEVICE void invert() {
    const int column = lane_ % kFewNodes;
    float x[kFewNodes];
#pragma unroll
    for (int i = 0; i < kFewNodes; ++i) {
      float sum = i == column ? 1.0f : 0.0f;
#pragma unroll
      for (int j = 0; j < i; j += 4) {
        const float4 a = *reinterpret_cast<const float4*>(&s_.a[i][j]);
        sum -= a.x * x[j];
        if (j + 1 < i) sum -= a.y * x[j + 1];
        if (j + 2 < i) sum -= a.z * x[j + 2];
        if (j + 3 < i) sum -= a.w * x[j + 3];
      }
      x[i] = sum;
    }
    if (lane_ < kFewNodes) {
#pragma unroll
      for (int i = 0; i < kFewNodes; ++i) s_.t[i][column] = x[i] * s_.beta[column];
    }
    __syncwarp();
  }

  // ---- outputs, transposed: rows are columns of V
  WW_DEVICE void finish(Accumulator& o, const Accumulator& p, const Accumulator& ks, const u32 (&v)[2][2]) const {
    u32 x[4];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float2 by = node_factors(n, s_.k_norm);
      const float2 out_by = node_factors(n, s_.q_norm);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const u32 pair = ptx::movmatrix_trans(v[n][half]);
        x[2 * n + half] = E::pack(E::low(pair) - by.x * ks[n][2 * half], E::high(pair) - by.y * ks[n][2 * half + 1]);
        o[n][2 * half] *= p_.scale * out_by.x, o[n][2 * half + 1] *= p_.scale * out_by.y;
      }
    }
    Accumulator values = {};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float* const t = s_.t[8 * n + row_];
      E::mma(values[n], x, E::pack(t[column_], t[column_ + 1]), E::pack(t[8 + column_], t[9 + column_]));
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) x[2 * n + half] = E::pack(values[n][2 * half], values[n][2 * half + 1]);
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) E::mma(o[n], x, E::pack(p[0][2 * n], p[0][2 * n + 1]), E::pack(p[1][2 * n], p[1][2 * n + 1]));
  }
  // 2^G of nodes 8 n + 2 (lane % 4) and + 1, times a norm.
  WW_DEVICE float2 node_factors(int n, const float* norm) const {
    const int node = 8 * n + column_;
    return make_float2(norm[node] * ptx::exp2_approx(s_.log2_decay[node]), norm[node + 1] * ptx::exp2_approx(s_.log2_decay[node + 1]));
  }
  WW_DEVICE void store(const Accumulator& o) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (p_.out_dtype == DType::f32) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int node = 8 * n + column_ + e;
            if (node < nodes_) static_cast<float*>(p_.out)[out_at(node) + v_ + 8 * half + row_] = o[n][2 * half + e];
          }
          continue;
        }
        const float low = o[n][2 * half], high = o[n][2 * half + 1];
        const u32 pair = ptx::movmatrix_trans(p_.out_dtype == DType::bf16 ? ptx::Bf16::pack(low, high) : ptx::F16::pack(low, high));
        const int node = 8 * n + row_;
        if (node >= nodes_) continue;
        auto* const to = static_cast<unsigned short*>(p_.out) + out_at(node) + v_ + 8 * half + column_;
        if (p_.out_vectors) {
          *reinterpret_cast<u32*>(to) = pair;
        } else {
          to[0] = static_cast<unsigned short>(pair), to[1] = static_cast<unsigned short>(pair >> 16);
        }
      }
    }
  }
  WW_DEVICE int64_t out_at(int node) const { return (first_ + node) * p_.out_token_stride + int64_t{head_} * p_.v_dim; }

  const LinearParams& p_;
  VerifyFewScratch& s_;
  const int request_, head_, lane_, row_, column_, v_, first_, nodes_;
  u32 ancestors_ = 0;
};

template <class C>
WW_DEVICE void verify_few(const LinearParams& p) {
  __shared__ __align__(16) VerifyFewScratch scratch[C::kWarps];
  const int splits = (p.v_dim + 16 * C::kWarps - 1) / (16 * C::kWarps);
  VerifyFew<C>(p, scratch, blockIdx.y, blockIdx.x / splits, blockIdx.x % splits).run();
}

}  // namespace warpweave::linear
