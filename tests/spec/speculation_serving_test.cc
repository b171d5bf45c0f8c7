// Speculation is lossless: the texts of all kinds of requests are those without it, for each algorithm, page size, KV
// format and shape of drafts, from a cold and a warm prefix cache, and with a pool too small for all of them.
#include "ask_tale.h"

namespace warpweave::speculation {
namespace {

// Skipped where the device of these tests is not.
template <typename S>
class OnTestDevice : public testing::TestWithParam<S> {
 protected:
  void SetUp() override {
    if (const std::string why = no_test_device(); !why.empty()) GTEST_SKIP() << why;
  }
};

struct Setting {
  const char* algorithm;
  int page_size;
  const char* kv_format;
  int topk;
  int draft_tokens = 0;      // 0: what is resolved
  bool overlap = true;
  int steps = 0;             // 0: what is resolved
  const char* backend = "";
};
void PrintTo(const Setting& s, std::ostream* out) {
  *out << s.algorithm << " page " << s.page_size << " kv " << s.kv_format << " topk " << s.topk
       << " steps " << s.steps << (s.overlap ? "" : " without overlap");
}

class SpeculationServing : public OnTestDevice<Setting> {
 protected:
  static ServerArgs plain_args() {
    ServerArgs args = small_args(GetParam().page_size);
    args.kv_cache_dtype = GetParam().kv_format;
    args.disable_overlap_schedule = !GetParam().overlap;
    args.chunked_prefill_size = 32;
    args.attention_backend = GetParam().backend;
    return args;
  }
  static Rounding rounding() { return {.of_kv = std::string(GetParam().kv_format) != "auto"}; }
  static ServerArgs speculating_args() {
    ServerArgs args = plain_args();
    set_algorithm(GetParam().algorithm, GetParam().topk, args);
    if (GetParam().steps > 0) args.speculative_num_steps = GetParam().steps;
    if (GetParam().draft_tokens > 0) args.speculative_num_draft_tokens = GetParam().draft_tokens;
    return args;
  }
};

TEST_P(SpeculationServing, SaysWhatIsSaidWithout) {
  ServedModel plain = serve(plain_args());
  const auto asked = questions(plain);
  const auto expected = ask(plain, asked);
  ServedModel served = serve(speculating_args());
  for (int turn = 0; turn < 2; ++turn) expect_same(ask(served, asked), expected, asked, rounding());
  EXPECT_TRUE(served.engine->audit().ok()) << served.engine->audit().message();
  const EngineStats stats = served.engine->stats();
  ASSERT_TRUE(stats.speculation.has_value());
  EXPECT_GT(stats.speculation->accepted_tokens, 100u) << "else nothing was proven";
  EXPECT_LE(stats.speculation->accepted_tokens, stats.speculation->draft_tokens);
  EXPECT_FALSE(plain.engine->stats().speculation.has_value());
}

TEST_P(SpeculationServing, SaysTheSameFromAPoolThatIsTooSmall) {
  ServedModel plain = serve(plain_args());
  const auto asked = questions(plain, 40);
  const auto expected = ask(plain, asked);
  ServerArgs args = speculating_args();
  args.max_total_tokens = 320;
  args.schedule_conservativeness = 0.05;
  ServedModel served = serve(args);
  expect_same(ask(served, asked), expected, asked, rounding());
  EXPECT_TRUE(served.engine->audit().ok()) << served.engine->audit().message();
  if (GetParam().page_size == 1) {
    EXPECT_GT(served.engine->stats().retracted_reqs_total, 0u);
  }
}

#ifdef WW_TEST_ON_GPU
INSTANTIATE_TEST_SUITE_P(Ngram, SpeculationServing,
                         testing::Values(Setting{"NGRAM", 1, "auto", 10}, Setting{"NGRAM", 16, "auto", 4, 24},
                                         Setting{"NGRAM", 64, "auto", 1}, Setting{"NGRAM", 16, "auto", 10, 0, false}));

INSTANTIATE_TEST_SUITE_P(Standalone, SpeculationServing,
                         testing::Values(Setting{"STANDALONE", 1, "auto", 1, 0, true, 4},
                                         Setting{"STANDALONE", 16, "auto", 4, 8, true, 5},
                                         Setting{"STANDALONE", 64, "auto", 1, 0, false, 7},
                                         Setting{"STANDALONE", 64, "auto", 3, 16, true, 4}));

INSTANTIATE_TEST_SUITE_P(Eagle, SpeculationServing,
                         testing::Values(Setting{"EAGLE", 1, "auto", 1, 0, true, 4},
                                         Setting{"EAGLE", 16, "auto", 4, 8, true, 5},
                                         Setting{"EAGLE", 64, "auto", 1, 0, false, 7},
                                         Setting{"EAGLE", 64, "auto", 3, 16, true, 4},
                                         Setting{"EAGLE", 1, "auto", 8, 40, true, 3},
                                         Setting{"EAGLE", 16, "auto", 4, 8, true, 3, "torch_native"},
                                         Setting{"EAGLE", 16, "auto", 1, 0, true, 1}));
#else
INSTANTIATE_TEST_SUITE_P(Ngram, SpeculationServing,
                         testing::Values(Setting{"NGRAM", 1, "auto", 10}, Setting{"NGRAM", 16, "auto", 4, 24},
                                         Setting{"NGRAM", 64, "auto", 1}, Setting{"NGRAM", 1, "fp8_e4m3", 1},
                                         Setting{"NGRAM", 16, "fp8_e5m2", 10, 0, false},
                                         Setting{"NGRAM", 64, "fp4_e2m1", 10}, Setting{"NGRAM", 16, "bf16", 10}));

INSTANTIATE_TEST_SUITE_P(Standalone, SpeculationServing,
                         testing::Values(Setting{"STANDALONE", 1, "auto", 1, 0, true, 4},
                                         Setting{"STANDALONE", 16, "auto", 4, 8, true, 5},
                                         Setting{"STANDALONE", 64, "fp8_e4m3", 3, 16, true, 4},
                                         Setting{"STANDALONE", 1, "fp4_e2m1", 2, 4},
                                         Setting{"STANDALONE", 16, "bf16", 1, 0, false, 1},
                                         Setting{"STANDALONE", 64, "fp8_e5m2", 1, 0, true, 7}));

INSTANTIATE_TEST_SUITE_P(
    Eagle, SpeculationServing,
    testing::Values(Setting{"EAGLE", 1, "auto", 1, 0, true, 4}, Setting{"EAGLE", 16, "auto", 4, 8, true, 5},
                    Setting{"EAGLE", 64, "fp8_e4m3", 3, 16, true, 4}, Setting{"EAGLE", 1, "fp4_e2m1", 2, 4},
                    Setting{"EAGLE", 16, "bf16", 1, 0, false, 1}, Setting{"EAGLE", 64, "fp8_e5m2", 1, 0, true, 7},
                    Setting{"EAGLE", 1, "bf16", 8, 40, true, 3},
                    Setting{"EAGLE", 16, "auto", 4, 8, true, 3, "torch_native"}));
#endif  // WW_TEST_ON_GPU

#ifdef WW_TEST_ON_GPU
struct Bf16Setting {
  const char* algorithm;
  int page_size, topk;
  const char *prefill = "", *decode = "", *mode = "prefill", *draft = "";  // backends, and whose verifies
};
void PrintTo(const Bf16Setting& s, std::ostream* out) {
  *out << s.algorithm << " page " << s.page_size << " topk " << s.topk << " " << s.prefill << " " << s.decode << " by "
       << s.mode << " drafts " << s.draft;
}
class Bfloat16 : public OnTestDevice<Bf16Setting> {
 protected:
  static ServerArgs args() {
    ServerArgs args = small_args(GetParam().page_size);
    args.dtype = "bfloat16";
    args.prefill_attention_backend = GetParam().prefill;
    args.decode_attention_backend = GetParam().decode;
    return args;
  }
  static ServerArgs speculating(ServerArgs args) {
    set_algorithm(GetParam().algorithm, GetParam().topk, args);
    args.speculative_attention_mode = GetParam().mode;
    args.speculative_draft_attention_backend = GetParam().draft;
    if (args.speculative_algorithm != "NGRAM") args.speculative_num_steps = 4;
    return args;
  }
  static std::vector<GenerateRequest> greedy(int top_logprobs) {
    std::vector<GenerateRequest> out;
    for (const Ids& prompt : golden_prompts()) {
      GenerateRequest& request = out.emplace_back();
      request.rid = std::to_string(out.size());
      request.input_ids = prompt;
      request.sampling.temperature = 0;
      request.sampling.max_new_tokens = 96;
      request.return_logprob = top_logprobs > 0;
      request.top_logprobs_num = top_logprobs;
    }
    return out;
  }
};

// How many tokens two answers begin alike; where they part, two of the expected answer's logits are equal to rounding.
size_t expect_parting_at_a_tie(const Answer& got, const Answer& expected) {
  const auto same = static_cast<size_t>(
      std::mismatch(got.ids.begin(), got.ids.end(), expected.ids.begin(), expected.ids.end()).first - got.ids.begin());
  if (same < expected.ids.size()) {
    EXPECT_LT(expected.gaps.at(same), 0.1f) << "token " << same;
  }
  return same;
}

TEST_P(Bfloat16, TextsPartOnlyWhereTwoLogitsAreEqualToRounding) {
  ServedModel plain = serve(args());
  const auto expected = ask(plain, greedy(2));
  ServedModel served = serve(speculating(args()));
  const auto got = ask(served, greedy(0));
  size_t agreed = 0, all = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE("request " + std::to_string(i));
    ASSERT_TRUE(got[i].finish.error.ok()) << got[i].finish.error.message();
    agreed += expect_parting_at_a_tie(got[i], expected[i]);
    all += expected[i].ids.size();
  }
  EXPECT_GT(agreed, all / 3);
  EXPECT_GT(served.engine->stats().speculation->accepted_tokens, 10u);
}

// Trees, too: a node adds up the keys of its path as decode adds up those of a text.
TEST_P(Bfloat16, TextsAreTheSameInDeterministicMode) {
  if (std::string(GetParam().prefill) != GetParam().decode) GTEST_SKIP() << "two backends round differently";
  for (const char* backend : {GetParam().prefill, GetParam().draft}) {
    if (std::string(backend) == "triton") GTEST_SKIP() << "refused: it does not claim the same bits";
  }
  ServerArgs deterministic = args();
  deterministic.enable_deterministic_inference = true;
  ServedModel plain = serve(deterministic);
  const auto expected = ask(plain, greedy(0));
  ServedModel served = serve(speculating(deterministic));
  const auto got = ask(served, greedy(0));
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i].ids, expected[i].ids) << "request " << i;
}

// One request at a time, so that both ways multiply as many rows: the kernels are the same, and so are their bits. triton
// alone cuts K and V otherwise in a graph, which has to fit every length that it may see.
TEST_P(Bfloat16, StepsInGraphsGiveTheTextsOfStepsLaunchedOneByOne) {
  ServerArgs one_by_one = speculating(args());
  one_by_one.disable_cuda_graph = true;
  ServedModel plain = serve(one_by_one);
  ServedModel served = serve(speculating(args()));
  const std::string mode = GetParam().mode;
  const bool same_cuts = std::string(mode == "prefill" ? GetParam().prefill : GetParam().decode) != "triton";
  const std::vector<GenerateRequest> asked = greedy(0), asked_of_plain = greedy(same_cuts ? 0 : 2);
  for (size_t i = 0; i < asked.size(); ++i) {
    SCOPED_TRACE("request " + std::to_string(i));
    const auto got = ask(served, {asked[i]}), expected = ask(plain, {asked_of_plain[i]});
    ASSERT_TRUE(got[0].finish.error.ok()) << got[0].finish.error.message();
    if (same_cuts) {
      EXPECT_EQ(got[0].ids, expected[0].ids);
    } else {
      expect_parting_at_a_tie(got[0], expected[0]);
    }
  }
  // GEMMs of drafts may be chosen otherwise in a graph, which changes a guess at most where two are almost as likely.
  const double by_graphs = served.engine->stats().speculation->accept_length();
  EXPECT_NEAR(by_graphs, plain.engine->stats().speculation->accept_length(), 0.1 * by_graphs);
}

INSTANTIATE_TEST_SUITE_P(Algorithms, Bfloat16,
                         testing::Values(Bf16Setting{"NGRAM", 16, 4}, Bf16Setting{"STANDALONE", 1, 1},
                                         Bf16Setting{"EAGLE", 1, 4}, Bf16Setting{"EAGLE", 16, 1},
                                         Bf16Setting{"EAGLE", 64, 4}));
INSTANTIATE_TEST_SUITE_P(Backends, Bfloat16,
                         testing::Values(Bf16Setting{"EAGLE", 16, 4, "flashinfer", "fa3", "decode"},
                                         Bf16Setting{"EAGLE", 16, 4, "flashinfer", "fa3", "prefill"},
                                         Bf16Setting{"EAGLE", 16, 4, "triton", "flashinfer", "decode", "fa3"},
                                         Bf16Setting{"EAGLE", 16, 4, "triton", "triton", "prefill", "triton"},
                                         Bf16Setting{"EAGLE", 1, 1, "torch_native", "flashinfer", "prefill", "triton"},
                                         Bf16Setting{"STANDALONE", 1, 3, "", "", "prefill", "triton"},
                                         Bf16Setting{"EAGLE", 64, 4, "flashinfer", "flashinfer", "prefill", "fa3"},
                                         Bf16Setting{"NGRAM", 16, 4, "torch_native", "torch_native"}));
#endif  // WW_TEST_ON_GPU

}  // namespace
}  // namespace warpweave::speculation
