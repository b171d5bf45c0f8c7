// What tests of failures on a GPU serve and ask for: a small model of each kind, and requests that between them need
// most of what the engine does with a GPU.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/testing/asking.h"
#include "grammar/testing/grammar_texts.h"
#include "lora/testing/random_adapter.h"
#include "model/model_bundle.h"

namespace warpweave {

struct FailureSetting {
  const char* family;
  const char* kv_cache_dtype;
  bool graphs, overlap;
  const char* algorithm = "";  // of speculation
  int topk = 1;
  bool adapters = false;
};
inline void PrintTo(const FailureSetting& s, std::ostream* out) {
  *out << s.family << " " << s.algorithm << " " << s.kv_cache_dtype << (s.adapters ? " adapters" : "")
       << (s.graphs ? " graphs" : "") << (s.overlap ? " overlap" : "");
}

class FailureScene {
 public:
  explicit FailureScene(const FailureSetting& setting) : setting_(setting) {}

  Result<ServedModel> serve() const {
    const std::string path = "tests/golden/families/" + std::string(setting_.family);
    ServerArgs args;
    args.device = "cuda";
    args.threads = 2;
    args.model_path = path;
    args.skip_tokenizer_init = true;
    args.kv_cache_dtype = setting_.kv_cache_dtype;
    args.page_size = 16;
    args.max_total_tokens = 512;
    args.max_running_requests = 4;
    args.chunked_prefill_size = 32;
    args.disable_overlap_schedule = !setting_.overlap;
    args.disable_cuda_graph = !setting_.graphs;
    args.cuda_graph_bs = setting_.graphs ? "1,4" : "";
    if (*setting_.algorithm != '\0') {
      args.speculative_algorithm = setting_.algorithm;
      args.speculative_eagle_topk = setting_.topk;
      if (args.speculative_algorithm != "NGRAM") {
        args.speculative_num_steps = 3;
        args.load_format = "dummy";
        args.speculative_draft_model_path = args.speculative_algorithm == "EAGLE" ? eagle_head(path) : path;
      }
    }
    if (setting_.adapters) {
      args.lora_paths = "a=" + adapter_for(path) + "\n";
      args.max_loaded_loras = 1;
    }
    return create_engine({.args = args, .model_path = path, .on_weights_progress = {}});
  }

  // Prompts cut into chunks, a shared beginning that ends within a page (copied before it is written), logits that are
  // edited, masked, scored and read by the host, and a request that is aborted.
  static void use(ServedModel& served) {
    std::vector<GenerateRequest> first = greedy_requests({some_ids(40, 1)}, 3);
    ask(served, first);
    std::vector<GenerateRequest> requests =
        greedy_requests({some_ids(40, 1), some_ids(25, 1), some_ids(9, 2), some_ids(5, 3)}, 5);
    requests[1].return_logprob = true;
    requests[1].logprob_start_len = 0;
    requests[1].token_ids_logprob = {5};
    requests[2].sampling.temperature = 0.8;
    requests[2].sampling.presence_penalty = 0.5;
    requests[3].sampling.max_new_tokens = 60;
    requests[3].sampling.grammar = grammar::testing::compile({grammar::GrammarSpec::Kind::regex, "[a-m]*", {}});
    if (served.adapters != nullptr) {
      requests[0].adapter = requests[2].adapter = served.adapters->take("a")->weights;
    }
    Asking asking(served, requests);
    served.engine->abort("3");
    asking.wait();
  }

 private:
  static std::string adapter_for(const std::string& model) {
    const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "failure_adapter";
    if (!std::filesystem::exists(folder)) {
      const auto bundle = open_model_bundle(model, {.tokenizer_path = {}, .skip_tokenizer = true});
      write_random_adapter(folder, *lora_targets(bundle->config), {.rank = 4});
    }
    return folder;
  }

  // An EAGLE head for the model of a folder: its configuration with one layer.
  static std::string eagle_head(const std::string& of) {
    std::ifstream in(of + "/config.json");
    auto config = nlohmann::json::parse(in);
    config["architectures"] = {"LlamaForCausalLMEagle"};
    config["num_hidden_layers"] = 1;
    const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "eagle_head";
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "config.json") << config;
    return folder;
  }

  const FailureSetting setting_;
};

}  // namespace warpweave
