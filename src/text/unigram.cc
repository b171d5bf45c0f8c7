#include "text/unigram.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/tokenizer_unicode.h"

namespace warpweave {
namespace {

constexpr double kUnknownPenalty = 10;  // below the lowest score of the vocabulary

}  // namespace

Result<Unigram> Unigram::build(const BpeSpec& spec, const StringTable& vocab) {
  Unigram out;
  out.scores_ = spec.unigram->scores;
  out.unk_id_ = spec.unigram->unk_id;
  if (out.scores_.empty() || out.unk_id_ >= static_cast<int32_t>(out.scores_.size())) {
    return Status::data_loss("unk_id must be the place of a token of the vocabulary", "unk_id");
  }
  out.unk_score_ = *std::min_element(out.scores_.begin(), out.scores_.end()) - kUnknownPenalty;
  out.longest_beginning_.assign(256, 0);
  for (const BpeSpec::Entry& entry : spec.vocab) {
    if (entry.token.empty()) continue;
    uint32_t& longest = out.longest_beginning_[static_cast<unsigned char>(entry.token[0])];
    longest = std::max(longest, static_cast<uint32_t>(entry.token.size()));
  }
  if (!spec.byte_fallback) return out;
  for (int byte = 0; byte < 256; ++byte) {
    const int32_t id = vocab.find(fmt::format("<0x{:02X}>", byte));
    if (id < 0) return Status::data_loss(fmt::format("byte_fallback needs the token <0x{:02X}>", byte), "byte_fallback");
    out.bytes_.push_back(id);
  }
  return out;
}

void Unigram::find_best(const StringTable& vocab, std::string_view word, UnigramScratch* scratch) const {
  std::vector<UnigramScratch::Node>& best = scratch->best_;
  best.assign(word.size() + 1, {});
  for (size_t begin = 0, character = 0; begin < word.size(); begin += character) {
    const auto first = static_cast<unsigned char>(word[begin]);
    character = utf8_length(first);
    const double here = best[begin].score;
    const auto offer = [&](size_t end, double score, int32_t id) {
      if (best[end].begin >= 0 && score <= best[end].score) return;
      best[end] = {score, static_cast<int64_t>(begin), id};
    };
    bool known = false;
    const size_t last = std::min(word.size(), begin + longest_beginning_[first]);
    for (size_t end = begin + character; end <= last; end += utf8_length(static_cast<unsigned char>(word[end]))) {
      const int32_t id = vocab.find(word.substr(begin, end - begin));
      if (id >= 0) {
        offer(end, here + scores_[id], id);
        known |= end == begin + character;
      }
      if (end == word.size()) break;
    }
    if (!known) offer(begin + character, here + unk_score_, -1);
  }
}

// One token for all of them, or the tokens of their bytes.
void Unigram::append_unknown(std::string_view text, std::vector<int32_t>* ids) const {
  if (bytes_.empty()) {
    if (unk_id_ >= 0) ids->push_back(unk_id_);
    return;
  }
  for (const char c : text) ids->push_back(bytes_[static_cast<unsigned char>(c)]);
}

void Unigram::encode_word(const StringTable& vocab, std::string_view word, UnigramScratch* scratch,
                          std::vector<int32_t>* ids) const {
  find_best(vocab, word, scratch);
  std::vector<UnigramScratch::Node>& way = scratch->way_;
  way.clear();
  for (size_t end = word.size(); end > 0; end = static_cast<size_t>(way.back().begin)) way.push_back(scratch->best_[end]);
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
}

}  // namespace warpweave
