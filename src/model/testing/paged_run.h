// A model with a small KV pool whose pages are handed out in a shuffled order: what tests need to
// run a sequence in any cut of prefill chunks and decode steps. One sequence at a time, one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "base/threads.h"
#include "kv/kv_cache.h"
#include "model/decoder.h"
#include "model/model_bundle.h"

namespace warpweave {

struct PagedRunOptions {
  std::string backend = "reference";
  std::string linear_backend = "cpu";  // of layers with linear attention
  DType dtype = DType::f32;       // of the compute mode and the KV pool
  KvFormat kv_format = KvFormat::f32;
  DType state_dtype = DType::f32;  // of recurrent layers
  int page_size = 4;
  int max_tokens = 128;
  int threads = 2;
  std::string load_format = "auto";
  std::optional<Fp8Config> fp8 = {};  // weights are rounded to 8 bits
};

class PagedRun {
 public:
  static Result<std::unique_ptr<PagedRun>> open(const std::string& path, const PagedRunOptions& options);

  // Appends `ids` to the sequence and returns the logits of every one of them, or of the last
  // `wanted_rows` alone: [rows, vocab]. One id runs as a decode step, more as a prefill chunk.
  Result<std::vector<float>> feed(std::span<const int32_t> ids, int wanted_rows = -1);
  void restart() { length_ = 0; }
  // The same model of other weights.
  Status replace_weights(std::shared_ptr<WeightSource> weights);
  // Of the sequence from now on; null: none.
  void set_adapter(const LoraAdapter* adapter) { adapter_ = adapter; }

  // Feeds `prompt` and then what is most likely, `count` times.
  Result<std::vector<int32_t>> greedy(std::span<const int32_t> prompt, int count);

  const ModelBundle& bundle() const { return bundle_; }
  DecoderModel& model() { return *model_; }
  KvCache& cache() { return *cache_; }
  AttentionBackend& attention() { return *attention_; }
  ThreadTeam& team() { return team_; }
  const ModelConfig& config() const { return bundle_.config; }
  int vocab_size() const { return bundle_.config.vocab_size; }
  std::span<const int32_t> pages() const { return pages_; }

 private:
  PagedRun(const PagedRunOptions& options) : options_(options), team_(options.threads) {}

  PagedRunOptions options_;
  ThreadTeam team_;
  ModelBundle bundle_;
  std::unique_ptr<DecoderModel> model_;
  std::unique_ptr<AttentionBackend> attention_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<HostRecurrent> recurrent_;
  std::vector<int32_t> pages_;
  int length_ = 0;
  const LoraAdapter* adapter_ = nullptr;
};

}  // namespace warpweave
