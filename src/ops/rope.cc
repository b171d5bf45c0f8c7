#include "ops/rope.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "ops/elementwise_dispatch.h"
#include "ops/kv_row_writer.h"

namespace warpweave {
namespace {

constexpr int64_t kSerialElements = 16 * 1024;
constexpr int64_t kPositionsAtOnce = 256;  // half a millisecond of one thread at 64 frequencies

struct HeadPass {
  const ElementwiseKernels* kernels;
  const QkvRowsCall* call;

  void norm_and_rotate(float* head, const float* norm, int32_t position) const {
    if (norm && !call->norm_after_rope) apply_norm(head, norm);
    if (const RopeTable* rope = call->rope) {
      assert(position >= 0 && position < rope->positions);
      const int half = rope->rotary_dim / 2;
      kernels->rope(head, rope->cos.data() + int64_t{position} * half,
                    rope->sin.data() + int64_t{position} * half, half, rope->interleaved);
    }
    if (norm && call->norm_after_rope) apply_norm(head, norm);
  }

  void apply_norm(float* head, const float* norm) const {
    kernels->rms_norm({.x = head,
                       .weight = norm,
                       .cols = call->head_dim,
                       .weight_offset = call->norm_weight_offset,
                       .eps = call->norm_eps,
                       .out = head,
                       .out_is_bf16 = false,
                       .accumulate = false});
  }

  void write(const KvPoolView& to, int32_t slot, const float* heads, int dim) const {
    const int64_t base = slot_index(to, slot, call->page_size);
    for (int h = 0; h < call->num_kv_heads; ++h) {
      write_kv_head(*kernels, to, h, base + h * to.head_stride, {heads + int64_t{h} * dim, static_cast<size_t>(dim)});
    }
  }

  void row(int64_t r) const {
    const int32_t position = call->positions ? call->positions[r] : 0;
    float* const q = call->q + r * call->q_stride;
    float* const k = call->k + r * call->k_stride;
    for (int h = 0; h < call->num_q_heads; ++h) {
      norm_and_rotate(q + int64_t{h} * call->head_dim, call->q_norm, position);
    }
    for (int h = 0; h < call->num_kv_heads; ++h) {
      norm_and_rotate(k + int64_t{h} * call->head_dim, call->k_norm, position);
    }
    if (!call->k_out.data || call->kv_slots[r] < 0) return;
    write(call->k_out, call->kv_slots[r], k, call->head_dim);
    write(call->v_out, call->kv_slots[r], call->v + r * call->v_stride, call->v_head_dim);
  }
};

}  // namespace

RopeTable RopeTable::make(const std::vector<double>& inv_freq, int64_t positions, bool interleaved,
                          double attention_factor) {
  RopeTable table = make_empty(inv_freq, positions, interleaved, attention_factor);
  table.cos.resize(positions * inv_freq.size());
  table.sin.resize(positions * inv_freq.size());
  table.positions = positions;
  table.fill(0, positions);
  return table;
}

RopeTable RopeTable::make_empty(const std::vector<double>& inv_freq, int64_t most_positions, bool interleaved,
                                double attention_factor) {
  RopeTable table;
  table.rotary_dim = static_cast<int>(2 * inv_freq.size());
  table.interleaved = interleaved;
  table.inv_freq = inv_freq;
  table.attention_factor = attention_factor;
  table.most_positions = most_positions;
  table.cos.reserve(most_positions * inv_freq.size());
  table.sin.reserve(most_positions * inv_freq.size());
  return table;
}

void RopeTable::reach(int64_t last, ThreadTeam& team) {
  if (last < positions) return;
  assert(last < most_positions);
  const int64_t first = positions;
  positions = std::min(most_positions, (last / kPositionsAtOnce + 1) * kPositionsAtOnce);
  cos.resize(positions * inv_freq.size());
  sin.resize(positions * inv_freq.size());
  team.parallel_for(positions - first, 16, [&](int64_t begin, int64_t end) { fill(first + begin, first + end); });
}

void RopeTable::fill(int64_t begin, int64_t end) {
  const auto half = static_cast<int64_t>(inv_freq.size());
  for (int64_t p = begin; p < end; ++p) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(p) * inv_freq[i];
      cos[p * half + i] = static_cast<float>(std::cos(angle) * attention_factor);
      sin[p * half + i] = static_cast<float>(std::sin(angle) * attention_factor);
    }
  }
}

std::vector<uint8_t> rope_axes(std::span<const int> sections, bool interleaved) {
  assert(sections.size() == 3);
  std::vector<uint8_t> axes;
  if (!interleaved) {
    for (uint8_t axis = 0; axis < 3; ++axis) axes.insert(axes.end(), sections[axis], axis);
    return axes;
  }
  axes.resize(sections[0] + sections[1] + sections[2]);
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto axis = static_cast<uint8_t>(i % 3);
    if (axis > 0 && i < 3 * static_cast<size_t>(sections[axis])) axes[i] = axis;
  }
  return axes;
}

void gather_rope_rows(const RopeTable& table, std::span<const uint8_t> axes, const int32_t* positions, int64_t rows,
                      RopeTable& out) {
  const int64_t half = table.rotary_dim / 2;
  assert(static_cast<int64_t>(axes.size()) == half);
  out.rotary_dim = table.rotary_dim;
  out.interleaved = table.interleaved;
  out.positions = rows;
  out.cos.resize(rows * half);
  out.sin.resize(rows * half);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < half; ++i) {
      const int32_t position = positions[axes[i] * rows + r];
      assert(position >= 0 && position < table.positions);
      out.cos[r * half + i] = table.cos[position * half + i];
      out.sin[r * half + i] = table.sin[position * half + i];
    }
  }
}

void norm_rope_write_kv(const QkvRowsCall& call, ThreadTeam& team) {
  assert(!call.rope || (call.rope->rotary_dim <= call.head_dim && call.positions));
  const HeadPass pass{&elementwise_kernels_of(cpu_info().tier), &call};
  const int64_t row_elements =
      int64_t{call.num_q_heads + call.num_kv_heads} * call.head_dim +
      int64_t{call.num_kv_heads} * call.v_head_dim;
  const auto rows = [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) pass.row(r);
  };
  if (call.rows * row_elements <= kSerialElements) {
    rows(0, call.rows);
  } else {
    team.parallel_for(call.rows, 4, rows);
  }
}

}  // namespace warpweave
