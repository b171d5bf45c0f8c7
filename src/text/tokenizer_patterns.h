// The pre-tokenizers of well-known families, for files that only name them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer_spec.h"

namespace warpweave {

// What ByteLevel splits by under use_regex (GPT-2).
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct PreTokenizerFamily {
  std::vector<PreTokenizerStep> steps;
  bool nfc = false;            // the family normalizes to NFC first
  bool ignore_merges = false;  // a word that is a token is that token
  bool add_bos = false;
};

// By GGUF's tokenizer.ggml.pre ("llama-bpe", "qwen2", ...); nothing for a name not known here.
std::optional<PreTokenizerFamily> pre_tokenizer_family(std::string_view name);
std::string known_pre_tokenizer_families();  // "default, gpt-2, ..."

}  // namespace warpweave
