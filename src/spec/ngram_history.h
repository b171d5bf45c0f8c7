// What was served so far, as the source of guesses: the tokens that followed the same last tokens before, each with an
// estimate of how likely it comes next.
//
// The estimate blends the longest context with shorter ones, as prediction by partial matching does (Cleary and
// Witten, 1984; escape method after Moffat, 1990), but trusts a context the more the longer it is. Memory is bounded
// by two tries of half the capacity: when the younger is full it becomes the older, and the older is cleared to be
// the younger: its memory stays, so that a long run neither grows tables anew in its steps nor cuts up the heap.
// Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "spec/ngram_trie.h"

namespace warpweave {

inline constexpr int kMaxNgramContext = 31;  // tokens

struct NgramHistoryOptions {
  int min_context = 1;                  // tokens that must agree before anything is guessed
  int max_context = 12;                 // tokens of which more are not looked at; at most kMaxNgramContext
  int64_t capacity_nodes = 10'000'000;  // of both tries; salts count by their bytes
};

struct NgramGuess {
  int32_t token = 0;
  double probability = 0;
};

class NgramHistory {
 public:
  // The places of a text's last tokens in the tries: at [i] those of its last i + 1 tokens.
  using Places = std::array<NgramTrie::NodeId, kMaxNgramContext>;
  struct Context {
    Places young, old;
    NgramTrie::NodeId young_root = NgramTrie::kNone, old_root = NgramTrie::kNone;
    uint64_t generation = 0;
  };

  explicit NgramHistory(const NgramHistoryOptions& options) : options_(options) {}

  Context begin(std::string_view salt);
  // Learns that `token` followed, and moves on to it.
  void learn(std::string_view salt, int32_t token, Context& context);
  // Moves on without learning.
  void follow(int32_t token, Context& context) const;

  // At most `max_guesses`, the likeliest first. `out` is replaced.
  void guess(const Context& context, int max_guesses, std::vector<NgramGuess>& out) const;
  // How many last tokens were seen before, with something behind them; 0: none.
  int matched_tokens(const Context& context) const;

  size_t num_nodes() const { return young_.num_nodes() + old_.num_nodes(); }
  size_t reserved_bytes() const { return young_.reserved_bytes() + old_.reserved_bytes(); }
  size_t num_salts() const { return young_.num_salts() + old_.num_salts(); }

 private:
  void renew(std::string_view salt, Context& context);
  void follow_in(const NgramTrie& trie, NgramTrie::NodeId root, int32_t token, Places& places) const;
  bool continues(const Context& context, int length) const;

  const NgramHistoryOptions options_;
  NgramTrie young_, old_;
  uint64_t generation_ = 1;
};

}  // namespace warpweave
