// The byte alphabet and the string table of bpe.h.
#include <functional>

#include "text/bpe.h"
#include "text/tokenizer_unicode.h"

namespace warpweave {
namespace {

struct ByteAlphabet {
  std::array<char32_t, 256> to_char{};
  std::array<int16_t, 0x144> to_byte{};  // the largest character is U+0143

  ByteAlphabet() {
    to_byte.fill(-1);
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable =
          (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      const char32_t c = printable ? static_cast<char32_t>(byte) : next++;
      to_char[byte] = c;
      to_byte[c] = static_cast<int16_t>(byte);
    }
  }
};

const ByteAlphabet& byte_alphabet() {
  static const ByteAlphabet alphabet;
  return alphabet;
}

}  // namespace

char32_t byte_to_char(unsigned char byte) { return byte_alphabet().to_char[byte]; }

int char_to_byte(char32_t c) {
  const ByteAlphabet& alphabet = byte_alphabet();
  return c < alphabet.to_byte.size() ? alphabet.to_byte[c] : -1;
}

void append_byte_chars(std::string_view bytes, std::string* out) {
  for (char c : bytes) append_utf8(byte_to_char(static_cast<unsigned char>(c)), out);
}

void append_token_bytes(std::string_view token, std::string* out) {
  const size_t before = out->size();
  for (size_t pos = 0; pos < token.size();) {
    const int byte = char_to_byte(take_utf8(token, &pos));
    if (byte < 0) {
      out->resize(before);
      *out += token;
      return;
    }
    *out += static_cast<char>(byte);
  }
}

void StringTable::reserve(size_t count, size_t bytes) {
  arena_.reserve(bytes);
  spans_.reserve(count);
  size_t slots = 16;
  while (slots < count * 2) slots *= 2;
  if (slots > slots_.size()) {
    slots_.resize(slots / 2);
    grow();
  }
}

void StringTable::grow() {
  slots_.assign(slots_.empty() ? 16 : slots_.size() * 2, Slot{});
  for (size_t id = 0; id < spans_.size(); ++id) {
    if (spans_[id].size == UINT32_MAX) continue;
    const std::string_view entry = text(static_cast<int32_t>(id));
    const size_t hash = std::hash<std::string_view>{}(entry);
    size_t at = hash & (slots_.size() - 1);
    while (slots_[at].id >= 0) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = {static_cast<uint32_t>(hash >> 32), static_cast<int32_t>(id)};
  }
}

bool StringTable::insert(std::string_view text, int32_t id) {
  if (find(text) >= 0) return false;
  if ((count_ + 1) * 2 > slots_.size()) grow();
  const auto needed = static_cast<size_t>(id) + 1;
  if (spans_.size() < needed) spans_.resize(needed);
  spans_[id] = {static_cast<uint32_t>(arena_.size()), static_cast<uint32_t>(text.size())};
  arena_ += text;
  ++count_;
  const size_t hash = std::hash<std::string_view>{}(text);
  size_t at = hash & (slots_.size() - 1);
  while (slots_[at].id >= 0) at = (at + 1) & (slots_.size() - 1);
  slots_[at] = {static_cast<uint32_t>(hash >> 32), id};
  return true;
}

int32_t StringTable::find(std::string_view text) const {
  if (slots_.empty()) return -1;
  const size_t hash = std::hash<std::string_view>{}(text);
  const auto tag = static_cast<uint32_t>(hash >> 32);
  for (size_t at = hash & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
    const Slot& slot = slots_[at];
    if (slot.id < 0) return -1;
    if (slot.tag == tag && this->text(slot.id) == text) return slot.id;
  }
}

std::string_view StringTable::text(int32_t id) const {
  if (!has(id)) return {};
  return std::string_view(arena_).substr(spans_[id].begin, spans_[id].size);
}

bool StringTable::has(int32_t id) const {
  return id >= 0 && id < id_limit() && spans_[id].size != UINT32_MAX;
}

}  // namespace warpweave
