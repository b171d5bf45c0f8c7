// Every legal pair of prefill and decode backends built here serves tale-llama from one KV pool and
// writes the golden text; a pair that selection refuses must be refused for a rule.
#include <gtest/gtest.h>

#include "serve_tale.h"

namespace warpweave {
namespace {

constexpr int kTokens = 12;

class HybridPairs : public testing::TestWithParam<std::string> {};

TEST_P(HybridPairs, WriteTheGoldenText) {
  const tale::Goldens golden = tale::goldens();
  int legal = 0;
  for (const std::string& decode : tale::cpu_backends()) {
    SCOPED_TRACE("prefill " + GetParam() + ", decode " + decode);
    ServerArgs args;
    args.dtype = "float32";
    args.prefill_attention_backend = GetParam();
    args.decode_attention_backend = decode;
    args.chunked_prefill_size = 16;  // some prompts in chunks: prefill after a cached prefix
    ServedModel served = tale::serve(args);
    EXPECT_EQ(served.engine->info().prefill_attention_backend, GetParam());
    EXPECT_EQ(served.engine->info().decode_attention_backend, decode);
    const std::vector<tale::Answer> answers = tale::ask(*served.engine, golden.prompts, kTokens);
    for (size_t i = 0; i < answers.size(); ++i) {
      const std::vector<int32_t> expected(golden.continuations[i].begin(),
                                          golden.continuations[i].begin() + kTokens);
      EXPECT_EQ(answers[i].ids, expected) << "prompt " << i;
    }
    ++legal;
  }
  EXPECT_GE(legal, 2);
}

INSTANTIATE_TEST_SUITE_P(Cpu, HybridPairs, testing::ValuesIn(tale::cpu_backends()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace warpweave
