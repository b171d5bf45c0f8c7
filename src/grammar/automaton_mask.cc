// Masks: which tokens can follow, by walking tries of tokens through the automaton.
#include <algorithm>

#include "grammar/automaton.h"

namespace warpweave::grammar {
namespace {

constexpr size_t kOverheadBytes = 96;       // of a cached mask
constexpr uint32_t kSmallSubtreeNodes = 32; // is walked sooner than its run is looked up

void append(std::span<const int32_t> tokens, std::vector<int32_t>* found) {
  found->insert(found->end(), tokens.begin(), tokens.end());
}

}  // namespace

// Collects in found_ the tokens of `trie` whose texts can follow `config`.
void Automaton::walk(const TokenTrie& trie, ConfigId config) {
  if (path_.size() < static_cast<size_t>(trie.longest_text_bytes()) + 1) path_.resize(trie.longest_text_bytes() + 1);
  path_[0] = {config, row(config)};
  const TrieNode* nodes = trie.nodes();
  const uint32_t size = trie.size();
  for (uint32_t i = 0; i < size;) {
    const TrieNode& node = nodes[i];
    const auto& from = path_[node.depth - 1];
    ConfigId next = from.second[classes_[node.byte]];
    if (next == kUnknown) next = expand(from.first, node.byte);
    if (next == kDead) {
      i = node.subtree_end;
      continue;
    }
    path_[node.depth] = {next, row(next)};
    if (nodes[i + 1].tokens_begin != node.tokens_begin) append(trie.tokens(i, i + 1), &found_);
    if (node.subtree_end - i > kSmallSubtreeNodes) {
      const Run run = this->run(next, node.chars_below);
      if (run.chars >= node.chars_below && contains_kinds(run.kinds, trie.kinds_below(i))) {
        append(trie.tokens(i + 1, node.subtree_end), &found_);
        i = node.subtree_end;
        continue;
      }
    }
    ++i;
  }
}

// Tokens that are not wholly plain, where all plain characters lead to one place, as often as wanted.
void Automaton::walk_behind_plain(ConfigId config, int least, const Vocabulary& vocabulary) {
  const int longest = std::min(least, vocabulary.longest_plain_chars());
  for (int chars = 0; chars <= longest; ++chars) {
    const ConfigId next = chars < longest ? step(config, 'a') : kDead;
    if (next == config && chars == 0) {
      walk(vocabulary.behind_plain(), config);
      return;
    }
    walk(vocabulary.behind_plain(chars), config);
    config = next;
  }
}

// Where the config says how plain characters go on: takes a ready set of plain tokens and looks for
// the others. False when all tokens must be looked for.
bool Automaton::add_plain(ConfigId id, const Vocabulary& vocabulary, CachedMask* out) {
  const PlainRun run = closed(id).plain;
  const bool all = run.least >= vocabulary.longest_plain_chars();
  if (run.least == 0 || (!all && run.most != run.least)) return false;
  out->plain_chars = all ? Vocabulary::kAllPlain : std::min<int>(run.least, Vocabulary::kMaxPlainRun);
  for (const auto& [chars, token] : vocabulary.long_plain_tokens()) {
    if (!all && chars <= run.least) found_.push_back(token);
  }
  if (run.alike) {
    walk_behind_plain(id, run.least, vocabulary);
  } else {
    walk(vocabulary.slices().back().trie, id);
  }
  return true;
}

void Automaton::add_slice(const TokenSlice& slice, ConfigId config) {
  if (slice.trie.size() > kSmallSubtreeNodes) {
    const Run run = this->run(config, slice.longest_chars);
    if (contains_kinds(run.kinds, slice.kinds)) {
      if (run.chars >= slice.longest_chars) return whole_.push_back(&slice.up_to.back());
      if (run.ends && run.chars < static_cast<int>(slice.up_to.size()))
        return whole_.push_back(&slice.up_to[run.chars - 1]);
    }
  }
  walk(slice.trie, config);
}

const CachedMask& Automaton::mask(ConfigId config, const Vocabulary& vocabulary) {
  if (const auto at = masks_.find(config); at != masks_.end()) return at->second;
  CachedMask mask;
  found_.clear();
  whole_.clear();
  if (!add_plain(config, vocabulary, &mask)) {
    for (const TokenSlice& slice : vocabulary.slices()) add_slice(slice, config);
  }
  const size_t words = mask_words(vocabulary.size());
  if (whole_.empty() && found_.size() <= words) {
    mask.tokens.assign(found_.begin(), found_.end());
  } else {
    mask.dense.assign(words, 0);
    for (const MaskWords* set : whole_) {
      for (size_t i = 0; i < words; ++i) mask.dense[i] |= (*set)[i];
    }
    for (const int32_t id : found_) mask.dense[id >> 5] |= 1u << (id & 31);
  }
  masks_bytes_ += mask.memory_bytes() + kOverheadBytes;
  return masks_.emplace(config, std::move(mask)).first->second;
}

}  // namespace warpweave::grammar
