// Added tokens ("<|im_end|>"): found in text before anything else looks at it, leftmost first,
// the longest of those that start together. Immutable after build() and thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "warpweave/status.h"

namespace warpweave {

inline constexpr size_t kMaxAddedTokenBytes = 4096;

struct AddedTokenPattern {
  std::string text;
  int32_t id = 0;
  bool single_word = false;  // only where no word character stands beside it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // and after it
  bool special = false;      // not matched in literal text
};

// A stretch of text: an added token (id >= 0), or text between them (id = -1).
struct TextSection {
  std::string_view text;
  int32_t id = -1;
};

class AddedTokenMatcher {
 public:
  static Result<AddedTokenMatcher> build(std::vector<AddedTokenPattern> patterns);

  bool empty() const { return patterns_.empty(); }

  bool has_special() const { return has_special_; }

  // Appends the sections of `text`, in order, empty ones left out. `literal_at`: offsets in `text`,
  // ascending; no special token that begins before one of them is matched up to it or beyond.
  void split(std::string_view text, std::span<const size_t> literal_at,
             std::vector<TextSection>* sections) const;

  // Whether a special token, or the beginning of any token that the end of `text` cuts, is at `at`.
  bool may_begin_special(std::string_view text, size_t at) const;

 private:
  struct Node {
    int32_t pattern = -1;
    std::vector<std::pair<unsigned char, int32_t>> next;  // sorted by byte
  };
  int32_t child(int32_t node, unsigned char byte) const;
  // The longest pattern that starts at `at`, a special one only if it ends before `literal`; or -1.
  int32_t match(std::string_view text, size_t at, size_t literal) const;

  std::vector<AddedTokenPattern> patterns_;
  std::vector<Node> nodes_;              // a byte trie; 0 is the root
  std::array<bool, 256> may_start_{};
  bool has_special_ = false;
};

}  // namespace warpweave
