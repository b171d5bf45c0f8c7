// What drafted nodes find, of requests that have 16 of them at most (GDN; KDA: verify_few_kda.cuh): chunk_prepare.cuh's and
// chunk_scan.cuh's arithmetic in one launch, without shared operands. Every warp has 16 columns of V: rows of the state, which it reads
// once, as they come, and rounds. What nodes are to each other each warp finds for itself, while its state is on the way.
//
// Of 16 channels of k a lane has four neighbours of every row, in k, q and the state alike: products add over channels, in whichever
// order. Grid: x = v head * splits + split of the columns of V, y = request.
#pragma once

#include "linear/cuda/gates.cuh"

namespace warpweave::linear {

template <class Element_, int kDim_>
struct VerifyFewConfig {
  using Element = Element_;
  static constexpr bool kKda = false;
  static constexpr int kDim = kDim_;  // of k, at least
  static constexpr int kSteps = kDim / 16;
  static constexpr int kWarps = 4, kThreads = 32 * kWarps, kBlocks = 3;
  static constexpr int kColumns = 16 * kWarps;  // of V
};

// A number for every pair of nodes; rows of 20, so that rows read together are in different shared-memory banks.
using NodeMatrix = float[kFewNodes][20];

// Of a warp.
struct VerifyFewScratch {
  NodeMatrix a, t;
  float log2_decay[kFewNodes], beta[kFewNodes], k_norm[kFewNodes], q_norm[kFewNodes];
};

// A warp's 16 columns of V, and what both kinds do with them.
template <class E>
class VerifyFewWarp {
 protected:
  using u32 = ptx::u32;
  using Accumulator = float[2][4];

  WW_DEVICE VerifyFewWarp(const LinearParams& p, int request, int head, int first_v)
      : p_(p), request_(request), head_(head), lane_(static_cast<int>(threadIdx.x) % 32), row_(lane_ / 4), column_(lane_ % 4 * 2),
        v_(first_v + static_cast<int>(threadIdx.x) / 32 * 16), first_(first_row(p.batch, request)),
        nodes_(first_row(p.batch, request + 1) - first_) {}

  WW_DEVICE bool takes() const { return nodes_ > 0 && nodes_ <= kFewNodes; }
  WW_DEVICE int parent_of(int node) const {
    return node >= nodes_ ? -1 : p_.batch.parents == nullptr ? node - 1 : p_.batch.parents[first_ + node];
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
  // Of node lane % 16, as bits.
  WW_DEVICE u32 find_ancestors() const {
    const int node = lane_ % kFewNodes;
    int parent = parent_of(node);
    u32 ancestors = parent < 0 ? 0 : 1u << parent;
#pragma unroll
    for (int round = 0; round < 4; ++round) {
      const u32 more = __shfl_sync(~0u, ancestors, parent < 0 ? node : parent);
      const int next = __shfl_sync(~0u, parent, parent < 0 ? node : parent);
      if (parent >= 0) ancestors |= more;
      parent = parent < 0 ? -1 : next;
    }
    return ancestors;
  }
  // t = beta_j (I + A)^-1, a lane a column.
  WW_DEVICE void invert(const NodeMatrix& a, const float* beta, NodeMatrix& t) const {
    const int column = lane_ % kFewNodes;
    float x[kFewNodes];
#pragma unroll
    for (int i = 0; i < kFewNodes; ++i) {
      float sum = i == column ? 1.0f : 0.0f;
#pragma unroll
      for (int j = 0; j < i; j += 4) {
        const float4 four = *reinterpret_cast<const float4*>(&a[i][j]);
        sum -= four.x * x[j];
        if (j + 1 < i) sum -= four.y * x[j + 1];
        if (j + 2 < i) sum -= four.z * x[j + 2];
        if (j + 3 < i) sum -= four.w * x[j + 3];
      }
      x[i] = sum;
    }
    if (lane_ < kFewNodes) {
#pragma unroll
      for (int i = 0; i < kFewNodes; ++i) t[i][column] = x[i] * beta[column];
    }
  }
  // Outputs, transposed: rows are columns of V. o comes as what the state alone gives, ks: what it gives for k; `p`: P as fragments.
  WW_DEVICE void add_values(Accumulator& o, const Accumulator& ks, const u32 (&v)[2][2], const NodeMatrix& t, const u32 (&p)[2][2]) const {
    u32 x[4];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const u32 pair = ptx::movmatrix_trans(v[n][half]);
        x[2 * n + half] = E::pack(E::low(pair) - ks[n][2 * half], E::high(pair) - ks[n][2 * half + 1]);
      }
    }
    Accumulator values = {};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      u32 fragment[2];
      load_fragment(fragment, t[8 * n + row_]);
      E::mma(values[n], x, fragment[0], fragment[1]);
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) x[2 * n + half] = E::pack(values[n][2 * half], values[n][2 * half + 1]);
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) E::mma(o[n], x, p[n][0], p[n][1]);
  }
  // Of a row of a NodeMatrix.
  WW_DEVICE void load_fragment(u32 (&to)[2], const float* row) const {
    to[0] = E::pack(row[column_], row[column_ + 1]), to[1] = E::pack(row[8 + column_], row[9 + column_]);
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
  const int request_, head_, lane_, row_, column_, v_, first_, nodes_;
};

template <class C>
class VerifyFew : public VerifyFewWarp<typename C::Element> {
  using E = typename C::Element;
  using Base = VerifyFewWarp<E>;
  using u32 = ptx::u32;
  using Accumulator = typename Base::Accumulator;
  using Base::column_, Base::first_, Base::head_, Base::lane_, Base::nodes_, Base::p_, Base::request_, Base::row_, Base::v_;

 public:
  WW_DEVICE VerifyFew(const LinearParams& p, VerifyFewScratch* scratch, int request, int head, int split)
      : Base(p, request, head, split * C::kColumns), s_(scratch[threadIdx.x / 32]) {}

  WW_DEVICE void run() {
    if (v_ >= p_.v_dim || !this->takes()) return;
    Accumulator o = {};
    if (p_.batch.slots[request_] >= 0) multiply(o);
    this->store(o);
  }

 private:
  WW_DEVICE void multiply(Accumulator& o) {
    u32 state[C::kSteps][4], k[C::kSteps][2][2], q[C::kSteps][2][2], v[2][2];
    load_rows(k, p_.k);
    load_rows(q, p_.q);
    this->load_values(v);
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
    this->invert(s_.a, s_.beta, s_.t);
    __syncwarp();
#pragma unroll
    for (int step = 0; step < C::kSteps; ++step) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        E::mma(ks[n], state[step], k[step][n][0], k[step][n][1]);
        E::mma(o[n], state[step], q[step][n][0], q[step][n][1]);
      }
    }
    weigh_nodes(ks, s_.k_norm, 1);
    weigh_nodes(o, s_.q_norm, p_.scale);
    const u32 fragments[2][2] = {{E::pack(p[0][0], p[0][1]), E::pack(p[1][0], p[1][1])}, {E::pack(p[0][2], p[0][3]), E::pack(p[1][2], p[1][3])}};
    this->add_values(o, ks, v, s_.t, fragments);
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
    ancestors_ = this->find_ancestors();
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
  // By 2^G of nodes, their norms and `by`.
  WW_DEVICE void weigh_nodes(Accumulator& of, const float* norm, float by) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int node = 8 * n + column_ + e % 2;
        of[n][e] *= by * norm[node] * ptx::exp2_approx(s_.log2_decay[node]);
      }
    }
  }

  VerifyFewScratch& s_;
  u32 ancestors_ = 0;
};

}  // namespace warpweave::linear
