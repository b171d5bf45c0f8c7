// What the backend behind is given for draft trees: each node as a text of its own.
#include "attention/tree_texts.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace warpweave {
namespace {

// Where each row's tokens stand in the pool, in elements, and which part of the call's arrays it has.
struct Row {
  std::vector<int64_t> tokens;
  const float *q, *lse;
  float* out;
  bool operator==(const Row&) const = default;
};

class Recording final : public AttentionBackend {
 public:
  Recording(std::vector<Row>& rows, int& plans) : rows_(rows), plans_(plans) {}
  const Caps& caps() const override { return caps_; }
  Status init_forward_metadata(const ForwardBatch& batch) override {
    ++plans_;
    planned_ = batch.page_table.data();
    return {};
  }
  Status forward_extend(const ForwardBatch&, const AttentionCall&) override {
    return Status::internal("no text is extended");
  }
  Status forward_decode(const ForwardBatch& batch, const AttentionCall& call) override {
    EXPECT_EQ(batch.page_table.data(), planned_);
    EXPECT_EQ(batch.page_size, 1);
    EXPECT_TRUE(batch.tree_mask.empty());
    EXPECT_EQ(call.v.page_stride, call.v.token_stride);
    for (int r = 0; r < batch.num_reqs; ++r) {
      EXPECT_EQ(batch.q_len(r), 1);
      EXPECT_LE(batch.kv_lens[r], batch.max_kv_len);
      Row row{{}, call.q_f32() + r * call.q_token_stride, call.lse + r * call.num_q_heads, call.out_f32() + r * call.out_token_stride};
      for (int i = 0; i < batch.kv_lens[r]; ++i) {
        row.tokens.push_back(batch.page_table[int64_t{r} * batch.page_table_stride + i] * call.k.page_stride);
      }
      rows_.push_back(std::move(row));
    }
    return {};
  }

 private:
  std::vector<Row>& rows_;
  int& plans_;
  Caps caps_;
  const int32_t* planned_ = nullptr;
};

// A batch of random trees on shuffled pages, whose later nodes follow any of the earlier ones.
struct Trees {
  ForwardBatch batch;
  AttentionCall call;
  std::vector<int32_t> q_indptr = {0}, kv_lens, positions, page_table;
  std::vector<uint32_t> mask;
  std::vector<std::vector<int>> paths;  // of each row: kv positions that it sees, in order
  std::vector<float> memory = std::vector<float>(1 << 12);

  Trees(const std::vector<std::pair<int, int>>& requests, int page_size, int heads) {
    std::mt19937 random(7);
    for (const auto& [q_len, kv_len] : requests) {
      q_indptr.push_back(q_indptr.back() + q_len);
      kv_lens.push_back(kv_len);
      batch.max_q_len = std::max(batch.max_q_len, q_len);
      batch.max_kv_len = std::max(batch.max_kv_len, kv_len);
    }
    batch.tree_mask_words = (batch.max_q_len + 31) / 32;
    batch.page_table_stride = (batch.max_kv_len + page_size - 1) / page_size;
    page_table.resize(requests.size() * batch.page_table_stride);
    std::iota(page_table.begin(), page_table.end(), 3);
    std::shuffle(page_table.begin(), page_table.end(), random);
    mask.resize(static_cast<size_t>(q_indptr.back()) * batch.tree_mask_words);
    for (const auto& [q_len, kv_len] : requests) plant(q_len, kv_len, random);
    batch.num_reqs = static_cast<int>(requests.size());
    batch.num_tokens = q_indptr.back();
    batch.page_size = page_size;
    batch.q_indptr = q_indptr, batch.kv_lens = kv_lens, batch.positions = positions;
    batch.page_table = page_table, batch.tree_mask = mask;
    call.num_q_heads = 2;
    call.q = memory.data(), call.out = memory.data() + 1000, call.lse = memory.data() + 2000;
    call.q_token_stride = 5, call.out_token_stride = 6;
    call.k.token_stride = 16, call.k.page_stride = int64_t{16} * page_size * heads;  // heads before tokens: farther apart
    call.v.token_stride = 8, call.v.page_stride = int64_t{8} * page_size * heads;
  }

  void plant(int q_len, int kv_len, std::mt19937& random) {
    const int prefix = kv_len - q_len;
    std::vector<std::vector<int>> nodes;
    for (int i = 0; i < q_len; ++i) {
      std::vector<int> path = i == 0 ? std::vector<int>() : nodes[random() % i];
      path.push_back(i);
      uint32_t* const row = mask.data() + static_cast<int64_t>(paths.size()) * batch.tree_mask_words;
      for (const int node : path) row[node / 32] |= 1u << node % 32;
      positions.push_back(prefix + static_cast<int>(path.size()) - 1);
      nodes.push_back(path);
      std::vector<int>& seen = paths.emplace_back();
      if (kv_len == 0) continue;  // a padded row
      for (int token = 0; token < prefix; ++token) seen.push_back(token);
      for (const int node : path) seen.push_back(prefix + node);
    }
  }

  std::vector<Row> expected() const {
    std::vector<Row> rows;
    for (int r = 0; r < batch.num_reqs; ++r) {
      for (int at = q_indptr[r]; at < q_indptr[r + 1]; ++at) {
        Row row{{}, call.q_f32() + at * call.q_token_stride, call.lse + at * call.num_q_heads, call.out_f32() + at * call.out_token_stride};
        for (const int token : paths[at]) {
          const int page = page_table[r * batch.page_table_stride + token / batch.page_size];
          row.tokens.push_back(page * call.k.page_stride + token % batch.page_size * call.k.token_stride);
        }
        rows.push_back(std::move(row));
      }
    }
    return rows;
  }
};

struct Wrapped {
  std::vector<Row> rows;
  int plans = 0;
  std::unique_ptr<AttentionBackend> backend =
      with_trees_as_texts(std::make_unique<Recording>(rows, plans), {.deterministic = true});
};

TEST(TreeTexts, EachNodeIsTheTextOfItsPath) {
  for (const int page_size : {1, 3, 16, 64}) {
    for (const int heads : {1, 4}) {
      const Trees trees({{9, 40}, {1, 17}, {0, 5}, {40, 40}, {2, 0}, {33, 130}}, page_size, heads);
      Wrapped wrapped;
      ASSERT_TRUE(wrapped.backend->init_forward_metadata(trees.batch).ok());
      ASSERT_TRUE(wrapped.backend->reserve(trees.batch, trees.call).ok());
      ASSERT_TRUE(wrapped.backend->forward_extend(trees.batch, trees.call).ok());
      EXPECT_EQ(wrapped.rows, trees.expected()) << page_size;
      wrapped.rows.clear();
      ASSERT_TRUE(wrapped.backend->forward_decode(trees.batch, trees.call).ok());  // another layer
      EXPECT_EQ(wrapped.rows, trees.expected()) << page_size;
      EXPECT_EQ(wrapped.plans, 1) << "once for all layers";
    }
  }
}

TEST(TreeTexts, LayersOnOtherPagesHaveTextsOfTheirOwn) {
  const Trees trees({{9, 40}, {12, 60}}, 16, 1);
  Wrapped wrapped;
  ASSERT_TRUE(wrapped.backend->init_forward_metadata(trees.batch).ok());
  ASSERT_TRUE(wrapped.backend->forward_extend(trees.batch, trees.call).ok());
  Trees others = trees;
  others.q_indptr = trees.q_indptr;
  for (int32_t& page : others.page_table) page += 50;
  others.batch.page_table = others.page_table;
  wrapped.rows.clear();
  ASSERT_TRUE(wrapped.backend->forward_extend(others.batch, trees.call).ok());
  std::vector<Row> expected = trees.expected();
  for (Row& row : expected) {
    for (int64_t& token : row.tokens) token += 50 * trees.call.k.page_stride;
  }
  EXPECT_EQ(wrapped.rows, expected);
}

// More than one table holds.
TEST(TreeTexts, LongTextsComeInParts) {
  const Trees trees({{5, 6'000'000}}, 64, 1);
  Wrapped wrapped;
  ASSERT_TRUE(wrapped.backend->init_forward_metadata(trees.batch).ok());
  ASSERT_TRUE(wrapped.backend->forward_extend(trees.batch, trees.call).ok());
  EXPECT_EQ(wrapped.plans, 3);
  EXPECT_TRUE(wrapped.rows == trees.expected());
}

TEST(TreeTexts, WhatCannotBeATextIsRefused) {
  Trees trees({{9, 40}}, 16, 1);
  Wrapped wrapped;
  ASSERT_TRUE(wrapped.backend->init_forward_metadata(trees.batch).ok());
  trees.call.v.page_stride += 8;
  EXPECT_EQ(wrapped.backend->forward_extend(trees.batch, trees.call).code(), StatusCode::unsupported);
  trees.call.v.page_stride -= 8;
  for (int32_t& page : trees.page_table) page += 1 << 30;
  EXPECT_EQ(wrapped.backend->forward_extend(trees.batch, trees.call).code(), StatusCode::unsupported);
  trees.mask[0] = 0;
  EXPECT_EQ(wrapped.backend->init_forward_metadata(trees.batch).code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace warpweave
