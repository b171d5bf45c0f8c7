// The widest step that a server's flags allow. A CPU's device runs one like it when it starts, so that the buffers of a
// step, which grow to the widest one met, have their size from then on: resident memory does not depend on what meets
// by chance hours later, and where there is too little of it the start says so and no request does. A draft model's
// buffers are not among them: they still grow with its first passes.
//
// It costs the time of a pass of that many rows through the first layers, up to where each kind was among them. Above
// kMostRows rows (--chunked-prefill-size of more, or prompts that are not cut) buffers grow when such a prompt comes:
// its rows cost far more time than growing them, and servers that never see one should not hold gigabytes for it.
#pragma once

#include <cstdint>
#include <vector>

#include "batch/batch_builder.h"
#include "batch/forward_batch.h"
#include "ops/lora.h"
#include "sched/scheduler.h"

namespace warpweave {

// What logits are made with.
struct LogitsHead {
  int vocab_size = 0;
  double weight_bytes = 4;  // of one weight
  int threads = 1;
};

struct WidestStep {
  static constexpr int kMostRows = 2048;
  static constexpr int kLeastBlockRows = 64, kMostBlockRows = 128;  // for kBlockBytes
  static constexpr int kBlockRowsPerThreadAndByte = 16;
  static constexpr int64_t kBlockBytes = int64_t{32} << 20;

  int rows = 0;             // of all requests: prompts' and decoding ones, proposals among them
  int logits_rows = 0;      // whose logits are held at once; at most `rows`
  int request_rows = 0;     // of one request at most
  int num_pages = 0;        // of the KV pool
  int state_slots = 0;      // of recurrent layers; 0: there are none
  BatchCache cache;
  const LoraAdapter* adapter = nullptr;  // of all rows; null: none are served

  // `config` says pages and slots, too.
  static WidestStep of(const SchedulerConfig& config, const BatchCache& cache, const LogitsHead& head);
  // Rows whose logits are made, read and forgotten together: enough for the head's GEMM to take longer than reading its
  // weights (more threads multiply faster and read as fast as few), and not so many that large vocabularies take much
  // memory.
  static int logits_block_rows(const LogitsHead& head);
};

// Its arrays, for a forward that writes no K/V and whose results mean nothing.
class WidestBatch {
 public:
  explicit WidestBatch(const WidestStep& step);
  WidestBatch(const WidestBatch&) = delete;
  WidestBatch& operator=(const WidestBatch&) = delete;

  const ForwardBatch& batch() const { return batch_; }

 private:
  ForwardBatch batch_;
  std::vector<int32_t> ids_, positions_, kv_slots_, q_indptr_, kv_lens_, page_table_, state_slots_, rows_;
  std::vector<CacheGroupArrays> groups_;
  std::vector<const LoraAdapter*> adapters_;
};

}  // namespace warpweave
