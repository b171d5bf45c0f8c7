#include "text/tokenizer_patterns.h"

#include <utility>

namespace warpweave {
namespace {

using Kind = PreTokenizerStep::Kind;

// The patterns are those of the families' own tokenizer.json files.
constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDeepSeekV3Pattern =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kCjkKanaPattern =
    R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)";
constexpr std::string_view kCjkHangulPattern =
    R"([\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+)";
// Letters of the alphabets with two cases, listed one by one.
constexpr std::string_view kDeepSeekLettersPattern =
    R"(\s?[)"
    R"(A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293})"
    R"(\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-)"
    R"(\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-)"
    R"(\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-)"
    R"(\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18})"
    R"(-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D})"
    R"(\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6})"
    R"(-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4})"
    R"(\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124})"
    R"(\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-)"
    R"(\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE})"
    R"(\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787})"
    R"(\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-)"
    R"(\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB})"
    R"(\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943})"
    R"(]+)";
constexpr std::string_view kDeepSeekMarksPattern =
    R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)";

PreTokenizerStep split(std::string_view pattern) {
  PreTokenizerStep step{};
  step.kind = Kind::split;
  step.pattern = {true, std::string(pattern)};
  return step;
}

PreTokenizerStep digits() {
  PreTokenizerStep step{};
  step.kind = Kind::digits;
  return step;
}

PreTokenizerStep byte_level(bool use_regex) {
  PreTokenizerStep step{};
  step.kind = Kind::byte_level;
  step.use_regex = use_regex;
  step.pattern = {true, std::string(kGpt2Pattern)};
  return step;
}

using Family = PreTokenizerFamily;

Family splits(std::initializer_list<PreTokenizerStep> steps) {
  Family family;
  family.steps = steps;
  return family;
}

Family one_split(std::string_view pattern) { return splits({split(pattern), byte_level(false)}); }

Family gpt2() { return splits({byte_level(true)}); }
Family smollm() { return splits({digits(), byte_level(true)}); }
Family o200k() { return one_split(kO200kPattern); }

Family llama3() {
  Family family = one_split(kLlama3Pattern);
  family.ignore_merges = family.add_bos = true;
  return family;
}

Family tekken() {
  Family family = one_split(kTekkenPattern);
  family.ignore_merges = family.add_bos = true;
  return family;
}

Family qwen2() {
  Family family = one_split(kQwen2Pattern);
  family.nfc = true;
  return family;
}

Family deepseek_v3() {
  return splits({split(R"(\p{N}{1,3})"), split(kCjkKanaPattern), split(kDeepSeekV3Pattern),
                 byte_level(false)});
}

Family deepseek_llm() {
  return splits({split(R"([\r\n])"), split(kDeepSeekLettersPattern), split(kDeepSeekMarksPattern),
                 split(R"(\s+$)"), split(kCjkHangulPattern), digits(), byte_level(false)});
}

Family deepseek_coder() {
  return splits({split(R"([\r\n])"), split(R"(\s?\p{L}+)"), split(R"(\s?\p{P}+)"),
                 split(kCjkHangulPattern), digits(), byte_level(false)});
}

// What GGUF readers use for files without a name.
Family unnamed() {
  return splits({split(R"([\p{P}\$\+<=>\^~\|]+)"), split(kGpt2Pattern), split(R"(\p{N}+)"),
                 split("[0-9][0-9][0-9]"), byte_level(false)});
}

constexpr std::pair<std::string_view, Family (*)()> kFamilies[] = {
    {"default", unnamed},
    {"gpt-2", gpt2},
    {"llama-bpe", llama3},
    {"llama3", llama3},
    {"llama-v3", llama3},
    {"falcon3", llama3},
    {"qwen2", qwen2},
    {"deepseek-r1-qwen", qwen2},
    {"smollm", smollm},
    {"starcoder", smollm},
    {"deepseek-v3", deepseek_v3},
    {"deepseek-llm", deepseek_llm},
    {"deepseek-coder", deepseek_coder},
    {"gpt-4o", o200k},
    {"llama4", o200k},
    {"tekken", tekken},
};

}  // namespace

std::optional<PreTokenizerFamily> pre_tokenizer_family(std::string_view name) {
  for (const auto& [known, make] : kFamilies) {
    if (known == name) return make();
  }
  return std::nullopt;
}

std::string known_pre_tokenizer_families() {
  std::string names;
  for (const auto& [known, make] : kFamilies) {
    if (!names.empty()) names += ", ";
    names += known;
  }
  return names;
}

}  // namespace warpweave
