// What a text may cost, and text whose special tokens are text.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "base/resident_memory.h"
#include "text/charsmap.h"
#include "text/pretokenizer.h"
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

// A long token that the text nearly holds everywhere: steps as many as bytes compared, not as bytes hashed of every
// length.
TEST(TokenizerLimits, LongTokensOfScoredVocabulariesCostTheirLength) {
  const std::string run(60, 'a');
  const auto tokenizer = load_hf_tokenizer(
      R"({"model":{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0],["a",-2],["aa",-3],["aaaa",-3.5],[")" + run +
          R"(b",-1],["b",-9]]}})",
      "");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  std::string text;
  for (int i = 0; i < 1000; ++i) text += run;
  const auto ids = (*tokenizer)->encode(text + "b", false);
  ASSERT_TRUE(ids.ok());
  ASSERT_EQ(ids->size(), (text.size() - run.size()) / 4 + 1);
  EXPECT_EQ((*ids)[0], 3);
  EXPECT_EQ(ids->back(), 4);
}

// Tokens of thousands of bytes that begin at every byte of a text: steps are bounded, in short texts and in long ones.
TEST(TokenizerLimits, StepsThroughScoredVocabulariesAreBounded) {
  std::string vocab = R"(["<unk>",0],["b",-9])";
  for (size_t bytes = 1; bytes <= 2000; ++bytes)
    vocab += ",[\"" + std::string(bytes, 'a') + "\",-" + std::to_string(bytes) + ".0]";
  const auto tokenizer = load_hf_tokenizer(R"({"model":{"type":"Unigram","unk_id":0,"vocab":[)" + vocab + "]}}", "");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_TRUE((*tokenizer)->encode(std::string(300, 'a') + "b", false).ok());
  const auto refused = (*tokenizer)->encode(std::string(1 << 20, 'a'), false);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::resource_exhausted);
}

// The same of pieces: words of many characters, of which each begins no longer piece.
TEST(TokenizerLimits, LookUpsOfLongPiecesAreBounded) {
  const auto tokenizer = load_hf_tokenizer(
      R"({"model":{"type":"WordPiece","unk_token":"u","max_input_chars_per_word":1000,"vocab":{"u":0,"a":1,"##a":2,")" +
          std::string(4000, 'b') + R"(":3}}})",
      "");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ((*tokenizer)->encode(std::string(100, 'a'), false)->size(), 100u);
  EXPECT_EQ((*tokenizer)->encode(std::string(1000, 'a'), false).status().code(), StatusCode::resource_exhausted);
}

// A map may make megabytes of each of a grapheme's characters, of which there may be any number.
TEST(TokenizerLimits, WhatAMapMakesOfOneGraphemeIsBounded) {
  // A double array that leads from the first byte of U+0301 (CC 81) by its second to a leaf: the result at 0.
  std::vector<uint32_t> trie(1024, 0);
  const auto unit = [](uint32_t label, uint32_t offset, bool leaf) {
    return label | (leaf ? 1u << 8 : 0u) | offset << 10;
  };
  trie[0] = unit(0, 256, false);
  trie[256 ^ 0xCC] = unit(0xCC, 512 ^ 256 ^ 0xCC ^ 0, false);
  const uint32_t second = (256 ^ 0xCC ^ (512 ^ 256 ^ 0xCC)) ^ 0x81;
  trie[second] = unit(0x81, second ^ 900, true);
  trie[900] = 0;
  std::string map(4, '\0');
  const auto trie_bytes = static_cast<uint32_t>(trie.size() * 4);
  std::memcpy(map.data(), &trie_bytes, 4);
  map.append(reinterpret_cast<const char*>(trie.data()), trie_bytes);
  constexpr size_t kResultBytes = 512 << 10;
  map += std::string(kResultBytes, 'x');
  const auto charsmap = Charsmap::build(map);
  ASSERT_TRUE(charsmap.ok()) << charsmap.status().message();
  const auto run = [&](std::string text) {
    RegexScratch scratch;
    bool starts_text = true;
    const Status status =
        charsmap->run(&scratch, max_rewritten_bytes(text.size(), kNormalizerGrowth), &text, &starts_text);
    return std::pair(status.code(), text.size());
  };
  EXPECT_EQ(run("a\u0301"), std::pair(StatusCode::ok, 1 + kResultBytes));
  std::string grapheme = "a";
  for (int i = 0; i < 1000; ++i) grapheme += "\u0301";
  const int64_t before = resident_memory().bytes;
  EXPECT_EQ(run(grapheme).first, StatusCode::resource_exhausted);
  EXPECT_LT(resident_memory().bytes - before, 64 << 20);
}

// Other steps that may make much of little.
TEST(TokenizerLimits, OtherNormalizersMakeLittleOfLittle) {
  const std::string longer(2 << 20, 'x');
  for (const std::string& step :
       {R"("normalizer":{"type":"Replace","pattern":{"String":"a"},"content":")" + longer + "\"}",
        R"("normalizer":{"type":"Prepend","prepend":")" + longer + "\"}"}) {
    const auto tokenizer =
        load_hf_tokenizer("{" + step + R"(,"model":{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0],["x",-1]]}})", "");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    EXPECT_EQ((*tokenizer)->encode("a a a a", false).status().code(), StatusCode::resource_exhausted)
        << step.substr(0, 40);
  }
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
size_t resident_bytes() { return static_cast<size_t>(resident_memory().bytes); }

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
