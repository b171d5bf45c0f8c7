#include "model/layers/gpu_latent_prefill.h"

#include <algorithm>

#include "attention/backends/fa3/kernels/kernels.h"
#include "attention/cuda/mla/mla_expand.h"
#include "attention/cuda/plan.h"
#include "device/cuda/compute_capability.h"
#include "device/cuda/copy.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/stream.h"
#include "model/layers/gpu_residual.h"

namespace warpweave {
namespace {

// Room for so many requests' last pages, which their tokens do not fill, and for more of a prefix at a time.
constexpr int64_t kSpareRows = 8192;
constexpr int kMinQueryLen = 2;
constexpr int kSectionBytes = 48 << 20;  // of a plan: faster here than 24 MB (docs/gpu-tuning.md)
constexpr int kHeaderItems = sizeof(cuda::ExtendHeader) / sizeof(cuda::ExtendItem);
static_assert(sizeof(cuda::ExtendHeader) % sizeof(cuda::ExtendItem) == 0);
constexpr int kItemInts = sizeof(cuda::ExtendItem) / sizeof(int32_t);

cudaStream_t stream_of(const ForwardBatch& batch) { return static_cast<cudaStream_t>(batch.device.stream); }

cuda::MlaElement element_of(DType dtype) {
  return dtype == DType::f16 ? cuda::MlaElement::f16 : cuda::MlaElement::bf16;
}

int64_t max_items(const ForwardBatch& batch) { return batch.num_tokens / cuda::kLatentTileRows + batch.num_reqs; }

bool has_kernels(const LatentPrefillShape& shape, DType dtype) {
  return has_expanded_kernels(shape) && (dtype == DType::bf16 || dtype == DType::f16) &&
         current_compute_capability() == 90;
}

cuda::MlaParams requests_of(const ForwardBatch& batch) {
  cuda::MlaParams p;
  p.page_table = batch.device.page_table;
  p.page_table_stride = batch.page_table_stride;
  p.kv_lens = batch.device.kv_lens;
  p.q_indptr = batch.device.q_indptr;
  p.num_requests = batch.num_reqs;
  p.page_size = batch.page_size;
  p.page_shift = page_shift_of(batch.page_size);
  return p;
}

cuda::MlaParams pool_of(const GpuLayerCall& call) {
  const KvPoolView pool = call.cache.k(call.layer);
  const int element_bytes = kv_format_bits(pool.format) / 8;
  cuda::MlaParams p = requests_of(call.batch);
  p.kv = pool.data;
  p.page_stride_bytes = pool.page_stride * element_bytes;
  p.token_stride_bytes = pool.token_stride * element_bytes;
  p.kv_scale = pool.head_scales;
  return p;
}

cuda::MlaChunk chunk_at(int32_t* ints, int requests, int page_stride) {
  cuda::MlaChunk chunk;
  chunk.begins = ints;
  chunk.kv_lens = chunk.begins + requests;
  chunk.first_rows = chunk.kv_lens + requests;
  chunk.page_table = chunk.first_rows + requests + 1;
  chunk.page_table_stride = page_stride;
  return chunk;
}

}  // namespace

LatentPrefillShape GpuLatentPrefill::shape() const {
  const LatentConfig& dims = spec_.dims;
  return {.num_heads = spec_.num_heads,
          .rank = dims.kv_rank,
          .nope_dim = dims.nope_dim,
          .rope_dim = dims.rope_dim,
          .v_dim = dims.v_dim,
          .page_tokens = cuda::kExpandedPageTokens,
          .capacity_rows = capacity_rows_,
          .form = form_,
          .expands_prefixes = expands_prefixes_,
          .measured = &measured_};
}

Status GpuLatentPrefill::reserve(const LatentSpec& spec, DType dtype, int64_t tokens, GpuWorkspace& workspace) {
  spec_ = spec;
  dtype_ = dtype;
  if (!has_kernels(shape(), dtype)) return {};
  WW_CUDA_RETURN_IF_ERROR(read_multiprocessor_count(num_sms_), "prompts of latent attention");
  constexpr int64_t kPage = cuda::kExpandedPageTokens;
  const int64_t rows = (tokens + kPage - 1) / kPage * kPage + kSpareRows;
  const size_t element = dtype_info(dtype).block_bytes;
  workspace.get(latent_, rows * spec.dims.kv_rank, element);
  workspace.get(rope_, rows * spec.dims.rope_dim, element);
  workspace.get(expanded_, rows * row_stride(), element);
  workspace.get(other_, tokens * spec.value_dim(), element);
  for (float*& lse : lse_) workspace.get(lse, tokens * spec.num_heads, sizeof(float));
  capacity_rows_ = rows;
  return workspace.status();
}

Status GpuLatentPrefill::start(const ForwardBatch& batch, const AttentionBackend& attention) {
  plan_ = {};
  const bool prompts = batch.mode == ForwardMode::extend || batch.mode == ForwardMode::mixed;
  if (capacity_rows_ == 0 || !prompts || batch.tree_mask_words > 0 || !batch.causal ||
      !attention.caps().mla_chunked_prefix)
    return {};
  plan_ = plan_latent_prefill(shape(), batch.q_indptr, batch.kv_lens);
  if (!plan_.expands) return {};
  WW_RETURN_IF_ERROR(reserve_arrays(batch));
  return make_chunks(batch);
}

Status GpuLatentPrefill::reserve_arrays(const ForwardBatch& batch) {
  page_stride_ = (plan_.max_chunk_tokens + cuda::kExpandedPageTokens - 1) / cuda::kExpandedPageTokens;
  layout_.chunk_ints = int64_t{batch.num_reqs} * (3 + page_stride_) + 1;
  layout_.items_ints = (max_items(batch) + kHeaderItems) * kItemInts;
  const size_t bytes = sizeof(int32_t) * ((1 + plan_.num_chunks) * layout_.chunk_ints + 2 * layout_.items_ints);
  if (arrays_.size_bytes() >= bytes) return {};
  WW_RETURN_IF_ERROR(wait_for_stream(stream_of(batch), "chunks of prompts"));
  WW_ASSIGN_OR_RETURN(arrays_, DeviceBuffer::allocate(bytes + bytes / 2, "chunks of prompts"));
  return {};
}

// The header of the new tokens' tiles, or of those of every chunk of the prefix.
int32_t* GpuLatentPrefill::items(bool fresh) const { return arrays_.as<int32_t>() + (fresh ? 0 : layout_.items_ints); }

Status GpuLatentPrefill::make_chunks(const ForwardBatch& batch) {
  const cuda::MlaParams p = requests_of(batch);
  int32_t* at = arrays_.as<int32_t>() + 2 * layout_.items_ints;
  for (int i = 0; i <= plan_.num_chunks; ++i, at += layout_.chunk_ints) {
    const bool fresh = i == 0;
    const cuda::MlaChunk chunk = chunk_at(at, batch.num_reqs, page_stride_);
    const cuda::MlaChunkRule rule = {.fresh = fresh,
                                     .begin = (i - 1) * plan_.chunk_tokens,
                                     .max_tokens = plan_.chunk_tokens,
                                     .min_q_len = kMinQueryLen};
    WW_CUDA_RETURN_IF_ERROR(cuda::launch_mla_chunk(p, rule, chunk, stream_of(batch)), "chunks of prompts");
    if (i > 1) continue;  // the chunks of a prefix share their tiles
    cuda::PlanInput input;
    input.kv_lens = chunk.kv_lens;
    input.q_indptr = p.q_indptr;
    input.num_requests = batch.num_reqs;
    input.num_kv_heads = spec_.num_heads;
    input.decode_q_len = kMinQueryLen - 1;
    input.head_token_bytes =
        static_cast<int>((spec_.dims.qk_dim() + spec_.dims.v_dim) * dtype_info(dtype_).block_bytes);
    input.section_bytes = kSectionBytes;
    input.causal = fresh;
    auto* const header = reinterpret_cast<cuda::ExtendHeader*>(items(fresh));
    auto* const list = reinterpret_cast<cuda::ExtendItem*>(header) + kHeaderItems;
    WW_CUDA_RETURN_IF_ERROR(cuda::launch_extend_plan(input, {cuda::kLatentTileRows}, list, header, stream_of(batch)),
                            "attention plan");
  }
  return {};
}

// The chunk's tokens to K and V of every head.
Status GpuLatentPrefill::expand(const GpuLayerCall& call, const GpuLatentWeights& weights, int index) {
  const cudaStream_t stream = stream_of(call.batch);
  const int64_t rows = index == 0 ? plan_.fresh_rows : plan_.chunk_rows;
  const cuda::MlaChunk chunk = chunk_at(arrays_.as<int32_t>() + 2 * layout_.items_ints + index * layout_.chunk_ints,
                                        call.batch.num_reqs, page_stride_);
  const cuda::MlaFormat format = cuda::mla_format_of(call.cache.shape().format);
  const cuda::MlaGather gather = {.begins = chunk.begins,
                                  .indptr = chunk.first_rows,
                                  .counts = chunk.kv_lens,
                                  .rows = latent_,
                                  .rope = rope_,
                                  .max_tokens = static_cast<int>(rows)};
  WW_CUDA_RETURN_IF_ERROR(cuda::launch_mla_gather(element_of(dtype_), format, pool_of(call), gather, stream),
                          "latent rows");
  WW_RETURN_IF_ERROR(call.x.gemm().run({.linear = &weights.heads.up, .x = latent_, .rows = rows, .y = expanded_,
                                        .y_dtype = dtype_, .y_stride = row_stride()},
                                       call.x.stream()));
  const cuda::MlaRopeColumns columns = {.rope = rope_,
                                        .k = expanded_,
                                        .rows = rows,
                                        .num_heads = spec_.num_heads,
                                        .head_stride = spec_.dims.qk_dim() + spec_.dims.v_dim,
                                        .column = spec_.dims.nope_dim};
  return cuda_status(cuda::launch_mla_rope_columns(columns, stream), "latent rows");
}

Status GpuLatentPrefill::attend(const GpuLayerCall& call, const GpuLatentQueries& q, int index,
                                const Target& target) const {
  const ForwardBatch& batch = call.batch;
  const bool fresh = index == 0;
  const cuda::MlaChunk chunk = chunk_at(arrays_.as<int32_t>() + 2 * layout_.items_ints + index * layout_.chunk_ints,
                                        batch.num_reqs, page_stride_);
  cuda::AttentionParams p;
  p.q = q.data;
  p.q_token_stride = q.stride;
  p.out = target.out;
  p.out_token_stride = spec_.value_dim();
  p.lse = target.lse;
  p.k = expanded_;
  p.v = static_cast<const std::byte*>(expanded_) + spec_.dims.qk_dim() * dtype_info(dtype_).block_bytes;
  p.head_stride = spec_.dims.qk_dim() + spec_.dims.v_dim;
  p.token_stride = row_stride();
  p.page_stride = cuda::kExpandedPageTokens * p.token_stride;
  p.page_table = chunk.page_table;
  p.page_table_stride = page_stride_;
  p.kv_lens = chunk.kv_lens;
  p.q_indptr = batch.device.q_indptr;
  p.num_requests = batch.num_reqs;
  p.num_tokens = batch.num_tokens;
  p.num_q_heads = p.num_kv_heads = spec_.num_heads;
  p.page_size = cuda::kExpandedPageTokens;
  p.page_shift = page_shift_of(p.page_size);
  p.decode_q_len = kMinQueryLen - 1;
  p.causal = fresh;
  p.scale = spec_.scale;
  cuda::ExtendLaunch launch;
  launch.layout.tile_rows = cuda::kLatentTileRows;
  launch.work.header = reinterpret_cast<cuda::ExtendHeader*>(items(fresh));
  launch.work.items = reinterpret_cast<const cuda::ExtendItem*>(launch.work.header) + kHeaderItems;
  launch.max_items = static_cast<int>(max_items(batch));
  launch.num_sms = num_sms_;
  const auto element = dtype_ == DType::f16 ? cuda::ElementType::f16 : cuda::ElementType::bf16;
  return cuda_status(cuda::sm90_latent_extend(element, p, launch, stream_of(batch)), "prompts of latent attention");
}

Status GpuLatentPrefill::forward(const GpuLayerCall& call, const GpuLatentWeights& weights, const GpuLatentQueries& q,
                                 void* values) {
  const cudaStream_t stream = stream_of(call.batch);
  const int64_t row_heads = int64_t{call.batch.num_tokens} * spec_.num_heads;
  for (int i = 0; i <= plan_.num_chunks; ++i) {
    const bool fresh = i == 0;
    const Target target = {fresh ? values : other_, plan_.num_chunks > 0 ? lse_[fresh ? 0 : 1] : nullptr};
    // Rows that no tile is for keep NaN, of which the merge makes nothing.
    if (!fresh) WW_RETURN_IF_ERROR(fill_async(target.lse, 0xff, row_heads * sizeof(float), stream, "merging chunks"));
    WW_RETURN_IF_ERROR(expand(call, weights, i));
    WW_RETURN_IF_ERROR(attend(call, q, i, target));
    if (fresh) continue;
    const cuda::MlaMerge merge = {
        .out = values, .lse = lse_[0], .other = other_, .other_lse = target.lse, .row_heads = row_heads};
    WW_CUDA_RETURN_IF_ERROR(cuda::launch_mla_merge(element_of(dtype_), merge, stream), "merging chunks");
  }
  return {};
}

}  // namespace warpweave
