// Decode with the norm and gate of the output: a block has all rows of a v head, four of each group of eight lanes.
// Grid: x = v head, y = request. For GDN with head dims of k up to 128: more would not stay in registers.
#pragma once

#include "linear/cuda/recurrent.cuh"

namespace warpweave::linear {

template <class State, int kMaxDim>
struct DecodeConfig : RecurrentConfig<State, kMaxDim, 4, false, RecurrentMode::decode> {
  static constexpr int kMostThreads = kLinearAttnMaxHeadDim / 16 * 32;
};
constexpr int decode_threads(int v_dim) { return (v_dim + 15) / 16 * 32; }

// A lane's row of the output: lane r of a group has the group's row r.
template <class C>
class DecodeRow {
 public:
  WW_DEVICE DecodeRow(const LinearParams& p, const Recurrence<C>& state, int head)
      : p_(p), head_(head), v_(state.lane() < C::kRows ? state.v_of(state.lane()) : p.v_dim) {}

  WW_DEVICE bool there() const { return v_ < p_.v_dim; }
  WW_DEVICE void ask(int64_t token) {
    if (!there()) return;
    weight_ = p_.norm.weight[v_];
    const LinearAttnRows& z = p_.norm.z;
    if (z.data != nullptr) z_bits_ = load_bits(z.data, token * z.token_stride + head_ * z.head_stride + v_, z.dtype);
  }
  WW_DEVICE void write(int64_t token, float value) const {
    if (there()) store_one(p_.out, token * p_.out_token_stride + int64_t{head_} * p_.v_dim + v_, value, p_.out_dtype);
  }
  WW_DEVICE float scaled(float value, float norm) const {
    float gate = 1;
    if (p_.norm.z.data != nullptr) {
      const float z = value_of(z_bits_, p_.norm.z.dtype);
      gate = (p_.norm.gate == LinearAttnNormGate::silu ? z : 1.0f) / (1.0f + expf(-z));
    }
    return value * norm * weight_ * gate;
  }

 private:
  const LinearParams& p_;
  const int head_, v_;
  float weight_ = 0;
  ptx::u32 z_bits_ = 0;
};

WW_DEVICE float block_sum(float x, float* of_warp, int warps) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
  __syncthreads();
  x = 0;
  for (int warp = 0; warp < warps; ++warp) x += of_warp[warp];
  return x;
}

// With state_settled only q, k, v come from the kernel before this one: the state is asked for ahead of them.
template <class C>
__global__ void __launch_bounds__(C::kMostThreads, 1) decode_normed(const __grid_constant__ LinearParams p) {
  __shared__ float of_warp[C::kMostThreads / 32];
  ptx::launch_dependents();
  if (!p.state_settled) ptx::grid_dependency_wait();
  const int head = blockIdx.x, request = blockIdx.y, slot = p.batch.slots[request];
  const int64_t token = first_row(p.batch, request);
  Recurrence<C> state(p, request, head, 0);
  DecodeRow<C> row(p, state, head);
  if (slot >= 0) state.load(initial_slot(p.batch, request));
  if (p.state_settled) ptx::grid_dependency_wait();
  if (slot < 0) return row.write(token, 0);
  state.ask(token);
  row.ask(token);
  float out[C::kRows];
  state.advance(out);
  state.store(slot);
  float own = 0;
#pragma unroll
  for (int r = 0; r < C::kRows; ++r) own = state.lane() == r ? out[r] : own;
  const float squares = block_sum(row.there() ? own * own : 0.0f, of_warp, decode_threads(p.v_dim) / 32);
  row.write(token, row.scaled(own, rsqrtf(squares / static_cast<float>(p.v_dim) + p.norm.eps)));
}

}  // namespace warpweave::linear
