#include "engine/embed_keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <thread>
#include <vector>

namespace warpweave {
namespace {

constexpr size_t kWidth = 3;
constexpr int32_t kVocab = 100;

std::vector<float> rows_of(const std::vector<float>& firsts) {
  std::vector<float> rows;
  for (float first : firsts) rows.insert(rows.end(), {first, 0.5f, -1.0f});
  return rows;
}

size_t common(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

TEST(EmbedKeys, AreEqualForEqualBeginningsAlone) {
  EmbedKeys keys(kVocab);
  const auto first = keys.keys_of(rows_of({1, 2, 3, 4}), kWidth).keys;
  EXPECT_EQ(keys.keys_of(rows_of({1, 2, 3, 4}), kWidth).keys, first);
  EXPECT_EQ(common(first, keys.keys_of(rows_of({1, 2, 3, 4, 5}), kWidth).keys), 4u);
  EXPECT_EQ(common(first, keys.keys_of(rows_of({1, 2, 9, 4}), kWidth).keys), 2u);
  // The same row behind others is another row: what is cached of it depends on all before.
  const auto turned = keys.keys_of(rows_of({2, 1, 3, 4}), kWidth).keys;
  for (int32_t key : turned) EXPECT_EQ(std::count(first.begin(), first.end(), key), 0);
}

TEST(EmbedKeys, AreNoIdsOfTheVocabularyAndDifferInARow) {
  EmbedKeys keys(kVocab);
  const auto same = keys.keys_of(rows_of({7, 7, 7, 7}), kWidth).keys;
  EXPECT_EQ(std::set<int32_t>(same.begin(), same.end()).size(), 4u);
  for (int32_t key : same) EXPECT_GE(key, kVocab);
}

TEST(EmbedKeys, AreTheSameFromEveryThread) {
  EmbedKeys keys(kVocab);
  constexpr int kThreads = 4, kPrompts = 50;
  std::vector<std::vector<int32_t>> of_thread[kThreads];
  std::vector<std::thread> threads;
  for (auto& out : of_thread) {
    threads.emplace_back([&out, &keys] {
      for (int i = 0; i < kPrompts; ++i) {
        out.push_back(keys.keys_of(rows_of({static_cast<float>(i), -1, -2}), kWidth).keys);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<int32_t> seen;
  for (const auto& prompt : of_thread[0]) seen.insert(prompt.begin(), prompt.end());
  EXPECT_EQ(seen.size(), 3u * kPrompts);
  for (const auto& out : of_thread) EXPECT_EQ(out, of_thread[0]);
}

TEST(EmbedKeys, TellTheLastBitAndTheSignOfZeroApart) {
  EmbedKeys keys(kVocab);
  std::vector<float> rows = rows_of({1, 2});
  const auto first = keys.keys_of(rows, kWidth).keys;
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<float> other = rows;
    other[i] = std::nextafter(other[i], 10.0f);
    EXPECT_EQ(common(first, keys.keys_of(other, kWidth).keys), i / kWidth) << i;
  }
  EXPECT_NE(keys.keys_of(rows_of({0.0f}), kWidth).keys, keys.keys_of(rows_of({-0.0f}), kWidth).keys);
}

TEST(EmbedKeys, GiveNoKeyTwiceWhenTheyForget) {
  EmbedKeys keys(kVocab, /*max_known=*/4);
  std::set<int32_t> seen;
  for (int i = 0; i < 20; ++i) {
    const auto some = keys.keys_of(rows_of({static_cast<float>(i), -1, -2}), kWidth);
    EXPECT_EQ(some.epoch, 0u);
    for (int32_t key : some.keys) EXPECT_TRUE(seen.insert(key).second) << key;
  }
}

TEST(EmbedKeys, BeginAnEpochWhenKeysRunOut) {
  EmbedKeys keys(kVocab, 1000, /*last_key=*/kVocab + 10);
  uint64_t epoch = 0;
  std::set<std::pair<uint64_t, int32_t>> seen;
  for (int i = 0; i < 9; ++i) {
    const auto some = keys.keys_of(rows_of({static_cast<float>(i), -1, -2}), kWidth);
    for (int32_t key : some.keys) {
      EXPECT_TRUE(seen.insert({some.epoch, key}).second);
      EXPECT_LT(key, kVocab + 10);
    }
    EXPECT_GE(some.epoch, epoch);
    epoch = some.epoch;
  }
  EXPECT_EQ(epoch, 2u);
}

}  // namespace
}  // namespace warpweave
