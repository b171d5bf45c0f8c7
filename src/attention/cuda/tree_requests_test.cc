// A tree's nodes as requests of their own, on the host: whatever the trees and pages, a node's request names the places
// of the prefix, of its ancestors and of itself, in the order of a text.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda/testing/host_cta.h"

#include "attention/cuda/tree_requests.cuh"
#include "batch/forward_batch.h"

namespace warpweave::cuda {
namespace {

struct TreeBatch {
  std::mt19937 random{7};
  std::vector<int32_t> q_indptr = {0}, kv_lens, table;
  std::vector<std::vector<int>> paths;  // of a node: its ancestors among the request's nodes, and itself
  std::vector<uint32_t> mask;
  int page_size, stride = 0, words;

  TreeBatch(const std::vector<std::pair<int, int>>& requests, int page_size_, int words_)
      : page_size(page_size_), words(words_) {
    for (const auto& [q_len, kv_len] : requests) {
      q_indptr.push_back(q_indptr.back() + q_len);
      kv_lens.push_back(kv_len);
      stride = std::max(stride, (kv_len + page_size - 1) / page_size);
    }
    table.resize(stride * requests.size());
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), random);
    mask.resize(static_cast<size_t>(q_indptr.back()) * words);
    for (size_t r = 0; r < requests.size(); ++r) {
      for (int i = 0; i < requests[r].first; ++i) {
        std::vector<int> path;
        if (i > 0) path = paths[q_indptr[r] + random() % static_cast<unsigned>(i)];
        path.push_back(i);
        uint32_t* const bits = mask.data() + (q_indptr[r] + i) * words;
        for (const int node : path) bits[node / 32] |= 1u << node % 32;
        for (int none = requests[r].first; none < 32 * words; ++none) bits[none / 32] |= 1u << none % 32;  // say nothing
        paths.push_back(path);
      }
    }
  }

  AttentionParams params() const {
    AttentionParams p;
    p.q_indptr = q_indptr.data();
    p.kv_lens = kv_lens.data();
    p.page_table = table.data();
    p.page_table_stride = stride;
    p.page_size = page_size;
    p.page_shift = page_shift_of(page_size);
    p.tree_mask = mask.data();
    p.tree_mask_words = words;
    p.num_requests = static_cast<int>(kv_lens.size());
    p.num_tokens = q_indptr.back();
    return p;
  }
};

void expect_texts(const TreeBatch& batch, int first, int count) {
  const AttentionParams p = batch.params();
  const int stride = 300, page_places = 3 * batch.page_size;  // other layers' tokens between those of two pages
  std::vector<int32_t> memory(tree_requests_bytes(count, stride) / sizeof(int32_t), -7);
  TreeRequests out = tree_requests_of(memory.data(), count, stride);
  out.page_places = page_places;
  for (int block = 0; block < count; ++block) {
    host_cta::run(kTreeRequestThreads, host_cta::Order::random, [&] { tree_requests(p, out, first, count); },
                  {.x = static_cast<unsigned>(block)});
  }
  for (int i = 0; i <= count; ++i) EXPECT_EQ(out.q_indptr[i], first + i);
  for (int i = 0; i < count; ++i) {
    SCOPED_TRACE("node " + std::to_string(first + i));
    const int token = first + i;
    size_t r = 0;
    while (batch.q_indptr[r + 1] <= token) ++r;
    const int begin = batch.kv_lens[r] - (batch.q_indptr[r + 1] - batch.q_indptr[r]);
    const std::vector<int>& path = batch.paths[token];
    ASSERT_EQ(out.kv_lens[i], batch.kv_lens[r] == 0 ? 0 : begin + static_cast<int>(path.size()));
    for (int position = 0; position < out.kv_lens[i]; ++position) {
      const int at = position < begin ? position : begin + path[position - begin];
      const int page = batch.table[r * batch.stride + at / batch.page_size];
      ASSERT_EQ(out.page_table[i * stride + position], page * page_places + at % batch.page_size) << position;
    }
    EXPECT_EQ(out.page_table[i * stride + out.kv_lens[i]], -7);
  }
}

TEST(TreeRequests, HoldWhatATextWould) {
  for (const int page_size : {1, 3, 16, 64}) {
    const TreeBatch batch({{1, 1}, {8, 8}, {1, 70}, {40, 290}, {5, 133}}, page_size, 2);
    const int tokens = batch.q_indptr.back();
    expect_texts(batch, 0, tokens);
    expect_texts(batch, 7, 20);
    expect_texts(batch, tokens - 3, 3);
    const TreeBatch none_first({{2, 0}, {8, 8}, {1, 0}}, page_size, 2);  // requests without keys
    expect_texts(none_first, 0, none_first.q_indptr.back());
  }
}

}  // namespace
}  // namespace warpweave::cuda
