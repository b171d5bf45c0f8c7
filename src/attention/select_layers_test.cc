// The flags that choose for sparse layers, linear layers and the vision tower.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "attention/select_testing.h"

namespace warpweave {
namespace {

using namespace testing_selection;

TEST(SparseLayers, DefaultsFollowTheKvFormat) {
  auto resolved = select("h200", sparse_deepseek());
  ASSERT_TRUE(resolved.ok()) << resolved.status().message();
  EXPECT_EQ(resolved->prefill, "nsa");
  EXPECT_EQ(resolved->page_size, 64);
  EXPECT_EQ(resolved->kv_format, KvFormat::bf16);
  EXPECT_EQ(resolved->nsa.prefill, "flashmla_sparse");
  EXPECT_EQ(resolved->nsa.decode, "fa3");
  resolved = select("b200", sparse_deepseek());
  EXPECT_EQ(resolved->kv_format, KvFormat::fp8_e4m3) << "the default on this device";
  EXPECT_EQ(resolved->nsa.prefill, "flashmla_auto");
  EXPECT_EQ(resolved->nsa.decode, "flashmla_kv");
  EXPECT_TRUE(mentions(resolved->reasons, "512"));
}

TEST(SparseLayers, AutoRule) {
  EXPECT_EQ(nsa_auto_choice(511, 1), "flashmla_sparse");
  EXPECT_EQ(nsa_auto_choice(512, 1), "flashmla_kv");
  EXPECT_EQ(nsa_auto_choice(128 * 1024, 4096), "flashmla_sparse");
}

TEST(SparseLayers, Refusals) {
  AttentionFlags flags;
  flags.nsa_decode_backend = "flashmla_kv";
  expect_refused("h200", sparse_deepseek(), flags, "--nsa-decode-backend", "fp8_e4m3 KV only");
  flags.nsa_decode_backend = "fa3";
  expect_refused("b200", sparse_deepseek(), flags, "--nsa-decode-backend", "sm_100");
  flags.kv_cache_dtype = "fp8_e4m3";
  expect_refused("h200", sparse_deepseek(), flags, "--nsa-decode-backend", "bf16 KV only");
  flags.nsa_decode_backend = "flashmla_sparse";
  expect_refused("h200", sparse_deepseek(), flags, "--nsa-decode-backend", "bf16 KV only in decode");
  flags.nsa_decode_backend = "flashmla_spars";
  expect_refused("h200", sparse_deepseek(), flags, "--nsa-decode-backend",
                 "did you mean flashmla_sparse?");
  flags = {};
  flags.nsa_prefill_backend = "fa3";
  expect_refused("h200", deepseek(), flags, "--nsa-prefill-backend", "no sparse attention");
  flags = backend_flag("fa3");
  expect_refused("h200", sparse_deepseek(), flags, "--attention-backend", "no sparse kernels");
  expect_refused("h200", llama(), backend_flag("nsa"), "--attention-backend", "no MHA kernels");
}

TEST(LinearLayers, DefaultIsTritonButOnCpusAndForPromptsOnHopperAndPhasesInherit) {
  for (const char* hardware : {"a100", "mi300x", "ascend", "cpu", "xeon"}) {
    const std::string expected = hardware == std::string("cpu") || hardware == std::string("xeon") ? "cpu" : "triton";
    const auto resolved = select(hardware, qwen_next());
    ASSERT_TRUE(resolved.ok()) << hardware << ": " << resolved.status().message();
    EXPECT_EQ(resolved->linear.prefill, expected) << hardware;
    EXPECT_EQ(resolved->linear.decode, expected) << hardware;
  }
  AttentionFlags flags;
  flags.linear_attn_decode_backend = "cutedsl";
  const auto resolved = select("h200", qwen_next(), flags);
  ASSERT_TRUE(resolved.ok()) << resolved.status().message();
  EXPECT_EQ(resolved->linear.prefill, "cutedsl");
  EXPECT_EQ(resolved->linear.decode, "cutedsl");
  EXPECT_EQ(select("h200", qwen_next())->linear.decode, "triton");
  EXPECT_TRUE(select("h200", llama())->linear.prefill.empty());
}

TEST(LinearLayers, VerifyNeedsItsOwnKernel) {
  AttentionFlags flags;
  flags.speculative_algorithm = "NEXTN";
  flags.linear_attn_decode_backend = "cutedsl";
  const auto resolved = select("b200", qwen_next(), flags);
  ASSERT_TRUE(resolved.ok()) << resolved.status().message();
  EXPECT_EQ(resolved->linear_verify, "triton");
  EXPECT_TRUE(mentions(resolved->reasons, "cutedsl has no verify kernel"));
  expect_refused("ascend", qwen_next(), [] {
    AttentionFlags f;
    f.speculative_algorithm = "NEXTN";
    return f;
  }(), "--speculative-algorithm", "no kernel verifies drafts in GDN layers");
}

TEST(LinearLayers, EachOfTheThreeIsChosenApart) {
  struct Row {
    const char* hardware;
    const char *base, *prefill, *decode;     // flags; "" is unset
    int topk;                                // 0: no speculation
    const char *as_prefill, *as_decode, *as_verify;
    const char* reason;
  };
  for (const Row& row :
       {Row{"cpu", "", "", "", 0, "cpu", "cpu", "", "decode: unset -> cpu, the default; its kernels: linear_cpu"},
        {"cpu", "cpu", "", "", 0, "cpu", "cpu", "", "decode: --linear-attn-backend -> cpu, as asked"},
        {"cpu", "cpu", "triton", "", 0, "triton", "cpu", "", "prefill: --linear-attn-prefill-backend -> triton"},
        {"cpu", "", "", "triton", 0, "cpu", "triton", "",
         "decode: --linear-attn-decode-backend -> triton, as asked; its kernels: linear_portable"},
        {"xeon", "triton", "cpu", "", 0, "cpu", "triton", "", "decode: --linear-attn-backend -> triton"},
        {"h200", "flashinfer", "", "", 0, "flashinfer", "flashinfer", "", "prefill: --linear-attn-backend"},
        {"h200", "cutedsl", "", "", 0, "cutedsl", "cutedsl", "",
         "prefill: --linear-attn-backend -> cutedsl, as asked; its kernels: linear_wgmma"},
        {"h200", "", "", "", 0, "cutedsl", "triton", "",
         "prefill: unset -> cutedsl, the default; its kernels: linear_wgmma"},
        {"a100", "", "", "", 0, "triton", "triton", "",
         "prefill: unset -> triton, the default; its kernels: linear_tile"},
        {"h200", "triton", "flashinfer", "cutedsl", 1, "flashinfer", "cutedsl", "cutedsl",
         "target verify: cutedsl, as decode"},
        {"b200", "triton", "flashinfer", "cutedsl", 1, "flashinfer", "cutedsl", "triton",
         "because cutedsl has no verify kernel for chains"},
        {"mi300x", "", "", "", 1, "triton", "triton", "triton", "target verify: triton, as decode"}}) {
    for (LinearAttention kind : {LinearAttention::gdn, LinearAttention::kda}) {
      SCOPED_TRACE(std::string(row.hardware) + " " + row.base + " " + row.prefill + " " + row.decode);
      ModelFacts model = qwen_next();
      model.linear = kind;
      AttentionFlags flags;
      flags.linear_attn_backend = row.base;
      flags.linear_attn_prefill_backend = row.prefill;
      flags.linear_attn_decode_backend = row.decode;
      if (row.topk > 0) {
        flags.speculative_algorithm = "EAGLE";
        flags.speculative_num_steps = 3;
        flags.speculative_eagle_topk = row.topk;
        flags.speculative_num_draft_tokens = 4;
      }
      const auto resolved = select(row.hardware, model, flags);
      ASSERT_TRUE(resolved.ok()) << resolved.status().message();
      EXPECT_EQ(resolved->linear.prefill, row.as_prefill);
      EXPECT_EQ(resolved->linear.decode, row.as_decode);
      EXPECT_EQ(resolved->linear_verify, row.as_verify);
      EXPECT_TRUE(mentions(resolved->reasons, row.reason)) << row.reason;
    }
  }
}

TEST(LinearLayers, TreesNeedKernelsForTrees) {
  AttentionFlags flags;
  flags.speculative_algorithm = "EAGLE";
  flags.speculative_num_steps = 3;
  flags.speculative_eagle_topk = 4;
  flags.speculative_num_draft_tokens = 8;
  flags.attention_backend = "triton";
  EXPECT_EQ(select("h200", qwen_next(), flags)->linear_verify, "triton");
  const auto refused = select("b200", qwen_next(), flags);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().field(), "--speculative-algorithm");
  EXPECT_NE(refused.status().message().find("no kernel verifies drafts in GDN layers on sm_100 (trees"),
            std::string::npos)
      << refused.status().message();
  flags.speculative_eagle_topk = 1;
  flags.speculative_num_draft_tokens = 4;
  EXPECT_TRUE(select("b200", qwen_next(), flags).ok());
}

TEST(LinearLayers, Refusals) {
  AttentionFlags flags;
  flags.linear_attn_backend = "cutedsl";
  expect_refused("b200", qwen_next(), flags, "--linear-attn-backend", "cannot run prefill");
  expect_refused("cpu", qwen_next(), flags, "--linear-attn-backend", "these have: triton, cpu");
  flags.linear_attn_backend = "cpu";
  expect_refused("h200", qwen_next(), flags, "--linear-attn-backend", "these have: triton, cutedsl, flashinfer");
  flags.linear_attn_backend = "flashinfer";
  expect_refused("cpu", qwen_next(), flags, "--linear-attn-backend", "it has no such kernel");
  flags.linear_attn_backend = "tritno";
  expect_refused("h200", qwen_next(), flags, "--linear-attn-backend", "did you mean triton?");
  flags.linear_attn_backend = "triton";
  expect_refused("h200", llama(), flags, "--linear-attn-backend", "no linear attention layers");
  for (auto member : {&AttentionFlags::linear_attn_prefill_backend, &AttentionFlags::linear_attn_decode_backend}) {
    flags = {};
    flags.*member = "cpu";
    const std::string flag = member == &AttentionFlags::linear_attn_prefill_backend ? "--linear-attn-prefill-backend"
                                                                                     : "--linear-attn-decode-backend";
    expect_refused("cpu", llama(), flags, flag, "no linear attention layers");
  }
  flags = {};
  flags.linear_attn_decode_backend = "cutedsl";
  expect_refused("mi300x", qwen_next(), flags, "--linear-attn-decode-backend", "no such kernel");
  // The full-attention layers of a hybrid model.
  expect_refused(
      "b200", qwen_next(), backend_flag("flashinfer"), "--attention-backend",
      "of a hybrid linear model on sm_100; works: --attention-backend trtllm_mha | --attention-backend triton");
  expect_refused("ascend", qwen_next(), backend_flag("triton"), "--attention-backend", "Ascend");
}

TEST(VisionTower, FirstChoicePerDevice) {
  ModelFacts model = llama();
  model.vision = true;
  struct Row { const char* hardware; const char* backend; };
  for (const Row& row : {Row{"h200", "fa3"}, {"b200", "fa4"}, {"a100", "triton_attn"},
                         {"mi300x", "triton_attn"}, {"cpu", "amx_attn"}, {"intel-gpu", "xpu_attn"},
                         {"ascend", "sdpa"}}) {
    const auto resolved = select(row.hardware, model);
    ASSERT_TRUE(resolved.ok()) << row.hardware;
    EXPECT_EQ(resolved->mm, row.backend) << row.hardware;
  }
  EXPECT_TRUE(select("h200", llama())->mm.empty());
}

TEST(VisionTower, Refusals) {
  ModelFacts model = llama();
  model.vision = true;
  AttentionFlags flags;
  flags.mm_attention_backend = "fa3";
  expect_refused("a100", model, flags, "--mm-attention-backend", "no kernels for sm_80");
  flags.mm_attention_backend = "triton_atn";
  expect_refused("a100", model, flags, "--mm-attention-backend", "did you mean triton_attn?");
  flags.mm_attention_backend = "sdpa";
  EXPECT_EQ(select("a100", model, flags)->mm, "sdpa");
  expect_refused("a100", llama(), flags, "--mm-attention-backend", "no vision tower");
}

// A tree is no deeper than the narrowest window; a chain may be.
TEST(Select, UnsetSpeculationShrinksToTheWindow) {
  struct Row { const char* algorithm; int window; std::optional<int> depth, topk; int wanted_topk, wanted_depth; };
  const Row rows[] = {
      {"NGRAM", 0, {}, {}, 10, 12},  {"NGRAM", 12, {}, {}, 10, 12}, {"NGRAM", 8, {}, {}, 10, 8},
      {"NGRAM", 2, {}, {}, 10, 2},   {"NGRAM", 1, {}, {}, 1, 12},   {"NGRAM", 8, {}, 4, 4, 8},
      {"NGRAM", 8, 9, {}, 1, 9},     {"NGRAM", 8, 9, 4, 4, 9},      {"NGRAM", 8, 6, {}, 10, 6},
      {"EAGLE", 5, {}, {}, 4, 4},    {"EAGLE", 1, {}, {}, 1, 5},    {"EAGLE", 6, {}, {}, 4, 5},
      {"EAGLE", 4, 5, {}, 1, 5},     {"EAGLE", 4, 5, 2, 2, 5},      {"EAGLE", 4, {}, 1, 1, 5},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(fmt::format("{} window {}", row.algorithm, row.window));
    const bool ngram = std::string_view(row.algorithm) == "NGRAM";
    AttentionFlags flags;
    flags.speculative_algorithm = row.algorithm;
    flags.speculative_eagle_topk = row.topk;
    (ngram ? flags.speculative_num_draft_tokens : flags.speculative_num_steps) = row.depth;
    ModelFacts model = llama();
    model.sliding_window = row.window > 0;
    model.window_tokens = row.window;
    const auto resolved = select("h200", model, flags);
    ASSERT_TRUE(resolved.ok()) << resolved.status().message();
    EXPECT_EQ(resolved->speculation.topk, row.wanted_topk);
    EXPECT_EQ(ngram ? resolved->speculation.num_draft_tokens : resolved->speculation.num_steps, row.wanted_depth);
  }
}

}  // namespace
}  // namespace warpweave
