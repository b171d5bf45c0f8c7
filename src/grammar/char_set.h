// Sets of Unicode scalar values as sorted intervals, and their UTF-8 byte forms. Values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace warpweave::grammar {

inline constexpr uint32_t kMaxChar = 0x10FFFF;

struct CharRange {
  uint32_t first;
  uint32_t last;
  bool operator==(const CharRange&) const = default;
};

// Sorted, disjoint, not touching; surrogates are never members.
class CharSet {
 public:
  CharSet() = default;
  static CharSet of(uint32_t first, uint32_t last);
  static CharSet any();

  void add(uint32_t first, uint32_t last);
  void add(const CharSet& other);
  CharSet complement() const;
  CharSet intersect(const CharSet& other) const;
  CharSet minus(const CharSet& other) const { return intersect(other.complement()); }
  bool contains(uint32_t c) const;
  bool contains(const CharSet& other) const { return other.minus(*this).empty(); }
  bool empty() const { return ranges_.empty(); }
  const std::vector<CharRange>& ranges() const { return ranges_; }
  bool operator==(const CharSet&) const = default;

 private:
  std::vector<CharRange> ranges_;
};

struct ByteRange {
  uint8_t first;
  uint8_t last;
};

// One to four byte ranges whose product is a set of characters in UTF-8.
struct Utf8Sequence {
  ByteRange bytes[4];
  int length = 0;
};

void append_utf8_sequences(const CharSet& set, std::vector<Utf8Sequence>* out);
void append_utf8(uint32_t c, std::string* out);
// Decodes the character at text[*at] and moves on; false (and *at stays) where it is no UTF-8.
bool next_utf8(std::string_view text, size_t* at, uint32_t* c);

}  // namespace warpweave::grammar
