// The GPU's decoder against the goldens of every family, and against the CPU. Skipped without a GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "attention/registry.h"
#include "attention/select.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/stream.h"
#include "model/fp8_weights.h"
#include "model/gpu_decoder.h"
#include "model/model_bundle.h"
#include "model/recurrent.h"
#include "model/testing/paged_run.h"
#include "ops/elementwise.h"

namespace warpweave {
namespace {

using nlohmann::json;

constexpr int kStateSlots = 3, kStateSlot = 1;

struct GpuRunOptions {
  std::string backend = "torch_native";
  DType dtype = DType::f32;
  KvFormat kv_format = KvFormat::f32;
  int page_size = 4;
  int max_tokens = 512;
  std::optional<Fp8Config> fp8 = {};  // weights are rounded to 8 bits
  std::string linear = "triton";      // kernels of recurrent layers
  DType state_dtype = DType::f32;
};

// One sequence on the GPU, pages in a shuffled order: PagedRun's twin.
class GpuRun {
 public:
  static Result<std::unique_ptr<GpuRun>> open(const std::string& path, const GpuRunOptions& options, DeviceArch arch) {
    auto run = std::unique_ptr<GpuRun>(new GpuRun(options));
    WW_ASSIGN_OR_RETURN(ModelBundle bundle, open_model_bundle(path, {.load_format = "auto", .tokenizer_path = {},
                                                                     .skip_tokenizer = true}));
    if (options.fp8) bundle.weights = quantize_weights_fp8(std::move(bundle.weights), *options.fp8);
    run->config_ = bundle.config;
    // As a server does: never beyond the model's own context, which decides which factors a longrope takes.
    const int served = std::min(options.max_tokens, bundle.config.max_position_embeddings);
    const BuildOptions build = {.dtype = options.dtype, .max_positions = served, .progress = {}};
    WW_ASSIGN_OR_RETURN(GpuDecoderWeights weights, load_gpu_weights(bundle.config, bundle.weights, build, run->team_));
    WW_ASSIGN_OR_RETURN(run->model_, GpuDecoder::create(bundle.config, build, std::move(weights),
                                                        {.max_tokens = options.max_tokens,
                                                         .max_logits_rows = options.max_tokens,
                                                         .linear = {options.linear, options.linear, "", false},
                                                         .state_dtype = options.state_dtype}));
    const AttentionKind kind = bundle.config.latent ? AttentionKind::mla : AttentionKind::mha;
    for (const BackendRegistration& backend : built_backends()) {
      if (backend.caps->name == options.backend && backend.caps->archs.has(arch) && backend.caps->kinds.has(kind)) {
        run->attention_ = backend.create({.team = &run->team_, .max_context_len = options.max_tokens,
                                          .page_size = options.page_size});
      }
    }
    if (run->attention_ == nullptr) return Status::not_found("no GPU backend " + options.backend);
    run->num_pages_ = (options.max_tokens + options.page_size - 1) / options.page_size;
    WW_ASSIGN_OR_RETURN(GpuKvCache cache, GpuKvCache::create({.num_layers = run->config_.num_kv_layers(),
                                                              .num_pages = run->num_pages_ + 3,
                                                              .page_size = options.page_size,
                                                              .num_kv_heads = run->config_.num_kv_heads,
                                                              .k_head_dim = run->config_.head_dim,
                                                              .v_head_dim = run->config_.cached_v_dim(),
                                                              .format = options.kv_format,
                                                              .layout = single_cache_group(run->config_.num_layers,
                                                                                           run->config_.linear_layers)}));
    run->cache_ = std::make_unique<GpuKvCache>(std::move(cache));
    if (run->config_.linear) {
      WW_ASSIGN_OR_RETURN(GpuStateCache states, GpuStateCache::create(state_cache_shape(run->config_, kStateSlots,
                                                                                       options.state_dtype)));
      run->states_ = std::make_unique<GpuStateCache>(std::move(states));
    }
    run->pages_.resize(run->num_pages_ + 3);
    std::iota(run->pages_.begin(), run->pages_.end(), 0);
    std::shuffle(run->pages_.begin(), run->pages_.end(), std::mt19937(5));
    WW_ASSIGN_OR_RETURN(run->stream_, create_stream());
    WW_ASSIGN_OR_RETURN(run->arrays_, DeviceBuffer::allocate(size_t{1} << 20, "arrays"));
    WW_ASSIGN_OR_RETURN(run->logits_, DeviceBuffer::allocate(sizeof(float) * options.max_tokens * run->config_.vocab_size,
                                                            "logits"));
    return run;
  }

  Result<std::vector<float>> feed(std::span<const int32_t> ids, int wanted_rows = -1) {
    const int count = static_cast<int>(ids.size()), wanted = wanted_rows < 0 ? count : wanted_rows;
    std::vector<int32_t> positions(count), slots(count), rows(wanted), q_indptr = {0, count};
    for (int i = 0; i < count; ++i) {
      positions[i] = length_ + i;
      slots[i] = pages_[positions[i] / options_.page_size] * options_.page_size + positions[i] % options_.page_size;
    }
    std::iota(rows.begin(), rows.end(), count - wanted);
    length_ += count;
    const std::vector<int32_t> kv_lens = {length_}, input(ids.begin(), ids.end());
    ForwardBatch batch;
    batch.mode = count == 1 ? ForwardMode::decode : ForwardMode::extend;
    batch.num_reqs = 1;
    batch.num_tokens = batch.max_q_len = count;
    batch.max_kv_len = length_;
    batch.page_size = options_.page_size;
    batch.input_ids = input;
    batch.positions = positions;
    batch.kv_slots = slots;
    batch.q_indptr = q_indptr;
    batch.kv_lens = kv_lens;
    batch.page_table = pages_;
    batch.page_table_stride = static_cast<int>(pages_.size());
    batch.logits_rows = rows;
    batch.device.stream = stream_.get();
    used_ = 0;
    batch.device.input_ids = put(input);
    batch.device.positions = put(positions);
    batch.device.kv_slots = put(slots);
    batch.device.q_indptr = put(q_indptr);
    batch.device.kv_lens = put(kv_lens);
    batch.device.page_table = put(pages_);
    batch.device.logits_rows = put(rows);
    const std::vector<int32_t> slot = {kStateSlot}, initial = {positions[0] == 0 ? kNoStateSlot : kStateSlot};
    batch.device.state_slots = put(slot);
    batch.device.initial_state_slots = put(initial);
    WW_RETURN_IF_ERROR(attention_->init_forward_metadata(batch));
    WW_RETURN_IF_ERROR(model_->forward({.batch = batch, .cache = *cache_, .attention = *attention_,
                                        .logits = logits_.as<float>(), .states = states_.get()}));
    std::vector<float> logits(static_cast<size_t>(wanted) * config_.vocab_size);
    WW_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream_.get()), "a forward");
    WW_CUDA_RETURN_IF_ERROR(cudaMemcpy(logits.data(), logits_.as<void>(), logits.size() * sizeof(float),
                                       cudaMemcpyDeviceToHost), "reading logits");
    return logits;
  }

  Result<std::vector<int32_t>> greedy(std::span<const int32_t> prompt, int count) {
    std::vector<int32_t> out;
    WW_ASSIGN_OR_RETURN(std::vector<float> logits, feed(prompt, 1));
    while (static_cast<int>(out.size()) < count) {
      out.push_back(static_cast<int32_t>(argmax(logits.data(), logits.size())));
      WW_ASSIGN_OR_RETURN(logits, feed(std::span(&out.back(), 1)));
    }
    return out;
  }

  void restart() { length_ = 0; }
  gpu::GpuGemm& gemm() { return model_->gemm(); }
  GpuStateCache& states() { return *states_; }
  void* stream() const { return stream_.get(); }
  void go_on_at(int length) { length_ = length; }

 private:
  explicit GpuRun(const GpuRunOptions& options) : options_(options) {}

  const int32_t* put(const std::vector<int32_t>& values) {
    std::byte* to = arrays_.as<std::byte>() + used_;
    used_ += (values.size() * sizeof(int32_t) + 255) / 256 * 256;
    cudaMemcpy(to, values.data(), values.size() * sizeof(int32_t), cudaMemcpyHostToDevice);
    return reinterpret_cast<const int32_t*>(to);
  }

  GpuRunOptions options_;
  ThreadTeam team_{2};
  ModelConfig config_;
  std::unique_ptr<GpuDecoder> model_;
  std::unique_ptr<AttentionBackend> attention_;
  std::unique_ptr<GpuKvCache> cache_;
  std::unique_ptr<GpuStateCache> states_;
  std::vector<int32_t> pages_;
  int num_pages_ = 0;
  CudaStream stream_;
  DeviceBuffer arrays_, logits_;
  size_t used_ = 0;
  int length_ = 0;
};

// The architecture of the GPU here, or nullopt.
std::optional<DeviceArch> gpu_arch() {
  const auto info = probe_cuda_device();
  return info.ok() ? arch_of_compute_capability(info->compute_capability) : std::nullopt;
}

#define WW_NEED_GPU(arch)              \
  const auto arch = gpu_arch();        \
  if (!arch) GTEST_SKIP() << "no GPU"

double relative_error(std::span<const float> got, std::span<const float> wanted) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    error += std::pow(got[i] - wanted[i], 2);
    norm += std::pow(wanted[i], 2);
  }
  return std::sqrt(error / norm);
}

class GpuFamilyTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string name = GetParam();
    folder_ = "tests/golden/families/" + name;
    path_ = folder_ + (name.starts_with("gguf") ? "/model.gguf" : "");
    const json golden = json::parse(std::ifstream(folder_ + "/golden.json"));
    prompt_ = golden.at("input_ids").get<std::vector<int32_t>>();
    greedy_ = golden.at("greedy_ids").get<std::vector<int32_t>>();
    for (const auto& row : golden.at("logits")) {
      for (const auto& value : row) logits_.push_back(value.get<float>());
    }
    ids_ = prompt_;
    ids_.insert(ids_.end(), greedy_.begin(), greedy_.end());
  }
  std::string folder_, path_;
  std::vector<int32_t> prompt_, greedy_, ids_;
  std::vector<float> logits_;
};

TEST_P(GpuFamilyTest, PrefillChunksAndDecodeGiveTheGoldenLogits) {
  WW_NEED_GPU(arch);
  auto run = GpuRun::open(path_, {}, *arch);
  ASSERT_TRUE(run.ok()) << run.status().message();
  std::vector<float> all;
  for (size_t done = 0, chunk = 7; done < ids_.size(); done += chunk, chunk = done < 14 ? 7 : 1) {
    chunk = std::min(chunk, ids_.size() - done);
    auto logits = (*run)->feed(std::span(ids_).subspan(done, chunk));
    ASSERT_TRUE(logits.ok()) << logits.status().message();
    all.insert(all.end(), logits->begin(), logits->end());
  }
  ASSERT_EQ(all.size(), logits_.size());
  float worst = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const float d = std::fabs(all[i] - logits_[i]);
    worst = d <= worst ? worst : d;
  }
  EXPECT_LE(worst, 3e-4f);
}

TEST_P(GpuFamilyTest, GreedyIsTheGolden) {
  WW_NEED_GPU(arch);
  auto run = GpuRun::open(path_, {.page_size = 1}, *arch);
  ASSERT_TRUE(run.ok()) << run.status().message();
  auto ids = (*run)->greedy(prompt_, static_cast<int>(greedy_.size()));
  ASSERT_TRUE(ids.ok()) << ids.status().message();
  EXPECT_EQ(*ids, greedy_);
}

TEST_P(GpuFamilyTest, SixteenBitTypesStayClose) {
  WW_NEED_GPU(arch);
  const std::string name = GetParam();
  const bool experts = name.find("moe") != std::string::npos || name == "qwen3-next";
  for (const DType dtype : {DType::bf16, DType::f16}) {
    auto run = GpuRun::open(path_, {.dtype = dtype, .kv_format = *kv_format_of(dtype)}, *arch);
    ASSERT_TRUE(run.ok()) << run.status().message();
    auto logits = (*run)->feed(ids_);
    ASSERT_TRUE(logits.ok()) << logits.status().message();
    EXPECT_LT(relative_error(*logits, logits_), experts ? 0.15 : 0.08) << dtype_info(dtype).name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GpuFamilyTest,
                         testing::Values("llama", "llama-bias", "mistral", "qwen2", "qwen3", "qwen3-moe", "mixtral-moe",
                                         "olmoe-moe", "qwen2-moe", "glm4-moe", "phimoe-moe", "phimoe-moe-long", "gemma2",
                                         "gemma3", "gpt-oss", "gguf", "phi3", "phi3-long", "olmo2", "olmo3", "granite", "cohere2",
                                         "gemma", "glm4", "smollm3", "stablelm", "stablelm-parallel", "starcoder2",
                                         "falcon3", "exaone4", "ernie4_5", "hunyuan", "seed_oss", "dynamic",
                                         "qwen3-next", "deepseek-v2-moe", "deepseek-v2-groups-moe", "deepseek-v3-moe",
                                         "deepseek-v3-halves-moe", "qwen3_5", "qwen3_5-moe", "qwen3_5-moe-wrapped"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

void expect_tale_golden(const std::string& folder, const GpuRunOptions& options, DeviceArch arch) {
  const json golden = json::parse(std::ifstream(folder + "/golden.json"));
  for (const json& prompt : golden.at("prompts")) {
    auto run = GpuRun::open(folder, options, arch);
    ASSERT_TRUE(run.ok()) << run.status().message();
    const auto ids = prompt.at("input_ids").get<std::vector<int32_t>>();
    const auto expected = prompt.at("greedy_ids").get<std::vector<int32_t>>();
    auto greedy = (*run)->greedy(ids, static_cast<int>(expected.size()));
    ASSERT_TRUE(greedy.ok()) << greedy.status().message();
    EXPECT_EQ(*greedy, expected);
  }
}

TEST(GpuTale, GreedyIsTheGoldenInF32) {
  WW_NEED_GPU(arch);
  expect_tale_golden("models/tale-llama", {.page_size = 16}, *arch);
}

// The fp8 and fp4 pools, every page size: close to the f32 pool, and not equal to it.
TEST(GpuTale, EveryKvFormatWritesAndReadsThePool) {
  WW_NEED_GPU(arch);
  const json golden = json::parse(std::ifstream("models/tale-llama/golden.json"));
  const auto ids = golden.at("prompts")[0].at("input_ids").get<std::vector<int32_t>>();
  auto exact_run = GpuRun::open("models/tale-llama", {}, *arch);
  ASSERT_TRUE(exact_run.ok());
  const auto exact = (*exact_run)->feed(ids);
  ASSERT_TRUE(exact.ok());
  for (const auto& [format, bound] : {std::pair{KvFormat::bf16, 0.02}, {KvFormat::f16, 0.01},
                                      {KvFormat::fp8_e4m3, 0.15}, {KvFormat::fp8_e5m2, 0.25},
                                      {KvFormat::fp4_e2m1, 0.6}}) {
    for (int page_size : {1, 16}) {
      auto run = GpuRun::open("models/tale-llama", {.kv_format = format, .page_size = page_size}, *arch);
      ASSERT_TRUE(run.ok()) << run.status().message();
      const auto logits = (*run)->feed(ids);
      ASSERT_TRUE(logits.ok()) << logits.status().message();
      const double error = relative_error(*logits, *exact);
      EXPECT_LT(error, bound) << kv_format_name(format) << " page " << page_size;
      EXPECT_GT(error, 0) << kv_format_name(format);
    }
  }
}

TEST(GpuTale, SixteenBitPrefillAndDecodeStayClose) {
  WW_NEED_GPU(arch);
  const json golden = json::parse(std::ifstream("models/tale-llama/golden.json"));
  const auto ids = golden.at("prompts")[0].at("input_ids").get<std::vector<int32_t>>();
  auto exact_run = GpuRun::open("models/tale-llama", {}, *arch);
  ASSERT_TRUE(exact_run.ok());
  const auto exact = (*exact_run)->feed(ids);
  ASSERT_TRUE(exact.ok());
  for (const DType dtype : {DType::bf16, DType::f16}) {
    auto run = GpuRun::open("models/tale-llama", {.dtype = dtype, .kv_format = *kv_format_of(dtype), .page_size = 16},
                            *arch);
    ASSERT_TRUE(run.ok()) << run.status().message();
    const auto whole = (*run)->feed(ids);
    ASSERT_TRUE(whole.ok()) << whole.status().message();
    EXPECT_LT(relative_error(*whole, *exact), dtype == DType::bf16 ? 0.03 : 0.005);
    (*run)->restart();
    std::vector<float> steps;
    for (int32_t id : ids) {
      const auto one = (*run)->feed(std::span(&id, 1));
      ASSERT_TRUE(one.ok()) << one.status().message();
      steps.insert(steps.end(), one->begin(), one->end());
    }
    EXPECT_LT(relative_error(steps, *exact), dtype == DType::bf16 ? 0.03 : 0.005);
  }
}

// 8-bit weights: the CPU in f32 with the same rounded weights is the oracle. Steps of one row multiply 16-bit
// inputs; a prompt's rows are rounded to 8 bits, which moves these logits by 0.039 in PyTorch, and not where
// weights are widened.
TEST(GpuTale, EightBitWeightsAreThoseOfTheCpu) {
  WW_NEED_GPU(arch);
  const json golden = json::parse(std::ifstream("models/tale-llama/golden.json"));
  std::vector<int32_t> ids;
  for (const json& prompt : golden.at("prompts")) {
    for (int32_t id : prompt.at("input_ids").get<std::vector<int32_t>>()) ids.push_back(id);
  }
  ids.resize(std::min<size_t>(ids.size(), 48));  // more than one step's rows, a multiple of 4
  ASSERT_EQ(ids.size(), 48u);
  for (const Fp8Config& fp8 : {Fp8Config{}, Fp8Config{128, 128}}) {
    auto cpu = PagedRun::open("models/tale-llama", {.fp8 = fp8});
    ASSERT_TRUE(cpu.ok()) << cpu.status().message();
    const auto exact = (*cpu)->feed(ids);
    ASSERT_TRUE(exact.ok());
    for (const DType dtype : {DType::bf16, DType::f16}) {
      auto run = GpuRun::open("models/tale-llama", {.dtype = dtype, .kv_format = *kv_format_of(dtype), .page_size = 16,
                                                    .fp8 = fp8}, *arch);
      ASSERT_TRUE(run.ok()) << run.status().message();
      const double close = dtype == DType::bf16 ? 0.03 : 0.01;
      std::vector<float> steps;
      for (int32_t id : ids) {
        const auto one = (*run)->feed(std::span(&id, 1));
        ASSERT_TRUE(one.ok()) << one.status().message();
        steps.insert(steps.end(), one->begin(), one->end());
      }
      EXPECT_LT(relative_error(steps, *exact), close) << fp8.block_rows << " " << dtype_info(dtype).name;
      for (const auto& [path, bound] : {std::pair{gpu::Fp8Path::automatic, 0.08}, {gpu::Fp8Path::widen, close}}) {
        (*run)->restart();
        (*run)->gemm().set_fp8_path(path);
        const auto whole = (*run)->feed(ids);
        ASSERT_TRUE(whole.ok()) << whole.status().message();
        EXPECT_LT(relative_error(*whole, *exact), bound) << fp8.block_rows << " " << dtype_info(dtype).name;
      }
    }
    auto f32 = GpuRun::open("models/tale-llama", {.fp8 = fp8}, *arch);  // widened while it is read
    ASSERT_TRUE(f32.ok()) << f32.status().message();
    const auto logits = (*f32)->feed(ids);
    ASSERT_TRUE(logits.ok());
    EXPECT_LT(relative_error(*logits, *exact), 1e-4) << fp8.block_rows;
  }
}

TEST(GpuTale, EightBitExpertsAreThoseOfTheCpu) {
  WW_NEED_GPU(arch);
  const std::string folder = "tests/golden/families/qwen3-moe";
  const json golden = json::parse(std::ifstream(folder + "/golden.json"));
  const auto ids = golden.at("input_ids").get<std::vector<int32_t>>();
  for (const Fp8Config& fp8 : {Fp8Config{}, Fp8Config{16, 16}, Fp8Config{128, 128}}) {
    auto cpu = PagedRun::open(folder, {.fp8 = fp8});
    ASSERT_TRUE(cpu.ok()) << cpu.status().message();
    const auto exact = (*cpu)->feed(ids);
    auto run = GpuRun::open(folder, {.dtype = DType::f16, .kv_format = KvFormat::f16, .fp8 = fp8}, *arch);
    ASSERT_TRUE(run.ok()) << run.status().message();
    ASSERT_TRUE(exact.ok());
    // 8-bit activations move the logits of random weights, of 32 columns, by much more than rounding does.
    for (const auto& [path, bound] : {std::pair{gpu::Fp8Path::automatic, 0.2}, {gpu::Fp8Path::widen, 0.01}}) {
      (*run)->restart();
      (*run)->gemm().set_fp8_path(path);
      const auto logits = (*run)->feed(ids);
      ASSERT_TRUE(logits.ok());
      EXPECT_LT(relative_error(*logits, *exact), bound) << fp8.block_rows;
    }
  }
}

std::string shared_model(const std::string& name) {
  const char* shared = std::getenv("WARPWEAVE_SHARED");
  return std::string(shared != nullptr ? shared : "../shared") + "/models/" + name;
}

TEST(GpuTale, LatentAttentionOfTheSharedModel) {
  WW_NEED_GPU(arch);
  const std::string folder = shared_model("tale-mla");
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no " << folder;
  expect_tale_golden(folder, {.page_size = 16}, *arch);
}

// Every name's kernels, in prompts, chunks and steps, on its own page size and on others: close to the f32 run.
TEST(GpuTale, LatentAttentionUnderEveryName) {
  WW_NEED_GPU(arch);
  const std::string folder = shared_model("tale-mla");
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no " << folder;
  if (*arch != DeviceArch::sm_90) GTEST_SKIP() << "kernels for sm_90";
  const json golden = json::parse(std::ifstream(folder + "/golden.json"));
  std::vector<int32_t> ids;
  while (ids.size() < 200) {
    for (const json& prompt : golden.at("prompts")) {
      for (int32_t id : prompt.at("input_ids").get<std::vector<int32_t>>()) ids.push_back(id);
    }
  }
  auto exact_run = GpuRun::open(folder, {}, *arch);
  ASSERT_TRUE(exact_run.ok()) << exact_run.status().message();
  const auto exact = (*exact_run)->feed(ids);
  ASSERT_TRUE(exact.ok());
  struct Pool {
    DType dtype;
    KvFormat format;
    int page_size;
    double bound;
  };
  const Pool pools[] = {{DType::bf16, KvFormat::bf16, 64, 0.04}, {DType::bf16, KvFormat::bf16, 1, 0.04},
                        {DType::f16, KvFormat::f16, 53, 0.01}, {DType::bf16, KvFormat::fp8_e4m3, 32, 0.25}};
  for (const char* name : {"fa3", "fa4", "flashmla", "cutlass_mla", "trtllm_mla", "flashinfer", "torch_native"}) {
    for (const Pool& pool : pools) {
      auto run = GpuRun::open(folder, {.backend = name, .dtype = pool.dtype, .kv_format = pool.format, .page_size = pool.page_size},
                              *arch);
      ASSERT_TRUE(run.ok()) << run.status().message();
      std::vector<float> chunks;
      for (size_t done = 0; done < ids.size();) {
        const size_t count = std::min<size_t>(ids.size() - done, done < 100 ? 100 : done < 150 ? 7 : 1);
        const auto logits = (*run)->feed(std::span(ids).subspan(done, count));
        ASSERT_TRUE(logits.ok()) << logits.status().message();
        chunks.insert(chunks.end(), logits->begin(), logits->end());
        done += count;
      }
      EXPECT_LT(relative_error(chunks, *exact), pool.bound)
          << name << " " << kv_format_name(pool.format) << " page " << pool.page_size;
    }
  }
}

TEST(GpuTale, SlidingWindowOfTheSharedModel) {
  WW_NEED_GPU(arch);
  const std::string folder = shared_model("tale-swa");
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no " << folder;
  expect_tale_golden(folder, {.page_size = 16}, *arch);
}

// Recurrent layers: in f32 the golden's tokens; in bf16, by chunks of 16-bit products, close to that, under every name of
// their kernels; a sequence that goes on from a copy of its state is the one that went on.
TEST(GpuTale, GatedDeltaNetsOfTheSharedModel) {
  WW_NEED_GPU(arch);
  const std::string folder = shared_model("tale-gdn");
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no " << folder;
  expect_tale_golden(folder, {.page_size = 16}, *arch);
  const json golden = json::parse(std::ifstream(folder + "/golden.json"));
  std::vector<int32_t> ids;
  for (const json& prompt : golden.at("prompts")) {
    for (int32_t id : prompt.at("input_ids").get<std::vector<int32_t>>()) ids.push_back(id);
  }
  auto exact_run = GpuRun::open(folder, {}, *arch);
  ASSERT_TRUE(exact_run.ok()) << exact_run.status().message();
  const auto exact = (*exact_run)->feed(ids);
  ASSERT_TRUE(exact.ok()) << exact.status().message();
  for (const char* linear : {"triton", "flashinfer", "cutedsl"}) {
    if (linear == std::string("cutedsl") && *arch != DeviceArch::sm_90) continue;
    for (const DType state : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(std::string(linear) + ", state " + std::string(dtype_info(state).name));
      auto run = GpuRun::open(folder, {.dtype = DType::bf16, .kv_format = KvFormat::bf16, .page_size = 16, .linear = linear,
                                       .state_dtype = state}, *arch);
      ASSERT_TRUE(run.ok()) << run.status().message();
      const auto whole = (*run)->feed(ids);
      ASSERT_TRUE(whole.ok()) << whole.status().message();
      EXPECT_LT(relative_error(*whole, *exact), 0.05);
      (*run)->restart();
      std::vector<float> steps;
      for (int32_t id : ids) {
        const auto one = (*run)->feed(std::span(&id, 1));
        ASSERT_TRUE(one.ok()) << one.status().message();
        steps.insert(steps.end(), one->begin(), one->end());
      }
      EXPECT_LT(relative_error(steps, *exact), 0.05);
    }
  }
  const size_t half = ids.size() / 2;
  const std::span<const int32_t> first(ids.data(), half), second(ids.data() + half, ids.size() - half);
  GpuRun& run = **exact_run;
  run.restart();
  ASSERT_TRUE(run.feed(first).ok());
  const StateCopy save[] = {{kStateSlot, 2}}, load[] = {{2, kStateSlot}};
  ASSERT_TRUE(run.states().copy(save, run.stream()).ok());
  const auto went_on = run.feed(second);
  run.go_on_at(static_cast<int>(half));
  ASSERT_TRUE(run.states().copy(load, run.stream()).ok());
  const auto again = run.feed(second);
  ASSERT_TRUE(went_on.ok() && again.ok());
  EXPECT_EQ(*went_on, *again);
}

}  // namespace
}  // namespace warpweave
