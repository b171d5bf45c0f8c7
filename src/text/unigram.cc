#include "text/unigram.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "text/tokenizer_unicode.h"

namespace warpweave {
namespace {

constexpr double kUnknownPenalty = 10;  // below the lowest score of the vocabulary

size_t byte_at(std::string_view text, size_t at) { return static_cast<unsigned char>(text[at]); }

}  // namespace

Result<Unigram> Unigram::build(const BpeSpec& spec, const StringTable& vocab) {
  Unigram out;
  out.scores_ = spec.unigram->scores;
  out.unk_id_ = spec.unigram->unk_id;
  if (out.scores_.empty() || out.unk_id_ >= static_cast<int32_t>(out.scores_.size())) {
    return Status::data_loss("unk_id must be the place of a token of the vocabulary", "unk_id");
  }
  out.unk_score_ = *std::min_element(out.scores_.begin(), out.scores_.end()) - kUnknownPenalty;
  for (int32_t id = 0; id < static_cast<int32_t>(spec.vocab.size()); ++id) {
    if (!vocab.text(id).empty()) out.sorted_.push_back(id);
  }
  std::ranges::sort(out.sorted_, {}, [&](int32_t id) { return vocab.text(id); });
  out.first_.assign(257, 0);
  for (const int32_t id : out.sorted_) ++out.first_[byte_at(vocab.text(id), 0) + 1];
  std::partial_sum(out.first_.begin(), out.first_.end(), out.first_.begin());
  if (!spec.byte_fallback) return out;
  for (int byte = 0; byte < 256; ++byte) {
    const int32_t id = vocab.find(fmt::format("<0x{:02X}>", byte));
    if (id < 0)
      return Status::data_loss(fmt::format("byte_fallback needs the token <0x{:02X}>", byte), "byte_fallback");
    out.bytes_.push_back(id);
  }
  return out;
}

// Calls take(id, bytes) for each token that `text` begins with, the shortest first. Gives the steps that it took.
template <typename Take>
size_t Unigram::each_beginning(const StringTable& vocab, std::string_view text, const Take& take) const {
  auto low = sorted_.begin() + first_[byte_at(text, 0)], high = sorted_.begin() + first_[byte_at(text, 0) + 1];
  size_t depth = 1;
  for (; low != high; ++depth) {  // from low to high the tokens begin with the text's first `depth` bytes
    if (vocab.text(*low).size() == depth) take(*low++, depth);
    if (low == high || depth == text.size()) break;
    const size_t next = byte_at(text, depth);
    const auto byte_of = [&](int32_t id) { return byte_at(vocab.text(id), depth); };
    // Many tokens share their beginnings: then there is nothing to search.
    if (byte_of(*low) != next) low = std::ranges::lower_bound(low, high, next, {}, byte_of);
    if (low != high && byte_of(*(high - 1)) != next) high = std::ranges::upper_bound(low, high, next, {}, byte_of);
  }
  return depth;
}

// False: it takes too many steps.
bool Unigram::find_best(const StringTable& vocab, std::string_view word, UnigramScratch* scratch) const {
  std::vector<UnigramScratch::Node>& best = scratch->best_;
  best.assign(word.size() + 1, {});
  size_t steps_left = kFreeSteps + kMaxStepsPerByte * word.size();
  for (size_t begin = 0, character = 0; begin < word.size(); begin += character) {
    character = utf8_length(static_cast<unsigned char>(word[begin]));
    const double here = best[begin].score;
    const auto offer = [&](size_t end, double score, int32_t id) {
      if (best[end].begin >= 0 && score <= best[end].score) return;
      best[end] = {score, static_cast<int64_t>(begin), id};
    };
    bool known = false;
    const size_t steps = each_beginning(vocab, word.substr(begin, steps_left), [&](int32_t id, size_t bytes) {
      offer(begin + bytes, here + scores_[id], id);
      known |= bytes == character;
    });
    if (steps >= steps_left) return false;
    steps_left -= steps;
    if (!known) offer(begin + character, here + unk_score_, -1);
  }
  return true;
}

// One token for all of them, or the tokens of their bytes.
void Unigram::append_unknown(std::string_view text, std::vector<int32_t>* ids) const {
  if (bytes_.empty()) {
    if (unk_id_ >= 0) ids->push_back(unk_id_);
    return;
  }
  for (const char c : text) ids->push_back(bytes_[static_cast<unsigned char>(c)]);
}

Status Unigram::encode_word(const StringTable& vocab, std::string_view word, UnigramScratch* scratch,
                            std::vector<int32_t>* ids) const {
  if (!find_best(vocab, word, scratch)) {
    return Status::resource_exhausted(
        "long tokens of this vocabulary begin at too many places of the text; send a shorter one");
  }
  std::vector<UnigramScratch::Node>& way = scratch->way_;
  way.clear();
  for (size_t end = word.size(); end > 0; end = static_cast<size_t>(way.back().begin))
    way.push_back(scratch->best_[end]);
  for (size_t i = way.size(); i-- > 0;) {
    const auto is_unknown = [&](size_t at) { return way[at].id < 0 || way[at].id == unk_id_; };
    if (!is_unknown(i)) {
      ids->push_back(way[i].id);
      continue;
    }
    const auto begin = static_cast<size_t>(way[i].begin);
    while (i > 0 && is_unknown(i - 1)) --i;
    const size_t end = i > 0 ? static_cast<size_t>(way[i - 1].begin) : word.size();
    append_unknown(word.substr(begin, end - begin), ids);
  }
  return {};
}

}  // namespace warpweave
