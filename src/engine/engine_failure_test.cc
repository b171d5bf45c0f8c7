// What goes wrong inside: values that are no numbers, memory that ends, pages that change by
// themselves. The request fails with a reason; the engine serves the next one.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

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
  EXPECT_EQ(finished.wait_for(std::chrono::seconds(60)), std::future_status::ready);
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
