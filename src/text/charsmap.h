// The normalizer that a SentencePiece model brings with it: a trie of character sequences and what each becomes, as
// tokenizer.json has it ("Precompiled").
//
// Layout: the trie's size in bytes (32 bits), the trie as units of a double array (Aoe 1989, doi:10.1109/32.31365, in
// darts-clone's packing), and the results, each ended by a zero byte. All little-endian.
//
// As the `tokenizers` library applies it: a grapheme of less than 6 bytes becomes what its shortest known beginning
// becomes; of other graphemes each character by itself. Immutable after build() and thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer_regex.h"
#include "warpweave/status.h"

namespace warpweave {

class Charsmap {
 public:
  static constexpr size_t kMaxBytes = size_t{4} << 20;

  // `bytes` as in the file, Base64 undone. `data_loss` when they are no such map.
  static Result<Charsmap> build(std::string_view bytes);

  // Rewrites valid UTF-8 to about `max_bytes` at most, else `resource_exhausted`. *starts_text becomes false when the
  // first character becomes nothing.
  Status run(RegexScratch* scratch, size_t max_bytes, std::string* text, bool* starts_text) const;

 private:
  Charsmap(std::vector<uint32_t> trie, std::string results, Regex grapheme);
  std::optional<std::string_view> replacement(std::string_view chunk) const;
  bool rewrite(std::string_view grapheme, size_t max_bytes, std::string* out) const;

  std::vector<uint32_t> trie_;
  std::string results_;
  Regex grapheme_;
};

// Base64 of RFC 4648 with padding; nullopt when it is none.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace warpweave
