#include "grammar/char_set.h"

#include <algorithm>

namespace warpweave::grammar {
namespace {

constexpr uint32_t kSurrogatesFirst = 0xD800, kSurrogatesLast = 0xDFFF;
constexpr uint32_t kLastOfLength[] = {0x7F, 0x7FF, 0xFFFF, kMaxChar};

int utf8_encode(uint32_t c, uint8_t out[4]) {
  if (c < 0x80) return out[0] = static_cast<uint8_t>(c), 1;
  const int length = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  static constexpr uint8_t kLead[] = {0, 0, 0xC0, 0xE0, 0xF0};
  for (int i = length - 1; i > 0; --i, c >>= 6) out[i] = static_cast<uint8_t>(0x80 | (c & 0x3F));
  out[0] = static_cast<uint8_t>(kLead[length] | c);
  return length;
}

// Cuts [first, last] where its byte forms stop being a product of ranges.
void split(uint32_t first, uint32_t last, std::vector<Utf8Sequence>* out) {
  for (const uint32_t bound : kLastOfLength) {
    if (first <= bound && bound < last) {
      split(first, bound, out);
      return split(bound + 1, last, out);
    }
  }
  if (last > 0x7F) {
    for (int i = 1; i < 4; ++i) {
      const uint32_t low = (uint32_t{1} << (6 * i)) - 1;
      if ((first & ~low) == (last & ~low)) continue;
      if ((first & low) != 0) {
        split(first, first | low, out);
        return split((first | low) + 1, last, out);
      }
      if ((last & low) != low) {
        split(first, (last & ~low) - 1, out);
        return split(last & ~low, last, out);
      }
    }
  }
  uint8_t a[4], b[4];
  Utf8Sequence sequence;
  sequence.length = utf8_encode(first, a);
  utf8_encode(last, b);
  for (int i = 0; i < sequence.length; ++i) sequence.bytes[i] = {a[i], b[i]};
  out->push_back(sequence);
}

}  // namespace

CharSet CharSet::of(uint32_t first, uint32_t last) {
  CharSet set;
  set.add(first, last);
  return set;
}

CharSet CharSet::any() { return of(0, kMaxChar); }

void CharSet::add(uint32_t first, uint32_t last) {
  if (first > last) return;
  if (first <= kSurrogatesLast && last >= kSurrogatesFirst) {
    if (first < kSurrogatesFirst) add(first, kSurrogatesFirst - 1);
    if (last > kSurrogatesLast) add(kSurrogatesLast + 1, last);
    return;
  }
  auto at = std::lower_bound(ranges_.begin(), ranges_.end(), first, [](const CharRange& r, uint32_t c) {
    return r.last + 1 < c;
  });
  auto end = at;
  while (end != ranges_.end() && end->first <= last + 1) {
    first = std::min(first, end->first);
    last = std::max(last, end->last);
    ++end;
  }
  if (at == end) {
    ranges_.insert(at, {first, last});
  } else {
    *at = {first, last};
    ranges_.erase(at + 1, end);
  }
}

void CharSet::add(const CharSet& other) {
  for (const CharRange& r : other.ranges_) add(r.first, r.last);
}

CharSet CharSet::complement() const {
  CharSet out;
  uint32_t next = 0;
  for (const CharRange& r : ranges_) {
    if (r.first > next) out.add(next, r.first - 1);
    next = r.last + 1;
  }
  if (next <= kMaxChar) out.add(next, kMaxChar);
  return out;
}

CharSet CharSet::intersect(const CharSet& other) const {
  CharSet out;
  for (size_t i = 0, j = 0; i < ranges_.size() && j < other.ranges_.size();) {
    const CharRange &a = ranges_[i], &b = other.ranges_[j];
    const uint32_t first = std::max(a.first, b.first), last = std::min(a.last, b.last);
    if (first <= last) out.ranges_.push_back({first, last});
    a.last < b.last ? ++i : ++j;
  }
  return out;
}

bool CharSet::contains(uint32_t c) const {
  const auto at = std::lower_bound(ranges_.begin(), ranges_.end(), c,
                                   [](const CharRange& r, uint32_t value) { return r.last < value; });
  return at != ranges_.end() && at->first <= c;
}

void append_utf8_sequences(const CharSet& set, std::vector<Utf8Sequence>* out) {
  for (const CharRange& r : set.ranges()) split(r.first, r.last, out);
}

void append_utf8(uint32_t c, std::string* out) {
  uint8_t bytes[4];
  const int length = utf8_encode(c, bytes);
  out->append(reinterpret_cast<const char*>(bytes), length);
}

bool next_utf8(std::string_view text, size_t* at, uint32_t* c) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  if (*at >= text.size()) return false;
  const uint8_t lead = byte(*at);
  if (lead < 0x80) {
    *c = lead;
    ++*at;
    return true;
  }
  const int length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || *at + length > text.size()) return false;
  uint32_t value = lead & (0x7F >> length);
  for (int i = 1; i < length; ++i) {
    if ((byte(*at + i) & 0xC0) != 0x80) return false;
    value = value << 6 | (byte(*at + i) & 0x3F);
  }
  static constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (value < kLeast[length] || value > kMaxChar) return false;
  if (value >= kSurrogatesFirst && value <= kSurrogatesLast) return false;
  *c = value;
  *at += length;
  return true;
}

}  // namespace warpweave::grammar
