// What joins the embeddings of an encoder's tokens before its first layer: learned positions and token types, and a
// norm of the sum (Devlin et al. 2018). On the host. Immutable; as large as its tables.
#pragma once

#include <vector>

#include "batch/forward_batch.h"
#include "model/config.h"
#include "model/layers/on_host.h"
#include "model/weight_source.h"

namespace warpweave {

class EncoderInput {
 public:
  EncoderInput() = default;  // of a decoder: nothing joins
  // The weights "model.embed_positions", "model.embed_token_types" and "model.embed_norm", as far as `config` has them.
  static Result<EncoderInput> create(const ModelConfig& config, const WeightSource& source);

  // x += positions + types, normed; x holds the rows of the batch.
  void apply(const ForwardBatch& batch, ResidualStream& x) const;

 private:
  std::vector<float> positions_;  // [positions, hidden], or empty
  int first_position_ = 0;
  std::vector<float> types_;      // [types, hidden], or empty
  int num_types_ = 0;
  RowNorm norm_;
};

}  // namespace warpweave
