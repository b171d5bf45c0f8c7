// Draft trees on CPUs in deterministic mode. Each node is a request of one row, which sees the prefix and then the
// node's ancestors in the order that a text would have them, on pages of one token: its bits are those of the text.
// Kernels whose blocks of keys lie at fixed places do not give them to a tree, where an ancestor may stand in another
// block. cuda/tree_requests.h is the same on GPUs.
#pragma once

#include <memory>

#include "attention/backend.h"

namespace warpweave {

// `inner`, made for `context`, which runs batches of any page size; in deterministic mode with trees as texts. Their
// forward calls allocate where a batch is larger than all before it, and are `unsupported` where a pool's pages do not
// lie a whole number of tokens apart.
std::unique_ptr<AttentionBackend> with_trees_as_texts(std::unique_ptr<AttentionBackend> inner,
                                                      const BackendContext& context);

}  // namespace warpweave
