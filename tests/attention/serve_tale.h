// models/tale-llama behind an engine: what the tests of served attention share.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attention/registry.h"
#include "base/threads.h"
#include "engine/engine_impl.h"
#include "engine/testing/collect_answers.h"

namespace warpweave::tale {

inline constexpr const char* kModel = "models/tale-llama";

struct Answer {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;  // of each id and of the 5 best in its place
  int cached_tokens = 0;
};

inline ServedModel serve(ServerArgs args) {
  if (args.model_path.empty()) args.model_path = kModel;
  if (args.device == "auto") args.device = "cpu";
  auto served = create_engine({.args = args, .model_path = args.model_path, .on_weights_progress = {}});
  EXPECT_TRUE(served.ok()) << served.status().message();
  return std::move(served).value();
}

// Submits all prompts at once and waits for their greedy answers.
inline std::vector<Answer> ask(Engine& engine, const std::vector<std::vector<int32_t>>& prompts,
                               int new_tokens) {
  static int round = 0;
  ++round;
  std::vector<GenerateRequest> requests;
  for (const std::vector<int32_t>& prompt : prompts) {
    GenerateRequest& request = requests.emplace_back();
    request.rid = std::to_string(round) + "/" + std::to_string(requests.size());
    request.input_ids = prompt;
    request.sampling.temperature = 0;
    request.sampling.max_new_tokens = new_tokens;
    request.sampling.ignore_eos = true;
    request.return_logprob = true;
    request.top_logprobs_num = 5;
  }
  return collect_answers<Answer>(engine, requests, [](Answer& answer, const OutputDelta& delta) {
    answer.ids.insert(answer.ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    for (const PositionLogprobs& p : delta.output_logprobs) {
      answer.logprobs.push_back(p.chosen.logprob);
      for (const TokenLogprob& t : p.top) answer.logprobs.push_back(t.logprob);
    }
    answer.cached_tokens = delta.cached_tokens;
  });
}

struct Goldens {
  std::vector<std::vector<int32_t>> prompts, continuations;  // of 32 tokens
};

inline Goldens goldens() {
  Goldens out;
  const auto golden = nlohmann::json::parse(std::ifstream(std::string(kModel) + "/golden.json"));
  for (const auto& prompt : golden["prompts"]) {
    out.prompts.push_back(prompt["input_ids"]);
    out.continuations.push_back(prompt["greedy_ids"]);
  }
  return out;
}

// The names of the backends that start on this machine's CPU and serve this model.
inline std::vector<std::string> cpu_backends() {
  std::vector<std::string> names;
  for (const KnownBackend& backend : known_backends()) {
    if (!backend.built || !backend.caps->archs.has(cpu_hardware_facts().arch)) continue;
    if (!backend.caps->kinds.has(AttentionKind::mha)) continue;
    if (backend.probe && !backend.probe(Probe::thorough).ok()) continue;
    if (backend.caps->dual_chunk) continue;  // for models with its config
    names.emplace_back(backend.caps->name);
  }
  return names;
}

}  // namespace warpweave::tale
