#include "model/decoder.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "model/layers/dense_feed_forward.h"
#include "model/layers/experts_feed_forward.h"
#include "ops/block_rows.h"
#include "ops/elementwise.h"

namespace warpweave {

size_t DecoderWeights::size_bytes() const {
  size_t bytes = lm_head.size_bytes() + fc.size_bytes() + (embedding.data ? embedding.size_bytes() : 0);
  for (const LayerWeights& layer : layers) {
    layer.each_linear([&](const PackedLinear& linear) { bytes += linear.size_bytes(); });
    const auto* const mixture = std::get_if<ExpertsWeights>(&layer.feed_forward);
    if (mixture == nullptr) continue;
    for (const MoeExpert& expert : mixture->experts) bytes += expert.gate_up.size_bytes() + expert.down.size_bytes();
  }
  for (const RopeTable& rope : ropes) bytes += (rope.cos.size() + rope.sin.size()) * sizeof(float);
  return bytes;
}

DecoderModel::DecoderModel(ModelConfig config, DecoderSpec spec, DecoderWeights weights)
    : config_(std::move(config)),
      spec_(std::move(spec)),
      weights_(std::move(weights)),
      attention_workspace_(spec_.attention, wide_rows_),
      latent_workspace_(spec_.latent),
      x_(spec_.hidden_size, spec_.norm) {
  if (spec_.router.num_experts > 0) {
    expert_load_ = std::make_unique<ExpertLoad>(static_cast<int>(spec_.layers.size()), spec_.router.num_experts);
  }
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    Layer& layer = layers_.emplace_back();
    layer.parallel = spec_.layers[i].parallel;
    std::visit([&](const auto& part) { layer.mixer = make(part, spec_.layers[i]); }, weights_.layers[i].mixer);
    std::visit([&]<typename Part>(const Part& part) {
      if constexpr (!std::is_same_v<Part, std::monostate>) layer.feed_forward = make(part);
    }, weights_.layers[i].feed_forward);
  }
  running_layers_ = layers_;
}

template <typename RecurrentPart>
std::unique_ptr<Mixer> DecoderModel::recurrent(std::unique_ptr<RecurrentPart> mixer, int64_t row_width) {
  recurrent_mixers_.push_back(mixer.get());
  recurrent_row_width_ = row_width;
  return mixer;
}

const RopeTable* DecoderModel::rope_of(const LayerPlan& plan) const {
  return !weights_.ropes.empty() && plan.rope_index >= 0 ? &weights_.ropes[plan.rope_index] : nullptr;
}

std::unique_ptr<Mixer> DecoderModel::make(const AttentionWeights& weights, const LayerPlan& plan) {
  return std::make_unique<AttentionMixer>(weights, plan, rope_of(plan), attention_workspace_);
}
std::unique_ptr<Mixer> DecoderModel::make(const LatentWeights& weights, const LayerPlan& plan) {
  return std::make_unique<LatentMixer>(weights, rope_of(plan), latent_workspace_);
}
std::unique_ptr<Mixer> DecoderModel::make(const GdnWeights& weights, const LayerPlan&) {
  if (gdn_layer_ == nullptr) gdn_layer_ = &weights.layer;
  const int state_layer = static_cast<int>(recurrent_mixers_.size());
  return recurrent(std::make_unique<GdnMixer>(weights, state_layer, gdn_workspace_), weights.layer.row_width());
}
std::unique_ptr<Mixer> DecoderModel::make(const ShortConvWeights& weights, const LayerPlan&) {
  const int state_layer = static_cast<int>(recurrent_mixers_.size());
  return recurrent(std::make_unique<ShortConvMixer>(weights, state_layer, short_conv_workspace_),
                   weights.in.out_features());
}
std::unique_ptr<FeedForward> DecoderModel::make(const DenseWeights& weights) {
  return std::make_unique<DenseFeedForward>(weights, spec_.activation, wide_rows_);
}
std::unique_ptr<FeedForward> DecoderModel::make(const ExpertsWeights& weights) {
  return std::make_unique<ExpertsFeedForward>(weights, spec_.router, *expert_load_);
}

void DecoderModel::logits(int64_t first_row, int64_t rows, const LogitsOut& out, ThreadTeam& team) {
  const int64_t vocab = spec_.vocab_size;
  x_.use(team);
  const LinearInput last = x_.normed(weights_.final_norm, weights_.lm_head, first_row, rows);
  // What follows rounds near-equal logits to equal ones, so the best of a row is known only after it.
  const bool changed = spec_.final_softcap > 0 || spec_.logit_scale != 1;
  weights_.lm_head.forward(
      last, {.data = out.values, .row_stride = vocab, .best = changed ? nullptr : out.best}, team);
  if (!changed) return;
  scale_and_cap(out.values, rows, vocab, team);
  if (out.best == nullptr) return;
  team.parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t column = argmax(out.values + r * vocab, vocab);
      out.best[r] = {out.values[r * vocab + column], static_cast<int32_t>(column)};
    }
  });
}

void DecoderModel::scale_and_cap(float* logits, int64_t rows, int64_t columns, ThreadTeam& team) const {
  if (spec_.logit_scale != 1) {
    team.parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
      scale_inplace(logits + begin * columns, spec_.logit_scale, (end - begin) * columns);
    });
  }
  if (spec_.final_softcap > 0) softcap_inplace(logits, spec_.final_softcap, rows * columns, team);
}

void DecoderModel::states(int64_t first_row, int64_t rows, float* out, ThreadTeam& team) {
  x_.use(team);
  x_.norm_to(weights_.final_norm, {first_row, rows}, out, DType::f32);
}

void DecoderModel::embed_ids(std::span<const int32_t> ids, float* out, ThreadTeam& team) const {
  const auto gather = [&](const auto& table) {
    embedding_gather(table, {ids, spec_.embedding_scale, out}, team);
  };
  if (weights_.embedding.data != nullptr) return gather(weights_.embedding);
  gather(weights_.lm_head);
}

void DecoderModel::head_logits(const float* rows, int64_t count, const LogitsOut& out, ThreadTeam& team,
                               const PackedLinear* head) const {
  const PackedLinear& lm_head = head != nullptr ? *head : weights_.lm_head;
  const int64_t columns = lm_head.out_features();
  lm_head.forward({.data = rows, .rows = count, .row_stride = spec_.hidden_size},
                  {.data = out.values, .row_stride = columns, .best = out.best}, team);
  scale_and_cap(out.values, count, columns, team);
}

Result<PackedLinear> DecoderModel::head_of(std::span<const int32_t> tokens, std::optional<DType> blocks,
                                           ThreadTeam& team) const {
  constexpr int64_t kRowsAtOnce = 4096;  // that are widened
  if (config_.lm_head_bias)
    return Status::unsupported("the model's output head has a bias, of which no part can be taken");
  const int64_t count = static_cast<int64_t>(tokens.size()), cols = spec_.hidden_size;
  const bool narrow = weights_.lm_head.preferred_input() == DType::bf16;
  const DType to = blocks ? *blocks : narrow ? DType::bf16 : DType::f32;
  const int64_t row_bytes = bytes_of_elements(to, cols);
  std::vector<std::byte> values(count * row_bytes);
  std::vector<float> rows;
  for (int64_t first = 0; first < count; first += kRowsAtOnce) {
    const int64_t now = std::min(kRowsAtOnce, count - first);
    rows.resize(now * cols);
    embedding_gather(weights_.lm_head, {{tokens.data() + first, static_cast<size_t>(now)}, 1, rows.data()}, team);
    std::byte* const out = values.data() + first * row_bytes;
    if (blocks) {
      team.parallel_for(now, 16, [&](int64_t begin, int64_t end) {
        round_to_blocks(rows.data() + begin * cols, (end - begin) * cols, to, out + begin * row_bytes);
      });
    } else if (narrow) {
      f32_to_bf16_row(rows.data(), now * cols, reinterpret_cast<uint16_t*>(out));
    } else {
      std::memcpy(out, rows.data(), now * row_bytes);
    }
  }
  const TensorView weight = {.data = values.data(), .dtype = to, .rank = 2, .shape = {count, cols}};
  const LinearPart part = {.weight = weight, .bias = {}};
  const ComputeMode mode = blocks || narrow ? ComputeMode::bf16 : ComputeMode::f32;
  return PackedLinear::pack({&part, 1}, {.compute = mode}, team);
}

void DecoderModel::look_for_nan(int layer, std::string_view part) {
  if (!detects_nan_ || !first_nan_.empty()) return;
  const std::span<const float> values(x_.data(), x_.rows() * spec_.hidden_size);
  if (std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); })) return;
  first_nan_ = layer < 0 ? "the embeddings" : "layer " + std::to_string(layer) + ", after its " + std::string(part);
}

Status DecoderModel::forward(const ForwardBatch& batch, KvCache& cache, AttentionBackend& attention, ThreadTeam& team,
                             HostRecurrent* recurrent) {
  if (!keeps_hidden_ || batch.num_tokens == 0) {
    return run(nullptr, batch,
               {.batch = batch, .cache = cache, .attention = attention, .x = x_, .recurrent = recurrent}, team);
  }
  ForwardBatch whole = batch;
  for (int32_t row = static_cast<int32_t>(all_rows_.size()); row < batch.num_tokens; ++row) all_rows_.push_back(row);
  whole.logits_rows = std::span<const int32_t>(all_rows_).first(batch.num_tokens);
  WW_RETURN_IF_ERROR(run(nullptr, whole, {.batch = whole, .cache = cache, .attention = attention, .x = x_,
                                          .recurrent = recurrent}, team));
  const int64_t cols = spec_.hidden_size;
  hidden_.resize(batch.num_tokens * cols);
  x_.normed_into(weights_.final_norm, hidden_.data());
  x_.keep(batch.logits_rows);
  return {};
}

int DecoderModel::rehearsed_layers() const {
  std::set<std::pair<std::string_view, std::string_view>> kinds;
  int count = 0;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const bool is_new =
        kinds.emplace(layer.mixer->name(), layer.feed_forward != nullptr ? layer.feed_forward->name() : "").second;
    if (is_new) count = static_cast<int>(i) + 1;
  }
  return count;
}

Status DecoderModel::rehearse(const ForwardBatch& batch, KvCache& cache, AttentionBackend& attention, ThreadTeam& team,
                              HostRecurrent* recurrent) {
  running_layers_ = std::span<const Layer>(layers_).first(rehearsed_layers());
  const Status status = forward(batch, cache, attention, team, recurrent);
  running_layers_ = layers_;
  if (expert_load_ != nullptr) expert_load_->clear();
  return status;
}

Status DecoderModel::commit_states(std::span<const int32_t> accepted, HostRecurrent& recurrent, ThreadTeam& team) {
  recurrent_rows_.start_commit(accepted);
  for (RecurrentMixer* const mixer : recurrent_mixers_) WW_RETURN_IF_ERROR(mixer->commit(recurrent, team));
  return {};
}

Status DecoderModel::forward_from(const float* rows, const ForwardBatch& batch, KvCache& cache,
                                  AttentionBackend& attention, ThreadTeam& team) {
  return run(rows, batch, {.batch = batch, .cache = cache, .attention = attention, .x = x_}, team);
}

// The scale is applied to what is brought too, as transformers does with inputs_embeds.
void DecoderModel::place_inputs() {
  for (const InputRows& rows : std::exchange(inputs_, {})) {
    float* out = x_.data() + int64_t{rows.row} * spec_.hidden_size;
    std::transform(rows.values.begin(), rows.values.end(), out, [this](float x) { return x * spec_.embedding_scale; });
  }
}

// Tables have the angles of the positions that were met so far.
void DecoderModel::reach_positions(const ForwardBatch& batch, ThreadTeam& team) {
  if (weights_.ropes.empty()) return;
  const std::span<const int32_t> met =
      batch.rope_positions.empty() ? batch.positions.first(batch.num_tokens) : batch.rope_positions;
  const int32_t last = *std::max_element(met.begin(), met.end());
  for (RopeTable& rope : weights_.ropes) rope.reach(spec_.attention.dual_chunk ? rope.most_positions - 1 : last, team);
}

Status DecoderModel::start(const ForwardBatch& batch, const LayerCall& call, ThreadTeam& team) {
  reach_positions(batch, team);
  x_.start(batch.num_tokens, team);
  x_.adapters().start(batch.adapters, batch.q_indptr);
  if (spec_.latent.num_heads > 0) {
    latent_workspace_.start(batch.num_tokens);
  } else {
    attention_workspace_.start(batch);
  }
  if (!recurrent_mixers_.empty()) {
    assert(call.recurrent != nullptr && static_cast<int>(batch.state_slots.size()) == batch.num_reqs);
    recurrent_rows_.start(batch, recurrent_row_width_, static_cast<int>(recurrent_mixers_.size()));
    if (gdn_layer_ != nullptr) WW_RETURN_IF_ERROR(gdn_workspace_.start(batch, *gdn_layer_, *call.recurrent));
  }
  return {};
}

// From `rows`, or null: from the embeddings.
Status DecoderModel::run(const float* rows, const ForwardBatch& batch, const LayerCall& call, ThreadTeam& team) {
  if (batch.num_tokens == 0) return {};
  WW_RETURN_IF_ERROR(start(batch, call, team));
  if (rows != nullptr) {
    std::memcpy(x_.data(), rows, sizeof(float) * batch.num_tokens * spec_.hidden_size);
  } else {
    embed_ids(batch.input_ids.first(batch.num_tokens), x_.data(), team);
    place_inputs();
    weights_.encoder_input.apply(batch, x_);
  }
  x_.bring_beside(std::exchange(embeddings_, nullptr), weights_.draft_norms.embedding);
  if (!kept_layers_.empty()) hidden_.resize(batch.num_tokens * hidden_width());
  first_nan_.clear();
  look_for_nan(-1, "");
  return run_layers<OnHost>(running_layers_, call, [&](int layer, std::string_view part) {
    look_for_nan(layer, part);
    keep_layer(layer);
  });
}

// Behind each part of a layer; what stays is of its last part.
void DecoderModel::keep_layer(int layer) {
  const float scale = static_cast<float>(config_.residual_multiplier);  // rows are kept divided by it
  const int64_t cols = spec_.hidden_size, width = hidden_width();
  for (size_t i = 0; i < kept_layers_.size(); ++i) {
    if (kept_layers_[i] != layer) continue;
    for (int64_t r = 0; r < x_.rows(); ++r) {
      float* const out = hidden_.data() + r * width + static_cast<int64_t>(i) * cols;
      std::memcpy(out, x_.data() + r * cols, cols * sizeof(float));
      if (scale != 1) scale_inplace(out, scale, cols);
    }
  }
}

}  // namespace warpweave
