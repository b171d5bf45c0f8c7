// Every call of the CUDA runtime fails once, from start to shutdown: starting says what failed, or requests end with an
// answer or an error, the next one is answered, and nothing is leaked. The runtime is a fake (device/cuda/testing), so
// this needs no GPU; what a real one does after a failed kernel is its driver's matter.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "device/cuda/testing/fake_cuda.h"
#include "engine/testing/asking.h"
#include "grammar/testing/grammar_texts.h"
#include "lora/testing/random_adapter.h"
#include "model/model_bundle.h"

namespace warpweave {
namespace {

struct Setting {
  const char* family;
  const char* kv_cache_dtype;
  bool graphs, overlap;
  const char* algorithm = "";  // of speculation
  int topk = 1;
  bool adapters = false;
};
void PrintTo(const Setting& s, std::ostream* out) {
  *out << s.family << " " << s.algorithm << " " << s.kv_cache_dtype << (s.adapters ? " adapters" : "")
       << (s.graphs ? " graphs" : "") << (s.overlap ? " overlap" : "");
}

class GpuFailure : public testing::TestWithParam<Setting> {
 protected:
  static Result<ServedModel> serve() {
    const std::string path = "tests/golden/families/" + std::string(GetParam().family);
    ServerArgs args;
    args.device = "cuda";
    args.threads = 2;
    args.model_path = path;
    args.skip_tokenizer_init = true;
    args.kv_cache_dtype = GetParam().kv_cache_dtype;
    args.page_size = 16;
    args.max_total_tokens = 512;
    args.max_running_requests = 4;
    args.chunked_prefill_size = 32;
    args.disable_overlap_schedule = !GetParam().overlap;
    args.disable_cuda_graph = !GetParam().graphs;
    args.cuda_graph_bs = GetParam().graphs ? "1,4" : "";
    if (*GetParam().algorithm != '\0') {
      args.speculative_algorithm = GetParam().algorithm;
      args.speculative_eagle_topk = GetParam().topk;
      if (args.speculative_algorithm != "NGRAM") {
        args.speculative_num_steps = 3;
        args.load_format = "dummy";
        args.speculative_draft_model_path = args.speculative_algorithm == "EAGLE" ? eagle_head(path) : path;
      }
    }
    if (GetParam().adapters) {
      args.lora_paths = "a=" + adapter_for(path) + "\n";
      args.max_loaded_loras = 1;
    }
    return create_engine({.args = args, .model_path = path, .on_weights_progress = {}});
  }

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

  // Why the engine is not as it should be after a failure; empty: it is.
  static std::string check(ServedModel& served) {
    const bool failed_before = !fake_cuda::failed_call().empty();
    Answer next = ask(served, greedy_requests({some_ids(30, 7)}, 4))[0];
    const bool failed_now = !failed_before && !fake_cuda::failed_call().empty();
    if (failed_now) next = ask(served, greedy_requests({some_ids(30, 8)}, 4))[0];  // the failure may have been its own
    if (!next.error.ok()) return "the next request: " + next.error.message();
    if (next.ids.size() != 4) return "the next request has " + std::to_string(next.ids.size()) + " tokens";
    const Status audit = served.engine->audit();
    return audit.ok() ? "" : audit.message();
  }
};

// Serves with each call failing once, until all have.
class GpuFailureWalk : public GpuFailure {
 protected:
  void SetUp() override {
    ASSERT_TRUE(init_log("critical").ok());
    fake_cuda::fail_call(0);
    auto served = serve();  // what is made once a process stays
    ASSERT_TRUE(served.ok()) << served.status().message();
    use(*served);
    ASSERT_EQ(check(*served), "");
  }

  template <typename Look>
  void walk(fake_cuda::After after, Look&& look) {
    const fake_cuda::Alive before = fake_cuda::alive();
    int at_start = 0, later = 0;
    for (int64_t number = 1;; ++number) {
      fake_cuda::fail_call(number, after);
      {
        auto served = serve();
        if (served.ok()) {
          use(*served);
          EXPECT_EQ(look(*served), "") << "call " << number << ", " << fake_cuda::failed_call();
        } else {
          EXPECT_FALSE(served.status().message().empty()) << number;
          EXPECT_FALSE(fake_cuda::failed_call().empty()) << served.status().message();
        }
        ++(served.ok() ? later : at_start);
      }
      ASSERT_EQ(fake_cuda::alive(), before) << "call " << number << ", " << fake_cuda::failed_call();
      if (fake_cuda::failed_call().empty()) break;
    }
    std::printf("%d calls failed the start, %d did not\n", at_start, later);
    EXPECT_GT(at_start, 10);
    EXPECT_GT(later, 100);
  }
};

TEST_P(GpuFailureWalk, OneFailureIsSaidAndTheNextRequestAnswered) { walk(fake_cuda::After::works, check); }

TEST_P(GpuFailureWalk, ALostDeviceEndsRequestsAndLeaksNothing) {
  walk(fake_cuda::After::lost, [](ServedModel& served) -> std::string {
    if (fake_cuda::failed_call().empty()) return "";
    const Answer next = ask(served, greedy_requests({some_ids(30, 7)}, 4))[0];
    return next.error.ok() ? "a request on a lost device has no error" : "";
  });
}

INSTANTIATE_TEST_SUITE_P(
    Models, GpuFailureWalk,
    testing::Values(Setting{"llama", "auto", true, true}, Setting{"llama", "fp8_e4m3", false, false},
                    Setting{"llama", "auto", true, true, "", 1, true}, Setting{"gemma3", "auto", true, true},
                    Setting{"qwen3-moe", "auto", false, true}, Setting{"qwen3-next", "auto", true, true},
                    Setting{"deepseek-v2-moe", "auto", true, true}));

INSTANTIATE_TEST_SUITE_P(Speculation, GpuFailureWalk,
                         testing::Values(Setting{"llama", "auto", true, true, "NGRAM", 4},
                                         Setting{"llama", "auto", true, true, "EAGLE", 1},
                                         Setting{"llama", "auto", false, true, "EAGLE", 3},
                                         Setting{"llama", "auto", true, false, "STANDALONE", 1}));

}  // namespace
}  // namespace warpweave
