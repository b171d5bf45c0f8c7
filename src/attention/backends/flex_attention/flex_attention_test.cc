// Modifiers through the backend, on every tier of this machine, against attention computed cell by
// cell in f64 with the evaluator; and tile programs against the evaluator alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "attention/backends/flex_attention/backend.h"
#include "attention/backends/flex_attention/plan.h"
#include "attention/backends/flex_attention/program.h"
#include "attention/backends/flex_attention/testing.h"
#include "base/threads.h"

namespace warpweave::flex_attention {
namespace {

std::vector<CpuTier> tiers() {
  std::vector<CpuTier> all;
  for (int tier = 0; tier <= static_cast<int>(cpu_info().tier); ++tier) all.push_back(static_cast<CpuTier>(tier));
  return all;
}

class FlexModifiers : public testing::TestWithParam<Mods> {};

TEST_P(FlexModifiers, MatchTheEvaluator) {
  const mods::Modifiers wanted = modifiers(GetParam().score, GetParam().mask);
  Batch problem({{1, 1}, {70, 70}, {3, 200}, {130, 190}, {1, 333}});
  ThreadTeam team(2);
  for (CpuTier tier : tiers()) {
    const auto backend = create_for_tier({.team = &team}, tier, wanted);
    ASSERT_TRUE(backend->init_forward_metadata(problem.batch).ok());
    ASSERT_TRUE(backend->forward_extend(problem.batch, problem.call).ok());
    // Probabilities are rounded to bf16 where the tier multiplies bf16.
    EXPECT_LE(problem.error(wanted), tier >= CpuTier::avx512_bf16 ? 1e-2 : 2e-5) << cpu_tier_name(tier);
  }
}

TEST_P(FlexModifiers, MatchTheEvaluatorOnLatentRows) {
  const mods::Modifiers wanted = modifiers(GetParam().score, GetParam().mask);
  Batch problem({{1, 1}, {70, 70}, {3, 200}, {1, 333}}, Batch::kLatent);
  ThreadTeam team(2);
  for (CpuTier tier : tiers()) {
    const auto backend = create_for_tier({.team = &team}, tier, wanted, AttentionKind::mla);
    EXPECT_TRUE(backend->caps().kinds.has(AttentionKind::mla));
    ASSERT_TRUE(backend->init_forward_metadata(problem.batch).ok());
    ASSERT_TRUE(backend->forward_extend(problem.batch, problem.call).ok());
    EXPECT_LE(problem.error(wanted), tier >= CpuTier::avx512_bf16 ? 1e-2 : 2e-5) << cpu_tier_name(tier);
  }
}

INSTANTIATE_TEST_SUITE_P(Expressions, FlexModifiers, testing::ValuesIn(kModifierCases));

TEST(FlexAttention, DecodeIsTheSameRow) {
  const mods::Modifiers wanted = modifiers("alibi", "window(100)");
  Batch problem({{1, 250}, {1, 64}, {1, 1}});
  ThreadTeam team(1);
  const auto backend = create_for_tier({.team = &team}, cpu_info().tier, wanted);
  ASSERT_TRUE(backend->init_forward_metadata(problem.batch).ok());
  ASSERT_TRUE(backend->forward_decode(problem.batch, problem.call).ok());
  EXPECT_LE(problem.error(wanted), 1e-2);
}

TEST(FlexPlan, SkipsWhatTheMaskHides) {
  Batch problem({{2048, 2048}});
  const auto blocks = [&](const char* mask) {
    const mods::Modifiers wanted = modifiers("", mask);
    mods::MaskBounds bounds(wanted.mask);
    Plan plan;
    plan.init(problem.batch, {.group = 2, .num_heads = 2, .head_dim = 32}, &bounds);
    int all = 0, full = 0;
    for (const PlannedTile& tile : plan.tiles()) {
      for (const PlannedBlock& block : plan.blocks(tile)) ++all, full += block.full;
    }
    return std::pair(all, full);
  };
  // 32 tiles of 64 rows, 32 blocks of 64 tokens.
  EXPECT_EQ(blocks("true"), std::pair(1024, 1024));
  EXPECT_EQ(blocks("causal"), std::pair(32 * 33 / 2, 32 * 31 / 2));
  EXPECT_EQ(blocks("window(64)"), std::pair(63, 0));
  EXPECT_EQ(blocks("window(128)"), std::pair(32 + 31 + 30, 31));
  EXPECT_EQ(blocks("chunked(512)"), std::pair(4 * 36, 4 * 28));
  EXPECT_EQ(blocks("false"), std::pair(0, 0));
}

// Tile programs against the evaluator, on every tier: integers and conditions exactly.
TEST(FlexProgram, ComputesTiles) {
  constexpr int kRows = 7;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const char* text :
       {"score", "q_idx * kv_idx - 100 * h", "(q_idx - kv_idx) / 8", "(q_idx - kv_idx) % 8",
        "(q_idx - kv_idx) / (h - 1)", "(kv_idx - q_idx) % (h + 1)", "kv_idx / 7 + kv_idx % 7",
        "abs(q_idx - kv_idx) * 1000000000", "min(q_idx, kv_idx, 40) - max(h, kv_idx % 3)",
        "int(kv_idx == q_idx) - int(kv_idx != h) * 2", "-(kv_idx * kv_idx)", "alibi_slope(h) * score",
        "exp(score) / (1 + exp(score))", "log(abs(score) + 0.001)", "tanh(score * 3)", "sqrt(score * score)",
        "score < 0 ? -score : score * 2", "softcap(3, alibi) + float(kv_idx) / float(q_idx + 1)",
        "min(score, 0.5) - max(score, -0.5)", "(score > 0) == (kv_idx < q_idx) ? 1.5 : score"}) {
    auto parsed = mods::parse_score_modifier(text);
    ASSERT_TRUE(parsed.ok()) << text << parsed.status().message();
    const Program program(std::move(parsed).value());
    std::vector<mods::Cell> rows;
    for (int i = 0; i < kRows; ++i) rows.push_back({.q_idx = 60 + i / 2, .head = i % 4, .num_heads = 4});
    std::vector<int32_t> kv_idx(kStripColumns);
    std::iota(kv_idx.begin(), kv_idx.end(), 30);
    std::vector<float> before(kRows * kStripColumns);
    for (float& s : before) s = normal(random);
    for (CpuTier tier : tiers()) {
#if defined(__x86_64__)
      const Strips& strips = tier >= CpuTier::avx512 ? kAvx512Strips
                             : tier >= CpuTier::avx2 ? kAvx2Strips
                                                     : kScalarStrips;
#else
      const Strips& strips = kScalarStrips;
#endif
      ProgramRun run;
      run.start_tile(program, rows);
      run.start_block(program, strips, kv_idx.data());
      std::vector<float> scores = before;
      run.change_scores(program, strips, scores.data());
      for (int i = 0; i < kRows * kStripColumns; ++i) {
        mods::Cell cell = rows[i / kStripColumns];
        cell.kv_idx = kv_idx[i % kStripColumns];
        cell.score = before[i];
        const double want = mods::evaluate(program.expression(), cell).real;
        ASSERT_NEAR(scores[i], want, 3e-6 * std::max(1.0, std::fabs(want)))
            << text << " " << cpu_tier_name(tier) << " q " << cell.q_idx << " kv " << cell.kv_idx << " h " << cell.head;
      }
    }
  }
}

}  // namespace
}  // namespace warpweave::flex_attention
