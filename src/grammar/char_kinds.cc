#include "grammar/char_kinds.h"

#include <array>

#include "grammar/char_set.h"

namespace warpweave::grammar {
namespace {

constexpr std::array<uint8_t, 128> make_kinds() {
  std::array<uint8_t, 128> kinds{};
  int next = kBrokenKind + 1;
  for (int c = 0; c < 128; ++c) {
    if (c >= 'a' && c <= 'z') {
      kinds[c] = kLowerKind;
    } else if (c >= 'A' && c <= 'Z') {
      kinds[c] = kUpperKind;
    } else if (c >= '0' && c <= '9') {
      kinds[c] = kDigitKind;
    } else if (c == 0x7F || (c < 0x20 && c != '\t' && c != '\n' && c != '\r')) {
      kinds[c] = kControlKind;
    } else {
      kinds[c] = static_cast<uint8_t>(next++);
    }
  }
  return kinds;
}

constexpr std::array<uint8_t, 128> kKinds = make_kinds();
static_assert(kKinds['~'] == kNumKinds - 1);

}  // namespace

int kind_of_ascii(uint8_t ascii) { return kKinds[ascii]; }

int next_kind(std::string_view text, size_t* at) {
  uint32_t c = 0;
  if (!next_utf8(text, at, &c)) {
    ++*at;
    return kBrokenKind;
  }
  return c < 128 ? kind_of_ascii(static_cast<uint8_t>(c)) : kBeyondKind;
}

TextKinds kinds_of_text(std::string_view text) {
  TextKinds out;
  for (size_t at = 0; at < text.size(); ++out.chars) out.kinds |= kinds(next_kind(text, &at));
  return out;
}

}  // namespace warpweave::grammar
