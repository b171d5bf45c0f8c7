#include "linear/short_conv.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <vector>

#include "device/cpu/cpu_info.h"
#include "linear/cpu/cpu_linear_attn.h"
#include "linear/cpu/head_parts.h"

namespace warpweave {
namespace {

using namespace linear_head;

constexpr int kTaskChannels = 128;                      // of one task
constexpr int kRunTokens = kLinearAttnMaxVerifyNodes;   // that are convolved at once

Status broken(std::string_view member, std::string_view rule) {
  return Status::invalid_argument(fmt::format("{}: {}", member, rule), std::string(member));
}

// Working memory of one thread: rows of kTaskChannels values.
struct Scratch {
  float inputs[(kMaxWindow + kRunTokens) * kTaskChannels];  // u: the state's rows, then the run's
  float weight[kLinearAttnMaxConvWidth * kTaskChannels];    // tap by tap
  int32_t sources[kRunTokens * kLinearAttnMaxConvWidth];
  float block[kBlock * kMaxWindow];
};

// Some channels of some request.
class ShortConvTask {
 public:
  ShortConvTask(const ShortConvCall& call, const LinearCpuKernels& kernels, Scratch& scratch)
      : call_(call), batch_(*call.batch), kernels_(kernels), s_(scratch), taps_(call.conv.width - 1) {}

  void run(int request, int channel) {
    channel_ = channel;
    dim_ = std::min(kTaskChannels, call_.channels - channel);
    first_ = batch_.q_indptr != nullptr ? batch_.q_indptr[request] : request;
    const int64_t end = batch_.q_indptr != nullptr ? batch_.q_indptr[request + 1] : request + 1;
    const int tokens = static_cast<int>(end - first_);
    const int slot = batch_.slots[request];
    if (slot < 0) return clear(tokens);
    load_state(batch_.initial_slots != nullptr ? batch_.initial_slots[request] : slot);
    if (call_.phase == LinearAttnPhase::commit) return commit(batch_.accepted[request], slot);
    load_weight();
    convolve_all(request, tokens);
    if (call_.phase != LinearAttnPhase::target_verify) store_state(slot);
  }

 private:
  const float* row(int token) const {
    return static_cast<const float*>(call_.conv.x.data) + (first_ + token) * call_.conv.x.token_stride + channel_;
  }
  float* out(int token) const { return static_cast<float*>(call_.out) + (first_ + token) * call_.channels + channel_; }
  float* input(int place) const { return s_.inputs + place * kTaskChannels; }
  void gate_input(int token, float* to) const {
    kernels_.multiply(row(token), row(token) + 2 * call_.channels, dim_, to);
  }

  void clear(int tokens) {
    for (int t = 0; t < tokens; ++t) std::fill_n(out(t), dim_, 0.0f);
  }

  void load_weight() {
    for (int c = 0; c < dim_; ++c) {
      for (int j = 0; j <= taps_; ++j) {
        s_.weight[j * dim_ + c] = call_.conv.weight[int64_t{channel_ + c} * (taps_ + 1) + j];
      }
    }
  }

  // A slot is channel by channel, so 16 channels are whole vectors.
  void load_state(int slot) {
    const LinearAttnConv& conv = call_.conv;
    if (slot < 0) return static_cast<void>(std::fill_n(s_.inputs, taps_ * kTaskChannels, 0.0f));
    for (int c = 0; c < dim_; c += kBlock) {
      const int64_t at = slot * conv.slot_stride + int64_t{channel_ + c} * taps_;
      kernels_.widen(offset(static_cast<const void*>(conv.state), conv.state_dtype, at), type_of(conv.state_dtype),
                     kBlock * taps_, s_.block);
      for (int i = 0; i < kBlock; ++i) {
        for (int j = 0; j < taps_; ++j) input(j)[c + i] = s_.block[i * taps_ + j];
      }
    }
  }
  void store_state(int slot) {
    const LinearAttnConv& conv = call_.conv;
    for (int c = 0; c < dim_; c += kBlock) {
      for (int i = 0; i < kBlock; ++i) {
        for (int j = 0; j < taps_; ++j) s_.block[i * taps_ + j] = input(j)[c + i];
      }
      const int64_t at = slot * conv.slot_stride + int64_t{channel_ + c} * taps_;
      kernels_.narrow(s_.block, kBlock * taps_, type_of(conv.state_dtype), offset(conv.state, conv.state_dtype, at));
    }
  }

  // Where the rows that `token` meets are among the inputs, the newest last. A tree's tokens are one run.
  void set_sources(int token) {
    int source = taps_ + token;
    for (int j = taps_; j >= 0; --j) {
      s_.sources[token * (taps_ + 1) + j] = source;
      const int node = source - taps_;
      source = node >= 0 && batch_.parents != nullptr ? taps_ + batch_.parents[first_ + node] : source - 1;
    }
  }

  void convolve(int begin, int tokens) {
    for (int t = 0; t < tokens; ++t) {
      gate_input(begin + t, input(taps_ + t));
      set_sources(t);
    }
    const float* const bias = call_.conv.bias != nullptr ? call_.conv.bias + channel_ : nullptr;
    kernels_.conv({.x = s_.inputs, .x_stride = kTaskChannels, .sources = s_.sources, .weight = s_.weight, .bias = bias,
                   .tokens = tokens, .width = taps_ + 1, .dim = dim_, .silu = false, .out = out(begin),
                   .out_stride = call_.channels});
    for (int t = begin; t < begin + tokens; ++t) kernels_.multiply(out(t), row(t) + call_.channels, dim_, out(t));
    std::copy_n(input(tokens), taps_ * kTaskChannels, s_.inputs);
  }

  // By runs, which end at checkpoints, too.
  void convolve_all(int request, int tokens) {
    int next = 0, last = 0;
    if (batch_.checkpoint_indptr != nullptr) {
      next = batch_.checkpoint_indptr[request];
      last = batch_.checkpoint_indptr[request + 1];
    }
    for (int begin = 0, end = 0; begin < tokens; begin = end) {
      end = std::min(tokens, begin + kRunTokens);
      if (next < last) end = std::min(end, batch_.checkpoint_tokens[next]);
      convolve(begin, end - begin);
      if (next < last && batch_.checkpoint_tokens[next] == end) store_state(batch_.checkpoint_slots[next++]);
    }
  }

  // The state's rows become those at the end of the accepted path.
  void commit(int node, int slot) {
    float* const path = input(taps_);
    int before = taps_ - 1;  // the newest row of the old state that is left
    for (int j = taps_ - 1; j >= 0; --j) {
      if (node >= 0) {
        gate_input(node, path + j * kTaskChannels);
        node = batch_.parents != nullptr ? batch_.parents[first_ + node] : node - 1;
      } else {
        std::copy_n(input(before), dim_, path + j * kTaskChannels);
        --before;
      }
    }
    std::copy_n(path, taps_ * kTaskChannels, s_.inputs);
    store_state(slot);
  }

  const ShortConvCall& call_;
  const LinearAttnBatch& batch_;
  const LinearCpuKernels& kernels_;
  Scratch& s_;
  const int taps_;
  int channel_ = 0, dim_ = 0;
  int64_t first_ = 0;
};

}  // namespace

Status check_short_conv_call(const ShortConvCall& call) {
  const LinearAttnConv& conv = call.conv;
  if (call.batch == nullptr) return broken("batch", "is missing");
  if (call.batch->checkpoint_indptr != nullptr && call.phase != LinearAttnPhase::extend) {
    return broken("batch.checkpoint_indptr", "is given; extend alone leaves checkpoints");
  }
  if (call.channels < 16 || call.channels % 16 != 0) {
    return broken("channels", fmt::format("is {}; multiples of 16 run", call.channels));
  }
  if (conv.width < 2 || conv.width > kLinearAttnMaxConvWidth) {
    return broken("conv.width", fmt::format("is {}; 2 to {} run", conv.width, kLinearAttnMaxConvWidth));
  }
  if (conv.silu) return broken("conv.silu", "is true; gates are all there is");
  if (conv.x.data == nullptr) return broken("conv.x", "is missing");
  if (conv.x.token_stride < int64_t{3} * call.channels) {
    return broken("conv.x", fmt::format("has token_stride {}; at least {}", conv.x.token_stride, 3 * call.channels));
  }
  if (conv.weight == nullptr) return broken("conv.weight", "is missing");
  if (conv.state == nullptr) return broken("conv.state", "is missing");
  if (conv.state_dtype != DType::f32 && conv.state_dtype != DType::bf16) {
    return broken("conv.state_dtype", "is neither f32 nor bf16");
  }
  const int64_t slot = int64_t{call.channels} * (conv.width - 1);
  if (conv.slot_stride < slot) {
    return broken("conv.slot_stride", fmt::format("is {}; at least {}", conv.slot_stride, slot));
  }
  if (call.phase == LinearAttnPhase::commit && call.batch->accepted == nullptr) {
    return broken("batch.accepted", "is missing");
  }
  const bool drafts = call.phase == LinearAttnPhase::target_verify || call.phase == LinearAttnPhase::commit;
  if (drafts && call.batch->max_q_tokens > kLinearAttnMaxVerifyNodes) {
    return broken("batch.max_q_tokens", fmt::format("is {}; at most {} drafted nodes", call.batch->max_q_tokens,
                                                    kLinearAttnMaxVerifyNodes));
  }
  if (!drafts && call.batch->parents != nullptr) return broken("batch.parents", "is given to a call without drafts");
  return call.out != nullptr ? Status() : broken("out", "is missing");
}

void run_short_conv(const ShortConvCall& call, ThreadTeam& team) {
  assert(call.conv.x.dtype == DType::f32 && call.out_dtype == DType::f32);
  const LinearCpuKernels& kernels = cpu_linear_kernels(cpu_info().tier);
  const int64_t parts = (call.channels + kTaskChannels - 1) / kTaskChannels;
  team.parallel_for(call.batch->num_requests * parts, 1, [&](int64_t begin, int64_t end) {
    Scratch scratch;
    ShortConvTask task(call, kernels, scratch);
    for (int64_t i = begin; i < end; ++i) {
      task.run(static_cast<int>(i / parts), static_cast<int>(i % parts) * kTaskChannels);
    }
  });
}

}  // namespace warpweave
