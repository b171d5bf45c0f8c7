// Regular expressions of tokenizer.json, written for Oniguruma, run by PCRE2 with JIT.
//
// compile() translates what differs between the two (\s, \w, \d, \h, \p{..}, (?m), {,n}, {n}+,
// nested and complemented classes) and refuses (`unsupported`) what it cannot translate exactly.
// A Regex is immutable and thread-safe; each thread brings a RegexScratch. Searches run under
// PCRE2's match, heap and stack limits and under the scratch's limit of time.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "base/thread_deadline.h"
#include "warpweave/status.h"

namespace warpweave {

// What one thread needs for searching; reused between searches. start_text() begins the time that
// all searches of one text may take together: `per_text` and 10 us a byte, of the thread on a processor.
class RegexScratch {
 public:
  explicit RegexScratch(std::chrono::milliseconds per_text = std::chrono::seconds(2));
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

  void start_text(size_t text_bytes);

 private:
  friend class Regex;
  struct Pcre2;

  std::unique_ptr<Pcre2> pcre2_;
  std::chrono::milliseconds per_text_;
  ThreadDeadline deadline_;
};

struct RegexMatch {
  size_t begin = 0;
  size_t end = 0;
  bool found = false;
};

class Regex {
 public:
  static Result<Regex> compile(std::string_view oniguruma_pattern);
  // Matches one extended grapheme cluster (UAX 29).
  static Result<Regex> graphemes() { return compile_pcre2("\\X", "\\X"); }
  // Matches `text` itself.
  static Result<Regex> literal(std::string_view text);

  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // The leftmost match at or after byte `start`. `subject` is valid UTF-8 and `start` is on a
  // character's border.
  Status find(std::string_view subject, size_t start, RegexScratch* scratch,
              RegexMatch* match) const;

  // Calls on_match(begin, end) for all matches in order, empty ones where no match has just ended.
  template <typename F>
  Status find_all(std::string_view subject, RegexScratch* scratch, F&& on_match) const {
    size_t start = 0;
    size_t last_end = std::string_view::npos;
    RegexMatch match;
    while (start <= subject.size()) {
      WW_RETURN_IF_ERROR(find(subject, start, scratch, &match));
      if (!match.found) break;
      if (match.begin == match.end && match.end == last_end) {
        ++start;
        while (start < subject.size() && (subject[start] & 0xC0) == 0x80) ++start;
        continue;
      }
      start = last_end = match.end;
      on_match(match.begin, match.end);
    }
    return {};
  }

 private:
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);
  static Result<Regex> compile_pcre2(const std::string& pcre2_pattern, std::string_view shown);
  std::unique_ptr<Code> code_;
};

// The PCRE2 spelling of an Oniguruma (Ruby syntax) pattern; used by Regex::compile().
Result<std::string> translate_oniguruma(std::string_view pattern);

}  // namespace warpweave
