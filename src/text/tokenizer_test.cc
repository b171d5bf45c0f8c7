#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "text/detokenizer.h"

namespace warpweave {
namespace {

const std::filesystem::path kGoldens = "tests/golden/tokenizer";
const char* const kFamilies[] = {
    "bert",   "bert_cased", "xlm_roberta", "unigram_bytes",  "gpt2",         "gpt2_prefix", "llama3", "qwen2",
    "smollm", "o200k",      "deepseek_v3", "deepseek_coder", "gguf_default", "falcon",      "llama2", "mistral",
    "gemma",  "metaspace",  "unk"};
const char* const kSplitBehaviors[] = {"split_removed", "split_isolated",
                                       "split_merged_with_previous", "split_merged_with_next",
                                       "split_contiguous"};

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::unique_ptr<Tokenizer> load(const std::filesystem::path& path) {
  auto tokenizer = load_hf_tokenizer(read_file(path), "");
  EXPECT_TRUE(tokenizer.ok()) << path << ": " << tokenizer.status().message();
  return tokenizer.ok() ? std::move(tokenizer).value() : nullptr;
}

std::vector<int32_t> encode(const Tokenizer& tokenizer, std::string_view text) {
  auto ids = tokenizer.encode(text, false);
  EXPECT_TRUE(ids.ok()) << ids.status().message();
  return ids.ok() ? *ids : std::vector<int32_t>();
}

std::string hash_of(const std::vector<int32_t>& ids) {
  uint64_t value = 0xCBF29CE484222325u;
  for (int32_t id : ids) {
    for (int shift = 0; shift < 32; shift += 8) {
      value = (value ^ (static_cast<uint32_t>(id) >> shift & 0xFF)) * 0x100000001B3u;
    }
  }
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

void expect_golden(const Tokenizer& tokenizer, const nlohmann::json& golden) {
  EXPECT_EQ(tokenizer.vocab_size(), golden["vocab_size"]);
  for (const auto& item : golden["encode"]) {
    const auto text = item[0].get<std::string>();
    EXPECT_EQ(encode(tokenizer, text), item[1].get<std::vector<int32_t>>()) << text;
  }
  EXPECT_EQ(*tokenizer.encode("Hello", true), golden["with_special"].get<std::vector<int32_t>>());
  // Pairs, where the post-processor has something to say of them.
  for (const auto& item : golden.value("pairs", nlohmann::json::array())) {
    const auto first = *tokenizer.encode(item[0].get<std::string>(), false),
               second = *tokenizer.encode(item[1].get<std::string>(), false);
    const auto pair = tokenizer.join_pair(first, second);
    ASSERT_TRUE(pair.ok()) << pair.status().message();
    EXPECT_EQ(pair->ids, item[2].get<std::vector<int32_t>>()) << item;
    const auto types = item[3].get<std::vector<int>>();
    const auto second_at = std::find(types.begin(), types.end(), 1) - types.begin();
    EXPECT_EQ(pair->second_text_at, second_at) << item;
  }
  for (const auto& item : golden["decode"]) {
    const auto ids = item[0].get<std::vector<int32_t>>();
    for (bool skip : {false, true}) {
      const auto wanted = item[skip ? 2 : 1].get<std::string>();
      EXPECT_EQ(tokenizer.decode(ids, skip), wanted);
      IncrementalDetokenizer detokenizer(tokenizer, skip);
      std::string streamed;
      for (int32_t id : ids) streamed += detokenizer.push(id);
      EXPECT_EQ(streamed + detokenizer.flush(), wanted);
    }
  }
}

void expect_long_lines(const Tokenizer& tokenizer, const nlohmann::json& golden) {
  for (const auto& item : golden["long"]) {
    std::string text;
    for (int i = 0; i < item[1].get<int>(); ++i) text += item[0].get<std::string>();
    const std::vector<int32_t> ids = encode(tokenizer, text);
    EXPECT_EQ(ids.size(), item[2].get<size_t>()) << item[0];
    EXPECT_EQ(hash_of(ids), item[3].get<std::string>()) << item[0];
  }
}

class Family : public testing::TestWithParam<const char*> {};

TEST_P(Family, AnswersAsTheOriginal) {
  const auto folder = kGoldens / GetParam();
  const auto tokenizer = load(folder / "tokenizer.json");
  ASSERT_NE(tokenizer, nullptr);
  expect_golden(*tokenizer, nlohmann::json::parse(read_file(folder / "golden.json")));
}

class LongLines : public testing::TestWithParam<const char*> {};

TEST_P(LongLines, AnswerAsTheOriginal) {
  const auto folder = kGoldens / GetParam();
  const auto tokenizer = load(folder / "tokenizer.json");
  ASSERT_NE(tokenizer, nullptr);
  expect_long_lines(*tokenizer, nlohmann::json::parse(read_file(folder / "golden.json")));
}

constexpr auto kParamName = [](const auto& info) { return std::string(info.param); };
INSTANTIATE_TEST_SUITE_P(Families, Family, testing::ValuesIn(kFamilies), kParamName);
INSTANTIATE_TEST_SUITE_P(Behaviors, Family, testing::ValuesIn(kSplitBehaviors), kParamName);
INSTANTIATE_TEST_SUITE_P(Families, LongLines, testing::ValuesIn(kFamilies), kParamName);

TEST(Tokenizer, TaleModelAnswersAsTheOriginal) {
  const std::filesystem::path folder = "models/tale-llama";
  auto tokenizer = load_hf_tokenizer(read_file(folder / "tokenizer.json"),
                                     read_file(folder / "tokenizer_config.json"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const auto golden = nlohmann::json::parse(read_file(kGoldens / "tale_llama_golden.json"));
  expect_golden(**tokenizer, golden);
  expect_long_lines(**tokenizer, golden);
  EXPECT_EQ((*tokenizer)->bos_id(), 0);
  EXPECT_TRUE((*tokenizer)->is_special(2));
  EXPECT_EQ((*tokenizer)->token_to_id("<|im_end|>"), 2);
  EXPECT_EQ((*tokenizer)->id_to_token(2), "<|im_end|>");
}

GgufTokenizerFields gguf_fields(const nlohmann::json& json) {
  GgufTokenizerFields fields;
  fields.model = "gpt2";
  const auto& vocab = json["model"]["vocab"];
  fields.tokens.resize(vocab.size() + json["added_tokens"].size());
  for (const auto& [token, id] : vocab.items()) fields.tokens[id.get<size_t>()] = token;
  size_t size = vocab.size();
  fields.token_types.assign(fields.tokens.size(), 1);
  for (const auto& added : json["added_tokens"]) {
    const auto id = added["id"].get<size_t>();
    fields.tokens[id] = added["content"];
    fields.token_types[id] = added["special"].get<bool>() ? 3 : 4;
    size = std::max(size, id + 1);
  }
  fields.tokens.resize(size);
  fields.token_types.resize(size);
  for (const auto& merge : json["model"]["merges"]) {
    fields.merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  return fields;
}

TEST(GgufTokenizer, ByteLevelFamiliesByName) {
  const std::pair<const char*, const char*> families[] = {
      {"gpt2", "gpt-2"},           {"llama3", "llama-bpe"},
      {"qwen2", "qwen2"},          {"smollm", "smollm"},
      {"o200k", "gpt-4o"},         {"deepseek_v3", "deepseek-v3"},
      {"gguf_default", "default"}, {"deepseek_coder", "deepseek-coder"}};
  for (const auto& [folder, pre] : families) {
    const auto json = nlohmann::json::parse(read_file(kGoldens / folder / "tokenizer.json"));
    GgufTokenizerFields fields = gguf_fields(json);
    fields.pre = pre;
    auto tokenizer = build_gguf_tokenizer(fields);
    ASSERT_TRUE(tokenizer.ok()) << pre << ": " << tokenizer.status().message();
    const auto golden = nlohmann::json::parse(read_file(kGoldens / folder / "golden.json"));
    for (const auto& item : golden["encode"]) {
      const auto text = item[0].get<std::string>();
      // These options of added tokens, and merge-free words, are not in the format.
      if (text.find("<R>") != text.npos || text.find("<L>") != text.npos ||
          text.find("<W>") != text.npos || text.find("<N>") != text.npos || *folder == 'o') {
        continue;
      }
      EXPECT_EQ(encode(**tokenizer, text), item[1].get<std::vector<int32_t>>()) << pre << text;
    }
  }
}

TEST(GgufTokenizer, ScoresMergeAsSentencePiece) {
  const auto golden = nlohmann::json::parse(read_file(kGoldens / "sentencepiece.json"));
  GgufTokenizerFields fields;
  fields.model = "llama";
  fields.tokens = golden["tokens"].get<std::vector<std::string>>();
  fields.scores = golden["scores"].get<std::vector<float>>();
  fields.token_types = golden["token_types"].get<std::vector<int32_t>>();
  fields.unknown_token_id = 0;
  fields.bos_token_id = 1;
  fields.eos_token_id = 2;
  auto tokenizer = build_gguf_tokenizer(fields);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  for (const auto& item : golden["encode"]) {
    const auto text = item[0].get<std::string>();
    const std::vector<int32_t> ids = encode(**tokenizer, text);
    EXPECT_EQ(ids, item[1].get<std::vector<int32_t>>()) << text;
    const bool has_meta = text.find("\u2581") != text.npos;
    if (!has_meta) {
      EXPECT_EQ((*tokenizer)->decode(ids, true), text);
    }
  }
  EXPECT_EQ((*tokenizer)->encode("x", true)->front(), 1);
}

TEST(GgufTokenizer, RefusesBrokenFields) {
  GgufTokenizerFields fields;
  fields.model = "gpt2";
  EXPECT_EQ(build_gguf_tokenizer(fields).status().field(), "tokenizer.ggml.tokens");
  fields.tokens = {"a", "b"};
  fields.pre = "no-such-family";
  EXPECT_EQ(build_gguf_tokenizer(fields).status().code(), StatusCode::unsupported);
  fields.pre = "gpt-2";
  fields.token_types = {1};
  EXPECT_EQ(build_gguf_tokenizer(fields).status().code(), StatusCode::data_loss);
  fields.token_types.clear();
  fields.merges = {"ab"};
  EXPECT_EQ(build_gguf_tokenizer(fields).status().code(), StatusCode::data_loss);
  fields.merges.clear();
  fields.tokens = {"a", "\xFF"};
  EXPECT_EQ(build_gguf_tokenizer(fields).status().code(), StatusCode::data_loss);
  fields.model = "t5";
  fields.tokens = {"a"};
  EXPECT_EQ(build_gguf_tokenizer(fields).status().code(), StatusCode::unsupported);
}

TEST(Tokenizer, RefusesInvalidUtf8) {
  const auto tokenizer = load(kGoldens / "gpt2" / "tokenizer.json");
  ASSERT_NE(tokenizer, nullptr);
  for (const char* text : {"ab\xFF", "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "a\xE2\x82"}) {
    const auto ids = tokenizer->encode(text, false);
    ASSERT_FALSE(ids.ok()) << text;
    EXPECT_EQ(ids.status().code(), StatusCode::invalid_argument);
    EXPECT_NE(ids.status().message().find("byte"), std::string::npos);
  }
}

TEST(Tokenizer, RefusesBrokenFiles) {
  const std::pair<const char*, StatusCode> files[] = {
      {"", StatusCode::data_loss},
      {"[]", StatusCode::data_loss},
      {R"({"model":{"type":"WordLevel","vocab":{},"merges":[]}})", StatusCode::unsupported},
      {R"({"model":{"type":"WordPiece","vocab":{}}})", StatusCode::data_loss},
      {R"({"model":{"type":"Unigram","vocab":{}}})", StatusCode::data_loss},
      {R"({"model":{"type":"Unigram","vocab":[]}})", StatusCode::data_loss},
      {R"({"model":{"type":"Unigram","vocab":[["a"]]}})", StatusCode::data_loss},
      {R"({"model":{"type":"Unigram","unk_id":1,"vocab":[["a",-1.0]]}})", StatusCode::data_loss},
      {R"({"model":{"type":"Unigram","byte_fallback":true,"vocab":[["a",-1.0]]}})", StatusCode::data_loss},
      {R"({"normalizer":{"type":"Precompiled","precompiled_charsmap":"AAA"},"model":{"type":"Unigram","vocab":[["a",-1.0]]}})",
       StatusCode::data_loss},
      {R"({"normalizer":{"type":"Precompiled","precompiled_charsmap":"/////w=="},"model":{"type":"Unigram","vocab":[["a",-1.0]]}})",
       StatusCode::data_loss},
      {R"({"model":{"vocab":{"a":-1},"merges":[]}})", StatusCode::data_loss},
      {R"({"model":{"vocab":{"a":99999999},"merges":[]}})", StatusCode::data_loss},
      {R"({"model":{"vocab":{"a":0},"merges":["a b"]}})", StatusCode::data_loss},
      {R"({"model":{"vocab":{"a":0},"merges":[7]}})", StatusCode::data_loss},
      {R"({"model":{"vocab":{"a":0},"merges":[]},"pre_tokenizer":{"type":"Bert"}})", StatusCode::unsupported},
      {R"({"model":{"vocab":{"a":0},"merges":[]},"pre_tokenizer":{"type":"Split",
          "behavior":"Isolated","invert":false,"pattern":{"Regex":"(a"}}})",
       StatusCode::unsupported},
      {R"({"model":{"vocab":{"a":0},"merges":[]},"post_processor":{"type":"TemplateProcessing",
          "single":[{"SpecialToken":{"id":"x","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],
          "special_tokens":{"x":{"id":"x","ids":[5],"tokens":["x"]}}}})",
       StatusCode::data_loss},
      {R"({"model":{"vocab":{"a":0},"merges":[]},"decoder":{"type":"Strip","content":"ab",
          "start":1,"stop":0}})",
       StatusCode::data_loss},
  };
  for (const auto& [json, code] : files) {
    const auto tokenizer = load_hf_tokenizer(json, "");
    ASSERT_FALSE(tokenizer.ok()) << json;
    EXPECT_EQ(tokenizer.status().code(), code) << json << ": " << tokenizer.status().message();
  }
}

TEST(Tokenizer, ConfigAddsTokensAndFlags) {
  const std::string json = R"({"model":{"vocab":{"a":0,"<s>":1,"</s>":2},"merges":[]},
      "decoder":{"type":"ByteLevel"}})";
  auto tokenizer = load_hf_tokenizer(json, R"({"tokenizer_class":"LlamaTokenizerFast",
      "bos_token":"<s>","eos_token":{"content":"</s>"},"add_bos_token":true,"add_eos_token":true,
      "added_tokens_decoder":{"3":{"content":"<x>","special":true},
                              "1":{"content":"<s>","special":true}}})");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(*(*tokenizer)->encode("a<x>a", true), (std::vector<int32_t>{1, 0, 3, 0, 2}));
  EXPECT_EQ((*tokenizer)->eos_id(), 2);
  EXPECT_TRUE((*tokenizer)->is_special(3));
  EXPECT_FALSE((*tokenizer)->is_special(2));
  EXPECT_FALSE((*tokenizer)->is_special(-1));
  EXPECT_EQ((*tokenizer)->token_bytes(3), "<x>");
  EXPECT_EQ((*tokenizer)->token_bytes(4), "");
}

TEST(Tokenizer, NormalizesNoCharacterNewerThanTheOriginalsTables) {
  const std::string json = R"({"normalizer":{"type":"NFKC"},"model":{"unk_token":"?",
      "vocab":{"a":0,"?":1,"\u0430":2},"merges":[]},"decoder":{"type":"Fuse"}})";
  auto tokenizer = load_hf_tokenizer(json, "");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(encode(**tokenizer, "\uFF41\u1D43"), (std::vector<int32_t>{0, 0}));
  EXPECT_EQ(encode(**tokenizer, "\U0001E030"), (std::vector<int32_t>{1}));  // of Unicode 15
}

TEST(Tokenizer, ManyThreadsGetTheSameIds) {
  const auto tokenizer = load(kGoldens / "llama3" / "tokenizer.json");
  ASSERT_NE(tokenizer, nullptr);
  const auto golden = nlohmann::json::parse(read_file(kGoldens / "llama3" / "golden.json"));
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 5; ++round) {
        for (const auto& item : golden["encode"]) {
          const auto ids = tokenizer->encode(item[0].get<std::string>(), false);
          wrong[t] += !ids.ok() || *ids != item[1].get<std::vector<int32_t>>();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

}  // namespace
}  // namespace warpweave
