#include "text/tokenizer_regex.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace warpweave {
namespace {

std::vector<std::string> matches(std::string_view pattern, std::string_view subject) {
  auto regex = Regex::compile(pattern);
  EXPECT_TRUE(regex.ok()) << pattern << ": " << regex.status().message();
  std::vector<std::string> found;
  if (!regex.ok()) return found;
  RegexScratch scratch;
  const Status status = regex->find_all(subject, &scratch, [&](size_t begin, size_t end) {
    found.emplace_back(subject.substr(begin, end - begin));
  });
  EXPECT_TRUE(status.ok()) << status.message();
  return found;
}

using Strings = std::vector<std::string>;

TEST(Regex, ReadsOnigurumaSyntax) {
  EXPECT_EQ(matches(R"(\h+)", "xyz1aFg"), (Strings{"1aF"}));              // hex digits, not blanks
  EXPECT_EQ(matches(R"(\s)", "\xE1\xA0\x8E \xE2\x80\x83"), (Strings{" ", "\xE2\x80\x83"}));
  EXPECT_EQ(matches(R"((?m:a.b))", "a\nb"), (Strings{"a\nb"}));           // Ruby's m is dotall
  EXPECT_EQ(matches("a.b", "a\nb a-b"), (Strings{"a-b"}));
  EXPECT_EQ(matches("^b$", "a\nb\nc"), (Strings{"b"}));                   // always by lines
  EXPECT_EQ(matches("a{,2}b", "aaab"), (Strings{"aab"}));
  EXPECT_EQ(matches("a{2}+", "aaaaa"), (Strings{"aaaa"}));                // not possessive
  EXPECT_EQ(matches("x{a}", "x{a}"), (Strings{"x{a}"}));
  EXPECT_EQ(matches("[a[bc]]+", "abcd"), (Strings{"abc"}));
  EXPECT_EQ(matches(R"([^\S\n]+)", "a \t\n b"), (Strings{" \t", " "}));
  EXPECT_EQ(matches(R"([x\W]+)", "ax- b"), (Strings{"x- "}));
  EXPECT_EQ(matches(R"(\p{^L}+)", "ab12c"), (Strings{"12"}));
  EXPECT_EQ(matches(R"(\u0041)", "xA"), (Strings{"A"}));
  EXPECT_EQ(matches(R"(\bfoo\b)", "foo food foo"), (Strings{"foo", "foo"}));
  EXPECT_EQ(matches(R"((?i:'s))", "'S '\xC5\xBF"), (Strings{"'S", "'\xC5\xBF"}));
  EXPECT_EQ(matches(R"(\p{Han})", "a\xE4\xB8\xADz"), (Strings{"\xE4\xB8\xAD"}));
  EXPECT_EQ(matches("b*", "abb"), (Strings{"", "bb"}));                   // no empty one after "bb"
}

TEST(Regex, KnowsLettersNewerThanTheSystem) {
  EXPECT_EQ(matches(R"(\p{L}+)", "\xF0\xB1\x8D\x90"), (Strings{"\xF0\xB1\x8D\x90"}));  // U+31350
  EXPECT_EQ(matches(R"([^\s\p{L}]+)", "\xF0\xB1\x8D\x90"), Strings{});
  EXPECT_EQ(matches(R"(\p{Nd})", "\xF0\x90\xB5\x80"), (Strings{"\xF0\x90\xB5\x80"}));  // U+10D40
}

TEST(Regex, RefusesWhatItCannotTranslate) {
  for (const char* pattern : {"[a&&b]", R"(\k<a>)", "(*UTF)a", R"(\Q)", "(?~a)", "(a", "a)", "*a",
                              "[a", R"(\p{L)", R"(\X)", R"([^a[^\W]])", R"(\x{110000})", "(?x: a)",
                              R"(\K)", R"(a\)", "[z-a]"}) {
    EXPECT_FALSE(Regex::compile(pattern).ok()) << pattern;
  }
}

TEST(Regex, RunawayPatternsEndInAnError) {
  auto regex = Regex::compile("(?:a+)+$");
  ASSERT_TRUE(regex.ok());
  RegexScratch scratch;
  RegexMatch match;
  const std::string subject = std::string(60, 'a') + "b";
  const Status status = regex->find(subject, 0, &scratch, &match);
  EXPECT_EQ(status.code(), StatusCode::resource_exhausted);
}

// As a process that is stopped for a while, or one that shares its processor with many.
TEST(Regex, TimeThatTheThreadWaitsIsNotCounted) {
  auto regex = Regex::compile("a");
  ASSERT_TRUE(regex.ok());
  RegexScratch scratch(std::chrono::milliseconds(50));
  const std::string subject(1000, 'a');
  scratch.start_text(0);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const Status status = regex->find_all(subject, &scratch, [](size_t, size_t) {});
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(Regex, SearchesThatGoOnForTooLongEndInAnError) {
  auto regex = Regex::compile("a");
  ASSERT_TRUE(regex.ok());
  RegexScratch scratch(std::chrono::milliseconds(1));
  const std::string subject(1000, 'a');
  scratch.start_text(0);
  Status status;
  while (status.ok()) status = regex->find_all(subject, &scratch, [](size_t, size_t) {});
  EXPECT_EQ(status.code(), StatusCode::resource_exhausted);
  scratch.start_text(0);
  RegexMatch match;
  EXPECT_TRUE(regex->find(subject, 0, &scratch, &match).ok()) << "the next text begins anew";
}

}  // namespace
}  // namespace warpweave
