#include "text/bpe.h"

#include <gtest/gtest.h>

#include <random>

namespace warpweave {
namespace {

BpeSpec letters_spec(int merges, unsigned seed) {
  static std::vector<std::string> storage;  // the views of a spec live as long as the test
  storage.clear();
  storage.reserve(1000);
  BpeSpec spec;
  std::mt19937 random(seed);
  const auto add = [&](std::string token) {
    storage.push_back(std::move(token));
    spec.vocab.push_back({storage.back(), static_cast<int32_t>(spec.vocab.size())});
  };
  for (char c = 'a'; c <= 'd'; ++c) add(std::string(1, c));
  for (int i = 0; i < merges; ++i) {
    const std::string left = storage[random() % storage.size()];
    const std::string right = storage[random() % storage.size()];
    const std::string joined = left + right;
    bool known = joined.size() > 12;
    for (const auto& entry : spec.vocab) known = known || entry.token == joined;
    if (known) continue;
    add(joined);
    const auto view = [&](const std::string& text) {
      for (const auto& entry : spec.vocab) {
        if (entry.token == text) return entry.token;
      }
      return std::string_view();
    };
    spec.merges.emplace_back(view(left), view(right));
  }
  return spec;
}

// The definition: the first merge of the list that applies anywhere, at its leftmost place.
std::vector<std::string> slow_bpe(const BpeSpec& spec, const std::string& word) {
  std::vector<std::string> parts;
  for (char c : word) parts.emplace_back(1, c);
  for (bool merged = true; merged;) {
    merged = false;
    for (size_t rank = 0; rank < spec.merges.size() && !merged; ++rank) {
      for (size_t i = 0; i + 1 < parts.size() && !merged; ++i) {
        const auto& [left, right] = spec.merges[rank];
        if (parts[i] != left || parts[i + 1] != right) continue;
        parts[i] += parts[i + 1];
        parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        merged = true;
      }
    }
  }
  return parts;
}

TEST(Bpe, ScanAndHeapMergeAsDefined) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const BpeSpec spec = letters_spec(60, seed);
    auto model = BpeModel::build(spec, false);
    ASSERT_TRUE(model.ok()) << model.status().message();
    BpeScratch scratch;
    std::mt19937 random(seed + 100);
    for (int round = 0; round < 40; ++round) {
      std::string word;
      const size_t length = 1 + random() % (round % 2 == 0 ? 32 : 120);
      for (size_t i = 0; i < length; ++i) word += static_cast<char>('a' + random() % 4);
      std::vector<int32_t> ids, again;
      model->encode_word(word, &scratch, &ids);
      model->encode_word(word, &scratch, &again);  // perhaps from the cache
      std::vector<std::string> parts;
      for (int32_t id : ids) parts.emplace_back(model->vocab().text(id));
      EXPECT_EQ(parts, slow_bpe(spec, word)) << word;
      EXPECT_EQ(ids, again);
    }
  }
}

TEST(Bpe, RefusesBrokenVocabularies) {
  BpeSpec spec;
  spec.vocab = {{"a", 0}, {"b", 0}};
  EXPECT_EQ(BpeModel::build(spec, false).status().code(), StatusCode::data_loss);
  spec.vocab = {{"a", 0}, {"b", kMaxTokenId + 1}};
  EXPECT_EQ(BpeModel::build(spec, false).status().code(), StatusCode::data_loss);
  spec.vocab = {{"a", 0}, {"b", 1}};
  spec.merges = {{"a", "b"}};
  EXPECT_NE(BpeModel::build(spec, false).status().message().find("\"ab\""), std::string::npos);
  spec.merges.clear();
  spec.unk_token = "<unk>";
  EXPECT_FALSE(BpeModel::build(spec, false).ok());
}

TEST(Bpe, ByteAlphabetIsABijection) {
  std::string all, spelled, back;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  append_byte_chars(all, &spelled);
  append_token_bytes(spelled, &back);
  EXPECT_EQ(back, all);
  EXPECT_EQ(char_to_byte(U' '), -1);
  EXPECT_EQ(char_to_byte(0x120), ' ');
}

}  // namespace
}  // namespace warpweave
