// Weights by name to a DecoderModel: finds every tensor the family needs, checks its shape, packs it.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "base/threads.h"
#include "model/decoder.h"
#include "model/draft_head.h"
#include "model/weight_source.h"

namespace warpweave {

struct BuildOptions {
  DType dtype = DType::bf16;   // --dtype resolved: f32, bf16 or f16
  int max_positions = 0;       // rope tables reach this far: the context length served
  bool batch_invariant = true; // on the CPU: a row's bits do not depend on the number of rows (ops/linear.h)
  // On the CPU: q8_0 or iq4_nl, that plain matrices are rounded to as they are packed, where it multiplies bytes.
  std::optional<DType> blocks = {};
  std::function<void(int done_layers, int all_layers)> progress;  // may be empty
};

// What every decoder is built from, on the CPU and on a GPU: the family's settings, `unsupported` for
// an architecture or activation that is missing here, and the numbers that follow from them.
struct FamilyTraits;
Result<FamilyTraits> family_traits(const ModelConfig& config);
DecoderSpec decoder_spec(const ModelConfig& config, const FamilyTraits& traits);
// The sizes that the GPU's decoder takes: `unsupported` with --device as its field for others.
Status check_gpu_model(const ModelConfig& config);

// A draft head (model/draft_head.h): its layers, fc, which makes their rows, and its norms; forward_from() runs them.
Result<std::unique_ptr<DecoderModel>> build_draft_head(DraftHeadKind kind, const ModelConfig& config,
                                                       std::shared_ptr<WeightSource> source,
                                                       const BuildOptions& options, ThreadTeam& team);

// f32 checkpoints are converted when `dtype` is smaller; bf16 and f16 checkpoints under f32 keep
// their stored dtype (widening in registers is exact). `source` may be let go afterwards unless the
// embedding stays in it (untied models keep a reference).
Result<std::unique_ptr<DecoderModel>> build_decoder(const ModelConfig& config,
                                                    std::shared_ptr<WeightSource> source,
                                                    const BuildOptions& options, ThreadTeam& team);

}  // namespace warpweave
