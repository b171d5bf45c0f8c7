// Kinds of characters, few enough for one word: what a stretch of text is made of.
//
// Grammars tell characters apart mostly by kind: letters, digits, single punctuation marks, or all
// beyond ASCII. Where a grammar treats the characters of some kinds alike, tokens made of them need
// not be read byte by byte (automaton_run.cc). Constants and pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <string_view>

namespace warpweave::grammar {

// One bit per kind.
using KindSet = uint64_t;

inline constexpr int kLowerKind = 0;    // a to z
inline constexpr int kUpperKind = 1;    // A to Z
inline constexpr int kDigitKind = 2;
inline constexpr int kControlKind = 3;  // control characters that have no kind of their own
inline constexpr int kBeyondKind = 4;   // whole characters beyond ASCII
inline constexpr int kBrokenKind = 5;   // bytes that are no UTF-8, or only a part of a character
inline constexpr int kNumKinds = 42;    // the others: one ASCII character each

// `ascii` below 128.
int kind_of_ascii(uint8_t ascii);
constexpr KindSet kinds(int kind) { return KindSet{1} << kind; }
// Whether every kind of `some` is one of `all`.
constexpr bool contains_kinds(KindSet all, KindSet some) { return (some & ~all) == 0; }

struct TextKinds {
  KindSet kinds = 0;
  int chars = 0;  // a broken byte counts as one
};
TextKinds kinds_of_text(std::string_view text);
// The kind of the character at text[*at]; moves on behind it, or behind one broken byte.
int next_kind(std::string_view text, size_t* at);

}  // namespace warpweave::grammar
