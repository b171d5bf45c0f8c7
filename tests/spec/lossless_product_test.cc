// Speculation is lossless in every cell of algorithm x attention backend x page size x KV format x model: greedy texts
// are those that the same backend, pages and format write without guesses, or the cell is refused by a rule.
// Each model and backend takes one page size of each algorithm and format in turn; WARPWEAVE_WHOLE_PRODUCT=1 takes all.
// Models of ../shared (WARPWEAVE_SHARED) are walked where they are.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "attention/registry.h"
#include "engine/engine_impl.h"
#include "engine/testing/asking.h"
#include "engine/testing/collect_answers.h"
#include "engine/testing/serving_device.h"
#include "model/testing/shared_model.h"

namespace warpweave {
namespace {

namespace fs = std::filesystem;

struct Drafts {
  const char* algorithm;
  const char* model = "";  // path of the draft model; empty: none
};

struct Target {
  const char* name;
  std::string path;
  AttentionKind kind;
  bool recurrent;
  std::vector<Drafts> drafts;
};

const std::vector<Drafts> kTaleDrafts = {{"NGRAM"}, {"STANDALONE", "models/tale-draft"}, {"EAGLE", "models/tale-eagle"}};
const Target kTargets[] = {
    {"tale_llama", "models/tale-llama", AttentionKind::mha, false, kTaleDrafts},
    {"tale_mla", shared_model("tale-mla"), AttentionKind::mla, false, kTaleDrafts},
    {"tale_gdn", shared_model("tale-gdn"), AttentionKind::mha, true, kTaleDrafts},
    {"tale_swa", shared_model("tale-swa"), AttentionKind::mha, false, kTaleDrafts},
    {"eagle3", "tests/golden/drafts/eagle3/target", AttentionKind::mha, false, {{"EAGLE3", "tests/golden/drafts/eagle3"}}},
    {"nextn_mla", "tests/golden/drafts/nextn-deepseek-v3", AttentionKind::mla, false, {{"NEXTN"}}},
    {"nextn_mha", "tests/golden/drafts/nextn-glm4-moe", AttentionKind::mha, false, {{"NEXTN"}}},
    {"nextn_gdn", "tests/golden/drafts/nextn-qwen3-next", AttentionKind::mha, true, {{"NEXTN"}}},
};

constexpr int kPageSizes[] = {1, 16, 64};
constexpr const char* kKvFormats[] = {"auto", "bf16", "f16", "fp8_e4m3",
                                      "fp8_e5m2", "fp4_e2m1", "fp8_ds_mla", "fp4_mla"};

// What texts may differ by: in f32 by nothing; in bf16 where two tokens are alike to rounding; by nothing again where
// bits do not depend on the batch.
enum class Numbers { f32,
                     bf16,
                     deterministic };
constexpr const char* kNumbersNames[] = {"f32", "bf16", "deterministic"};

// A backend of attention or, where a model has such layers, of linear attention; empty: what is chosen.
struct Cell {
  const Target* target;
  Numbers numbers;
  std::string backend, linear_backend;
};
void PrintTo(const Cell& cell, std::ostream* out) {
  *out << cell.target->name << "_" << kNumbersNames[static_cast<int>(cell.numbers)] << "_"
       << (cell.linear_backend.empty() ? cell.backend : "linear_" + cell.linear_backend);
}
std::string name_of(const testing::TestParamInfo<Cell>& info) { return testing::PrintToString(info.param); }

#ifdef WW_TEST_ON_GPU
constexpr Numbers kNumbers[] = {Numbers::f32, Numbers::bf16, Numbers::deterministic};
#else
constexpr Numbers kNumbers[] = {Numbers::f32};
#endif

std::vector<Cell> all_cells() {
  std::vector<Cell> out;
  for (const Target& target : kTargets) {
    std::set<std::string> names, linear;
    for (const Caps* caps : written_backends()) {
      if (caps->kinds.has(target.kind) && !caps->dual_chunk) names.emplace(caps->name);
    }
    for (const KnownBackend& backend : known_layer_backends()) {
      if (target.recurrent && backend.written && backend.caps->kinds.has(AttentionKind::linear)) linear.emplace(backend.caps->name);
    }
    for (const Numbers numbers : kNumbers) {
      for (const std::string& name : names) out.push_back({&target, numbers, name, ""});
      for (const std::string& name : linear) out.push_back({&target, numbers, "", name});
    }
  }
  return out;
}

struct Text {
  std::vector<int32_t> ids;
  // Of each place, where they were asked for: of the token that was chosen, and by how much it is the likeliest.
  std::vector<float> logprobs, gaps;
  Status error;
};

// Asks twice, the second time from a warm prefix cache and, with NGRAM, from a trie that knows the answers.
std::vector<Text> texts_of(ServedModel& served, const std::vector<std::vector<int32_t>>& prompts, bool gaps) {
  std::vector<Text> out;
  for (int turn = 0; turn < 2; ++turn) {
    std::vector<GenerateRequest> requests;
    for (const auto& prompt : prompts) {
      requests.push_back(greedy_request(std::to_string(turn) + "/" + std::to_string(requests.size()), prompt, 24));
      requests.back().return_logprob = gaps;
      requests.back().top_logprobs_num = gaps ? 2 : 0;
    }
    const auto answers = collect_answers<Text>(*served.engine, requests, [](Text& text, const OutputDelta& delta) {
      text.ids.insert(text.ids.end(), delta.token_ids.begin(), delta.token_ids.end());
      for (const PositionLogprobs& p : delta.output_logprobs) {
        text.logprobs.push_back(p.chosen.logprob);
        text.gaps.push_back(p.top[0].logprob - p.top[1].logprob);
      }
      if (delta.finish) text.error = delta.finish->error;
    });
    out.insert(out.end(), answers.begin(), answers.end());
  }
  return out;
}

std::vector<std::vector<int32_t>> prompts_of(const std::string& path) {
  std::vector<std::vector<int32_t>> out;
  if (fs::exists(path + "/golden.json")) {
    const auto golden = nlohmann::json::parse(std::ifstream(path + "/golden.json"));
    for (const auto& prompt : golden["prompts"]) {
      if (prompt.contains("input_ids") && out.size() < 4) out.push_back(prompt["input_ids"]);
    }
  }
  for (int i = 0; out.size() < 4; ++i) out.push_back(some_ids(5 + 17 * i, i));
  std::vector<int32_t> copy;  // repeats itself, and takes more than one chunk
  for (int i = 0; i < 4; ++i) copy.insert(copy.end(), out[1].begin(), out[1].end());
  out.push_back(copy);
  return out;
}

// By how much log-probabilities of the same tokens differ, at most, where a text is read as a prompt and where it was
// written: what rounding does without any speculation.
float rounding_of(ServedModel& served, const std::vector<std::vector<int32_t>>& prompts, const std::vector<Text>& texts) {
  std::vector<GenerateRequest> requests;
  for (size_t i = 0; i < prompts.size(); ++i) {
    requests.push_back(greedy_request("read/" + std::to_string(i), joined(prompts[i], texts[i].ids), 1));
    requests.back().return_logprob = true;
    requests.back().logprob_start_len = static_cast<int>(prompts[i].size());
  }
  const auto read = collect_answers<std::vector<float>>(*served.engine, requests, [](auto& logprobs, const OutputDelta& delta) {
    for (const PositionLogprobs& p : delta.input_logprobs) logprobs.push_back(p.chosen.logprob);
  });
  float most = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const size_t count = texts[i].logprobs.size();
    EXPECT_EQ(read[i].size(), count);
    for (size_t k = 0; k < std::min(count, read[i].size()); ++k) most = std::max(most, std::abs(read[i][k] - texts[i].logprobs[k]));
  }
  return most;
}

// A text may part from the one without guesses where one token is the likeliest by less than this: two ways to add up
// the same numbers. Each of the two tokens moves, and a place may move by more than those that were looked at.
constexpr float kRoundings = 4;
float tie_of(Numbers numbers, const std::string& kv_format, float rounding) {
  const bool exact = numbers == Numbers::deterministic || (numbers == Numbers::f32 && kv_format == "auto");
  return exact ? 0 : kRoundings * rounding;
}

struct Tally {
  int alike = 0, ties = 0, different = 0;
  float widest_tie = 0, rounding = 0;  // of all places that part; of all formats
  uint64_t accepted_tokens = 0;
  std::map<std::string, int> refused;  // by what was said
};

class LosslessProduct : public testing::TestWithParam<Cell> {
 protected:
  void SetUp() override {
    if (const std::string why = no_test_device(); !why.empty()) GTEST_SKIP() << why;
    path_ = GetParam().target->path;
    if (!fs::exists(path_)) GTEST_SKIP() << "no " << path_;
    prompts_ = prompts_of(path_);
    whole_ = std::getenv("WARPWEAVE_WHOLE_PRODUCT") != nullptr;
  }

  ServerArgs args_of(int page_size, const std::string& kv_format) const {
    ServerArgs args = ids_only_args(path_, GetParam().numbers == Numbers::f32 ? "float32" : "bfloat16");
    args.enable_deterministic_inference = GetParam().numbers == Numbers::deterministic;
    args.page_size = page_size;
    args.kv_cache_dtype = kv_format;
    args.max_total_tokens = 2048;
    args.max_running_requests = 8;
    args.chunked_prefill_size = 64;
    args.linear_attn_backend = GetParam().linear_backend;
    args.disable_hybrid_swa_memory = true;  // draft models read what lies behind the window, too
    if (decodes_only_) {
      args.decode_attention_backend = GetParam().backend;
      args.speculative_attention_mode = "decode";
    } else {
      args.attention_backend = GetParam().backend;
    }
    return args;
  }

  Result<ServedModel> serve(const ServerArgs& args) const {
    return create_engine({.args = args, .model_path = path_, .on_weights_progress = {}});
  }

  // Whether the backend serves this model, for both phases or else for decode.
  bool find_way() {
    for (const bool decodes_only : {false, true}) {
      decodes_only_ = decodes_only;
      for (const int page_size : kPageSizes) {
        auto served = serve(args_of(page_size, "auto"));
        if (served.ok()) return true;
        why_not_ = served.status().message();
      }
    }
    return false;
  }

  void compare(ServedModel& served, const std::vector<Text>& expected, float tie) {
    const std::vector<Text> got = texts_of(served, prompts_, false);
    bool same = true, ties = true;
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_TRUE(got[i].error.ok()) << got[i].error.message();
      ASSERT_EQ(got[i].ids.size(), expected[i].ids.size());
      const auto [mine, theirs] = std::mismatch(got[i].ids.begin(), got[i].ids.end(), expected[i].ids.begin());
      if (mine == got[i].ids.end()) continue;
      same = false;
      const float gap = expected[i].gaps.at(mine - got[i].ids.begin());
      tally_.widest_tie = std::max(tally_.widest_tie, gap);
      ties &= gap < tie;
      EXPECT_LT(gap, tie) << "request " << i << " parts at token " << mine - got[i].ids.begin();
    }
    ++(same ? tally_.alike : ties ? tally_.ties
                                  : tally_.different);
    EXPECT_TRUE(served.engine->audit().ok()) << served.engine->audit().message();
    tally_.accepted_tokens += served.engine->stats().speculation->accepted_tokens;
  }

  void walk_drafts(ServedModel& without, const ServerArgs& plain, size_t turn) {
    const std::vector<Text> expected = texts_of(without, prompts_, true);
    const float rounding = rounding_of(without, prompts_, expected);
    tally_.rounding = std::max(tally_.rounding, rounding);
    const auto& drafts = GetParam().target->drafts;
    for (size_t i = 0; i < drafts.size(); ++i) {
      const size_t page = static_cast<size_t>(std::find(kPageSizes, std::end(kPageSizes), *plain.page_size) - kPageSizes);
      if (!whole_ && (turn + i) % std::size(kPageSizes) != page) continue;
      ServerArgs args = plain;
      args.speculative_algorithm = drafts[i].algorithm;
      args.speculative_draft_model_path = drafts[i].model;
      const bool tree = (turn + i + page) % 2 == 1;
      args.speculative_eagle_topk = tree ? 3 : 1;
      args.speculative_num_draft_tokens = tree ? 9 : 4;
      if (args.speculative_algorithm != "NGRAM") args.speculative_num_steps = 3;
      SCOPED_TRACE(std::string(drafts[i].algorithm) + (tree ? " tree" : " chain") + ", page " +
                   std::to_string(*plain.page_size) + ", KV " + plain.kv_cache_dtype);
      auto served = serve(args);
      if (!served.ok()) {
        EXPECT_FALSE(served.status().field().empty()) << "by no rule: " << served.status().message();
        ++tally_.refused[served.status().message()];
        continue;
      }
      compare(*served, expected, tie_of(GetParam().numbers, plain.kv_cache_dtype, rounding));
    }
  }

  std::string path_, why_not_;
  std::vector<std::vector<int32_t>> prompts_;
  bool whole_ = false, decodes_only_ = false;
  Tally tally_;
};

TEST_P(LosslessProduct, GreedyTextsAreThoseWithoutGuesses) {
  if (!find_way()) GTEST_SKIP() << why_not_;
  int unserved = 0;
  for (size_t format = 0; format < std::size(kKvFormats); ++format) {
    for (const int page_size : kPageSizes) {
      const ServerArgs plain = args_of(page_size, kKvFormats[format]);
      auto served = serve(plain);
      if (!served.ok()) {
        ++unserved;
        continue;
      }
      walk_drafts(*served, plain, format);
    }
  }
  std::cout << "product " << testing::PrintToString(GetParam()) << (decodes_only_ ? " decode" : "") << ": "
            << tally_.alike << " alike, " << tally_.ties << " part at ties (" << tally_.widest_tie << " at most, rounding "
            << tally_.rounding << "), " << tally_.different << " different, accepted "
            << tally_.accepted_tokens << ", " << unserved << " of " << std::size(kKvFormats) * std::size(kPageSizes)
            << " formats x pages not served\n";
  for (const auto& [why, count] : tally_.refused) std::cout << "  refused " << count << ": " << why << "\n";
  EXPECT_EQ(tally_.different, 0);
  if (tally_.alike + tally_.ties == 0) {
    EXPECT_FALSE(tally_.refused.empty()) << "else nothing was looked at";
    return;
  }
  EXPECT_GT(tally_.accepted_tokens, 0u) << "else no guess was ever right";
}

INSTANTIATE_TEST_SUITE_P(Cells, LosslessProduct, testing::ValuesIn(all_cells()), name_of);

}  // namespace
}  // namespace warpweave
