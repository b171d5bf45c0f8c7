// Failures of an OpenCL driver while a model with linear layers is served through it: whichever launch or wait fails, a
// request ends with the reason and the tokens it was right to give, or as if nothing had been; who comes next gets the
// right text, from whatever is cached; and no page or slot is lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "device/opencl/opencl_device.h"
#include "device/opencl/testing/failing_calls.h"
#include "engine/testing/asking.h"
#include "engine/testing/dice_proposer.h"
#include "engine/testing/serving_device.h"

namespace warpweave {
namespace {

constexpr int kAnswer = 6;
constexpr int kMostProposals = 4;

struct Setting {
  const char* family;
  const char* attention;  // its backend
  bool overlap;
  bool proposals;  // that are right by dice
};
void PrintTo(const Setting& s, std::ostream* out) {
  *out << s.family << (*s.attention != 0 ? ", attention " : "") << s.attention << (s.overlap ? ", overlap" : "")
       << (s.proposals ? ", proposals" : "");
}

class OpenClFailures : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (const auto found = opencl::devices(); !found.ok()) GTEST_SKIP() << found.status().message();
    const std::string path = "tests/golden/families/" + std::string(GetParam().family);
    ServerArgs args = ids_only_args(path, "float32");
    args.linear_attn_backend = "triton";
    args.attention_backend = GetParam().attention;
    args.page_size = 4;
    args.disable_overlap_schedule = !GetParam().overlap;
    args.chunked_prefill_size = 24;
    args.max_total_tokens = 1024;
    args.max_running_requests = 4;
    args.max_mamba_cache_size = 24;
    args.mamba_track_interval = 16;
    proposer_.trees = true;
    auto served = create_engine({.args = args,
                                 .model_path = path,
                                 .on_weights_progress = {},
                                 .proposer = GetParam().proposals ? &proposer_ : nullptr,
                                 .max_proposals = GetParam().proposals ? kMostProposals : 0});
    ASSERT_TRUE(served.ok()) << served.status().message();
    served_ = std::move(served).value();
    for (const Ids& prompt : prompts_) {
      expected_.push_back(ask(served_, {prompt}, kAnswer)[0]);
      proposer_.known[prompt] = expected_.back().ids;
    }
  }

  // What may be said where a call fails; how many requests that ended.
  int check_answers(const std::vector<Answer>& answers, int call) const {
    int ended = 0;
    for (size_t i = 0; i < answers.size(); ++i) {
      const Ids &ids = answers[i].ids, &right = expected_[i].ids;
      if (answers[i].error.ok()) {
        EXPECT_EQ(ids, right) << "call " << call << ", prompt " << i;
        continue;
      }
      ++ended;
      EXPECT_EQ(answers[i].error.code(), StatusCode::internal);
      EXPECT_NE(answers[i].error.message().find("CL_OUT_OF_RESOURCES"), std::string::npos)
          << answers[i].error.message();
      EXPECT_TRUE(ids.size() <= right.size() && std::equal(ids.begin(), ids.end(), right.begin())) << "call " << call;
    }
    return ended;
  }

  // A step that was on its way when its request ended still has to come back.
  void expect_nothing_lost() const {
    for (int i = 0; i < 2000 && served_.engine->stats().running_reqs > 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_TRUE(served_.engine->audit().ok()) << served_.engine->audit().message();
  }

  DiceProposer proposer_;
  ServedModel served_;
  const std::vector<Ids> prompts_ = {some_ids(37, 1), joined(some_ids(30, 1), some_ids(9, 5)), some_ids(3, 2)};
  std::vector<Answer> expected_;
};

TEST_P(OpenClFailures, FailTheirRequestsAndNothingElse) {
  opencl::FailingCalls driver;
  int hit = 0;
  bool failed = true;
  for (int call = 1; failed; call += call < 40 ? 1 : 7) {
    ASSERT_LT(call, 5000);
    served_.engine->flush_cache();
    driver.fail_in(call);
    const int ended = check_answers(ask(served_, prompts_, kAnswer), call);
    expect_nothing_lost();
    failed = driver.failed();  // perhaps in a last step whose rows nobody waits for
    driver.fail_in(0);
    hit += ended > 0;
    EXPECT_TRUE(failed || ended == 0) << "call " << call;
    for (size_t i = 0; i < prompts_.size(); ++i) {
      EXPECT_EQ(ask(served_, {prompts_[i]}, kAnswer)[0], expected_[i]) << "after call " << call;
    }
  }
  EXPECT_GT(hit, 25);  // prompts, chunks, decode steps, drafts and their commits
}

INSTANTIATE_TEST_SUITE_P(Settings, OpenClFailures,
                         testing::Values(Setting{"qwen3-next", "", true, false}, Setting{"qwen3-next", "", false, true},
                                         Setting{"kimi-linear-moe", "", false, false},
                                         Setting{"qwen3-next", "triton", true, true}));

}  // namespace
}  // namespace warpweave
