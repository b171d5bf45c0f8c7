#include "attention/select_speculation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace warpweave {
namespace {

constexpr std::array<std::string_view, 5> kAlgorithms = {"EAGLE", "EAGLE3", "NEXTN", "STANDALONE",
                                                         "NGRAM"};
constexpr int kNgramTopk = 10;
constexpr int kNgramDraftTokens = 12;

Status check_mode_and_algorithm(const AttentionFlags& flags) {
  if (flags.speculative_attention_mode != "prefill" &&
      flags.speculative_attention_mode != "decode") {
    return Status::invalid_argument(
        fmt::format("--speculative-attention-mode is \"{}\"; it must be prefill or decode",
                    flags.speculative_attention_mode),
        "--speculative-attention-mode");
  }
  const std::string& algorithm = flags.speculative_algorithm;
  if (algorithm.empty()) {
    if (flags.speculative_eagle_topk || flags.speculative_num_steps ||
        flags.speculative_num_draft_tokens) {
      return Status::invalid_argument(
          "--speculative-num-steps, --speculative-eagle-topk and --speculative-num-draft-tokens "
          "need --speculative-algorithm",
          "--speculative-algorithm");
    }
    return {};
  }
  if (std::find(kAlgorithms.begin(), kAlgorithms.end(), algorithm) == kAlgorithms.end()) {
    return Status::invalid_argument(
        fmt::format("--speculative-algorithm is \"{}\"; known: {}", algorithm,
                    fmt::join(kAlgorithms, ", ")),
        "--speculative-algorithm");
  }
  return {};
}

Status at_least(std::string_view flag, const std::optional<int>& value, int least) {
  if (!value || *value >= least) return {};
  return Status::invalid_argument(
      fmt::format("{} is {}; it must be at least {}", flag, *value, least), std::string(flag));
}

// The nodes of a draft tree: the root, topk children, then topk of each of the topk best.
int64_t tree_nodes(const Speculation& s) {
  return 1 + s.topk + static_cast<int64_t>(s.num_steps - 1) * s.topk * s.topk;
}

// What was not given shrinks to what the narrowest sliding window permits: a tree, whose nodes see all their ancestors,
// is no deeper than it. Chains have no such bound. What was given stays, and is judged where the model is known.
void fit_window(const AttentionFlags& flags, int window_tokens, Speculation& s) {
  if (window_tokens == 0 || s.topk == 1) return;
  const bool ngram = s.algorithm == "NGRAM";
  int& deepest = ngram ? s.num_draft_tokens : s.num_steps;  // a draft model's tree has the last known token besides
  const int least = ngram ? 2 : 1, most = window_tokens - (ngram ? 0 : 1);
  const bool depth_given =
      ngram ? flags.speculative_num_draft_tokens.has_value() : flags.speculative_num_steps.has_value();
  if (deepest <= most) return;
  if (!depth_given && most >= least) {
    deepest = most;
  } else if (!flags.speculative_eagle_topk) {
    s.topk = 1;
  }
}

Status resolve_draft_tokens(const std::optional<int>& given, int default_tokens, Speculation& s) {
  if (s.topk == 1) {
    s.num_draft_tokens = s.num_steps + 1;
    if (!given || *given == s.num_draft_tokens) return {};
    return Status::invalid_argument(
        fmt::format("--speculative-num-draft-tokens is {}; with topk 1 a chain of {} steps verifies "
                    "{} tokens", *given, s.num_steps, s.num_draft_tokens),
        "--speculative-num-draft-tokens");
  }
  const int64_t nodes = tree_nodes(s);
  s.num_draft_tokens = given ? *given : static_cast<int>(std::min<int64_t>(default_tokens, nodes));
  if (s.num_draft_tokens <= nodes) return {};
  return Status::invalid_argument(
      fmt::format("--speculative-num-draft-tokens is {}; {} steps of topk {} draft {} at most",
                  s.num_draft_tokens, s.num_steps, s.topk, nodes),
      "--speculative-num-draft-tokens");
}

}  // namespace

Result<Speculation> resolve_speculation(const AttentionFlags& flags, const ModelFacts& model, DeviceArch arch,
                                        std::vector<std::string>& reasons) {
  WW_RETURN_IF_ERROR(check_mode_and_algorithm(flags));
  Speculation s;
  s.algorithm = flags.speculative_algorithm;
  if (s.algorithm.empty()) return s;
  WW_RETURN_IF_ERROR(at_least("--speculative-num-steps", flags.speculative_num_steps, 1));
  WW_RETURN_IF_ERROR(at_least("--speculative-eagle-topk", flags.speculative_eagle_topk, 1));
  WW_RETURN_IF_ERROR(
      at_least("--speculative-num-draft-tokens", flags.speculative_num_draft_tokens, 2));
  const bool cpu = kCpuArchs.has(arch);
  // In deterministic mode each node of a tree reads all of its text (tree_texts.h), and plug-ins do not claim trees.
  const bool chains = cpu && flags.enable_deterministic_inference;
  const bool wide = !cpu && (model.architecture.starts_with("Llama") || model.architecture.starts_with("Grok"));
  if (s.algorithm == "NGRAM") {
    // Drafts come from text already seen: no steps, so no bound on the tree by them.
    if (flags.speculative_num_steps) {
      return Status::invalid_argument("--speculative-num-steps: NGRAM has no draft steps; leave it out, and give "
                                      "--speculative-num-draft-tokens", "--speculative-num-steps");
    }
    s.topk = flags.speculative_eagle_topk.value_or(chains ? 1 : kNgramTopk);
    s.num_draft_tokens = flags.speculative_num_draft_tokens.value_or(kNgramDraftTokens);
    fit_window(flags, model.window_tokens, s);
  } else {
    int steps = wide ? 5 : 3;
    s.topk = flags.speculative_eagle_topk.value_or(wide ? 4 : 1);
    if (cpu) steps = s.topk == 1 ? 4 : 2;
    s.num_steps = flags.speculative_num_steps.value_or(steps);
    fit_window(flags, model.window_tokens, s);
    WW_RETURN_IF_ERROR(resolve_draft_tokens(flags.speculative_num_draft_tokens, wide ? 8 : 4, s));
  }
  const bool all_given = flags.speculative_eagle_topk && flags.speculative_num_draft_tokens &&
                         (flags.speculative_num_steps || s.algorithm == "NGRAM");
  std::string_view unset = "; what was not given is the default for this model and device";
  if (chains && !flags.speculative_eagle_topk) unset = "; chains, as --enable-deterministic-inference is given";
  reasons.push_back(fmt::format("speculation: {} with {}topk {}, {} draft tokens{}", s.algorithm,
                                s.num_steps > 0 ? fmt::format("{} steps, ", s.num_steps) : "",
                                s.topk, s.num_draft_tokens,
                                all_given ? "" : unset));
  return s;
}

}  // namespace warpweave
