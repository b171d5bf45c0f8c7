// For tests: a GPU's kernel for calls whose tensors are in host memory, and long random calls on the GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <type_traits>
#include <vector>

#include "base/float16.h"
#include "device/cuda/copy.h"
#include "device/cuda/graph.h"
#include "device/cuda/stream.h"
#include "linear/linear_attn.h"

namespace warpweave::linear {

inline void must(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::abort();
}
inline void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::abort();
}

inline size_t bytes_of_type(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

// Device memory, all of it freed at the end.
class GpuMemory {
 public:
  GpuMemory() = default;
  GpuMemory(const GpuMemory&) = delete;
  ~GpuMemory() {
    for (void* part : parts_) cudaFree(part);
  }
  // Full of NaN.
  void* take(size_t bytes) {
    void* part = nullptr;
    must(cudaMalloc(&part, bytes + 256));
    parts_.push_back(part);
    must(fill_now(part, 0xff, bytes + 256, "a case"));
    return part;
  }
  template <class T>
  T* copy(const T* from, size_t count) {
    if (from == nullptr) return nullptr;
    void* const to = take(count * sizeof(T));
    must(copy_now(to, from, count * sizeof(T), "a case"));
    return static_cast<T*>(to);
  }
  const void* copy_bytes(const void* from, size_t bytes) { return copy(static_cast<const char*>(from), bytes); }
  void* copy_bytes(void* from, size_t bytes) { return copy(static_cast<char*>(from), bytes); }

 private:
  std::vector<void*> parts_;
};

// Copies what a call names to the GPU, runs it (`captured`: as a captured graph), copies outputs, states and the workspace with
// its guard back.
class GpuAdapter : public LinearAttnKernelBase {
 public:
  explicit GpuAdapter(std::unique_ptr<LinearAttnKernelBase> kernel, bool captured = false)
      : kernel_(std::move(kernel)), captured_(captured) {}
  const LinearAttnKernelCaps& caps() const override { return kernel_->caps(); }
  size_t workspace_bytes(const LinearAttnShape& s, const LinearAttnLimits& l) const override { return kernel_->workspace_bytes(s, l); }
  void decode(const LinearAttnCall& call) override { run(call, &LinearAttnKernelBase::decode); }
  void extend(const LinearAttnCall& call) override { run(call, &LinearAttnKernelBase::extend); }
  void target_verify(const LinearAttnCall& call) override { run(call, &LinearAttnKernelBase::target_verify); }
  void commit(const LinearAttnCall& call) override { run(call, &LinearAttnKernelBase::commit); }

 private:
  static constexpr size_t kGuardBytes = 4096;  // the suite's, behind the workspace

  struct OnGpu {
    GpuMemory memory;
    LinearAttnBatch batch;
    LinearAttnConv conv;
    LinearAttnGates gates;
    LinearAttnNorm norm;
    LinearAttnCall call;
    size_t slots = 0;

    void rows(LinearAttnRows& r) {
      if (r.data != nullptr) r.data = memory.copy_bytes(r.data, batch.num_tokens * r.token_stride * bytes_of_type(r.dtype));
    }
    void copy_batch() {
      LinearAttnBatch& b = batch;
      const int n = b.num_requests, checkpoints = b.checkpoint_indptr == nullptr ? 0 : b.checkpoint_indptr[n];
      const auto copy = [&](const int32_t*& of, size_t count) { of = memory.copy(of, count); };
      const auto copy_slots = [&](const int32_t*& of, int count) {
        for (int i = 0; of != nullptr && i < count; ++i) slots = std::max<size_t>(slots, of[i] + 1);
        copy(of, count);
      };
      copy_slots(b.slots, n), copy_slots(b.initial_slots, n), copy_slots(b.checkpoint_slots, checkpoints);
      copy(b.checkpoint_tokens, checkpoints), copy(b.checkpoint_indptr, n + 1), copy(b.q_indptr, n + 1);
      copy(b.parents, b.num_tokens), copy(b.accepted, n);
    }
    size_t conv_bytes() const { return slots * conv.slot_stride * bytes_of_type(conv.state_dtype); }
    void copy_parts() {
      const LinearAttnShape& s = call.shape;
      if (call.conv != nullptr) {
        conv = *call.conv;
        rows(conv.x), rows(conv.v_weight);
        conv.weight = memory.copy(conv.weight, s.conv_channels() * conv.width);
        conv.bias = memory.copy(conv.bias, s.conv_channels());
        conv.state = memory.copy_bytes(conv.state, conv_bytes());
        call.conv = &conv;
      }
      if (call.gates != nullptr) {
        gates = *call.gates;
        rows(gates.a), rows(gates.b);
        gates.a_log = memory.copy(gates.a_log, s.v_heads);
        gates.dt_bias = memory.copy(gates.dt_bias, s.v_heads * s.decay_dim());
        call.gates = &gates;
      }
      if (call.norm != nullptr) {
        norm = *call.norm;
        rows(norm.z);
        norm.weight = memory.copy(norm.weight, s.v_dim);
        call.norm = &norm;
      }
    }
  };

  void run(const LinearAttnCall& host, void (LinearAttnKernelBase::*phase)(const LinearAttnCall&)) {
    OnGpu on;
    on.call = host;
    on.batch = *host.batch;
    on.copy_batch();
    on.call.batch = &on.batch;
    on.rows(on.call.q), on.rows(on.call.k), on.rows(on.call.v), on.rows(on.call.g), on.rows(on.call.beta);
    on.copy_parts();
    const size_t state_bytes = on.slots * host.state.slot_stride * bytes_of_type(host.state.dtype);
    const size_t out_bytes = on.batch.num_tokens * host.out_token_stride * bytes_of_type(host.out_dtype);
    const size_t workspace_bytes = host.workspace_bytes + kGuardBytes;
    on.call.state.data = on.memory.copy_bytes(host.state.data, state_bytes);
    on.call.out = on.memory.copy_bytes(host.out, out_bytes);
    on.call.workspace = on.memory.copy_bytes(host.workspace, workspace_bytes);
    if (captured_) {
      replay(on.call, phase);
    } else {
      (kernel_.get()->*phase)(on.call);
      must(cudaGetLastError());
    }
    must(cudaDeviceSynchronize());
    const auto back = [](void* to, const void* from, size_t bytes) { must(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost)); };
    back(host.state.data, on.call.state.data, state_bytes);
    back(host.out, on.call.out, out_bytes);
    back(host.workspace, on.call.workspace, workspace_bytes);
    if (host.conv != nullptr) back(host.conv->state, on.conv.state, on.conv_bytes());
  }

  void replay(LinearAttnCall& call, void (LinearAttnKernelBase::*phase)(const LinearAttnCall&)) {
    const CudaStream stream = value_of(create_stream());
    call.stream = stream.get();
    const CudaGraphExec exec = value_of(capture_graph(stream.get(), "a case", [&] {
      (kernel_.get()->*phase)(call);
      return Status();
    }));
    must(cudaGraphLaunch(exec.get(), stream.get()));
    must(cudaStreamSynchronize(stream.get()));
  }
  template <class T>
  static T value_of(Result<T> result) {
    if (result.ok()) return std::move(result).value();
    std::fprintf(stderr, "%s\n", result.status().message().c_str());
    std::abort();
  }

  std::unique_ptr<LinearAttnKernelBase> kernel_;
  const bool captured_;
};

// Normal random rows in bf16 on the GPU.
inline LinearAttnRows random_rows(GpuMemory& memory, int64_t tokens, int heads, int dim, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<uint16_t> block((1 << 20) + 331), all(tokens * heads * dim);
  for (uint16_t& x : block) x = f32_to_bf16(normal(random));
  for (size_t i = 0; i < all.size(); ++i) all[i] = block[i % block.size()];
  return {memory.copy(all.data(), all.size()), DType::bf16, int64_t{heads} * dim, dim};
}

// `requests` of `tokens` each; `slots` states, request i's in slot i % slots.
struct RandomRequests {
  int requests, tokens, slots;
};

// With raw gates and l2norm, as a model has them; states of zeros.
struct RandomCall {
  GpuMemory memory;
  LinearAttnBatch batch;
  LinearAttnGates gates;
  LinearAttnCall call;
  int64_t state_elements = 0;

  RandomCall(const LinearAttnKernelBase& kernel, const LinearAttnShape& shape, RandomRequests of, DType state_dtype) {
    const auto [requests, tokens, slots] = of;
    std::mt19937 random(std::random_device{}());
    const int64_t rows = int64_t{requests} * tokens;
    std::vector<int32_t> indptr(requests + 1), slot(requests);
    for (int i = 0; i <= requests; ++i) indptr[i] = i * tokens;
    for (int i = 0; i < requests; ++i) slot[i] = i % slots;
    batch.num_requests = requests, batch.num_tokens = rows, batch.max_q_tokens = tokens;
    batch.q_indptr = memory.copy(indptr.data(), indptr.size());
    batch.slots = memory.copy(slot.data(), slot.size());
    call.shape = shape;
    call.batch = &batch;
    call.q = random_rows(memory, rows, shape.k_heads, shape.k_dim, random);
    call.k = random_rows(memory, rows, shape.k_heads, shape.k_dim, random);
    call.v = random_rows(memory, rows, shape.v_heads, shape.v_dim, random);
    gates.a = random_rows(memory, rows, shape.v_heads, shape.decay_dim(), random);
    gates.b = random_rows(memory, rows, shape.v_heads, 1, random);
    std::vector<float> a_log(shape.v_heads), bias(shape.v_heads * shape.decay_dim(), -1.0f);
    for (float& x : a_log) x = std::uniform_real_distribution<float>(-3, 1)(random);
    gates.a_log = memory.copy(a_log.data(), a_log.size());
    gates.dt_bias = memory.copy(bias.data(), bias.size());
    call.gates = &gates;
    call.l2norm = true;
    call.scale = 1.0f / std::sqrt(static_cast<float>(shape.k_dim));
    call.state.dtype = state_dtype;
    call.state.head_stride = int64_t{shape.v_dim} * shape.k_dim;
    call.state.slot_stride = shape.v_heads * call.state.head_stride;
    state_elements = slots * call.state.slot_stride;
    call.state.data = memory.take(state_elements * bytes_of_type(state_dtype));
    call.out_dtype = DType::bf16;
    call.out_token_stride = int64_t{shape.v_heads} * shape.v_dim;
    call.out = memory.take(rows * call.out_token_stride * 2);
    call.workspace_bytes = kernel.workspace_bytes(shape, {requests, rows, 0});
    call.workspace = memory.take(call.workspace_bytes);
    forget();
  }
  // States become zeros, outputs NaN.
  void forget() {
    must(cudaMemset(call.state.data, 0, state_elements * bytes_of_type(call.state.dtype)));
    must(cudaMemset(call.out, 0xff, batch.num_tokens * call.out_token_stride * 2));
    must(cudaDeviceSynchronize());
  }
  std::vector<uint16_t> out() const {
    must(cudaDeviceSynchronize());
    std::vector<uint16_t> all(batch.num_tokens * call.out_token_stride);
    must(cudaMemcpy(all.data(), call.out, all.size() * 2, cudaMemcpyDeviceToHost));
    return all;
  }
  std::vector<std::byte> state_bytes() const {
    must(cudaDeviceSynchronize());
    std::vector<std::byte> all(state_elements * bytes_of_type(call.state.dtype));
    must(cudaMemcpy(all.data(), call.state.data, all.size(), cudaMemcpyDeviceToHost));
    return all;
  }
  // f32 states.
  std::vector<float> state() const {
    must(cudaDeviceSynchronize());
    std::vector<float> all(state_elements);
    must(cudaMemcpy(all.data(), call.state.data, all.size() * 4, cudaMemcpyDeviceToHost));
    return all;
  }
};

// ||found - right|| / ||right||, of bf16 or f32; NaN where one is NaN.
template <typename T>
double relative_difference(const std::vector<T>& found, const std::vector<T>& right) {
  const auto value = [](T x) -> double {
    if constexpr (std::is_same_v<T, uint16_t>)
      return bf16_to_f32(x);
    else
      return x;
  };
  double error = 0, size = 0;
  for (size_t i = 0; i < right.size(); ++i) {
    const double x = value(right[i]), d = value(found[i]) - x;
    error += d * d, size += x * x;
  }
  return std::sqrt(error / size);
}

// ||extend - decode|| / ||decode|| of outputs and of the final state, the larger; infinite where one is NaN.
inline double difference_from_decode(LinearAttnKernelBase& kernel, const LinearAttnShape& shape, int tokens) {
  RandomCall all(kernel, shape, {1, tokens, 1}, DType::f32);
  kernel.extend(all.call);
  const auto out = all.out();
  const auto state = all.state();
  all.forget();
  LinearAttnBatch one = all.batch;
  one.num_tokens = one.max_q_tokens = 1, one.q_indptr = nullptr;
  LinearAttnGates gates = all.gates;
  LinearAttnCall call = all.call;
  call.batch = &one;
  call.gates = &gates;
  const auto step = [](LinearAttnRows& rows) { rows.data = static_cast<const char*>(rows.data) + rows.token_stride * 2; };
  for (int t = 0; t < tokens; ++t) {
    kernel.decode(call);
    step(call.q), step(call.k), step(call.v), step(gates.a), step(gates.b);
    call.out = static_cast<char*>(call.out) + call.out_token_stride * 2;
  }
  const auto right = all.out();
  const auto right_state = all.state();
  const double of_out = relative_difference(out, right), of_state = relative_difference(state, right_state);
  std::printf("%d tokens: outputs differ from decode's by %.2e, states by %.2e\n", tokens, of_out, of_state);
  return of_out >= 0 && of_state >= 0 ? std::max(of_out, of_state) : INFINITY;
}

// Whether 20 runs of extend, in any form, give the same bits.
inline bool repeats(LinearAttnKernelBase& kernel, const LinearAttnShape& shape, int requests, int tokens) {
  RandomCall all(kernel, shape, {requests, tokens, requests}, DType::f32);
  all.call.any_form = true;
  std::vector<uint16_t> first;
  std::vector<float> first_state;
  for (int i = 0; i < 20; ++i) {
    all.forget();
    kernel.extend(all.call);
    const auto out = all.out();
    const auto state = all.state();
    if (i == 0) first = out, first_state = state;
    if (out != first || std::memcmp(state.data(), first_state.data(), state.size() * 4) != 0) return false;
  }
  return true;
}

}  // namespace warpweave::linear
