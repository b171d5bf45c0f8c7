#include "ops/latent_rows.h"

#include <cassert>

#include "ops/elementwise_dispatch.h"
#include "ops/kv_row_writer.h"

namespace warpweave {
namespace {

constexpr int64_t kSerialElements = 16 * 1024;

void one_row(const ElementwiseKernels& kernels, const LatentRowsCall& call, int64_t r) {
  const auto rotate = [&](float* part) {
    if (call.rope == nullptr) return;
    const RopeTable& rope = *call.rope;
    assert(call.positions[r] >= 0 && call.positions[r] < rope.positions);
    const int half = rope.rotary_dim / 2;
    const int64_t angles = int64_t{call.positions[r]} * half;
    kernels.rope(part, rope.cos.data() + angles, rope.sin.data() + angles, half, rope.interleaved);
  };
  float* const q = call.q_rope + r * call.q_stride;
  for (int h = 0; h < call.num_heads; ++h) rotate(q + h * call.q_head_stride);
  float* const token = call.token + r * call.token_stride;
  kernels.rms_norm({.x = token,
                    .weight = call.latent_norm,
                    .cols = call.kv_rank,
                    .weight_offset = 0,
                    .eps = call.norm_eps,
                    .out = token,
                    .out_is_bf16 = false,
                    .accumulate = false});
  rotate(token + call.kv_rank);
  if (call.out.data == nullptr || call.kv_slots[r] < 0) return;
  write_kv_head(kernels, call.out, 0, slot_index(call.out, call.kv_slots[r], call.page_size),
                {token, static_cast<size_t>(call.kv_rank + call.rope_dim)});
}

}  // namespace

void norm_rope_write_latent(const LatentRowsCall& call, ThreadTeam& team) {
  assert(call.rope == nullptr || (call.positions != nullptr && call.rope->rotary_dim == call.rope_dim));
  const ElementwiseKernels& kernels = elementwise_kernels_of(cpu_info().tier);
  const auto rows = [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) one_row(kernels, call, r);
  };
  const int64_t row_elements = int64_t{call.num_heads + 1} * call.rope_dim + call.kv_rank;
  if (call.rows * row_elements <= kSerialElements) {
    rows(0, call.rows);
  } else {
    team.parallel_for(call.rows, 4, rows);
  }
}

}  // namespace warpweave
