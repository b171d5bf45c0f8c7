#include "linear/testing/suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/aligned_buffer.h"

namespace warpweave::testing_linear {
namespace {

using Phase = LinearAttnPhase;
constexpr size_t kGuardBytes = 4096;
constexpr auto kGuard = std::byte{0xff};  // NaN in every type, so that an unwritten workspace shows

// One comparison: the largest error over `count` values against its bound.
class Comparison {
 public:
  void add(double value, double truth, double naive) {
    if (std::isnan(value)) {
      nan_ = true;
      return;
    }
    error_ = std::max(error_, std::abs(value - truth));
    naive_ = std::max(naive_, std::abs(naive - truth));
    largest_ = std::max(largest_, std::abs(truth));
  }
  void judge(const SuiteOptions& options, std::string_view what, CaseResult& result) const {
    const double bound = options.factor * naive_ + options.slack * largest_ + 1e-30;
    result.largest_share = std::max(result.largest_share, nan_ ? INFINITY : error_ / bound);
    if (!result.text.empty() || (!nan_ && error_ <= bound)) return;
    result.text = nan_ ? fmt::format("{}: NaN", what)
                       : fmt::format("{}: error {:.3g} of {:.3g} allowed, values to {:.3g}", what, error_, bound, largest_);
  }

 private:
  double error_ = 0, naive_ = 0, largest_ = 0;
  bool nan_ = false;
};

void call_kernel(LinearAttnKernelBase& kernel, const LinearAttnCall& call, Phase phase) {
  switch (phase) {
    case Phase::decode: kernel.decode(call); break;
    case Phase::extend: kernel.extend(call); break;
    case Phase::target_verify: kernel.target_verify(call); break;
    case Phase::commit: kernel.commit(call); break;
  }
}

void compare_outputs(const LinearAttnProblem& problem, const LinearAttnTruth& truth, const LinearAttnTruth& naive,
                     const SuiteOptions& options, CaseResult& result) {
  const LinearAttnBatch& batch = *problem.call().batch;
  const int64_t row_size = int64_t{problem.call().shape.v_heads} * problem.call().shape.v_dim;
  for (int r = 0; r < batch.num_requests; ++r) {
    Comparison comparison;
    const int64_t first = batch.q_indptr != nullptr ? batch.q_indptr[r] : r;
    const int64_t end = batch.q_indptr != nullptr ? batch.q_indptr[r + 1] : r + 1;
    for (int64_t i = first * row_size; i < end * row_size; ++i) {
      comparison.add(problem.out_at(i / row_size, i % row_size), truth.out[i], naive.out[i]);
    }
    comparison.judge(options, fmt::format("output of request {}", r), result);
  }
}

void compare_states(const LinearAttnProblem& problem, const LinearAttnTruth& truth, const LinearAttnTruth& naive,
                    const SuiteOptions& options, CaseResult& result) {
  for (const auto& [slot, state] : truth.slots) {
    const LinearAttnSlotState& rounded = naive.slots.at(slot);
    Comparison recurrent, conv;
    const std::vector<double> values = problem.recurrent(slot), window = problem.conv_state(slot);
    for (size_t i = 0; i < values.size(); ++i) recurrent.add(values[i], state.recurrent[i], rounded.recurrent[i]);
    for (size_t i = 0; i < window.size(); ++i) conv.add(window[i], state.conv[i], rounded.conv[i]);
    recurrent.judge(options, fmt::format("state of slot {}", slot), result);
    conv.judge(options, fmt::format("convolution state of slot {}", slot), result);
  }
}

void run_phase(LinearAttnKernelBase& kernel, LinearAttnProblem& problem, Phase phase, const SuiteOptions& options,
               CaseResult& result) {
  LinearAttnCall call = problem.call();
  const LinearAttnLimits limits{call.batch->num_requests, call.batch->num_tokens,
                                call.conv != nullptr ? call.conv->width : 0};
  call.workspace_bytes = kernel.workspace_bytes(call.shape, limits);
  AlignedBuffer workspace = AlignedBuffer::allocate(call.workspace_bytes + kGuardBytes + 256);
  auto start = reinterpret_cast<uintptr_t>(workspace.data());
  std::byte* memory = workspace.data() + ((start + 255) / 256 * 256 - start);
  std::memset(memory, static_cast<int>(kGuard), call.workspace_bytes + kGuardBytes);
  call.workspace = memory;

  const LinearAttnTruth truth = linear_attn_reference(call, phase);
  const LinearAttnTruth naive = options.naive(call, phase);
  call_kernel(kernel, call, phase);
  if (!truth.out.empty()) compare_outputs(problem, truth, naive, options, result);
  compare_states(problem, truth, naive, options, result);
  // commit leaves `out` to the verify before it.
  const std::string overwritten = problem.overwritten(truth.slots, true);
  if (result.text.empty()) result.text = overwritten;
  const std::byte* guard = memory + call.workspace_bytes;
  if (result.text.empty() && std::any_of(guard, guard + kGuardBytes, [](std::byte b) { return b != kGuard; })) {
    result.text = "wrote past the end of its workspace";
  }
  if (!result.text.empty()) result.text = fmt::format("{}: {}", linear_attn_phase_name(phase), result.text);
}

}  // namespace

bool runs_case(const LinearAttnKernelCaps& caps, const LinearAttnCase& c) {
  const bool kind = c.shape.kind == LinearAttnKind::kda ? caps.kda : caps.gdn;
  if (!kind || (c.state == DType::bf16 && !caps.bf16_state)) return false;
  switch (c.phase) {
    case Phase::decode: return caps.decode;
    case Phase::extend: return caps.extend;
    default: return c.tree == Tree::chain ? caps.verify_chain : caps.verify_tree;
  }
}

CaseResult run_case(LinearAttnKernelBase& kernel, const LinearAttnCase& c, const SuiteOptions& options) {
  LinearAttnProblem problem(c);
  CaseResult result;
  const Status call_status = check_linear_attn_call(problem.call());
  const Status batch_status = check_linear_attn_batch(*problem.call().batch, problem.num_slots(), c.phase);
  if (!call_status.ok() || !batch_status.ok()) {
    result.text = "the case itself is refused: " + call_status.message() + batch_status.message();
    return result;
  }
  run_phase(kernel, problem, c.phase, options, result);
  if (c.phase == Phase::target_verify && result.passed()) run_phase(kernel, problem, Phase::commit, options, result);
  return result;
}

}  // namespace warpweave::testing_linear
