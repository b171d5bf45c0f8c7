// The GPU's choice of the likeliest tokens, run on the host, against top_choices() on the CPU.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "device/cuda/testing/host_cta.h"

#include "spec/cuda/top_choices.cuh"

namespace warpweave::gpu {
namespace {

using host_cta::Order;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

void expect_as_on_the_cpu(const std::vector<float>& logits, int topk, Order order) {
  const int vocab_size = static_cast<int>(logits.size());
  std::vector<float> matrix(vocab_size, 1e9f);  // another row, before it
  matrix.insert(matrix.end(), logits.begin(), logits.end());
  std::vector<DraftChoice> got(3 * topk, DraftChoice{-7, 7});
  const int32_t* const tokens = nullptr;
  host_cta::run(kTopThreads, order, [&] { top_choices_kernel(matrix.data(), vocab_size, tokens, topk, got.data()); },
                {1, 0});
  std::vector<DraftChoice> expected;
  warpweave::top_choices(logits, topk, expected);
  expected.resize(topk, {0, kImpossibleChoice});
  for (int k = 0; k < topk; ++k) {
    EXPECT_EQ(got[topk + k].token, expected[k].token) << "choice " << k << " of " << vocab_size;
    EXPECT_NEAR(got[topk + k].logprob, expected[k].logprob, 1e-4f * std::max(1.0f, std::abs(expected[k].logprob)));
    EXPECT_EQ(got[k].token, -7) << "of another row";
    EXPECT_EQ(got[2 * topk + k].token, -7) << "of another row";
  }
}

// The likeliest alone, by blocks that share the row.
void expect_as_by_one_block(const std::vector<float>& logits, int parts) {
  const int vocab_size = static_cast<int>(logits.size());
  const int32_t* const tokens = nullptr;
  std::vector<float> matrix(vocab_size, 1e9f);
  matrix.insert(matrix.end(), logits.begin(), logits.end());
  std::vector<TopPart> found(2 * parts);
  std::vector<DraftChoice> got(2, DraftChoice{-7, 7}), expected;
  for (int part = parts - 1; part >= 0; --part) {
    host_cta::run(kPartThreads, Order::random,
                  [&] { top_parts_kernel(matrix.data(), vocab_size, parts, found.data()); }, {static_cast<unsigned>(part), 1});
  }
  const TopOfPartsCall call = {.found = found.data(), .parts = parts, .tokens = tokens, .out = got.data()};
  host_cta::run(kMergeThreads, Order::random, [&] { top_of_parts_kernel(call); }, {1, 0});
  warpweave::top_choices(logits, 1, expected);
  EXPECT_EQ(got[1].token, expected[0].token) << parts << " parts of " << vocab_size;
  EXPECT_NEAR(got[1].logprob, expected[0].logprob, 1e-4f * std::max(1.0f, std::abs(expected[0].logprob)));
  EXPECT_EQ(got[0].token, -7) << "of another row";
}

TEST(TopChoices, OfPartsAreThoseOfTheRow) {
  std::mt19937 rng(5);
  std::normal_distribution<float> normal(0, 4);
  for (const int vocab_size : {1, 5, 31, 1024, 3000, 20000}) {
    std::vector<float> logits(vocab_size);
    for (float& x : logits) x = normal(rng);
    for (const int parts : {2, 5, kMostTopParts, 264}) expect_as_by_one_block(logits, parts);
  }
  std::vector<float> equal(2000, -1.5f);
  equal[700] = equal[1900] = 2;
  expect_as_by_one_block(equal, 4);
  equal[700] = kNan;
  equal[5] = kInf;
  expect_as_by_one_block(equal, 4);
}

TEST(TopChoices, AreThoseOfTheCpu) {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal(0, 4);
  for (const int vocab_size : {1, 5, 31, 1024, 3000}) {
    std::vector<float> logits(vocab_size);
    for (float& x : logits) x = normal(rng);
    for (const int topk : {1, 4, 8}) {
      for (const Order order : {Order::ascending, Order::descending, Order::random})
        expect_as_on_the_cpu(logits, topk, order);
    }
  }
}

TEST(TopChoices, OfEqualLogitsTheLowerIdIsFirst) {
  std::vector<float> logits(2000, -1.5f);
  logits[700] = logits[1900] = 2;
  expect_as_on_the_cpu(logits, 5, Order::random);
  expect_as_on_the_cpu(std::vector<float>(1500, 0.0f), 3, Order::descending);
}

TEST(TopChoices, WhatIsNoNumberIsImpossible) {
  std::vector<float> logits(1200, -3.0f);
  logits[0] = logits[1100] = kNan;
  logits[5] = kInf;
  logits[6] = -kInf;
  logits[900] = 1;
  expect_as_on_the_cpu(logits, 4, Order::ascending);
  expect_as_on_the_cpu(std::vector<float>(1200, kNan), 2, Order::ascending);
}

TEST(TopChoices, ColumnsMayStandForTokens) {
  const std::vector<float> logits = {0, 3, 1};
  const std::vector<int32_t> tokens = {7, 90, 5000};
  std::vector<DraftChoice> got(2);
  host_cta::run(kTopThreads, Order::ascending,
                [&] { top_choices_kernel(logits.data(), 3, tokens.data(), 2, got.data()); });
  EXPECT_EQ(got[0].token, 90);
  EXPECT_EQ(got[1].token, 5000);
}

}  // namespace
}  // namespace warpweave::gpu
