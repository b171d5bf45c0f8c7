// A tokenizer compiled from its TokenizerSpec: what stands behind Tokenizer and
// IncrementalDetokenizer. Immutable after build() but for a pool of scratch memory behind a mutex.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/bpe.h"
#include "text/pretokenizer.h"
#include "text/tokenizer_added.h"
#include "text/tokenizer_normalizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_spec.h"
#include "text/unigram.h"
#include "text/word_piece.h"
#include "warpweave/status.h"

namespace warpweave {

// How pieces become text again.
enum class DecodeMode {
  byte_level,    // bytes, put together
  pieces,        // text, with runs of byte tokens where there is byte fallback
  joined,        // text with a space before every piece but the first, or what WordPiece's prefix and cleanup leave
};

struct DecodeRules {
  DecodeMode mode = DecodeMode::joined;
  bool byte_fallback = false;
  bool first_differs = false;  // Metaspace: the first piece drops its U+2581
  int strip_start = 0;         // characters `strip_char` to drop from the whole text's ends
  int strip_stop = 0;
  std::string strip_char;
};

class TokenizerCore {
 public:
  static Result<std::unique_ptr<TokenizerCore>> build(const TokenizerSpec& spec);
  TokenizerCore();
  ~TokenizerCore();

  Result<std::vector<int32_t>> encode(std::string_view text, const EncodeOptions& options) const;
  // False: special tokens are looked for in rewritten text, where literal_at means nothing.
  bool can_take_literal_text() const {
    return normalizer_.empty() || !normalized_matcher_.has_special();
  }
  bool may_begin_special(std::string_view text, size_t at) const {
    return raw_matcher_.may_begin_special(text, at) ||
           normalized_matcher_.may_begin_special(text, at);
  }
  // The texts of the special tokens, for who marks text that must stay literal.
  std::vector<std::string_view> special_texts() const;
  // Makes scratch memory for so many threads at once, so that none is made under load, at a moment when as many encode
  // for the first time.
  void prepare(int threads) const;
  size_t idle_scratches() const;    // for tests
  size_t idle_text_bytes() const;   // for tests: what they hold beside the words that they know

  std::optional<int32_t> token_to_id(std::string_view token) const;
  std::optional<std::string_view> token_text(int32_t id) const;
  int vocab_size() const { return static_cast<int>(pieces_.size()); }
  bool is_special(int32_t id) const { return has_id(id) && pieces_[id].special; }

  const DecodeRules& decode_rules() const { return rules_; }
  bool has_id(int32_t id) const {
    return id >= 0 && id < vocab_size() && pieces_[id].kind != PieceKind::none;
  }
  bool is_byte_piece(int32_t id) const { return pieces_[id].kind == PieceKind::byte; }
  // What `id` adds to the text; for a byte piece the one byte.
  std::string_view piece(int32_t id) const {
    return std::string_view(piece_bytes_).substr(pieces_[id].begin, pieces_[id].size);
  }
  std::string first_piece(int32_t id) const;

  const std::vector<int32_t>& ids_before() const { return ids_before_; }
  const std::vector<int32_t>& ids_after() const { return ids_after_; }
  const std::vector<PairPart>& pair() const { return pair_; }

  std::optional<int32_t> bos_id, eos_id, pad_id, unk_id;

 private:
  enum class PieceKind : uint8_t { none, text, byte };
  struct Piece {
    uint32_t begin = 0;
    uint32_t size = 0;
    PieceKind kind = PieceKind::none;
    bool special = false;
  };
  struct AddedToken {
    std::string content;
    std::string shown;  // what id_to_token() and decode() see: normalized where it matches so
    bool special = false;
  };
  struct Scratch;
  class ScratchLease;

  Status add_tokens(const std::vector<AddedTokenSpec>& specs);
  Status build_pieces(const TokenizerSpec& spec);
  Result<std::string> decode_piece(std::string_view token, bool is_first,
                                   RegexScratch* scratch) const;
  Status set_special_ids(const TokenizerSpec& spec);
  // `literal_at`: offsets in `text`.
  Status encode_text(std::string_view text, std::span<const size_t> literal_at, bool starts_text,
                     Scratch* scratch, std::vector<int32_t>* ids) const;
  Status encode_words(std::string_view text, bool starts_text, Scratch* scratch,
                      std::vector<int32_t>* ids) const;

  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  BpeModel model_;                        // of a WordPiece or Unigram model the vocabulary alone
  std::optional<WordPiece> word_piece_;
  std::optional<Unigram> unigram_;
  AddedTokenMatcher raw_matcher_;         // before the normalizer
  AddedTokenMatcher normalized_matcher_;  // after it
  std::unordered_map<std::string, int32_t> added_ids_;
  std::unordered_map<int32_t, AddedToken> added_;
  std::vector<int32_t> ids_before_;
  std::vector<int32_t> ids_after_;
  std::vector<PairPart> pair_;
  DecodeRules rules_;
  std::vector<DecoderStep> token_steps_;  // the decoder's steps that work on single tokens
  std::vector<std::optional<Regex>> token_regexes_;
  std::vector<Piece> pieces_;             // by id
  std::string piece_bytes_;

  mutable std::mutex pool_mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> pool_;
};

}  // namespace warpweave
