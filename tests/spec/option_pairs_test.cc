// Every pair of request options, on every kind of attention backend, with and without speculation, in one crowd: each
// request gets its answer, each option keeps what it promises beside any other, and the engine serves on. With
// speculation each text is the one without, but where a draw lies on the border between two tokens (draw_border.h).
#include <cmath>
#include <functional>

#include "ask_tale.h"
#include "base/testing/temporary_folder.h"
#include "draw_border.h"
#include "lora/testing/random_adapter.h"
#include "model/model_bundle.h"

namespace warpweave::speculation {
namespace {

constexpr int kTokens = 8;
constexpr int kMostAtBorders = 3;  // of some 400 draws among 4096 tokens, of which any may lie at one
constexpr int32_t kCommonToken = 262;
constexpr const char* kAdapter = "adapter";

struct Option {
  const char* name;
  std::function<void(GenerateRequest&)> apply;
  // What the answer keeps; null: nothing that shows in one answer.
  std::function<bool(const Answer&)> holds = nullptr;
  bool asks_for_states = false;
};

bool lacks(const Answer& answer, int32_t token) {
  return std::find(answer.ids.begin(), answer.ids.end(), token) == answer.ids.end();
}

// More than a chunk of prefill, and what NGRAM guesses from.
Ids repeated(const Ids& ids, size_t least) {
  Ids out;
  while (out.size() < least) out.insert(out.end(), ids.begin(), ids.end());
  return out;
}

bool gives_logprobs(const Answer& answer) {
  return answer.logprobs.size() == answer.ids.size() && std::all_of(answer.logprobs.begin(), answer.logprobs.end(),
                                                                    [](float p) { return p <= 0 && std::isfinite(p); });
}

// `all` without those that the engine refuses.
std::vector<Option> served_ones(const ServedModel& served, std::vector<Option> all) {
  if (!served.engine->info().gives_states) std::erase_if(all, [](const Option& o) { return o.asks_for_states; });
  return all;
}

std::vector<Option> options(ServedModel& served) {
  const int vocab_size = served.engine->info().vocab_size;
  std::vector<int32_t> even;
  for (int32_t id = 0; id < vocab_size; id += 2) even.push_back(id);
  const auto regex = compile_regex(served, "( [a-z]{1,9}){6,9}\\.");
  const auto adapter = served.adapters->take(kAdapter)->weights;
  using R = GenerateRequest&;
  return served_ones(served, {
      {"temperature 1.5", [](R r) { r.sampling.temperature = 1.5f; }},
      {"temperature 1e-30", [](R r) { r.sampling.temperature = 1e-30f; }},
      {"top_k 1", [](R r) { r.sampling.temperature = 1, r.sampling.top_k = 1; }},
      {"top_k 2^31-1", [](R r) { r.sampling.temperature = 1, r.sampling.top_k = 2147483647; }},
      {"top_p 1e-30", [](R r) { r.sampling.temperature = 1, r.sampling.top_p = 1e-30f; }},
      {"min_p 1", [](R r) { r.sampling.temperature = 1, r.sampling.min_p = 1; }},
      {"frequency_penalty", [](R r) { r.sampling.frequency_penalty = 2; }},
      {"presence_penalty", [](R r) { r.sampling.presence_penalty = -2; }},
      {"repetition_penalty", [](R r) { r.sampling.repetition_penalty = 1e-30f; }},
      {"stop", [](R r) { r.sampling.stop = {"the"}; },
       [](const Answer& a) {
         // No stop string ends an answer within min_new_tokens, of which "max_new_tokens 1" has one.
         const bool is_first_token = a.ids.size() == 1 && a.finish.type == FinishReason::Type::length;
         return is_first_token || a.text.find("the") == std::string::npos;
       }},
      {"stop_token_ids", [](R r) { r.sampling.stop_token_ids = {kCommonToken}; }},
      {"ignore_eos", [](R r) { r.sampling.ignore_eos = true; }},
      {"min_new_tokens", [](R r) { r.sampling.min_new_tokens = 3; }},
      {"max_new_tokens 1", [](R r) { r.sampling.max_new_tokens = r.sampling.min_new_tokens = 1; },
       [](const Answer& a) { return a.ids.size() == 1; }},
      {"logit_bias",
       [](R r) {
         r.sampling.logit_bias = {{kCommonToken, -100.0f}, {kCommonToken + 2, 100.0f}};
       }},
      {"allowed_token_ids", [even](R r) { r.sampling.allowed_token_ids = even; },
       [](const Answer& a) { return std::all_of(a.ids.begin(), a.ids.end(), [](int32_t id) { return id % 2 == 0; }); }},
      {"bad_words", [](R r) { r.sampling.bad_words = {{kCommonToken}}; },
       [](const Answer& a) { return lacks(a, kCommonToken); }},
      {"grammar", [regex](R r) { r.sampling.grammar = regex; }},
      {"logprobs", [](R r) { r.return_logprob = true, r.top_logprobs_num = 3, r.logprob_start_len = 0; },
       gives_logprobs},
      {"hidden states", [](R r) { r.states = StateWish::last; }, nullptr, true},
      {"whole", [](R r) { r.stream = false; }},
      {"cache_salt", [](R r) { r.cache_salt = "tenant"; }},
      {"priority", [](R r) { r.priority = -2147483647 - 1; }},
      {"adapter", [adapter](R r) { r.adapter = adapter; }},
      {"sibling", [](R r) { r.wait_for_prefix_of = std::to_string(std::stoi(r.rid) - 1); }},  // n > 1
      {"chunked prompt", [](R r) { r.input_ids = repeated(r.input_ids, 40); }},
  });
}

struct Setting {
  const char* backend;
  const char* algorithm;  // empty: no speculation
  int topk = 1;
  bool mixed = false;     // prompts beside decodes
  bool deterministic = false;
  bool adaptive = false;
};
void PrintTo(const Setting& s, std::ostream* out) {
  *out << s.backend << " " << s.algorithm << " topk " << s.topk << (s.mixed ? " mixed" : "")
       << (s.deterministic ? " deterministic" : "") << (s.adaptive ? " adaptive" : "");
}

class OptionPairs : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (const std::string why = no_test_device(); !why.empty()) GTEST_SKIP() << why;
  }
  OptionPairs() {
    const auto bundle = open_model_bundle("models/tale-llama", {.tokenizer_path = {}, .skip_tokenizer = true});
    write_random_adapter(folder_ / kAdapter, *lora_targets(bundle->config),
                         {.rank = 4, .deviation = 0.3f, .seed = 1, .dtype = DType::f32});
  }

  ServerArgs args(bool speculate) const {
    const Setting& setting = GetParam();
    ServerArgs out;
    out.threads = 1;
    out.chunked_prefill_size = 32;
    out.max_total_tokens = 2048;  // far fewer than all of them take
    out.schedule_conservativeness = 0.2;
    out.attention_backend = setting.backend;
    out.enable_mixed_chunk = setting.mixed;
    out.enable_deterministic_inference = setting.deterministic;
    out.lora_paths = std::string(kAdapter) + "=" + (folder_ / kAdapter).string();
    out.lora_root = folder_.path().string();
    if (!speculate) return out;
    out.speculative_algorithm = setting.algorithm;
    if (out.speculative_algorithm != "EAGLE") return out;
    out.speculative_draft_model_path = "models/tale-eagle";
    out.speculative_num_steps = 3;
    out.speculative_eagle_topk = setting.topk;
    if (setting.topk > 1) out.speculative_num_draft_tokens = 9;
    out.speculative_adaptive = setting.adaptive;
    return out;
  }

  TemporaryFolder folder_;
};

// All pairs of options, each with itself, too.
struct Pairs {
  std::vector<GenerateRequest> requests;
  std::vector<std::pair<const Option*, const Option*>> options;
};
Pairs all_pairs(const std::vector<Option>& all) {
  const std::vector<Ids> prompts = golden_prompts();
  Pairs out;
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t k = 0; k <= i; ++k) {
      GenerateRequest& request = out.requests.emplace_back();
      request.rid = std::to_string(out.requests.size());
      request.input_ids = prompts[out.requests.size() % prompts.size()];
      request.sampling.temperature = 0;
      request.sampling.seed = out.requests.size();
      request.sampling.max_new_tokens = kTokens;
      all[i].apply(request);
      if (k < i) all[k].apply(request);
      out.options.emplace_back(&all[i], &all[k]);
    }
  }
  return out;
}

TEST_P(OptionPairs, AreAllAnsweredAndKeepWhatTheyPromise) {
  const bool speculates = *GetParam().algorithm != '\0';
  ServedModel served = serve(args(speculates));
  ASSERT_NE(served.engine, nullptr);
  const std::vector<Option> all = options(served);
  const auto [requests, pairs] = all_pairs(all);
  const std::vector<Answer> answers = ask(served, requests);
  if (speculates) {
    ServedModel plain = serve(args(false));
    const std::vector<Option> without = options(plain);
    const std::vector<GenerateRequest> asked = all_pairs(without).requests;
    const std::vector<Answer> expected = ask(plain, asked);
    int at_borders = 0;
    for (size_t i = 0; i < answers.size(); ++i) {
      if (answers[i].ids != expected[i].ids && part_at_a_border(plain, asked[i], answers[i].ids, expected[i].ids)) {
        ++at_borders;
        continue;
      }
      EXPECT_EQ(answers[i].ids, expected[i].ids) << pairs[i].first->name << ", " << pairs[i].second->name;
      EXPECT_EQ(answers[i].text, expected[i].text) << pairs[i].first->name << ", " << pairs[i].second->name;
    }
    EXPECT_LE(at_borders, kMostAtBorders);
    // Beside prompts nothing is checked, and there are prompts in most steps then.
    if (!GetParam().mixed) {
#ifdef WW_TEST_ON_GPU  // NGRAM learns from texts that are done, and where more run at a time fewer are.
      const uint64_t least = std::string(GetParam().algorithm) == "NGRAM" ? 5 : 50;
#else
      const uint64_t least = 50;
#endif
      EXPECT_GT(served.engine->stats().speculation->accepted_tokens, least);
    }
  }
  for (size_t i = 0; i < answers.size(); ++i) {
    const Answer& answer = answers[i];
    const std::string what = std::string(pairs[i].first->name) + ", " + pairs[i].second->name + ": " + answer.text;
    EXPECT_NE(answer.finish.type, FinishReason::Type::abort) << what << ": " << answer.finish.error.message();
    EXPECT_LE(answer.ids.size(), static_cast<size_t>(kTokens)) << what;
    for (const int32_t id : answer.ids) EXPECT_TRUE(id >= 0 && id < served.engine->info().vocab_size) << what;
    for (const Option* option : {pairs[i].first, pairs[i].second}) {
      if (!option->holds) continue;
      EXPECT_TRUE(option->holds(answer)) << what << ", broken: " << option->name;
    }
  }
  EXPECT_TRUE(served.engine->audit().ok()) << served.engine->audit().message();
  EXPECT_EQ(served.engine->stats().running_reqs, 0);
}

// Those who go take nothing with them: the others' texts stay, and every page comes back.
TEST_P(OptionPairs, AbortedOnesLeaveTheOthersAlone) {
  if (*GetParam().algorithm == '\0') return;
  ServedModel plain = serve(args(false)), served = serve(args(true));
  std::vector<GenerateRequest> asked = questions(plain, 24);
  const auto expected = ask(plain, asked);
  for (int round = 0; round < 3; ++round) {
    const auto answers = collect_answers<Answer>(*served.engine, asked, [&](Answer& answer, const OutputDelta& delta) {
      answer.ids.insert(answer.ids.end(), delta.token_ids.begin(), delta.token_ids.end());
      if (delta.finish) answer.finish = *delta.finish;
      const size_t number = std::stoul(delta.rid);
      if (number % 3 == 0 && answer.ids.size() >= static_cast<size_t>(2 * round)) served.engine->abort(delta.rid);
    });
    for (size_t i = 0; i < answers.size(); ++i) {
      if ((i + 1) % 3 == 0) continue;
      EXPECT_EQ(answers[i].ids, expected[i].ids) << "request " << i << " round " << round;
    }
    EXPECT_TRUE(served.engine->audit().ok()) << served.engine->audit().message();
  }
}

// The border between 428 and 429, at which the sixth draw of this request lies, and what lies at none.
GenerateRequest request_at_a_border() {
  const std::vector<Ids> prompts = golden_prompts();
  GenerateRequest request;
  request.rid = "46";
  request.input_ids = prompts[46 % prompts.size()];
  request.sampling.seed = 46;
  request.sampling.temperature = 1.5f;
  request.sampling.max_new_tokens = kTokens;
  return request;
}

TEST(DrawBorders, PartTwoTokensAndHideNoFault) {
  if (const std::string why = no_test_device(); !why.empty()) GTEST_SKIP() << why;
  ServerArgs args;
  args.threads = 1;
  ServedModel served = serve(args);
  const GenerateRequest request = request_at_a_border();
  Ids written;
  const auto rows = rows_of(served, request, &written);
  ASSERT_GT(written.size(), 5u);
  ASSERT_TRUE(written[5] == 428 || written[5] == 429) << written[5];
  Ids other = written;
  other[5] = written[5] == 428 ? 429 : 428;
  EXPECT_TRUE(part_at_a_border(served, request, other, written));
  other[5] = 427;  // less than a step of 1e-4 away
  EXPECT_FALSE(part_at_a_border(served, request, other, written));
  EXPECT_FALSE(part_at_a_border(served, request, {written.begin(), written.begin() + 5}, written));
  // Drawn by another place's number, as if a step counted its rows wrong.
  RowScratch scratch;
  int faults = 0;
  for (size_t k = 0; k < written.size(); ++k) {
    other = written;
    const double draw = uniform_draw(*request.sampling.seed, request.input_ids.size() + k + 1);
    other[k] = sample_row(rows[k], request.sampling, draw, scratch);
    if (other[k] == written[k]) continue;
    ++faults;
    EXPECT_FALSE(part_at_a_border(served, request, other, written)) << "token " << k;
  }
  EXPECT_GT(faults, 4);
}

// Rows of steps of one request, and of whole prompts.
TEST(DrawBorders, MoveByLessThanRounding) {
  if (const std::string why = no_test_device(); !why.empty()) GTEST_SKIP() << why;
  ServerArgs args;
  args.threads = 1;
  args.disable_radix_cache = true;  // else a prompt's last row is all that is computed of it
  ServedModel served = serve(args);
  const GenerateRequest request = request_at_a_border();
  Ids written;
  const auto alone = rows_of(served, request, &written);
  double most = 0;
  for (size_t k = 1; k < alone.size(); ++k) {  // as the last token of a prompt
    GenerateRequest prompt = request;
    prompt.rid = "as prompt " + std::to_string(k);
    prompt.input_ids.insert(prompt.input_ids.end(), written.begin(), written.begin() + static_cast<std::ptrdiff_t>(k));
    prompt.sampling.max_new_tokens = 1;
    most = std::max(most, most_moved(rows_of(served, prompt).at(0), alone[k], request.sampling.temperature));
  }
  std::printf("sums of probabilities moved by up to %.2e\n", most);
  EXPECT_LT(most, kDrawRounding);
}

std::string name_of(const testing::TestParamInfo<Setting>& info) {
  const Setting& s = info.param;
  std::string name =
      std::string(s.backend) + "_" + (*s.algorithm == '\0' ? "plain" : s.algorithm) + "_" + std::to_string(s.topk);
  return name + (s.mixed ? "_mixed" : "") + (s.deterministic ? "_deterministic" : "") + (s.adaptive ? "_adaptive" : "");
}

#ifdef WW_TEST_ON_GPU
INSTANTIATE_TEST_SUITE_P(Backends, OptionPairs,
                         testing::Values(Setting{"triton", ""}, Setting{"torch_native", "NGRAM"},
                                         Setting{"triton", "NGRAM", 1, true}, Setting{"triton", "EAGLE", 4},
                                         Setting{"torch_native", "EAGLE", 3, true},
                                         Setting{"torch_native", "EAGLE", 1, false, true},
                                         Setting{"triton", "EAGLE", 1, true, false, true}),
                         name_of);
#else
INSTANTIATE_TEST_SUITE_P(Backends, OptionPairs,
                         testing::Values(Setting{"torch_native", ""}, Setting{"torch_native", "NGRAM"},
                                         Setting{"triton", ""}, Setting{"triton", "NGRAM", 1, true},
                                         Setting{"flex_attention", ""}, Setting{"intel_amx", "EAGLE", 4},
                                         Setting{"torch_native", "EAGLE", 3, true},
                                         Setting{"intel_amx", "EAGLE", 1, false, true},
                                         Setting{"intel_amx", "EAGLE", 1, true, false, true}),
                         name_of);
#endif

#ifndef WW_TEST_ON_GPU
// Blocks of few bits are multiplied as integers beside bfloat16. The last two are as is usual on CPUs: as many guesses as
// pay, looked up first.
TEST(DraftModels, InBlocksChangeNoText) {
  ServerArgs args;
  args.threads = 1;
  args.dtype = "bfloat16";
  args.max_total_tokens = 4096;
  ServedModel plain = serve(args);
  const std::vector<GenerateRequest> asked = questions(plain);
  const auto expected = ask(plain, asked);
  size_t fewer_bytes = 0;
  for (const auto& [method, steps] : std::vector<std::pair<const char*, std::optional<int>>>{
           {"int4", 3}, {"int8", 3}, {"unquant", 3}, {"int4", {}}, {"", {}}}) {
    SCOPED_TRACE(method);
    ServerArgs drafting = args;
    drafting.speculative_algorithm = "EAGLE";
    drafting.speculative_draft_model_path = "models/tale-eagle";
    drafting.speculative_draft_model_quantization = method;
    drafting.speculative_num_steps = steps;
    ServedModel served = serve(drafting);
    expect_same(ask(served, asked), expected, asked, {.of_kv = true});
    if (!steps) continue;
    EXPECT_GT(served.engine->stats().speculation->accept_length(), 1.7);
    EXPECT_GT(served.engine->info().weight_bytes, fewer_bytes);
    fewer_bytes = served.engine->info().weight_bytes;
  }
}
#endif  // WW_TEST_ON_GPU

}  // namespace
}  // namespace warpweave::speculation
