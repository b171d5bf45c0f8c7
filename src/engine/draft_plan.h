// The draft model of --speculative-draft-model-path: what would run it, or the rule against it, before weights are
// read; and then its start.
#pragma once

#include <memory>
#include <optional>

#include "attention/select.h"
#include "flags/server_args.h"
#include "kv/cache_layout.h"
#include "kv/kv_cache.h"
#include "model/draft_head.h"
#include "model/model_bundle.h"
#include "spec/draft_options.h"

namespace warpweave {

class DecoderModel;
class Drafter;
class ThreadTeam;

// Requests whose first level of drafts is kept, of each that may run: those that wait keep theirs, too.
inline constexpr int kDraftSlotsPerRequest = 2;

struct DraftPlan {
  ModelConfig config;
  std::shared_ptr<WeightSource> weights;
  DType dtype = DType::bf16;
  std::optional<DType> blocks;  // that its matrices, and its copy of the head, are rounded to on a CPU
  Resolved attention;           // of the draft model's own passes
  DraftOptions options;
  std::optional<DraftHeadKind> head;  // unset: a model of its own
  std::vector<int> target_layers;     // whose rows an EAGLE3 head reads
  std::vector<int32_t> tokens;        // what a head's logits stand for; empty: every token in order
  // Of a head on a GPU that multiplies 8 bits: it reads a copy of the model's output head in e4m3, and its own weights
  // are rounded, too, if they can be.
  bool head_in_8_bits = false, rounds_weights = false;
  int cache_group = 0;          // of the target's: the one whose pages all tokens stay in
};

// What a plan for the target has said so far.
struct DraftTarget {
  const ModelConfig& config;
  const std::string& path;  // of its checkpoint; empty: only the configuration is known
  const Resolved& attention;
  const CacheLayout& cache_layout;
  const HardwareFacts& hardware;
  int context_len = 0;
  DType dtype = DType::bf16;
};

// nullopt: the algorithm needs no draft model. Reads the draft model's configuration. Errors name the flag.
Result<std::optional<DraftPlan>> plan_draft(const ServerArgs& args, const DraftTarget& target);

// Whether --speculative-algorithm EAGLE without a draft model means the model's own layers, as NEXTN does.
bool has_nextn_layers(const ModelConfig& config);

// What `target` must keep of each forward for the draft model.
void keep_for_drafts(const DraftPlan& plan, DecoderModel& target);

// Bytes that the draft model's K/V take beside a page of the target's.
size_t draft_page_bytes(const DraftPlan& plan);

KvCacheShape draft_cache_shape(const DraftPlan& plan, int num_pages);

struct DraftLimits {
  int num_pages = 0;
  int context_len = 0;
  int max_requests = 0;         // that run at a time
};
// On the CPU. `target` and `team` outlive the drafter.
Result<std::unique_ptr<Drafter>> start_drafter(const DraftPlan& plan, const DraftLimits& limits, DecoderModel& target,
                                               ThreadTeam& team);

}  // namespace warpweave
