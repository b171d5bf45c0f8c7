#include "grammar/char_property.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "text/unicode/unicode.h"

namespace warpweave::grammar {
namespace {

using unicode::Category;

constexpr size_t kMaxNameBytes = 64;
constexpr uint32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;

constexpr uint32_t bit(Category c) { return 1u << static_cast<int>(c); }

constexpr uint32_t kCased = bit(Category::Lu) | bit(Category::Ll) | bit(Category::Lt);
constexpr uint32_t kLetter = kCased | bit(Category::Lm) | bit(Category::Lo);
constexpr uint32_t kMark = bit(Category::Mn) | bit(Category::Mc) | bit(Category::Me);
constexpr uint32_t kNumber = bit(Category::Nd) | bit(Category::Nl) | bit(Category::No);
constexpr uint32_t kPunctuation = bit(Category::Pc) | bit(Category::Pd) | bit(Category::Ps) | bit(Category::Pe) |
                                  bit(Category::Pi) | bit(Category::Pf) | bit(Category::Po);
constexpr uint32_t kSymbol = bit(Category::Sm) | bit(Category::Sc) | bit(Category::Sk) | bit(Category::So);
constexpr uint32_t kSeparator = bit(Category::Zs) | bit(Category::Zl) | bit(Category::Zp);
constexpr uint32_t kOther =
    bit(Category::Cc) | bit(Category::Cf) | bit(Category::Cs) | bit(Category::Co) | bit(Category::Cn);

// PropertyValueAliases.txt, gc; names as canonical() leaves them.
const std::map<std::string_view, uint32_t> kCategories = {
    {"l", kLetter}, {"letter", kLetter}, {"lc", kCased}, {"casedletter", kCased}, {"l&", kCased},
    {"lu", bit(Category::Lu)}, {"uppercaseletter", bit(Category::Lu)},
    {"ll", bit(Category::Ll)}, {"lowercaseletter", bit(Category::Ll)},
    {"lt", bit(Category::Lt)}, {"titlecaseletter", bit(Category::Lt)},
    {"lm", bit(Category::Lm)}, {"modifierletter", bit(Category::Lm)},
    {"lo", bit(Category::Lo)}, {"otherletter", bit(Category::Lo)},
    {"m", kMark}, {"mark", kMark}, {"combiningmark", kMark},
    {"mn", bit(Category::Mn)}, {"nonspacingmark", bit(Category::Mn)},
    {"mc", bit(Category::Mc)}, {"spacingmark", bit(Category::Mc)},
    {"me", bit(Category::Me)}, {"enclosingmark", bit(Category::Me)},
    {"n", kNumber}, {"number", kNumber},
    {"nd", bit(Category::Nd)}, {"decimalnumber", bit(Category::Nd)}, {"digit", bit(Category::Nd)},
    {"nl", bit(Category::Nl)}, {"letternumber", bit(Category::Nl)},
    {"no", bit(Category::No)}, {"othernumber", bit(Category::No)},
    {"p", kPunctuation}, {"punctuation", kPunctuation}, {"punct", kPunctuation},
    {"pc", bit(Category::Pc)}, {"connectorpunctuation", bit(Category::Pc)},
    {"pd", bit(Category::Pd)}, {"dashpunctuation", bit(Category::Pd)},
    {"ps", bit(Category::Ps)}, {"openpunctuation", bit(Category::Ps)},
    {"pe", bit(Category::Pe)}, {"closepunctuation", bit(Category::Pe)},
    {"pi", bit(Category::Pi)}, {"initialpunctuation", bit(Category::Pi)},
    {"pf", bit(Category::Pf)}, {"finalpunctuation", bit(Category::Pf)},
    {"po", bit(Category::Po)}, {"otherpunctuation", bit(Category::Po)},
    {"s", kSymbol}, {"symbol", kSymbol},
    {"sm", bit(Category::Sm)}, {"mathsymbol", bit(Category::Sm)},
    {"sc", bit(Category::Sc)}, {"currencysymbol", bit(Category::Sc)},
    {"sk", bit(Category::Sk)}, {"modifiersymbol", bit(Category::Sk)},
    {"so", bit(Category::So)}, {"othersymbol", bit(Category::So)},
    {"z", kSeparator}, {"separator", kSeparator},
    {"zs", bit(Category::Zs)}, {"spaceseparator", bit(Category::Zs)},
    {"zl", bit(Category::Zl)}, {"lineseparator", bit(Category::Zl)},
    {"zp", bit(Category::Zp)}, {"paragraphseparator", bit(Category::Zp)},
    {"c", kOther}, {"other", kOther},
    {"cc", bit(Category::Cc)}, {"control", bit(Category::Cc)}, {"cntrl", bit(Category::Cc)},
    {"cf", bit(Category::Cf)}, {"format", bit(Category::Cf)},
    {"cs", bit(Category::Cs)}, {"surrogate", bit(Category::Cs)},
    {"co", bit(Category::Co)}, {"privateuse", bit(Category::Co)},
    {"cn", bit(Category::Cn)}, {"unassigned", bit(Category::Cn)},
    {"any", ~0u}, {"assigned", ~bit(Category::Cn)},
};

// Loose matching (UAX 44): case, "_", "-" and blanks do not count.
std::string canonical(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c == '_' || c == '-' || c == ' ') continue;
    out += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return out;
}

CharSet characters_of(uint32_t categories) {
  CharSet out;
  uint32_t first = 0;
  bool inside = false;
  for (uint32_t c = 0; c <= kMaxChar + 1; ++c) {
    const bool now = c <= kMaxChar && (categories >> static_cast<int>(unicode::category(c)) & 1) != 0;
    if (now && !inside) first = c;
    if (!now && inside) out.add(first, c - 1);
    inside = now;
  }
  return out;
}

// Every character but surrogates, in order, in UTF-8: 4.4 MB.
std::string every_character() {
  std::string out;
  out.reserve(0x80 + 0x780 * 2 + 0xF000 * 3 + 0x100000 * 4);
  for (uint32_t c = 0; c <= kMaxChar; ++c) {
    if (c == kFirstSurrogate) c = kLastSurrogate + 1;
    append_utf8(c, &out);
  }
  return out;
}

// The character whose bytes begin at `offset` of that text.
uint32_t character_at(size_t offset) {
  constexpr size_t kTwo = 0x80, kThree = kTwo + 0x780 * 2;
  constexpr size_t kAfterSurrogates = kThree + size_t{kFirstSurrogate - 0x800} * 3;
  constexpr size_t kFour = kAfterSurrogates + size_t{0x10000 - kLastSurrogate - 1} * 3;
  if (offset < kTwo) return static_cast<uint32_t>(offset);
  if (offset < kThree) return static_cast<uint32_t>(0x80 + (offset - kTwo) / 2);
  if (offset < kAfterSurrogates) return static_cast<uint32_t>(0x800 + (offset - kThree) / 3);
  if (offset < kFour) return static_cast<uint32_t>(kLastSurrogate + 1 + (offset - kAfterSurrogates) / 3);
  return static_cast<uint32_t>(0x10000 + (offset - kFour) / 4);
}

struct FreePcre2 {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

std::optional<CharSet> characters_by_pcre2(const std::string& name) {
  // Possessive: a run is never given back, so that each character is looked at once.
  const std::string pattern = "\\p{" + name + "}++";
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  const std::unique_ptr<pcre2_code, FreePcre2> code(pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF, &error, &error_offset, nullptr));
  if (!code) return std::nullopt;
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);  // without it the interpreter does it
  const std::unique_ptr<pcre2_match_data, FreePcre2> data(pcre2_match_data_create(1, nullptr));
  if (!data) return std::nullopt;
  const std::string text = every_character();
  CharSet out;
  for (size_t at = 0; at < text.size();) {
    const int found = pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                                  PCRE2_NO_UTF_CHECK, data.get(), nullptr);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) return std::nullopt;
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.get());
    // A run may span the surrogates, which are not in the text.
    out.add(character_at(range[0]), range[1] == text.size() ? kMaxChar : character_at(range[1]) - 1);
    at = range[1];
  }
  return out;
}

bool take_prefix(std::string_view* name, std::string_view prefix) {
  if (!name->starts_with(prefix)) return false;
  name->remove_prefix(prefix.size());
  return true;
}

std::optional<CharSet> compute(std::string_view name) {
  const bool is_category = take_prefix(&name, "gc=") || take_prefix(&name, "generalcategory=");
  if (const auto it = kCategories.find(name); it != kCategories.end()) return characters_of(it->second);
  if (is_category) return std::nullopt;
  if (take_prefix(&name, "sc=") || take_prefix(&name, "script=")) {
    return characters_by_pcre2("sc:" + std::string(name));
  }
  if (take_prefix(&name, "scx=") || take_prefix(&name, "scriptextensions=")) {
    return characters_by_pcre2("scx:" + std::string(name));
  }
  // A bare script means Script, as in most dialects; PCRE2 takes it for Script_Extensions.
  if (std::optional<CharSet> script = characters_by_pcre2("sc:" + std::string(name))) return script;
  return characters_by_pcre2(std::string(name));
}

}  // namespace

const CharSet* find_char_property(std::string_view name) {
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '=' ||
           c == '-';
  });
  if (name.empty() || name.size() > kMaxNameBytes || !plain) return nullptr;
  static std::mutex mutex;
  static auto& known = *new std::map<std::string, CharSet>();  // names that exist, so it stays small; never destroyed
  const std::string key = canonical(name);
  const std::lock_guard lock(mutex);
  if (const auto it = known.find(key); it != known.end()) return &it->second;
  std::optional<CharSet> set = compute(key);
  if (!set) return nullptr;
  return &known.emplace(key, std::move(*set)).first->second;
}

}  // namespace warpweave::grammar
