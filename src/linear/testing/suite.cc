#include "linear/testing/suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

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

// The kernel's workspace for a call, full of guards that reach past its end.
class GuardedWorkspace {
 public:
  GuardedWorkspace(const LinearAttnKernelBase& kernel, LinearAttnCall& call) {
    const LinearAttnLimits limits{call.batch->num_requests, call.batch->num_tokens,
                                  call.conv != nullptr ? call.conv->width : 0};
    bytes_ = call.workspace_bytes = kernel.workspace_bytes(call.shape, limits);
    buffer_ = AlignedBuffer::allocate(bytes_ + kGuardBytes + 256);
    const auto start = reinterpret_cast<uintptr_t>(buffer_.data());
    memory_ = buffer_.data() + ((start + 255) / 256 * 256 - start);
    std::memset(memory_, static_cast<int>(kGuard), bytes_ + kGuardBytes);
    call.workspace = memory_;
  }
  bool overrun() const {
    const std::byte* guard = memory_ + bytes_;
    return std::any_of(guard, guard + kGuardBytes, [](std::byte b) { return b != kGuard; });
  }

 private:
  AlignedBuffer buffer_;
  size_t bytes_ = 0;
  std::byte* memory_ = nullptr;
};

// Some tokens of a request, and where its state comes from and goes to.
struct Piece {
  int begin = 0, end = 0;
  int32_t from = -1, to = -1;
};

// A call for one request of another call's, or for a piece of it.
struct RequestCall {
  LinearAttnCall call;
  LinearAttnBatch batch;
  LinearAttnConv conv;
  LinearAttnGates gates;
  LinearAttnNorm norm;
  int32_t indptr[2] = {};
  Piece piece;

  RequestCall(const LinearAttnCall& all, int request) : call(all), batch(*all.batch) {
    const LinearAttnBatch& from = *all.batch;
    const int64_t first = from.q_indptr != nullptr ? from.q_indptr[request] : request;
    const int64_t tokens = from.q_indptr != nullptr ? from.q_indptr[request + 1] - first : 1;
    indptr[1] = static_cast<int32_t>(tokens);
    if (from.q_indptr != nullptr) batch.q_indptr = indptr;
    batch.num_requests = 1, batch.num_tokens = tokens, batch.max_q_tokens = static_cast<int>(tokens);
    const auto from_request = [&](const int32_t*& array) { array = array == nullptr ? nullptr : array + request; };
    from_request(batch.slots), from_request(batch.initial_slots), from_request(batch.checkpoint_indptr);
    from_request(batch.accepted);
    if (batch.parents != nullptr) batch.parents += first;
    call.batch = &batch;
    if (all.conv != nullptr) call.conv = &(conv = *all.conv);
    if (all.gates != nullptr) call.gates = &(gates = *all.gates);
    if (all.norm != nullptr) call.norm = &(norm = *all.norm);
    skip_tokens(first);
  }
  RequestCall(const LinearAttnCall& all, int request, const Piece& of) : RequestCall(all, request) {
    piece = of;
    indptr[1] = piece.end - piece.begin;
    batch.num_tokens = batch.max_q_tokens = piece.end - piece.begin;
    batch.initial_slots = &piece.from, batch.slots = &piece.to;
    batch.checkpoint_indptr = nullptr;
    skip_tokens(piece.begin);
  }
  RequestCall(const RequestCall&) = delete;

 private:
  void skip_tokens(int64_t count) {
    for (LinearAttnRows* rows : {&call.q, &call.k, &call.v, &call.g, &call.beta}) skip(*rows, count);
    call.out = static_cast<std::byte*>(call.out) + count * call.out_token_stride * (call.out_dtype == DType::f32 ? 4 : 2);
    for (LinearAttnRows* rows : {&conv.x, &conv.v_weight, &gates.a, &gates.b, &norm.z}) skip(*rows, count);
  }
  static void skip(LinearAttnRows& rows, int64_t tokens) {
    if (rows.data == nullptr) return;
    rows.data = static_cast<const std::byte*>(rows.data) + tokens * rows.token_stride * (rows.dtype == DType::f32 ? 4 : 2);
  }
};

// What a comparison of bits found; where calls failed there was nothing to compare.
CaseResult result_of(LinearAttnKernelBase& kernel, std::string found) {
  if (const Status failure = kernel.take_failure(); !failure.ok()) found = failure.message();
  return {.text = std::move(found)};
}

void run_phase(LinearAttnKernelBase& kernel, LinearAttnProblem& problem, Phase phase, const SuiteOptions& options,
               CaseResult& result) {
  LinearAttnCall call = problem.call();
  const GuardedWorkspace workspace(kernel, call);
  const LinearAttnTruth truth = linear_attn_reference(call, phase);
  const LinearAttnTruth naive = options.naive(call, phase);
  call_kernel(kernel, call, phase);
  if (const Status failure = kernel.take_failure(); !failure.ok()) {
    result.text = fmt::format("{}: {}", linear_attn_phase_name(phase), failure.message());
    return;
  }
  if (!truth.out.empty()) compare_outputs(problem, truth, naive, options, result);
  compare_states(problem, truth, naive, options, result);
  // commit leaves `out` to the verify before it.
  const std::string overwritten = problem.overwritten(truth.slots, true);
  if (result.text.empty()) result.text = overwritten;
  if (result.text.empty() && workspace.overrun()) result.text = "wrote past the end of its workspace";
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

CaseResult run_alone(LinearAttnKernelBase& kernel, const LinearAttnCase& c) {
  LinearAttnProblem together(c), apart(c);
  LinearAttnCall all = together.call();
  const GuardedWorkspace workspace(kernel, all);
  call_kernel(kernel, all, c.phase);
  for (int r = 0; r < all.batch->num_requests; ++r) {
    RequestCall one(apart.call(), r);
    const GuardedWorkspace own(kernel, one.call);
    call_kernel(kernel, one.call, c.phase);
  }
  std::string differs = together.difference(apart);
  if (!differs.empty()) differs = fmt::format("{}: {} has other bits alone than in its batch", linear_attn_phase_name(c.phase), differs);
  return result_of(kernel, std::move(differs));
}

CaseResult run_in_pieces(LinearAttnKernelBase& kernel, const LinearAttnCase& c) {
  LinearAttnProblem at_once(c), cut(c);
  LinearAttnCall all = at_once.call();
  const GuardedWorkspace workspace(kernel, all);
  kernel.extend(all);
  const LinearAttnBatch& batch = *all.batch;
  for (int r = 0; r < batch.num_requests; ++r) {
    Piece piece{.from = batch.initial_slots != nullptr ? batch.initial_slots[r] : batch.slots[r]};
    const auto run_to = [&](int end, int32_t slot) {
      piece.end = end, piece.to = slot;
      RequestCall one(cut.call(), r, piece);
      const GuardedWorkspace own(kernel, one.call);
      kernel.extend(one.call);
      piece.begin = end, piece.from = slot;
    };
    for (int i = batch.checkpoint_indptr[r]; i < batch.checkpoint_indptr[r + 1] && batch.slots[r] >= 0; ++i) {
      run_to(batch.checkpoint_tokens[i], batch.checkpoint_slots[i]);
    }
    run_to(batch.q_indptr[r + 1] - batch.q_indptr[r], batch.slots[r]);
  }
  std::string differs = at_once.difference(cut);
  if (!differs.empty()) differs = fmt::format("{} has other bits than of calls that end at checkpoints", differs);
  return result_of(kernel, std::move(differs));
}

CaseResult run_drafted_and_decoded(LinearAttnKernelBase& kernel, const LinearAttnCase& c) {
  LinearAttnProblem drafted(c), decoded(c);
  LinearAttnCall all = drafted.call();
  all.same_bits_drafted = true;
  LinearAttnBatch batch = *all.batch;
  std::vector<int32_t> accepted;
  for (int r = 0; r < batch.num_requests; ++r) accepted.push_back(batch.q_indptr[r + 1] - batch.q_indptr[r] - 1);
  batch.accepted = accepted.data();
  all.batch = &batch;
  const GuardedWorkspace workspace(kernel, all);
  kernel.target_verify(all);
  kernel.commit(all);
  for (int r = 0; r < batch.num_requests; ++r) {
    Piece piece{.from = batch.initial_slots != nullptr ? batch.initial_slots[r] : batch.slots[r], .to = batch.slots[r]};
    for (piece.begin = 0; piece.begin <= accepted[r]; ++piece.begin, piece.from = piece.to) {
      piece.end = piece.begin + 1;
      RequestCall one(decoded.call(), r, piece);
      one.call.same_bits_drafted = true;
      const GuardedWorkspace own(kernel, one.call);
      kernel.decode(one.call);
    }
  }
  std::string differs = drafted.difference(decoded);
  if (!differs.empty()) differs = fmt::format("{} has other bits drafted than decoded", differs);
  return result_of(kernel, std::move(differs));
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
