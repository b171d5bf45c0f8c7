// verify_few.cuh for KDA, whose decays differ from channel to channel. What nodes are to each other is then too much for every warp: a
// block has 128 columns of V and finds it once, in f32, a thread a pair of nodes, no exponent above 0, while the state comes to shared
// memory. Each warp waits for its own rows of it alone.
// Grid: x = v head * splits + split of the columns of V, y = request.
#pragma once

#include "linear/cuda/verify_few.cuh"

namespace warpweave::linear {

template <class Element_, int kDim_>
struct VerifyFewKdaConfig {
  using Element = Element_;
  static constexpr bool kKda = true;
  static constexpr int kDim = kDim_;  // of k, at least
  static constexpr int kSteps = kDim / 16;
  static constexpr int kWarps = 8, kThreads = 32 * kWarps, kBlocks = 2;
  static constexpr int kColumns = 16 * kWarps;  // of V
  // Of a block: a row of nodes in f32 and in 16 bits, so long that the rows read at a time are in different banks.
  static constexpr int kRow = kDim + 4, kHalfRow = kDim + 16;
};

template <class C>
struct VerifyFewKdaShared {
  NodeMatrix a, t, p;
  float beta[kFewNodes];
  ptx::u32 ancestors[kFewNodes];
  float log2_decay[kFewNodes][C::kRow];  // of the product along a node's path
  float kq[2 * kFewNodes][C::kRow];  // k, then q
  alignas(16) ptx::u32 kg[kFewNodes][C::kHalfRow / 2], qg[kFewNodes][C::kHalfRow / 2];  // k 2^G, scale q 2^G
};

template <class C>
constexpr int verify_few_shared_bytes() {
  if constexpr (C::kKda) return static_cast<int>(sizeof(VerifyFewKdaShared<C>)) + C::kColumns * C::kDim * 4;
  else return C::kWarps * static_cast<int>(sizeof(VerifyFewScratch));
}

template <class C>
class VerifyFewKda : public VerifyFewWarp<typename C::Element> {
  using E = typename C::Element;
  using Base = VerifyFewWarp<E>;
  using u32 = ptx::u32;
  using Shared = VerifyFewKdaShared<C>;
  using Accumulator = typename Base::Accumulator;
  using Base::column_, Base::first_, Base::head_, Base::lane_, Base::nodes_, Base::p_, Base::request_, Base::row_, Base::v_;

 public:
  WW_DEVICE VerifyFewKda(const LinearParams& p, char* shared, int request, int head, int split)
      : Base(p, request, head, split * C::kColumns), s_(*reinterpret_cast<Shared*>(shared)), warp_(static_cast<int>(threadIdx.x) / 32),
        state_(ptx::smem_address(shared) + static_cast<int>(sizeof(Shared)) + warp_ * (16 * C::kDim * 4)),
        slot_(p.batch.slots[request]), from_(initial_slot(p.batch, request)), element_bytes_(p.state.dtype == DType::f32 ? 4 : 2) {}

  WW_DEVICE void run() {
    if (!this->takes()) return;
    const bool own = v_ < p_.v_dim;
    Accumulator o = {};
    if (slot_ >= 0) multiply(o, own);
    if (own) this->store(o);
  }

 private:
  static constexpr int kWarpsOfDecays = C::kDim / 32;

  WW_DEVICE void multiply(Accumulator& o, bool own) {
    u32 v[2][2] = {};
    if (own) {
      element_bytes_ == 4 ? ask_state<4>() : ask_state<2>();
      this->load_values(v);
    }
    if (warp_ < kWarpsOfDecays) put_decays(static_cast<int>(threadIdx.x));
    else put_rows(warp_ - kWarpsOfDecays);
    __syncthreads();
    relate(static_cast<int>(threadIdx.x) / kFewNodes, static_cast<int>(threadIdx.x) % kFewNodes);
    __syncthreads();
    if (warp_ == 0) this->invert(s_.a, s_.beta, s_.t);
    Accumulator ks = {};
    if (own) multiply_state(ks, o);
    __syncthreads();
    if (!own) return;
    u32 p[2][2];
#pragma unroll
    for (int n = 0; n < 2; ++n) this->load_fragment(p[n], s_.p[8 * n + row_]);
    this->add_values(o, ks, v, s_.t, p);
  }

  // ---- this warp's rows of the state, 16 bytes a copy
  // Which copy of a row: what eight lanes read at a time is in different banks.
  WW_DEVICE u32 piece_at(int row, int piece) const {
    return state_ + row * (C::kDim * element_bytes_) + (element_bytes_ == 4 ? piece ^ ((row & 1) << 2) : piece ^ ((row & 3) << 1)) * 16;
  }
  template <int kElementBytes>
  WW_DEVICE void ask_state() const {
    constexpr int kPieces = C::kDim * kElementBytes / 16;
    const int there = from_ < 0 ? 0 : p_.k_dim * kElementBytes / 16;
    const auto* const data = static_cast<const char*>(p_.state.data);
    const char* const first = data + ((from_ < 0 ? 0 : from_) * p_.state.slot_stride + head_ * p_.state.head_stride + int64_t{v_} * p_.k_dim) * kElementBytes;
#pragma unroll 4
    for (int i = lane_; i < 16 * kPieces; i += 32) {
      const int row = i / kPieces, piece = i % kPieces;
      const bool taken = piece < there;
      ptx::cp_async_16(piece_at(row, piece), taken ? first + row * p_.k_dim * kElementBytes + piece * 16 : data, taken ? 16 : 0);
    }
    ptx::cp_async_commit();
  }
  WW_DEVICE void multiply_state(Accumulator& ks, Accumulator& o) const {
    ptx::cp_async_wait<0>();
    __syncwarp();
#pragma unroll
    for (int step = 0; step < C::kSteps; ++step) {
      u32 state[4];
#pragma unroll
      for (int half = 0; half < 2; ++half) load_state(state[half], state[2 + half], row_ + 8 * half, 16 * step + 2 * column_);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const uint2 k = *reinterpret_cast<const uint2*>(&s_.kg[8 * n + row_][8 * step + column_]);
        const uint2 q = *reinterpret_cast<const uint2*>(&s_.qg[8 * n + row_][8 * step + column_]);
        E::mma(ks[n], state, k.x, k.y);
        E::mma(o[n], state, q.x, q.y);
      }
    }
  }
  // Four neighbours, rounded.
  WW_DEVICE void load_state(u32& low, u32& high, int row, int channel) const {
    if (element_bytes_ == 4) {
      u32 w[4];
      ptx::load_shared_16(w, piece_at(row, channel / 4));
      low = E::pack(__uint_as_float(w[0]), __uint_as_float(w[1])), high = E::pack(__uint_as_float(w[2]), __uint_as_float(w[3]));
    } else {
      const uint2 w = ptx::load_shared_8(piece_at(row, channel / 8) + channel % 8 * 2);
      low = E::pack(ptx::Bf16::low(w.x), ptx::Bf16::high(w.x)), high = E::pack(ptx::Bf16::low(w.y), ptx::Bf16::high(w.y));
    }
  }

  // ---- what nodes are to each other
  // A thread a channel: decays along the paths of all nodes.
  WW_DEVICE void put_decays(int channel) const {
    const LinearAttnRows& rows = p_.has_gates ? p_.gates.a : p_.g;
    const bool there = channel < p_.k_dim;
    u32 bits[kFewNodes];
    GateBits gate;
#pragma unroll
    for (int node = 0; node < kFewNodes; ++node) {
      bits[node] = 0;
      if (there && node < nodes_) bits[node] = load_bits(rows.data, (first_ + node) * rows.token_stride + head_ * rows.head_stride + channel, rows.dtype);
    }
    if (p_.has_gates) {
      gate.slope = p_.gates.a_log[head_];
      if (there && p_.gates.dt_bias != nullptr) gate.bias = p_.gates.dt_bias[head_ * p_.k_dim + channel];
    }
    const u32 ancestors = this->find_ancestors();
    float own[kFewNodes];
#pragma unroll
    for (int node = 0; node < kFewNodes; ++node) {
      gate.a = bits[node];
      own[node] = there && node < nodes_ ? log2_decay_of(p_, gate) : 0.0f;
    }
    // No sum waits for a parent's.
#pragma unroll
    for (int node = 0; node < kFewNodes; ++node) {
      const u32 before = __shfl_sync(~0u, ancestors, node);
      float sum = own[node];
#pragma unroll
      for (int other = 0; other < node; ++other) sum = fmaf(static_cast<float>(before >> other & 1), own[other], sum);
      s_.log2_decay[node][channel] = sum;
    }
  }
  // k and q, normed: the parts of one of kWarps - kWarpsOfDecays warps, of which every other one has rows of q. The last one also
  // finds ancestors and beta.
  WW_DEVICE void put_rows(int part) const {
    constexpr int kParts = (C::kWarps - kWarpsOfDecays) / 2, kOwn = (kFewNodes + kParts - 1) / kParts;
    const int channel = 4 * lane_, first = part / 2, to = part % 2 * kFewNodes;
    const LinearAttnRows& rows = part % 2 == 0 ? p_.k : p_.q;
    const int64_t stride = rows.token_stride;
    const auto* const data = static_cast<const unsigned short*>(rows.data) + first_ * stride + head_ / p_.heads_per_k * rows.head_stride + channel;
    uint2 four[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int node = first + kParts * i;
      four[i] = make_uint2(0, 0);
      if (node < nodes_ && channel < p_.k_dim) four[i] = *reinterpret_cast<const uint2*>(data + node * stride);
    }
    if (part == 2 * kParts - 1) put_gates();
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int node = first + kParts * i;
      const float value[4] = {E::low(four[i].x), E::high(four[i].x), E::low(four[i].y), E::high(four[i].y)};
      float sum = value[0] * value[0] + value[1] * value[1] + value[2] * value[2] + value[3] * value[3];
#pragma unroll
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
      const float norm = p_.l2norm ? rsqrtf(sum + p_.l2norm_eps) : 1.0f;
      if (node < kFewNodes && channel < C::kDim) {
        *reinterpret_cast<float4*>(s_.kq[to + node] + channel) = make_float4(norm * value[0], norm * value[1], norm * value[2], norm * value[3]);
      }
    }
  }
  WW_DEVICE void put_gates() const {
    const int node = lane_ % kFewNodes;
    const u32 ancestors = this->find_ancestors();
    const float beta = node < nodes_ ? beta_of(p_, load_gates(p_, first_ + node, head_, true)) : 0.0f;
    if (lane_ < kFewNodes) s_.ancestors[node] = ancestors, s_.beta[node] = beta;
  }
  // A and P of one pair; kg and qg of `row`, a sixteenth of the channels.
  WW_DEVICE void relate(int row, int column) const {
    const bool before = s_.ancestors[row] >> column & 1;
    float kk = 0, qk = 0;
    if (before || row == column) {
#pragma unroll 4
      for (int c = 0; c < C::kDim; c += 4) {
        const float4 by = decays_between(row, column, c), k = four_at(s_.kq[column] + c), own = four_at(s_.kq[row] + c), q = four_at(s_.kq[kFewNodes + row] + c);
        const float x = by.x * k.x, y = by.y * k.y, z = by.z * k.z, w = by.w * k.w;
        kk += own.x * x + own.y * y + own.z * z + own.w * w;
        qk += q.x * x + q.y * y + q.z * z + q.w * w;
      }
    }
    s_.a[row][column] = before ? s_.beta[row] * kk : 0.0f;
    s_.p[row][column] = p_.scale * qk;
    for (int c = 2 * column; c < C::kDim; c += 2 * kFewNodes) {
      const float low = ptx::exp2_approx(s_.log2_decay[row][c]), high = ptx::exp2_approx(s_.log2_decay[row][c + 1]);
      s_.kg[row][c / 2] = E::pack(s_.kq[row][c] * low, s_.kq[row][c + 1] * high);
      s_.qg[row][c / 2] = E::pack(p_.scale * s_.kq[kFewNodes + row][c] * low, p_.scale * s_.kq[kFewNodes + row][c + 1] * high);
    }
  }
  static WW_DEVICE float4 four_at(const float* from) { return *reinterpret_cast<const float4*>(from); }
  WW_DEVICE float4 decays_between(int row, int column, int c) const {
    const float4 to = four_at(s_.log2_decay[row] + c), from = four_at(s_.log2_decay[column] + c);
    return make_float4(ptx::exp2_approx(fminf(to.x - from.x, 0)), ptx::exp2_approx(fminf(to.y - from.y, 0)),
                       ptx::exp2_approx(fminf(to.z - from.z, 0)), ptx::exp2_approx(fminf(to.w - from.w, 0)));
  }

  Shared& s_;
  const int warp_;
  const u32 state_;
  const int slot_, from_, element_bytes_;
};

// Of either kind, with verify_few_shared_bytes<C>() of shared memory.
template <class C>
WW_DEVICE void verify_few(const LinearParams& p, char* shared) {
  const int splits = (p.v_dim + C::kColumns - 1) / C::kColumns, head = blockIdx.x / splits, split = blockIdx.x % splits;
  if constexpr (C::kKda) VerifyFewKda<C>(p, shared, blockIdx.y, head, split).run();
  else VerifyFew<C>(p, reinterpret_cast<VerifyFewScratch*>(shared), blockIdx.y, head, split).run();
}

}  // namespace warpweave::linear
