#include "capi/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "attention/hybrid.h"
#include "attention/registry.h"
#include "kv/latent_token.h"

namespace warpweave::capi {
namespace {

constexpr int kMaxHeads = 1 << 16;
constexpr int kMaxHeadDim = 1 << 14;
constexpr int kMaxPageSize = 1 << 20;

Status invalid(const char* field, std::string_view text) {
  return Status::invalid_argument(fmt::format("ww_plan_options.{}: {}", field, text), field);
}

Status check_range(const char* field, int value, int min, int max) {
  if (value >= min && value <= max) return {};
  return invalid(field, fmt::format("is {}, must be {} to {}", value, min, max));
}

ModelDType model_dtype(DType dtype) {
  return dtype == DType::f32   ? ModelDType::f32
         : dtype == DType::f16 ? ModelDType::f16
                               : ModelDType::bf16;
}

size_t align_up(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Packed formats hold whole latent tokens of one size, and the other fp4 none.
Status check_packed(const ww_plan_options& options, KvFormat format) {
  if (!kv_format_is_packed(format)) {
    if (options.latent == 0 || format != KvFormat::fp4_e2m1) return {};
    return invalid("kv_format", "is WW_KV_FP4_E2M1; latent attention keeps fp4 in whole tokens: WW_KV_FP4_MLA");
  }
  if (options.latent != 0 && options.head_dim == kPackedTokenDim && options.v_head_dim == kPackedLatentDim) return {};
  return invalid("kv_format", fmt::format("{} holds latent tokens: it needs latent 1, head_dim {} and v_head_dim {}",
                                          kv_format_name(format), kPackedTokenDim, kPackedLatentDim));
}

Status check_latent(const ww_plan_options& options) {
  WW_RETURN_IF_ERROR(check_range("latent", options.latent, 0, 1));
  if (options.num_kv_heads != 1) {
    return invalid("num_kv_heads",
                   fmt::format("is {}; latent attention has one row for all heads: 1", options.num_kv_heads));
  }
  WW_RETURN_IF_ERROR(check_range("v_head_dim", options.v_head_dim, 1, options.head_dim));
  if (options.scale == 0) {
    return invalid("scale", "is 0; latent attention needs that of the heads before absorption, 1 / sqrt(192) say");
  }
  return {};
}

// Each value by itself, and with its neighbours.
Status check_options(const ww_plan_options& options) {
  WW_RETURN_IF_ERROR(check_range("num_kv_heads", options.num_kv_heads, 1, kMaxHeads));
  WW_RETURN_IF_ERROR(check_range("num_q_heads", options.num_q_heads, 1, kMaxHeads));
  WW_RETURN_IF_ERROR(check_range("head_dim", options.head_dim, 1, kMaxHeadDim));
  WW_RETURN_IF_ERROR(check_range("v_head_dim", options.v_head_dim, 0, kMaxHeadDim));
  WW_RETURN_IF_ERROR(check_range("page_size", options.page_size, 0, kMaxPageSize));
  WW_RETURN_IF_ERROR(check_range("causal", options.causal, 0, 1));
  WW_RETURN_IF_ERROR(check_range("window_left", options.window_left, -1, 1 << 30));
  WW_RETURN_IF_ERROR(check_range("max_pages_per_request", options.max_pages_per_request, 0, 1 << 24));
  if (options.num_q_heads % options.num_kv_heads != 0) {
    return invalid("num_q_heads", fmt::format("is {}, must be a multiple of num_kv_heads, {}",
                                              options.num_q_heads, options.num_kv_heads));
  }
  if (options.causal ? options.window_right != 0 && options.window_right != -1
                     : options.window_right != -1) {
    return Status::unsupported(
        fmt::format("ww_plan_options.window_right: is {}; a bound on the right is causal = 1 with "
                    "window_right 0, or none (-1)", options.window_right), "window_right");
  }
  if (!std::isfinite(options.scale) || !std::isfinite(options.logit_softcap) ||
      options.logit_softcap < 0) {
    return invalid("scale", "scale and logit_softcap must be finite, logit_softcap at least 0");
  }
  const int device = options.device.device_type;
  if ((device != 0 && device != WW_DEVICE_CPU && device != WW_DEVICE_CUDA) ||
      options.device.device_id != 0) {
    return Status::unsupported(
        fmt::format("ww_plan_options.device: type {} id {} is not the CPU (type 1) or the first "
                    "GPU (type 2)",
                    device, options.device.device_id),
        "device");
  }
  if (options.use_tree_mask != 0 && options.causal == 0) {
    return invalid("use_tree_mask",
                   "a tree mask needs causal = 1: rows see all tokens before the tree");
  }
  return options.latent == 0 ? Status() : check_latent(options);
}

}  // namespace

Result<std::unique_ptr<AttentionPlan>> AttentionPlan::create(Workspace& workspace,
                                                             const ww_plan_options& options) {
  std::unique_ptr<AttentionPlan> plan(new AttentionPlan(workspace));
  WW_RETURN_IF_ERROR(plan->read_options(options));
  WW_RETURN_IF_ERROR(plan->choose_backend(options));
  return plan;
}

Status AttentionPlan::read_options(const ww_plan_options& options) {
  WW_RETURN_IF_ERROR(check_options(options));
  const std::optional<DType> dtype = dtype_of(options.q_dtype);
  if (dtype != DType::f32 && dtype != DType::f16 && dtype != DType::bf16) {
    return invalid("q_dtype", fmt::format("DLPack code {} with {} bits is not f32, f16 or bf16",
                                          options.q_dtype.code, options.q_dtype.bits));
  }
  WW_ASSIGN_OR_RETURN(const KvFormat format, read_kv_format(options.kv_format));
  WW_RETURN_IF_ERROR(check_packed(options, format));
  const int v_head_dim = options.v_head_dim == 0 ? options.head_dim : options.v_head_dim;
  kv_spec_ = {options.num_kv_heads, options.head_dim, v_head_dim, 0, format,
              options.device.device_type == WW_DEVICE_CUDA ? Place::gpu : Place::cpu, options.latent != 0};
  q_dtype_ = *dtype;
  use_sinks_ = options.use_sinks != 0;
  rules_.page_size = options.page_size;
  rules_.max_pages_per_request = options.max_pages_per_request;
  rules_.causal = options.causal != 0;
  rules_.tree_mask = options.use_tree_mask != 0;
  shape_.num_q_heads = options.num_q_heads;
  shape_.num_kv_heads = options.num_kv_heads;
  shape_.head_dim = options.head_dim;
  shape_.v_head_dim = v_head_dim;
  shape_.scale =
      options.scale != 0 ? options.scale : 1 / std::sqrt(static_cast<float>(options.head_dim));
  shape_.window_left = options.window_left;
  shape_.logit_softcap = options.logit_softcap;
  shape_.k.format = shape_.v.format = format;
  return {};
}

// Selection asks about tree masks through speculation only.
Status AttentionPlan::check_tree_mask(const Caps& caps, const std::string& name) const {
  if (!rules_.tree_mask || caps.custom_mask) return {};
  std::string others;
  for (const BackendRegistration& backend : built_backends()) {
    if (!backend.caps->selectable || !backend.caps->custom_mask) continue;
    others += fmt::format("{}{}", others.empty() ? "" : ", ", backend.caps->name);
  }
  return Status::unsupported(
      fmt::format("ww_plan_options.backend: {} takes no tree mask; backends here that do: {}", name,
                  others.empty() ? "none" : others),
      "backend");
}

Status AttentionPlan::choose_backend(const ww_plan_options& options) {
  ModelFacts facts;
  facts.architecture = "ww_plan";
  if (kv_spec_.latent) facts.kind = AttentionKind::mla;
  facts.dtype = model_dtype(q_dtype_);
  facts.num_q_heads = options.num_q_heads;
  facts.num_kv_heads = options.num_kv_heads;
  facts.head_dim = kv_spec_.head_dim;
  facts.v_head_dim = kv_spec_.v_head_dim;
  facts.sliding_window = options.window_left >= 0;
  facts.softcap = options.logit_softcap > 0;
  facts.sinks = use_sinks_;
  facts.non_causal = !rules_.causal;
  AttentionFlags flags;
  flags.attention_backend = options.backend != nullptr ? options.backend : "";
  if (options.page_size > 0) flags.page_size = options.page_size;
  flags.kv_cache_dtype = kv_format_name(kv_spec_.format);
  flags.enable_deterministic_inference = options.deterministic != 0;
  flags.disable_cuda_graph = options.max_pages_per_request == 0;

  // Unless one is named, only those that take the mask are candidates.
  std::vector<KnownBackend> candidates;
  const bool named = !flags.attention_backend.empty() && flags.attention_backend != "auto";
  for (const KnownBackend& backend : known_backends()) {
    if (named || !rules_.tree_mask || backend.caps->custom_mask) candidates.push_back(backend);
  }
  HardwareFacts hardware = cpu_hardware_facts();
  if (on_gpu()) {
    if (kv_spec_.v_head_dim != kv_spec_.head_dim && !kv_spec_.latent) {
      return Status::unsupported("ww_plan_options.v_head_dim: on a GPU it must be head_dim",
                                 "v_head_dim");
    }
    WW_ASSIGN_OR_RETURN(hardware, gpu_hardware_facts());
    if (options.max_pages_per_request > 0 && options.page_size == 0) {
      return invalid("max_pages_per_request", "needs a page_size");
    }
  }
  Result<Resolved> resolved = select_attention(hardware, facts, flags, candidates);
  if (!resolved.ok()) return resolved.status().with_context("ww_plan_create");
  rules_.prefill = resolved->prefill_caps;
  rules_.decode = resolved->decode_caps;
  WW_RETURN_IF_ERROR(check_tree_mask(*rules_.prefill, resolved->prefill));
  WW_RETURN_IF_ERROR(check_tree_mask(*rules_.decode, resolved->decode));
  for (const std::string& line : explain_lines(*resolved)) explanation_ += line + "\n";
  WW_ASSIGN_OR_RETURN(
      backend_, create_resolved_backend(*resolved, {.team = &context().team,
                                                    .page_size = std::max(1, options.page_size)}));
  return {};
}

AttentionPlan::Layout AttentionPlan::layout_for(int64_t rows) const {
  const size_t heads = static_cast<size_t>(rows) * shape_.num_q_heads;
  Layout layout;
  layout.q = 0;
  layout.out = layout.q + align_up(heads * shape_.head_dim * sizeof(float));
  layout.lse = layout.out + align_up(heads * shape_.v_head_dim * sizeof(float));
  layout.scales = layout.lse + align_up(heads * sizeof(float));
  layout.sinks = layout.scales + align_up(2 * sizeof(float) * shape_.num_kv_heads);
  layout.bytes = layout.sinks + align_up(sizeof(float) * shape_.num_q_heads);
  return layout;
}

AttentionCall AttentionPlan::call_shape() const {
  AttentionCall call = shape_;
  call.q_token_stride = int64_t{shape_.num_q_heads} * shape_.head_dim;
  call.out_token_stride = int64_t{shape_.num_q_heads} * shape_.v_head_dim;
  return call;
}

Status AttentionPlan::set_batch(const ww_batch& batch) {
  planned_ = false;
  WW_RETURN_IF_ERROR(batch_.set(batch, rules_));
  if (on_gpu()) {
    const GpuGuard guard;
    WW_RETURN_IF_ERROR(check_same_shape());
    WW_ASSIGN_OR_RETURN(const uint64_t capture, gpu_capture_of(batch.stream));
    if (capture != 0) {
      return Status::unsupported("ww_plan_batch: its arrays come from the host, so it cannot be captured into a "
                                 "graph; plan before, and capture ww_plan_run alone", "stream");
    }
    gpu_batch_ = batch_.batch();
    capture_ = 0;
    WW_RETURN_IF_ERROR(gpu_arrays_.upload(gpu_batch_, batch.stream));
    if (batch_.rows() > 0) WW_RETURN_IF_ERROR(backend_->init_forward_metadata(gpu_batch_));
    planned_ = true;
    return {};
  }
  const Layout layout = layout_for(batch_.rows());
  WW_RETURN_IF_ERROR(workspace_.reserve(layout.bytes));
  layout_ = layout;
  if (batch_.rows() > 0) {
    WW_RETURN_IF_ERROR(backend_->init_forward_metadata(batch_.batch()));
    WW_RETURN_IF_ERROR(backend_->reserve(batch_.batch(), call_shape()));
  }
  planned_ = true;
  return {};
}

RowsView AttentionPlan::scratch_rows(size_t offset, int dim) const {
  RowsView view;
  view.data = workspace_.data() + offset;
  view.rows = view.rows_per_batch = std::max<int64_t>(1, batch_.rows());
  view.heads = shape_.num_q_heads;
  view.dim = dim;
  view.head_stride = dim;
  view.row_stride = int64_t{shape_.num_q_heads} * dim;
  return view;
}

Status AttentionPlan::read_tensors(const ww_run_args& args, const ww_kv_cache& kv) {
  const int heads = shape_.num_q_heads;
  WW_ASSIGN_OR_RETURN(
      tensors_.q, read_rows(args.q, {"q", batch_.rows(), heads, shape_.head_dim, kv_spec_.place}));
  WW_ASSIGN_OR_RETURN(tensors_.out, read_rows(args.out, {"out", batch_.rows(), heads,
                                                         shape_.v_head_dim, kv_spec_.place}));
  tensors_.has_lse = args.lse_ln != nullptr;
  if (tensors_.has_lse) {
    WW_ASSIGN_OR_RETURN(
        tensors_.lse, read_rows(args.lse_ln, {"lse_ln", batch_.rows(), heads, 0, kv_spec_.place}));
  }
  if (tensors_.q.dtype != q_dtype_) {
    return Status::invalid_argument("q: its dtype is not the plan's q_dtype", "q");
  }
  if (tensors_.out.dtype != q_dtype_ && tensors_.out.dtype != DType::f32) {
    return Status::invalid_argument("out: its dtype must be the plan's q_dtype or f32", "out");
  }
  if (kv.format != static_cast<ww_kv_format>(kv_spec_.format)) {
    return Status::invalid_argument("kv.format: is not the plan's kv_format", "kv.format");
  }
  kv_spec_.page_size = batch_.kv_page_size();
  WW_ASSIGN_OR_RETURN(tensors_.kv,
                      read_kv(kv, kv_spec_, on_gpu() ? nullptr : floats_at(layout_.scales)));
  if (tensors_.kv.extent < batch_.needed_extent()) {
    return Status::invalid_argument(
        fmt::format("kv.k: has {} {}, the batch refers to {} {}", tensors_.kv.extent,
                    batch_.kv_page_size() > 0 ? "pages" : "tokens",
                    batch_.kv_page_size() > 0 ? "page" : "token", batch_.needed_extent() - 1),
        "kv.k");
  }
  if ((args.sinks != nullptr) != use_sinks_) {
    return Status::invalid_argument(
        use_sinks_ ? "sinks: is NULL, but the plan was made with use_sinks = 1"
                   : "sinks: is given, but the plan was made with use_sinks = 0",
        "sinks");
  }
  return {};
}

// Kernels read and write in place, sixteen bytes at a time.
Status AttentionPlan::check_for_gpu(const ww_run_args& args) const {
  const auto [q, out, lse, kv, has_lse] = tensors_;
  for (const auto& [rows, name] : {std::pair(&q, "q"), std::pair(&out, "out")}) {
    const int bits = dtype_info(rows->dtype).block_bytes * 8;
    if (rows->dtype != q_dtype_ || !rows->is_plain() ||
        is_misaligned(rows->data, {rows->row_stride}, bits)) {
      return Status::invalid_argument(
          fmt::format("{}: on a GPU it must have the plan's q_dtype, dense heads, one stride "
                      "for all rows, and multiples of 16 bytes",
                      name),
          name);
    }
  }
  if (has_lse && !(lse.is_plain() && lse.row_stride == shape_.num_q_heads)) {
    return Status::invalid_argument("lse_ln: on a GPU it must be dense", "lse_ln");
  }
  const KvPoolView &k = kv.k, &v = kv.v;
  if (k.page_stride != v.page_stride || k.token_stride != v.token_stride ||
      k.head_stride != v.head_stride) {
    return Status::invalid_argument("kv.v: on a GPU its strides must be those of kv.k", "kv.v");
  }
  for (const KvPoolView* pool : {&k, &v}) {
    if (is_misaligned(pool->data, {k.page_stride, k.token_stride, k.head_stride},
                      kv_format_bits(k.format))) {
      return Status::invalid_argument(
          "kv.k: on a GPU starts and strides must be multiples of 16 bytes", "kv.k");
    }
  }
  return {};
}

// Graphs that were captured with an earlier batch read the arrays of later ones: same places, same sizes.
Status AttentionPlan::check_same_shape() {
  if (rules_.max_pages_per_request == 0) return {};
  const ForwardBatch& batch = batch_.batch();
  if (!shape_fixed_) fixed_shape_ = {batch.num_reqs, batch.num_tokens, batch.max_q_len};
  shape_fixed_ = true;
  if (batch.num_reqs == fixed_shape_.requests && batch.num_tokens == fixed_shape_.tokens &&
      batch.max_q_len == fixed_shape_.max_q_len) {
    return {};
  }
  return Status::invalid_argument(
      fmt::format("ww_batch: {} requests with {} rows, at most {} each; under max_pages_per_request every batch has "
                  "the shape of the first, {} with {}, at most {}",
                  batch.num_reqs, batch.num_tokens, batch.max_q_len, fixed_shape_.requests, fixed_shape_.tokens,
                  fixed_shape_.max_q_len),
      "num_requests");
}

void AttentionPlan::set_pools(AttentionCall& call) const {
  call.k = tensors_.kv.k;
  call.v = tensors_.kv.v;
  if (batch_.kv_page_size() == 0) {  // pages made of the tokens
    call.k.page_stride = batch_.batch().page_size * call.k.token_stride;
    call.v.page_stride = batch_.batch().page_size * call.v.token_stride;
  }
}

Status AttentionPlan::run_on_gpu(const ww_run_args& args) {
  WW_RETURN_IF_ERROR(check_for_gpu(args));
  AttentionCall call = shape_;
  set_pools(call);
  call.q = tensors_.q.data;
  call.q_dtype = call.out_dtype = q_dtype_;
  call.q_token_stride = tensors_.q.row_stride;
  call.out = tensors_.out.data;
  call.out_token_stride = tensors_.out.row_stride;
  if (tensors_.has_lse) call.lse = reinterpret_cast<float*>(tensors_.lse.data);
  if (use_sinks_) {
    WW_ASSIGN_OR_RETURN(call.sinks, gpu_floats(args.sinks, "sinks", call.num_q_heads));
  }
  const GpuGuard guard;
  WW_ASSIGN_OR_RETURN(const uint64_t capture, gpu_capture_of(args.stream));
  WW_RETURN_IF_ERROR(gpu_arrays_.before_run(args.stream, capture != 0));
  gpu_batch_.device.stream = args.stream;
  if (capture != capture_) {
    // A plan made outside a graph is no part of it, and one made in a graph was not made outside.
    WW_RETURN_IF_ERROR(capture != 0 ? backend_->init_forward_metadata_capture_cuda_graph(gpu_batch_)
                                    : backend_->init_forward_metadata(gpu_batch_));
    capture_ = capture;
  }
  WW_RETURN_IF_ERROR(gpu_batch_.mode == ForwardMode::decode ? backend_->forward_decode(gpu_batch_, call)
                                                            : backend_->forward_extend(gpu_batch_, call));
  return gpu_arrays_.after_run(args.stream, capture != 0);
}

Status AttentionPlan::run(const ww_run_args& args, const ww_kv_cache& kv) {
  if (!planned_) return Status::invalid_argument("ww_plan_run: call ww_plan_batch first");
  WW_RETURN_IF_ERROR(read_tensors(args, kv));
  if (batch_.rows() == 0) return {};
  if (on_gpu()) return run_on_gpu(args);
  const ForwardBatch& batch = batch_.batch();
  ThreadTeam& team = context().team;
  const RowsView &q = tensors_.q, &out = tensors_.out, &lse = tensors_.lse;
  const bool has_lse = tensors_.has_lse;

  AttentionCall call = call_shape();
  const RowsView q_scratch = scratch_rows(layout_.q, call.head_dim);
  const RowsView out_scratch = scratch_rows(layout_.out, call.v_head_dim);
  const bool q_in_place = q.dtype == DType::f32 && q.is_plain();
  const bool out_in_place = out.dtype == DType::f32 && out.is_plain();
  const bool lse_in_place = has_lse && lse.is_plain() && lse.row_stride == call.num_q_heads;
  if (!q_in_place) copy_rows(q, q_scratch, team);
  call.q = q_in_place ? q.data : q_scratch.data;
  call.out = out_in_place ? out.data : out_scratch.data;
  if (q_in_place) call.q_token_stride = q.row_stride;
  if (out_in_place) call.out_token_stride = out.row_stride;
  if (has_lse)
    call.lse = lse_in_place ? reinterpret_cast<float*>(lse.data) : floats_at(layout_.lse);
  set_pools(call);
  if (use_sinks_) {
    WW_RETURN_IF_ERROR(
        read_floats(args.sinks, "sinks", call.num_q_heads, floats_at(layout_.sinks)));
    call.sinks = floats_at(layout_.sinks);
  }
  WW_RETURN_IF_ERROR(batch.mode == ForwardMode::decode ? backend_->forward_decode(batch, call)
                                                       : backend_->forward_extend(batch, call));
  if (!out_in_place) copy_rows(out_scratch, out, team);
  if (has_lse && !lse_in_place) copy_rows(scratch_rows(layout_.lse, 1), lse, team);
  return {};
}

}  // namespace warpweave::capi
