#include "linear/dispatch.h"

#include <gtest/gtest.h>

#include "linear/host_backends.h"

namespace warpweave {
namespace {

constexpr LinearAttnKernelCaps kTile = {.name = "tile", .gdn = true, .kda = true, .decode = true, .extend = true,
                                        .verify_chain = true};
constexpr LinearAttnKernelCaps kFast = {.name = "fast", .gdn = true, .decode = true, .bf16_state = true};
constexpr LinearAttnKernelCaps kWhole = {.name = "whole", .gdn = true, .kda = true, .decode = true, .extend = true,
                                         .verify_chain = true, .verify_tree = true, .bf16_state = true};

int g_made = 0;

class NoKernel : public LinearAttnKernelBase {
 public:
  const LinearAttnKernelCaps& caps() const override { return kTile; }
  size_t workspace_bytes(const LinearAttnShape&, const LinearAttnLimits&) const override { return 64; }
  void decode(const LinearAttnCall&) override {}
  void extend(const LinearAttnCall&) override {}
  void target_verify(const LinearAttnCall&) override {}
  void commit(const LinearAttnCall&) override {}
};

std::unique_ptr<LinearAttnKernelBase> make_none() {
  ++g_made;
  return std::make_unique<NoKernel>();
}

const LinearAttnBackend kBackends[] = {{"triton", &kTile, make_none}, {"cutedsl", &kFast, make_none},
                                       {"flashinfer", &kWhole, make_none}, {"cpu", &kTile, make_none}};

TEST(LinearAttnDispatch, ChoosesEachCallApart) {
  struct Row {
    LinearAttnKind kind;
    LinearAttnNames names;
    DType state;
    const char *extend, *decode, *verify;  // kernels; "": none
    const char* field;                     // of the refusal, or null
    const char* says;                      // of the refusal, or a reason
  };
  const auto gdn = LinearAttnKind::gdn, kda = LinearAttnKind::kda;
  for (const Row& row : {
           Row{gdn, {"triton", "triton", ""}, DType::f32, "tile", "tile", "", nullptr, "GDN extend: triton -> kernels tile"},
           Row{gdn, {"triton", "cutedsl", ""}, DType::f32, "tile", "fast", "", nullptr, "GDN decode: cutedsl -> kernels fast"},
           Row{gdn, {"triton", "cutedsl", "triton"}, DType::f32, "tile", "fast", "tile", nullptr, "target verify: triton"},
           Row{kda, {"triton", "flashinfer", "flashinfer", true}, DType::f32, "tile", "whole", "whole", nullptr, "KDA decode"},
           Row{gdn, {"flashinfer", "cutedsl", ""}, DType::bf16, "whole", "fast", "", nullptr, "GDN"},
           Row{gdn, {"cutedsl", "triton", ""}, DType::f32, "", "", "", "--linear-attn-prefill-backend",
               "its kernels (fast) have no extend; these run it: triton, flashinfer, cpu"},
           Row{kda, {"triton", "cutedsl", ""}, DType::f32, "", "", "", "--linear-attn-decode-backend", "run no KDA layers"},
           Row{gdn, {"triton", "triton", "cutedsl"}, DType::f32, "", "", "", "--linear-attn-backend", "verify no drafts"},
           Row{gdn, {"triton", "triton", "triton", true}, DType::f32, "", "", "", "--linear-attn-backend", "verify no trees; these run it: flashinfer"},
           Row{gdn, {"triton", "triton", ""}, DType::bf16, "", "", "", "--linear-attn-prefill-backend", "have no bf16 state; these run it: flashinfer"},
           Row{gdn, {"helion", "triton", ""}, DType::f32, "", "", "", "--linear-attn-prefill-backend", "helion for extend of GDN layers is not built"}}) {
    const auto choice = choose_linear_attn(row.kind, row.names, row.state, kBackends);
    SCOPED_TRACE(row.says);
    if (row.field != nullptr) {
      ASSERT_FALSE(choice.ok());
      EXPECT_EQ(choice.status().field(), row.field);
      EXPECT_NE(choice.status().message().find(row.says), std::string::npos) << choice.status().message();
      continue;
    }
    ASSERT_TRUE(choice.ok()) << choice.status().message();
    EXPECT_EQ(choice->extend->caps->name, row.extend);
    EXPECT_EQ(choice->decode->caps->name, row.decode);
    EXPECT_EQ(choice->verify != nullptr ? choice->verify->caps->name : "", row.verify);
    bool found = false;
    for (const std::string& reason : choice->reasons) found = found || reason.find(row.says) != std::string::npos;
    EXPECT_TRUE(found);
  }
}

TEST(LinearAttnDispatch, NamesOfOneFamilyShareItsKernels) {
  g_made = 0;
  const auto dispatcher = LinearAttnDispatcher::create(LinearAttnKind::gdn, {"triton", "cpu", "triton"}, DType::f32, kBackends);
  ASSERT_TRUE(dispatcher.ok());
  EXPECT_EQ(g_made, 1);
  EXPECT_EQ(dispatcher->reasons().size(), 3u);
  EXPECT_EQ(dispatcher->workspace_bytes({}, {}), 64u);
  g_made = 0;
  EXPECT_FALSE(LinearAttnDispatcher::create(LinearAttnKind::kda, {"cutedsl", "cpu", ""}, DType::f32, kBackends).ok());
  EXPECT_EQ(g_made, 0) << "nothing is made before all is chosen";
}

TEST(LinearAttnDispatch, WhatTheMachineLacksIsSaid) {
  const LinearAttnBackend backends[] = {
      {"cpu", &kWhole, make_none},
      {"triton", &kWhole, make_none, [] { return Status::unsupported("no OpenCL driver; install one"); }}};
  const auto refused = choose_linear_attn(LinearAttnKind::gdn, {"cpu", "triton", ""}, DType::f32, backends);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().field(), "--linear-attn-decode-backend");
  EXPECT_NE(refused.status().message().find("cannot run here: no OpenCL driver; install one"), std::string::npos)
      << refused.status().message();
  EXPECT_TRUE(choose_linear_attn(LinearAttnKind::gdn, {"cpu", "cpu", ""}, DType::f32, backends).ok());
}

TEST(LinearAttnDispatch, CpuNamesHaveEveryCall) {
  ThreadTeam team(1);
  const std::vector<LinearAttnBackend> backends = host_linear_attn_backends(team);
  for (LinearAttnKind kind : {LinearAttnKind::gdn, LinearAttnKind::kda}) {
    for (const LinearAttnBackend& backend : backends) {
      if (backend.probe != nullptr && !backend.probe().ok()) continue;
      const std::string name(backend.name);
      const auto dispatcher = LinearAttnDispatcher::create(kind, {name, name, name, true}, DType::bf16, backends);
      ASSERT_TRUE(dispatcher.ok()) << dispatcher.status().message();
      EXPECT_GT(dispatcher->workspace_bytes({kind, 2, 4, 128, 128}, {.max_requests = 1, .max_tokens = 1, .conv_width = 4}), 0u);
    }
  }
}

}  // namespace
}  // namespace warpweave
