#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "server/api/testing.h"

namespace warpweave::server::testing {
namespace {

TEST(Generate, MetaInfoInTheFieldsShape) {
  TestApi api;
  const Reply reply = api.post("/generate", R"({"text": "Once", "rid": "r1"})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json json = reply.json();
  EXPECT_EQ(json["text"], "Once upon a time");
  EXPECT_EQ(json["output_ids"], Json({100, 101, 102, 103}));
  const Json& meta = json["meta_info"];
  EXPECT_EQ(meta["id"], "r1");
  EXPECT_EQ(meta["finish_reason"], Json::parse(R"({"type": "stop", "matched": 2})"));
  EXPECT_GT(meta["prompt_tokens"], 0);
  EXPECT_EQ(meta["completion_tokens"], 4);
  EXPECT_EQ(meta["cached_tokens"], 0);
  EXPECT_EQ(meta["weight_version"], "default");
  EXPECT_EQ(meta["total_retractions"], 0);
  EXPECT_TRUE(meta["e2e_latency"].is_number());
  EXPECT_FALSE(meta.contains("input_token_logprobs"));
}

TEST(WeightVersion, IsThatOfTheFlagUntilItIsChanged) {
  TestApiOptions options;
  options.args.weight_version = "v\"1";
  TestApi api(std::move(options));
  const auto said = [&] {
    std::vector<Json> out = {api.get("/get_weight_version").json()["weight_version"], api.get("/get_model_info").json()["weight_version"],
                             api.post("/generate", R"({"text": "Once"})").json()["meta_info"]["weight_version"]};
    for (const char* path : {"/v1/completions", "/v1/chat/completions"}) {
      const char* body = R"({"prompt": "Once"})";
      if (path[5] == 'h') body = R"({"messages": [{"role": "user", "content": "a"}]})";
      out.push_back(api.post(path, body).json()["metadata"]["weight_version"]);
    }
    return out;
  };
  EXPECT_EQ(said(), std::vector<Json>(5, "v\"1"));
  const Reply reply = api.post("/update_weight_version", R"({"new_version": "v2", "abort_all_requests": false})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.json()["success"], true);
  EXPECT_EQ(reply.json()["new_version"], "v2");
  EXPECT_EQ(said(), std::vector<Json>(5, "v2"));
  EXPECT_EQ(api.post("/update_weight_version", "{}").status, 400);
  EXPECT_EQ(api.post("/update_weight_version", R"({"new_version": 2})").status, 400);
}

TEST(Generate, PlainDefaultsWhateverTheModelSays) {
  TestApiOptions options;
  options.default_sampling.temperature = 0.25f;
  TestApi api(std::move(options));
  api.post("/generate", R"({"text": "Once"})");
  const SamplingParams params = api.engine().submitted().at(0).sampling;
  EXPECT_EQ(params.temperature, 1.0f);
  EXPECT_EQ(params.max_new_tokens, 128);
  EXPECT_EQ(params.top_k, -1);
}

TEST(Generate, EverySamplingFieldArrives) {
  TestApi api;
  const Reply reply = api.post("/generate", R"({"input_ids": [5, 6], "priority": 3,
      "cache_salt": "tenant", "extra_key": "-b", "sampling_params": {"max_new_tokens": 9,
      "min_new_tokens": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1,
      "frequency_penalty": 0.2, "presence_penalty": -0.3, "repetition_penalty": 1.1,
      "sampling_seed": 7, "ignore_eos": true, "skip_special_tokens": false, "no_stop_trim": true,
      "stop": ["x", "yz"], "stop_token_ids": [8], "logit_bias": {"12": -1.5}}})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const GenerateRequest request = api.engine().submitted().at(0);
  const SamplingParams& p = request.sampling;
  EXPECT_EQ(request.input_ids, (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(request.priority, 3);
  EXPECT_EQ(request.cache_salt, "6:tenant-b");
  EXPECT_EQ(p.max_new_tokens, 9);
  EXPECT_EQ(p.min_new_tokens, 2);
  EXPECT_EQ(p.temperature, 0.5f);
  EXPECT_EQ(p.top_p, 0.9f);
  EXPECT_EQ(p.top_k, 40);
  EXPECT_EQ(p.min_p, 0.1f);
  EXPECT_EQ(p.frequency_penalty, 0.2f);
  EXPECT_EQ(p.presence_penalty, -0.3f);
  EXPECT_EQ(p.repetition_penalty, 1.1f);
  EXPECT_EQ(p.seed, 7u);
  EXPECT_TRUE(p.ignore_eos);
  EXPECT_FALSE(p.skip_special_tokens);
  EXPECT_TRUE(p.no_stop_trim);
  EXPECT_EQ(p.stop, (std::vector<std::string>{"x", "yz"}));
  EXPECT_EQ(p.stop_token_ids, (std::vector<int32_t>{8}));
  EXPECT_EQ(p.logit_bias, (std::vector<std::pair<int32_t, float>>{{12, -1.5f}}));
}

TEST(Generate, LengthIsAFinishReasonWithItsNumber) {
  TestApi api;
  const Json json =
      api.post("/generate", R"({"text": "a", "sampling_params": {"max_new_tokens": 2}})").json();
  EXPECT_EQ(json["meta_info"]["finish_reason"], Json::parse(R"({"type":"length","length":2})"));
}

TEST(Generate, StreamIsCumulativeAndEndsInDone) {
  TestApi api;
  const Reply reply = api.post("/generate", R"({"text": "Once", "stream": true})");
  EXPECT_EQ(reply.content_type, "text/event-stream");
  const std::vector<std::string> events = reply.events();
  ASSERT_EQ(events.size(), 5u) << reply.body;
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(Json::parse(events[0])["text"], "Once");
  EXPECT_EQ(Json::parse(events[1])["text"], "Once upon");
  EXPECT_EQ(Json::parse(events[1])["output_ids"], Json({100, 101}));
  EXPECT_TRUE(Json::parse(events[1])["meta_info"]["finish_reason"].is_null());
  EXPECT_EQ(Json::parse(events[3])["meta_info"]["finish_reason"]["type"], "stop");
}

TEST(Generate, LogprobsAreTriples) {
  TestApi api;
  const Json json = api.post("/generate", R"({"input_ids": [7, 8, 9], "return_logprob": true,
      "logprob_start_len": 0, "top_logprobs_num": 2, "token_ids_logprob": [3, 4],
      "sampling_params": {"max_new_tokens": 1}})").json();
  const Json& meta = json["meta_info"];
  EXPECT_EQ(meta["input_token_logprobs"],
            Json::parse("[[null, 7, null], [-0.5, 8, null], [-0.5, 9, null]]"));
  EXPECT_EQ(meta["output_token_logprobs"], Json::parse("[[-0.5, 100, null]]"));
  EXPECT_EQ(meta["output_top_logprobs"], Json::parse("[[[-0.5, 100, null], [-1.5, 101, null]]]"));
  EXPECT_EQ(meta["input_top_logprobs"].size(), 3u);
  EXPECT_EQ(meta["output_token_ids_logprobs"], Json::parse("[[[-1.5, 3, null], [-1.5, 4, null]]]"));

  TestApiOptions options;
  options.engine.script = {};  // the prompt's ids come back
  TestApi echo(std::move(options));
  const Json with_text = echo.post("/generate", R"({"text": "Once", "return_logprob": true,
      "return_text_in_logprobs": true, "sampling_params": {"max_new_tokens": 1}})").json();
  const int32_t first_id = echo.engine().submitted().at(0).input_ids.at(0);
  EXPECT_EQ(with_text["meta_info"]["output_token_logprobs"][0],
            Json({-0.5, first_id, std::string(echo.tokenizer().token_bytes(first_id))}));
  EXPECT_EQ(with_text["meta_info"]["input_token_logprobs"], Json::array());
}

// The prompt's as one list, then one for each new token but the last; also where no token is new.
TEST(Generate, HiddenStatesByPosition) {
  TestApiOptions options;
  options.engine.info.hidden_size = 2;
  options.engine.info.gives_states = true;
  TestApi api(std::move(options));
  const char* const kStates[] = {"[[[0.0, 0.0], [1.0, 1.0]]]", "[[[0.0, 0.0], [1.0, 1.0]]]",
                                 "[[[0.0, 0.0], [1.0, 1.0]], [2.0, 2.0], [3.0, 3.0]]"};
  int new_tokens = 0;
  for (const int tokens : {0, 1, 3}) {
    const Reply reply = api.post("/generate", R"({"input_ids": [7, 8], "return_hidden_states": true, "sampling_params": {"max_new_tokens": )" +
                                                  std::to_string(tokens) + "}}");
    ASSERT_TRUE(Json::accept(reply.body)) << reply.body;
    EXPECT_EQ(reply.json()["meta_info"]["hidden_states"], Json::parse(kStates[new_tokens++])) << reply.body;
  }
}

TEST(Generate, BatchesAreLists) {
  TestApi api;
  const Json json = api.post("/generate", R"({"input_ids": [[1], [2, 3]],
      "return_logprob": [true, false], "rid": ["a", "b"],
      "sampling_params": [{"max_new_tokens": 1}, {"max_new_tokens": 2}]})").json();
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[0]["meta_info"]["id"], "a");
  EXPECT_EQ(json[0]["output_ids"].size(), 1u);
  EXPECT_TRUE(json[0]["meta_info"].contains("output_token_logprobs"));
  EXPECT_EQ(json[1]["meta_info"]["id"], "b");
  EXPECT_EQ(json[1]["output_ids"].size(), 2u);
  EXPECT_EQ(json[1]["index"], 1);
  EXPECT_FALSE(json[1]["meta_info"].contains("output_token_logprobs"));
  // One item is still a list.
  EXPECT_TRUE(api.post("/generate", R"({"text": ["Once"]})").json().is_array());
}

TEST(Generate, NSamplesShareThePromptAndCountUpTheSeed) {
  TestApi api;
  const Json json = api.post("/generate", R"({"text": ["a", "b"], "rid": "group",
      "sampling_params": {"n": 2, "sampling_seed": 5}})").json();
  ASSERT_EQ(json.size(), 4u);
  const auto submitted = api.engine().submitted();
  ASSERT_EQ(submitted.size(), 4u);
  EXPECT_EQ(submitted[0].input_ids, submitted[1].input_ids);
  EXPECT_NE(submitted[1].input_ids, submitted[2].input_ids);
  EXPECT_EQ(submitted[0].sampling.seed, 5u);
  EXPECT_EQ(submitted[1].sampling.seed, 6u);
  std::vector<std::string> rids;
  for (const auto& request : submitted) rids.push_back(request.rid);
  std::sort(rids.begin(), rids.end());
  EXPECT_EQ(std::unique(rids.begin(), rids.end()), rids.end());
}

TEST(Generate, WorksWithoutATokenizer) {
  TestApiOptions options;
  options.with_tokenizer = false;
  TestApi api(std::move(options));
  EXPECT_EQ(api.post("/generate", R"({"input_ids": [1, 2]})").status, 200);
  EXPECT_EQ(api.post("/generate", R"({"text": "a"})").status, 400);
  EXPECT_EQ(api.post("/generate", R"({"input_ids": [1], "sampling_params": {"stop": "x"}})").status,
            400);
  EXPECT_EQ(api.post("/v1/completions", R"({"prompt": "a"})").status, 400);
  EXPECT_EQ(api.post("/tokenize", R"({"prompt": "a"})").status, 400);
}

TEST(Generate, DisconnectAbortsAllSequences) {
  TestApiOptions options;
  options.engine.never_finish = true;
  options.engine.token_delay = std::chrono::milliseconds(1);
  TestApi api(std::move(options));
  const auto writer = api.begin("POST", "/generate", R"({"text": "a", "stream": true,
      "sampling_params": {"n": 3, "max_new_tokens": 1000}})");
  ASSERT_TRUE(writer->wait_first_write());
  writer->disconnect();
  EXPECT_TRUE(api.engine().wait_for_aborts(3, std::chrono::seconds(30)));
}

TEST(Generate, AbortRequestEndsAGroupByItsRid) {
  TestApiOptions options;
  options.engine.never_finish = true;
  options.engine.token_delay = std::chrono::milliseconds(1);
  TestApi api(std::move(options));
  const auto writer = api.begin("POST", "/generate", R"({"text": "a", "rid": "mine",
      "sampling_params": {"n": 2, "max_new_tokens": 1000}})");
  EXPECT_EQ(api.post("/abort_request", R"({"rid": "other"})").status, 200);
  EXPECT_EQ(api.post("/abort_request", R"({"rid": "mine"})").status, 200);
  ASSERT_TRUE(writer->wait_done());
  EXPECT_EQ(writer->status, 200);
  EXPECT_EQ(Json::parse(writer->body)[0]["meta_info"]["finish_reason"]["type"], "abort");
  EXPECT_EQ(api.post("/abort_request", "{}").status, 400);
  EXPECT_EQ(api.post("/abort_request", R"({"abort_all": true})").status, 200);
}

// What a shutdown ends is no answer: 503 where nothing was sent, else an event that says so.
TEST(Generate, RequestsEndedByAShutdownSaySo) {
  TestApiOptions options;
  options.engine.never_finish = true;
  options.engine.token_delay = std::chrono::milliseconds(20);
  TestApi api(std::move(options));
  const std::string body = R"({"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 1000})";
  const auto whole = api.begin("POST", "/generate", body + "}");
  const auto stream = api.begin("POST", "/generate", body + R"(, "stream": true})");
  ASSERT_TRUE(stream->wait_first_write());
  api.engine().drain(0);
  ASSERT_TRUE(whole->wait_done());
  EXPECT_EQ(whole->status, 503);
  EXPECT_EQ(whole->headers, (std::vector<std::pair<std::string, std::string>>{{"Retry-After", "1"}}));
  ASSERT_TRUE(stream->wait_done());
  const Reply reply{stream->status, stream->content_type, stream->body, {}, true};
  const std::vector<std::string> events = reply.events();
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events.back(), "[DONE]");
  const Json error = Json::parse(events[events.size() - 2]);
  EXPECT_EQ(error["error"]["type"], "service_unavailable");
  const Json last = Json::parse(events[events.size() - 3]);
  EXPECT_EQ(last["meta_info"]["finish_reason"]["type"], "abort");
}

TEST(Generate, ARidInUseIsRefused) {
  TestApiOptions options;
  options.engine.never_finish = true;
  options.engine.token_delay = std::chrono::milliseconds(1);
  TestApi api(std::move(options));
  const std::string one =
      R"({"text": "a", "rid": "x", "sampling_params": {"max_new_tokens": 999}})";
  const std::string two =
      R"({"text": "a", "rid": "y", "sampling_params": {"max_new_tokens": 999, "n": 2}})";
  const auto first = api.begin("POST", "/generate", one);
  EXPECT_EQ(api.post("/generate", one).status, 400);
  const auto group = api.begin("POST", "/generate", two);
  EXPECT_EQ(api.post("/generate", two).status, 400);
  api.post("/abort_request", R"({"abort_all": true})");
  ASSERT_TRUE(first->wait_done());
  ASSERT_TRUE(group->wait_done());
  EXPECT_EQ(group->answers, 1);
}

TEST(Generate, ARefusedSequenceRefusesTheWholeRequest) {
  TestApiOptions options;
  options.engine.max_queued = 2;
  options.engine.never_finish = true;
  options.engine.token_delay = std::chrono::milliseconds(1);
  TestApi api(std::move(options));
  const auto writer = api.begin("POST", "/generate", R"({"text": "a", "stream": true,
      "sampling_params": {"n": 3, "max_new_tokens": 1000}})");
  ASSERT_TRUE(writer->wait_done());
  EXPECT_EQ(writer->status, 429);
  EXPECT_EQ(Json::parse(writer->body)["error"]["code"], "queue_full");
  EXPECT_EQ(writer->answers, 1);
  EXPECT_TRUE(api.engine().wait_for_aborts(2, std::chrono::seconds(30)));
}

TEST(Info, HealthFollowsReadiness) {
  auto ready = std::make_shared<std::atomic<bool>>(true);
  TestApiOptions options;
  options.is_ready = [ready] { return ready->load(); };
  TestApi api(std::move(options));
  for (const char* path : {"/health", "/ready", "/ping", "/health_generate"}) {
    ready->store(true);
    EXPECT_EQ(api.get(path).status, 200) << path;
    ready->store(false);
    EXPECT_EQ(api.get(path).status, 503) << path;
  }
}

TEST(Info, ModelAndServer) {
  TestApiOptions options;
  options.engine.info.model_path = "/models/\xff";  // a path need not be UTF-8
  options.engine.info.served_model_name = "tale";
  options.engine.info.decode_attention_backend = "intel_amx";
  options.engine.info.attention_reasons = {"decode: auto -> intel_amx, because ..."};
  options.engine.info.attention_refused = {"fa3: has no kernels for CPU (x86-64)"};
  TestApi api(std::move(options));
  for (const char* path : {"/get_model_info", "/model_info"}) {
    const Json json = api.get(path).json();
    EXPECT_TRUE(json["is_generation"]);
    EXPECT_EQ(json["served_model_name"], "tale");
  }
  for (const char* path : {"/get_server_info", "/server_info"}) {
    const Json json = api.get(path).json();
    EXPECT_EQ(json["schedule_policy"], "fcfs");
    EXPECT_EQ(json["attention"]["decode"], "intel_amx");
    EXPECT_EQ(json["attention"]["reasons"].size(), 1u);
    EXPECT_EQ(json["attention"]["refused"].size(), 1u);
    EXPECT_EQ(json["internal_states"][0]["num_running_reqs"], 0);
    EXPECT_TRUE(json["version"].is_string());
  }
}

TEST(Info, FlushCache) {
  TestApiOptions options;
  options.engine.never_finish = true;
  options.engine.token_delay = std::chrono::milliseconds(1);
  TestApi api(std::move(options));
  EXPECT_EQ(api.post("/flush_cache", "").status, 200);
  EXPECT_EQ(api.get("/flush_cache").status, 404);  // no such method
  EXPECT_EQ(api.engine().flushes(), 1);
  const auto writer = api.begin("POST", "/generate",
                                R"({"text": "a", "sampling_params": {"max_new_tokens": 999}})");
  EXPECT_EQ(api.post("/flush_cache", "").status, 400);
  api.post("/abort_request", R"({"abort_all": true})");
  ASSERT_TRUE(writer->wait_done());
}

TEST(Text, TokenizeAndBack) {
  TestApi api;
  const std::string text = "Once upon a time, Zoë 😀";
  const Json one = api.post("/tokenize", Json{{"prompt", text}}.dump()).json();
  EXPECT_EQ(one["count"], one["tokens"].size());
  EXPECT_EQ(one["max_model_len"], 1024);
  const Json back = api.post("/detokenize", Json{{"tokens", one["tokens"]}}.dump()).json();
  EXPECT_EQ(back["text"], text);

  const Json two = api.post("/v1/tokenize", R"({"prompt": ["a b", ""]})").json();
  EXPECT_EQ(two["tokens"].size(), 2u);
  EXPECT_EQ(two["count"][1], 0);
  const Json texts = api.post("/v1/detokenize", Json{{"tokens", two["tokens"]}}.dump()).json();
  EXPECT_EQ(texts["text"], Json({"a b", ""}));
  EXPECT_EQ(api.post("/detokenize", R"({"tokens": [4096]})").status, 400);
  EXPECT_EQ(api.post("/tokenize", "{}").status, 400);
}

TEST(Routes, EachPathIsThereOnceWithItsKeyLevel) {
  TestApi api;
  std::vector<std::string> seen;
  for (const Route& route : api.router().routes()) seen.push_back(route.method + " " + route.path);
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::unique(seen.begin(), seen.end()), seen.end());
  for (const Route& route : api.router().routes()) {
    const bool open = route.path == "/" || route.path == "/health" || route.path == "/ready" ||
                      route.path == "/ping" || route.path.starts_with("/ui/");
    EXPECT_EQ(route.auth == AuthLevel::open, open) << route.path;
  }
}

TEST(Routes, TheRootIsThePage) {
  TestApi api;
  const Reply reply = api.get("/");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.content_type, "text/html; charset=utf-8");
  EXPECT_NE(reply.body.find("<html"), std::string::npos);
  EXPECT_EQ(api.get("/ui/main.js").content_type, "text/javascript; charset=utf-8");
  EXPECT_EQ(api.get("/ui/style.css").content_type, "text/css; charset=utf-8");
}

}  // namespace
}  // namespace warpweave::server::testing
