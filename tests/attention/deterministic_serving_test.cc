// --enable-deterministic-inference, served: a prompt's tokens and logprobs are the same bits alone and
// in a crowd, in chunks of any size, mixed with decodes, with a cold and a warm prefix cache, and when
// asked again; for each backend that claims it. Backends that do not are refused.
#include <gtest/gtest.h>

#include "device/cuda/cuda_device.h"
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
