// What goes wrong inside: values that are no numbers, memory that ends, pages that change by
// themselves. The request fails with a reason; the engine serves the next one.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <functional>
#include <future>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "attention/registry.h"
#include "base/testing/temporary_folder.h"
#include "engine/engine_impl.h"

namespace warpweave {
namespace {

constexpr const char* kModel = "models/tale-llama";

ServedModel serve(const std::string& path, ServerArgs args = {}) {
  args.dtype = "float32";
  args.model_path = path;
  auto served = create_engine({.args = args, .model_path = path, .on_weights_progress = {}});
  EXPECT_TRUE(served.ok()) << served.status().message();
  return std::move(served).value();
}

GenerateRequest request_of(std::vector<int32_t> ids, int new_tokens = 8) {
  static int number = 0;
  GenerateRequest request;
  request.rid = std::to_string(++number);
  request.input_ids = std::move(ids);
  request.sampling.max_new_tokens = new_tokens;
  request.sampling.ignore_eos = true;
  return request;
}

struct Outcome {
  std::vector<int32_t> ids;
  OutputDelta last;
};

Outcome run(Engine& engine, GenerateRequest request) {
  auto done = std::make_shared<std::promise<void>>();
  auto outcome = std::make_shared<Outcome>();
  std::future<void> finished = done->get_future();
  const Status status = engine.submit(std::move(request), [done, outcome](OutputDelta delta) {
    outcome->ids.insert(outcome->ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    const bool last = delta.finish.has_value();
    outcome->last = std::move(delta);
    if (last) done->set_value();
  });
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(finished.wait_for(std::chrono::minutes(10)), std::future_status::ready);
  return *outcome;
}

// A step that was on its way when its request ended still has to come back.
void wait_until(const std::function<bool()>& holds) {
  for (int i = 0; i < 2000 && !holds(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(holds());
}

// models/tale-llama with the first element of a bf16 tensor changed to NaN.
void copy_with_nan(const std::filesystem::path& folder, const std::string& tensor) {
  for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}) {
    std::filesystem::copy_file(std::filesystem::path(kModel) / name, folder / name);
  }
  std::filesystem::permissions(folder / "model.safetensors", std::filesystem::perms::owner_write,
                               std::filesystem::perm_options::add);
  std::fstream file(folder / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  uint64_t header_bytes = 0;
  file.read(reinterpret_cast<char*>(&header_bytes), sizeof header_bytes);
  std::string header(header_bytes, '\0');
  file.read(header.data(), static_cast<std::streamsize>(header_bytes));
  const uint64_t offset = nlohmann::json::parse(header)[tensor]["data_offsets"][0];
  file.seekp(static_cast<std::streamoff>(sizeof header_bytes + header_bytes + offset));
  const uint16_t nan = 0x7fc0;
  file.write(reinterpret_cast<const char*>(&nan), sizeof nan);
}

// What the backend "troubled" does wrong: torch_native, but for these.
struct Trouble {
  std::atomic<int> fail_in{0};       // the so many-th call of plan or forward from now on fails; 0: none
  std::atomic<int> nan_prompt{-1};   // rows of a prompt that begins with this token come out as NaN
};
Trouble trouble;

class TroubledBackend : public AttentionBackend {
 public:
  explicit TroubledBackend(std::unique_ptr<AttentionBackend> inner) : inner_(std::move(inner)) {}
  const Caps& caps() const override { return inner_->caps(); }
  Status init_forward_metadata(const ForwardBatch& batch) override {
    WW_RETURN_IF_ERROR(may_fail("plan"));
    return inner_->init_forward_metadata(batch);
  }
  Status forward_extend(const ForwardBatch& batch, const AttentionCall& call) override {
    WW_RETURN_IF_ERROR(may_fail("forward_extend"));
    WW_RETURN_IF_ERROR(inner_->forward_extend(batch, call));
    for (int r = 0; r < batch.num_reqs; ++r) {
      const int row = batch.q_indptr[r];
      if (batch.q_len(r) < 2 || batch.input_ids[row] != trouble.nan_prompt) continue;
      std::fill_n(call.out_f32() + row * call.out_token_stride, batch.q_len(r) * call.out_token_stride,
                  std::numeric_limits<float>::quiet_NaN());
    }
    return {};
  }
  Status forward_decode(const ForwardBatch& batch, const AttentionCall& call) override {
    WW_RETURN_IF_ERROR(may_fail("forward_decode"));
    return inner_->forward_decode(batch, call);
  }

 private:
  static Status may_fail(const std::string& what) {
    if (trouble.fail_in == 0 || --trouble.fail_in > 0) return {};
    return Status::internal("the device refused " + what);
  }
  std::unique_ptr<AttentionBackend> inner_;
};

ServedModel serve_troubled(ServerArgs args = {}) {
  static const bool added = [] {
    for (const BackendRegistration& backend : built_backends()) {
      if (backend.caps->name != "torch_native" || !backend.caps->archs.has(DeviceArch::cpu_x86_64)) continue;
      static Caps caps = *backend.caps;
      caps.name = "troubled";
      const CreateBackendFn create = backend.create;
      return add_backend({&caps, [create](const BackendContext& context) {
                            return std::make_unique<TroubledBackend>(create(context));
                          }}).ok();
    }
    return false;
  }();
  EXPECT_TRUE(added);
  trouble.fail_in = 0;
  trouble.nan_prompt = -1;
  args.attention_backend = "troubled";
  args.threads = 1;
  args.device = "cpu";
  return serve(kModel, args);
}

// Requests at once, each with its outcome.
std::vector<Outcome> run_together(Engine& engine, const std::vector<std::vector<int32_t>>& prompts) {
  std::vector<std::future<Outcome>> futures;
  for (const auto& prompt : prompts) {
    auto promise = std::make_shared<std::promise<Outcome>>();
    auto outcome = std::make_shared<Outcome>();
    futures.push_back(promise->get_future());
    GenerateRequest request = request_of(prompt, 4);
    request.sampling.temperature = 0;
    EXPECT_TRUE(engine.submit(std::move(request), [promise, outcome](OutputDelta delta) {
      outcome->ids.insert(outcome->ids.end(), delta.token_ids.begin(), delta.token_ids.end());
      if (!delta.finish) return;
      outcome->last = std::move(delta);
      promise->set_value(*outcome);
    }).ok());
  }
  std::vector<Outcome> outcomes;
  for (auto& future : futures) outcomes.push_back(future.get());
  return outcomes;
}

bool aborted(const Outcome& outcome) { return outcome.last.finish->type == FinishReason::Type::abort; }

void expect_nothing_lost(Engine& engine) {
  wait_until([&] { return engine.stats().running_reqs == 0 && engine.stats().used_tokens == 0; });
  const Status audit = engine.audit();
  EXPECT_TRUE(audit.ok()) << audit.message();
}

// Prompts with a common beginning, longer than a chunk.
const std::vector<std::vector<int32_t>> kPrompts = {{20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120, 130},
                                                    {20, 30, 40, 50, 60, 70, 81, 91, 101},
                                                    {21, 31, 41}};

class FailedSteps : public testing::TestWithParam<bool> {};

// Whichever call of plan or forward fails: a request ends with the reason and the tokens it was right to give, or as
// if nothing had been; who comes next gets the right text, from whatever is cached; and no page is lost.
TEST_P(FailedSteps, FailTheirRequestsAndNothingElse) {
  ServerArgs args;
  args.disable_overlap_schedule = GetParam();
  args.chunked_prefill_size = 8;
  args.page_size = 4;
  ServedModel served = serve_troubled(args);
  std::vector<std::vector<int32_t>> expected;
  for (const auto& prompt : kPrompts) expected.push_back(run_together(*served.engine, {prompt})[0].ids);
  bool failed = true;
  int calls = 0, hit = 0;
  while (failed) {
    ++calls;
    ASSERT_LT(calls, 500);
    served.engine->flush_cache();
    trouble.fail_in = calls;
    const std::vector<Outcome> outcomes = run_together(*served.engine, kPrompts);
    int ended = 0;
    for (size_t i = 0; i < outcomes.size(); ++i) {
      const auto& ids = outcomes[i].ids;
      if (!aborted(outcomes[i])) {
        EXPECT_EQ(ids, expected[i]) << "call " << calls;
        continue;
      }
      ++ended;
      EXPECT_EQ(outcomes[i].last.finish->error.code(), StatusCode::internal);
      EXPECT_NE(outcomes[i].last.finish->error.message().find("the device refused"), std::string::npos);
      EXPECT_LT(ids.size(), expected[i].size());
      EXPECT_TRUE(std::equal(ids.begin(), ids.end(), expected[i].begin())) << "call " << calls;
    }
    expect_nothing_lost(*served.engine);
    failed = trouble.fail_in == 0;  // perhaps in a last step whose rows nobody waits for
    trouble.fail_in = 0;
    hit += ended > 0;
    EXPECT_TRUE(failed || ended == 0) << "call " << calls;
    for (size_t i = 0; i < kPrompts.size(); ++i) {
      EXPECT_EQ(run_together(*served.engine, {kPrompts[i]})[0].ids, expected[i]) << "after call " << calls;
    }
  }
  EXPECT_GT(hit, 25);  // plans and layers of prompts, chunks and decode steps
}
INSTANTIATE_TEST_SUITE_P(WithAndWithoutOverlap, FailedSteps, testing::Bool(),
                         [](const auto& info) { return info.param ? "one_by_one" : "overlapped"; });

TEST(NanRows, FailTheirRequestOnlyAndAreNotCached) {
  ServerArgs args;
  args.page_size = 4;
  args.max_total_tokens = 64;  // pages that held NaN are used again
  ServedModel served = serve_troubled(args);
  std::vector<std::vector<int32_t>> expected;
  for (const auto& prompt : kPrompts) expected.push_back(run_together(*served.engine, {prompt})[0].ids);
  for (int round = 0; round < 4; ++round) {
    served.engine->flush_cache();
    trouble.nan_prompt = 21;
    const std::vector<Outcome> outcomes = run_together(*served.engine, kPrompts);
    trouble.nan_prompt = -1;
    EXPECT_EQ(outcomes[0].ids, expected[0]);
    EXPECT_EQ(outcomes[1].ids, expected[1]);
    ASSERT_TRUE(aborted(outcomes[2]));
    EXPECT_TRUE(outcomes[2].ids.empty());
    EXPECT_NE(outcomes[2].last.finish->error.message().find("not a number"), std::string::npos);
    expect_nothing_lost(*served.engine);
    EXPECT_EQ(run_together(*served.engine, {kPrompts[2]})[0].ids, expected[2]);
  }
}

TEST(NanLogits, FailTheRequestInsteadOfGivingTokenZero) {
  TemporaryFolder folder;
  copy_with_nan(folder.path(), "model.layers.2.mlp.down_proj.weight");
  for (const float temperature : {0.0f, 1.0f}) {
    for (const bool logprobs : {false, true}) {
      ServedModel served = serve(folder.path());
      GenerateRequest request = request_of({5, 6, 7});
      request.sampling.temperature = temperature;
      request.return_logprob = logprobs;
      const Outcome outcome = run(*served.engine, std::move(request));
      ASSERT_EQ(outcome.last.finish->type, FinishReason::Type::abort);
      EXPECT_EQ(outcome.last.finish->error.code(), StatusCode::internal);
      EXPECT_NE(outcome.last.finish->error.message().find("--enable-nan-detection"), std::string::npos);
      EXPECT_TRUE(outcome.ids.empty());
      wait_until([&] { return served.engine->stats().used_tokens == 0; });
    }
  }
}

TEST(NanLogits, DetectionNamesTheFirstLayer) {
  for (const auto& [tensor, place] : std::vector<std::pair<std::string, std::string>>{
           {"model.layers.2.mlp.down_proj.weight", "layer 2, after its MLP"},
           {"model.layers.1.self_attn.o_proj.weight", "layer 1, after its attention"}}) {
    TemporaryFolder folder;
    copy_with_nan(folder.path(), tensor);
    ServerArgs args;
    args.enable_nan_detection = true;
    ServedModel served = serve(folder.path(), args);
    const Outcome outcome = run(*served.engine, request_of({5, 6, 7}));
    EXPECT_NE(outcome.last.finish->error.message().find(place), std::string::npos)
        << outcome.last.finish->error.message();
  }
}

TEST(NanLogits, DetectionChangesNothingWhereThereIsNone) {
  ServerArgs args;
  args.enable_nan_detection = true;
  GenerateRequest request = request_of({5, 6, 7});
  request.sampling.temperature = 0;
  ServedModel with = serve(kModel, args), without = serve(kModel);
  EXPECT_EQ(run(*with.engine, request).ids, run(*without.engine, request).ids);
}

TEST(Masks, ThatLeaveNoTokenFailTheirRequestOnly) {
  ServedModel served = serve(kModel);
  GenerateRequest request = request_of({5, 6, 7});
  request.sampling.allowed_token_ids = {9};
  request.sampling.bad_words = {{9}};
  const Outcome outcome = run(*served.engine, request);
  ASSERT_EQ(outcome.last.finish->type, FinishReason::Type::abort);
  EXPECT_EQ(outcome.last.finish->error.code(), StatusCode::invalid_argument);
  EXPECT_EQ(run(*served.engine, request_of({5, 6, 7})).ids.size(), 8u);
}

TEST(Masks, OnlyAllowedTokensAreSampled) {
  ServedModel served = serve(kModel);
  GenerateRequest request = request_of({5, 6, 7}, 40);
  request.sampling.allowed_token_ids = {11, 12, 13};
  for (const int32_t id : run(*served.engine, request).ids) {
    EXPECT_TRUE(id >= 11 && id <= 13) << id;
  }
}

TEST(KvCanary, FindsNothingWherePagesAreSharedRetractedAndReused) {
  ServerArgs args;
  args.enable_kv_canary = true;
  args.max_total_tokens = 96;
  args.page_size = 4;
  ServedModel served = serve(kModel, args);
  ServedModel plain = serve(kModel);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<std::promise<Outcome>>> promises;
    std::vector<GenerateRequest> requests;
    for (int i = 0; i < 6; ++i) {
      GenerateRequest request = request_of({20 + i % 2, 30, 40 + i}, 40);
      request.sampling.temperature = 0;
      auto promise = promises.emplace_back(std::make_shared<std::promise<Outcome>>());
      auto outcome = std::make_shared<Outcome>();
      requests.push_back(request);
      ASSERT_TRUE(served.engine->submit(std::move(request), [promise, outcome](OutputDelta delta) {
        outcome->ids.insert(outcome->ids.end(), delta.token_ids.begin(), delta.token_ids.end());
        if (delta.finish) promise->set_value(*outcome);
      }).ok());
    }
    for (size_t i = 0; i < promises.size(); ++i) {
      const Outcome outcome = promises[i]->get_future().get();
      requests[i].rid += "-plain";
      EXPECT_EQ(outcome.ids, run(*plain.engine, requests[i]).ids);
    }
    const Status audit = served.engine->audit();
    EXPECT_TRUE(audit.ok()) << audit.message();
  }
}

}  // namespace
}  // namespace warpweave
