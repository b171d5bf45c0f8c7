#include "text/tokenizer_normalizer.h"

#include <algorithm>
#include <utility>

#include "text/bert_text.h"
#include "text/pretokenizer.h"
#include "text/tokenizer_unicode.h"
#include "text/unicode/unicode.h"

namespace warpweave {
namespace {

using Kind = NormalizerStep::Kind;

unicode::NormalizationForm unicode_form(Kind kind) {
  switch (kind) {
    case Kind::nfc: return unicode::NormalizationForm::nfc;
    case Kind::nfd: return unicode::NormalizationForm::nfd;
    case Kind::nfkc: return unicode::NormalizationForm::nfkc;
    default: return unicode::NormalizationForm::nfkd;
  }
}

void to_unicode_form(Kind kind, std::string* text) {
  const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (std::all_of(text->begin(), text->end(), is_ascii)) return;
  std::u32string characters;
  characters.reserve(text->size());
  for (size_t pos = 0; pos < text->size();) characters += take_utf8(*text, &pos);
  text->clear();
  for (const char32_t c : unicode::normalize_as_of_9(characters, unicode_form(kind))) append_utf8(c, text);
}

std::string to_lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = take_utf8(text, &pos);
    append_utf8(to_lower_simple(c), &out);
    if (c == 0x130) append_utf8(0x307, &out);  // the one lower case that is two characters
  }
  return out;
}

void strip(const NormalizerStep& spec, std::string* text, bool* starts_text) {
  size_t begin = 0;
  size_t end = text->size();
  for (size_t pos = 0; spec.strip_left && pos < end;) {
    if (!is_white_space(take_utf8(*text, &pos))) break;
    begin = pos;
  }
  while (spec.strip_right && end > begin) {
    size_t length = 0;
    if (!is_white_space(last_utf8(std::string_view(*text).substr(0, end), &length))) break;
    end -= length;
  }
  if (begin > 0) *starts_text = false;
  text->resize(end);
  text->erase(0, begin);
}

}  // namespace

Result<Normalizer> Normalizer::build(const std::vector<NormalizerStep>& steps) {
  Normalizer built;
  for (const NormalizerStep& spec : steps) {
    Step step;
    step.spec = spec;
    if (spec.kind == Kind::replace) {
      Result<Regex> regex = spec.pattern.is_regex ? Regex::compile(spec.pattern.text)
                                                  : Regex::literal(spec.pattern.text);
      if (!regex.ok()) return regex.status().with_context("normalizer");
      step.regex.emplace(std::move(regex).value());
    }
    if (spec.kind == Kind::charsmap) {
      Result<Charsmap> charsmap = Charsmap::build(spec.content);
      if (!charsmap.ok()) return charsmap.status().with_context("normalizer");
      step.charsmap.emplace(std::move(charsmap).value());
      step.spec.content.clear();
    }
    built.steps_.push_back(std::move(step));
  }
  return built;
}

Status Normalizer::run(std::string_view text, RegexScratch* regex, std::string* out,
                       bool* starts_text) const {
  out->assign(text);
  const size_t most = max_rewritten_bytes(text.size(), kNormalizerGrowth);
  for (const Step& step : steps_) {
    switch (step.spec.kind) {
      case Kind::prepend:
        if (!out->empty()) out->insert(0, step.spec.content);
        break;
      case Kind::replace:
        WW_RETURN_IF_ERROR(replace(step, regex, most, out, starts_text));
        break;
      case Kind::strip: strip(step.spec, out, starts_text); break;
      case Kind::lowercase: *out = to_lower(*out); break;
      case Kind::clean_text: *out = clean_text(*out); break;
      case Kind::space_ideographs: *out = space_ideographs(*out); break;
      case Kind::strip_marks: *out = strip_marks(*out); break;
      case Kind::charsmap: WW_RETURN_IF_ERROR(step.charsmap->run(regex, most, out, starts_text)); break;
      default: to_unicode_form(step.spec.kind, out); break;
    }
    if (out->size() > most) {
      return Status::resource_exhausted("the text grows too long in the tokenizer's normalizer");
    }
  }
  return {};
}

Status Normalizer::replace(const Step& step, RegexScratch* regex, size_t max_bytes, std::string* text,
                           bool* starts_text) {
  std::string out;
  out.reserve(text->size());
  size_t end_of_last = 0;
  bool too_long = false;
  if (text->empty()) return {};  // the original looks for no matches there
  WW_RETURN_IF_ERROR(step.regex->find_all(*text, regex, [&](size_t begin, size_t end) {
    if (out.size() > max_bytes) {
      too_long = true;
      return;
    }
    out.append(*text, end_of_last, begin - end_of_last);
    out += step.spec.content;
    // New characters stand for the last one they replace.
    const bool one_char = end > begin && end == utf8_length(static_cast<unsigned char>((*text)[0]));
    if (begin == 0 && end > 0 && (!one_char || step.spec.content.empty())) *starts_text = false;
    end_of_last = end;
  }));
  if (too_long) return Status::resource_exhausted("the text grows too long in the tokenizer's normalizer");
  out.append(*text, end_of_last, text->size() - end_of_last);
  *text = std::move(out);
  return {};
}

}  // namespace warpweave
