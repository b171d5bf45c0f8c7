#include "attention/tree_texts.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "attention/batch_check.h"

namespace warpweave {
namespace {

constexpr int64_t kMostTableEntries = int64_t{16} << 20;  // of the nodes that are computed together

// How many of a pool's tokens lie between the first ones of two pages, for K and V alike; 0: no whole number.
int64_t places_of_page(const AttentionCall& call) {
  const KvPoolView &k = call.k, &v = call.v;
  if (k.token_stride <= 0 || k.page_stride % k.token_stride != 0) return 0;
  const int64_t places = k.page_stride / k.token_stride;
  return v.token_stride == 0 || v.page_stride == places * v.token_stride ? places : 0;
}

class TreesAsTexts final : public AttentionBackend {
 public:
  explicit TreesAsTexts(std::unique_ptr<AttentionBackend> inner) : inner_(std::move(inner)) {}

  const Caps& caps() const override { return inner_->caps(); }

  Status init_forward_metadata(const ForwardBatch& batch) override {
    made_ = {};
    return batch.tree_mask.empty() ? inner_->init_forward_metadata(batch) : check_batch(batch);
  }
  Status forward_extend(const ForwardBatch& batch, const AttentionCall& call) override {
    return batch.tree_mask.empty() ? inner_->forward_extend(batch, call) : forward_trees(batch, call);
  }
  Status forward_decode(const ForwardBatch& batch, const AttentionCall& call) override {
    return batch.tree_mask.empty() ? inner_->forward_decode(batch, call) : forward_trees(batch, call);
  }
  Status reserve(const ForwardBatch& batch, const AttentionCall& shape) override {
    if (batch.tree_mask.empty() || batch.num_tokens == 0) return inner_->reserve(batch, shape);
    WW_RETURN_IF_ERROR(make_texts(batch, shape, 0));
    return inner_->reserve(texts_, on_pages_of_one(shape));
  }
  Status compile(const AttentionCall& shape, int max_q_len) override { return inner_->compile(shape, max_q_len); }

 private:
  // What texts_ were made of in this forward.
  struct Made {
    const int32_t* page_table = nullptr;  // null: of nothing
    int64_t places = 0;
    int first = 0;
    bool operator==(const Made&) const = default;
  };

  static AttentionCall on_pages_of_one(AttentionCall call) {
    call.k.page_stride = call.k.token_stride;
    call.v.page_stride = call.v.token_stride;
    return call;
  }
  Status forward_trees(const ForwardBatch& batch, const AttentionCall& call);
  Status make_texts(const ForwardBatch& batch, const AttentionCall& call, int first);
  Status find_places(const ForwardBatch& batch, int request, int64_t places);
  void add_text(const ForwardBatch& batch, int request, int row);

  const std::unique_ptr<AttentionBackend> inner_;
  Made made_;
  ForwardBatch texts_;
  std::vector<int32_t> indptr_, kv_lens_, page_table_;
  std::vector<int32_t> places_, nodes_;  // of one request's tokens; of one row's ancestors
};

Status TreesAsTexts::forward_trees(const ForwardBatch& batch, const AttentionCall& call) {
  for (int first = 0; first < batch.num_tokens; first += texts_.num_tokens) {
    WW_RETURN_IF_ERROR(make_texts(batch, call, first));
    AttentionCall part = on_pages_of_one(call);
    part.q = call.q_f32() + first * call.q_token_stride;
    part.out = call.out_f32() + first * call.out_token_stride;
    if (call.lse != nullptr) part.lse = call.lse + int64_t{first} * call.num_q_heads;
    WW_RETURN_IF_ERROR(inner_->forward_decode(texts_, part));
  }
  return {};
}

// Of the rows from `first` on, as many as fit.
Status TreesAsTexts::make_texts(const ForwardBatch& batch, const AttentionCall& call, int first) {
  const Made wanted = {batch.page_table.data(), places_of_page(call), first};
  if (wanted.places == 0) {
    return Status::unsupported(
        "draft trees in deterministic mode: the pages of a pool must lie a whole number of tokens apart");
  }
  if (made_ == wanted) return {};
  made_ = {};
  const int64_t stride = std::max(1, batch.max_kv_len);
  const int count = static_cast<int>(std::clamp<int64_t>(kMostTableEntries / stride, 1, batch.num_tokens - first));
  indptr_.resize(count + 1);
  for (int i = 0; i <= count; ++i) indptr_[i] = i;
  kv_lens_.clear();
  page_table_.resize(count * stride);
  texts_ = {};
  texts_.mode = ForwardMode::decode;
  texts_.num_reqs = texts_.num_tokens = count;
  texts_.max_q_len = 1;
  for (int r = 0; r < batch.num_reqs; ++r) {
    const int begin = std::max(batch.q_indptr[r], first), end = std::min(batch.q_indptr[r + 1], first + count);
    if (begin >= end) continue;
    WW_RETURN_IF_ERROR(find_places(batch, r, wanted.places));
    for (int row = begin; row < end; ++row) add_text(batch, r, row);
  }
  texts_.max_kv_len = *std::max_element(kv_lens_.begin(), kv_lens_.end());
  texts_.positions = batch.positions.subspan(first, count);
  texts_.q_indptr = indptr_;
  texts_.kv_lens = kv_lens_;
  texts_.page_table = page_table_;
  texts_.page_table_stride = static_cast<int>(stride);
  WW_RETURN_IF_ERROR(inner_->init_forward_metadata(texts_));
  made_ = wanted;
  return {};
}

// Where a request's tokens stand, counted from the pool's first.
Status TreesAsTexts::find_places(const ForwardBatch& batch, int request, int64_t places) {
  const int32_t* const pages = batch.page_table.data() + int64_t{request} * batch.page_table_stride;
  places_.clear();
  for (int token = 0; token < batch.kv_lens[request]; ++token) {
    const int64_t place = pages[token / batch.page_size] * places + token % batch.page_size;
    if (place > std::numeric_limits<int32_t>::max()) {
      return Status::unsupported("draft trees in deterministic mode: a pool must have fewer than 2^31 tokens");
    }
    places_.push_back(static_cast<int32_t>(place));
  }
  return {};
}

void TreesAsTexts::add_text(const ForwardBatch& batch, int request, int row) {
  int32_t* const table = page_table_.data() + static_cast<int64_t>(kv_lens_.size()) * std::max(1, batch.max_kv_len);
  const int first = batch.q_indptr[request], q_len = batch.q_len(request);
  if (places_.empty()) return kv_lens_.push_back(0);  // such a request has no nodes either
  const int prefix = batch.kv_lens[request] - q_len;
  const uint32_t* const sees = batch.tree_mask.data() + int64_t{row} * batch.tree_mask_words;
  nodes_.clear();
  for (int node = 0; node < q_len; ++node) {
    if (sees[node / 32] >> (node % 32) & 1) nodes_.push_back(node);
  }
  const auto position = [&](int node) { return std::pair(batch.positions[first + node], node); };
  std::sort(nodes_.begin(), nodes_.end(), [&](int a, int b) { return position(a) < position(b); });
  int32_t* end = std::copy_n(places_.begin(), prefix, table);
  for (const int node : nodes_) *end++ = places_[prefix + node];
  kv_lens_.push_back(static_cast<int32_t>(end - table));
}

}  // namespace

std::unique_ptr<AttentionBackend> with_trees_as_texts(std::unique_ptr<AttentionBackend> inner,
                                                      const BackendContext& context) {
  if (!context.deterministic) return inner;
  return std::make_unique<TreesAsTexts>(std::move(inner));
}

}  // namespace warpweave
