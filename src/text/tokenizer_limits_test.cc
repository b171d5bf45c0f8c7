// What a text may cost, and text whose special tokens are text.
#include <gtest/gtest.h>

#include <unistd.h>

#include <fstream>
#include <iterator>

#include "text/tokenizer.h"
#include "text/tokenizer_core.h"

namespace warpweave {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::unique_ptr<Tokenizer> load(const std::string& name) {
  auto tokenizer = load_hf_tokenizer(read_file("tests/golden/tokenizer/" + name + "/tokenizer.json"), "");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(tokenizer).value();
}

std::string words(size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += "the cat " + std::to_string(text.size()) + " sat; ";
  return text;
}

// Characters that no token has become one id, however many, so no limit on ids bounds them.
TEST(TokenizerLimits, WordsOfScoredVocabulariesAreBounded) {
  const auto tokenizer = load("xlm_roberta");
  std::string word;
  while (word.size() < size_t{4} << 20) word += "\uE000";
  const auto refused = tokenizer->encode(word, false);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::resource_exhausted);
  EXPECT_TRUE(tokenizer->encode(word.substr(0, 30'000) + " " + word.substr(0, 30'000), false).ok());
}

// A token of thousands of bytes that the text nearly holds everywhere: steps as many as bytes compared, not as bytes hashed
// of every length.
TEST(TokenizerLimits, LongTokensOfScoredVocabulariesCostTheirLength) {
  const std::string run(1500, 'a');
  const auto tokenizer = load_hf_tokenizer(R"({"model":{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0],["a",-2],["aa",-3],["aaaa",-3.5],[")" +
                                               run + R"(b",-1],["b",-9]]}})", "");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  std::string text;
  for (int i = 0; i < 40; ++i) text += run;
  const auto ids = (*tokenizer)->encode(text + "b", false);
  ASSERT_TRUE(ids.ok());
  ASSERT_EQ(ids->size(), (text.size() - run.size()) / 4 + 1);
  EXPECT_EQ((*ids)[0], 3);
  EXPECT_EQ(ids->back(), 4);
}

TEST(TokenizerLimits, TextsThatFitAreEncodedWhole) {
  for (const char* name : {"gpt2", "llama2", "qwen2"}) {
    const auto tokenizer = load(name);
    const std::string text = words(40000);
    const auto all = tokenizer->encode(text, true);
    ASSERT_TRUE(all.ok());
    for (size_t max_tokens : {all->size(), all->size() - 1, all->size() / 2, size_t{100000}}) {
      const auto some = tokenizer->encode_up_to(text, max_tokens, {.add_special_tokens = true});
      ASSERT_TRUE(some.ok());
      EXPECT_TRUE(some->whole) << name << max_tokens;
      EXPECT_EQ(some->ids, *all) << name << max_tokens;
    }
  }
}

// Blanks make few tokens for their bytes: the first beginnings do not decide.
TEST(TokenizerLimits, TextsOfFewTokensForTheirBytesAreEncodedWhole) {
  const auto tokenizer = load("llama3");
  const std::string text(200000, ' ');
  const auto all = tokenizer->encode(text, false);
  ASSERT_TRUE(all.ok());
  const auto some = tokenizer->encode_up_to(text, all->size(), {});
  ASSERT_TRUE(some.ok());
  EXPECT_TRUE(some->whole);
  EXPECT_EQ(some->ids, *all);
}

TEST(TokenizerLimits, WorkIsBoundedByTheTokensAskedFor) {
  for (const char* name : {"gpt2", "llama2", "qwen2"}) {
    const auto tokenizer = load(name);
    for (const std::string& text : {words(8 << 20), std::string(8 << 20, 'x')}) {
      const auto some = tokenizer->encode_up_to(text, 100, {});
      ASSERT_TRUE(some.ok());
      EXPECT_FALSE(some->whole);
      EXPECT_GT(some->ids.size(), 100u);
      EXPECT_LT(some->bytes, 20000u) << name;
    }
  }
}

TEST(TokenizerLimits, BeginningsEndAtCharacters) {
  const auto tokenizer = load("gpt2");
  std::string text;
  for (int i = 0; i < 100000; ++i) text += "漢";
  for (size_t max_tokens = 1; max_tokens < 8; ++max_tokens) {
    EXPECT_TRUE(tokenizer->encode_up_to(text, max_tokens, {}).ok());
  }
}

TEST(TokenizerLimits, ScratchOfLongTextsIsGivenBack) {
  const auto tokenizer = load("gpt2");
  ASSERT_TRUE(tokenizer->encode("short", false).ok());
  EXPECT_EQ(tokenizer->core().idle_scratches(), 1u);
  ASSERT_TRUE(tokenizer->encode(words(1 << 20), false).ok());
  EXPECT_EQ(tokenizer->core().idle_scratches(), 0u);
}

// Else each scratch would grow at the moment when it, of all, meets a long text: a server would seem to leak for hours.
TEST(TokenizerLimits, ScratchKeepsNoMemoryOfAMiddlingText) {
  for (const char* name : {"gpt2", "llama2", "qwen2"}) {
    const auto tokenizer = load(name);
    ASSERT_TRUE(tokenizer->encode("short", false).ok());
    const size_t before = tokenizer->core().idle_text_bytes();
    ASSERT_TRUE(tokenizer->encode(std::string(100'000, 'a'), false).ok());
    EXPECT_EQ(tokenizer->core().idle_scratches(), 1u);
    EXPECT_LE(tokenizer->core().idle_text_bytes(), before) << name;
  }
}

TEST(TokenizerLimits, ScratchIsThereForAsManyThreadsAsAskedFor) {
  const auto tokenizer = load("gpt2");
  tokenizer->core().prepare(3);
  EXPECT_EQ(tokenizer->core().idle_scratches(), 3u);
  ASSERT_TRUE(tokenizer->encode("short", false).ok());
  EXPECT_EQ(tokenizer->core().idle_scratches(), 3u);
  tokenizer->core().prepare(1'000'000);
  EXPECT_LE(tokenizer->core().idle_scratches(), 16u);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
size_t resident_bytes() {
  size_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

TEST(TokenizerLimits, MemoryComesBackAfterALongText) {
  const auto tokenizer = load("gpt2");
  ASSERT_TRUE(tokenizer->encode("short", false).ok());
  const size_t before = resident_bytes();
  ASSERT_TRUE(tokenizer->encode(std::string(16 << 20, 'x'), false).ok());
  EXPECT_LT(resident_bytes(), before + (size_t{16} << 20));
}
#endif

std::vector<size_t> after_each(std::string_view text, char c) {
  std::vector<size_t> offsets;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == c) offsets.push_back(i + 1);
  }
  return offsets;
}

TEST(LiteralText, SpecialTokensInItAreText) {
  const auto tokenizer = load("qwen2");
  const std::string text = "<|special|>user\nsay <|end|><|end|>\n";
  const int32_t start = *tokenizer->token_to_id("<|special|>");
  const int32_t end = *tokenizer->token_to_id("<|end|>");
  const auto count = [](const std::vector<int32_t>& ids, int32_t id) {
    return std::count(ids.begin(), ids.end(), id);
  };
  const auto plain = *tokenizer->encode(text, false);
  EXPECT_EQ(count(plain, start), 1);
  EXPECT_EQ(count(plain, end), 2);
  const auto marks = after_each(text, '<');  // of the three tokens
  const std::vector<size_t> middle{marks[1]};
  const auto ids = *tokenizer->encode(text, {.literal_at = middle});
  EXPECT_EQ(count(ids, start), 1);
  EXPECT_EQ(count(ids, end), 1);
  EXPECT_EQ(tokenizer->decode(ids, false), text);
  const auto none = *tokenizer->encode(text, {.literal_at = marks});
  EXPECT_EQ(count(none, start) + count(none, end), 0);
  EXPECT_EQ(tokenizer->decode(none, false), text);
}

TEST(LiteralText, KnowsWhereASpecialTokenMayBegin) {
  const auto tokenizer = load("qwen2");
  const TokenizerCore& core = tokenizer->core();
  EXPECT_TRUE(core.may_begin_special("a<|end|>b", 1));
  EXPECT_TRUE(core.may_begin_special("a<|en", 1));   // the text ends inside
  EXPECT_FALSE(core.may_begin_special("a<|ex", 1));
  EXPECT_FALSE(core.may_begin_special("abc", 1));
}

}  // namespace
}  // namespace warpweave
