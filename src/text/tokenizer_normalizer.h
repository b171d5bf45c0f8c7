// The normalizers of tokenizer.json, in order: text to text. Immutable after build() and
// thread-safe. Unicode normalization as in text/unicode.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/charsmap.h"
#include "text/tokenizer_regex.h"
#include "text/tokenizer_spec.h"
#include "warpweave/status.h"

namespace warpweave {

class Normalizer {
 public:
  static Result<Normalizer> build(const std::vector<NormalizerStep>& steps);

  bool empty() const { return steps_.empty(); }

  // *starts_text stays true only when the result's first character stands for the text's first.
  Status run(std::string_view text, RegexScratch* regex, std::string* out,
             bool* starts_text) const;

 private:
  struct Step {
    NormalizerStep spec;
    std::optional<Regex> regex;
    std::optional<Charsmap> charsmap;
  };
  static Status replace(const Step& step, RegexScratch* regex, size_t max_bytes, std::string* text,
                        bool* starts_text);

  std::vector<Step> steps_;
};

}  // namespace warpweave
