// Serving latent attention (DeepSeek): a request's text is the same alone and among others, in chunks, behind cached
// prefixes and beside decoding requests. On a Hopper GPU also every name that runs it, by the probabilities of a long
// prompt.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/testing/temporary_folder.h"
#include "engine/start_device.h"
#include "engine/testing/asking.h"
#include "engine/testing/serving_device.h"
#include "model/layers/latent_prefill_plan.h"
#include "model/testing/shared_model.h"

namespace warpweave {
namespace {

ServedModel serve(ServerArgs args, const std::string& path) {
  args.model_path = path;
  args.skip_tokenizer_init = true;
  auto served = create_engine({.args = args, .model_path = path, .on_weights_progress = {}});
  EXPECT_TRUE(served.ok()) << served.status().message();
  return std::move(served).value();
}

class LatentServing : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string why = no_test_device(); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_P(LatentServing, ACrowdSaysWhatEachSaysAlone) {
  ServerArgs args;
  serve_on_test_device(args);
  args.page_size = 4;
  args.max_total_tokens = 1024;
  args.max_running_requests = 6;
  args.chunked_prefill_size = 16;
  args.enable_mixed_chunk = true;
  const std::string path = std::string("tests/golden/families/") + GetParam();
  ServerArgs plain_args = args;
  plain_args.disable_radix_cache = true;
  plain_args.chunked_prefill_size = -1;
  ServedModel plain = serve(plain_args, path), served = serve(args, path);
  std::vector<Ids> prompts;
  for (int i = 0; i < 6; ++i) prompts.push_back(some_ids(9 + 7 * i, i));
  std::vector<Answer> alone;
  for (const Ids& prompt : prompts) alone.push_back(ask(plain, std::vector<Ids>{prompt}, 16).front());
  EXPECT_EQ(ask(served, prompts, 16), alone);
  EXPECT_EQ(ask(served, prompts, 16), alone) << "behind cached prefixes";
}

INSTANTIATE_TEST_SUITE_P(Families, LatentServing, testing::Values("deepseek-v2-groups-moe", "deepseek-v3-moe"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

#ifdef WW_TEST_ON_GPU
// The log-probabilities of prompts' tokens from `start` on, of one prompt after the other, asked for all at once.
std::vector<float> prompt_logprobs(ServedModel& served, const std::vector<Ids>& prompts, int start) {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::vector<float>> parts(prompts.size());
  size_t finished = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    GenerateRequest request = greedy_request("prompt " + std::to_string(i), prompts[i], 1);
    request.return_logprob = true;
    request.logprob_start_len = start;
    const Status status = served.engine->submit(request, [&, i](const OutputDelta& delta) {
      std::lock_guard lock(mutex);
      for (const PositionLogprobs& position : delta.input_logprobs) parts[i].push_back(position.chosen.logprob);
      finished += delta.finish.has_value();
      changed.notify_all();
    });
    EXPECT_TRUE(status.ok()) << status.message();
  }
  std::unique_lock lock(mutex);
  EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), [&] { return finished == prompts.size(); }));
  std::vector<float> out;
  for (const std::vector<float>& part : parts) out.insert(out.end(), part.begin(), part.end());
  return out;
}
std::vector<float> prompt_logprobs(ServedModel& served, const Ids& prompt) {
  return prompt_logprobs(served, std::vector<Ids>{prompt}, 0);
}

// A file of times by which prompts of tale-mla expand whatever is cached; by counting they would not behind a prefix.
std::string always_expanded(const TemporaryFolder& folder, KvFormat format) {
  TuningTable table(resolve_device("cuda").value()->facts.name, "2026-11-30");
  LatentFormSet set = {.shape = {4, 512, 128, 64, 128, format}, .date = table.date(), .points = {}};
  for (const int requests : {1, 16}) {
    for (const int prefix : {0, 4096}) {
      set.points.push_back(
          {.requests = requests, .new_tokens = 2, .prefix = prefix, .absorbed_us = 1000, .expanded_us = 1});
    }
  }
  table.add(std::move(set));
  const std::string path = folder.path() / (std::string(kv_format_name(format)) + ".json");
  std::ofstream(path) << table.to_json();
  return path;
}

// The token before the first has no probability.
double mean_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (size_t i = 1; i < std::min(a.size(), b.size()); ++i) sum += std::abs(a[i] - b[i]);
  return sum / static_cast<double>(a.size());
}

class LatentNames : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = no_test_device(); !why.empty()) GTEST_SKIP() << why;
    if (probe_cuda_device()->compute_capability != 90) GTEST_SKIP() << "kernels for sm_90";
    path = shared_model("tale-mla");
    if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path;
    const nlohmann::json golden = nlohmann::json::parse(std::ifstream(path + "/golden.json"));
    for (int round = 0; prompt.size() < 1500; ++round) {
      for (const char* part : {"input_ids", "greedy_ids"}) {
        const auto ids = golden.at("prompts")[round % 4].at(part).get<Ids>();
        prompt.insert(prompt.end(), ids.begin(), ids.end());
      }
    }
  }
  std::string path;
  Ids prompt;
};

// Whatever the chunks, and with other requests in every step.
TEST_F(LatentNames, GiveTheSameBitsWhereTheyAreDeterministic) {
  ServerArgs args;
  args.device = "cuda";
  args.dtype = "bfloat16";
  args.max_total_tokens = 16384;
  args.max_running_requests = 8;
  args.disable_radix_cache = true;
  args.enable_deterministic_inference = true;
  for (const char* name : {"fa3", "flashinfer", "torch_native"}) {
    args.attention_backend = name;
    args.chunked_prefill_size = -1;
    ServedModel alone = serve(args, path);
    const auto logprobs = [&](ServedModel& served) {
      std::vector<float> out = prompt_logprobs(served, prompt);
      EXPECT_EQ(out.size(), prompt.size()) << name;
      out.erase(out.begin());  // of nothing before it
      return out;
    };
    const std::vector<float> wanted = logprobs(alone);
    args.chunked_prefill_size = 96;
    args.enable_mixed_chunk = true;
    ServedModel busy = serve(args, path);
    EXPECT_EQ(logprobs(busy), wanted) << name << " in chunks";
    std::mutex mutex;
    std::condition_variable changed;
    int left = 5;
    for (int i = 0; i < 5; ++i) {
      const Ids other(prompt.begin() + 100 * i, prompt.begin() + 100 * i + 60 + 17 * i);
      const Status status =
          busy.engine->submit(greedy_request("other" + std::to_string(i), other, 200), [&](const OutputDelta& delta) {
            std::lock_guard lock(mutex);
            if (delta.finish.has_value() && --left == 0) changed.notify_all();
          });
      ASSERT_TRUE(status.ok()) << status.message();
    }
    EXPECT_EQ(logprobs(busy), wanted) << name << " beside others";
    std::unique_lock lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), [&] { return left == 0; }));
  }
}

// Guesses are checked in a graph as they are step by step, chains and trees. One request at a time, so that both ways
// multiply as many rows.
TEST_F(LatentNames, CheckGuessesInGraphsAsTheyDoWithout) {
  ServerArgs args;
  args.device = "cuda";
  args.max_total_tokens = 8192;
  args.max_running_requests = 8;
  args.load_format = "dummy";  // such a model's texts soon repeat themselves, and guesses come true
  args.speculative_algorithm = "NGRAM";
  args.speculative_ngram_match_type = "BFS";  // as many guesses always: one graph
  for (const char* name : {"fa3", "flashmla", "flashinfer", "triton", "torch_native"}) {
    // In a graph it cuts K and V into other pieces, whose sums round otherwise.
    args.dtype = name == std::string("triton") ? "float32" : "bfloat16";
    for (const int topk : {1, 4}) {
      args.attention_backend = name;
      args.speculative_eagle_topk = topk;
      args.disable_cuda_graph = false;
      ServedModel served = serve(args, path);
      args.disable_cuda_graph = true;
      ServedModel one_by_one = serve(args, path);
      for (const int length : {100, 1400}) {
        const std::vector<Ids> prompts = {Ids(prompt.begin(), prompt.begin() + length)};
        EXPECT_EQ(ask(served, prompts, 64), ask(one_by_one, prompts, 64)) << name << ", topk " << topk;
      }
      EXPECT_GT(served.engine->stats().speculation->accepted_tokens, 10u) << name << ", topk " << topk;
    }
  }
}

// Greedy, and between the two likeliest tokens of each place.
struct Text {
  Ids ids;
  std::vector<float> gaps;
};
Text text_of(ServedModel& served, const Ids& prompt, int new_tokens) {
  GenerateRequest request = greedy_request("text", prompt, new_tokens);
  request.return_logprob = true;
  request.top_logprobs_num = 2;
  std::mutex mutex;
  std::condition_variable changed;
  Text out;
  bool finished = false;
  const Status status = served.engine->submit(request, [&](const OutputDelta& delta) {
    std::lock_guard lock(mutex);
    out.ids.insert(out.ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    for (const PositionLogprobs& place : delta.output_logprobs) {
      out.gaps.push_back(place.top.at(0).logprob - place.top.at(1).logprob);
    }
    finished |= delta.finish.has_value();
    changed.notify_all();
  });
  EXPECT_TRUE(status.ok()) << status.message();
  std::unique_lock lock(mutex);
  EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), [&] { return finished; }));
  return out;
}

// triton cuts K and V into other pieces in a graph, whose sums round otherwise in bf16.
TEST_F(LatentNames, TritonsTextsByGraphsPartWhereTwoTokensAreEquallyLikelyOnly) {
  constexpr int kNewTokens = 96;
  constexpr float kTie = 0.1f;  // of a logit of bf16 arithmetic
  ServerArgs args;
  args.device = "cuda";
  args.dtype = "bfloat16";
  args.max_total_tokens = 8192;
  args.max_running_requests = 8;
  args.speculative_algorithm = "NGRAM";
  args.speculative_ngram_match_type = "BFS";
  args.attention_backend = "triton";
  for (const int topk : {1, 4}) {
    args.speculative_eagle_topk = topk;
    args.disable_cuda_graph = false;
    ServedModel served = serve(args, path);
    args.disable_cuda_graph = true;
    ServedModel one_by_one = serve(args, path);
    int ties = 0, places = 0;
    for (const int length : {40, 100, 350, 700, 1400}) {
      const Ids begin(prompt.begin(), prompt.begin() + length);
      const Text wanted = text_of(one_by_one, begin, kNewTokens), got = text_of(served, begin, kNewTokens);
      ASSERT_EQ(wanted.ids.size(), got.ids.size());
      const auto parting = std::mismatch(wanted.ids.begin(), wanted.ids.end(), got.ids.begin()).first;
      if (parting != wanted.ids.end()) {
        const auto at = static_cast<size_t>(parting - wanted.ids.begin());
        EXPECT_LT(wanted.gaps.at(at), kTie) << "topk " << topk << ", " << length << " tokens, token " << at;
      }
      for (const float gap : wanted.gaps) ties += gap < kTie;
      places += kNewTokens;
    }
    EXPECT_LT(ties, places / 4) << "else nothing is shown";
    EXPECT_GT(served.engine->stats().speculation->accepted_tokens, 10u) << "topk " << topk;
  }
}

TEST_F(LatentNames, ServeLongPromptsAlike) {
  ServerArgs args;
  args.device = "cuda";
  args.max_total_tokens = 8192;
  args.max_running_requests = 8;
  args.disable_radix_cache = true;
  ServerArgs exact_args = args;
  exact_args.dtype = "float32";
  exact_args.attention_backend = "torch_native";
  ServedModel exact = serve(exact_args, path);
  const std::vector<float> wanted = prompt_logprobs(exact, prompt);
  struct Pool {
    const char* format;
    double bound;
  };
  for (const char* name : {"fa3", "fa4", "flashmla", "cutlass_mla", "trtllm_mla", "flashinfer", "triton",
                           "flex_attention", "torch_native"}) {
    for (const Pool& pool : {Pool{"auto", 0.05}, {"fp8_e4m3", 0.25}, {"fp8_ds_mla", 0.15}, {"fp4_e2m1", 0.35}}) {
      for (const int chunk : {-1, 512}) {
        ServerArgs own = args;
        own.dtype = "bfloat16";
        own.attention_backend = name;
        own.kv_cache_dtype = pool.format;
        own.chunked_prefill_size = chunk;
        ServedModel served = serve(own, path);
        EXPECT_LT(mean_difference(prompt_logprobs(served, prompt), wanted), pool.bound)
            << name << " " << pool.format << " " << chunk;
      }
    }
  }
}

// K and V of a cached prefix are made anew in as many pieces as memory for them asks for, and the pieces' results
// merged; or its latent rows are read as they are.
TEST_F(LatentNames, CachedPrefixesAreMergedFromPieces) {
  constexpr int kCached = 1400, kOwn = 30, kRequests = 16, kStepTokens = 512;
  std::vector<Ids> prompts(kRequests, Ids(prompt.begin(), prompt.begin() + kCached));
  std::vector<int32_t> q_indptr = {0};
  for (int i = 0; i < kRequests; ++i) {
    for (int j = 0; j < kOwn; ++j) prompts[i].push_back(prompt[(i * 37 + j * 5) % kCached]);
    q_indptr.push_back((i + 1) * kOwn);
  }
  const LatentPrefillShape shape = {.num_heads = 4, .rank = 512, .nope_dim = 128, .rope_dim = 64, .v_dim = 128, .capacity_rows = kStepTokens + 8192, .form = LatentForm::expanded};
  EXPECT_GE(plan_latent_prefill(shape, q_indptr, std::vector<int32_t>(kRequests, kCached + kOwn)).num_chunks, 3);
  ServerArgs args;
  args.device = "cuda";
  args.max_total_tokens = 32768;
  args.max_running_requests = kRequests;
  args.chunked_prefill_size = kStepTokens;
  ServerArgs exact_args = args;
  exact_args.dtype = "float32";
  exact_args.attention_backend = "torch_native";
  ServedModel exact = serve(exact_args, path);
  const std::vector<float> wanted = prompt_logprobs(exact, prompts, kCached);
  const TemporaryFolder folder;
  struct Pool {
    const char *name, *format;
    KvFormat cached;
    int page_size;
    double bound;
  };
  for (const Pool& pool : {Pool{"fa3", "auto", KvFormat::bf16, 64, 0.05}, {"flashinfer", "fp8_e4m3", KvFormat::fp8_e4m3, 1, 0.25}, {"flashmla", "fp8_ds_mla", KvFormat::fp8_ds_mla, 16, 0.15}, {"cutlass_mla", "fp4_e2m1", KvFormat::fp4_mla, 128, 0.35}}) {
    for (const bool left_latent : {false, true}) {
      ServerArgs own = args;
      own.dtype = "bfloat16";
      own.attention_backend = pool.name;
      own.kv_cache_dtype = pool.format;
      own.page_size = pool.page_size;
      own.attention_tuning_file = always_expanded(folder, pool.cached);
      own.disable_chunked_prefix_cache = left_latent;
      ServedModel served = serve(own, path);
      ask(served, {Ids(prompt.begin(), prompt.begin() + kCached)}, 1);  // leaves its prefix in the cache
      EXPECT_LT(mean_difference(prompt_logprobs(served, prompts, kCached), wanted), pool.bound)
          << pool.name << " " << pool.format << " " << left_latent;
    }
  }
}
#endif

}  // namespace
}  // namespace warpweave
