#include "engine/speculation.h"

#include <fmt/format.h>

#include <algorithm>

#include "linear/linear_attn.h"
#include "spec/draft_room.h"
#include "spec/ngram_proposer.h"

namespace warpweave {
namespace {

constexpr int kNgramTrieDepth = 18;
constexpr int kNgramMaxContext = 12;
// A small step is bound by reading weights; from about so many rows on it is bound by computing.
constexpr int kMaxStepProposalsCpu = 64;
constexpr int kMaxStepProposalsGpu = 1024;
constexpr double kStepCostRowsCpu = 4, kStepCostRowsGpu = 128;

Status check_ngram_flags_unset(const ServerArgs& args) {
  struct Given {
    const char* flag;
    bool given;
  };
  for (const Given& flag :
       {Given{"--speculative-ngram-min-match-window-size", args.speculative_ngram_min_match_window_size.has_value()},
        {"--speculative-ngram-max-match-window-size", args.speculative_ngram_max_match_window_size.has_value()},
        {"--speculative-ngram-max-trie-depth", args.speculative_ngram_max_trie_depth.has_value()},
        {"--speculative-ngram-min-bfs-breadth", args.speculative_ngram_min_bfs_breadth.has_value()},
        {"--speculative-ngram-max-bfs-breadth", args.speculative_ngram_max_bfs_breadth.has_value()},
        {"--speculative-ngram-match-type", !args.speculative_ngram_match_type.empty()},
        {"--speculative-ngram-capacity", args.speculative_ngram_capacity.has_value()}}) {
    if (!flag.given) continue;
    return Status::invalid_argument(fmt::format("{} needs --speculative-algorithm NGRAM", flag.flag), flag.flag);
  }
  return {};
}

Status check_draft_flags_unset(const ServerArgs& args) {
  const char* flag = !args.speculative_draft_model_path.empty()          ? "--speculative-draft-model-path"
                     : !args.speculative_draft_attention_backend.empty() ? "--speculative-draft-attention-backend"
                     : !args.speculative_token_map.empty()               ? "--speculative-token-map"
                     : !args.speculative_draft_model_quantization.empty()
                         ? "--speculative-draft-model-quantization"
                     : args.speculative_draft_window_size ? "--speculative-draft-window-size"
                                                          : nullptr;
  if (flag == nullptr) return {};
  return Status::invalid_argument(
      fmt::format("{} needs --speculative-algorithm EAGLE, EAGLE3, NEXTN or STANDALONE", flag), flag);
}

NgramOptions ngram_options(const ServerArgs& args, int topk) {
  NgramOptions out;
  const int depth = args.speculative_ngram_max_trie_depth.value_or(kNgramTrieDepth);
  out.history.min_context = args.speculative_ngram_min_match_window_size.value_or(1);
  out.history.max_context = args.speculative_ngram_max_match_window_size.value_or(
      std::max(out.history.min_context, std::min(kNgramMaxContext, depth - 1)));
  out.history.capacity_nodes = args.speculative_ngram_capacity.value_or(out.history.capacity_nodes);
  out.match_type = args.speculative_ngram_match_type == "BFS" ? NgramMatchType::bfs : NgramMatchType::prob;
  out.min_breadth = args.speculative_ngram_min_bfs_breadth.value_or(1);
  out.max_breadth = topk;
  return out;
}

Status check_ngram(const ServerArgs& args) {
  const auto& topk = args.speculative_eagle_topk;
  const auto& breadth = args.speculative_ngram_max_bfs_breadth;
  if (topk && breadth && *topk != *breadth) {
    return Status::invalid_argument(
        fmt::format("--speculative-eagle-topk {} and --speculative-ngram-max-bfs-breadth {} both say how many branches "
                    "follow a node; give one of them", *topk, *breadth), "--speculative-ngram-max-bfs-breadth");
  }
  const int depth = args.speculative_ngram_max_trie_depth.value_or(kNgramTrieDepth);
  const NgramOptions options = ngram_options(args, 1);
  if (options.history.max_context >= depth) {
    return Status::invalid_argument(
        fmt::format("windows of {} tokens need --speculative-ngram-max-trie-depth {} or more; it is {}",
                    options.history.max_context, options.history.max_context + 1, depth),
        "--speculative-ngram-max-trie-depth");
  }
  if (options.history.min_context > options.history.max_context) {
    return Status::invalid_argument(
        fmt::format("--speculative-ngram-min-match-window-size is {}, more than the largest window, {}",
                    options.history.min_context, options.history.max_context),
        "--speculative-ngram-min-match-window-size");
  }
  return {};
}

}  // namespace

Status check_speculation(const ServerArgs& args, const ModelConfig& model) {
  if (args.speculative_algorithm != "NGRAM") WW_RETURN_IF_ERROR(check_ngram_flags_unset(args));
  if (args.speculative_algorithm.empty() || args.speculative_algorithm == "NGRAM") {
    WW_RETURN_IF_ERROR(check_draft_flags_unset(args));
  }
  if (args.speculative_algorithm.empty()) {
    if (args.speculative_adaptive) {
      return Status::invalid_argument("--speculative-adaptive needs --speculative-algorithm", "--speculative-adaptive");
    }
    for (const auto& [flag, given] :
         {std::pair("--speculative-accept-threshold-single", args.speculative_accept_threshold_single.has_value()),
          {"--speculative-accept-threshold-acc", args.speculative_accept_threshold_acc.has_value()}}) {
      if (given) return Status::invalid_argument(fmt::format("{} needs --speculative-algorithm", flag), flag);
    }
    if (args.speculative_attention_mode == "prefill") return {};
    return Status::invalid_argument("--speculative-attention-mode needs --speculative-algorithm",
                                    "--speculative-attention-mode");
  }
  const std::string& algorithm = args.speculative_algorithm;
  if (algorithm == "NGRAM" && args.speculative_adaptive) {
    return Status::unsupported(
        "--speculative-adaptive is of draft models; NGRAM stops by itself where its guesses do not come "
        "true; leave it out",
        "--speculative-adaptive");
  }
  if (algorithm == "NGRAM") return check_ngram(args);
  if (algorithm == "NEXTN" || !args.speculative_draft_model_path.empty()) return {};
  if (algorithm == "EAGLE" && has_nextn_layers(model)) return {};
  return Status::invalid_argument(
      fmt::format("--speculative-algorithm {} needs --speculative-draft-model-path FOLDER", args.speculative_algorithm),
      "--speculative-draft-model-path");
}

Status check_draft_tokens(const ServerArgs& args, const Speculation& speculation, const ModelConfig& model) {
  if (args.speculative_adaptive && speculation.topk > 1) {
    return Status::unsupported(
        fmt::format("--speculative-adaptive lengthens and shortens chains, and --speculative-eagle-topk {} "
                    "makes trees; add --speculative-eagle-topk 1",
                    speculation.topk),
        "--speculative-adaptive");
  }
  if (args.speculative_ngram_min_bfs_breadth.value_or(1) > std::max(speculation.topk, 1)) {
    return Status::invalid_argument(
        fmt::format("--speculative-ngram-min-bfs-breadth is {}, more than the branches that may follow a token, {} "
                    "(--speculative-ngram-max-bfs-breadth)",
                    *args.speculative_ngram_min_bfs_breadth, speculation.topk),
        "--speculative-ngram-min-bfs-breadth");
  }
  // Within a tree a node sees all of its ancestors: no window may end among them.
  const int deepest = speculation.algorithm == "NGRAM" ? speculation.num_draft_tokens : speculation.num_steps + 1;
  if (speculation.topk > 1 && model.has_windows() && deepest > model.sliding_window) {
    return Status::unsupported(
        fmt::format("--speculative-eagle-topk {}: a tree of guesses may be {} tokens deep, more than the {} that "
                    "layers with a sliding window see; lower {} or add --speculative-eagle-topk 1",
                    speculation.topk, deepest, model.sliding_window,
                    speculation.algorithm == "NGRAM" ? "--speculative-num-draft-tokens" : "--speculative-num-steps"),
        "--speculative-eagle-topk");
  }
  if (!model.has_recurrent_layers() || speculation.num_draft_tokens <= kLinearAttnMaxVerifyNodes) return {};
  return Status::unsupported(
      fmt::format("--speculative-num-draft-tokens {}: recurrent layers check {} tokens of a request at once; lower it",
                  speculation.num_draft_tokens, kLinearAttnMaxVerifyNodes), "--speculative-num-draft-tokens");
}

bool adapts_length(const ServerArgs& args, const Speculation& speculation, bool gpu) {
  return args.speculative_adaptive || (!gpu && !args.speculative_num_steps && speculation.topk == 1);
}

int max_proposals(const Speculation& speculation) {
  return speculation.algorithm.empty() ? 0 : speculation.num_draft_tokens - 1;
}

int max_proposals(const DraftOptions& options) {
  return std::max(options.max_proposals(), options.looks_up ? kMostFoundTokens : 0);
}

int max_step_proposals(bool gpu) { return gpu ? kMaxStepProposalsGpu : kMaxStepProposalsCpu; }

double step_cost_rows(bool gpu) { return gpu ? kStepCostRowsGpu : kStepCostRowsCpu; }

bool jumps_forward(const ServerArgs& args, const ModelConfig& model, const Resolved& attention, bool gpu) {
  if (gpu || args.disable_jump_forward || !attention.speculation.algorithm.empty() || attention.deterministic)
    return false;
  if (model.encoder || model.has_recurrent_layers() || model.head != ModelHead::vocabulary || args.is_embedding)
    return false;
  const Caps* verifying = attention.prefill_caps;
  if (verifying == nullptr || verifying->spec == SpecSupport::none) return false;
  return attention.page_size == 1 || verifying->spec_paged != SpecSupport::none;
}

AcceptThresholds accept_thresholds(const ServerArgs& args) {
  return {.single = static_cast<float>(args.speculative_accept_threshold_single.value_or(1)),
          .acc = static_cast<float>(args.speculative_accept_threshold_acc.value_or(1))};
}

std::unique_ptr<Proposer> make_proposer(const ServerArgs& args, const ServePlan& plan) {
  if (plan.draft) return std::make_unique<DraftRoom>(plan.draft->options);
  const Speculation& speculation = plan.attention.speculation;
  if (speculation.algorithm != "NGRAM") return nullptr;
  return std::make_unique<NgramProposer>(ngram_options(args, speculation.topk));
}

}  // namespace warpweave
