// Serving tale-llama with adapters: many in one batch, a prefix cache for each, unloading while requests run.
#include <gtest/gtest.h>

#include "base/testing/temporary_folder.h"
#include "engine/testing/asking.h"
#include "engine/testing/serving_device.h"
#include "lora/testing/random_adapter.h"
#include "model/model_bundle.h"

namespace warpweave {
namespace {

constexpr const char* kModel = "models/tale-llama";

Ids tale_ids(int count, int seed) {
  Ids ids(count);
  for (int i = 0; i < count; ++i) ids[i] = 100 + (i * 37 + seed * 1009) % 3900;
  return ids;
}

class LoraServing : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = no_test_device(); !why.empty()) GTEST_SKIP() << why;
  }
  LoraServing() {
    const auto bundle = open_model_bundle(kModel, {.tokenizer_path = {}, .skip_tokenizer = true});
    const auto targets = lora_targets(bundle->config);
    for (int i = 0; i < 4; ++i) {
      write_random_adapter(
          folder_ / name(i), *targets,
          {.rank = 4 << i % 3, .deviation = 0.3f, .seed = static_cast<unsigned>(i + 1), .dtype = DType::f32});
    }
  }
  static std::string name(int i) { return "adapter-" + std::to_string(i); }

  ServerArgs args(int adapters = 4) const {
    ServerArgs out;
    out.model_path = kModel;
    serve_on_test_device(out);
    out.max_total_tokens = 2048;
    for (int i = 0; i < adapters; ++i) out.lora_paths += name(i) + "=" + (folder_ / name(i)).string() + "\n";
    out.lora_root = folder_.path().string();
    return out;
  }
  static ServedModel serve(const ServerArgs& args) {
    auto served = create_engine({.args = args, .model_path = kModel, .on_weights_progress = {}});
    EXPECT_TRUE(served.ok()) << served.status().message();
    return std::move(served).value();
  }
  // A greedy request by an adapter, -1: by none.
  static GenerateRequest request(ServedModel& served, int adapter, const Ids& prompt, const std::string& rid,
                                 int new_tokens = 16) {
    GenerateRequest out = greedy_request(rid, prompt, new_tokens);
    if (adapter >= 0) out.adapter = served.adapters->take(name(adapter))->weights;
    return out;
  }

  TemporaryFolder folder_;
};

TEST_F(LoraServing, ManyInOneBatchAnswerAsEachAlone) {
  ServedModel served = serve(args());
  ServerArgs alone_args = args();
  alone_args.max_running_requests = 1;
  alone_args.disable_radix_cache = true;
  ServedModel alone = serve(alone_args);
  std::vector<GenerateRequest> requests;
  std::vector<Answer> expected;
  for (int i = 0; i < 15; ++i) {
    const int adapter = i % 5 - 1;
    const Ids prompt = tale_ids(5 + i, i % 2);  // prefixes that adapters have in common
    requests.push_back(request(served, adapter, prompt, std::to_string(i)));
    expected.push_back(ask(alone, {request(alone, adapter, prompt, "r")})[0]);
  }
  EXPECT_EQ(ask(served, requests), expected);
  EXPECT_FALSE(expected[0] == expected[5] && expected[1].ids == expected[2].ids);
  EXPECT_TRUE(served.engine->audit().ok());
}

TEST_F(LoraServing, AdaptersMatterAndPrefixesAreTheirOwn) {
  ServedModel served = serve(args());
  const Ids prompt = tale_ids(40, 3);
  const Answer plain = ask(served, {request(served, -1, prompt, "a")})[0];
  const Answer first = ask(served, {request(served, 0, prompt, "b")})[0];
  const Answer second = ask(served, {request(served, 1, prompt, "c")})[0];
  EXPECT_NE(plain.ids, first.ids);
  EXPECT_NE(first.ids, second.ids);
  EXPECT_EQ(first.cached_tokens, 0);
  EXPECT_EQ(second.cached_tokens, 0);
  const Answer again = ask(served, {request(served, 0, prompt, "d")})[0];
  EXPECT_EQ(again.cached_tokens, 39);
  EXPECT_EQ(again.ids, first.ids);
  // A salt that spells another adapter's key shares nothing with it.
  const std::string id = std::to_string(served.adapters->take(name(0))->weights->id);
  GenerateRequest sly = request(served, -1, prompt, "e");
  sly.cache_salt = std::to_string(id.size()) + ":" + id;
  const Answer salted = ask(served, {sly})[0];
  EXPECT_EQ(salted.cached_tokens, 0);
  EXPECT_EQ(salted.ids, plain.ids);
}

TEST_F(LoraServing, UnloadingLeavesRunningRequestsAndTheirMemory) {
  ServedModel served = serve(args());
  const Ids prompt = tale_ids(12, 1);
  const Answer expected = ask(served, {request(served, 2, prompt, "a", 200)})[0];
  Asking asking(served, {request(served, 2, prompt, "b", 200), request(served, -1, prompt, "c", 200)});
  asking.wait_for_first_token(0);
  std::weak_ptr<const LoraAdapter> weights = served.adapters->take(name(2))->weights;
  ASSERT_TRUE(served.adapters->unload(name(2)).ok());
  EXPECT_EQ(served.adapters->take(name(2)).status().code(), StatusCode::not_found);
  EXPECT_EQ(asking.wait()[0], expected);
  (void)ask(served, {request(served, -1, prompt, "d", 1)});  // the ended requests are let go of in a later step
  EXPECT_TRUE(weights.expired());
  ASSERT_TRUE(served.adapters->load_from_root(name(2), name(2)).ok());
  const Answer reloaded = ask(served, {request(served, 2, prompt, "e", 200)})[0];
  EXPECT_EQ(reloaded, expected);
  EXPECT_EQ(reloaded.cached_tokens, 0);  // another adapter, though of the same name
}

TEST_F(LoraServing, FewPerBatchStillAnswerEverybody) {
  ServerArgs few_args = args();
  few_args.max_loras_per_batch = 1;
  ServedModel few = serve(few_args), many = serve(args());
  std::vector<GenerateRequest> to_few, to_many;
  for (int i = 0; i < 24; ++i) {
    to_few.push_back(request(few, i % 5 - 1, tale_ids(6, i), std::to_string(i), 8));
    to_many.push_back(request(many, i % 5 - 1, tale_ids(6, i), std::to_string(i), 8));
  }
  EXPECT_EQ(ask(few, to_few), ask(many, to_many));
}

// Steps with and without adapters in turns, verified guesses, chunks and requests that join others in between.
TEST_F(LoraServing, GuessesAndChunksChangeNoText) {
  ServerArgs plain_args = args(), fast_args = args();
  plain_args.max_running_requests = 2;
  fast_args.speculative_algorithm = "NGRAM";
  fast_args.speculative_num_draft_tokens = 4;
  fast_args.chunked_prefill_size = 16;
  fast_args.enable_mixed_chunk = true;
  ServedModel plain = serve(plain_args), fast = serve(fast_args);
  std::vector<GenerateRequest> to_plain, to_fast;
  for (int i = 0; i < 12; ++i) {
    Ids prompt = tale_ids(6 + i, i % 3);
    const Ids again = prompt;
    for (int n = 0; n < 2 + i % 3; ++n) prompt.insert(prompt.end(), again.begin(), again.end());
    to_plain.push_back(request(plain, i % 5 - 1, prompt, std::to_string(i), 24));
    to_fast.push_back(request(fast, i % 5 - 1, prompt, std::to_string(i), 24));
  }
  const std::vector<Answer> expected = ask(plain, to_plain), got = ask(fast, to_fast);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i].ids, expected[i].ids) << i;
  EXPECT_TRUE(fast.engine->audit().ok());
}

TEST_F(LoraServing, RefusesAtStartWhatDoesNotFit) {
  const auto refusal = [](const ServerArgs& args) {
    return create_engine({.args = args, .model_path = kModel, .on_weights_progress = {}}).status();
  };
  ServerArgs bad = args();
  bad.max_lora_rank = 8;  // the third one has 16
  EXPECT_EQ(refusal(bad).field(), "--max-lora-rank");
  bad = args();
  bad.max_loaded_loras = 2;
  EXPECT_EQ(refusal(bad).field(), "--max-loaded-loras");
  bad = args();
  bad.lora_target_modules = "q_proj\nx_proj";
  EXPECT_EQ(refusal(bad).field(), "--lora-target-modules");
  bad = args();
  bad.lora_paths += "other=/missing";
  EXPECT_EQ(refusal(bad).code(), StatusCode::not_found);
  bad = args();
  bad.lora_paths = R"({"lora_name": "a", "lora_path": "b"})";
  EXPECT_EQ(refusal(bad).field(), "--lora-paths");
}

}  // namespace
}  // namespace warpweave
