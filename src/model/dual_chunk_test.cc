// The forms of a query against rotations computed here, the configuration's rules, and a tiny Qwen2
// with random weights: any cut of the prompt gives the same logits, and the first chunk is ordinary.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>

#include "base/testing/temporary_folder.h"
#include "model/dual_chunk.h"
#include "model/testing/paged_run.h"

namespace warpweave {
namespace {

constexpr int kDim = 8;

// Element i of a head turned by `position`, pairs (i, i + kDim / 2).
double rotated(const float* head, int i, double position) {
  const int half = kDim / 2, pair = i % half;
  const double angle = position * std::pow(10000.0, -2.0 * pair / kDim);
  return i < half ? head[pair] * std::cos(angle) - head[pair + half] * std::sin(angle)
                  : head[pair + half] * std::cos(angle) + head[pair] * std::sin(angle);
}

TEST(DualChunkRope, FormsOfAQuery) {
  DualChunkRope rope({.chunk_size = 12, .local_size = 4, .original_max_positions = 20});
  EXPECT_EQ(rope.chunk_len(), 8);
  EXPECT_EQ(rope.rope_positions(), 13);
  const std::vector<int32_t> positions = {3, 8, 12, 15, 19, 20, 45};
  ForwardBatch batch;
  batch.num_tokens = static_cast<int>(positions.size());
  batch.positions = positions;
  rope.start(batch);
  std::vector<double> inv_freq;
  for (int i = 0; i < kDim / 2; ++i) inv_freq.push_back(std::pow(10000.0, -2.0 * i / kDim));
  const RopeTable table = RopeTable::make(inv_freq, rope.rope_positions());
  std::vector<float> raw(positions.size() * 3 * kDim);  // one query head, one key head, one value head
  for (size_t i = 0; i < raw.size(); ++i) raw[i] = std::sin(static_cast<float>(i));
  std::vector<float> rows = raw;
  QkvRowsCall call;
  call.rows = batch.num_tokens;
  call.num_q_heads = call.num_kv_heads = 1;
  call.head_dim = call.v_head_dim = kDim;
  call.q = rows.data();
  call.k = rows.data() + kDim;
  call.v = rows.data() + 2 * kDim;
  call.q_stride = call.k_stride = call.v_stride = 3 * kDim;
  call.rope = &table;
  call.positions = rope.positions();
  ThreadTeam team(1);
  const DualChunkQueries* forms = rope.norm_rope_write_kv(call, team);
  ASSERT_NE(forms, nullptr);
  EXPECT_EQ(forms->chunk_len, 8);
  for (size_t r = 0; r < positions.size(); ++r) {
    const int p = positions[r];
    const double scale = p < 20 ? 1 : 0.1 * std::log((p + 1) / 20.0) + 1;
    for (int i = 0; i < kDim; ++i) {
      const float* q = &raw[r * 3 * kDim];
      EXPECT_NEAR(rows[r * 3 * kDim + i], scale * rotated(q, i, p % 8), 1e-5);
      EXPECT_NEAR(static_cast<const float*>(forms->q_succ)[r * forms->token_stride + i],
                  scale * rotated(q, i, std::min(p % 8 + 8, 12)), 1e-5);
      EXPECT_NEAR(static_cast<const float*>(forms->q_inter)[r * forms->token_stride + i],
                  scale * rotated(q, i, 12), 1e-5);
      EXPECT_NEAR(rows[r * 3 * kDim + kDim + i], rotated(q + kDim, i, p % 8), 1e-5);
      EXPECT_EQ(rows[r * 3 * kDim + 2 * kDim + i], q[2 * kDim + i]);
    }
  }
}

std::string config_json(const std::string& dual_chunk) {
  return R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 64,
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
    "hidden_act": "silu", "torch_dtype": "float32", "bos_token_id": 0, "eos_token_id": 1)" +
         (dual_chunk.empty() ? "" : ", \"dual_chunk_attention_config\": " + dual_chunk) + "}";
}

TEST(DualChunkConfig, Rules) {
  const auto good = parse_config_json(config_json(R"({"chunk_size": 24, "local_size": 8,
      "original_max_position_embeddings": 40})"));
  ASSERT_TRUE(good.ok()) << good.status().message();
  ASSERT_TRUE(good->dual_chunk.has_value());
  EXPECT_EQ(good->dual_chunk->chunk_size, 24);
  EXPECT_EQ(good->dual_chunk->local_size, 8);
  EXPECT_EQ(good->dual_chunk->original_max_positions, 40);
  EXPECT_FALSE(parse_config_json(config_json(""))->dual_chunk.has_value());
  struct Wrong { const char *section, *message; };
  for (const Wrong& wrong : {Wrong{R"(7)", "must be an object"},
                             Wrong{R"({"chunk_size": 8, "local_size": 8})", "local_size must be smaller"},
                             Wrong{R"({"chunk_size": 0})", "chunk_size must be an integer from 2"},
                             Wrong{R"({"sparse_attention_config": {}})", "set it to false"},
                             Wrong{R"({"sparse_attention_enabled": true})", "set it to false"}}) {
    const auto parsed = parse_config_json(config_json(wrong.section));
    ASSERT_FALSE(parsed.ok()) << wrong.section;
    EXPECT_NE(parsed.status().message().find(wrong.message), std::string::npos) << parsed.status().message();
  }
  EXPECT_TRUE(
      parse_config_json(config_json(R"({"sparse_attention_config": {}, "sparse_attention_enabled": false})")).ok());
}

class DualChunkModel : public testing::Test {
 protected:
  std::unique_ptr<PagedRun> open(const std::string& dual_chunk) {
    std::ofstream(folder_ / "config.json") << config_json(dual_chunk);
    PagedRunOptions options;
    options.backend = "dual_chunk_flash_attn";
    options.max_tokens = 160;
    options.load_format = "dummy";
    auto run = PagedRun::open(folder_.path(), options);
    EXPECT_TRUE(run.ok()) << run.status().message();
    return std::move(run).value();
  }

  TemporaryFolder folder_;
};

constexpr const char* kSection = R"({"chunk_size": 24, "local_size": 8, "original_max_position_embeddings": 64})";

std::vector<int32_t> prompt(int count) {
  std::vector<int32_t> ids(count);
  for (int i = 0; i < count; ++i) ids[i] = (i * 29 + i / 7) % 64;
  return ids;
}

TEST_F(DualChunkModel, AnyCutOfThePromptGivesTheSameLogits) {
  const auto run = open(kSection);
  const std::vector<int32_t> ids = prompt(120);
  const auto whole = run->feed(ids);
  ASSERT_TRUE(whole.ok());
  for (const int piece : {1, 7, 16, 50}) {
    run->restart();
    std::vector<float> logits;
    for (size_t begin = 0; begin < ids.size(); begin += piece) {
      const size_t count = std::min<size_t>(piece, ids.size() - begin);
      const auto part = run->feed(std::span(ids).subspan(begin, count));
      ASSERT_TRUE(part.ok());
      logits.insert(logits.end(), part->begin(), part->end());
    }
    EXPECT_EQ(logits, *whole) << "pieces of " << piece;
  }
}

TEST_F(DualChunkModel, TheFirstChunkIsOrdinary) {
  const std::vector<int32_t> ids = prompt(40);
  const std::vector<float> chunked = *open(kSection)->feed(ids);
  const std::vector<float> plain = *open("")->feed(ids);
  const size_t first_chunk = 16 * 64;
  EXPECT_TRUE(std::equal(chunked.begin(), chunked.begin() + first_chunk, plain.begin()));
  EXPECT_FALSE(std::equal(chunked.begin() + first_chunk, chunked.end(), plain.begin() + first_chunk));
}

}  // namespace
}  // namespace warpweave
