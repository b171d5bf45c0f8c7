// Over many generated command lines: every refusal names a flag, and everything it proposes works.
#include <gtest/gtest.h>

#include <set>

#include "attention/select_testing.h"

namespace warpweave {
namespace {

using namespace testing_selection;

// What one command line varies, beside hardware and model.
std::vector<AttentionFlags> command_lines() {
  std::set<std::string> names = {""};
  for (const KnownBackend& backend : known_backends()) names.insert(std::string(backend.caps->name));
  std::vector<AttentionFlags> lines;
  for (const std::string& name : names) {
    for (const std::string& decode : {std::string(), std::string("triton"), std::string("trtllm_mha")}) {
      for (int change = 0; change < 6; ++change) {
        AttentionFlags flags = backend_flag(name);
        flags.decode_attention_backend = decode;
        if (change == 1) flags.page_size = 16;
        if (change == 2) flags.page_size = 128;
        if (change == 3) flags.kv_cache_dtype = "fp4_e2m1";
        if (change == 4) flags.speculative_algorithm = "EAGLE";
        if (change == 5) flags.enable_deterministic_inference = true;
        lines.push_back(flags);
      }
    }
  }
  return lines;
}

TEST(SelectWorks, EveryProposalOfEveryRefusalResolves) {
  const std::vector<ModelFacts> models = {llama(),     deepseek(), sparse_deepseek(), gpt_oss(),
                                          qwen_next(), gemma2(),   dual_chunk_qwen()};
  int refused = 0, proposed = 0;
  for (const char* hardware : {"h200", "b200", "rtx5090", "a100", "t4", "mi300x", "ascend", "cpu"}) {
    for (const ModelFacts& model : models) {
      std::set<std::string> checked;
      for (const AttentionFlags& flags : command_lines()) {
        const auto result = select(hardware, model, flags);
        if (result.ok()) continue;
        ++refused;
        EXPECT_TRUE(result.status().field().starts_with("--")) << result.status().message();
        for (const std::string& text : proposals(result.status())) {
          if (!checked.insert(text).second) continue;
          ++proposed;
          ASSERT_TRUE(select(hardware, model, parse_proposal(text)).ok())
              << hardware << ", " << model.architecture << ": " << text;
        }
        // Nothing is proposed only where not even the defaults run.
        if (proposals(result.status()).empty()) {
          EXPECT_FALSE(select(hardware, model).ok()) << result.status().message();
        }
      }
    }
  }
  EXPECT_GT(refused, 10000);
  EXPECT_GT(proposed, 500);
}

}  // namespace
}  // namespace warpweave
