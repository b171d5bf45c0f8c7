// A draft model on the CPU. run() has computed everything when it returns.
#pragma once

#include <memory>
#include <optional>

#include "attention/backend.h"
#include "base/threads.h"
#include "kv/kv_cache.h"
#include "model/decoder.h"
#include "model/draft_head.h"
#include "spec/draft_model.h"

namespace warpweave {

struct HostDraftParts {
  std::unique_ptr<DecoderModel> model;
  std::unique_ptr<AttentionBackend> attention;
  std::unique_ptr<KvCache> cache;
  int cache_group = 0;               // of the target's, whose pages the draft model's K/V follow
  std::optional<DraftHeadKind> kind; // unset: a model of its own
  std::vector<int32_t> tokens;  // of a head: what each column of its logits stands for; empty: every token in order
  PackedLinear head;  // where it is not the target's own: DecoderModel::head_of(); empty: the target's
};

class HostDraftModel : public DraftModel {
 public:
  // `target`, whose embedding, head and hidden states a draft head reads, and `team` outlive this.
  HostDraftModel(HostDraftParts parts, DecoderModel& target, ThreadTeam& team)
      : parts_(std::move(parts)), target_(target), team_(team) {}

  int page_size() const override { return parts_.cache->shape().page_size; }
  int max_rows() const override { return INT32_MAX; }
  bool chooses_at_once() const override { return true; }
  bool sees_from_any_page() const override { return true; }
  size_t weight_bytes() const override { return parts_.model->weight_bytes() + parts_.head.size_bytes(); }
  size_t cache_bytes() const override { return parts_.cache->size_bytes(); }
  Status copy_pages(std::span<const PageCopy> copies) override;
  Status run(const DraftPass& pass, const BatchBuilder& step) override;
  void forget_choices() override { choices_.clear(); }
  Result<std::span<const DraftChoice>> take_choices() override;

  // A kept hidden state.
  std::span<const float> kept(int row) const {
    return {kept_.data() + row * hidden_size(), static_cast<size_t>(hidden_size())};
  }

 private:
  int64_t hidden_size() const { return parts_.model->config().hidden_size; }
  void fill_batch(const DraftPass& pass, const BatchBuilder& step, ForwardBatch& batch);
  void make_head_rows(const DraftPass& pass);
  void join_embeddings(const float* features, int64_t rows);
  void norm_rows(const RowNorm& norm, float* rows, int64_t count);
  int64_t head_logits(int64_t wanted, RowBest* best);
  void choose(std::span<const float> logits, int topk, const RowBest& best);
  void keep_rows(const DraftPass& pass, const float* states);

  HostDraftParts parts_;
  DecoderModel& target_;
  ThreadTeam& team_;
  std::vector<int32_t> input_ids_, page_table_;
  std::vector<float> kept_;            // [.., hidden]
  std::vector<float> x_, embedded_, features_, both_, states_, logits_;
  std::vector<RowBest> best_;
  std::vector<DraftChoice> choices_, row_choices_;
  bool taken_ = false;                 // choices_ were, and go with the next run()
};

}  // namespace warpweave
