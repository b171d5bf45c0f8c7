// What selection refuses on described hardware, and by which rule.
#include "attention/select_testing.h"

namespace warpweave {
namespace {

using namespace testing_selection;

struct Refusal {
  const char* hardware;
  ModelFacts model;
  AttentionFlags flags;
  const char* field;
  const char* says;
};

std::vector<Refusal> refusals() {
  std::vector<Refusal> rows;
  AttentionFlags flags = backend_flag("trtllm_mha");
  flags.page_size = 1;
  rows.push_back({"b200", llama(), flags, "--page-size", "16/32/64/128"});
  flags = backend_flag("flashmla");
  flags.page_size = 16;
  rows.push_back({"h200", deepseek(), flags, "--page-size", "needs page size 64"});
  rows.push_back({"h200", llama(), backend_flag("trtllm_mha"), "--attention-backend", "only decode"});
  rows.push_back({"a100", llama(), backend_flag("fa3"), "--attention-backend", "no kernels for sm_80"});
  rows.push_back({"rtx5090", llama(), backend_flag("fa4"), "--attention-backend", "sm_120"});
  rows.push_back({"h200", deepseek(), backend_flag("trtllm_mha"), "--attention-backend", "no MLA"});
  rows.push_back({"cpu", llama(), backend_flag("fa3"), "--attention-backend", "CPU"});
  rows.push_back({"cpu", llama(), backend_flag("flash_infer"), "--attention-backend", "flashinfer?"});
  flags = backend_flag("trtllm_mha");
  flags.speculative_algorithm = "EAGLE";
  flags.speculative_eagle_topk = 4;
  rows.push_back({"b200", llama(), flags, "--speculative-eagle-topk", "chains only"});
  flags = backend_flag("flex_attention");
  flags.speculative_algorithm = "EAGLE";
  rows.push_back({"h200", llama(), flags, "--speculative-algorithm", "speculative"});
  flags = backend_flag("fa3");
  flags.speculative_algorithm = "EAGLE";
  flags.speculative_eagle_topk = 4;
  flags.page_size = 64;
  rows.push_back({"h200", llama(), flags, "--page-size", "page size 1 only"});
  flags = {};
  flags.prefill_attention_backend = "fa4";
  flags.decode_attention_backend = "trtllm_mha";
  flags.kv_cache_dtype = "fp4_e2m1";
  rows.push_back({"b200", llama(), flags, "--decode-attention-backend", "fp4"});
  flags = {};
  flags.prefill_attention_backend = "flashinfer";
  flags.decode_attention_backend = "flashmla";
  rows.push_back({"h200", deepseek(), flags, "--decode-attention-backend", "share no page size"});
  flags = backend_flag("flashinfer");
  flags.kv_cache_dtype = "fp4_e2m1";
  rows.push_back({"b200", llama(), flags, "--kv-cache-dtype", "fp4_e2m1"});
  flags.kv_cache_dtype = "int3";
  rows.push_back({"h200", llama(), flags, "--kv-cache-dtype", "int3"});
  flags = {};
  flags.page_size = 0;
  rows.push_back({"h200", llama(), flags, "--page-size", "at least 1"});
  flags = backend_flag("trtllm_mha");
  flags.enable_deterministic_inference = true;
  rows.push_back({"b200", llama(), flags, "--enable-deterministic-inference", "determinism"});
  flags = {};
  flags.speculative_eagle_topk = 2;
  rows.push_back({"h200", llama(), flags, "--speculative-algorithm", "need"});
  flags.speculative_algorithm = "MAGIC";
  rows.push_back({"h200", llama(), flags, "--speculative-algorithm", "MAGIC"});
  flags = {};
  flags.speculative_attention_mode = "both";
  rows.push_back({"h200", llama(), flags, "--speculative-attention-mode", "both"});
  ModelFacts model = llama();
  model.sinks = true;
  rows.push_back({"h200", model, backend_flag("flashinfer"), "--attention-backend", "sinks"});
  model = llama();
  model.softcap = true;
  rows.push_back({"b200", model, backend_flag("trtllm_mha"), "--attention-backend", "softcap"});
  model = llama();
  model.sliding_window = true;
  rows.push_back({"mi300x", model, backend_flag("wave"), "--attention-backend", "sliding window"});
  model = llama();
  model.linear = LinearAttention::gdn;
  rows.push_back({"b200", model, backend_flag("flashinfer"), "--attention-backend", "hybrid linear"});
  rows.push_back({"h200", llama(), backend_flag("dual_chunk_flash_attn"), "--attention-backend",
                  "dual-chunk"});
  rows.push_back({"h200", dual_chunk_qwen(), backend_flag("fa3"), "--attention-backend",
                  "does not compute dual-chunk"});
  flags = backend_flag("fa3");
  flags.kv_cache_dtype = "fp8_e5m2";
  rows.push_back({"h100", llama(), flags, "--kv-cache-dtype", "fp8_e5m2"});
  for (const char* name : {"flashmla", "flashinfer"}) {  // the MLA draft runs chains only
    flags = backend_flag(name);
    flags.speculative_algorithm = "EAGLE";
    flags.speculative_eagle_topk = 2;
    flags.speculative_num_draft_tokens = 4;
    rows.push_back({"h200", deepseek(), flags, "--speculative-eagle-topk", "chains only"});
  }
  rows.push_back({"h200", deepseek(), backend_flag("trtllm_mla"), "--attention-backend", "sm_90"});
  rows.push_back({"t4", llama(), backend_flag("flashinfer"), "--attention-backend", "sm_75"});
  flags = backend_flag("ascend");
  flags.page_size = 64;
  rows.push_back({"ascend", llama(), flags, "--page-size", "needs page size 128"});
  flags = backend_flag("intel_xpu");
  flags.page_size = 16;
  rows.push_back({"intel-gpu", llama(), flags, "--page-size", "32/64/128"});
  flags = {};
  flags.prefill_attention_backend = "fa3";
  flags.decode_attention_backend = "flashinfer";
  flags.enable_deterministic_inference = true;
  rows.push_back({"h200", llama(), flags, "--enable-deterministic-inference", "round differently"});
  return rows;
}

TEST(Select, RefusesByRuleAndProposesWhatWorks) {
  for (const Refusal& row : refusals()) {
    expect_refused(row.hardware, row.model, row.flags, row.field, row.says);
  }
}

// A tree's node lies elsewhere than its token in a text; what is not told of a plug-in is not promised.
TEST(SelectRefusals, TreesOnACpuInDeterministicModeAreOfBackendsThatClaimThem) {
  const HardwareFacts xeon = named_hardware("xeon").value();
  const std::vector<KnownBackend> written = known_backends_as_built();
  AttentionFlags flags;
  flags.enable_deterministic_inference = true;
  flags.speculative_algorithm = "NGRAM";
  const auto chains = select_attention(xeon, llama(), flags, written);
  ASSERT_TRUE(chains.ok()) << chains.status().message();
  EXPECT_EQ(chains->speculation.topk, 1);
  flags.speculative_eagle_topk = 4;
  EXPECT_EQ(select_attention(xeon, llama(), flags, written)->prefill, "intel_amx");
  const auto amx = std::find_if(written.begin(), written.end(), [](const KnownBackend& known) {
    return known.caps->name == "intel_amx" && known.caps->kinds.has(AttentionKind::mha);
  });
  ASSERT_NE(amx, written.end());
  Caps caps = *amx->caps;
  caps.deterministic_trees = false;
  const KnownBackend known[] = {{&caps, true}};
  flags.attention_backend = "intel_amx";
  const auto trees = select_attention(xeon, llama(), flags, known);
  ASSERT_FALSE(trees.ok());
  EXPECT_EQ(trees.status().field(), "--enable-deterministic-inference");
  EXPECT_NE(trees.status().message().find("--speculative-eagle-topk 1"), std::string::npos);
  flags.speculative_eagle_topk = 1;
  EXPECT_TRUE(select_attention(xeon, llama(), flags, known).ok());
}

}  // namespace
}  // namespace warpweave
