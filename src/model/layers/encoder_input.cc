#include "model/layers/encoder_input.h"

#include <algorithm>

#include "model/layers/residual.h"
#include "model/tensor_packer.h"
#include "ops/elementwise.h"

namespace warpweave {
Result<EncoderInput> EncoderInput::create(const ModelConfig& config, const WeightSource& source) {
  EncoderInput out;
  const EncoderConfig& encoder = *config.encoder;
  const int64_t hidden = config.hidden_size, vector_shape[] = {hidden};
  const int64_t positions_shape[] = {encoder.learned_positions, hidden}, types_shape[] = {encoder.token_types, hidden};
  if (encoder.learned_positions > 0) {
    out.first_position_ = encoder.first_position;
    WW_ASSIGN_OR_RETURN(out.positions_, find_widened(source, "model.embed_positions.weight", positions_shape));
  }
  if (encoder.token_types > 0) {
    out.num_types_ = encoder.token_types;
    WW_ASSIGN_OR_RETURN(out.types_, find_widened(source, "model.embed_token_types.weight", types_shape));
  }
  WW_ASSIGN_OR_RETURN(out.norm_.weight, find_widened(source, "model.embed_norm.weight", vector_shape));
  if (!source.has("model.embed_norm.bias")) return out;
  WW_ASSIGN_OR_RETURN(out.norm_.bias, find_widened(source, "model.embed_norm.bias", vector_shape));
  return out;
}

void EncoderInput::apply(const ForwardBatch& batch, ResidualStream& x) const {
  const int64_t hidden = x.hidden_size();
  for (int64_t r = 0; r < x.rows(); ++r) {
    float* const row = x.data() + r * hidden;
    if (!positions_.empty())
      add_inplace(row, positions_.data() + (first_position_ + batch.positions[r]) * hidden, hidden);
    if (types_.empty()) continue;
    const int type = batch.token_types.empty() ? 0 : std::min<int>(batch.token_types[r], num_types_ - 1);
    add_inplace(row, types_.data() + type * hidden, hidden);
  }
  x.renorm(norm_);
}

}  // namespace warpweave
