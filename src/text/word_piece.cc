#include "text/word_piece.h"

#include <algorithm>

namespace warpweave {
namespace {

bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

}  // namespace

Result<WordPiece> WordPiece::build(const BpeSpec& spec, const StringTable& vocab) {
  WordPiece out;
  out.prefix_ = spec.word_piece->prefix;
  out.max_chars_ = static_cast<size_t>(spec.word_piece->max_word_chars);
  out.unk_id_ = vocab.find(*spec.unk_token);
  if (out.unk_id_ < 0) {
    return Status::data_loss("the vocabulary lacks the unk_token \"" + spec.unk_token->substr(0, 60) + "\"",
                             "unk_token");
  }
  for (const BpeSpec::Entry& entry : spec.vocab) out.longest_bytes_ = std::max(out.longest_bytes_, entry.token.size());
  return out;
}

Status WordPiece::encode_word(const StringTable& vocab, std::string_view word, std::vector<int32_t>* ids) const {
  const size_t kept = ids->size();
  if (static_cast<size_t>(std::count_if(word.begin(), word.end(), begins_character)) > max_chars_) {
    ids->push_back(unk_id_);
    return {};
  }
  std::string piece;
  size_t looked_up_bytes = 0;
  for (size_t begin = 0; begin < word.size();) {
    piece = begin > 0 ? prefix_ : std::string();
    const size_t room = longest_bytes_ > piece.size() ? longest_bytes_ - piece.size() : 0;
    piece += word.substr(begin, room);
    size_t end = std::min(word.size(), begin + room);
    int32_t id = -1;
    for (; end > begin; --end, piece.pop_back()) {
      const bool whole = end == word.size() || begins_character(word[end]);
      if (!whole) continue;
      looked_up_bytes += piece.size();
      if ((id = vocab.find(piece)) >= 0) break;
    }
    if (looked_up_bytes > kMaxLookUpBytes) {
      return Status::resource_exhausted("long pieces of this vocabulary make a word too much work; send shorter words");
    }
    if (id < 0) {
      ids->resize(kept);
      ids->push_back(unk_id_);
      return {};
    }
    ids->push_back(id);
    begin = end;
  }
  return {};
}

}  // namespace warpweave
