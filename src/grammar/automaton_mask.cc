// Masks: which tokens can follow, by walking the trie of the vocabulary through the automaton.
#include <algorithm>

#include "grammar/automaton.h"

namespace warpweave::grammar {
namespace {

constexpr size_t kOverheadBytes = 96;  // of a cached mask

}  // namespace

// Collects in found_ the tokens of `trie` that can follow `config`.
void Automaton::walk(std::span<const TrieNode> trie, ConfigId config, const Vocabulary& vocabulary) {
  if (path_.size() < static_cast<size_t>(vocabulary.longest_token_bytes()) + 1) {
    path_.resize(vocabulary.longest_token_bytes() + 1);
  }
  path_[0] = {config, row(config)};
  for (uint32_t i = 0; i < trie.size();) {
    const TrieNode& node = trie[i];
    const auto& from = path_[node.depth - 1];
    ConfigId next = from.second[classes_[node.byte]];
    if (next == kUnknown) next = expand(from.first, node.byte);
    if (next == kDead) {
      i = node.subtree_end;
      continue;
    }
    path_[node.depth] = {next, row(next)};
    if (node.token >= 0) found_.push_back(node.token);
    ++i;
  }
}

// Takes a ready set of plain tokens where the config allows it. True when the set tells all about
// plain tokens, so that only the rest has to be walked.
bool Automaton::add_plain(ConfigId id, const Vocabulary& vocabulary, CachedMask* out) {
  const PlainRun run = closed(id).plain;
  if (run.least == 0) return false;
  const int longest = vocabulary.longest_plain_chars();
  if (run.least >= longest) {
    out->plain_chars = Vocabulary::kMaxPlainRun;
    return true;
  }
  out->plain_chars = std::min<int>(run.least, Vocabulary::kMaxPlainRun - 1);
  return run.most == out->plain_chars;
}

const CachedMask& Automaton::mask(ConfigId config, const Vocabulary& vocabulary) {
  if (const auto at = masks_.find(config); at != masks_.end()) return at->second;
  CachedMask mask;
  found_.clear();
  const bool plain_is_known = add_plain(config, vocabulary, &mask);
  walk(plain_is_known ? vocabulary.trie_of_rest() : vocabulary.trie(), config, vocabulary);
  const size_t walked = found_.size();
  for (size_t i = 0; i < walked; ++i) {
    for (int32_t id = vocabulary.same_bytes(found_[i]); id >= 0; id = vocabulary.same_bytes(id)) found_.push_back(id);
  }
  const size_t words = mask_words(vocabulary.size());
  if (found_.size() <= words) {
    mask.tokens.assign(found_.begin(), found_.end());
  } else {
    mask.dense.assign(words, 0);
    for (const int32_t id : found_) mask.dense[id >> 5] |= 1u << (id & 31);
  }
  masks_bytes_ += mask.memory_bytes() + kOverheadBytes;
  return masks_.emplace(config, std::move(mask)).first->second;
}

}  // namespace warpweave::grammar
