#include "spec/ngram_history.h"

#include <algorithm>
#include <utility>

namespace warpweave {
namespace {

constexpr int kMaxChildrenRead = 8;       // of a node, those seen last: "the" has hundreds, each a wait for memory
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

// In order, the one found first of equals first.
void keep_likeliest(int max_guesses, std::vector<NgramGuess>& out) {
  const auto less = [](const NgramGuess& a, const NgramGuess& b) { return a.probability < b.probability; };
  const size_t kept = std::min(out.size(), static_cast<size_t>(max_guesses));
  for (size_t i = 0; i < kept; ++i) {
    const auto likeliest = std::max_element(out.begin() + static_cast<int64_t>(i), out.end(), less);
    std::rotate(out.begin() + static_cast<int64_t>(i), likeliest, likeliest + 1);
  }
  out.resize(kept);
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
  // The root and all contexts: what follows the longest is kept, too.
  std::array<NodeId, kMaxNgramContext + 1> nodes = {context.young_root};
  static_assert(nodes.size() <= NgramTrie::kMostAtOnce);
  const int contexts = options_.max_context;
  std::copy_n(context.young.begin(), contexts, nodes.begin() + 1);
  young_.visit_all(token, std::span(nodes.data(), contexts + 1));
  std::copy_n(nodes.begin(), contexts, context.young.begin());
  follow_in(old_, context.old_root, token, context.old);
}

void NgramHistory::follow(int32_t token, Context& context) const {
  follow_in(young_, context.young_root, token, context.young);
  follow_in(old_, context.old_root, token, context.old);
}

void NgramHistory::follow_in(const NgramTrie& trie, NodeId root, int32_t token, Places& places) const {
  if (root == kNone) return;  // nor is anything behind it known
  const auto end = places.begin() + options_.max_context;
  std::copy_backward(places.begin(), end - 1, end);
  places[0] = root;
  trie.find_all(token, std::span(places.begin(), end));
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
  keep_likeliest(max_guesses, out);
}

}  // namespace warpweave
