#include "spec/ngram_history.h"

#include <algorithm>
#include <utility>

namespace warpweave {
namespace {

constexpr int kMaxChildrenRead = 24;      // of a node, those seen last: "the" has hundreds
constexpr double kNegligible = 0.01;      // what is left for shorter contexts

using NodeId = NgramTrie::NodeId;
constexpr NodeId kNone = NgramTrie::kNone;

// What followed one context, in both tries.
struct Followers {
  struct Follower {
    int32_t token;
    double count;
  };
  std::array<Follower, 2 * kMaxChildrenRead> list;
  int size = 0;
  double total = 0;
  double distinct = 0;

  void read(const NgramTrie& trie, NodeId context) {
    if (context == kNone) return;
    distinct += trie.node(context).num_children;
    int left = kMaxChildrenRead;
    for (NodeId id = trie.node(context).first_child; id != kNone && left > 0; id = trie.node(id).next, --left) {
      list[size++] = {trie.node(id).token, static_cast<double>(trie.node(id).count)};
      total += trie.node(id).count;
    }
  }
};

void add_guess(int32_t token, double probability, std::vector<NgramGuess>& out) {
  for (NgramGuess& guess : out) {
    if (guess.token == token) {
      guess.probability += probability;
      return;
    }
  }
  out.push_back({token, probability});
}

}  // namespace

NgramHistory::Context NgramHistory::begin(std::string_view salt) {
  Context context;
  context.young.fill(kNone);
  context.old.fill(kNone);
  context.young_root = young_.root(salt);
  context.old_root = old_.find_root(salt);
  context.generation = generation_;
  return context;
}

// The younger trie of before is the older one now, or is gone.
void NgramHistory::renew(std::string_view salt, Context& context) {
  const Context before = std::exchange(context, begin(salt));
  if (before.generation + 1 == generation_) context.old = before.young;
}

void NgramHistory::learn(std::string_view salt, int32_t token, Context& context) {
  if (static_cast<int64_t>(young_.num_nodes_with_salts()) > options_.capacity_nodes / 2) {
    std::swap(old_, young_);
    young_.clear();
    ++generation_;
  }
  if (context.generation != generation_) renew(salt, context);
  const int last = options_.max_context - 1;
  // One longer than any context: what follows the longest.
  young_.visit(context.young[last], token);
  for (int i = last; i > 0; --i) context.young[i] = young_.visit(context.young[i - 1], token);
  context.young[0] = young_.visit(context.young_root, token);
  for (int i = last; i > 0; --i) context.old[i] = old_.find(context.old[i - 1], token);
  context.old[0] = old_.find(context.old_root, token);
}

void NgramHistory::follow(int32_t token, Context& context) const {
  const int last = options_.max_context - 1;
  for (int i = last; i > 0; --i) {
    context.young[i] = young_.find(context.young[i - 1], token);
    context.old[i] = old_.find(context.old[i - 1], token);
  }
  context.young[0] = young_.find(context.young_root, token);
  context.old[0] = old_.find(context.old_root, token);
}

bool NgramHistory::continues(const Context& context, int length) const {
  const NodeId young = context.young[length - 1], old = context.old[length - 1];
  return (young != kNone && young_.node(young).first_child != kNone) ||
         (old != kNone && old_.node(old).first_child != kNone);
}

int NgramHistory::matched_tokens(const Context& context) const {
  if (context.generation != generation_) return 0;
  int length = options_.max_context;
  while (length > 0 && !continues(context, length)) --length;
  return length;
}

void NgramHistory::guess(const Context& context, int max_guesses, std::vector<NgramGuess>& out) const {
  out.clear();
  double left = 1;
  for (int length = matched_tokens(context); length >= std::max(options_.min_context, 1); --length) {
    Followers followers;
    followers.read(young_, context.young[length - 1]);
    followers.read(old_, context.old[length - 1]);
    if (followers.size == 0) continue;
    const double escape = followers.distinct / (followers.distinct + followers.total * length);
    for (int i = 0; i < followers.size; ++i) {
      const auto& [token, count] = followers.list[i];
      add_guess(token, left * (1 - escape) * count / followers.total, out);
    }
    left *= escape;
    if (left < kNegligible) break;
  }
  std::stable_sort(out.begin(), out.end(), [](auto& a, auto& b) { return a.probability > b.probability; });
  if (static_cast<int>(out.size()) > max_guesses) out.resize(max_guesses);
}

}  // namespace warpweave
