#include "attention/hybrid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "attention/registry.h"
#include "attention/select.h"
#include "base/threads.h"

namespace warpweave {
namespace {

constexpr Caps kFakeCaps = {.name = "fake", .deterministic = true};

// Writes down which function of which child ran.
class Recorder : public AttentionBackend {
 public:
  Recorder(std::string name, std::string* log) : name_(std::move(name)), log_(log) {}
  const Caps& caps() const override { return kFakeCaps; }
  Status init_forward_metadata(const ForwardBatch&) override { return note("plan"); }
  Status forward_extend(const ForwardBatch&, const AttentionCall&) override { return note("extend"); }
  Status forward_decode(const ForwardBatch&, const AttentionCall&) override { return note("decode"); }

 private:
  Status note(const std::string& what) {
    *log_ += name_ + "." + what + " ";
    return {};
  }
  std::string name_;
  std::string* log_;
};

std::string run(ForwardMode mode, bool verify_with_decode) {
  std::string log;
  HybridAttnBackend hybrid(std::make_unique<Recorder>("p", &log), std::make_unique<Recorder>("d", &log),
                           verify_with_decode);
  ForwardBatch batch;
  batch.mode = mode;
  EXPECT_TRUE(hybrid.init_forward_metadata(batch).ok());
  const bool decode = mode == ForwardMode::decode || mode == ForwardMode::idle;
  EXPECT_TRUE((decode ? hybrid.forward_decode(batch, {}) : hybrid.forward_extend(batch, {})).ok());
  return log;
}

TEST(Hybrid, DispatchesByForwardMode) {
  EXPECT_EQ(run(ForwardMode::extend, false), "p.plan p.extend ");
  EXPECT_EQ(run(ForwardMode::mixed, true), "p.plan p.extend ");
  EXPECT_EQ(run(ForwardMode::decode, false), "d.plan d.decode ");
  EXPECT_EQ(run(ForwardMode::idle, false), "d.plan d.decode ");
  EXPECT_EQ(run(ForwardMode::target_verify, false), "p.plan p.extend ");
  EXPECT_EQ(run(ForwardMode::target_verify, true), "d.plan d.extend ");
  EXPECT_EQ(run(ForwardMode::draft_extend, true), "d.plan d.extend ");
}

TEST(Hybrid, DoesNotClaimDeterminism) {
  std::string log;
  const HybridAttnBackend hybrid(std::make_unique<Recorder>("p", &log),
                                 std::make_unique<Recorder>("d", &log));
  EXPECT_FALSE(hybrid.caps().deterministic);
}

TEST(Hybrid, RefusesGraphsThatTheChildDoesNotCapture) {
  std::string log;
  HybridAttnBackend hybrid(std::make_unique<Recorder>("p", &log), std::make_unique<Recorder>("d", &log));
  EXPECT_EQ(hybrid.init_cuda_graph_state({}).code(), StatusCode::unsupported);
}

TEST(Registry, CreatesWhatIsBuiltAndExplainsTheRest) {
  ThreadTeam team(1);
  const BackendContext context = {&team, 0, 1};
  for (const char* name : {"reference", "torch_native", "intel_amx"}) {
    auto backend = create_backend(name, context);
    ASSERT_TRUE(backend.ok()) << name;
    EXPECT_EQ((*backend)->caps().name, name);
  }
  EXPECT_EQ(create_backend("wave", context).status().code(), StatusCode::unsupported);
  const auto unknown = create_backend("intel_axm", context);
  EXPECT_EQ(unknown.status().code(), StatusCode::not_found);
  EXPECT_NE(unknown.status().message().find("intel_amx"), std::string::npos);
}

TEST(Registry, ResolvedPairBecomesAHybrid) {
  ThreadTeam team(1);
  Resolved resolved;
  auto caps_of = [](std::string_view name) {
    for (const KnownBackend& backend : known_backends()) {
      if (backend.caps->name == name && backend.built) return backend.caps;
    }
    return static_cast<const Caps*>(nullptr);
  };
  resolved.prefill_caps = resolved.decode_caps = caps_of("intel_amx");
  EXPECT_EQ((*create_resolved_backend(resolved, {&team, 0, 1}))->caps().name, "intel_amx");
  resolved.prefill_caps = caps_of("torch_native");
  EXPECT_EQ((*create_resolved_backend(resolved, {&team, 0, 1}))->caps().name, "hybrid");
}

TEST(Registry, TheBackendThatTheSelectionNamesVerifies) {
  ThreadTeam team(1);
  for (const char* mode : {"prefill", "decode"}) {
    AttentionFlags flags;
    flags.prefill_attention_backend = "torch_native";
    flags.decode_attention_backend = "intel_amx";
    flags.speculative_algorithm = "NGRAM";
    flags.speculative_attention_mode = mode;
    const auto resolved = select_attention(
        cpu_hardware_facts(), {.architecture = "LlamaForCausalLM", .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 64},
        flags);
    ASSERT_TRUE(resolved.ok()) << resolved.status().message();
    const auto backend = create_resolved_backend(*resolved, {&team, 0, 1});
    const auto* const hybrid = dynamic_cast<const HybridAttnBackend*>(backend->get());
    ASSERT_NE(hybrid, nullptr);
    EXPECT_EQ(hybrid->verifies_with_decode(), std::string(mode) == "decode");
  }
}

constexpr Caps kAddedCaps = {.name = "added_in_test",
                             .kinds = {AttentionKind::mha},
                             .archs = {DeviceArch::cpu_x86_64}};
constexpr Caps kFailsCaps = {.name = "fails_in_test",
                             .kinds = {AttentionKind::mha},
                             .archs = {DeviceArch::cpu_x86_64}};

TEST(Registry, TakesBackendsFromOutside) {
  static std::string log;
  ASSERT_TRUE(add_backend({&kAddedCaps, [](const BackendContext&) {
                             return std::make_unique<Recorder>("added", &log);
                           }}).ok());
  ASSERT_TRUE(add_backend({&kFailsCaps, [](const BackendContext&) {
                             return std::unique_ptr<AttentionBackend>();
                           }}).ok());
  const Status twice = add_backend({&kAddedCaps, nullptr});
  EXPECT_EQ(twice.code(), StatusCode::invalid_argument);
  EXPECT_NE(twice.message().find("added_in_test"), std::string::npos);
  ThreadTeam team(1);
  EXPECT_TRUE(create_backend("added_in_test", {&team, 0, 1}).ok());
  EXPECT_EQ(create_backend("fails_in_test", {&team, 0, 1}).status().code(), StatusCode::unavailable);
  const auto known = known_backends();
  EXPECT_TRUE(std::any_of(known.begin(), known.end(),
                          [](const KnownBackend& b) { return b.caps == &kAddedCaps && b.built; }));
  EXPECT_EQ(nearest_backend_name("added_in_tset"), "added_in_test");
}

TEST(Registry, NamesBuiltForSomeDevicesStayDeclaredForTheOthers) {
  // torch_native is built for CPUs here, whatever else; the field runs it on GPUs too.
  bool cpu = false, gpu = false;
  for (const KnownBackend& backend : known_backends()) {
    if (backend.caps->name != "torch_native") continue;
    if (backend.caps->archs.has(DeviceArch::cpu_x86_64)) cpu = backend.built;
    if (backend.caps->archs.has(DeviceArch::sm_80)) gpu = true;
    EXPECT_EQ(backend.caps->archs.has(DeviceArch::sm_80) &&
                  backend.caps->archs.has(DeviceArch::cpu_x86_64) && !backend.built, false);
  }
  EXPECT_TRUE(cpu);
  EXPECT_TRUE(gpu);
}

}  // namespace
}  // namespace warpweave
