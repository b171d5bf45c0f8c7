#include "engine/kv_self_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "attention/registry.h"
#include "kv/kv_cache.h"
#include "kv/kv_codec.h"

namespace warpweave {
namespace {

constexpr int kPromptTokens = 48;
// A little more than each format costs normally distributed values: 2.6, 5.3 and 9.5 %.
constexpr double kE4m3Error = 0.035, kE5m2Error = 0.065, kFp4Error = 0.13;

double expected_error(KvFormat format) {
  return format == KvFormat::fp8_e4m3 ? kE4m3Error : format == KvFormat::fp8_e5m2 ? kE5m2Error : kFp4Error;
}

// K and V of the prompt, in `cache`.
Status run(DecoderModel& model, std::span<const int32_t> ids, KvCache& cache, ThreadTeam& team) {
  const int tokens = static_cast<int>(ids.size());
  WW_ASSIGN_OR_RETURN(auto attention, create_backend("torch_native", {&team, tokens, 1}));
  std::vector<int32_t> order(tokens);
  std::iota(order.begin(), order.end(), 0);
  const int32_t q_indptr[] = {0, tokens}, kv_lens[] = {tokens};
  ForwardBatch batch;
  batch.mode = ForwardMode::extend;
  batch.num_reqs = 1;
  batch.num_tokens = batch.max_q_len = batch.max_kv_len = tokens;
  batch.input_ids = ids;
  batch.positions = batch.kv_slots = batch.page_table = order;
  batch.q_indptr = q_indptr;
  batch.kv_lens = kv_lens;
  batch.page_table_stride = tokens;
  std::unique_ptr<HostRecurrent> recurrent;
  const int32_t state_slots[] = {0};
  if (model.config().has_recurrent_layers()) {
    WW_ASSIGN_OR_RETURN(recurrent,
                        HostRecurrent::create(model.config(), state_cache_shape(model.config(), 1, DType::f32),
                                              {.prefill = "cpu", .decode = "cpu", .verify = {}}, team));
    batch.state_slots = state_slots;
  }
  WW_RETURN_IF_ERROR(attention->init_forward_metadata(batch));
  return model.forward(batch, cache, *attention, team, recurrent.get());
}

struct Side {
  KvPoolView exact, rounded;
  int heads, dim;
};

// Rounds one layer's K or V.
KvRounding round_layer(const Side& side, int tokens) {
  KvRounding out;
  double error = 0, square = 0;
  std::vector<float> exact(side.dim), rounded(side.dim);
  for (int token = 0; token < tokens; ++token) {
    for (int head = 0; head < side.heads; ++head) {
      const int64_t at = token * side.exact.token_stride + head * side.exact.head_stride;
      kv_decode_run(side.exact, head, at, side.dim, exact.data());
      kv_encode_run(side.rounded, head, at, side.dim, exact.data());
      kv_decode_run(side.rounded, head, at, side.dim, rounded.data());
      for (int i = 0; i < side.dim; ++i) {
        out.largest = std::max(out.largest, std::fabs(exact[i]));
        error += std::pow(static_cast<double>(exact[i]) - rounded[i], 2);
        square += static_cast<double>(exact[i]) * exact[i];
      }
    }
  }
  out.relative_error = square == 0 ? 0 : std::sqrt(error / square);
  if (!std::isfinite(out.relative_error)) out.relative_error = std::numeric_limits<double>::infinity();
  return out;
}

void keep_worst(KvRounding& worst, const KvRounding& layer) {
  worst.largest = std::max(worst.largest, layer.largest);
  worst.relative_error = std::max(worst.relative_error, layer.relative_error);
}

}  // namespace

int kv_check_tokens(int max_tokens) { return std::min(kPromptTokens, max_tokens); }

KvCacheShape kv_check_shape(const ModelConfig& config, int tokens, KvFormat format) {
  KvCacheShape shape;
  shape.num_layers = config.num_kv_layers();
  shape.num_pages = tokens;
  shape.num_kv_heads = config.num_kv_heads;
  shape.k_head_dim = config.head_dim;
  shape.v_head_dim = config.cached_v_dim();
  shape.format = format;
  if (config.has_recurrent_layers()) shape.layout = single_cache_group(config.num_layers, config.recurrent_layers);
  return shape;
}

std::vector<int32_t> kv_check_prompt(const ModelConfig& config, int tokens) {
  std::vector<int32_t> ids(tokens);
  for (int64_t i = 0; i < tokens; ++i) ids[i] = static_cast<int32_t>((i * i * 31 + i * 977) % config.vocab_size);
  ids[0] = config.bos_token_id.value_or(ids[0]);
  return ids;
}

Result<KvSelfCheck> round_kv(const KvCache& exact, KvFormat format) {
  KvCacheShape shape = exact.shape();
  KvSelfCheck check;
  check.tokens = shape.num_pages * shape.page_size;
  shape.format = format;
  WW_ASSIGN_OR_RETURN(const KvCache rounded, KvCache::create(shape));
  const int heads = shape.num_kv_heads, dim = shape.k_head_dim;
  for (int layer = 0; layer < shape.model_layers(); ++layer) {
    if (!shape.keeps(layer)) continue;
    keep_worst(check.k, round_layer({exact.k(layer), rounded.k(layer), heads, dim}, check.tokens));
    if (shape.v_head_dim == 0) continue;  // V is part of K
    keep_worst(check.v, round_layer({exact.v(layer), rounded.v(layer), heads, dim}, check.tokens));
  }
  for (const KvRounding& side : {check.k, check.v}) {
    check.fits &= side.largest <= kv_format_max(format) && side.relative_error <= expected_error(format);
  }
  return check;
}

Result<KvSelfCheck> check_kv_format(DecoderModel& model, KvFormat format, int max_tokens,
                                    ThreadTeam& team) {
  const int tokens = kv_check_tokens(max_tokens);
  WW_ASSIGN_OR_RETURN(KvCache exact, KvCache::create(kv_check_shape(model.config(), tokens, KvFormat::f32)));
  WW_RETURN_IF_ERROR(run(model, kv_check_prompt(model.config(), tokens), exact, team));
  return round_kv(exact, format);
}

std::string kv_self_check_text(const KvSelfCheck& check, KvFormat format) {
  std::string text = fmt::format(
      "--kv-cache-dtype {}: the checkpoint has no k_scale and v_scale, so K and V are stored with scale "
      "1.0. On {} tokens |K| reaches {:.3g} and |V| {:.3g} ({} holds {:g}); rounding changes K by "
      "{:.1f} % and V by {:.1f} % in the worst layer",
      kv_format_name(format), check.tokens, check.k.largest, check.v.largest, kv_format_name(format),
      kv_format_max(format), check.k.relative_error * 100, check.v.relative_error * 100);
  if (!check.fits) {
    text += ", more than it should: use --kv-cache-dtype bf16, or a checkpoint with KV scales";
  }
  return text;
}

}  // namespace warpweave
