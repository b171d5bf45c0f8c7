#include "ops/moe.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>

#include "ops/router.h"

namespace warpweave {
namespace {

// Below this many elements rows are moved or summed before another thread has woken up.
constexpr int64_t kSerialElements = 16 * 1024;

// Grow-only memory of the calling thread: a decode step allocates nothing.
struct Scratch {
  std::vector<float> logits, weights, results, shared_results;
  std::vector<int32_t> chosen, first_of_expert, slot_of;
  std::vector<std::byte> rows, gathered, inner, shared_rows, shared_inner;
  std::vector<LinearTask> tasks;
};

template <typename T>
T* at_least(std::vector<T>& v, size_t n) {
  if (v.size() < n) v.resize(n);
  return v.data();
}

void over_rows(ThreadTeam& team, int64_t rows, int64_t elements_per_row, FunctionRef<void(int64_t, int64_t)> body) {
  if (rows * elements_per_row <= kSerialElements) return body(0, rows);
  team.parallel_for(rows, std::max<int64_t>(1, kSerialElements / 2 / elements_per_row), body);
}

// 16 sums side by side, so that the compiler may keep them in one register.
float dot(const float* a, const float* b, int64_t n) {
  float sums[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int j = 0; j < 16; ++j) sums[j] += a[i + j] * b[i + j];
  }
  float sum = 0;
  for (; i < n; ++i) sum += a[i] * b[i];
  for (const float part : sums) sum += part;
  return sum;
}

// One call's way through its layer.
class Layer {
 public:
  Layer(const MoeCall& call, Scratch& scratch, ThreadTeam& team)
      : call_(call), s_(scratch), team_(team), hidden_(call.router->in_features()), k_(call.rule.k),
        experts_(static_cast<int>(call.experts.size())), pairs_(call.rows * k_) {
    assert(call.rule.num_experts == experts_ && call.router->out_features() == experts_);
  }

  void run() {
    route();
    group_by_expert();
    multiply();
    combine();
  }

 private:
  void route();
  void group_by_expert();
  void multiply();
  void combine();
  LinearInput prepared(const PackedLinear& linear, std::vector<std::byte>& memory);
  LinearInput gather(const LinearInput& rows);
  LinearOutput inner_of(const PackedLinear& down, int64_t rows, std::vector<std::byte>& memory);
  void add_tasks(const LinearInput& x, const LinearOutput& y, const PackedLinear MoeExpert::*linear);

  const MoeCall& call_;
  Scratch& s_;
  ThreadTeam& team_;
  const int64_t hidden_;
  const int k_;
  const int experts_;
  const int64_t pairs_;
};

void Layer::route() {
  float* const logits = at_least(s_.logits, call_.rows * experts_);
  int32_t* const chosen = at_least(s_.chosen, pairs_);
  float* const weights = at_least(s_.weights, pairs_);
  call_.router->forward({.data = call_.x, .rows = call_.rows, .row_stride = call_.x_stride},
                        {.data = logits, .row_stride = experts_}, team_);
  over_rows(team_, call_.rows, experts_ * int64_t{8}, [&](int64_t begin, int64_t end) {
    choose_experts({.logits = logits + begin * experts_, .rows = end - begin, .rule = call_.rule,
                    .correction = call_.correction, .experts_out = chosen + begin * k_,
                    .weights_out = weights + begin * k_});
  });
}

// Sorts the (row, choice) pairs by expert: slot_of[pair] is the pair's row in expert order.
void Layer::group_by_expert() {
  std::vector<int32_t>& next = s_.first_of_expert;
  next.assign(experts_ + 1, 0);
  const int32_t* const chosen = s_.chosen.data();
  for (int64_t i = 0; i < pairs_; ++i) ++next[chosen[i] + 1];
  if (call_.rows_by_expert != nullptr) std::copy_n(next.begin() + 1, experts_, call_.rows_by_expert);
  for (int e = 0; e < experts_; ++e) next[e + 1] += next[e];
  int32_t* const slot = at_least(s_.slot_of, pairs_);
  for (int64_t i = 0; i < pairs_; ++i) slot[i] = next[chosen[i]]++;
  // Each entry has moved on to the next expert's first slot: shift back.
  for (int e = experts_; e > 0; --e) next[e] = next[e - 1];
  next[0] = 0;
}

// The rows of x as forward_all() wants them for `linear`, converted into `memory` where they are not so already.
LinearInput Layer::prepared(const PackedLinear& linear, std::vector<std::byte>& memory) {
  const DType dtype = linear.preferred_input();
  const int64_t width = linear.gemm_width();
  if (dtype == DType::f32) return {.data = call_.x, .rows = call_.rows, .row_stride = call_.x_stride};
  uint16_t* const out = reinterpret_cast<uint16_t*>(at_least(memory, call_.rows * width * sizeof(uint16_t)));
  over_rows(team_, call_.rows, hidden_, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      f32_to_bf16_row(call_.x + r * call_.x_stride, hidden_, out + r * width);
      std::fill(out + r * width + hidden_, out + (r + 1) * width, uint16_t{0});
    }
  });
  return {.data = out, .dtype = dtype, .rows = call_.rows, .row_stride = width};
}

// A copy of its row for every pair, in expert order; one row alone needs none.
LinearInput Layer::gather(const LinearInput& rows) {
  if (call_.rows == 1) return {.data = rows.data, .dtype = rows.dtype, .rows = pairs_, .row_stride = 0};
  const int64_t row_bytes = call_.experts[0].gate_up.gemm_width() * dtype_info(rows.dtype).block_bytes;
  const int64_t from_bytes = rows.row_stride * dtype_info(rows.dtype).block_bytes;
  std::byte* const out = at_least(s_.gathered, pairs_ * row_bytes);
  over_rows(team_, call_.rows, hidden_ * k_, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * k_; i < end * k_; ++i) {
      std::memcpy(out + s_.slot_of[i] * row_bytes, static_cast<const std::byte*>(rows.data) + i / k_ * from_bytes,
                  row_bytes);
    }
  });
  return {.data = out, .dtype = rows.dtype, .rows = pairs_, .row_stride = call_.experts[0].gate_up.gemm_width()};
}

// Memory for what `down` multiplies, zero past its features.
LinearOutput Layer::inner_of(const PackedLinear& down, int64_t rows, std::vector<std::byte>& memory) {
  const int64_t width = down.gemm_width(), element_bytes = dtype_info(down.preferred_input()).block_bytes;
  std::byte* const out = at_least(memory, rows * width * element_bytes);
  if (width > down.in_features()) std::memset(out, 0, rows * width * element_bytes);
  return {.data = out, .dtype = down.preferred_input(), .row_stride = width};
}

// One GEMM for each expert that was chosen, of its rows in expert order.
void Layer::add_tasks(const LinearInput& x, const LinearOutput& y, const PackedLinear MoeExpert::*linear) {
  const int64_t x_bytes = x.row_stride * dtype_info(x.dtype).block_bytes;
  const int64_t y_bytes = y.row_stride * dtype_info(y.dtype).block_bytes;
  for (int e = 0; e < experts_; ++e) {
    const int64_t first = s_.first_of_expert[e], count = s_.first_of_expert[e + 1] - first;
    if (count == 0) continue;
    LinearTask task{&(call_.experts[e].*linear), x, y};
    task.x.data = static_cast<const std::byte*>(x.data) + first * x_bytes;
    task.x.rows = count;
    if (task.x.row_stride == 0) task.x.row_stride = task.linear->gemm_width();  // of one row
    task.y.data = static_cast<std::byte*>(y.data) + first * y_bytes;
    s_.tasks.push_back(task);
  }
}

// Two parallel regions: all chosen experts' gates and ups, then all their downs, the shared ones among them.
void Layer::multiply() {
  const MoeExpert& like = call_.experts[0];
  const LinearInput rows = prepared(like.gate_up, s_.rows);
  const LinearOutput inner = inner_of(like.down, pairs_, s_.inner);
  const LinearOutput results = {.data = at_least(s_.results, pairs_ * hidden_), .row_stride = hidden_};
  LinearOutput shared_inner, shared_results;
  s_.tasks.clear();
  add_tasks(gather(rows), inner, &MoeExpert::gate_up);
  if (call_.shared_down != nullptr) {
    const PackedLinear& up = *call_.shared_gate_up;
    const bool same = up.preferred_input() == rows.dtype && up.gemm_width() == like.gate_up.gemm_width();
    shared_inner = inner_of(*call_.shared_down, call_.rows, s_.shared_inner);
    shared_results = {.data = at_least(s_.shared_results, call_.rows * hidden_), .row_stride = hidden_};
    s_.tasks.push_back({&up, same ? rows : prepared(up, s_.shared_rows), shared_inner});
  }
  PackedLinear::forward_all(s_.tasks, team_);

  s_.tasks.clear();
  add_tasks({.data = inner.data, .dtype = inner.dtype, .rows = pairs_, .row_stride = inner.row_stride}, results,
            &MoeExpert::down);
  if (call_.shared_down != nullptr) {
    s_.tasks.push_back({call_.shared_down,
                        {.data = shared_inner.data,
                         .dtype = shared_inner.dtype,
                         .rows = call_.rows,
                         .row_stride = shared_inner.row_stride},
                        shared_results});
  }
  PackedLinear::forward_all(s_.tasks, team_);
}

void Layer::combine() {
  over_rows(team_, call_.rows, hidden_ * (k_ + 1), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* const y = call_.y + r * call_.y_stride;
      for (int64_t i = r * k_; i < (r + 1) * k_; ++i) {
        add_scaled_inplace(y, s_.results.data() + s_.slot_of[i] * hidden_, s_.weights[i], hidden_);
      }
      if (call_.shared_down == nullptr) continue;
      const float* const x = call_.x + r * call_.x_stride;
      const float gate =
          call_.shared_gate == nullptr ? 1.0f : 1.0f / (1.0f + std::exp(-dot(x, call_.shared_gate, hidden_)));
      add_scaled_inplace(y, s_.shared_results.data() + r * hidden_, gate, hidden_);
    }
  });
}

}  // namespace

void moe_forward(const MoeCall& call, ThreadTeam& team) {
  thread_local Scratch scratch;
  if (call.rows > 0) Layer(call, scratch, team).run();
}

}  // namespace warpweave
