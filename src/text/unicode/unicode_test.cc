#include "text/unicode/unicode.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <string_view>

namespace warpweave::unicode {
namespace {

using Form = NormalizationForm;

class Digest {
 public:
  void add(uint32_t value) { hash_ = (hash_ ^ value) * 0x100000001B3ull; }
  void add(std::u32string_view text) {
    for (const char32_t c : text) add(c);
    add(0xFFFFFFFF);
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xCBF29CE484222325ull;
};

template <typename Property>
uint64_t digest_of(Property property) {
  Digest digest;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c < 0xD800 || c > 0xDFFF) property(c, &digest);
  }
  return digest.value();
}

template <typename Property>
uint64_t digest_of_bits(Property property) {
  return digest_of([&](char32_t c, Digest* digest) { digest->add(property(c) ? 1 : 0); });
}

uint64_t digest_of_case(void (*append)(char32_t, std::u32string*)) {
  return digest_of([&](char32_t c, Digest* digest) {
    std::u32string mapped;
    append(c, &mapped);
    digest->add(mapped);
  });
}

uint64_t digest_of_form(Form form) {
  return digest_of([&](char32_t c, Digest* digest) { digest->add(normalize_as_of_9(std::u32string(1, c), form)); });
}

// Every code point, as ICU 72 has it, which is of the same version of Unicode. One differs: ICU leaves U+0345 as it is
// in titles, the character database and Python make it U+0399.
TEST(Unicode, EveryCodePointIsAsInIcu) {
  if (std::string_view(utf8proc_unicode_version()) != "15.0.0") GTEST_SKIP() << "utf8proc of another Unicode";
  EXPECT_EQ(digest_of([](char32_t c, Digest* digest) { digest->add(static_cast<uint32_t>(category(c))); }),
            12339144665706803666u);
  EXPECT_EQ(digest_of_bits(is_printable), 857050304926092493u);
  EXPECT_EQ(digest_of_bits(is_punctuation_of_8), 15320549807360688410u);
  EXPECT_EQ(digest_of_bits(is_alphabetic), 15317534024488489651u);
  EXPECT_EQ(digest_of_bits(is_white_space), 7230223839163664300u);
  EXPECT_EQ(digest_of_bits(is_uppercase), 3163075062881145252u);
  EXPECT_EQ(digest_of_bits(is_lowercase), 10138477265304325853u);
  EXPECT_EQ(digest_of_bits(is_cased), 15250481769684880149u);
  EXPECT_EQ(digest_of_bits(is_case_ignorable), 3996035418724581904u);
  EXPECT_EQ(digest_of_case(append_upper), 4812903421047425782u);
  EXPECT_EQ(digest_of_case(append_title), 4041174369302187352u);
  EXPECT_EQ(digest_of_case(append_lower), 15683673178201557042u);
  EXPECT_EQ(digest_of_form(Form::nfc), 13953056796445132637u);
  EXPECT_EQ(digest_of_form(Form::nfd), 6595956001417779021u);
  EXPECT_EQ(digest_of_form(Form::nfkc), 9361217815520308723u);
  EXPECT_EQ(digest_of_form(Form::nfkd), 5410208936484324658u);
}

TEST(Unicode, FormsOrderComposeAndTakeApart) {
  EXPECT_EQ(normalize_as_of_9(U"e\u0301", Form::nfc), U"\u00E9");
  EXPECT_EQ(normalize_as_of_9(U"\u00E9", Form::nfd), U"e\u0301");
  EXPECT_EQ(normalize_as_of_9(U"q\u0307\u0323", Form::nfd), U"q\u0323\u0307");   // by combining class
  EXPECT_EQ(normalize_as_of_9(U"\u1100\u1161\u11A8", Form::nfc), U"\uAC01");     // Hangul
  EXPECT_EQ(normalize_as_of_9(U"\uFB01\u2460", Form::nfkc), U"fi1");
  EXPECT_EQ(normalize_as_of_9(U"\uFB01", Form::nfc), U"\uFB01");
  EXPECT_EQ(normalize_as_of_9(U"\u0958", Form::nfc), U"\u0915\u093C");           // excluded from composition
  EXPECT_EQ(normalize_as_of_9(U"", Form::nfc), U"");
  EXPECT_EQ(normalize_as_of_9(std::u32string(1, U'\0') + U"a", Form::nfc), std::u32string(1, U'\0') + U"a");
}

// U+1E2EC is a mark that Unicode 12 brought: nothing goes across it.
TEST(Unicode, LaterCharactersStayAndSeparate) {
  EXPECT_EQ(normalize_as_of_9(U"e\U0001E2EC\u0301", Form::nfc), U"e\U0001E2EC\u0301");
  EXPECT_EQ(normalize_as_of_9(U"\U00011935\U00011930", Form::nfc), U"\U00011935\U00011930");  // composes since 13
}

// A text of nothing but marks, in the worst order: sorted in no more than n log n steps.
TEST(Unicode, AMillionMarksTakeNoTime) {
  std::u32string marks = U"a";
  for (int i = 0; i < 500'000; ++i) marks += i % 2 == 0 ? U'\u0307' : U'\u0323';
  const std::u32string sorted = normalize_as_of_9(marks, Form::nfd);
  ASSERT_EQ(sorted.size(), marks.size());
  EXPECT_EQ(sorted[1], U'\u0323');
  EXPECT_EQ(sorted.back(), U'\u0307');
}

TEST(Unicode, WhatIsNoCodePointHasNoProperty) {
  for (const char32_t c : {char32_t{0xD800}, char32_t{0x110000}, char32_t{0xFFFFFFFF}}) {
    EXPECT_FALSE(is_letter(c) || is_mark(c) || is_number(c) || is_printable(c) || is_cased(c) || is_white_space(c));
    EXPECT_EQ(to_lower_simple(c), c);
  }
}

}  // namespace
}  // namespace warpweave::unicode
