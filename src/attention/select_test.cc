// Selection on described hardware: every rule of the flags, without owning the devices.
#include "attention/select.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "attention/select_json.h"

namespace warpweave {
namespace {

// The known backends as if all were built: GPU rules are then testable here.
std::vector<KnownBackend> all_built() {
  std::vector<KnownBackend> all(known_backends().begin(), known_backends().end());
  for (KnownBackend& backend : all) backend.built = true;
  return all;
}

ModelFacts llama() {
  ModelFacts model;
  model.architecture = "LlamaForCausalLM";
  model.num_q_heads = 32;
  model.num_kv_heads = 8;
  model.head_dim = 128;
  return model;
}

ModelFacts deepseek() {
  ModelFacts model = llama();
  model.architecture = "DeepseekV3ForCausalLM";
  model.kind = AttentionKind::mla;
  model.head_dim = 576;
  model.v_head_dim = 512;
  return model;
}

Result<Resolved> select(std::string_view hardware, const ModelFacts& model,
                        const AttentionFlags& flags = {}) {
  const std::vector<KnownBackend> all = all_built();
  return select_attention(named_hardware(hardware).value(), model, flags, all);
}

AttentionFlags backend_flag(const std::string& name) {
  AttentionFlags flags;
  flags.attention_backend = name;
  return flags;
}

// Reads "--flag value ..." back, to check that what an error proposes works.
AttentionFlags parse(const std::string& text) {
  AttentionFlags flags;
  if (text == "no attention flags") return flags;
  std::stringstream words(text);
  for (std::string flag, value; words >> flag;) {
    if (flag == "--enable-deterministic-inference") {
      flags.enable_deterministic_inference = true;
      continue;
    }
    words >> value;
    if (flag == "--attention-backend") flags.attention_backend = value;
    else if (flag == "--prefill-attention-backend") flags.prefill_attention_backend = value;
    else if (flag == "--decode-attention-backend") flags.decode_attention_backend = value;
    else if (flag == "--page-size") flags.page_size = std::stoi(value);
    else if (flag == "--kv-cache-dtype") flags.kv_cache_dtype = value;
    else if (flag == "--speculative-algorithm") flags.speculative_algorithm = value;
    else if (flag == "--speculative-num-steps") flags.speculative_num_steps = std::stoi(value);
    else if (flag == "--speculative-eagle-topk") flags.speculative_eagle_topk = std::stoi(value);
    else if (flag == "--speculative-num-draft-tokens")
      flags.speculative_num_draft_tokens = std::stoi(value);
    else if (flag == "--speculative-attention-mode") flags.speculative_attention_mode = value;
    else ADD_FAILURE() << "unknown flag in a proposal: " << flag;
  }
  return flags;
}

std::vector<std::string> proposals(const Status& status) {
  std::vector<std::string> list;
  const size_t start = status.message().find("; works: ");
  if (start == std::string::npos) return list;
  std::string rest = status.message().substr(start + 9);
  for (size_t bar; (bar = rest.find(" | ")) != std::string::npos; rest = rest.substr(bar + 3)) {
    list.push_back(rest.substr(0, bar));
  }
  list.push_back(rest);
  return list;
}

TEST(Select, DefaultPerDevice) {
  struct Row { const char* hardware; ModelFacts model; const char* backend; };
  ModelFacts dual_chunk = llama();
  dual_chunk.dual_chunk = true;
  ModelFacts sparse = deepseek();
  sparse.kind = AttentionKind::sparse;
  const Row rows[] = {
      {"h100", llama(), "fa3"},          {"h200", llama(), "fa3"},
      {"b200", llama(), "trtllm_mha"},   {"rtx5090", llama(), "flashinfer"},
      {"a100", llama(), "flashinfer"},   {"l40s", llama(), "flashinfer"},
      {"t4", llama(), "triton"},         {"mi300x", llama(), "aiter"},
      {"mi250x", llama(), "wave"},       {"intel-gpu", llama(), "intel_xpu"},
      {"ascend", llama(), "ascend"},     {"xeon", llama(), "intel_amx"},
      {"cpu", llama(), "intel_amx"},     {"h200", deepseek(), "fa3"},
      {"b200", deepseek(), "trtllm_mla"}, {"a100", deepseek(), "triton"},
      {"h200", dual_chunk, "dual_chunk_flash_attn"}, {"h200", sparse, "nsa"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(std::string(row.hardware) + " " + row.backend);
    const auto resolved = select(row.hardware, row.model);
    ASSERT_TRUE(resolved.ok()) << resolved.status().message();
    EXPECT_EQ(resolved->prefill, row.backend);
    EXPECT_EQ(resolved->decode, row.backend);
  }
}

TEST(Select, OldCudaOnHopperFallsToFlashinfer) {
  HardwareFacts hardware = named_hardware("h100").value();
  hardware.cuda_version = 12020;
  const auto all = all_built();
  const auto resolved = select_attention(hardware, llama(), {}, all);
  ASSERT_TRUE(resolved.ok());
  EXPECT_EQ(resolved->prefill, "flashinfer");
}

TEST(Select, BlackwellTreeSpeculationLeavesTrtllm) {
  AttentionFlags flags;
  flags.speculative_algorithm = "EAGLE";
  flags.speculative_eagle_topk = 1;
  EXPECT_EQ(select("b200", llama(), flags)->prefill, "trtllm_mha");
  flags.speculative_eagle_topk = 4;
  EXPECT_EQ(select("b200", llama(), flags)->prefill, "flashinfer");
}

TEST(Select, UnsetPhaseInheritsAttentionBackend) {
  AttentionFlags flags = backend_flag("flashinfer");
  flags.decode_attention_backend = "fa3";
  const auto resolved = select("h200", llama(), flags);
  ASSERT_TRUE(resolved.ok());
  EXPECT_EQ(resolved->prefill, "flashinfer");
  EXPECT_EQ(resolved->decode, "fa3");

  AttentionFlags equal;
  equal.prefill_attention_backend = equal.decode_attention_backend = "triton";
  EXPECT_EQ(select("h200", llama(), equal)->prefill, "triton");
}

TEST(Select, FixedPageBackendsSetThePageSize) {
  EXPECT_EQ(select("b200", llama(), backend_flag("trtllm_mha"))->page_size, 64);
  EXPECT_EQ(select("h200", llama(), backend_flag("fa4"))->page_size, 128);
  EXPECT_EQ(select("h200", deepseek(), backend_flag("flashmla"))->page_size, 64);
  EXPECT_EQ(select("h200", llama(), backend_flag("fa3"))->page_size, 1);
  AttentionFlags pair;
  pair.prefill_attention_backend = "fa4";
  pair.decode_attention_backend = "trtllm_mha";
  const auto resolved = select("h200", llama(), pair);
  ASSERT_TRUE(resolved.ok()) << resolved.status().message();
  EXPECT_EQ(resolved->page_size, 128);
}

TEST(Select, PageSizeIsExpandedWhereItIsNotNative) {
  AttentionFlags flags = backend_flag("triton");
  flags.page_size = 64;
  const auto resolved = select("h200", llama(), flags);
  ASSERT_TRUE(resolved.ok());
  EXPECT_TRUE(resolved->page_table_expanded);
  EXPECT_FALSE(select("h200", llama(), backend_flag("triton"))->page_table_expanded);
}

TEST(Select, SpeculativeAttentionModePicksTheVerifier) {
  AttentionFlags flags;
  flags.prefill_attention_backend = "fa3";
  flags.decode_attention_backend = "flashinfer";
  flags.speculative_algorithm = "EAGLE";
  auto resolved = select("h200", llama(), flags);
  ASSERT_TRUE(resolved.ok()) << resolved.status().message();
  EXPECT_EQ(resolved->target_verify, "fa3");
  EXPECT_TRUE(resolved->prefill_graphs);
  flags.speculative_attention_mode = "decode";
  resolved = select("h200", llama(), flags);
  EXPECT_EQ(resolved->target_verify, "flashinfer");
  EXPECT_FALSE(resolved->prefill_graphs);
  EXPECT_TRUE(resolved->decode_graphs);
}

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
  flags = backend_flag("fa3");
  flags.kv_cache_dtype = "fp4_e2m1";
  rows.push_back({"h200", llama(), flags, "--kv-cache-dtype", "fp4_e2m1"});
  flags = {};
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
  model.linear_layers = true;
  rows.push_back({"b200", model, backend_flag("flashinfer"), "--attention-backend", "hybrid linear"});
  rows.push_back({"h200", llama(), backend_flag("dual_chunk_flash_attn"), "--attention-backend",
                  "dual-chunk"});
  return rows;
}

TEST(Select, RefusesByRuleAndProposesWhatWorks) {
  for (const Refusal& row : refusals()) {
    const auto result = select(row.hardware, row.model, row.flags);
    ASSERT_FALSE(result.ok()) << row.says;
    const Status& status = result.status();
    SCOPED_TRACE(status.message());
    EXPECT_EQ(status.field(), row.field);
    EXPECT_NE(status.message().find(row.says), std::string::npos) << row.says;
    const std::vector<std::string> works = proposals(status);
    EXPECT_FALSE(works.empty());
    for (const std::string& text : works) {
      EXPECT_TRUE(select(row.hardware, row.model, parse(text)).ok()) << text;
    }
  }
}

TEST(Select, NothingWorksIsSaid) {
  ModelFacts model = llama();
  model.head_dim = 4096;
  const auto result = select("t4", model);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("no configuration"), std::string::npos);
}

TEST(Select, ThisProgramOnACpu) {
  const HardwareFacts cpu = named_hardware("cpu").value();
  const auto resolved = select_attention(cpu, llama(), {});
  ASSERT_TRUE(resolved.ok()) << resolved.status().message();
  EXPECT_EQ(resolved->prefill, "intel_amx");
  EXPECT_EQ(resolved->kv_format, KvFormat::bf16);
  for (const KnownBackend& backend : known_backends()) {
    const std::string name(backend.caps->name);
    if (name == "intel_amx" || name == "torch_native") continue;
    const auto refused = select_attention(cpu, llama(), backend_flag(name));
    EXPECT_FALSE(refused.ok()) << name;
    const bool listed = std::any_of(resolved->refused.begin(), resolved->refused.end(),
                                    [&](const RefusedCandidate& r) { return r.name == name; });
    EXPECT_TRUE(listed) << name;
  }
  const auto gpu = select_attention(named_hardware("h200").value(), llama(), backend_flag("fa3"));
  ASSERT_FALSE(gpu.ok());
  EXPECT_NE(gpu.status().message().find("not built"), std::string::npos);
}

TEST(Select, DeterminismNeedsOneBackend) {
  AttentionFlags flags;
  flags.enable_deterministic_inference = true;
  const HardwareFacts cpu = named_hardware("cpu").value();
  EXPECT_TRUE(select_attention(cpu, llama(), flags).ok());
  flags.prefill_attention_backend = "torch_native";
  flags.decode_attention_backend = "intel_amx";
  const auto refused = select_attention(cpu, llama(), flags);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().field(), "--enable-deterministic-inference");
}

TEST(Select, ExplainTextAndJsonAgree) {
  AttentionFlags flags;
  flags.prefill_attention_backend = "torch_native";
  flags.page_size = 16;
  const auto resolved = select_attention(named_hardware("cpu").value(), llama(), flags);
  ASSERT_TRUE(resolved.ok()) << resolved.status().message();
  const nlohmann::json json = to_json(*resolved);
  EXPECT_EQ(json["prefill_attention_backend"], "torch_native");
  EXPECT_EQ(json["decode_attention_backend"], "intel_amx");
  EXPECT_EQ(json["page_size"], 16);
  EXPECT_EQ(json["page_table_expanded"], true);
  EXPECT_EQ(json["reasons"].size(), resolved->reasons.size());
  EXPECT_EQ(json["refused"].size(), resolved->refused.size());
  const std::vector<std::string> lines = explain_lines(*resolved);
  EXPECT_EQ(lines[0], "prefill attention: torch_native");
  EXPECT_EQ(lines[1], "decode attention: intel_amx");
  const auto refused = select_attention(named_hardware("cpu").value(), llama(), backend_flag("fa3"));
  EXPECT_EQ(selection_error_json(refused.status())["error"]["flag"], "--attention-backend");
}

TEST(Select, UnknownHardwareListsTheKnown) {
  const auto hardware = named_hardware("h900");
  ASSERT_FALSE(hardware.ok());
  EXPECT_NE(hardware.status().message().find("h200"), std::string::npos);
  for (const std::string& name : named_hardware_list()) EXPECT_TRUE(named_hardware(name).ok());
}

}  // namespace
}  // namespace warpweave
