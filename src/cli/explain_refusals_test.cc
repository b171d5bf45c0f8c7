// What explain refuses: flags and numbers that contradict each other, and every reason, not only the first.
#include <gtest/gtest.h>

#include <set>

#include "cli/explain_testing.h"
#include "flags/server_args.h"

namespace warpweave {
namespace {

TEST(Explain, RefusesNumbersThatContradictEachOther) {
  const Argv ngram = {"--speculative-algorithm", "NGRAM"}, branches = {"--speculative-ngram-min-bfs-breadth"};
  const Argv recurrent = {"--model-path", "tests/golden/families/qwen3-next", "--skip-tokenizer-init"};
  const Argv hybrid = recurrent + Argv{"--max-mamba-cache-size", "4"}, rows = {"--mixed-chunk-rows", "64"};
  struct {
    Argv flags;
    const char* refused;
  } cases[] = {
      {ngram + branches + Argv{"10"}, ""},
      {ngram + branches + Argv{"11"}, "--speculative-ngram-min-bfs-breadth"},
      {ngram + branches + Argv{"2", "--speculative-eagle-topk", "1"}, "--speculative-ngram-min-bfs-breadth"},
      {ngram + branches + Argv{"5", "--speculative-ngram-max-bfs-breadth", "4"}, "--speculative-ngram-min-bfs-breadth"},
      {ngram + branches + Argv{"4", "--speculative-ngram-max-bfs-breadth", "4"}, ""},
      {hybrid, ""},
      {hybrid + Argv{"--max-running-requests", "4"}, ""},
      {hybrid + Argv{"--max-running-requests", "5"}, "--max-mamba-cache-size"},
      {hybrid + Argv{"--mamba-full-memory-ratio", "0.5"}, "--mamba-full-memory-ratio"},
      {recurrent + Argv{"--mamba-full-memory-ratio", "0.5"}, ""},
      {rows, "--mixed-chunk-rows"},
      {rows + Argv{"--disable-mixed-chunk"}, ""},  // as it says
      {rows + Argv{"--enable-mixed-chunk"}, ""},
      {Argv{"--mixed-chunk-rows", "0"}, ""},
      {Argv{"--page-size", "16", "--max-total-tokens", "16"}, ""},
      {Argv{"--page-size", "16", "--max-total-tokens", "15"}, "--max-total-tokens"}};
  for (const auto& [flags, refused] : cases) {
    SCOPED_TRACE(text_of(flags));
    const Explained found = explain_json(flags + Argv{"--device", "cpu"});
    EXPECT_EQ(found.exit_code, *refused ? kExitRefused : 0);
    if (*refused) {
      EXPECT_EQ(found.json["error"]["flag"], refused);
    }
  }
}

TEST(Explain, ListsEveryReason) {
  const Explained found = explain_json({"--hardware", "b200", "--tp", "8", "--model-path", "DeepSeek-R1"});
  ASSERT_EQ(found.exit_code, kExitRefused);
  ASSERT_EQ(found.json["errors"].size(), 3u) << found.json.dump();
  EXPECT_EQ(found.json["errors"][0]["flag"], "--tp-size");
  EXPECT_EQ(found.json["errors"][1]["flag"], "--device");
  EXPECT_NE(found.json["errors"][2]["message"].get<std::string>().find("do not fit"), std::string::npos);
  EXPECT_EQ(found.json["attention_by_rule"]["prefill_attention_backend"], "trtllm_mla");
}

TEST(Explain, ListsWhatIsWrongWithStatesAndDraftsTogether) {
  const Explained found = explain_json({"--model-path", "tests/golden/families/deepseek-v3-moe", "--device", "cpu",
                                        "--mamba-track-interval", "64", "--speculative-algorithm", "STANDALONE"});
  ASSERT_EQ(found.json["errors"].size(), 2u) << found.json.dump();
  EXPECT_EQ(found.json["errors"][0]["flag"], "--mamba-track-interval");
  EXPECT_EQ(found.json["errors"][1]["flag"], "--speculative-draft-model-path");
}

// Hybrid models on Blackwell GPUs, which nothing here serves.
TEST(Explain, SaysWhichRuleWouldRefuseWhatIsNotServed) {
  const Explained found = explain_json({"--model-path", "tests/golden/families/qwen3-next", "--skip-tokenizer-init",
                                        "--hardware", "b200", "--attention-backend", "fa3"});
  ASSERT_EQ(found.exit_code, kExitRefused);
  EXPECT_EQ(found.json["error"]["flag"], "--device");
  EXPECT_TRUE(found.json["attention_by_rule"].is_null());
  EXPECT_EQ(found.json["attention_by_rule_error"]["flag"], "--attention-backend") << found.json.dump();
}

// A known way to serve DeepSeek-R1 on eight Blackwell GPUs: each of its flags and files that is not served here.
TEST(Explain, ListsEveryFlagThatIsNotServed) {
  const Argv line = {"--model-path", "nvidia/DeepSeek-R1-FP4", "--tp", "8", "--attention-backend", "trtllm_mla",
                     "--moe-runner-backend", "flashinfer_trtllm", "--quantization", "modelopt_fp4",
                     "--prefill-attention-backend", "fa4", "--disable-custom-all-reduce", "--ep-size", "8"};
  const Explained found = explain_json(line + Argv{"--hardware", "b200"});
  ASSERT_EQ(found.exit_code, kExitRefused);
  std::set<std::string> flags;
  for (const auto& error : found.json["errors"]) flags.insert(error["flag"].get<std::string>());
  EXPECT_EQ(flags, (std::set<std::string>{"--tp-size", "--moe-runner-backend", "--quantization", "--ep-size", "--device",
                                          "--model-path", "quantization_config"}))
      << found.json["errors"].dump();
  const auto served = parse_flags(Command::serve, line);
  ASSERT_FALSE(served.ok());
  for (const char* flag : {"--quantization modelopt_fp4", "--moe-runner-backend flashinfer_trtllm", "--tp-size 8",
                           "--ep-size"}) {
    EXPECT_NE(served.status().message().find(flag), std::string::npos) << served.status().message();
  }
}

}  // namespace
}  // namespace warpweave
