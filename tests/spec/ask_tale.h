// models/tale-llama behind an engine, with and without speculation: requests of many kinds, and their answers.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/engine_impl.h"
#include "engine/testing/collect_answers.h"
#include "engine/testing/serving_device.h"
#include "grammar/compiler.h"
#include "grammar/vocabulary.h"

namespace warpweave::speculation {

using Ids = std::vector<int32_t>;

struct Answer {
  Ids ids;
  std::string text;
  std::vector<float> logprobs;
  std::vector<float> gaps;      // between the two likeliest tokens, where they were asked for
  FinishReason finish;
  SpeculationCounts counts;
};

inline ServedModel serve(ServerArgs args, bool whole_batch_lengths = false) {
  const std::string path = "models/tale-llama";
  args.model_path = path;
  serve_on_test_device(args);
  auto served = create_engine({.args = args, .model_path = path, .on_weights_progress = {},
                               .whole_batch_lengths = whole_batch_lengths});
  EXPECT_TRUE(served.ok()) << served.status().message();
  return served.ok() ? std::move(served).value() : ServedModel();
}

// Submits all at once and waits for the answers.
inline std::vector<Answer> ask(ServedModel& served, const std::vector<GenerateRequest>& requests) {
  return collect_answers<Answer>(*served.engine, requests, [](Answer& answer, const OutputDelta& delta) {
    answer.ids.insert(answer.ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    answer.text += delta.text;
    for (const PositionLogprobs& p : delta.output_logprobs) {
      answer.logprobs.push_back(p.chosen.logprob);
      if (p.top.size() >= 2) answer.gaps.push_back(p.top[0].logprob - p.top[1].logprob);
    }
    if (delta.speculation) answer.counts = *delta.speculation;
    if (delta.finish) answer.finish = *delta.finish;
  });
}

inline std::vector<Ids> golden_prompts() {
  std::vector<Ids> out;
  const auto golden = nlohmann::json::parse(std::ifstream("models/tale-llama/golden.json"));
  for (const auto& prompt : golden["prompts"]) out.push_back(prompt["input_ids"]);
  return out;
}

// What the server compiles from a request's `regex`.
inline std::shared_ptr<const grammar::CompiledGrammar> compile_regex(const ServedModel& served,
                                                                     const std::string& regex) {
  grammar::GrammarCompilerOptions options;
  options.make_vocabulary = [&served] {
    const Tokenizer& tokenizer = *served.tokenizer;
    std::vector<std::string> tokens(tokenizer.vocab_size());
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
      if (!tokenizer.is_special(id)) tokens[id] = tokenizer.token_bytes(id);
    }
    return std::make_shared<const grammar::Vocabulary>(std::move(tokens), served.engine->info().eos_token_ids);
  };
  grammar::GrammarCompiler compiler(std::move(options));
  auto compiled = compiler.compile({grammar::GrammarSpec::Kind::regex, regex, {}});
  EXPECT_TRUE(compiled.ok()) << compiled.status().message();
  return *compiled;
}

// One of each kind that verification could treat wrongly.
inline std::vector<GenerateRequest> questions(const ServedModel& served, int new_tokens = 48) {
  std::vector<GenerateRequest> out;
  const std::vector<Ids> prompts = golden_prompts();
  const auto add = [&](const Ids& prompt) -> GenerateRequest& {
    GenerateRequest& request = out.emplace_back();
    request.rid = std::to_string(out.size());
    request.input_ids = prompt;
    request.sampling.temperature = 0;
    request.sampling.seed = 100 + out.size();
    request.sampling.max_new_tokens = new_tokens;
    return request;
  };
  for (const Ids& prompt : prompts) add(prompt).return_logprob = true;
  GenerateRequest& sampled = add(prompts[0]);
  sampled.sampling.temperature = 1;
  sampled.return_logprob = true;
  add(prompts[1]).sampling.repetition_penalty = 1.3f;
  add(prompts[1]).sampling.presence_penalty = 0.7f;
  add(prompts[2]).sampling.stop = {"the "};
  add(prompts[2]).sampling.max_new_tokens = 1;
  add(prompts[3]).sampling.min_new_tokens = new_tokens;
  add(prompts[0]).sampling.logit_bias = {{262, -5.0f}};
  add(prompts[3]).sampling.stop_token_ids = {262};
  add(prompts[0]).sampling.grammar = compile_regex(served, "( [a-z]{2,9}){6,9}\\.");
  // Copies itself, and starts as others do: more than a chunk.
  Ids copy;
  for (int i = 0; i < 4; ++i) copy.insert(copy.end(), prompts[1].begin(), prompts[1].end());
  add(copy).sampling.ignore_eos = true;
  GenerateRequest& sibling = add(copy);
  sibling.sampling.temperature = 0.8f;
  sibling.return_logprob = true;
  sibling.wait_for_prefix_of = out[out.size() - 2].rid;
  return out;
}

// What may differ between two ways to the same numbers.
struct Rounding {
  // K and V are rounded to few bits: sums in another order may round to the neighbour, which moves logits by some 1e-3
  // and a draw that falls between two tokens to the other one. Greedy texts are the same all the same.
  bool of_kv = false;
};

inline void expect_same_answer(const Answer& got, const Answer& expected, bool draws_may_differ, float tolerance) {
  EXPECT_TRUE(got.finish.error.ok()) << got.finish.error.message();
  const auto [mine, theirs] = std::mismatch(got.ids.begin(), got.ids.end(), expected.ids.begin(), expected.ids.end());
  const auto same = static_cast<size_t>(mine - got.ids.begin());
  if (!draws_may_differ) {
    EXPECT_EQ(got.ids, expected.ids);
    EXPECT_EQ(got.text, expected.text);
    EXPECT_EQ(got.finish.type, expected.finish.type);
    EXPECT_EQ(got.finish.matched_string, expected.finish.matched_string);
    ASSERT_EQ(got.logprobs.size(), expected.logprobs.size());
  }
  for (size_t k = 0; k < std::min({same, got.logprobs.size(), expected.logprobs.size()}); ++k) {
    ASSERT_NEAR(got.logprobs[k], expected.logprobs[k], tolerance) << "token " << k;
  }
}

inline void expect_same(const std::vector<Answer>& got, const std::vector<Answer>& expected,
                        const std::vector<GenerateRequest>& asked, const Rounding& rounding = {}) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE("request " + std::to_string(i));
    const bool draws_may_differ = rounding.of_kv && asked[i].sampling.temperature > 0;
    expect_same_answer(got[i], expected[i], draws_may_differ, rounding.of_kv ? 5e-3f : 1e-4f);
  }
}

inline ServerArgs small_args(int page_size) {
  ServerArgs args;
  args.threads = 1;
  args.page_size = page_size;
  args.max_total_tokens = 4096;
  return args;
}

inline void set_algorithm(const std::string& algorithm, int topk, ServerArgs& args) {
  args.speculative_algorithm = algorithm;
  args.speculative_eagle_topk = topk;
  if (algorithm == "EAGLE") args.speculative_draft_model_path = "models/tale-eagle";
  if (algorithm == "STANDALONE") args.speculative_draft_model_path = "models/tale-draft";
}

}  // namespace warpweave::speculation
