#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace warpweave {
namespace {

std::unique_ptr<Tokenizer> load(const std::string& json) {
  auto tokenizer = load_hf_tokenizer(json, "");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return tokenizer.ok() ? std::move(tokenizer).value() : nullptr;
}

// Ids 0..255: the bytes <0x00>..<0xFF>; 256 "▁a", 257 "b", 258 "▁".
std::unique_ptr<Tokenizer> byte_fallback_tokenizer() {
  std::string vocab;
  char name[16];
  for (int byte = 0; byte < 256; ++byte) {
    std::snprintf(name, sizeof name, "\"<0x%02X>\":", byte);
    vocab += name + std::to_string(byte) + ",";
  }
  vocab += "\"\u2581a\":256,\"b\":257,\"\u2581\":258";
  return load(R"({"model":{"type":"BPE","byte_fallback":true,"merges":[],"vocab":{)" + vocab +
              R"(}},"decoder":{"type":"Sequence","decoders":[
              {"type":"Replace","pattern":{"String":"\u2581"},"content":" "},
              {"type":"ByteFallback"},{"type":"Fuse"},
              {"type":"Strip","content":" ","start":1,"stop":0}]}})");
}

TEST(Detokenizer, DropsTheFirstSpaceOnlyWhereTextStarts) {
  const auto tokenizer = byte_fallback_tokenizer();
  ASSERT_NE(tokenizer, nullptr);
  IncrementalDetokenizer fresh(*tokenizer, false);
  EXPECT_EQ(fresh.push(258), "");
  EXPECT_EQ(fresh.push(256), " a");
  EXPECT_EQ(fresh.push(256), " a");
  const int32_t context[] = {257};
  IncrementalDetokenizer continued(*tokenizer, false, context);
  EXPECT_EQ(continued.push(256), " a");
}

TEST(Detokenizer, ByteRunsWaitForTheirEnd) {
  const auto tokenizer = byte_fallback_tokenizer();
  ASSERT_NE(tokenizer, nullptr);
  IncrementalDetokenizer good(*tokenizer, false);
  EXPECT_EQ(good.push(0xC3), "");
  EXPECT_EQ(good.push(0xA9), "");
  EXPECT_EQ(good.push(257), "\u00e9b");
  IncrementalDetokenizer bad(*tokenizer, false);
  EXPECT_EQ(bad.push(0x41), "");
  EXPECT_EQ(bad.push(0xFF), "\uFFFD\uFFFD");  // one for each byte of the run
  EXPECT_EQ(bad.push(0x42), "\uFFFD");
  EXPECT_EQ(bad.push(257), "b");
  EXPECT_EQ(bad.push(0xE2), "");
  EXPECT_EQ(bad.flush(), "\uFFFD");
}

TEST(Detokenizer, LongByteRunsGoOutEarly) {
  const auto tokenizer = byte_fallback_tokenizer();
  ASSERT_NE(tokenizer, nullptr);
  IncrementalDetokenizer detokenizer(*tokenizer, false);
  std::string text;
  for (int i = 0; i < 1000; ++i) {
    text += detokenizer.push(0xC3);
    text += detokenizer.push(0xA9);
    EXPECT_LE(2 * static_cast<size_t>(i + 1) - text.size(), IncrementalDetokenizer::kMaxHeldBytes);
  }
  text += detokenizer.flush();
  std::string wanted;
  for (int i = 0; i < 1000; ++i) wanted += "\u00e9";
  EXPECT_EQ(text, wanted);
}

TEST(Detokenizer, NeverSplitsACharacterOfByteLevelTokens) {
  const auto tokenizer = load(R"({"model":{"merges":[],"vocab":
      {"ð":0,"Ł":1,"ĺ":2,"Ģ":3,"a":4,"Ġ":5}},"decoder":{"type":"ByteLevel"}})");
  ASSERT_NE(tokenizer, nullptr);
  IncrementalDetokenizer detokenizer(*tokenizer, false);
  EXPECT_EQ(detokenizer.push(0), "");
  EXPECT_EQ(detokenizer.push(1), "");
  EXPECT_EQ(detokenizer.push(2), "");
  EXPECT_EQ(detokenizer.push(3), "\U0001F600");
  EXPECT_EQ(detokenizer.push(0), "");
  EXPECT_EQ(detokenizer.push(1), "");
  EXPECT_EQ(detokenizer.push(4), "\uFFFDa");  // one for the whole broken part
  EXPECT_EQ(detokenizer.push(5), " ");
  EXPECT_EQ(detokenizer.push(3), "\uFFFD");
  EXPECT_EQ(detokenizer.push(0), "");
  EXPECT_EQ(detokenizer.flush(), "\uFFFD");
  EXPECT_EQ(detokenizer.push(99), "");
}

}  // namespace
}  // namespace warpweave
