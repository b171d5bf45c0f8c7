// Serving models with sliding-window layers: pages that leave a window go back to the pool, prefixes are found as
// before, and the text is the one of a single pool.
#include <gtest/gtest.h>

#include "engine/testing/asking.h"
#include "engine/testing/serving_device.h"

namespace warpweave {
namespace {

ServedModel serve(ServerArgs args, const std::string& family) {
  const std::string path = "tests/golden/families/" + family;
  serve_on_test_device(args);
  args.model_path = path;
  args.skip_tokenizer_init = true;
  auto served = create_engine({.args = args, .model_path = path, .on_weights_progress = {}});
  EXPECT_TRUE(served.ok()) << served.status().message();
  return std::move(served).value();
}

struct Setting {
  const char* family;
  int page_size;
  bool overlap;
};
void PrintTo(const Setting& s, std::ostream* out) {
  *out << s.family << " page " << s.page_size << (s.overlap ? "" : " without overlap");
}

class WindowServing : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (const std::string why = no_test_device(); !why.empty()) GTEST_SKIP() << why;
  }

  ServerArgs args() const {
    ServerArgs args;
    args.page_size = GetParam().page_size;
    args.disable_overlap_schedule = !GetParam().overlap;
    args.chunked_prefill_size = 16;
    args.max_total_tokens = 1024;
    return args;
  }
};

TEST_P(WindowServing, SaysTheSameAsWithOnePool) {
  std::vector<Ids> prompts;
  for (int i = 0; i < 6; ++i) prompts.push_back(some_ids(11 + 13 * i, i));
  ServerArgs one_pool = args();
  one_pool.disable_hybrid_swa_memory = true;
  auto expected_from = serve(one_pool, GetParam().family);
  auto served = serve(args(), GetParam().family);
  EXPECT_GT(served.engine->info().max_tokens_at_context, expected_from.engine->info().max_tokens_at_context);
  const auto expected = ask(expected_from, prompts, 24);
  EXPECT_EQ(ask(served, prompts, 24), expected);
  // The next turns find what the ones before left.
  std::vector<Ids> turns;
  for (size_t i = 0; i < prompts.size(); ++i) {
    turns.push_back(joined(joined(prompts[i], expected[i].ids), some_ids(3, 50 + static_cast<int>(i))));
    if (turns.back().size() > 100) turns.back().resize(100);
  }
  const auto expected_turns = ask(expected_from, turns, 8);
  const auto now = ask(served, turns, 8);
  EXPECT_EQ(now, expected_turns);
  int cached = 0, expected_cached = 0;
  for (size_t i = 0; i < turns.size(); ++i) {
    cached += now[i].cached_tokens;
    expected_cached += expected_turns[i].cached_tokens;
  }
  EXPECT_GE(cached, expected_cached * 95 / 100);
  EXPECT_GT(expected_cached, 0);
}

TEST_P(WindowServing, SharedBeginningsAreFoundInTheMiddleOfAPrompt) {
  auto served = serve(args(), GetParam().family);
  const Ids shared = some_ids(64, 5);
  std::vector<Ids> prompts;
  for (int i = 0; i < 5; ++i) prompts.push_back(joined(shared, some_ids(20, 60 + i)));
  ask(served, {prompts[0]}, 8);
  for (int i = 1; i < 5; ++i) EXPECT_GE(ask(served, {prompts[i]}, 8)[0].cached_tokens, 64) << i;
}

TEST_P(WindowServing, SaysTheSameWhenThePoolIsTooSmallForAll) {
  std::vector<Ids> prompts;
  for (int i = 0; i < 8; ++i) prompts.push_back(some_ids(30 + 5 * i, i));
  auto roomy = serve(args(), GetParam().family);
  ServerArgs tight = args();
  tight.max_total_tokens = 128;
  tight.schedule_conservativeness = 0.05;
  auto served = serve(tight, GetParam().family);
  const auto answers = ask(served, prompts, 40);
  EXPECT_EQ(answers, ask(roomy, prompts, 40));
  EXPECT_TRUE(served.engine->audit().ok());
}

// A pool whose parts are both too small for all requests at once, or one of them by far.
TEST_P(WindowServing, SaysTheSameWithASplitPool) {
  std::vector<Ids> prompts;
  for (int i = 0; i < 8; ++i) prompts.push_back(some_ids(30 + 5 * i, i));
  auto roomy = serve(args(), GetParam().family);
  const auto expected = ask(roomy, prompts, 40);
  const bool both_kinds = GetParam().family != std::string("mistral");
  struct Split { double ratio; int full_tokens; };
  for (const Split& split : {Split{1, 128}, Split{0.5, 256}, Split{0.3, 512}}) {
    ServerArgs tight = args();
    tight.swa_full_tokens_ratio = split.ratio;
    tight.max_total_tokens = split.full_tokens;
    tight.schedule_conservativeness = 0.05;
    auto served = serve(tight, GetParam().family);
    const EngineInfo& info = served.engine->info();
    const int page = GetParam().page_size, pages = split.full_tokens / page;
    EXPECT_EQ(info.max_total_tokens, pages * page);
    EXPECT_EQ(info.max_window_tokens, both_kinds ? static_cast<int>(split.ratio * pages) * page : 0);
    EXPECT_EQ(ask(served, prompts, 40), expected) << split.ratio;
    EXPECT_EQ(ask(served, prompts, 40), expected) << split.ratio;  // with what is cached
    EXPECT_TRUE(served.engine->audit().ok());
  }
}

TEST_P(WindowServing, ARatioSplitsNothingWithOnePool) {
  ServerArgs one_pool = args();
  one_pool.disable_hybrid_swa_memory = true;
  one_pool.swa_full_tokens_ratio = 0.5;
  auto served = serve(one_pool, GetParam().family);
  EXPECT_EQ(served.engine->info().max_window_tokens, 0);
  EXPECT_EQ(served.engine->info().max_total_tokens, 1024 / GetParam().page_size * GetParam().page_size);
}

INSTANTIATE_TEST_SUITE_P(Models, WindowServing,
                         testing::Values(Setting{"gemma2", 1, true}, Setting{"gemma3", 4, true},
                                         Setting{"gpt-oss", 3, false}, Setting{"mistral", 4, true},
                                         Setting{"gemma3", 16, false}, Setting{"mistral", 1, false}));

}  // namespace
}  // namespace warpweave
