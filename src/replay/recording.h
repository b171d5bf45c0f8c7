// One forward's attention in a file: the batch, and per layer the call, q, the K and V pages it
// touches and what came out. docs/replay.md describes the format.
//
// Pages are renumbered from 0 and stand compact; slots that no row sees are 0, so nothing of other
// requests is in the file. Token ids are not in it either.
// Reading trusts nothing: sizes are computed from checked shapes and must be those of the file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "attention/backend.h"
#include "warpweave/status.h"

namespace warpweave {

inline constexpr uint64_t kMaxRecordingBytes = uint64_t{1} << 30;

struct RecordedLayer {
  AttentionCall call;   // shapes and rules; pointers and pool views are unset, strides dense
  bool decode = false;  // by forward_decode
  bool latent = false;  // latent attention: V is the first part of K
  KvFormat kv_format = KvFormat::bf16;
  std::vector<float> q;                        // [tokens, q_heads, head_dim]
  std::vector<float> sinks;                    // [q_heads] or empty
  std::vector<float> k_scales, v_scales;       // [kv_heads] or empty
  std::vector<uint8_t> k, v;                   // [pages, page_size, kv_heads, dim] in kv_format; latent: no v
  std::vector<uint8_t> k_blocks, v_blocks;     // fp4: [pages, page_size, kv_heads, dim / 16]
  std::vector<float> out;                      // [tokens, q_heads, v_head_dim]
};

struct Recording {
  std::string program;    // "warpweave 0.1.0"
  std::string backend;    // that computed `out`
  int64_t forward = 0;    // which one it was, from 1
  ForwardMode mode = ForwardMode::extend;
  int page_size = 1;
  int num_pages = 0;
  int page_table_stride = 0;
  bool causal = true;
  int tree_mask_words = 0;
  std::vector<int32_t> q_indptr, kv_lens, positions, kv_slots, page_table;
  std::vector<uint32_t> tree_mask;
  std::vector<RecordedLayer> layers;

  int num_reqs() const { return static_cast<int>(kv_lens.size()); }
  int num_tokens() const { return q_indptr.empty() ? 0 : q_indptr.back(); }
  // Both point into this object.
  ForwardBatch batch() const;
  AttentionCall call(const RecordedLayer& layer, float* out, float* lse) const;
};

uint64_t recording_bytes(const Recording& recording);
Status write_recording(const Recording& recording, const std::string& path);

// `not_found`, or `data_loss` naming the first thing in the file that is wrong.
Result<Recording> read_recording(const std::string& path);
Result<Recording> parse_recording(std::string_view bytes);

}  // namespace warpweave
