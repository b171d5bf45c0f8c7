// Adapters named by requests, and loaded and unloaded by them, over a store without tensors.
#include <gtest/gtest.h>

#include "server/api/testing.h"
#include "server/metrics.h"
#include "server/testing/fake_adapters.h"

namespace warpweave::server::testing {
namespace {

class Adapters : public ::testing::Test {
 protected:
  Adapters() : api_([this] {
    TestApiOptions options;
    options.engine.info.served_model_name = "base";
    options.adapters = &store_;
    return options;
  }()) {}

  const LoraAdapter* last_adapter() {
    const auto submitted = api_.engine().submitted();
    return submitted.empty() ? nullptr : submitted.back().adapter.get();
  }
  const LoraAdapter* french() { return store_.list()[0].weights.get(); }

  FakeAdapters store_;
  TestApi api_;
};

TEST_F(Adapters, RequestsNameThemByModelOrPath) {
  for (const char* member : {R"("model": "french")", R"("model": "base:french")", R"("model": "default:french")", R"("lora_path": "french")",
                             R"("model": "base", "lora_path": "french")", R"("model": "french", "lora_path": "french")"}) {
    const std::string fields = std::string(member) + R"(, "max_tokens": 2)";
    const Reply completion = api_.post("/v1/completions", "{\"prompt\": \"x\", " + fields + "}");
    ASSERT_EQ(completion.status, 200) << member << completion.body;
    EXPECT_EQ(last_adapter(), french()) << member;
    EXPECT_EQ(completion.json()["model"], "french");
    const Reply chat = api_.post("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "x"}], )" + fields + "}");
    ASSERT_EQ(chat.status, 200) << member << chat.body;
    EXPECT_EQ(last_adapter(), french()) << member;
    EXPECT_EQ(chat.json()["model"], "french");
  }
  const Reply plain = api_.post("/v1/completions", R"({"model": "base", "prompt": "x", "lora_path": null})");
  EXPECT_EQ(plain.json()["model"], "base");
  EXPECT_EQ(last_adapter(), nullptr);
  const Reply messages = api_.post("/v1/messages", R"({"model": "base:french", "max_tokens": 2, "messages": [{"role": "user", "content": "x"}]})");
  EXPECT_EQ(messages.json()["model"], "french") << messages.body;
  EXPECT_EQ(last_adapter(), french());
  const Reply responses = api_.post("/v1/responses", R"({"model": "french", "input": "x", "max_output_tokens": 2})");
  EXPECT_EQ(responses.json()["model"], "french") << responses.body;
  EXPECT_EQ(last_adapter(), french());
}

TEST_F(Adapters, NativeRequestsNameOneForAllPromptsOrOneForEach) {
  EXPECT_EQ(api_.post("/generate", R"({"text": "x", "lora_path": "french"})").status, 200);
  EXPECT_EQ(last_adapter(), french());
  ASSERT_EQ(api_.post("/generate", R"({"text": ["a", "b", "c"], "lora_path": ["french", null, ""]})").status, 200);
  const auto submitted = api_.engine().submitted();
  ASSERT_GE(submitted.size(), 3u);
  EXPECT_EQ(submitted[submitted.size() - 3].adapter.get(), french());
  EXPECT_EQ(submitted[submitted.size() - 2].adapter.get(), nullptr);
  EXPECT_EQ(submitted[submitted.size() - 1].adapter.get(), nullptr);
}

TEST_F(Adapters, UnknownNamesAreNotFound) {
  const size_t before = api_.engine().submitted().size();
  for (const auto& [path, body] : {std::pair("/v1/completions", R"({"model": "german", "prompt": "x"})"),
                                   {"/v1/completions", R"({"model": "base:german", "prompt": "x"})"},
                                   {"/v1/completions", R"({"model": "other:french", "prompt": "x"})"},
                                   {"/v1/completions", R"({"lora_path": "german", "prompt": "x"})"},
                                   {"/generate", R"({"text": "x", "lora_path": "german"})"},
                                   {"/generate", R"({"text": ["x", "y"], "lora_path": ["french", "german"]})"}}) {
    EXPECT_EQ(api_.post(path, body).status, 404) << body;
  }
  for (const char* body : {R"({"model": "french", "lora_path": "german", "prompt": "x"})", R"({"lora_path": 5, "prompt": "x"})"}) {
    EXPECT_EQ(api_.post("/v1/completions", body).status, 400) << body;
  }
  EXPECT_EQ(api_.post("/generate", R"({"text": ["x", "y"], "lora_path": ["french"]})").status, 400);
  EXPECT_EQ(api_.engine().submitted().size(), before);
}

TEST_F(Adapters, AreLoadedAndUnloadedInBothShapes) {
  const Reply loaded = api_.post("/load_lora_adapter", R"({"lora_name": "german", "lora_path": "german", "pinned": true})");
  ASSERT_EQ(loaded.status, 200) << loaded.body;
  EXPECT_EQ(loaded.json()["success"], true);
  EXPECT_EQ(loaded.json()["loaded_adapters"], Json::parse(R"({"french": "/adapters/french", "german": "/adapters/german"})"));
  const Reply unloaded = api_.post("/unload_lora_adapter", R"({"lora_name": "german"})");
  EXPECT_EQ(unloaded.json()["loaded_adapters"].size(), 1u) << unloaded.body;
  const Reply spoken = api_.post("/v1/load_lora_adapter", R"({"lora_name": "german", "lora_path": "german"})");
  EXPECT_EQ(spoken.body, "Success: LoRA adapter 'german' added successfully.");
  EXPECT_EQ(api_.post("/v1/unload_lora_adapter", R"({"lora_name": "german", "lora_int_id": 3})").status, 200);
  EXPECT_EQ(api_.post("/v1/unload_lora_adapter", R"({"lora_name": "german"})").status, 404);
  for (const char* body : {R"({"lora_path": "x"})", R"({"lora_name": "x"})", R"({"lora_name": 5, "lora_path": "x"})", "{}",
                           R"({"lora_name": "x", "lora_path": "x", "load_inplace": true})", R"({"lora_name": "x", "lora_path": "x", "who": 1})"}) {
    EXPECT_EQ(api_.post("/load_lora_adapter", body).status, 400) << body;
    EXPECT_EQ(api_.post("/v1/load_lora_adapter", body).status, 400) << body;
  }
  EXPECT_EQ(api_.post("/load_lora_adapter", R"({"lora_name": "x", "lora_path": "outside"})").status, 404);
  // The server has not failed, and waiting does not help.
  for (const char* path : {"/load_lora_adapter", "/v1/load_lora_adapter"}) {
    const Reply broken = api_.post(path, R"({"lora_name": "x", "lora_path": "broken"})");
    EXPECT_EQ(broken.status, 400) << broken.body;
    EXPECT_EQ(broken.json()["error"]["param"], "adapter_model.safetensors");
    EXPECT_EQ(api_.post(path, R"({"lora_name": "x", "lora_path": "too-many"})").status, 400);
    const Reply wide = api_.post(path, R"({"lora_name": "x", "lora_path": "f64"})");
    EXPECT_EQ(wide.status, 400) << wide.body;
    EXPECT_EQ(wide.json()["error"]["param"], "lora_path") << "an error that names no field is the folder's";
  }
}

TEST_F(Adapters, AreListedAndCounted) {
  const Json models = api_.get("/v1/models").json()["data"];
  ASSERT_EQ(models.size(), 2u);
  EXPECT_EQ(models[1]["id"], "french");
  EXPECT_EQ(models[1]["root"], "/adapters/french");
  EXPECT_EQ(models[1]["parent"], "base");
  EXPECT_EQ(api_.get("/v1/models/french").json()["id"], "french");
  (void)api_.post("/generate", R"({"text": "x", "lora_path": "french"})");
  const ServerMetrics metrics({.model_name = "base"});
  const std::string page = metrics.render(nullptr, &store_);
  EXPECT_NE(page.find(R"(warpweave:lora_requests_total{model_name="base",lora_name="french"} 1)"), std::string::npos) << page;
}

TEST_F(Adapters, RoutesThatChangeTheServerNeedTheAdminKey) {
  int found = 0;
  for (const Route& route : api_.router().routes()) {
    if (route.path.find("load_lora_adapter") == route.path.npos) continue;
    EXPECT_EQ(route.auth, AuthLevel::admin) << route.path;
    ++found;
  }
  EXPECT_EQ(found, 4);
}

TEST(WithoutAdapters, RequestsForThemAreRefused) {
  TestApi api;
  EXPECT_EQ(api.post("/generate", R"({"text": "x", "lora_path": "a"})").status, 400);
  EXPECT_EQ(api.post("/v1/completions", R"({"prompt": "x", "lora_path": "a"})").status, 400);
  EXPECT_EQ(api.post("/v1/completions", R"({"prompt": "x", "model": "default:a"})").status, 404);
  EXPECT_EQ(api.post("/load_lora_adapter", R"({"lora_name": "a", "lora_path": "b"})").status, 400);
  EXPECT_EQ(api.post("/v1/embeddings", R"({"input": "x", "lora_path": "a"})").status, 400);
}

}  // namespace
}  // namespace warpweave::server::testing
