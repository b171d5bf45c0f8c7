#include "conformance/mutants.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

#include "attention/base_caps.h"
#include "attention/batch_check.h"
#include "attention/tree_texts.h"
#include "base/float16.h"
#include "base/float8.h"
#include "conformance/fp8_mma.h"
#include "kv/kv_codec.h"

namespace warpweave::conformance {
namespace {

using M = Mutation;

struct Named { Mutation mutation; std::string_view name; };
#define WW_MUTANT(name) {M::name, #name}
constexpr Named kNames[] = {
    WW_MUTANT(none),
    WW_MUTANT(page_off_by_one),
    WW_MUTANT(page_table_contiguous),
    WW_MUTANT(page_offset_dropped),
    WW_MUTANT(mask_sees_next),
    WW_MUTANT(mask_hides_itself),
    WW_MUTANT(mask_from_start),
    WW_MUTANT(stale_tail),
    WW_MUTANT(missing_rescale),
    WW_MUTANT(no_maximum),
    WW_MUTANT(wrong_scale),
    WW_MUTANT(int32_overflow),
    WW_MUTANT(wrong_head_map),
    WW_MUTANT(token_stride_assumed),
    WW_MUTANT(q_stride_assumed),
    WW_MUTANT(out_stride_assumed),
    WW_MUTANT(v_dim_assumed),
    WW_MUTANT(window_off_by_one),
    WW_MUTANT(window_off_by_minus_one),
    WW_MUTANT(window_ignored),
    WW_MUTANT(window_of_tree_rows),
    WW_MUTANT(right_window_ignored),
    WW_MUTANT(right_window_off_by_one),
    WW_MUTANT(sink_missing),
    WW_MUTANT(sink_of_first_head),
    WW_MUTANT(sink_with_value),
    WW_MUTANT(softcap_after_mask),
    WW_MUTANT(softcap_ignored),
    WW_MUTANT(tree_bit_off_by_one),
    WW_MUTANT(tree_first_word_only),
    WW_MUTANT(tree_mask_ignored),
    WW_MUTANT(tree_mask_transposed),
    WW_MUTANT(tree_prefix_hidden),
    WW_MUTANT(lse_base_2),
    WW_MUTANT(lse_without_sink),
    WW_MUTANT(lse_not_written),
    WW_MUTANT(empty_request_skipped),
    WW_MUTANT(head_scale_ignored),
    WW_MUTANT(head_scale_of_first_head),
    WW_MUTANT(block_scale_ignored),
    WW_MUTANT(nibbles_swapped),
    WW_MUTANT(fp8_formats_swapped),
    WW_MUTANT(bf16_sum),
    WW_MUTANT(last_token_twice),
    WW_MUTANT(neighbour_request),
    WW_MUTANT(latent_value_slice),
    WW_MUTANT(latent_rope_first),
    WW_MUTANT(latent_rope_swapped),
    WW_MUTANT(merge_without_rescale),
    WW_MUTANT(batch_dependent_blocks),
    WW_MUTANT(tree_by_blocks),
    WW_MUTANT(phase_dependent_blocks),
    WW_MUTANT(query_scale_of_neighbour),
    WW_MUTANT(probability_saturated),
    WW_MUTANT(value_order_of_registers),
    WW_MUTANT(short_sum_of_all_tokens),
};
#undef WW_MUTANT

constexpr Caps kCaps = [] {
  Caps caps = kHostCaps;
  caps.name = "mutant";
  caps.summary = "a simple backend with a planted bug";
  caps.kinds = {AttentionKind::mha, AttentionKind::mla};
  caps.head_dims = IntChoice::any_up_to();
  return caps;
}();

constexpr int kFp8Block = 64;
constexpr Caps kFp8Caps = [] {
  Caps caps = kCaps;
  caps.fp8_mma = {.kv_formats = {KvFormat::fp8_e4m3}, .head_dims = IntChoice::any_up_to(), .sum_bits = 14,
                       .sum_tokens = kFp8Block};
  return caps;
}();
constexpr float kRescaleOctaves = 2;  // the maximum may be behind by so much, in fp8 arithmetic

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// One query row and head: where its tokens are, and what it sees of them.
struct Row {
  int request = 0;
  int index = 0;      // in the request
  int64_t token = 0;  // in the batch
  int head = 0;
  int prefix = 0;     // tokens before the request's first row
  int kv_len = 0;
  int position = 0;
};

class Mutant : public AttentionBackend {
 public:
  Mutant(Mutation mutation, const Caps& caps) : mutation_(mutation), caps_(caps) {}

  const Caps& caps() const override { return caps_; }
  Status init_forward_metadata(const ForwardBatch& batch) override { return check_batch(batch); }
  Status forward_extend(const ForwardBatch& batch, const AttentionCall& call) override {
    run(batch, call, false);
    return {};
  }
  Status forward_decode(const ForwardBatch& batch, const AttentionCall& call) override {
    run(batch, call, true);
    return {};
  }

 private:
  bool is(Mutation mutation) const { return mutation_ == mutation; }
  static bool is_latent(const AttentionCall& call) { return call.k.data == call.v.data; }
  static int rope_dim(const AttentionCall& call) { return call.head_dim - call.v_head_dim; }

  void run(const ForwardBatch& batch, const AttentionCall& call, bool decode) {
    if (!is(M::empty_request_skipped)) clear_empty_requests(batch, call);
    block_ = is(M::batch_dependent_blocks)         ? 16 + batch.num_tokens % 48
             : is(M::phase_dependent_blocks) && decode ? 32
                                                   : 64;
    const bool fp8 = !decode && batch.tree_mask.empty() && call.head_dim == call.v_head_dim &&
                     caps_.fp8_mma.apply(call.k.format, call.head_dim, batch.page_size, batch.max_q_len);
    last_page_ = 0;
    for (int r = 0; r < batch.num_reqs; ++r) {
      const int32_t* pages = batch.pages_of(r);
      const int used = (batch.kv_lens[r] + batch.page_size - 1) / batch.page_size;
      if (used > 0) last_page_ = std::max(last_page_, *std::max_element(pages, pages + used));
    }
    for (int r = 0; r < batch.num_reqs; ++r) {
      if (batch.kv_lens[r] == 0) continue;
      fp8_ = fp8 && (batch.mode != ForwardMode::mixed || batch.q_len(r) > 1);
      for (int i = 0; i < batch.q_len(r); ++i) {
        for (int h = 0; h < call.num_q_heads; ++h) compute(batch, call, row_of(batch, r, i, h));
      }
    }
  }

  Row row_of(const ForwardBatch& batch, int r, int i, int head) const {
    Row row;
    row.request = r;
    row.index = i;
    row.token = batch.q_indptr[r] + i;
    row.head = head;
    row.kv_len = batch.kv_lens[r];
    row.prefix = row.kv_len - batch.q_len(r);
    row.position = is(M::mask_from_start) ? i : row.prefix + i;
    if (!batch.tree_mask.empty() && !is(M::window_of_tree_rows)) {
      row.position = batch.positions[row.token];
    }
    return row;
  }

  bool sees_node(const ForwardBatch& batch, const Row& row, int node) const {
    if (is(M::tree_mask_ignored)) return node <= row.index;
    int from = row.index, to = node;
    if (is(M::tree_mask_transposed)) std::swap(from, to);
    if (is(M::tree_bit_off_by_one)) to = std::max(0, to - 1);
    if (is(M::tree_first_word_only) && to >= 32) return false;
    const int64_t first = (batch.q_indptr[row.request] + from) * int64_t{batch.tree_mask_words};
    return batch.tree_mask[first + to / 32] >> (to % 32) & 1;
  }

  bool sees(const ForwardBatch& batch, const AttentionCall& call, const Row& row, int kv) const {
    if (!batch.tree_mask.empty() && kv >= row.prefix) return sees_node(batch, row, kv - row.prefix);
    if (!batch.tree_mask.empty() && is(M::tree_prefix_hidden)) return false;
    const int shift = is(M::mask_sees_next) ? 1 : is(M::mask_hides_itself) ? -1 : 0;
    if (batch.causal && kv > row.position + shift) return false;
    if (!batch.causal && call.window_right >= 0 && !is(M::right_window_ignored) &&
        kv > row.position + call.window_right + is(M::right_window_off_by_one)) {
      return false;
    }
    if (call.window_left < 0 || is(M::window_ignored)) return true;
    const int left = call.window_left + is(M::window_off_by_one) - is(M::window_off_by_minus_one);
    return kv >= row.position - left;
  }

  int64_t offset(const ForwardBatch& batch, const AttentionCall& call, const KvPoolView& view,
                 const Row& row, int kv) const {
    const int32_t* pages = batch.pages_of(is(M::neighbour_request) ? 0 : row.request);
    int entry = kv / batch.page_size;
    if (is(M::page_off_by_one) && kv % batch.page_size == 0 && entry > 0) --entry;
    // A lost page reads another one, so that the bug shows as a wrong result and not as a crash.
    const int64_t wanted = is(M::page_table_contiguous) ? pages[0] + entry : pages[entry];
    const int64_t page = wanted <= last_page_ ? wanted : 0;
    const int slot = is(M::page_offset_dropped) ? 0 : kv % batch.page_size;
    const int group = call.num_q_heads / call.num_kv_heads;
    const int head = is(M::wrong_head_map) ? row.head % call.num_kv_heads : row.head / group;
    const int64_t token_stride =
        is(M::token_stride_assumed) ? call.num_kv_heads * view.head_stride : view.token_stride;
    const int64_t at = page * view.page_stride + slot * token_stride + head * view.head_stride;
    return is(M::int32_overflow) ? std::max(0, static_cast<int32_t>(at)) : at;
  }

  // `dim` values of K or V of one token as f32.
  void load(const KvPoolView& view, int kv_head, int64_t at, int dim, float* out) const {
    KvPoolView seen = view;
    if (is(M::head_scale_ignored)) seen.head_scales = nullptr;
    if (is(M::fp8_formats_swapped) && view.format == KvFormat::fp8_e4m3) {
      seen.format = KvFormat::fp8_e5m2;
    }
    kv_decode_run(seen, is(M::head_scale_of_first_head) ? 0 : kv_head, at, dim, out);
    if (view.format != KvFormat::fp4_e2m1) return;
    if (is(M::nibbles_swapped)) {
      for (int i = 0; i + 1 < dim; i += 2) std::swap(out[i], out[i + 1]);
    }
    if (is(M::block_scale_ignored)) {
      // The scale of the first block for all.
      KvPoolView first = seen;
      std::vector<uint8_t> scales(dim / kFp4BlockElements, view.block_scales[at / kFp4BlockElements]);
      first.block_scales = scales.data() - at / kFp4BlockElements;
      kv_decode_run(first, kv_head, at, dim, out);
    }
  }

  float logit(const ForwardBatch& batch, const AttentionCall& call, const Row& row, int kv) const {
    const int64_t q_stride =
        is(M::q_stride_assumed) ? call.num_q_heads * call.head_dim : call.q_token_stride;
    const float* given = call.q_f32() + row.token * q_stride + row.head * call.head_dim;
    std::vector<float> q(given, given + call.head_dim), k(call.head_dim);
    if (is(M::latent_rope_first) && is_latent(call)) std::rotate(q.begin(), q.begin() + rope_dim(call), q.end());
    if (is(M::latent_rope_swapped) && is_latent(call)) {
      std::rotate(q.end() - rope_dim(call), q.end() - rope_dim(call) / 2, q.end());
    }
    if (fp8_) round_query(row, q_stride, given, q);
    const int group = call.num_q_heads / call.num_kv_heads;
    load(call.k, row.head / group, offset(batch, call, call.k, row, kv), call.head_dim, k.data());
    for (int i = 0; i < call.head_dim; ++i) k[i] *= q[i];
    float sum = sum_of(0, k);
    sum *= is(M::wrong_scale) ? 0.125f : call.scale;
    if (call.logit_softcap > 0 && !is(M::softcap_ignored) && !is(M::softcap_after_mask)) {
      sum = call.logit_softcap * std::tanh(sum / call.logit_softcap);
    }
    return sum;
  }

  // Terms added to `sum` as the tensor cores do it, 32 at a time in fp8 arithmetic.
  float sum_of(float sum, std::span<const float> terms) const {
    if (!fp8_) return std::accumulate(terms.begin(), terms.end(), sum);
    for (size_t i = 0; i < terms.size(); i += 32) {
      const size_t count = std::min<size_t>(32, terms.size() - i);
      sum = add_short(sum, terms.subspan(i, count), caps_.fp8_mma.sum_bits);
    }
    return sum;
  }

  void round_query(const Row& row, int64_t q_stride, const float* given, std::vector<float>& q) const {
    round_query_to_e4m3(q);
    if (!is(M::query_scale_of_neighbour) || row.index == 0) return;
    std::vector<float> before(given - q_stride, given - q_stride + q.size());
    const float factor = query_scale(before) / query_scale({given, given + q.size()});
    for (float& value : q) value *= factor;
  }
  static float query_scale(const std::vector<float>& q) {
    float top = 0;
    for (float value : q) top = std::max(top, std::fabs(value));
    return std::exp2(std::ceil(std::log2(top / 448)));
  }

  // What V is multiplied with.
  float rounded_weight(float weight) const {
    if (!fp8_) return weight;
    const float scale = std::exp2(caps_.fp8_mma.p_scale_log2 + (is(M::probability_saturated) ? 4.0f : 0.0f));
    return e4m3_to_f32(f32_to_e4m3(weight * scale)) / scale;
  }

  // The token whose V meets the probability of token `kv`.
  int value_token(const Row& row, int kv) const {
    if (!is(M::value_order_of_registers)) return kv;
    const int place = kv % 16, thread = place / 4, byte = place % 4;
    const int other = kv - place + thread * 2 + byte % 2 + byte / 2 * 8;
    return other < row.kv_len ? other : kv;
  }

  // The running softmax of one row.
  struct State {
    float top = -kInfinity;
    float sum = 0;
    std::vector<float> value;
  };

  struct Range {
    int begin, end;
  };
  void add_block(const ForwardBatch& batch, const AttentionCall& call, const Row& row, Range range,
                 State& state) const {
    std::vector<std::pair<int, float>> logits;
    float top = state.top;
    for (int kv = range.begin; kv < range.end; ++kv) {
      if (kv < row.kv_len && !sees(batch, call, row, kv)) continue;
      logits.emplace_back(kv, logit(batch, call, row, kv));
      top = std::max(top, logits.back().second);
    }
    if (logits.empty()) return;
    if (fp8_ && state.sum > 0 && (top - state.top) * std::log2(std::exp(1.0f)) <= kRescaleOctaves) top = state.top;
    if (is(M::no_maximum)) top = 0;
    if (is(M::softcap_after_mask) && call.logit_softcap > 0) {
      for (auto& [kv, s] : logits) s = top + call.logit_softcap * std::tanh((s - top) / call.logit_softcap);
    }
    const float rescale = is(M::missing_rescale) || state.sum == 0 ? 1 : std::exp(state.top - top);
    state.sum *= rescale;
    for (float& v : state.value) v *= rescale;
    state.top = top;
    const int group = call.num_q_heads / call.num_kv_heads;
    const int v_dim = is(M::v_dim_assumed) ? std::min(call.head_dim, call.v_head_dim) : call.v_head_dim;
    std::vector<std::vector<float>> terms(v_dim);
    std::vector<float> v(v_dim);
    for (const auto& [kv, s] : logits) {
      const float weight = std::exp(s - top), rounded = rounded_weight(weight);
      state.sum += weight;
      const int64_t at = offset(batch, call, call.v, row, value_token(row, kv));
      const int64_t skipped = is(M::latent_value_slice) && is_latent(call) ? rope_dim(call) : 0;
      load(call.v, row.head / group, at + skipped, v_dim, v.data());
      for (int i = 0; i < v_dim; ++i) terms[i].push_back(rounded * v[i]);
    }
    for (int i = 0; i < v_dim; ++i) {
      if (!is(M::bf16_sum)) {
        if (is(M::short_sum_of_all_tokens)) state.value[i] = sum_of(state.value[i], terms[i]);
        else state.value[i] += sum_of(0, terms[i]);
        continue;
      }
      for (float term : terms[i]) state.value[i] = bf16_to_f32(f32_to_bf16(state.value[i] + term));
    }
  }

  void compute(const ForwardBatch& batch, const AttentionCall& call, const Row& row) const {
    State state;
    state.value.assign(call.v_head_dim, 0.0f);
    int end = row.kv_len;
    if (is(M::stale_tail)) end = (end + batch.page_size - 1) / batch.page_size * batch.page_size;
    State second;
    second.value = state.value;
    for (int begin = 0; begin < end; begin += block_) {
      const bool apart = is(M::merge_without_rescale) && begin > end / 2;
      add_block(batch, call, row, {begin, std::min(end, begin + block_)}, apart ? second : state);
    }
    state.sum += second.sum;
    for (int i = 0; i < call.v_head_dim; ++i) state.value[i] += second.value[i];
    if (is(M::last_token_twice)) add_block(batch, call, row, {row.kv_len - 1, row.kv_len}, state);
    float lse = state.top + std::log(state.sum);
    float sum = state.sum;
    if (call.sinks != nullptr && !is(M::sink_missing)) {
      const float sink = call.sinks[is(M::sink_of_first_head) ? 0 : row.head];
      const float weight = std::exp(sink - state.top);
      sum += weight;
      if (is(M::sink_with_value)) {
        for (float& v : state.value) v += weight * v / state.sum;
      }
      if (!is(M::lse_without_sink)) lse = state.top + std::log(sum);
    }
    const int64_t out_stride =
        is(M::out_stride_assumed) ? call.num_q_heads * call.v_head_dim : call.out_token_stride;
    float* out = call.out_f32() + row.token * out_stride + row.head * call.v_head_dim;
    for (int i = 0; i < call.v_head_dim; ++i) out[i] = state.value[i] / sum;
    if (call.lse == nullptr || is(M::lse_not_written)) return;
    call.lse[row.token * call.num_q_heads + row.head] =
        is(M::lse_base_2) ? lse / std::log(2.0f) : lse;
  }

  Mutation mutation_;
  const Caps& caps_;
  bool fp8_ = false;
  int block_ = 64;
  int32_t last_page_ = 0;
};

}  // namespace

std::string_view mutation_name(Mutation mutation) {
  for (const Named& named : kNames) {
    if (named.mutation == mutation) return named.name;
  }
  return "unnamed";
}

namespace {

std::unique_ptr<AttentionBackend> create(Mutation mutation, const Caps& caps, const BackendContext& context) {
  std::unique_ptr<AttentionBackend> mutant = std::make_unique<Mutant>(mutation, caps);
  if (mutation == M::tree_by_blocks) return mutant;
  return with_trees_as_texts(std::move(mutant), context);
}

std::vector<Variant> variants_of(const Caps& caps, Mutation last) {
  std::vector<Variant> variants;
  for (const Named& named : kNames) {
    if (named.mutation > last) continue;
    Variant& variant = variants.emplace_back();
    variant.name = named.name;
    variant.device = "cpu";
    variant.hardware = cpu_hardware_facts();
    variant.caps = &caps;
    variant.create = [mutation = named.mutation, &caps](const BackendContext& context) {
      return create(mutation, caps, context);
    };
  }
  return variants;
}

}  // namespace

std::vector<Variant> mutant_variants() { return variants_of(kCaps, M::phase_dependent_blocks); }
std::vector<Variant> fp8_mutant_variants() { return variants_of(kFp8Caps, M::short_sum_of_all_tokens); }

}  // namespace warpweave::conformance
