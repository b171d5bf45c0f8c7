#include "text/pretokenizer.h"

#include <algorithm>
#include <utility>

#include "text/bpe.h"
#include "text/tokenizer_unicode.h"

namespace warpweave {
namespace {

using Kind = PreTokenizerStep::Kind;

TextRange make_range(size_t begin, size_t end) {
  return {static_cast<uint32_t>(begin), static_cast<uint32_t>(end)};
}

std::string_view text_of(std::string_view text, TextRange range) {
  return text.substr(range.begin, range.end - range.begin);
}

}  // namespace

Result<PreTokenizer> PreTokenizer::build(const std::vector<PreTokenizerStep>& steps) {
  PreTokenizer built;
  size_t byte_levels = 0;
  for (const PreTokenizerStep& spec : steps) {
    Step step;
    step.spec = spec;
    byte_levels += spec.kind == Kind::byte_level;
    const bool wants_regex =
        spec.kind == Kind::split || (spec.kind == Kind::byte_level && spec.use_regex);
    if (wants_regex) {
      Result<Regex> regex = spec.pattern.is_regex ? Regex::compile(spec.pattern.text)
                                                  : Regex::literal(spec.pattern.text);
      if (!regex.ok()) return regex.status().with_context("pre_tokenizer");
      step.regex.emplace(std::move(regex).value());
    }
    built.steps_.push_back(std::move(step));
  }
  built.byte_level_words_ = byte_levels == 1 && steps.back().kind == Kind::byte_level;
  for (Step& step : built.steps_) {
    step.map_bytes = step.spec.kind == Kind::byte_level && !built.byte_level_words_;
  }
  return built;
}

Status PreTokenizer::run(std::string_view text, bool starts_text, RegexScratch* regex,
                         PreTokenizerScratch* scratch) const {
  scratch->text = text;
  scratch->starts_text_ = starts_text;
  scratch->words.clear();
  if (text.empty()) return {};
  scratch->words.push_back(make_range(0, text.size()));
  for (const Step& step : steps_) {
    const PreTokenizerStep& spec = step.spec;
    switch (spec.kind) {
      case Kind::split:
        WW_RETURN_IF_ERROR(split_regex(step, regex, scratch));
        break;
      case Kind::digits: split_chars(spec.behavior, is_numeric, scratch); break;
      case Kind::punctuation: split_chars(spec.behavior, is_punctuation, scratch); break;
      case Kind::whitespace_split: split_chars(spec.behavior, is_white_space, scratch); break;
      case Kind::whitespace: split_whitespace_words(scratch); break;
      case Kind::byte_level:
        WW_RETURN_IF_ERROR(byte_level(step, regex, scratch));
        break;
      case Kind::metaspace:
        WW_RETURN_IF_ERROR(metaspace(spec, scratch));
        break;
    }
  }
  return {};
}

Status PreTokenizer::split_regex(const Step& step, RegexScratch* regex,
                                 PreTokenizerScratch* scratch) {
  std::swap(scratch->words, scratch->previous_);
  scratch->words.clear();
  const bool isolated = step.spec.behavior == SplitBehavior::isolated;
  for (const TextRange word : scratch->previous_) {
    const std::string_view subject = text_of(scratch->text, word);
    scratch->parts_.clear();
    size_t end_of_last = 0;
    const auto add = [&](size_t begin, size_t end, bool is_match) {
      const TextRange range = make_range(word.begin + begin, word.begin + end);
      if (!isolated) {
        scratch->parts_.push_back({range, is_match != step.spec.invert});
      } else if (begin < end) {
        scratch->words.push_back(range);
      }
    };
    WW_RETURN_IF_ERROR(step.regex->find_all(subject, regex, [&](size_t begin, size_t end) {
      if (begin != end_of_last) add(end_of_last, begin, false);
      add(begin, end, true);
      end_of_last = end;
    }));
    if (end_of_last != subject.size()) add(end_of_last, subject.size(), false);
    if (!isolated) add_parts(step.spec.behavior, scratch);
  }
  return {};
}

template <typename IsMatch>
void PreTokenizer::split_chars(SplitBehavior behavior, IsMatch&& is_match,
                               PreTokenizerScratch* scratch) {
  std::swap(scratch->words, scratch->previous_);
  scratch->words.clear();
  for (const TextRange word : scratch->previous_) {
    scratch->parts_.clear();
    size_t end_of_last = word.begin;
    for (size_t pos = word.begin; pos < word.end;) {
      const size_t begin = pos;
      if (!is_match(take_utf8(scratch->text, &pos))) continue;
      if (begin != end_of_last) scratch->parts_.push_back({make_range(end_of_last, begin), false});
      scratch->parts_.push_back({make_range(begin, pos), true});
      end_of_last = pos;
    }
    if (end_of_last != word.end) {
      scratch->parts_.push_back({make_range(end_of_last, word.end), false});
    }
    add_parts(behavior, scratch);
  }
}

// Runs of word characters, and runs of what is neither that nor white space.
void PreTokenizer::split_whitespace_words(PreTokenizerScratch* scratch) {
  std::swap(scratch->words, scratch->previous_);
  scratch->words.clear();
  enum class Class { space, word, other };
  for (const TextRange range : scratch->previous_) {
    size_t begin = range.begin;
    Class current = Class::space;
    for (size_t pos = range.begin; pos < range.end;) {
      const size_t at = pos;
      const char32_t c = take_utf8(scratch->text, &pos);
      const Class own = is_word_char(c)     ? Class::word
                        : is_white_space(c) ? Class::space
                                            : Class::other;
      if (own == current) continue;
      if (current != Class::space) scratch->words.push_back(make_range(begin, at));
      begin = at;
      current = own;
    }
    if (current != Class::space) scratch->words.push_back(make_range(begin, range.end));
  }
}

// Turns parts_, which cover one word, into words as the behaviour says.
void PreTokenizer::add_parts(SplitBehavior behavior, PreTokenizerScratch* scratch) {
  const auto& parts = scratch->parts_;
  const size_t first = scratch->words.size();
  bool previous_match = false;
  const auto join = [&](const PreTokenizerScratch::Part& part, bool joins) {
    if (joins && scratch->words.size() > first) {
      scratch->words.back().end = part.range.end;
    } else {
      scratch->words.push_back(part.range);
    }
    previous_match = part.is_match;
  };
  switch (behavior) {
    case SplitBehavior::removed:
      for (const auto& part : parts) {
        if (!part.is_match) scratch->words.push_back(part.range);
      }
      break;
    case SplitBehavior::isolated:
      for (const auto& part : parts) scratch->words.push_back(part.range);
      break;
    case SplitBehavior::contiguous:
      for (const auto& part : parts) join(part, part.is_match == previous_match);
      break;
    case SplitBehavior::merged_with_previous:
      for (const auto& part : parts) join(part, part.is_match && !previous_match);
      break;
    case SplitBehavior::merged_with_next:
      // A match joins what follows it, unless that is a match too.
      for (size_t i = 0; i < parts.size(); ++i) {
        const bool joins = parts[i].is_match && i + 1 < parts.size() && !parts[i + 1].is_match;
        if (joins) {
          scratch->words.push_back(make_range(parts[i].range.begin, parts[i + 1].range.end));
          ++i;
        } else {
          scratch->words.push_back(parts[i].range);
        }
      }
      break;
  }
  // Empty matches leave empty words, which the original drops too.
  auto& words = scratch->words;
  words.erase(std::remove_if(words.begin() + static_cast<std::ptrdiff_t>(first), words.end(),
                             [](TextRange range) { return range.begin == range.end; }),
              words.end());
}

// Writes every word anew: append(word, is_first, &out).
template <typename Append>
Status PreTokenizer::rewrite(PreTokenizerScratch* scratch, Append&& append) {
  std::string& out = scratch->buffers_[scratch->next_buffer_];
  scratch->next_buffer_ = 1 - scratch->next_buffer_;
  out.clear();
  const size_t most = max_rewritten_bytes(scratch->text.size(), kPreTokenizerGrowth);
  for (TextRange& word : scratch->words) {
    const bool is_first = &word == scratch->words.data();
    const size_t begin = out.size();
    append(text_of(scratch->text, word), is_first, &out);
    if (out.size() > most)
      return Status::resource_exhausted("the text grows too long in the tokenizer's pre-tokenizer");
    if (is_first) scratch->starts_text_ = scratch->starts_text_ && word.begin == 0;
    word = make_range(begin, out.size());
  }
  scratch->text = out;
  return {};
}

Status PreTokenizer::byte_level(const Step& step, RegexScratch* regex,
                                PreTokenizerScratch* scratch) {
  if (step.spec.add_prefix_space) {
    WW_RETURN_IF_ERROR(rewrite(scratch, [](std::string_view word, bool, std::string* out) {
      if (!word.starts_with(' ')) *out += ' ';
      *out += word;
    }));
  }
  if (step.spec.use_regex) WW_RETURN_IF_ERROR(split_regex(step, regex, scratch));
  if (!step.map_bytes) return {};
  return rewrite(scratch, [](std::string_view word, bool, std::string* out) {
    append_byte_chars(word, out);
  });
}

Status PreTokenizer::metaspace(const PreTokenizerStep& spec, PreTokenizerScratch* scratch) {
  const std::string& meta = spec.replacement;
  const bool starts_text = scratch->starts_text_;
  const auto replace_spaces = [&](std::string_view word, bool is_first, std::string* out) {
    const bool may_prepend =
        spec.prepend_scheme == PrependScheme::always ||
        (spec.prepend_scheme == PrependScheme::first && is_first && starts_text &&
         word.data() == scratch->text.data());
    if (may_prepend && !word.starts_with(' ') && !word.starts_with(meta)) *out += meta;
    for (char c : word) {
      if (c == ' ') {
        *out += meta;
      } else {
        *out += c;
      }
    }
  };
  WW_RETURN_IF_ERROR(rewrite(scratch, replace_spaces));
  if (!spec.split) return {};
  size_t pos = 0;
  const char32_t meta_char = take_utf8(meta, &pos);
  split_chars(SplitBehavior::merged_with_next, [&](char32_t c) { return c == meta_char; }, scratch);
  return {};
}

}  // namespace warpweave
