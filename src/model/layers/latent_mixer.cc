#include "model/layers/latent_mixer.h"

#include <algorithm>
#include <cstring>

#include "model/layers/attention_call.h"
#include "model/layers/residual.h"
#include "ops/elementwise.h"
#include "ops/latent_rows.h"

namespace warpweave {
namespace {

void grow(std::vector<float>& values, int64_t size) {
  if (values.size() < static_cast<size_t>(size)) values.resize(size);
}

}  // namespace

void LatentWorkspace::start(int64_t rows) {
  grow(in_, rows * spec_.in_dim());
  if (spec_.dims.q_rank > 0) grow(q_, rows * spec_.q_dim());
  grow(latent_q_, rows * spec_.latent_q_dim());
  grow(latent_out_, rows * spec_.latent_out_dim());
  grow(values_, rows * spec_.value_dim());
}

// The first GEMMs and the queries they end in, whose rows are in_dim or q_dim apart.
float* LatentMixer::queries(const LayerCall& call) {
  const LatentSpec& spec = w_.spec_;
  const LinearInput input = call.x.normed(weights_.norms.in, weights_.in.front());
  float* columns = w_.in_.data();
  for (const PackedLinear& part : weights_.in) {
    part.forward(input, {.data = columns, .row_stride = spec.in_dim()}, call.x.team());
    columns += part.out_features();
  }
  if (spec.dims.q_rank == 0) return w_.in_.data();
  const int64_t rank = spec.dims.q_rank, rows = call.x.rows();
  rms_norm({.x = w_.in_.data(), .rows = rows, .cols = rank, .x_stride = spec.in_dim(), .weight = weights_.q_norm.data(),
            .eps = LatentSpec::kInnerNormEps, .out = w_.in_.data(), .out_stride = spec.in_dim()},
           call.x.team());
  weights_.q_up.forward({.data = w_.in_.data(), .dtype = DType::f32, .rows = rows, .row_stride = spec.in_dim()},
                        {.data = w_.q_.data(), .row_stride = spec.q_dim()}, call.x.team());
  return w_.q_.data();
}

// Norms the latent, rotates the rope parts, writes the cache.
void LatentMixer::write_token(const LayerCall& call, float* queries) {
  const LatentSpec& spec = w_.spec_;
  LatentRowsCall rows;
  rows.rows = call.x.rows();
  rows.num_heads = spec.num_heads;
  rows.kv_rank = spec.dims.kv_rank;
  rows.rope_dim = spec.dims.rope_dim;
  rows.q_rope = queries + spec.dims.nope_dim;
  rows.q_stride = spec.dims.q_rank > 0 ? spec.q_dim() : spec.in_dim();
  rows.q_head_stride = spec.dims.qk_dim();
  rows.token = w_.in_.data() + spec.in_dim() - spec.dims.token_dim();
  rows.token_stride = spec.in_dim();
  rows.latent_norm = weights_.latent_norm.data();
  rows.norm_eps = LatentSpec::kInnerNormEps;
  rows.rope = rope_;
  rows.positions = call.batch.positions.data();
  rows.kv_slots = call.batch.kv_slots.data();
  rows.page_size = call.batch.page_size;
  rows.out = call.cache.k(call.layer);
  norm_rope_write_latent(rows, call.x.team());
}

// Each head's own matrix times its rows, all heads side by side.
void LatentMixer::multiply_heads(std::span<const PackedLinear> heads, const HeadRows& in, const HeadRows& out,
                                 const LayerCall& call) {
  const PackedLinear& first = heads.front();
  const int64_t rows = call.x.rows(), cols = first.in_features(), width = first.gemm_width();
  const int64_t count = static_cast<int64_t>(heads.size());
  const bool staged = first.preferred_input() == DType::bf16;
  if (staged) {
    if (w_.staged_.size() < static_cast<size_t>(count * rows * width)) w_.staged_.resize(count * rows * width);
    call.x.team().parallel_for(count * rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        uint16_t* const row = w_.staged_.data() + i * width;
        f32_to_bf16_row(in.data + i % rows * in.row_stride + i / rows * in.head_stride, cols, row);
        std::fill(row + cols, row + width, uint16_t{0});
      }
    });
  }
  w_.tasks_.clear();
  for (int64_t h = 0; h < count; ++h) {
    LinearInput x{.data = in.data + h * in.head_stride, .dtype = DType::f32, .rows = rows, .row_stride = in.row_stride};
    if (staged)
      x = {.data = w_.staged_.data() + h * rows * width, .dtype = DType::bf16, .rows = rows, .row_stride = width};
    w_.tasks_.push_back({&heads[h], x, {.data = out.data + h * out.head_stride, .row_stride = out.row_stride}});
  }
  PackedLinear::forward_all(w_.tasks_, call.x.team());
}

AttentionCall LatentMixer::attention_call(const LayerCall& call) const {
  AttentionCall attention = latent_attention_call(w_.spec_, call.cache, call.layer);
  attention.q = w_.latent_q_.data();
  attention.out = w_.latent_out_.data();
  return attention;
}

Status LatentMixer::forward(const LayerCall& call) {
  const LatentSpec& spec = w_.spec_;
  const LatentConfig& dims = spec.dims;
  float* const q = queries(call);
  write_token(call, q);
  const std::span<const int32_t> wanted = call.batch.logits_rows;
  if (call.last_mixer && wanted.empty()) return {};

  const int64_t q_stride = dims.q_rank > 0 ? spec.q_dim() : spec.in_dim();
  multiply_heads(weights_.heads.into_latent, {q, q_stride, dims.qk_dim()},
                 {w_.latent_q_.data(), spec.latent_q_dim(), dims.token_dim()}, call);
  for (int64_t r = 0; r < call.x.rows(); ++r) {
    for (int h = 0; h < spec.num_heads; ++h) {
      std::memcpy(w_.latent_q_.data() + r * spec.latent_q_dim() + int64_t{h} * dims.token_dim() + dims.kv_rank,
                  q + r * q_stride + int64_t{h} * dims.qk_dim() + dims.nope_dim, dims.rope_dim * sizeof(float));
    }
  }
  WW_RETURN_IF_ERROR(attend(call.attention, call.batch, attention_call(call)));
  if (call.last_mixer) {
    keep_rows(w_.latent_out_.data(), spec.latent_out_dim(), wanted);
    call.x.keep(wanted);
  }
  multiply_heads(weights_.heads.from_latent, {w_.latent_out_.data(), spec.latent_out_dim(), dims.kv_rank},
                 {w_.values_.data(), spec.value_dim(), dims.v_dim}, call);
  call.x.add(weights_.o,
             {.data = w_.values_.data(), .dtype = DType::f32, .rows = call.x.rows(), .row_stride = spec.value_dim()},
             weights_.norms.out);
  return {};
}

}  // namespace warpweave
