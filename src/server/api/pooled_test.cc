// /v1/embeddings, /encode, /classify, /v1/score and the rerank endpoints over the fake engine, whose pooled results
// follow from the ids: value i is ids[i % tokens] % 7 + i.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>

#include "server/api/testing.h"

namespace warpweave::server::testing {
namespace {

constexpr int kSize = 4;

TestApiOptions embedding_options() {
  TestApiOptions options;
  options.engine.info.pools = options.engine.info.gives_states = true;
  options.engine.info.pooled_size = kSize;
  options.engine.info.pooling = "last";
  return options;
}

TestApiOptions label_options(std::vector<std::string> labels) {
  TestApiOptions options = embedding_options();
  options.engine.info.generates = false;
  options.engine.info.pooled_size = static_cast<int>(labels.size());
  options.engine.info.labels = std::move(labels);
  return options;
}

std::vector<float> fake_result(const std::vector<int>& ids, int size = kSize) {
  std::vector<float> out;
  for (int i = 0; i < size; ++i) out.push_back(static_cast<float>(ids[i % ids.size()] % 7 + i));
  return out;
}

TEST(Embeddings, TokenIdsTextsAndBatches) {
  TestApi api(embedding_options());
  const Json one = api.post("/v1/embeddings", R"({"model": "default", "input": [5, 6, 9]})").json();
  EXPECT_EQ(one["object"], "list");
  EXPECT_EQ(one["data"][0]["embedding"].get<std::vector<float>>(), fake_result({5, 6, 9}));
  EXPECT_EQ(one["usage"], Json::parse(R"({"prompt_tokens": 3, "total_tokens": 3, "completion_tokens": 0})"));
  const Json batch = api.post("/v1/embeddings", R"({"input": [[1, 2], [3]], "user": "me"})").json();
  ASSERT_EQ(batch["data"].size(), 2u);
  EXPECT_EQ(batch["data"][1]["index"], 1);
  EXPECT_EQ(batch["data"][1]["embedding"].get<std::vector<float>>(), fake_result({3}));
  EXPECT_EQ(batch["usage"]["prompt_tokens"], 3);
  const Json texts = api.post("/v1/embeddings", R"({"input": ["Once upon", "a time"]})").json();
  EXPECT_EQ(texts["data"].size(), 2u);
  for (const GenerateRequest& request : api.engine().submitted()) EXPECT_EQ(request.states, StateWish::pooled);
}

TEST(Embeddings, Base64HoldsTheSameFloats) {
  TestApi api(embedding_options());
  const Json reply = api.post("/v1/embeddings", R"({"input": [5, 6], "encoding_format": "base64"})").json();
  // 16 bytes are 24 characters, the last two of them padding.
  const std::string text = reply["data"][0]["embedding"];
  ASSERT_EQ(text.size(), 24u);
  EXPECT_TRUE(text.ends_with("=="));
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text.substr(0, 22)) {
    bits = bits << 6 | static_cast<uint32_t>(kDigits.find(c));
    if ((count += 6) >= 8) bytes += static_cast<char>(bits >> (count -= 8) & 255);
  }
  std::vector<float> values(kSize);
  ASSERT_EQ(bytes.size(), sizeof(float) * kSize);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  EXPECT_EQ(values, fake_result({5, 6}));
}

TEST(Embeddings, DimensionsKeepTheLengthOfNormalizedOnes) {
  TestApiOptions options = embedding_options();
  TestApi plain(options);
  EXPECT_EQ(plain.post("/v1/embeddings", R"({"input": [5, 6], "dimensions": 2})").json()["data"][0]["embedding"].get<std::vector<float>>(),
            (std::vector<float>{5, 7}));
  options.engine.info.pooling = "last, normalized";
  options.engine.info.normalizes_pooled = true;
  TestApi normalized(options);
  const auto values = normalized.post("/v1/embeddings", R"({"input": [5, 6], "dimensions": 2})").json()["data"][0]["embedding"].get<std::vector<float>>();
  ASSERT_EQ(values.size(), 2u);
  EXPECT_NEAR(std::hypot(values[0], values[1]), 1, 1e-6);
  EXPECT_NEAR(values[0] / values[1], 5.0 / 7, 1e-6);
}

TEST(Embeddings, BadFieldsAreNamed) {
  TestApi api(embedding_options());
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "input"}, {R"({"input": []})", "input"}, {R"({"input": ""})", "input"}, {R"({"input": 5})", "input"},
      {R"({"input": [1, "a"]})", "input[1]"}, {R"({"input": [[1], 2]})", "input[1]"}, {R"({"input": [99999999]})", "input[0]"},
      {R"({"input": [1], "dimensions": 0})", "dimensions"}, {R"({"input": [1], "dimensions": 5})", "dimensions"},
      {R"({"input": [1], "encoding_format": "hex"})", "encoding_format"}, {R"({"input": [1], "dimension": 2})", "dimension"},
      {R"({"input": [1], "truncate_prompt_tokens": 0})", "truncate_prompt_tokens"}, {R"({"input": [1], "model": "other"})", "model"}};
  for (const auto& [body, field] : cases) {
    const Reply reply = api.post("/v1/embeddings", body);
    EXPECT_GE(reply.status, 400) << body;
    EXPECT_LT(reply.status, 500) << body;
    EXPECT_EQ(reply.json()["error"]["param"], field) << body << reply.body;
  }
  EXPECT_TRUE(api.engine().submitted().empty());
}

std::string list_of(int tokens) {
  std::string out = "[1";
  for (int i = 1; i < tokens; ++i) out += ",1";
  return out + "]";
}

struct LongPrompt {
  const char* path;
  std::string body;
  const char* field;
  size_t most;  // tokens
};

// The fake context holds 1,024 tokens; a score of tokens generates one.
TEST(PooledLengths, PromptsThatDoNotFitAreNamed) {
  const std::string fits = list_of(1024), over = list_of(1025), long_text = "\"" + std::string(9000, 'x') + "\"";
  TestApi embeddings(embedding_options()), labels(label_options({"one"})), generating;
  const std::pair<TestApi*, LongPrompt> cases[] = {
      {&embeddings, {"/v1/embeddings", "\"input\": [" + fits + "," + over + "]", "input[1]", 1024}},
      {&embeddings, {"/v1/embeddings", "\"input\": [[1], []]", "input[1]", 0}},
      {&embeddings, {"/v1/embeddings", "\"input\": [\"a\", " + long_text + "]", "input[1]", 1024}},
      {&embeddings, {"/encode", "\"input_ids\": " + over, "input_ids", 1024}},
      {&embeddings, {"/v1/score", "\"text_1\": \"a\", \"text_2\": [\"b\", " + long_text + "]", "text_2[1]", 1024}},
      {&labels, {"/classify", "\"input\": " + over, "input", 1024}},
      {&labels, {"/rerank", "\"query\": " + long_text + ", \"documents\": [\"b\"]", "documents[0]", 1024}},
      {&generating, {"/v1/score", "\"query\": " + fits + ", \"items\": [[]], \"label_token_ids\": [5]", "items[0]", 1023}},
  };
  for (const auto& [api, wrong] : cases) {
    const Reply reply = api->post(wrong.path, "{" + wrong.body + "}");
    ASSERT_EQ(reply.status, 400) << wrong.path << reply.body;
    EXPECT_EQ(reply.json()["error"]["param"], wrong.field) << reply.body;
    if (wrong.most == 0) continue;
    EXPECT_TRUE(api->engine().submitted().empty()) << "refused before anything was queued";
    const Reply cut = api->post(wrong.path, "{" + wrong.body + ", \"truncate_prompt_tokens\": -1}");
    ASSERT_EQ(cut.status, 200) << wrong.path << cut.body;
    size_t longest = 0;
    for (const GenerateRequest& request : api->engine().submitted()) longest = std::max(longest, request.input_ids.size());
    EXPECT_EQ(longest, wrong.most) << wrong.path;
    api->engine().forget_submitted();
  }
}

// Also where unknown fields pass: they would be ignored.
TEST(PooledFields, ThoseOfOthersAreRefusedByName) {
  TestApiOptions embedding = embedding_options(), classifying = label_options({"one"}), generating;
  for (TestApiOptions* options : {&embedding, &classifying, &generating}) options->args.allow_unknown_fields = true;
  TestApi embeddings(embedding), labels(classifying), tokens(generating);
  const std::tuple<TestApi*, const char*, const char*> cases[] = {
      {&embeddings, "/v1/embeddings", R"("input": "a")"}, {&embeddings, "/encode", R"("text": "a")"},
      {&embeddings, "/v1/score", R"("text_1": "a", "text_2": "b")"}, {&labels, "/classify", R"("input": "a")"},
      {&labels, "/rerank", R"("query": "a", "documents": ["b"])"}, {&labels, "/v1/rerank", R"("query": "a", "documents": ["b"])"},
      {&tokens, "/v1/score", R"("query": "a", "items": ["b"], "label_token_ids": [5])"}};
  for (const auto& [api, path, body] : cases) {
    const Reply reply = api->post(path, std::string("{") + body + R"(, "image_data": "x"})");
    EXPECT_EQ(reply.status, 400) << path << reply.body;
    EXPECT_EQ(reply.json()["error"]["param"], "image_data") << path << reply.body;
    EXPECT_EQ(api->post(path, std::string("{") + body + R"(, "image_data": null})").status, 200) << path;
  }
}

TEST(Embeddings, NeedAServerThatGivesThem) {
  TestApiOptions options;
  options.engine.info.gives_states = true;
  TestApi api(options);
  const Reply reply = api.post("/v1/embeddings", R"({"input": [1]})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.body.find("--is-embedding"), std::string::npos);
  EXPECT_EQ(TestApi(label_options({"a", "b"})).post("/v1/embeddings", R"({"input": [1]})").status, 400);
}

TEST(Encode, HasTheNativeShape) {
  TestApi api(embedding_options());
  const Json one = api.post("/encode", R"({"input_ids": [5, 6]})").json();
  EXPECT_EQ(one["embedding"].get<std::vector<float>>(), fake_result({5, 6}));
  EXPECT_EQ(one["meta_info"]["prompt_tokens"], 2);
  const Json list = api.post("/encode", R"({"text": ["Once", "upon"]})").json();
  ASSERT_TRUE(list.is_array());
  EXPECT_EQ(list.size(), 2u);
  EXPECT_EQ(api.post("/encode", R"({"text": "a", "image_data": "x"})").status, 400);
}

TEST(Classify, BothShapes) {
  TestApi api(label_options({"low", "high"}));
  const Json reply = api.post("/classify", R"({"input": [[1], [6, 0]]})").json();
  // [1, 2] and [6, 1]
  EXPECT_EQ(reply["data"][0]["label"], "high");
  EXPECT_EQ(reply["data"][1]["label"], "low");
  EXPECT_EQ(reply["data"][0]["num_classes"], 2);
  EXPECT_NEAR(reply["data"][0]["probs"][1].get<double>(), 1 / (1 + std::exp(-1.0)), 1e-6);
  const Json native = api.post("/v1/classify", R"({"input_ids": [1]})").json();
  EXPECT_EQ(native["embedding"].get<std::vector<float>>(), fake_result({1}, 2));
  EXPECT_EQ(TestApi(embedding_options()).post("/classify", R"({"input": [1]})").status, 400);
}

TEST(Score, CosinesOfEmbeddings) {
  TestApi api(embedding_options());
  const Json reply = api.post("/v1/score", R"({"text_1": "Once", "text_2": ["Once", "upon a"]})").json();
  ASSERT_EQ(reply["data"].size(), 2u);
  EXPECT_NEAR(reply["data"][0]["score"].get<double>(), 1, 1e-6);
  EXPECT_LT(reply["data"][1]["score"].get<double>(), 1);
  EXPECT_EQ(api.post("/score", R"({"text_1": ["a", "b"], "text_2": ["a"]})").json()["error"]["param"], "text_1");
  EXPECT_EQ(api.post("/score", R"({"text_1": "a"})").json()["error"]["param"], "text_2");
}

// vLLM's versions have three names for the two texts.
TEST(Score, TextsUnderEachName) {
  TestApi api(embedding_options());
  const Json expected = api.post("/v1/score", R"({"text_1": "Once", "text_2": ["Once", "upon a"]})").json()["data"];
  for (const char* body : {R"({"queries": "Once", "documents": ["Once", "upon a"]})", R"({"data_1": "Once", "data_2": ["Once", "upon a"]})"}) {
    EXPECT_EQ(api.post("/v1/score", body).json()["data"], expected) << body;
  }
  const std::pair<const char*, const char*> faults[] = {
      {R"({"queries": ["a", "b"], "documents": ["a"]})", "queries"}, {R"({"queries": "a"})", "documents"},
      {R"({"documents": "a"})", "queries"}, {R"({"text_1": "a", "text_2": "b", "data_1": "c"})", "data_1"},
      {R"({"queries": "a", "text_2": "b"})", "queries"}};
  for (const auto& [body, field] : faults) {
    const Reply reply = api.post("/score", body);
    EXPECT_EQ(reply.status, 400) << body;
    EXPECT_EQ(reply.json()["error"]["param"], field) << reply.body;
  }
}

TEST(Score, ProbabilitiesOfListedTokens) {
  TestApi api;
  const Json reply = api.post("/v1/score", R"({"query": "Once", "items": [" upon", " a"], "label_token_ids": [5, 6]})").json();
  EXPECT_EQ(reply["object"], "scoring");
  ASSERT_EQ(reply["scores"].size(), 2u);
  EXPECT_NEAR(reply["scores"][1][0].get<double>(), std::exp(-1.5), 1e-6);
  const Json softmax = api.post("/v1/score", R"({"query": [1, 2], "items": [[3], [4]], "label_token_ids": [5, 6],
      "apply_softmax": true, "item_first": true})").json();
  EXPECT_NEAR(softmax["scores"][0][0].get<double>(), 0.5, 1e-6);
  const auto submitted = api.engine().submitted();
  EXPECT_EQ(submitted[3].input_ids, (std::vector<int32_t>{4, 1, 2}));
  EXPECT_EQ(submitted[3].sampling.max_new_tokens, 1);
  for (const char* body : {R"({"query": "a", "items": ["b"]})", R"({"query": "a", "items": [], "label_token_ids": [1]})",
                           R"({"query": "a", "items": [[1]], "label_token_ids": [1]})"}) {
    EXPECT_EQ(api.post("/v1/score", body).status, 400) << body;
  }
}

TEST(Rerank, SortsAndCuts) {
  TestApi api(label_options({"relevant"}));
  const char* body = R"({"query": "Once", "documents": ["upon", {"text": " a time"}, "x"], "top_n": 2})";
  const Json results = api.post("/rerank", body).json();
  ASSERT_EQ(results["results"].size(), 2u);
  EXPECT_GE(results["results"][0]["relevance_score"].get<double>(), results["results"][1]["relevance_score"].get<double>());
  EXPECT_TRUE(results["results"][0]["document"].contains("text"));
  EXPECT_GT(results["usage"]["total_tokens"], 0);
  const Json native = api.post("/v1/rerank", R"({"query": "Once", "documents": ["upon", "a"]})").json();
  ASSERT_EQ(native.size(), 2u);
  EXPECT_TRUE(native[0].contains("score") && native[0].contains("document") && native[0].contains("meta_info"));
  EXPECT_EQ(api.engine().submitted().size(), 5u);  // a pair is one prompt
  EXPECT_EQ(api.post("/v1/rerank", R"({"query": "a", "documents": ["b"], "instruct": "c"})").json()["error"]["param"], "instruct");
  EXPECT_EQ(api.post("/v1/rerank", R"({"documents": ["b"]})").json()["error"]["param"], "query");
  EXPECT_EQ(TestApi(label_options({"a", "b"})).post("/rerank", R"({"query": "a", "documents": ["b"]})").status, 400);
}

TEST(Rerank, EmbedsTheQueryOnce) {
  TestApi api(embedding_options());
  const Json native = api.post("/v1/rerank", R"({"query": "Once", "documents": ["upon", "Once"], "return_documents": false})").json();
  EXPECT_EQ(native[0]["index"], 1);
  EXPECT_TRUE(native[0]["document"].is_null());
  EXPECT_EQ(api.engine().submitted().size(), 3u);
}

}  // namespace
}  // namespace warpweave::server::testing
