// Text to token ids and back, for byte-level BPE, SentencePiece-style BPE and WordPiece tokenizers.
//
// Ids are those of the `tokenizers` library (https://github.com/huggingface/tokenizers) for the
// same tokenizer.json; tests/golden/tokenizer holds that library's answers. All const methods are
// thread-safe. Text is UTF-8: invalid UTF-8 is refused (`invalid_argument`, with the byte offset),
// because the original library cannot be asked about it. The cost of encode() is O(n log n) in the
// length of the text; regular expressions run under limits, so that a pathological pattern or text
// ends in `resource_exhausted` (a limit that the text passes, named) and never hangs.
// BPE: Sennrich et al. 2016, arXiv:1508.07909; byte fallback: SentencePiece, arXiv:1808.06226.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "warpweave/status.h"

namespace warpweave {

struct TokenizerSpec;
class TokenizerCore;

struct EncodeOptions {
  bool add_special_tokens = false;  // what the post-processor says (BOS, EOS)
  // Offsets in the text, ascending: a special token that begins before one of them and reaches it is
  // text like any other. Where special tokens are only found in normalized text: `unsupported`.
  std::span<const size_t> literal_at{};
};

// A text's ids, or those of its beginning, where the whole text has more than was asked for.
struct EncodedUpTo {
  std::vector<int32_t> ids;
  size_t bytes = 0;   // of the text that `ids` stand for
  bool whole = true;
};

// The ids of two texts joined as the post-processor says.
struct EncodedPair {
  std::vector<int32_t> ids;
  int second_text_at = 0;  // from this id on they are of the second text's type; ids.size() where all are of one
};

class Tokenizer {
 public:
  explicit Tokenizer(std::unique_ptr<TokenizerCore> core);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Special tokens written out in `text` ("<|im_end|>") become their ids either way;
  // `add_special_tokens` adds what the post-processor says (BOS, EOS).
  Result<std::vector<int32_t>> encode(std::string_view text, bool add_special_tokens) const;
  Result<std::vector<int32_t>> encode(std::string_view text, const EncodeOptions& options) const;

  // As encode(), but the work is bounded by `max_tokens`, not by the text: `whole` is false once a
  // beginning of the text has so many more that all of it surely has more than max_tokens.
  Result<EncodedUpTo> encode_up_to(std::string_view text, size_t max_tokens,
                                   const EncodeOptions& options) const;

  // What encode() makes of a text with the ids `ids` under add_special_tokens.
  std::vector<int32_t> with_special_tokens(std::span<const int32_t> ids) const;
  // `unsupported` where the tokenizer's file does not say how two texts are joined.
  Result<EncodedPair> join_pair(std::span<const int32_t> first, std::span<const int32_t> second) const;

  // Ids outside the vocabulary are skipped. Bytes that are no UTF-8 become U+FFFD.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  // What `id` adds to a text that it does not begin: raw bytes, perhaps a part of a character;
  // empty for an unknown id. Valid as long as the tokenizer.
  std::string_view token_bytes(int32_t id) const;

  // The entry as the vocabulary spells it ("Ġthe", "▁the", "<0x0A>").
  std::optional<int32_t> token_to_id(std::string_view token) const;
  std::optional<std::string> id_to_token(int32_t id) const;

  int vocab_size() const;  // one past the largest id, added tokens included
  bool is_special(int32_t id) const;  // left out of decode() under skip_special_tokens
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> pad_id() const;
  std::optional<int32_t> unk_id() const;

  const TokenizerCore& core() const { return *core_; }

 private:
  std::unique_ptr<TokenizerCore> core_;
};

// `tokenizer_json` is the file's text. `tokenizer_config_json` may be empty; from it come BOS, EOS,
// PAD, UNK, added tokens that the first file lacks, and add_bos_token / add_eos_token of the
// Llama-like tokenizer classes. `data_loss`: broken files; `unsupported`: parts not known here.
Result<std::unique_ptr<Tokenizer>> load_hf_tokenizer(std::string_view tokenizer_json,
                                                     std::string_view tokenizer_config_json);

// The tokenizer.ggml.* metadata of a GGUF file, under their names there.
struct GgufTokenizerFields {
  std::string model;                 // "gpt2" (byte-level BPE) or "llama" (SentencePiece BPE)
  std::string pre;                   // "llama-bpe", "qwen2", ...; of "gpt2" only
  std::vector<std::string> tokens;   // position = id
  std::vector<float> scores;         // of "llama": merge priority, larger first
  std::vector<int32_t> token_types;  // 1 normal 2 unknown 3 control 4 user 5 unused 6 byte; or empty
  std::vector<std::string> merges;   // of "gpt2": "left right", best first
  std::optional<int32_t> bos_token_id;
  std::optional<int32_t> eos_token_id;
  std::optional<int32_t> unknown_token_id;
  std::optional<int32_t> padding_token_id;
  std::optional<bool> add_bos_token;    // unset: true for "llama" and for pre "llama-bpe"
  std::optional<bool> add_eos_token;    // unset: false
  std::optional<bool> add_space_prefix;  // of "llama"; unset: true
};

Result<std::unique_ptr<Tokenizer>> build_gguf_tokenizer(const GgufTokenizerFields& fields);

}  // namespace warpweave
