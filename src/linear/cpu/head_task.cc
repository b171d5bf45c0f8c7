#include "linear/cpu/head_task.h"

#include <algorithm>
#include <cstring>

#include "linear/cpu/head_parts.h"

namespace warpweave {

using namespace linear_head;

namespace {

// Below this the chunk form costs more than it saves.
constexpr int kStepTokens = 8;

class TilesInUse {
 public:
  explicit TilesInUse(const LinearCpuKernels& kernels) : tiles_(kernels.tiles) {
    if (tiles_ != nullptr) tiles_->enter();
  }
  TilesInUse(const TilesInUse&) = delete;
  ~TilesInUse() {
    if (tiles_ != nullptr) tiles_->leave();
  }

 private:
  const LinearTileKernels* const tiles_;
};

}  // namespace

size_t LinearHeadScratch::lay_out(const LinearAttnShape& shape, int conv_width, bool tiles, float* memory) {
  k_stride = shape.k_dim + 16;
  v_stride = shape.v_dim + 16;
  const bool kda = shape.kind == LinearAttnKind::kda;
  size_t used = 0;
  const auto take = [&](int64_t rows, int64_t stride) {
    float* at = memory != nullptr ? memory + used : nullptr;
    used += static_cast<size_t>(padded(static_cast<int>(rows * stride), 16));
    return at;
  };
  const auto take_if = [&](bool wanted, int64_t rows, int64_t stride) { return take(wanted ? rows : 0, stride); };
  k = take(kTokens, k_stride);
  q = take(kTokens, k_stride);
  v = take(kTokens, v_stride);
  u = take(kTokens, v_stride);
  o = take(kTokens, v_stride);
  decay = take(kTokens, kda ? k_stride : 1);
  decayed_k = take_if(kda, kTokens, k_stride);
  decayed_q = take_if(kda, kTokens, k_stride);
  local_k = take_if(kda, kBlock, k_stride);
  local_q = take_if(kda, kBlock, k_stride);
  reach = take_if(kda, kTokens, k_stride);
  keys_t = take(shape.k_dim, kPairStride);
  kk = take_if(!kda, kTokens, kPairStride);
  qk = take_if(!kda, kTokens, kPairStride);
  weights = take_if(!kda, kTokens, kPairStride);
  minus_a = take(kTokens, kPairStride);
  p = take(kTokens, kPairStride);
  state_t = take(shape.heads_per_k() * shape.k_dim, v_stride);
  block = take(kBlock, kMaxDim);
  beta = take(kTokens, 1);
  kq = take(kTokens, 1);
  since_start = take(kTokens, 1);
  end_decay = take(kMaxDim, 1);
  const bool conv = conv_width > 0;
  conv_x = take_if(conv, kTokens + kMaxWindow, kMaxDim);
  conv_weight = take_if(conv, kLinearAttnMaxConvWidth, kMaxDim);
  windows = take_if(conv, (2 + shape.heads_per_k()) * kMaxWindow, kMaxDim);
  sources = reinterpret_cast<int32_t*>(take_if(conv, kTokens, kLinearAttnMaxConvWidth));
  const auto take_packed = [&](int lines, int depth) {
    return reinterpret_cast<uint16_t*>(take_if(tiles, linear_packed_elements(lines, depth, kMaxParts) / 2, 1));
  };
  packed_k = take_packed(kTokens, shape.k_dim);
  packed_q = take_packed(kTokens, shape.k_dim);
  packed_keys = take_packed(shape.k_dim, kTokens);
  packed_a = take_packed(kTokens, std::max(shape.k_dim, kTokens));
  packed_b = take_packed(std::max(shape.v_dim, kTokens), std::max(shape.k_dim, kTokens));
  return used;
}

LinearHeadScratch::LinearHeadScratch(const LinearAttnShape& shape, int conv_width, bool tiles, float* memory) {
  lay_out(shape, conv_width, tiles, memory);
}
size_t LinearHeadScratch::floats(const LinearAttnShape& shape, int conv_width, bool tiles) {
  LinearHeadScratch scratch;
  return scratch.lay_out(shape, conv_width, tiles, nullptr);
}

// The suite allows the state twice what f32 costs, outputs and states in 16 bits what those cost.
LinearHeadTask::LinearHeadTask(const LinearAttnCall& call, const LinearCpuKernels& kernels,
                               const LinearHeadScratch& scratch)
    : call_(call), shape_(call.shape), batch_(*call.batch), kernels_(kernels), s_(scratch) {
  if (call.exact) return;
  output_parts_ = call.out_dtype == DType::f32 ? kMaxParts : 2;
  state_parts_ = call.state.dtype == DType::f32 ? kMaxParts : output_parts_;
}

// False: nothing is left to do, for a padded request.
bool LinearHeadTask::begin(int request, int k_head) {
  request_ = request;
  k_head_ = k_head;
  first_ = batch_.q_indptr != nullptr ? batch_.q_indptr[request] : request;
  end_ = batch_.q_indptr != nullptr ? batch_.q_indptr[request + 1] : request + 1;
  slot_ = batch_.slots[request];
  initial_ = batch_.initial_slots != nullptr ? batch_.initial_slots[request] : slot_;
  return slot_ >= 0;
}

void LinearHeadTask::zero_rows() {
  for (int64_t t = first_; t < end_; ++t) {
    std::memset(offset(call_.out, call_.out_dtype, t * call_.out_token_stride + int64_t{v_head(0)} * shape_.v_dim), 0,
                shape_.heads_per_k() * shape_.v_dim * size_of(call_.out_dtype));
  }
}

void LinearHeadTask::decode(int request, int k_head) {
  if (!begin(request, k_head)) return zero_rows();
  if (call_.conv != nullptr) load_windows();
  by_steps({.first = first_, .count = 1}, true);
  if (call_.conv != nullptr) store_windows(slot_);
}

void LinearHeadTask::advance(int request, int k_head) {
  if (!begin(request, k_head)) return zero_rows();
  const bool checkpoints = batch_.checkpoint_indptr != nullptr &&
                           batch_.checkpoint_indptr[request] < batch_.checkpoint_indptr[request + 1];
  const auto tokens = static_cast<int>(std::min<int64_t>(end_ - first_, kLinearAttnChunkTokens + 1));
  if (call_.conv != nullptr) load_windows();
  if (tokens == 0) return carry();
  if (tokens > kStepTokens || checkpoints || call_.same_bits_drafted) return by_chunks();
  by_steps({.first = first_, .count = tokens}, true);
  if (call_.conv != nullptr) store_windows(slot_);
}

// No token: the state goes from where it was to where it is to be.
void LinearHeadTask::carry() {
  if (initial_ == slot_) return;
  const int64_t bytes = int64_t{shape_.v_dim} * shape_.k_dim * size_of(call_.state.dtype);
  for (int i = 0; i < shape_.heads_per_k(); ++i) {
    void* to = offset(call_.state.data, call_.state.dtype, state_at(slot_, i));
    if (initial_ < 0) {
      std::memset(to, 0, bytes);
    } else {
      std::memcpy(to, offset(call_.state.data, call_.state.dtype, state_at(initial_, i)), bytes);
    }
  }
  if (call_.conv != nullptr) store_windows(slot_);
}

void LinearHeadTask::by_steps(const Tokens& tokens, bool outputs) {
  load_qk(tokens);
  for (int t = 0; t < tokens.count; ++t) {
    s_.kq[t] = kernels_.dot(s_.k + t * s_.k_stride, s_.q + t * s_.k_stride, shape_.k_dim);
  }
  for (int i = 0; i < shape_.heads_per_k(); ++i) {
    load_v(tokens, i);
    load_gates(tokens, i);
    for (int t = 0; is_kda() && t < tokens.count; ++t) {
      const int64_t row = int64_t{t} * s_.k_stride;
      kernels_.multiply(s_.k + row, s_.decay + row, shape_.k_dim, s_.decayed_k + row);
      kernels_.multiply(s_.q + row, s_.decay + row, shape_.k_dim, s_.decayed_q + row);
    }
    const LinearAttnState& state = call_.state;
    kernels_.step({.state_in = initial_ >= 0 ? offset(state.data, state.dtype, state_at(initial_, i)) : nullptr,
                   .state_out = tokens.carries ? offset(state.data, state.dtype, state_at(slot_, i)) : s_.state_t,
                   .type = type_of(state.dtype),
                   .tokens = tokens.count,
                   .k_dim = shape_.k_dim,
                   .v_dim = shape_.v_dim,
                   .decay = s_.decay,
                   .per_channel = is_kda(),
                   .beta = s_.beta,
                   .k = s_.k,
                   .q = s_.q,
                   .stride = s_.k_stride,
                   .decayed_k = s_.decayed_k,
                   .decayed_q = s_.decayed_q,
                   .kq = s_.kq,
                   .v = s_.v,
                   .v_stride = s_.v_stride,
                   .out = s_.o});
    if (outputs) store_outputs(tokens, i);
  }
}

void LinearHeadTask::by_chunks() {
  const TilesInUse tiles(kernels_);
  for (int i = 0; i < shape_.heads_per_k(); ++i) load_state(i);
  const auto store = [this](int slot) {
    for (int i = 0; i < shape_.heads_per_k(); ++i) store_state(i, slot);
    if (call_.conv != nullptr) store_windows(slot);
  };
  int next = batch_.checkpoint_indptr != nullptr ? batch_.checkpoint_indptr[request_] : 0;
  const int last = batch_.checkpoint_indptr != nullptr ? batch_.checkpoint_indptr[request_ + 1] : 0;
  for (int64_t at = first_; at < end_;) {
    int64_t stop = std::min<int64_t>(end_, at + kLinearAttnChunkTokens);
    if (next < last) stop = std::min(stop, first_ + batch_.checkpoint_tokens[next]);
    chunk({.first = at, .count = static_cast<int>(stop - at)});
    at = stop;
    if (next < last && at - first_ == batch_.checkpoint_tokens[next]) store(batch_.checkpoint_slots[next++]);
  }
  store(slot_);
}

void LinearHeadTask::verify(int request, int k_head) {
  if (!begin(request, k_head)) return zero_rows();
  if (first_ == end_) return;
  if (call_.same_bits_drafted) return verify_by_steps();
  const TilesInUse tiles(kernels_);
  if (call_.conv != nullptr) load_windows();
  for (int i = 0; i < shape_.heads_per_k(); ++i) load_state(i);
  chunk({.first = first_,
         .parents = batch_.parents != nullptr ? batch_.parents + first_ : nullptr,
         .count = static_cast<int>(end_ - first_),
         .carries = false});
}

// The nodes from the root to `node`; how many.
int LinearHeadTask::path_to(int node, int32_t* path) const {
  int depth = 0;
  for (; node >= 0; node = batch_.parents != nullptr ? batch_.parents[first_ + node] : node - 1) path[depth++] = node;
  std::reverse(path, path + depth);
  return depth;
}

// Each way from the root to a leaf as decode would go it.
void LinearHeadTask::verify_by_steps() {
  const int nodes = static_cast<int>(end_ - first_);
  bool has_child[kLinearAttnMaxVerifyNodes] = {};
  for (int node = 0; node < nodes; ++node) {
    const int parent = batch_.parents != nullptr ? batch_.parents[first_ + node] : node - 1;
    if (parent >= 0) has_child[parent] = true;
  }
  int32_t path[kLinearAttnMaxVerifyNodes];
  for (int leaf = 0; leaf < nodes; ++leaf) {
    if (has_child[leaf]) continue;
    if (call_.conv != nullptr) load_windows();
    by_steps({.first = first_, .picked = path, .count = path_to(leaf, path), .carries = false}, true);
  }
}

void LinearHeadTask::commit(int request, int k_head) {
  if (!begin(request, k_head)) return;
  if (call_.conv != nullptr) load_windows();
  int32_t path[kLinearAttnMaxVerifyNodes];
  const int depth = path_to(batch_.accepted[request], path);
  if (depth == 0) return carry();
  by_steps({.first = first_, .picked = path, .count = depth}, false);
  if (call_.conv != nullptr) store_windows(slot_);
}

}  // namespace warpweave
