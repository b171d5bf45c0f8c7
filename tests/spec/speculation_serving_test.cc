// Speculation is lossless: the texts of all kinds of requests are those without it, for each algorithm, page size, KV
// format and shape of drafts, from a cold and a warm prefix cache, and with a pool too small for all of them.
#include "ask_tale.h"

namespace warpweave::speculation {
namespace {

struct Setting {
  const char* algorithm;
  int page_size;
  const char* kv_format;
  int topk;
  int draft_tokens = 0;      // 0: what is resolved
  bool overlap = true;
};
void PrintTo(const Setting& s, std::ostream* out) {
  *out << s.algorithm << " page " << s.page_size << " kv " << s.kv_format << " topk " << s.topk
       << (s.overlap ? "" : " without overlap");
}

class SpeculationServing : public testing::TestWithParam<Setting> {
 protected:
  static ServerArgs plain_args() {
    ServerArgs args;
    args.dtype = "float32";
    args.page_size = GetParam().page_size;
    args.kv_cache_dtype = GetParam().kv_format;
    args.disable_overlap_schedule = !GetParam().overlap;
    args.chunked_prefill_size = 32;
    args.max_total_tokens = 4096;
    args.enable_kv_canary = true;
    return args;
  }
  static ServerArgs speculating_args() {
    ServerArgs args = plain_args();
    args.speculative_algorithm = GetParam().algorithm;
    args.speculative_eagle_topk = GetParam().topk;
    if (GetParam().draft_tokens > 0) args.speculative_num_draft_tokens = GetParam().draft_tokens;
    return args;
  }
};

TEST_P(SpeculationServing, SaysWhatIsSaidWithout) {
  ServedModel plain = serve(plain_args());
  const auto asked = questions();
  const auto expected = ask(plain, asked);
  ServedModel served = serve(speculating_args());
  for (int turn = 0; turn < 2; ++turn) expect_same(ask(served, asked), expected);
  EXPECT_TRUE(served.engine->audit().ok()) << served.engine->audit().message();
  const EngineStats stats = served.engine->stats();
  ASSERT_TRUE(stats.speculation.has_value());
  EXPECT_GT(stats.speculation->accepted_tokens, 100u) << "else nothing was proven";
  EXPECT_LE(stats.speculation->accepted_tokens, stats.speculation->draft_tokens);
  EXPECT_FALSE(plain.engine->stats().speculation.has_value());
}

TEST_P(SpeculationServing, SaysTheSameFromAPoolThatIsTooSmall) {
  ServedModel plain = serve(plain_args());
  const auto asked = questions(40);
  const auto expected = ask(plain, asked);
  ServerArgs args = speculating_args();
  args.max_total_tokens = 320;
  args.schedule_conservativeness = 0.05;
  ServedModel served = serve(args);
  expect_same(ask(served, asked), expected);
  EXPECT_TRUE(served.engine->audit().ok()) << served.engine->audit().message();
  if (GetParam().page_size == 1) EXPECT_GT(served.engine->stats().retracted_reqs_total, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Ngram, SpeculationServing,
    testing::Values(Setting{"NGRAM", 1, "auto", 10}, Setting{"NGRAM", 16, "auto", 4, 24}, Setting{"NGRAM", 64, "auto", 1},
                    Setting{"NGRAM", 1, "fp8_e4m3", 1}, Setting{"NGRAM", 16, "fp8_e5m2", 10, 0, false},
                    Setting{"NGRAM", 64, "fp4_e2m1", 10}, Setting{"NGRAM", 16, "bf16", 10}));

}  // namespace
}  // namespace warpweave::speculation
