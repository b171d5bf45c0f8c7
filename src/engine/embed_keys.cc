#include "engine/embed_keys.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <random>

namespace warpweave {
namespace {

// Odd, with bits all over: the golden ratio's and pi's first digits.
constexpr uint64_t kFirst = 0x9e3779b97f4a7c15u, kSecond = 0x243f6a8885a308d3u;

// Both halves of a product of 128 bits, folded: every bit of the result depends on all bits of a and b.
uint64_t fold(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t random_bits() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

}  // namespace

EmbedKeys::EmbedKeys(int32_t first_key, size_t max_known, int32_t last_key)
    : first_key_(first_key), last_key_(last_key), max_known_(max_known), secret_{random_bits(), random_bits()},
      next_key_(first_key) {}

EmbedKeys::Content EmbedKeys::behind(const Content& before, std::span<const float> row) const {
  Content out = {before.low ^ secret_.low, before.high ^ secret_.high};
  for (size_t i = 0; i < row.size(); i += 2) {
    const uint64_t first = std::bit_cast<uint32_t>(row[i]);
    const uint64_t second = i + 1 < row.size() ? std::bit_cast<uint32_t>(row[i + 1]) : 0;
    const uint64_t word = first << 32 | second;
    out = {fold(out.low ^ word, kFirst ^ secret_.high), fold(out.high + word, kSecond ^ secret_.low)};
  }
  return {fold(out.low, out.high ^ kSecond), fold(out.high, out.low ^ kFirst)};
}

// All are forgotten together: what is cached under their keys then ages as any text that nobody asks for.
void EmbedKeys::make_room(size_t rows) {
  if (known_.size() + rows > max_known_) known_.clear();
  if (rows > static_cast<size_t>(last_key_ - next_key_)) {
    known_.clear();
    next_key_ = first_key_;
    ++epoch_;
  }
}

EmbedKeys::Prompt EmbedKeys::keys_of(std::span<const float> rows, size_t width, std::span<const int32_t> places) {
  assert(width > 0 && rows.size() % width == 0);
  std::vector<Content> contents(rows.size() / width);
  Content before;
  for (size_t i = 0; i < contents.size(); ++i) {
    before = behind(before, rows.subspan(i * width, width));
    if (!places.empty()) {
      const auto bits = [&](size_t axis) { return std::bit_cast<float>(places[axis * contents.size() + i]); };
      const std::array<float, 3> place = {bits(0), bits(1), bits(2)};
      before = behind(before, place);
    }
    contents[i] = before;
  }
  std::lock_guard lock(mutex_);
  make_room(contents.size());
  Prompt out;
  out.epoch = epoch_;
  out.keys.reserve(contents.size());
  for (const Content& content : contents) {
    const auto [at, is_new] = known_.try_emplace(content, next_key_);
    next_key_ += is_new;
    out.keys.push_back(at->second);
  }
  return out;
}

}  // namespace warpweave
