// What a tokenizer file says, as plain data: read by tokenizer_json.cc or tokenizer_gguf.cc,
// compiled by TokenizerCore. The string_views point into the file's memory and live as long as it.
// Names follow the tokenizer.json format.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace warpweave {

struct PatternSpec {
  bool is_regex = false;
  std::string text;
};

struct NormalizerStep {
  enum class Kind {
    nfc, nfd, nfkc, nfkd, lowercase, prepend, replace, strip,
    clean_text,        // BERT: control characters go, white space becomes spaces
    space_ideographs,  // BERT: spaces around CJK ideographs
    strip_marks,       // BERT: nonspacing marks go
    charsmap,          // SentencePiece: a map of its own, see charsmap.h
  } kind;
  PatternSpec pattern;      // replace
  std::string content;      // replace, prepend; charsmap: its bytes
  bool strip_left = false;
  bool strip_right = false;
};

enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };
enum class PrependScheme { first, never, always };

struct PreTokenizerStep {
  enum class Kind {
    split, digits, punctuation, whitespace, whitespace_split, byte_level, metaspace
  } kind;
  PatternSpec pattern;                               // split; byte_level with use_regex
  SplitBehavior behavior = SplitBehavior::isolated;  // split, digits, punctuation
  bool invert = false;                               // split
  bool add_prefix_space = false;                     // byte_level
  bool use_regex = false;                            // byte_level
  std::string replacement;                           // metaspace: one character
  PrependScheme prepend_scheme = PrependScheme::always;
  bool split = true;                                 // metaspace
};

struct DecoderStep {
  enum class Kind { byte_level, metaspace, replace, byte_fallback, fuse, strip, word_piece } kind;
  PatternSpec pattern;                               // replace
  std::string content;                               // replace; strip: one character; word_piece: the prefix
  std::string replacement;                           // metaspace
  PrependScheme prepend_scheme = PrependScheme::always;
  int strip_start = 0;                               // characters
  int strip_stop = 0;
  bool cleanup = false;                              // word_piece: no spaces before punctuation
};

struct AddedTokenSpec {
  std::string content;
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
  bool special = false;
};

// Words of a WordPiece vocabulary: the longest piece that is in it, then the longest of the rest behind `prefix`, and
// so on (Wu et al. 2016, arXiv:1609.08144).
struct WordPieceSpec {
  std::string prefix = "##";
  int max_word_chars = 100;         // longer words are unknown
};
inline constexpr uint64_t kMaxWordPieceChars = 1000;

// Scores of a Unigram vocabulary, by id (see unigram.h).
struct UnigramSpec {
  std::vector<double> scores;
  int32_t unk_id = -1;              // -1: none
};

// A part of two texts joined: one of them, or ids.
struct PairPart {
  enum class Text { none, first, second } text = Text::none;
  std::vector<int32_t> ids;         // of Text::none
  bool of_second = false;           // its tokens' type
};

struct BpeSpec {
  struct Entry {
    std::string_view token;
    int32_t id;
  };
  std::vector<Entry> vocab;
  std::vector<std::pair<std::string_view, std::string_view>> merges;  // best first
  std::vector<float> scores;  // by id; not empty: merge by the score of the result (SentencePiece)
  std::optional<std::string> unk_token;
  bool fuse_unk = false;
  bool byte_fallback = false;
  bool ignore_merges = false;
  std::optional<WordPieceSpec> word_piece;  // set: there are no merges
  std::optional<UnigramSpec> unigram;       // likewise
};

struct TokenizerSpec {
  std::vector<AddedTokenSpec> added_tokens;
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  BpeSpec model;
  std::vector<int32_t> ids_before;  // what the post-processor puts around the text
  std::vector<int32_t> ids_after;
  std::vector<PairPart> pair;       // how it joins two texts; empty: it does not
  bool has_decoder = false;         // none: tokens are joined by spaces
  std::vector<DecoderStep> decoder;
  // Named by their text (tokenizer_config.json) or id (GGUF); unknown text is ignored.
  std::optional<std::string> bos_token, eos_token, pad_token, unk_token;
  std::optional<int32_t> bos_id, eos_id, pad_id, unk_id;
  // Set: replaces what the post-processor says.
  std::optional<bool> add_bos, add_eos;
};

inline constexpr int32_t kMaxTokenId = (1 << 22) - 1;
inline constexpr size_t kMaxTokenBytes = 64 << 10;

}  // namespace warpweave
