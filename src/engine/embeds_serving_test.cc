// Prompts whose rows are brought (input_embeds): the embeddings of ids give bit by bit what the ids give, and the
// prefix cache knows rows by what is in them.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "base/float16.h"
#include "engine/testing/asking.h"
#include "engine/testing/serving_device.h"
#include "model/model_bundle.h"

namespace warpweave {
namespace {

struct Setting {
  const char* family;
  const char* embedding;  // the tensor's name
  int page_size;
  int chunk;
};
void PrintTo(const Setting& s, std::ostream* out) {
  *out << s.family << " page " << s.page_size << " chunks of " << s.chunk;
}

class EmbedsServing : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (const std::string why = no_test_device(); !why.empty()) GTEST_SKIP() << why;
    ModelBundleOptions options;
    options.skip_tokenizer = true;
    auto bundle = open_model_bundle(path(), options);
    ASSERT_TRUE(bundle.ok()) << bundle.status().message();
    hidden_ = bundle->config.hidden_size;
    const std::array<int64_t, 2> shape = {bundle->config.vocab_size, hidden_};
    const auto table = bundle->weights->find(GetParam().embedding, shape);
    ASSERT_TRUE(table.ok()) << table.status().message();
    for (int64_t i = 0; i < shape[0] * shape[1]; ++i) {
      table_.push_back(table->dtype == DType::bf16 ? bf16_to_f32(static_cast<const uint16_t*>(table->data)[i])
                                                   : static_cast<const float*>(table->data)[i]);
    }
    served_ = std::make_unique<ServedModel>(serve());
  }

  static std::string path() { return "tests/golden/families/" + std::string(GetParam().family); }

  static ServedModel serve() {
    ServerArgs args;
    serve_on_test_device(args);
    args.model_path = path();
    args.skip_tokenizer_init = true;
    args.page_size = GetParam().page_size;
    args.chunked_prefill_size = GetParam().chunk;
    args.max_total_tokens = 2048;
    args.enable_deterministic_inference = true;
    auto served = create_engine({.args = args, .model_path = args.model_path, .on_weights_progress = {}});
    EXPECT_TRUE(served.ok()) << served.status().message();
    return std::move(served).value();
  }

  static Ids prompt_of(int tokens, int number) {
    Ids prompt;
    for (int k = 0; k < tokens; ++k) prompt.push_back(1 + (k * 37 + k * k * number + number * 11) % 90);
    return prompt;
  }

  GenerateRequest by_ids(const Ids& prompt) const {
    GenerateRequest request = greedy_request(std::to_string(++requests_), prompt, 12);
    request.return_logprob = true;
    return request;
  }

  GenerateRequest by_rows(const Ids& prompt) const {
    GenerateRequest request = by_ids(Ids(prompt.size(), 0));
    std::vector<float> rows;
    for (const int32_t id : prompt)
      rows.insert(rows.end(), table_.begin() + id * hidden_, table_.begin() + (id + 1) * hidden_);
    request.input_embeds = std::make_shared<const std::vector<float>>(std::move(rows));
    return request;
  }

  Answer ask_one(const GenerateRequest& request) { return ask(*served_, {request}).front(); }

  int64_t hidden_ = 0;
  std::vector<float> table_;
  std::unique_ptr<ServedModel> served_;
  mutable int requests_ = 0;
};

TEST_P(EmbedsServing, GiveBitByBitWhatTheirIdsGive) {
  for (const int tokens : {1, 2, 17, 40}) {
    const Ids prompt = prompt_of(tokens, tokens);
    const Answer expected = ask_one(by_ids(prompt)), answer = ask_one(by_rows(prompt));
    EXPECT_EQ(answer, expected) << tokens << " tokens";
    EXPECT_EQ(answer.logprobs, expected.logprobs) << tokens << " tokens";
    EXPECT_EQ(answer.cached_tokens, 0);  // ids and rows share nothing
  }
}

TEST_P(EmbedsServing, StandBesideIdsInABatch) {
  std::vector<GenerateRequest> asked;
  std::vector<Answer> expected;
  for (int i = 0; i < 6; ++i) {
    const Ids prompt = prompt_of(5 + 9 * i, i);
    expected.push_back(ask_one(by_ids(prompt)));
    asked.push_back(i % 2 == 0 ? by_rows(prompt) : by_ids(prompt));
  }
  EXPECT_EQ(ask(*served_, asked), expected);
  EXPECT_TRUE(served_->engine->audit().ok()) << served_->engine->audit().message();
}

TEST_P(EmbedsServing, AreCachedByTheirValues) {
  const int page = GetParam().page_size;
  Ids prompt = prompt_of(40, 3);
  const Answer first = ask_one(by_rows(prompt)), again = ask_one(by_rows(prompt));
  EXPECT_EQ(first.cached_tokens, 0);
  EXPECT_EQ(again, first);
  EXPECT_GE(again.cached_tokens, 39 / page * page);
  // Another row in its middle: what stands before it is shared, and the answer is that of its own ids.
  prompt[20] = prompt[20] % 90 + 1;
  const Answer other = ask_one(by_rows(prompt));
  EXPECT_EQ(other, ask_one(by_ids(prompt)));
  EXPECT_GE(other.cached_tokens, 20 / page * page);
  EXPECT_LE(other.cached_tokens, 20);
  // An answer is of ids: rows that spell it do not find it, and do not harm.
  Ids longer = prompt;
  longer.insert(longer.end(), other.ids.begin(), other.ids.end());
  const Answer next = ask_one(by_rows(longer));
  EXPECT_EQ(next, ask_one(by_ids(longer)));
  EXPECT_LE(next.cached_tokens, 40);
  GenerateRequest salted = by_rows(prompt);
  salted.cache_salt = "of someone else";
  EXPECT_EQ(ask_one(salted).cached_tokens, 0);
}

INSTANTIATE_TEST_SUITE_P(Models, EmbedsServing,
                         testing::Values(Setting{"llama", "model.embed_tokens.weight", 1, 2048},
                                         Setting{"llama", "model.embed_tokens.weight", 16, 16},
                                         Setting{"gemma3", "model.embed_tokens.weight", 4, 7}));

}  // namespace
}  // namespace warpweave
