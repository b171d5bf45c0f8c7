#include "replay/recording_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <utility>
#include <vector>

#include "attention/hybrid.h"
#include "base/log.h"
#include "replay/recording.h"

namespace warpweave {
namespace {

// Copies the pages that a batch touches, renumbered in order of first use.
class PageCopier {
 public:
  PageCopier(const ForwardBatch& batch, Recording& into) : batch_(batch) {
    into.page_table.assign(static_cast<size_t>(batch.num_reqs) * batch.page_table_stride, 0);
    for (int r = 0; r < batch.num_reqs; ++r) {
      for (int p = 0; p * int64_t{batch.page_size} < batch.kv_lens[r]; ++p) {
        const int used = std::min(batch.page_size, batch.kv_lens[r] - p * batch.page_size);
        into.page_table[static_cast<size_t>(r) * batch.page_table_stride + p] =
            index_of(batch.pages_of(r)[p], used);
      }
    }
    into.num_pages = static_cast<int>(pages_.size());
  }

  // `bits` per element of `data`, which is at `scale_down` elements of the pool's strides.
  struct Source {
    const void* data;
    int bits;
    int scale_down;
  };
  std::vector<uint8_t> copy(const KvPoolView& pool, const Source& source, int heads,
                            int dim) const {
    const size_t head_bytes = static_cast<size_t>(dim) / source.scale_down * source.bits / 8;
    std::vector<uint8_t> out(pages_.size() * batch_.page_size * heads * head_bytes, 0);
    for (size_t p = 0; p < pages_.size(); ++p) {
      for (int t = 0; t < pages_[p].used; ++t) {
        for (int h = 0; h < heads; ++h) {
          const int64_t index =
              pages_[p].page * pool.page_stride + t * pool.token_stride + h * pool.head_stride;
          const char* from =
              static_cast<const char*>(source.data) + index / source.scale_down * source.bits / 8;
          std::memcpy(out.data() + ((p * batch_.page_size + t) * heads + h) * head_bytes, from,
                      head_bytes);
        }
      }
    }
    return out;
  }

 private:
  struct Page { int64_t page; int used; };

  int32_t index_of(int32_t page, int used) {
    const auto [found, added] = index_.try_emplace(page, static_cast<int32_t>(pages_.size()));
    if (added) pages_.push_back({page, 0});
    pages_[found->second].used = std::max(pages_[found->second].used, used);
    return found->second;
  }

  const ForwardBatch& batch_;
  std::vector<Page> pages_;
  std::unordered_map<int32_t, int32_t> index_;
};

// [rows, row_elements] out of rows a stride apart.
std::vector<float> dense_rows(const void* data, int64_t rows, int64_t stride,
                              int64_t row_elements) {
  std::vector<float> out(rows * row_elements);
  const float* from = static_cast<const float*>(data);
  for (int64_t row = 0; row < rows; ++row)
    std::copy_n(from + row * stride, row_elements, out.data() + row * row_elements);
  return out;
}

std::vector<float> optional_floats(const float* data, int count) {
  return data == nullptr ? std::vector<float>() : std::vector<float>(data, data + count);
}

class RecordingBackend : public AttentionBackend {
 public:
  RecordingBackend(std::unique_ptr<AttentionBackend> inner, RecordingOptions options)
      : inner_(std::move(inner)), options_(std::move(options)) {}
  ~RecordingBackend() override {
    if (count_ < options_.forward) {
      LOG_WARN("--dump-batch {}: only {} forwards ran, nothing was written", options_.forward,
               count_);
    }
  }

  const Caps& caps() const override { return inner_->caps(); }
  Status reserve(const ForwardBatch& batch, const AttentionCall& shape) override {
    return inner_->reserve(batch, shape);
  }
  Status init_forward_metadata(const ForwardBatch& batch) override {
    WW_RETURN_IF_ERROR(inner_->init_forward_metadata(batch));
    recording_.reset();
    if (++count_ == options_.forward) begin(batch);
    return {};
  }
  Status forward_extend(const ForwardBatch& batch, const AttentionCall& call) override {
    WW_RETURN_IF_ERROR(inner_->forward_extend(batch, call));
    if (recording_ != nullptr) add_layer(batch, call, false);
    return {};
  }
  Status forward_decode(const ForwardBatch& batch, const AttentionCall& call) override {
    WW_RETURN_IF_ERROR(inner_->forward_decode(batch, call));
    if (recording_ != nullptr) add_layer(batch, call, true);
    return {};
  }

 private:
  struct InProgress {
    Recording recording;
    std::unique_ptr<PageCopier> pages;
  };

  void begin(const ForwardBatch& batch);
  void add_layer(const ForwardBatch& batch, const AttentionCall& call, bool decode);
  void finish();

  std::unique_ptr<AttentionBackend> inner_;
  RecordingOptions options_;
  int64_t count_ = 0;
  std::unique_ptr<InProgress> recording_;
};

void RecordingBackend::begin(const ForwardBatch& batch) {
  recording_ = std::make_unique<InProgress>();
  Recording& r = recording_->recording;
  r.program = "warpweave " WARPWEAVE_VERSION;
  const auto* const pair = dynamic_cast<const HybridAttnBackend*>(inner_.get());
  r.backend = (pair != nullptr ? pair->caps_of(batch.mode) : inner_->caps()).name;
  r.forward = options_.forward;
  r.mode = batch.mode;
  r.page_size = batch.page_size;
  r.page_table_stride = batch.page_table_stride;
  r.causal = batch.causal;
  r.tree_mask_words = batch.tree_mask.empty() ? 0 : batch.tree_mask_words;
  r.q_indptr.assign(batch.q_indptr.begin(), batch.q_indptr.begin() + batch.num_reqs + 1);
  r.kv_lens.assign(batch.kv_lens.begin(), batch.kv_lens.begin() + batch.num_reqs);
  r.positions.assign(batch.num_tokens, 0);
  std::copy_n(batch.positions.begin(), std::min<size_t>(batch.positions.size(), batch.num_tokens),
              r.positions.begin());
  // Slots are the server's own; a backend reads from them only which rows are padding.
  r.kv_slots.assign(batch.num_tokens, 0);
  for (int i = 0; i < batch.num_tokens && i < static_cast<int>(batch.kv_slots.size()); ++i) {
    r.kv_slots[i] = batch.kv_slots[i] < 0 ? -1 : 0;
  }
  r.tree_mask.assign(
      batch.tree_mask.begin(),
      batch.tree_mask.begin() + static_cast<size_t>(batch.num_tokens) * r.tree_mask_words);
  recording_->pages = std::make_unique<PageCopier>(batch, r);
}

void RecordingBackend::add_layer(const ForwardBatch& batch, const AttentionCall& call,
                                 bool decode) {
  if (options_.layer && call.layer != *options_.layer) return;
  if (call.dual_chunk != nullptr) {
    LOG_WARN("--dump-batch {}: dual chunk attention is not recorded", options_.forward);
    recording_.reset();
    return;
  }
  Recording& r = recording_->recording;
  RecordedLayer& layer = r.layers.emplace_back();
  layer.call = call;
  layer.call.k = layer.call.v = {};
  layer.decode = decode;
  layer.kv_format = call.k.format;
  layer.latent = call.k.data == call.v.data;
  layer.call.q_token_stride = int64_t{call.num_q_heads} * call.head_dim;
  layer.call.out_token_stride = int64_t{call.num_q_heads} * call.v_head_dim;
  if (recording_bytes(r) > kMaxRecordingBytes) {
    LOG_WARN(
        "--dump-batch {}: layers up to {} are more than {} bytes; name one with --dump-batch-layer",
        options_.forward, call.layer, kMaxRecordingBytes);
    recording_.reset();
    return;
  }
  layer.q = dense_rows(call.q, batch.num_tokens, call.q_token_stride, layer.call.q_token_stride);
  layer.out =
      dense_rows(call.out, batch.num_tokens, call.out_token_stride, layer.call.out_token_stride);
  layer.sinks = optional_floats(call.sinks, call.num_q_heads);
  layer.k_scales = optional_floats(call.k.head_scales, call.num_kv_heads);
  if (!layer.latent) layer.v_scales = optional_floats(call.v.head_scales, call.num_kv_heads);
  const int bits = kv_format_bits(call.k.format);
  const PageCopier& pages = *recording_->pages;
  layer.k = pages.copy(call.k, {call.k.data, bits, 1}, call.num_kv_heads, kv_stored_dim(call.k.format, call.head_dim));
  if (!layer.latent) {
    layer.v =
        pages.copy(call.v, {call.v.data, bits, 1}, call.num_kv_heads, kv_stored_dim(call.v.format, call.v_head_dim));
  }
  if (call.k.format == KvFormat::fp4_e2m1) {
    layer.k_blocks = pages.copy(call.k, {call.k.block_scales, 8, kFp4BlockElements},
                                call.num_kv_heads, call.head_dim);
    layer.v_blocks = pages.copy(call.v, {call.v.block_scales, 8, kFp4BlockElements},
                                call.num_kv_heads, call.v_head_dim);
  }
  if (options_.layer || call.layer == options_.num_layers - 1) finish();
}

void RecordingBackend::finish() {
  const Recording& r = recording_->recording;
  const Status status = write_recording(r, options_.path);
  if (status.ok()) {
    LOG_INFO("--dump-batch {}: {} layers of {} requests written to {}", options_.forward,
             r.layers.size(), r.num_reqs(), options_.path);
  } else {
    LOG_ERROR("--dump-batch {}: {}", options_.forward, status.message());
  }
  recording_.reset();
}

}  // namespace

std::unique_ptr<AttentionBackend> record_forward(std::unique_ptr<AttentionBackend> backend,
                                                 RecordingOptions options) {
  return std::make_unique<RecordingBackend>(std::move(backend), std::move(options));
}

}  // namespace warpweave
