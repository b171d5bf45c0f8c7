#include "grammar/vocabulary.h"

#include <algorithm>

namespace warpweave::grammar {
namespace {

constexpr size_t kMaxTokenBytes = 60'000;  // a depth fits 16 bits
constexpr int kMaxSliceChars = 24;         // longer runs are rare, and walked

enum Slice { lower_case, lower_case_word, letters, word, ascii, beyond_ascii, mixed, others, num_slices };

struct PlainPrefix {
  size_t bytes = 0;
  int chars = 0;
};

PlainPrefix plain_prefix(std::string_view text) {
  PlainPrefix out;
  for (size_t at = 0; at < text.size(); ++out.chars, out.bytes = at) {
    if (!contains_kinds(Vocabulary::plain_kinds(), kinds(next_kind(text, &at)))) break;
  }
  return out;
}

// Where words are many, the commonest forms have a slice of their own.
Slice slice_of_plain(std::string_view text) {
  const KindSet of = kinds_of_text(text).kinds;
  constexpr KindSet kLetters = kinds(kLowerKind) | kinds(kUpperKind);
  if (of == kinds(kLowerKind)) return lower_case;
  if (contains_kinds(kLetters, of)) return letters;
  if (of == kinds(kBeyondKind)) return beyond_ascii;
  if (of & kinds(kBeyondKind)) return mixed;
  if (text.front() == ' ') {
    const KindSet behind = kinds_of_text(text.substr(1)).kinds;
    if (behind == kinds(kLowerKind)) return lower_case_word;
    if (behind != 0 && contains_kinds(kLetters, behind)) return word;
  }
  return ascii;
}

void set_bit(MaskWords* words, int32_t id) { (*words)[id >> 5] |= 1u << (id & 31); }

}  // namespace

const CharSet& Vocabulary::plain_chars() {
  static const CharSet set = [] {
    CharSet special;
    special.add(0, 0x1F);
    special.add('"', '"');
    special.add('\\', '\\');
    special.add(0x7F, 0x7F);
    return special.complement();
  }();
  return set;
}

KindSet Vocabulary::plain_kinds() {
  static const KindSet plain = [] {
    KindSet special = kinds(kBrokenKind);
    for (const char c : {'\0', '\t', '\n', '\r', '"', '\\', '\x7F'})
      special |= kinds(kind_of_ascii(static_cast<uint8_t>(c)));
    return ((KindSet{1} << kNumKinds) - 1) & ~special;
  }();
  return plain;
}

Vocabulary::Vocabulary(std::vector<std::string> tokens, std::vector<int32_t> end_ids)
    : tokens_(std::move(tokens)), end_ids_(std::move(end_ids)) {
  std::erase_if(end_ids_, [&](int32_t id) { return id < 0 || id >= static_cast<int64_t>(tokens_.size()); });
  for (const int32_t id : end_ids_) tokens_[id].clear();
  plain_.assign(kAllPlain, MaskWords(mask_words(tokens_.size()), 0));
  std::vector<int> slice_of(tokens_.size(), -1);
  ids_.reserve(tokens_.size());
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string& text = tokens_[i];
    if (text.empty() || text.size() >= kMaxTokenBytes) continue;
    longest_bytes_ = std::max(longest_bytes_, static_cast<int>(text.size()));
    if (text.size() <= kMaxSplitBytes) ids_.try_emplace(text, static_cast<int32_t>(i));
    const PlainPrefix plain = plain_prefix(text);
    longest_plain_ = std::max(longest_plain_, plain.chars);
    const bool wholly = plain.bytes == text.size();
    if (wholly) add_plain(static_cast<int32_t>(i), plain.chars);
    slice_of[i] = wholly && plain.chars <= kMaxPlainRun ? slice_of_plain(text) : others;
  }
  fill_slices(slice_of);
  fill_behind_plain();
}

int32_t Vocabulary::longest_beginning(std::string_view text) const {
  for (size_t bytes = std::min(text.size(), kMaxSplitBytes); bytes > 0; --bytes) {
    if (const auto found = ids_.find(text.substr(0, bytes)); found != ids_.end()) return found->second;
  }
  return -1;
}

void Vocabulary::add_plain(int32_t id, int chars) {
  for (int n = chars; n <= kMaxPlainRun; ++n) set_bit(&plain_[n - 1], id);
  set_bit(&plain_[kAllPlain - 1], id);
  if (chars > kMaxPlainRun) long_plain_.emplace_back(chars, id);
}

void Vocabulary::fill_slices(const std::vector<int>& slice_of) {
  slices_.resize(num_slices);
  std::vector<std::vector<TokenTrie::Entry>> entries(num_slices);
  for (size_t i = 0; i < tokens_.size(); ++i) {
    if (slice_of[i] < 0) continue;
    TokenSlice& slice = slices_[slice_of[i]];
    const auto id = static_cast<int32_t>(i);
    entries[slice_of[i]].push_back({tokens_[i], id});
    const TextKinds text = kinds_of_text(tokens_[i]);
    slice.kinds |= text.kinds;
    slice.longest_chars = std::max(slice.longest_chars, text.chars);
  }
  for (int s = 0; s < num_slices; ++s) {
    TokenSlice& slice = slices_[s];
    slice.up_to.assign(std::clamp(slice.longest_chars, 1, kMaxSliceChars + 1),
                       MaskWords(mask_words(tokens_.size()), 0));
    const int sets = static_cast<int>(slice.up_to.size());
    for (const TokenTrie::Entry& entry : entries[s]) {
      for (int n = std::min(kinds_of_text(entry.text).chars, sets); n <= sets; ++n)
        set_bit(&slice.up_to[n - 1], entry.token);
    }
    slice.trie = TokenTrie(std::move(entries[s]));
  }
}

void Vocabulary::fill_behind_plain() {
  std::vector<TokenTrie::Entry> all;
  std::vector<std::vector<TokenTrie::Entry>> by_chars(longest_plain_ + 1);
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view text = tokens_[i];
    if (text.empty() || text.size() >= kMaxTokenBytes) continue;
    const PlainPrefix plain = plain_prefix(text);
    if (plain.bytes == text.size()) continue;
    all.push_back({text.substr(plain.bytes), static_cast<int32_t>(i)});
    by_chars[plain.chars].push_back(all.back());
  }
  behind_plain_ = TokenTrie(std::move(all));
  for (auto& entries : by_chars) behind_plain_of_.emplace_back(std::move(entries));
}

bool Vocabulary::is_end(int32_t id) const { return std::find(end_ids_.begin(), end_ids_.end(), id) != end_ids_.end(); }

size_t Vocabulary::memory_bytes() const {
  size_t sets = plain_.size();
  constexpr size_t kMapEntryBytes = sizeof(std::pair<std::string_view, int32_t>) + 3 * sizeof(void*);
  size_t bytes = tokens_.size() * sizeof(std::string) + ids_.size() * kMapEntryBytes + behind_plain_.memory_bytes();
  for (const TokenSlice& slice : slices_) {
    bytes += slice.trie.memory_bytes();
    sets += slice.up_to.size();
  }
  for (const TokenTrie& trie : behind_plain_of_) bytes += trie.memory_bytes();
  return bytes + sets * mask_words(tokens_.size()) * sizeof(uint32_t);
}

}  // namespace warpweave::grammar
