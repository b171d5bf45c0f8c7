// Selection on described hardware: every rule of the flags, without owning the devices.
#include "attention/select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "attention/select_json.h"
#include "attention/select_testing.h"

namespace warpweave {
namespace {

using namespace testing_selection;

TEST(Select, DefaultPerDevice) {
  struct Row { const char* hardware; ModelFacts model; const char* backend; };
  const Row rows[] = {
      {"h100", llama(), "fa3"},          {"h200", llama(), "fa3"},
      {"b200", llama(), "trtllm_mha"},   {"rtx5090", llama(), "flashinfer"},
      {"a100", llama(), "flashinfer"},   {"l40s", llama(), "flashinfer"},
      {"t4", llama(), "triton"},         {"mi300x", llama(), "aiter"},
      {"mi250x", llama(), "wave"},       {"intel-gpu", llama(), "intel_xpu"},
      {"ascend", llama(), "ascend"},     {"xeon", llama(), "intel_amx"},
      {"cpu", llama(), "intel_amx"},     {"h200", deepseek(), "fa3"},
      {"b200", deepseek(), "trtllm_mla"}, {"a100", deepseek(), "triton"},
      {"mi300x", deepseek(), "aiter"},   {"ascend", deepseek(), "ascend"},
      {"xeon-avx512", llama(), "intel_amx"}, {"arm", llama(), "torch_native"},
      {"h200", dual_chunk_qwen(), "dual_chunk_flash_attn"}, {"h200", sparse_deepseek(), "nsa"},
      // Models whose features rule the first choice out.
      {"b200", gpt_oss(), "trtllm_mha"}, {"h100", gpt_oss(), "fa3"}, {"a100", gpt_oss(), "triton"},
      {"b200", gemma2(), "flashinfer"},  {"h100", gemma2(), "fa3"},  {"mi250x", gemma2(), "triton"},
      {"b200", qwen_next(), "trtllm_mha"}, {"rtx5090", qwen_next(), "triton"},
      {"mi300x", qwen_next(), "triton"}, {"ascend", qwen_next(), "ascend"},
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
  const auto all = known_backends_as_built();
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

TEST(Select, SpeculationIsResolvedFirst) {
  AttentionFlags flags;
  flags.speculative_algorithm = "EAGLE";
  // Llama's default is topk 4: the same as typed out, and a tree, which trtllm_mha does not run.
  auto resolved = select("b200", llama(), flags);
  ASSERT_TRUE(resolved.ok()) << resolved.status().message();
  EXPECT_EQ(resolved->prefill, "flashinfer");
  EXPECT_EQ(resolved->speculation.num_steps, 5);
  EXPECT_EQ(resolved->speculation.topk, 4);
  EXPECT_EQ(resolved->speculation.num_draft_tokens, 8);
  ModelFacts qwen = llama();
  qwen.architecture = "Qwen3ForCausalLM";
  resolved = select("b200", qwen, flags);
  EXPECT_EQ(resolved->prefill, "trtllm_mha");
  EXPECT_EQ(resolved->speculation.topk, 1);
  EXPECT_EQ(resolved->speculation.num_draft_tokens, 4);
  flags.speculative_num_steps = 6;
  EXPECT_EQ(select("b200", qwen, flags)->speculation.num_draft_tokens, 7);
  flags.speculative_algorithm = "NGRAM";
  expect_refused("h200", qwen, flags, "--speculative-num-steps", "no draft steps");
  flags.speculative_num_steps.reset();
  resolved = select("h200", qwen, flags);
  EXPECT_EQ(resolved->speculation.topk, 10);
  EXPECT_EQ(resolved->speculation.num_draft_tokens, 12);
}

// Every node is a request of its own there.
TEST(Select, DeterministicSpeculationOnGpusIsOfTreesToo) {
  AttentionFlags flags;
  flags.enable_deterministic_inference = true;
  for (const char* algorithm : {"EAGLE", "NGRAM"}) {
    for (const char* backend : {"", "fa3", "flashinfer"}) {
      flags.attention_backend = backend;
      flags.speculative_algorithm = algorithm;
      flags.speculative_eagle_topk.reset();
      const auto usual = select("h200", llama(), flags);
      ASSERT_TRUE(usual.ok()) << usual.status().message();
      EXPECT_EQ(usual->speculation.topk, std::string_view(algorithm) == "NGRAM" ? 10 : 4);
      flags.speculative_eagle_topk = 3;
      EXPECT_EQ(select("h200", llama(), flags)->speculation.topk, 3) << algorithm;
    }
  }
}

// Kernels of latent attention that make tiles of drafts; the plain ones do not.
TEST(Select, DeterministicSpeculationOnLatentRowsIsOfPlainKernels) {
  const std::vector<KnownBackend> written = known_backends_as_built();
  const HardwareFacts h200 = named_hardware("h200").value();
  for (const char* name : {"fa3", "fa4", "flashinfer", "flashmla", "cutlass_mla", "trtllm_mla", "torch_native", ""}) {
    AttentionFlags flags = backend_flag(name);
    flags.enable_deterministic_inference = true;
    const bool plain = *name == 0 || std::string_view(name) == "torch_native";
    EXPECT_TRUE(select_attention(h200, deepseek(), flags, written).ok()) << name;
    flags.speculative_algorithm = "EAGLE";
    const auto resolved = select_attention(h200, deepseek(), flags, written);
    ASSERT_EQ(resolved.ok(), plain) << name;
    if (plain) {
      EXPECT_EQ(resolved->prefill, "torch_native");
      continue;
    }
    EXPECT_EQ(resolved.status().field(), "--enable-deterministic-inference");
    EXPECT_NE(resolved.status().message().find("speculation"), std::string::npos) << resolved.status().message();
  }
}

TEST(Select, SpeculationIsShortOnCpus) {
  AttentionFlags flags;
  flags.speculative_algorithm = "EAGLE";
  const auto resolved = select_attention(named_hardware("xeon").value(), llama(), flags);
  EXPECT_EQ(resolved->speculation.num_steps, 4);
  EXPECT_EQ(resolved->speculation.topk, 1);
  EXPECT_EQ(resolved->speculation.num_draft_tokens, 5);
  flags.speculative_eagle_topk = 4;
  EXPECT_EQ(select_attention(named_hardware("xeon").value(), llama(), flags)->speculation.num_steps, 2);
}

TEST(Select, SpeculationThatContradictsItselfIsRefused) {
  AttentionFlags flags;
  flags.speculative_algorithm = "EAGLE";
  flags.speculative_eagle_topk = 1;
  flags.speculative_num_steps = 3;
  flags.speculative_num_draft_tokens = 9;
  expect_refused("h200", llama(), flags, "--speculative-num-draft-tokens", "verifies 4 tokens");
  flags.speculative_eagle_topk = 2;
  flags.speculative_num_draft_tokens = 12;
  expect_refused("h200", llama(), flags, "--speculative-num-draft-tokens", "draft 11 at most");
  flags.speculative_num_steps = 0;
  expect_refused("h200", llama(), flags, "--speculative-num-steps", "at least 1");
}

TEST(Select, GraphsByPhase) {
  AttentionFlags flags = backend_flag("fa3");
  auto resolved = select("h200", llama(), flags);
  EXPECT_TRUE(resolved->decode_graphs);
  EXPECT_FALSE(resolved->prefill_graphs) << "prefill is captured only when it verifies";
  flags.disable_cuda_graph = true;
  EXPECT_FALSE(select("h200", llama(), flags)->decode_graphs);
  EXPECT_FALSE(select("h200", llama(), backend_flag("torch_native"))->decode_graphs);
}

TEST(Select, Fp4Pairs) {
  AttentionFlags flags;
  flags.kv_cache_dtype = "fp4_e2m1";
  flags.prefill_attention_backend = "fa4";
  flags.decode_attention_backend = "triton";
  const auto resolved = select("b200", llama(), flags);
  ASSERT_TRUE(resolved.ok()) << resolved.status().message();
  EXPECT_EQ(resolved->page_size, 128);
  flags.decode_attention_backend = "flashinfer";
  expect_refused("b200", llama(), flags, "--kv-cache-dtype", "does not read fp4_e2m1");
}

// Tokens of latent attention in formats of their own; fp4_e2m1 means one of them there.
TEST(Select, PackedLatentTokens) {
  const std::vector<KnownBackend> written = known_backends_as_built();
  const auto choose = [&](const char* hardware, const ModelFacts& model, const char* format) {
    AttentionFlags flags;
    flags.kv_cache_dtype = format;
    return select_attention(named_hardware(hardware).value(), model, flags, written);
  };
  for (const char* hardware : {"cpu", "h200"}) {
    const auto resolved = choose(hardware, deepseek(), "fp8_ds_mla");
    ASSERT_TRUE(resolved.ok()) << resolved.status().message();
    EXPECT_EQ(resolved->kv_format, KvFormat::fp8_ds_mla);
    const auto refused = choose(hardware, llama(), "fp8_ds_mla");
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().field(), "--kv-cache-dtype");
  }
  for (const char* hardware : {"cpu", "h200"}) {
    const auto resolved = choose(hardware, deepseek(), "fp4_e2m1");
    ASSERT_TRUE(resolved.ok()) << hardware << ": " << resolved.status().message();
    EXPECT_EQ(resolved->kv_format, KvFormat::fp4_mla);
  }
  ModelFacts half = deepseek();
  half.dtype = ModelDType::f16;
  EXPECT_FALSE(choose("h200", half, "fp8_ds_mla").ok());
  EXPECT_FALSE(choose("h200", half, "fp4_mla").ok());
  EXPECT_TRUE(choose("cpu", half, "fp8_ds_mla").ok());
  ModelFacts small = deepseek();
  small.head_dim = 40;
  small.v_head_dim = 32;
  EXPECT_FALSE(choose("cpu", small, "fp8_ds_mla").ok()) << "other dims";
}

// Kernels that copy 16-bit K and V as they lie would read f16 as bf16, or the other way round.
TEST(Select, SixteenBitKvOfAnotherType) {
  const std::vector<KnownBackend> written = known_backends_as_built();
  for (const ModelFacts& model : {llama(), deepseek()}) {
    AttentionFlags flags;
    flags.kv_cache_dtype = "f16";
    flags.attention_backend = "fa3";
    const auto refused = select_attention(named_hardware("h200").value(), model, flags, written);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().field(), "--kv-cache-dtype");
    EXPECT_NE(refused.status().message().find("own type"), std::string::npos) << refused.status().message();
    ModelFacts half = model;
    half.dtype = ModelDType::f16;
    EXPECT_TRUE(select_attention(named_hardware("h200").value(), half, flags, written).ok());
    flags.attention_backend.clear();
    const auto chosen = select_attention(named_hardware("h200").value(), model, flags, written);
    ASSERT_TRUE(chosen.ok()) << chosen.status().message();
    EXPECT_FALSE(chosen->prefill_caps->own_16_bit_kv);
    EXPECT_FALSE(chosen->decode_caps->own_16_bit_kv);
  }
}

// Where our kernels prove more than the field's documentation, it is allowed.
TEST(Select, OwnKernelsReadFp4InBothPhases) {
  const std::vector<KnownBackend> written = known_backends_as_built();
  for (const char* decode : {"fa4", "trtllm_mha", "flashinfer"}) {
    AttentionFlags flags;
    flags.kv_cache_dtype = "fp4_e2m1";
    flags.prefill_attention_backend = "fa4";
    flags.decode_attention_backend = decode;
    const auto resolved = select_attention(named_hardware("h200").value(), llama(), flags, written);
    EXPECT_TRUE(resolved.ok()) << resolved.status().message();
  }
}

// Beyond the field's names for MLA.
TEST(Select, LatentAttentionRunsOnCpus) {
  const std::vector<KnownBackend> written = known_backends_as_built();
  for (const char* name : {"", "torch_native", "triton"}) {
    const auto resolved = select_attention(named_hardware("cpu").value(), deepseek(), backend_flag(name), written);
    ASSERT_TRUE(resolved.ok()) << resolved.status().message();
    EXPECT_EQ(resolved->prefill, *name == 0 ? "intel_amx" : name);
    EXPECT_EQ(resolved->decode, resolved->prefill);
    EXPECT_TRUE(resolved->decode_caps->kinds.has(AttentionKind::mla));
  }
}

TEST(Select, WhatPrefillsWholePromptsOnlyNeedsThem) {
  Caps caps = *written_backends()[0];
  for (const Caps* candidate : written_backends()) {
    if (candidate->name == "torch_native" && candidate->kinds.has(AttentionKind::mha) &&
        candidate->archs.has(DeviceArch::cpu_x86_64)) {
      caps = *candidate;
    }
  }
  caps.chunked_prefix = false;
  const KnownBackend known[] = {{&caps, true, nullptr, true}};
  AttentionFlags flags = backend_flag("torch_native");
  const HardwareFacts cpu = named_hardware("cpu").value();
  const auto refused = select_attention(cpu, llama(), flags, known);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().field(), "--disable-radix-cache");
  flags.cached_prefixes = false;
  EXPECT_TRUE(select_attention(cpu, llama(), flags, known).ok());
}

// Slow, but it is there: today's serve on an A100 or L40S.
TEST(Select, GpusWithoutFasterKernelsRunTorchNative) {
  const std::vector<KnownBackend> written = known_backends_as_built();
  for (const char* hardware : {"a100", "a40", "l40s", "rtx4090"}) {
    const auto resolved = select_attention(named_hardware(hardware).value(), llama(), {}, written);
    ASSERT_TRUE(resolved.ok()) << hardware << ": " << resolved.status().message();
    EXPECT_EQ(resolved->prefill, "torch_native");
  }
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

// What is written here: any page size, and the one that the name is known with where none is given.
TEST(Select, NamesOfLatentAttentionBringTheirPages) {
  const std::vector<KnownBackend> written = known_backends_as_built();
  const HardwareFacts h200 = named_hardware("h200").value();
  const auto choose = [&](const AttentionFlags& flags) { return select_attention(h200, deepseek(), flags, written); };
  EXPECT_EQ(choose({})->prefill, "fa3");
  const std::pair<const char*, int> pages[] = {{"fa3", 64}, {"flashmla", 64}, {"cutlass_mla", 128}, {"trtllm_mla", 64},
                                               {"flashinfer", 1}, {"fa4", 1}};
  for (const auto& [name, page_size] : pages) {
    AttentionFlags flags = backend_flag(name);
    auto resolved = choose(flags);
    ASSERT_TRUE(resolved.ok()) << resolved.status().message();
    EXPECT_EQ(resolved->page_size, page_size) << name;
    EXPECT_EQ(resolved->decode, name);
    flags.page_size = 48;
    flags.kv_cache_dtype = "fp8_e4m3";
    resolved = choose(flags);
    ASSERT_TRUE(resolved.ok()) << resolved.status().message();
    EXPECT_EQ(resolved->page_size, 48) << name;
    flags.kv_cache_dtype = "fp8_e5m2";
    EXPECT_EQ(choose(flags).status().field(), "--kv-cache-dtype") << name;
  }
  ModelFacts small = deepseek();  // of a rank that only plain kernels take
  small.head_dim = 40;
  small.v_head_dim = 32;
  EXPECT_EQ(select_attention(h200, small, {}, written)->prefill, "triton");
  AttentionFlags pair;
  pair.prefill_attention_backend = "fa4";
  pair.decode_attention_backend = "trtllm_mla";
  const auto resolved = choose(pair);
  ASSERT_TRUE(resolved.ok()) << resolved.status().message();
  EXPECT_EQ(resolved->page_size, 64) << "that of decode";
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

// Rounding queries and probabilities is said, with the ways round it.
TEST(Select, Fp8ArithmeticIsExplained) {
  Caps caps;
  caps.name = "quick";
  caps.kinds = {AttentionKind::mha};
  caps.phases = {AttentionPhase::prefill, AttentionPhase::decode};
  caps.archs = {DeviceArch::sm_90};
  caps.dtypes = {ModelDType::bf16};
  caps.kv_formats = {KvFormat::bf16, KvFormat::fp8_e4m3};
  caps.head_dims = caps.page_sizes = IntChoice::any_up_to();
  caps.chunked_prefix = caps.deterministic = true;
  caps.fp8_mma = {
      .kv_formats = {KvFormat::fp8_e4m3}, .head_dims = IntChoice::of({128}), .page_multiple = 8, .min_q_len = 64};
  const KnownBackend known[] = {{&caps, true}};
  const auto explained = [&](const AttentionFlags& flags) {
    const auto resolved = select_attention(named_hardware("h200").value(), llama(), flags, known);
    EXPECT_TRUE(resolved.ok()) << resolved.status().message();
    std::string text;
    for (const std::string& line : explain_lines(*resolved)) text += line + "\n";
    return text;
  };
  AttentionFlags flags = backend_flag("quick");
  EXPECT_EQ(explained(flags).find("arithmetic"), std::string::npos);
  flags.kv_cache_dtype = "fp8_e4m3";
  flags.page_size = 16;
  EXPECT_NE(explained(flags).find("rounded to e4m3) where a request of the batch has 64 new tokens"),
            std::string::npos);
  flags.page_size = 1;
  EXPECT_NE(explained(flags).find("16-bit arithmetic, fp8 arithmetic needs pages of a multiple of 8"),
            std::string::npos);
  flags.page_size = 16;
  flags.enable_deterministic_inference = true;
  EXPECT_NE(explained(flags).find("16-bit arithmetic, --enable-deterministic-inference"), std::string::npos);
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
    if (backend.built && backend.caps->archs.has(cpu.arch)) continue;
    if (std::any_of(known_backends().begin(), known_backends().end(), [&](const KnownBackend& other) {
          return other.caps->name == name && other.built && other.caps->archs.has(cpu.arch);
        })) {
      continue;  // the same name, built for CPUs
    }
    const auto refused = select_attention(cpu, llama(), backend_flag(name));
    EXPECT_FALSE(refused.ok()) << name;
    const bool listed = std::any_of(resolved->refused.begin(), resolved->refused.end(),
                                    [&](const RefusedCandidate& r) { return r.name == name; });
    EXPECT_TRUE(listed) << name;
  }
  const auto npu = select_attention(named_hardware("ascend").value(), llama(), backend_flag("ascend"));
  ASSERT_FALSE(npu.ok());
  EXPECT_NE(npu.status().message().find("not written yet for Ascend NPU"), std::string::npos);
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

// A built backend whose driver is missing is refused in the driver's words, and never proposed.
TEST(Select, ABackendThatCannotRunHereIsRefusedWithItsWords) {
  std::vector<KnownBackend> backends(known_backends().begin(), known_backends().end());
  for (KnownBackend& backend : backends) {
    if (backend.caps->name != "torch_native") continue;
    backend.probe = [](Probe probe) {
      return Status::unsupported(probe == Probe::quick ? "no driver file" : "no driver");
    };
  }
  const auto refused = select_attention(named_hardware("cpu").value(), llama(),
                                        backend_flag("torch_native"), backends);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("no driver"), std::string::npos);
  const auto resolved = select_attention(named_hardware("cpu").value(), llama(), {}, backends);
  ASSERT_TRUE(resolved.ok()) << resolved.status().message();
  bool told = false;
  for (const RefusedCandidate& candidate : resolved->refused) {
    told |= candidate.name == "torch_native" &&
            candidate.rule.find("no driver file") != std::string::npos;
  }
  EXPECT_TRUE(told);
}

TEST(Select, UnknownHardwareListsTheKnown) {
  const auto hardware = named_hardware("h900");
  ASSERT_FALSE(hardware.ok());
  EXPECT_NE(hardware.status().message().find("h200"), std::string::npos);
  for (const std::string& name : named_hardware_list()) EXPECT_TRUE(named_hardware(name).ok());
}

}  // namespace
}  // namespace warpweave
