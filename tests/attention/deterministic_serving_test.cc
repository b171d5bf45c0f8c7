// --enable-deterministic-inference, served: a prompt's tokens and logprobs are the same bits alone and
// in a crowd, in chunks of any size, mixed with decodes, with a cold and a warm prefix cache, and when
// asked again; for each backend that claims it. Backends that do not are refused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "device/cuda/cuda_device.h"
#include "device/opencl/platform_name.h"
#include "model/testing/shared_model.h"
#include "serve_tale.h"

namespace warpweave {
namespace {

constexpr int kTokens = 12;

bool same_bits(const tale::Answer& a, const tale::Answer& b) {
  return a.ids == b.ids && a.logprobs.size() == b.logprobs.size() &&
         std::memcmp(a.logprobs.data(), b.logprobs.data(), a.logprobs.size() * sizeof(float)) == 0;
}

// A prompt longer than the chunks below, and others to share batches with it.
std::vector<std::vector<int32_t>> crowd() {
  const tale::Goldens golden = tale::goldens();
  std::vector<int32_t> longest;
  for (const auto& prompt : golden.prompts) longest.insert(longest.end(), prompt.begin(), prompt.end());
  std::vector<std::vector<int32_t>> prompts = {longest};
  for (const auto& prompt : golden.prompts) prompts.push_back(prompt);
  for (int i = 0; i < 3; ++i) prompts.push_back({100 + i, 7, 30 + i});
  return prompts;
}

struct Served {
  std::string device, backend;
};

class DeterministicServing : public testing::TestWithParam<Served> {
 protected:
  ServerArgs args() const {
    ServerArgs args;
    args.dtype = "bfloat16";
    args.device = GetParam().device;
    args.attention_backend = GetParam().backend;
    args.enable_deterministic_inference = true;
    return args;
  }
};

TEST_P(DeterministicServing, SameBitsInEveryCircumstance) {
  const std::vector<std::vector<int32_t>> all = crowd();
  const std::vector<std::vector<int32_t>> one = {all[0]};
  ServedModel served = tale::serve(args());
  const tale::Answer alone = tale::ask(*served.engine, one, kTokens)[0];
  ASSERT_EQ(alone.ids.size(), static_cast<size_t>(kTokens));
  ASSERT_EQ(alone.logprobs.size(), static_cast<size_t>(kTokens) * 6);
  EXPECT_EQ(alone.cached_tokens, 0);

  const tale::Answer warm = tale::ask(*served.engine, one, kTokens)[0];
  EXPECT_GT(warm.cached_tokens, 0);
  EXPECT_TRUE(same_bits(warm, alone)) << "warm prefix";
  EXPECT_TRUE(same_bits(tale::ask(*served.engine, all, kTokens)[0], alone)) << "warm, in a crowd";
  ASSERT_TRUE(served.engine->flush_cache());
  EXPECT_TRUE(same_bits(tale::ask(*served.engine, all, kTokens)[0], alone)) << "cold, in a crowd";

  for (int chunk : {5, 64}) {
    ServerArgs chunked = args();
    chunked.chunked_prefill_size = chunk;
    chunked.enable_mixed_chunk = true;
    ServedModel other = tale::serve(chunked);
    const std::vector<tale::Answer> answers = tale::ask(*other.engine, all, kTokens);
    EXPECT_TRUE(same_bits(answers[0], alone)) << "mixed chunks of " << chunk;
    EXPECT_TRUE(same_bits(tale::ask(*other.engine, one, kTokens)[0], alone)) << "warm, " << chunk;
  }
  ServerArgs uncached = args();
  uncached.disable_radix_cache = true;
  uncached.threads = 1;
  EXPECT_TRUE(same_bits(tale::ask(*tale::serve(uncached).engine, one, kTokens)[0], alone))
      << "no cache, one thread";
}

TEST_P(DeterministicServing, SameBitsWithTreesOfGuesses) {
  if (GetParam().device != "cpu") GTEST_SKIP() << "GPUs have tests of their own";
  constexpr int kAnswer = 60;
  const std::vector<std::vector<int32_t>> all = crowd();
  const std::vector<tale::Answer> plain = tale::ask(*tale::serve(args()).engine, all, kAnswer);
  ServerArgs trees = args();
  trees.speculative_eagle_topk = 4;
  for (const char* algorithm : {"NGRAM", "EAGLE"}) {
    trees.speculative_algorithm = algorithm;
    if (trees.speculative_algorithm == "EAGLE") trees.speculative_draft_model_path = "models/tale-eagle";
    ServedModel served = tale::serve(trees);
    for (int turn = 0; turn < 2; ++turn) {
      const std::vector<tale::Answer> answers = tale::ask(*served.engine, all, kAnswer);
      for (size_t i = 0; i < all.size(); ++i) {
        EXPECT_TRUE(same_bits(answers[i], plain[i])) << algorithm << ", turn " << turn << ", prompt " << i;
      }
    }
    EXPECT_GT(served.engine->stats().speculation->accepted_tokens, 100u) << algorithm;
  }
}

// Each computed a second time, what it had said before as a part of the prompt.
TEST_P(DeterministicServing, SameBitsWhereRequestsAreRetracted) {
  constexpr int kAnswer = 60;
  const std::vector<std::vector<int32_t>> all = crowd();
  ServerArgs wide = args(), tight = args();
  wide.max_total_tokens = 4096;
  ServedModel roomy = tale::serve(wide);
  tight.max_total_tokens = 448;  // pages of 64 are the largest
  tight.schedule_conservativeness = 0.05;
  tight.disable_radix_cache = true;
  ServedModel served = tale::serve(tight);
  const std::vector<tale::Answer> answers = tale::ask(*served.engine, all, kAnswer);
  EXPECT_GT(served.engine->stats().retracted_reqs_total, 0u);
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_TRUE(same_bits(answers[i], tale::ask(*roomy.engine, {all[i]}, kAnswer)[0])) << "prompt " << i;
  }
}

struct HybridSetting {
  const char *device, *linear;
  const char* dtype = "bfloat16";
};
void PrintTo(const HybridSetting& s, std::ostream* out) { *out << s.device << " " << s.linear << " " << s.dtype; }

// A model whose layers keep states: prompts of several chunks of them, in pieces of other sizes, and answers that go on.
// By the name of its linear layers' kernels; on CPUs all of it through OpenCL where that is theirs.
class DeterministicHybrid : public testing::TestWithParam<HybridSetting> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(args_.model_path)) GTEST_SKIP() << args_.model_path << " is not there";
    args_.device = GetParam().device;
    args_.linear_attn_backend = GetParam().linear;
    const bool needs_opencl = !on_gpu() && args_.linear_attn_backend == "triton";
    if (needs_opencl && opencl::platform_name().empty()) GTEST_SKIP() << "no OpenCL device here";
    if (needs_opencl) args_.attention_backend = "triton";
    args_.dtype = GetParam().dtype;
    args_.enable_deterministic_inference = true;
    if (on_gpu()) args_.max_total_tokens = 8192;  // not all of its memory
    args_.max_mamba_cache_size = 64;
    std::vector<int32_t> longest;
    for (int i = 0; i < 3; ++i) {
      for (const auto& prompt : crowd()) longest.insert(longest.end(), prompt.begin(), prompt.end());
    }
    for (const size_t length : {300, 129, 64, 65, 40, 7, 1}) {
      prompts_.emplace_back(longest.begin() + static_cast<std::ptrdiff_t>(length) / 3,
                            longest.begin() + static_cast<std::ptrdiff_t>(length / 3 + length));
    }
    ServedModel served = tale::serve(args_);
    for (const auto& prompt : prompts_) alone_.push_back(tale::ask(*served.engine, {prompt}, kAnswer)[0]);
  }

  // With guesses logprobs on GPUs are the host's, without them the GPU's, so that only tokens are the same (docs/speculation.md).
  void expect_same(const ServerArgs& args, const char* where) {
    const bool tokens_only = on_gpu() && !args.speculative_algorithm.empty();
    const auto same = [&](const tale::Answer& a, const tale::Answer& b) { return tokens_only ? a.ids == b.ids : same_bits(a, b); };
    ServedModel served = tale::serve(args);
    for (const char* cache : {"cold", "warm"}) {
      const std::vector<tale::Answer> answers = tale::ask(*served.engine, prompts_, kAnswer);
      for (size_t i = 0; i < answers.size(); ++i) {
        EXPECT_TRUE(same(answers[i], alone_[i])) << where << ", " << cache << ", prompt " << i;
      }
    }
    for (size_t i = 0; i < prompts_.size(); ++i) {
      const tale::Answer one = tale::ask(*served.engine, {prompts_[i]}, kAnswer)[0];
      EXPECT_TRUE(same(one, alone_[i])) << where << ", warm and alone, prompt " << i;
    }
    // Where chunks of linear layers show in bits, room is kept for the whole answer.
    const uint64_t retracted = served.engine->stats().retracted_reqs_total;
    EXPECT_EQ(retracted > 0, args.max_total_tokens == kTight && on_gpu() && args.dtype == "float32") << where << ": " << retracted;
  }

  static bool on_gpu() { return std::string_view(GetParam().device) == "cuda"; }

  static constexpr int kAnswer = 70, kTight = 500;
  ServerArgs args_ = [] {
    ServerArgs args;
    args.model_path = shared_model("tale-gdn");
    return args;
  }();
  std::vector<std::vector<int32_t>> prompts_;
  std::vector<tale::Answer> alone_;
};

TEST_P(DeterministicHybrid, SameBitsInEveryCircumstance) {
  expect_same(args_, "in a crowd");
  for (const int chunk : {-1, 64, 100}) {
    ServerArgs chunked = args_;
    chunked.chunked_prefill_size = chunk;
    expect_same(chunked, "in chunks");
  }
  ServerArgs tight = args_;
  tight.max_total_tokens = kTight;
  tight.schedule_conservativeness = 0.1;
  expect_same(tight, "from a pool too small");
  ServerArgs uncached = args_;
  uncached.disable_radix_cache = true;
  uncached.disable_overlap_schedule = true;
  expect_same(uncached, "without a cache");
}

// Turn by turn: texts go on from what was answered before, whose states are not those of a prompt.
TEST_P(DeterministicHybrid, AnswersAreReadAgainAsPromptsAre) {
  ServerArgs uncached = args_;
  uncached.disable_radix_cache = true;
  ServedModel served = tale::serve(args_), cold = tale::serve(uncached);
  std::vector<std::vector<int32_t>> texts = prompts_;
  for (int turn = 0; turn < 3; ++turn) {
    const std::vector<tale::Answer> answers = tale::ask(*served.engine, texts, kAnswer);
    const std::vector<tale::Answer> anew = tale::ask(*cold.engine, texts, kAnswer);
    EXPECT_EQ(answers[0].cached_tokens > 0, turn > 0);
    for (size_t i = 0; i < texts.size(); ++i) {
      EXPECT_TRUE(same_bits(answers[i], anew[i])) << "turn " << turn << ", prompt " << i;
      texts[i].insert(texts[i].end(), answers[i].ids.begin(), answers[i].ids.end());
      texts[i].push_back(5 + turn);  // what the user says to it
    }
  }
}

TEST_P(DeterministicHybrid, SameBitsWithGuesses) {
  for (const int topk : {1, 4}) {
    ServerArgs ngram = args_;
    ngram.speculative_algorithm = "NGRAM";
    ngram.speculative_eagle_topk = topk;
    expect_same(ngram, "NGRAM");
    ServerArgs drafts = args_;
    drafts.speculative_algorithm = "STANDALONE";
    drafts.speculative_draft_model_path = "models/tale-draft";
    drafts.speculative_num_steps = 3;
    drafts.speculative_eagle_topk = topk;
    expect_same(drafts, "STANDALONE");
  }
}

std::vector<Served> claiming() {
  std::vector<Served> served;
  for (const std::string& name : tale::cpu_backends()) {
    for (const KnownBackend& backend : known_backends()) {
      if (backend.built && backend.caps->name == name && backend.caps->deterministic &&
          backend.caps->kinds.has(AttentionKind::mha) &&
          backend.caps->archs.has(cpu_hardware_facts().arch)) {
        served.push_back({"cpu", name});
      }
    }
  }
  return served;
}

// Those of the GPU, where there is one.
std::vector<Served> claiming_on_gpu() {
  std::vector<Served> served;
  const auto info = probe_cuda_device();
  const auto arch = info.ok() ? arch_of_compute_capability(info->compute_capability) : std::nullopt;
  if (!arch) return served;
  for (const KnownBackend& backend : known_backends()) {
    const Caps& caps = *backend.caps;
    if (!backend.built || !caps.deterministic || !caps.archs.has(*arch)) continue;
    if (!caps.kinds.has(AttentionKind::mha)) continue;
    if (!caps.phases.has(AttentionPhase::prefill)) continue;  // both phases are one backend's
    if (caps.dual_chunk) continue;  // for models with its config
    served.push_back({"cuda", std::string(caps.name)});
  }
  return served;
}

std::string name_of(const testing::TestParamInfo<Served>& info) { return info.param.backend; }

std::string name_of_hybrid(const testing::TestParamInfo<HybridSetting>& info) {
  return fmt::format("{}_{}", info.param.linear, info.param.dtype);
}

std::vector<HybridSetting> hybrids_on_gpu() {
  if (claiming_on_gpu().empty()) return {};
  return {{"cuda", "triton"}, {"cuda", "cutedsl"}, {"cuda", "triton", "float32"}};
}

INSTANTIATE_TEST_SUITE_P(Cpu, DeterministicHybrid,
                         testing::Values(HybridSetting{"cpu", "cpu"}, HybridSetting{"cpu", "triton"}), name_of_hybrid);
INSTANTIATE_TEST_SUITE_P(Gpu, DeterministicHybrid, testing::ValuesIn(hybrids_on_gpu()), name_of_hybrid);

INSTANTIATE_TEST_SUITE_P(Cpu, DeterministicServing, testing::ValuesIn(claiming()), name_of);
INSTANTIATE_TEST_SUITE_P(Gpu, DeterministicServing, testing::ValuesIn(claiming_on_gpu()), name_of);

TEST(DeterministicServingRefused, WhereTheBackendDoesNotClaimIt) {
  for (const KnownBackend& backend : known_backends_as_built()) {
    const Caps& caps = *backend.caps;
    if (caps.deterministic || !caps.kinds.has(AttentionKind::mha)) continue;
    // One that runs decode alone is refused for its prefill before anything else.
    if (!caps.phases.has(AttentionPhase::prefill)) continue;
    HardwareFacts hardware = {"a machine", DeviceArch::cpu_x86_64, 99990};
    for (int i = 0; i < kNumDeviceArchs; ++i) {
      if (backend.caps->archs.has(static_cast<DeviceArch>(i))) {
        hardware.arch = static_cast<DeviceArch>(i);
      }
    }
    ModelFacts model;
    model.num_q_heads = model.num_kv_heads = 8;
    model.head_dim = 128;
    model.dual_chunk = backend.caps->dual_chunk;
    AttentionFlags flags;
    flags.attention_backend = backend.caps->name;
    flags.enable_deterministic_inference = true;
    const auto all = known_backends_as_built();
    const auto selected = select_attention(hardware, model, flags, all);
    ASSERT_FALSE(selected.ok()) << backend.caps->name;
    // Of hardware that no code is written for, that is the rule which is named.
    if (selected.status().message().find("not written yet") != std::string::npos) continue;
    EXPECT_EQ(selected.status().field(), "--enable-deterministic-inference") << selected.status().message();
  }
}

}  // namespace
}  // namespace warpweave
