#include "model/layers/encoder_input.h"

#include <algorithm>

#include "model/layers/residual.h"
#include "model/tensor_packer.h"
#include "ops/elementwise.h"

namespace warpweave {
namespace {

Result<std::vector<float>> read_table(const WeightSource& source, const char* name, int64_t rows, int64_t cols) {
  const int64_t shape[] = {rows, cols};
  WW_ASSIGN_OR_RETURN(const TensorView view, source.find(name, shape));
  return widened(view);
}

}  // namespace

Result<EncoderInput> EncoderInput::create(const ModelConfig& config, const WeightSource& source) {
  EncoderInput out;
  const EncoderConfig& encoder = *config.encoder;
  const int64_t hidden = config.hidden_size, vector_shape[] = {hidden};
  if (encoder.learned_positions > 0) {
    out.first_position_ = encoder.first_position;
    WW_ASSIGN_OR_RETURN(out.positions_, read_table(source, "model.embed_positions.weight", encoder.learned_positions, hidden));
  }
  if (encoder.token_types > 0) {
    out.num_types_ = encoder.token_types;
    WW_ASSIGN_OR_RETURN(out.types_, read_table(source, "model.embed_token_types.weight", encoder.token_types, hidden));
  }
  WW_ASSIGN_OR_RETURN(const TensorView weight, source.find("model.embed_norm.weight", vector_shape));
  out.norm_.weight = widened(weight);
  if (!source.has("model.embed_norm.bias")) return out;
  WW_ASSIGN_OR_RETURN(const TensorView bias, source.find("model.embed_norm.bias", vector_shape));
  out.norm_.bias = widened(bias);
  return out;
}

void EncoderInput::apply(const ForwardBatch& batch, ResidualStream& x) const {
  const int64_t hidden = x.hidden_size();
  for (int64_t r = 0; r < x.rows(); ++r) {
    float* const row = x.data() + r * hidden;
    if (!positions_.empty()) add_inplace(row, positions_.data() + (first_position_ + batch.positions[r]) * hidden, hidden);
    if (types_.empty()) continue;
    const int type = batch.token_types.empty() ? 0 : std::min<int>(batch.token_types[r], num_types_ - 1);
    add_inplace(row, types_.data() + type * hidden, hidden);
  }
  x.renorm(norm_);
}

}  // namespace warpweave
