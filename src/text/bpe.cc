#include "text/bpe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "text/tokenizer_unicode.h"

namespace warpweave {
namespace {

constexpr int32_t kMerged = -1;
constexpr int32_t kNoSuchChar = INT32_MAX;  // SentencePiece: a character in no token
constexpr uint64_t kNoPair = ~uint64_t{0};
constexpr size_t kScanSymbols = 32;         // up to here a scan beats the heap
constexpr size_t kMaxScoredTokenBytes = 512;
constexpr std::string_view kMeta = "\xE2\x96\x81";  // U+2581

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

size_t pair_hash(uint64_t pair) {
  pair *= 0x9E3779B97F4A7C15u;
  return static_cast<size_t>(pair ^ pair >> 32);
}

// Whether a character other than U+2581 stands right before a U+2581.
bool meta_after_other(std::string_view text) {
  constexpr size_t kNone = std::string_view::npos;
  for (size_t at = text.find(kMeta, 1); at != kNone; at = text.find(kMeta, at + 1)) {
    if (at < kMeta.size() || text.substr(at - kMeta.size(), kMeta.size()) != kMeta) return true;
  }
  return false;
}

}  // namespace

BpeScratch::BpeScratch() : cache_(kCacheEntries) {}

void BpeScratch::free_text() noexcept {
  std::vector<BpeSymbol>().swap(symbols_);
  std::vector<Candidate>().swap(heap_);
  std::string().swap(spelled_);
}

size_t BpeScratch::text_bytes() const {
  return symbols_.capacity() * sizeof(BpeSymbol) + heap_.capacity() * sizeof(Candidate) + spelled_.capacity();
}

Result<BpeModel> BpeModel::build(const BpeSpec& spec, bool byte_level) {
  BpeModel model;
  model.byte_level_ = byte_level;
  model.by_score_ = !spec.scores.empty();
  model.byte_fallback_ = spec.byte_fallback;
  model.fuse_unk_ = spec.fuse_unk;
  model.ignore_merges_ = spec.ignore_merges;
  size_t bytes = 0;
  for (const BpeSpec::Entry& entry : spec.vocab) bytes += entry.token.size();
  model.vocab_.reserve(spec.vocab.size(), bytes);
  for (const auto& [token, id] : spec.vocab) {
    if (id < 0 || id > kMaxTokenId) {
      return Status::data_loss("token id " + std::to_string(id) + " is not in 0.." +
                                   std::to_string(kMaxTokenId),
                               "vocab");
    }
    if (token.size() > kMaxTokenBytes) {
      return Status::data_loss("token " + std::to_string(id) + " has " +
                                   std::to_string(token.size()) + " bytes; the limit is " +
                                   std::to_string(kMaxTokenBytes),
                               "vocab");
    }
    if (model.vocab_.has(id)) {
      return Status::data_loss("two tokens have the id " + std::to_string(id), "vocab");
    }
    model.vocab_.insert(token, id);
  }
  if (model.by_score_) {
    model.add_scored_merges(spec);
  } else {
    WW_RETURN_IF_ERROR(model.add_merges(spec));
  }
  WW_RETURN_IF_ERROR(model.find_unk_and_bytes(spec, byte_level));
  if (!byte_level) model.find_safe_split();
  return model;
}

Status BpeModel::add_merges(const BpeSpec& spec) {
  reserve_merges(spec.merges.size());
  std::string joined;
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const auto& [left, right] = spec.merges[rank];
    joined.assign(left);
    joined += right;
    const int32_t left_id = vocab_.find(left);
    const int32_t right_id = vocab_.find(right);
    const int32_t joined_id = vocab_.find(joined);
    if (left_id < 0 || right_id < 0 || joined_id < 0) {
      const std::string_view missing = left_id < 0 ? left : right_id < 0 ? right : joined;
      return Status::data_loss("merge " + std::to_string(rank) + " needs the token \"" +
                                   std::string(missing.substr(0, 100)) +
                                   "\", which the vocabulary lacks",
                               "merges");
    }
    insert_merge(pair_key(left_id, right_id), {static_cast<uint32_t>(rank), joined_id});
  }
  return {};
}

// A merge makes any token out of any two neighbours that spell it, the best score first.
void BpeModel::add_scored_merges(const BpeSpec& spec) {
  pseudo_base_ = vocab_.id_limit();
  std::vector<int32_t> by_score;
  size_t pairs = 0;
  for (const auto& [token, id] : spec.vocab) {
    if (std::isnan(spec.scores[id]) || token.size() > kMaxScoredTokenBytes) continue;
    by_score.push_back(id);
    for (size_t pos = 0; pos < token.size();) {
      const size_t begin = pos;
      take_utf8(token, &pos);
      const std::string_view one = token.substr(begin, pos - begin);
      ++pairs;
      if (vocab_.find(one) < 0) pseudo_.insert(one, static_cast<int32_t>(pseudo_.size()));
    }
  }
  std::stable_sort(by_score.begin(), by_score.end(),
                   [&](int32_t a, int32_t b) { return spec.scores[a] > spec.scores[b]; });
  reserve_merges(pairs);
  const auto symbol_of = [&](std::string_view text) {
    const int32_t id = vocab_.find(text);
    if (id >= 0) return id;
    const int32_t pseudo = pseudo_.find(text);
    return pseudo < 0 ? kMerged : pseudo_base_ + pseudo;
  };
  uint32_t rank = 0;
  for (size_t i = 0; i < by_score.size(); ++i) {
    const int32_t id = by_score[i];
    if (i > 0 && spec.scores[id] < spec.scores[by_score[i - 1]]) ++rank;
    const std::string_view token = vocab_.text(id);
    for (size_t cut = 0; cut < token.size();) {
      take_utf8(token, &cut);
      if (cut >= token.size()) break;
      const int32_t left = symbol_of(token.substr(0, cut));
      const int32_t right = symbol_of(token.substr(cut));
      if (left >= 0 && right >= 0) insert_merge(pair_key(left, right), {rank, id});
    }
  }
}

void BpeModel::reserve_merges(size_t count) {
  size_t slots = 16;
  while (slots < count * 2) slots *= 2;
  merges_.assign(slots, {kNoPair, {}});
}

void BpeModel::insert_merge(uint64_t pair, Merge merge) {
  const size_t mask = merges_.size() - 1;
  size_t slot = pair_hash(pair) & mask;
  while (merges_[slot].pair != kNoPair && merges_[slot].pair != pair) slot = (slot + 1) & mask;
  merges_[slot] = {pair, merge};
}

const BpeModel::Merge* BpeModel::find_merge(int32_t left, int32_t right) const {
  const uint64_t pair = pair_key(left, right);
  const size_t mask = merges_.size() - 1;
  for (size_t slot = pair_hash(pair) & mask;; slot = (slot + 1) & mask) {
    if (merges_[slot].pair == pair) return &merges_[slot].merge;
    if (merges_[slot].pair == kNoPair) return nullptr;
  }
}

Status BpeModel::find_unk_and_bytes(const BpeSpec& spec, bool byte_level) {
  if (spec.unk_token) {
    unk_id_ = vocab_.find(*spec.unk_token);
    if (unk_id_ < 0) {
      return Status::data_loss("unk_token \"" + spec.unk_token->substr(0, 100) +
                                   "\" is not in the vocabulary",
                               "unk_token");
    }
  }
  static const char* const digits = "0123456789ABCDEF";
  for (int byte = 0; byte < 256; ++byte) {
    const char name[] = {'<', '0', 'x', digits[byte >> 4], digits[byte & 15], '>'};
    fallback_[byte] = vocab_.find({name, sizeof name});
    std::string spelled;
    append_utf8(byte_to_char(static_cast<unsigned char>(byte)), &spelled);
    byte_symbol_[byte] = byte_level ? vocab_.find(spelled) : -1;
  }
  return {};
}

void BpeModel::find_safe_split() {
  if (vocab_.find(kMeta) < 0) return;
  for (const MergeSlot& slot : merges_) {
    if (slot.pair != kNoPair && meta_after_other(vocab_.text(slot.merge.new_id))) return;
  }
  split_at_meta_ = true;
}

void BpeModel::encode_word(std::string_view word, BpeScratch* scratch,
                           std::vector<int32_t>* ids) const {
  if (!split_at_meta_) return encode_cached(word, scratch, ids);
  if (const int32_t id = whole_word_id(word, scratch); id >= 0) {
    ids->push_back(id);
    return;
  }
  // No merge crosses these borders, so that the parts are independent: short and cacheable.
  size_t begin = 0;
  bool after_meta = false;
  for (size_t at = 0; at < word.size();) {
    const bool meta = word.compare(at, kMeta.size(), kMeta) == 0;
    if (meta && !after_meta && at > begin) {
      encode_cached(word.substr(begin, at - begin), scratch, ids);
      begin = at;
    }
    after_meta = meta;
    at += utf8_length(static_cast<unsigned char>(word[at]));
  }
  if (begin < word.size()) encode_cached(word.substr(begin), scratch, ids);
}

int32_t BpeModel::whole_word_id(std::string_view word, BpeScratch* scratch) const {
  if (!ignore_merges_) return -1;
  if (!byte_level_) return vocab_.find(word);
  if (word.size() > kMaxTokenBytes) return -1;
  scratch->spelled_.clear();
  append_byte_chars(word, &scratch->spelled_);
  return vocab_.find(scratch->spelled_);
}

void BpeModel::encode_cached(std::string_view word, BpeScratch* scratch,
                             std::vector<int32_t>* ids) const {
  if (word.size() > BpeScratch::kCacheWordBytes) return encode_uncached(word, scratch, ids);
  const size_t hash = std::hash<std::string_view>{}(word);
  BpeScratch::CacheEntry& entry = scratch->cache_[hash % BpeScratch::kCacheEntries];
  if (entry.word_bytes == word.size() && std::memcmp(entry.word, word.data(), word.size()) == 0) {
    ids->insert(ids->end(), entry.ids, entry.ids + entry.id_count);
    return;
  }
  const size_t before = ids->size();
  encode_uncached(word, scratch, ids);
  const size_t added = ids->size() - before;
  if (added > BpeScratch::kCacheIds) return;
  entry.word_bytes = static_cast<uint8_t>(word.size());
  entry.id_count = static_cast<uint8_t>(added);
  std::memcpy(entry.word, word.data(), word.size());
  std::copy(ids->begin() + static_cast<std::ptrdiff_t>(before), ids->end(), entry.ids);
}

void BpeModel::encode_uncached(std::string_view word, BpeScratch* scratch,
                               std::vector<int32_t>* ids) const {
  if (!split_at_meta_) {
    if (const int32_t id = whole_word_id(word, scratch); id >= 0) {
      ids->push_back(id);
      return;
    }
  }
  start_symbols(word, &scratch->symbols_);
  if (scratch->symbols_.size() <= kScanSymbols) {
    merge_scan(&scratch->symbols_);
  } else {
    merge_heap(scratch);
  }
  for (const BpeSymbol& symbol : scratch->symbols_) {
    if (symbol.id != kMerged) emit(word, symbol, ids);
  }
}

void BpeModel::start_symbols(std::string_view word, std::vector<BpeSymbol>* symbols) const {
  symbols->clear();
  bool after_unk = false;  // an unk_token waits: the next unknown character may join it
  const auto add = [&](int32_t id, size_t begin) {
    if (after_unk) symbols->push_back({unk_id_, 0, 0, static_cast<uint32_t>(begin)});
    after_unk = false;
    symbols->push_back({id, 0, 0, static_cast<uint32_t>(begin)});
  };
  std::string spelled;
  for (size_t pos = 0; pos < word.size();) {
    const size_t begin = pos;
    if (byte_level_) {
      const auto byte = static_cast<unsigned char>(word[pos++]);
      if (byte_symbol_[byte] >= 0) {
        add(byte_symbol_[byte], begin);
        continue;
      }
      spelled.clear();
      append_utf8(byte_to_char(byte), &spelled);
      unknown_symbol(spelled, static_cast<uint32_t>(begin), symbols, &after_unk);
      continue;
    }
    pos += utf8_length(static_cast<unsigned char>(word[pos]));
    const std::string_view one = word.substr(begin, pos - begin);
    const int32_t id = vocab_.find(one);
    if (id >= 0) {
      add(id, begin);
    } else if (by_score_) {
      const int32_t pseudo = pseudo_.find(one);
      add(pseudo < 0 ? kNoSuchChar : pseudo_base_ + pseudo, begin);
    } else {
      unknown_symbol(one, static_cast<uint32_t>(begin), symbols, &after_unk);
    }
  }
  if (after_unk) symbols->push_back({unk_id_, 0, 0, static_cast<uint32_t>(word.size())});
}

// As the original has it: byte tokens go before an unk_token that still waits; without unk_token
// the character is dropped.
void BpeModel::unknown_symbol(std::string_view text, uint32_t begin,
                              std::vector<BpeSymbol>* symbols, bool* after_unk) const {
  if (byte_fallback_ && std::all_of(text.begin(), text.end(), [&](char c) {
        return fallback_[static_cast<unsigned char>(c)] >= 0;
      })) {
    for (char c : text) symbols->push_back({fallback_[static_cast<unsigned char>(c)], 0, 0, begin});
    return;
  }
  if (unk_id_ < 0) return;
  if (*after_unk && !fuse_unk_) symbols->push_back({unk_id_, 0, 0, begin});
  *after_unk = true;
}

void BpeModel::merge_scan(std::vector<BpeSymbol>* symbols) const {
  std::array<Merge, kScanSymbols> merges;
  constexpr uint32_t kNoRank = UINT32_MAX;
  const auto look_up = [&](size_t i) {
    const Merge* merge = find_merge((*symbols)[i].id, (*symbols)[i + 1].id);
    merges[i] = merge == nullptr ? Merge{kNoRank, 0} : *merge;
  };
  size_t count = symbols->size();
  for (size_t i = 0; i + 1 < count; ++i) look_up(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == kNoRank) break;
    (*symbols)[best].id = merges[best].new_id;
    --count;
    for (size_t i = best + 1; i < count; ++i) (*symbols)[i] = (*symbols)[i + 1];
    for (size_t i = best + 1; i + 1 < count; ++i) merges[i] = merges[i + 1];
    if (best > 0) look_up(best - 1);
    if (best + 1 < count) look_up(best);
  }
  symbols->resize(count);
}

void BpeModel::merge_heap(BpeScratch* scratch) const {
  std::vector<BpeSymbol>& symbols = scratch->symbols_;
  std::vector<BpeScratch::Candidate>& heap = scratch->heap_;
  heap.clear();
  const auto later = [](const BpeScratch::Candidate& a, const BpeScratch::Candidate& b) {
    return a.order > b.order;
  };
  const auto candidate = [&](int32_t at) {
    const Merge* merge = find_merge(symbols[at].id, symbols[symbols[at].next].id);
    if (merge == nullptr) return false;
    heap.push_back({uint64_t{merge->rank} << 32 | static_cast<uint32_t>(at), merge->new_id});
    return true;
  };
  const auto count = static_cast<int32_t>(symbols.size());
  for (int32_t i = 0; i < count; ++i) {
    symbols[i].prev = i - 1;
    symbols[i].next = i + 1 < count ? i + 1 : -1;
    if (i + 1 < count) candidate(i);
  }
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const BpeScratch::Candidate top = heap.back();
    heap.pop_back();
    const auto at = static_cast<int32_t>(top.order & UINT32_MAX);
    BpeSymbol& symbol = symbols[at];
    if (symbol.id == kMerged || symbol.next < 0) continue;
    BpeSymbol& right = symbols[symbol.next];
    const Merge* merge = find_merge(symbol.id, right.id);
    if (merge == nullptr || merge->new_id != top.new_id) continue;  // the pair has changed since
    symbol.id = top.new_id;
    right.id = kMerged;
    symbol.next = right.next;
    if (symbol.next >= 0) symbols[symbol.next].prev = at;
    if (symbol.prev >= 0 && candidate(symbol.prev)) std::push_heap(heap.begin(), heap.end(), later);
    if (symbol.next >= 0 && candidate(at)) std::push_heap(heap.begin(), heap.end(), later);
  }
}

void BpeModel::emit(std::string_view word, const BpeSymbol& symbol,
                    std::vector<int32_t>* ids) const {
  if (symbol.id < pseudo_base_) {
    ids->push_back(symbol.id);
    return;
  }
  const size_t length = utf8_length(static_cast<unsigned char>(word[symbol.begin]));
  for (char c : word.substr(symbol.begin, length)) {
    const int32_t id = fallback_[static_cast<unsigned char>(c)];
    if (id < 0) {
      if (unk_id_ >= 0) ids->push_back(unk_id_);
      return;
    }
    ids->push_back(id);
  }
}

}  // namespace warpweave
