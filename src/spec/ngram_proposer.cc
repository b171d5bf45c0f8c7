#include "spec/ngram_proposer.h"

#include <algorithm>

namespace warpweave {
namespace {

// A node less likely than this costs more time to check than it saves: on a CPU one more row of a small step takes
// about a tenth of the step, in which one and a half tokens would come.
constexpr double kLeastProbability = 0.15;
// Tokens of a prompt learned in one call, so that a long one does not keep the device waiting.
constexpr size_t kLearnedAtOnce = 4096;
constexpr double kForgetRate = 0.05;  // of the running means

}  // namespace

void NgramProposer::propose(const ProposalCall& call, Proposal& out) {
  auto [found, fresh] = texts_.try_emplace(call.request);
  Text& text = found->second;
  expected_ = 0;
  if (fresh) text.context = history_.begin(call.cache_salt);
  learn(call, text);
  if (text.learned < call.input_ids.size() + call.output_ids.size() || call.max_tokens < 1) return;
  contexts_.assign(1, text.context);
  candidates_.clear();
  const bool best_first = options_.match_type == NgramMatchType::prob;
  const double trust = best_first ? std::min(1.0, text.kept / text.promised) : 1;
  expand(0, trust, contexts_[0]);
  text.ahead.clear(), text.next_ahead = 0;
  if (!guesses_.empty()) text.ahead.push_back(guesses_[0]);
  if (best_first) {
    grow_best_first(call.max_tokens, trust, text, out);
  } else {
    grow_by_levels(call.max_tokens, out);
  }
  bool chain = true;
  for (int node = 1; node <= out.size(); ++node) chain &= out.parents[node - 1] == node - 1;
  if (chain) out.parents.clear();
}

void NgramProposer::learn(const ProposalCall& call, Text& text) {
  const size_t prompt = call.input_ids.size(), end = prompt + call.output_ids.size();
  const size_t stop = std::min(end, text.learned + kLearnedAtOnce);
  for (; text.learned < stop; ++text.learned) {
    const bool output = text.learned >= prompt;
    const int32_t token = output ? call.output_ids[text.learned - prompt] : call.input_ids[text.learned];
    if (output) judge(token, text);
    history_.learn(call.cache_salt, token, text.context);
    pass(token, text);
  }
}

// What was guessed to follow the token is what follows the text now; nothing is known where another came.
void NgramProposer::pass(int32_t token, Text& text) {
  const bool came = text.next_ahead < text.ahead.size() && text.ahead[text.next_ahead].token == token;
  if (came && ++text.next_ahead < text.ahead.size()) return;
  text.ahead.clear(), text.next_ahead = 0;
}

void NgramProposer::judge(int32_t token, Text& text) {
  if (text.next_ahead == text.ahead.size()) {
    history_.guess(text.context, 1, guesses_);
    if (guesses_.empty()) return;
    text.ahead.push_back(guesses_[0]);
  }
  const NgramGuess& likeliest = text.ahead[text.next_ahead];
  text.promised += kForgetRate * (likeliest.probability - text.promised);
  text.kept += kForgetRate * ((likeliest.token == token ? 1 : 0) - text.kept);
}

int NgramProposer::breadth(const NgramHistory::Context& context) const {
  if (options_.match_type == NgramMatchType::prob) return options_.max_breadth;
  const int shortest = options_.history.min_context, longest = options_.history.max_context;
  const int matched = std::max(history_.matched_tokens(context), shortest);
  const int narrower = (options_.max_breadth - options_.min_breadth) * (matched - shortest);
  return options_.max_breadth - (longest > shortest ? narrower / (longest - shortest) : 0);
}

void NgramProposer::expand(int node, double probability, const NgramHistory::Context& context) {
  history_.guess(context, breadth(context), guesses_);
  for (const NgramGuess& guess : guesses_) {
    candidates_.push_back({node, guess.token, probability * guess.probability});
  }
}

void NgramProposer::add_node(const Candidate& candidate, Proposal& out) {
  out.tokens.push_back(candidate.token);
  out.parents.push_back(candidate.parent);
  expected_ += candidate.probability;
}

// What may follow the last node.
void NgramProposer::expand_last(const Candidate& last, double trust, const Proposal& out) {
  contexts_.push_back(contexts_[last.parent]);
  history_.follow(last.token, contexts_.back());
  expand(out.size(), last.probability * trust, contexts_.back());
}

void NgramProposer::grow_best_first(int max_tokens, double trust, Text& text, Proposal& out) {
  int likeliest_node = 0;  // the end of the path of likeliest guesses
  const auto worse = [](const Candidate& a, const Candidate& b) { return a.probability < b.probability; };
  std::make_heap(candidates_.begin(), candidates_.end(), worse);
  while (!candidates_.empty() && out.size() < max_tokens) {
    std::pop_heap(candidates_.begin(), candidates_.end(), worse);
    const Candidate best = candidates_.back();
    candidates_.pop_back();
    if (best.probability < kLeastProbability) return;
    add_node(best, out);
    if (out.size() == max_tokens) return;
    const size_t known = candidates_.size();
    expand_last(best, trust, out);
    if (best.parent == likeliest_node && best.token == text.ahead.back().token && !guesses_.empty()) {
      text.ahead.push_back(guesses_[0]);
      likeliest_node = out.size();
    }
    for (size_t i = known; i < candidates_.size(); ++i) {
      std::push_heap(candidates_.begin(), candidates_.begin() + static_cast<int64_t>(i) + 1, worse);
    }
  }
}

void NgramProposer::grow_by_levels(int max_tokens, Proposal& out) {
  for (size_t next = 0; next < candidates_.size() && out.size() < max_tokens; ++next) {
    const Candidate candidate = candidates_[next];
    add_node(candidate, out);
    if (out.size() < max_tokens) expand_last(candidate, 1, out);
  }
}

}  // namespace warpweave
