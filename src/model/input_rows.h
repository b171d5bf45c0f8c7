// Rows of a forward's input that stand in place of the embeddings of its ids: what a request brings as input_embeds.
#pragma once

#include <span>

namespace warpweave {

struct InputRows {
  int row = 0;                    // of the batch's tokens, the first
  std::span<const float> values;  // [rows, hidden], before the model's embedding scale; owned by the request
};

}  // namespace warpweave
