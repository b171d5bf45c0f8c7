#include "text/literal_text.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "text/tokenizer_core.h"
#include "text/tokenizer_unicode.h"

namespace warpweave {
namespace {

constexpr char32_t kFirstMark = 0xFDD0;
constexpr char32_t kLastMark = 0xFDEF;

// The character, and what JSON without other than ASCII, Python's repr and URLs make of it.
std::vector<std::string> spellings_of(char32_t mark) {
  std::vector<std::string> spellings(1);
  append_utf8(mark, &spellings[0]);
  std::array<char, 16> buffer{};
  for (const char* format : {"\\u%04x", "\\u%04X"}) {
    std::snprintf(buffer.data(), buffer.size(), format, static_cast<unsigned>(mark));
    spellings.emplace_back(buffer.data());
  }
  std::string& url = spellings.emplace_back();
  for (const char byte : spellings[0]) {
    std::snprintf(buffer.data(), buffer.size(), "%%%02X", static_cast<unsigned char>(byte));
    url += buffer.data();
  }
  return spellings;
}

bool is_letter_or_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

}  // namespace

LiteralText::LiteralText(const Tokenizer& tokenizer, char32_t mark)
    : tokenizer_(&tokenizer),
      special_(tokenizer.core().special_texts()),
      spellings_(spellings_of(mark)) {}

Result<LiteralText> LiteralText::create(const Tokenizer& tokenizer, std::string_view inputs) {
  if (!tokenizer.core().can_take_literal_text()) {
    return Status::unsupported(
        "this model's tokenizer finds special tokens only after it has rewritten the text, so that "
        "--no-special-tokens-in-content cannot be kept; start without it");
  }
  for (char32_t mark = kFirstMark; mark <= kLastMark; ++mark) {
    const std::vector<std::string> spellings = spellings_of(mark);
    const bool used = std::any_of(spellings.begin(), spellings.end(), [&](const std::string& s) {
      return inputs.find(s) != std::string_view::npos;
    });
    if (!used) return LiteralText(tokenizer, mark);
  }
  return Status::invalid_argument(
      "the messages use all of the characters U+FDD0 to U+FDEF, one of which is needed to mark "
      "them; leave out one of these",
      "messages");
}

// Whether `text` could be the middle or the end of a special token whose beginning a template writes.
// Words are left alone: only with its brackets does one become a token.
bool LiteralText::continues_special(std::string_view text) const {
  if (text.empty() || is_letter_or_digit(text[0])) return false;
  return std::any_of(special_.begin(), special_.end(), [&](std::string_view token) {
    for (size_t at = token.find(text[0], 1); at != token.npos; at = token.find(text[0], at + 1)) {
      const std::string_view rest = token.substr(at);
      if (text.starts_with(rest) || rest.starts_with(text)) return true;
    }
    return false;
  });
}

std::string LiteralText::mark(std::string_view text) const {
  std::string out;
  out.reserve(text.size() + 16);
  const TokenizerCore& core = tokenizer_->core();
  for (size_t at = 0; at < text.size();) {
    const bool marked =
        core.may_begin_special(text, at) || (at == 0 && continues_special(text));
    const size_t begin = at;
    take_utf8(text, &at);
    out += text.substr(begin, at - begin);
    if (marked) out += spellings_[0];
  }
  return out;
}

LiteralText::Unmarked LiteralText::unmark(std::string_view rendered) const {
  Unmarked out;
  out.text.reserve(rendered.size());
  for (size_t at = 0; at < rendered.size();) {
    const char c = rendered[at];
    bool is_mark = false;
    if (c == spellings_[0][0] || c == '\\' || c == '%') {
      for (const std::string& spelling : spellings_) {
        if (!rendered.substr(at).starts_with(spelling)) continue;
        at += spelling.size();
        is_mark = true;
        break;
      }
    }
    if (is_mark) {
      if (out.literal_at.empty() || out.literal_at.back() != out.text.size()) {
        out.literal_at.push_back(out.text.size());
      }
      continue;
    }
    out.text += c;
    ++at;
  }
  return out;
}

}  // namespace warpweave
