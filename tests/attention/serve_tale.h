// models/tale-llama behind an engine: what the tests of served attention share.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attention/registry.h"
#include "base/threads.h"
#include "engine/engine_impl.h"

namespace warpweave::tale {

inline constexpr const char* kModel = "models/tale-llama";

struct Answer {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;  // of each id and of the 5 best in its place
  int cached_tokens = 0;
};

inline ServedModel serve(ServerArgs args) {
  args.model_path = kModel;
  if (args.device == "auto") args.device = "cpu";
  auto served = create_engine({.args = args, .model_path = kModel, .on_weights_progress = {}});
  EXPECT_TRUE(served.ok()) << served.status().message();
  return std::move(served).value();
}

// Submits all prompts at once and waits for their greedy answers.
inline std::vector<Answer> ask(Engine& engine, const std::vector<std::vector<int32_t>>& prompts,
                               int new_tokens) {
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<Answer> answers;
    size_t finished = 0;
  };
  static int round = 0;
  const auto shared = std::make_shared<Shared>();
  shared->answers.resize(prompts.size());
  ++round;
  for (size_t i = 0; i < prompts.size(); ++i) {
    GenerateRequest request;
    request.rid = std::to_string(round) + "/" + std::to_string(i);
    request.input_ids = prompts[i];
    request.sampling.temperature = 0;
    request.sampling.max_new_tokens = new_tokens;
    request.sampling.ignore_eos = true;
    request.return_logprob = true;
    request.top_logprobs_num = 5;
    const Status status = engine.submit(request, [shared, i](OutputDelta delta) {
      std::lock_guard lock(shared->mutex);
      Answer& answer = shared->answers[i];
      answer.ids.insert(answer.ids.end(), delta.token_ids.begin(), delta.token_ids.end());
      for (const PositionLogprobs& p : delta.output_logprobs) {
        answer.logprobs.push_back(p.chosen.logprob);
        for (const TokenLogprob& t : p.top) answer.logprobs.push_back(t.logprob);
      }
      answer.cached_tokens = delta.cached_tokens;
      if (delta.finish) ++shared->finished;
      shared->changed.notify_all();
    });
    EXPECT_TRUE(status.ok()) << status.message();
  }
  std::unique_lock lock(shared->mutex);
  EXPECT_TRUE(shared->changed.wait_for(lock, std::chrono::seconds(120),
                                       [&] { return shared->finished == prompts.size(); }));
  return shared->answers;
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
    if (backend.caps->name == "dual_chunk_flash_attn") continue;  // for models with its config
    names.emplace_back(backend.caps->name);
  }
  return names;
}

}  // namespace warpweave::tale
