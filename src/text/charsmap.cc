#include "text/charsmap.h"

#include <simdjson.h>

#include <array>

#include "text/pretokenizer.h"
#include "text/tokenizer_unicode.h"

namespace warpweave {
namespace {

constexpr size_t kWholeGraphemeBytes = 6;  // shorter ones are looked up as a whole

uint32_t little_endian(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 4; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

// A unit of the double array.
struct Unit {
  uint32_t bits;
  bool has_leaf() const { return (bits >> 8 & 1) != 0; }
  uint32_t value() const { return bits & 0x7FFFFFFF; }
  uint32_t label() const { return bits & 0x800000FF; }
  uint32_t offset() const { return (bits >> 10) << ((bits & 0x200) >> 6); }
};

Status broken_map(const char* why) { return Status::data_loss(why, "precompiled_charsmap"); }

}  // namespace

std::optional<std::string> decode_base64(std::string_view text) {
  static constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  static constexpr auto kValues = [] {
    std::array<int8_t, 256> values{};
    values.fill(-1);
    for (size_t i = 0; i < kDigits.size(); ++i) values[static_cast<unsigned char>(kDigits[i])] = static_cast<int8_t>(i);
    return values;
  }();
  if (text.size() % 4 != 0) return std::nullopt;
  for (int i = 0; i < 2 && text.ends_with('='); ++i) text.remove_suffix(1);
  std::string out;
  out.reserve(text.size() / 4 * 3 + 2);
  uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : text) {
    const int value = kValues[static_cast<unsigned char>(c)];
    if (value < 0) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(value);
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    out += static_cast<char>(bits >> num_bits & 0xFF);
  }
  return out;
}

Charsmap::Charsmap(std::vector<uint32_t> trie, std::string results, Regex grapheme)
    : trie_(std::move(trie)), results_(std::move(results)), grapheme_(std::move(grapheme)) {}

Result<Charsmap> Charsmap::build(std::string_view bytes) {
  if (bytes.size() > kMaxBytes) return broken_map("the map has more than 4 MiB");
  if (bytes.size() < 4) return broken_map("the map has no size");
  const size_t trie_bytes = little_endian(bytes, 0);
  if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes > bytes.size() - 4) {
    return broken_map("the map's trie is no multiple of 4 bytes, or is cut off");
  }
  std::vector<uint32_t> trie;
  for (size_t at = 4; at < 4 + trie_bytes; at += 4) trie.push_back(little_endian(bytes, at));
  std::string results(bytes.substr(4 + trie_bytes));
  if (!simdjson::validate_utf8(results)) return broken_map("the map's results are not UTF-8");
  WW_ASSIGN_OR_RETURN(Regex grapheme, Regex::graphemes());
  return Charsmap(std::move(trie), std::move(results), std::move(grapheme));
}

// What the shortest known beginning of `chunk` becomes; units out of bounds and results inside of characters are
// those of a damaged file, and end the search.
std::optional<std::string_view> Charsmap::replacement(std::string_view chunk) const {
  size_t at = Unit{trie_[0]}.offset();
  for (const char c : chunk) {
    const auto byte = static_cast<unsigned char>(c);
    at ^= byte;
    if (byte == 0 || at >= trie_.size()) return std::nullopt;
    const Unit unit{trie_[at]};
    if (unit.label() != byte) return std::nullopt;
    at ^= unit.offset();
    if (!unit.has_leaf()) continue;
    if (at >= trie_.size()) return std::nullopt;
    const size_t begin = Unit{trie_[at]}.value();
    if (begin >= results_.size() || (static_cast<unsigned char>(results_[begin]) & 0xC0) == 0x80) return std::nullopt;
    const size_t end = std::min(results_.find('\0', begin), results_.size());
    return std::string_view(results_).substr(begin, end - begin);
  }
  return std::nullopt;
}

// False: `out` grows beyond max_bytes. A grapheme has any number of characters.
bool Charsmap::rewrite(std::string_view grapheme, size_t max_bytes, std::string* out) const {
  if (grapheme.size() < kWholeGraphemeBytes) {
    if (const auto whole = replacement(grapheme)) {
      *out += *whole;
      return out->size() <= max_bytes;
    }
  }
  for (size_t at = 0; at < grapheme.size() && out->size() <= max_bytes;) {
    const std::string_view character = grapheme.substr(at, utf8_length(static_cast<unsigned char>(grapheme[at])));
    *out += replacement(character).value_or(character);
    at += character.size();
  }
  return out->size() <= max_bytes;
}

Status Charsmap::run(RegexScratch* scratch, size_t max_bytes, std::string* text, bool* starts_text) const {
  std::string out;
  out.reserve(text->size());
  bool too_long = false;
  WW_RETURN_IF_ERROR(grapheme_.find_all(*text, scratch, [&](size_t begin, size_t end) {
    too_long = too_long || !rewrite(std::string_view(*text).substr(begin, end - begin), max_bytes, &out);
    if (too_long) return;
    if (begin == 0 && end > 0 && out.empty()) *starts_text = false;
  }));
  if (too_long) return Status::resource_exhausted("the text grows too long in the tokenizer's normalizer");
  *text = std::move(out);
  return {};
}

}  // namespace warpweave
