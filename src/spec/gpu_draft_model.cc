#include "spec/gpu_draft_model.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "device/cuda/copy.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/stream.h"
#include "ops/cuda/gpu_ops.h"
#include "spec/cuda/draft_kernels.h"

namespace warpweave {
namespace {

constexpr std::string_view kWhat = "drafts; lower --max-running-requests or --speculative-eagle-topk";

constexpr auto aligned = GpuDraftModel::aligned;

// All that a pass may bring: seven arrays by row, four by request, and the mask.
size_t arrays_bytes(const GpuDraftLimits& limits) {
  const size_t rows = limits.max_tokens, requests = limits.max_requests + 1;
  const size_t tree_rows = std::max(1, limits.options.topk * std::max(1, limits.options.num_steps - 1));
  const size_t mask_words = limits.options.topk > 1 ? (tree_rows + 31) / 32 : 0;
  return 7 * aligned(rows * sizeof(int32_t)) + 4 * aligned(requests * sizeof(int32_t)) +
         aligned(rows * mask_words * sizeof(uint32_t));
}

}  // namespace

Result<std::unique_ptr<GpuDraftModel>> GpuDraftModel::create(GpuDraftParts parts, const GpuDraftLimits& limits,
                                                             GpuDecoder& target, cudaStream_t stream) {
  std::unique_ptr<GpuDraftModel> out(new GpuDraftModel(std::move(parts), limits, target, stream));
  WW_RETURN_IF_ERROR(out->reserve());
  return out;
}

int64_t GpuDraftModel::head_columns() const {
  if (has_own_head()) return parts_.model->config().vocab_size;
  return parts_.head.linear.empty() ? target_.config().vocab_size : parts_.head.linear.out_features;
}

Status GpuDraftModel::reserve() {
  if (!parts_.tokens.empty()) WW_RETURN_IF_ERROR(reserve_tokens());
  const size_t level_rows = limits_.max_level_rows;
  max_choices_ = limits_.max_level_rows * limits_.options.topk * (limits_.options.num_steps + 1);
  WW_RETURN_IF_ERROR(reserve_chains());
  const size_t all_arrays_bytes = std::max({arrays_bytes(limits_), chain_bytes(), tree_bytes()});
  WW_ASSIGN_OR_RETURN(arrays_, DeviceBuffer::allocate(all_arrays_bytes, kWhat));
  WW_ASSIGN_OR_RETURN(page_table_, DeviceBuffer::allocate(sizeof(int32_t) * limits_.max_requests *
                                                          limits_.max_pages_per_request, kWhat));
  WW_ASSIGN_OR_RETURN(logits_, DeviceBuffer::allocate(level_rows * head_columns() * sizeof(float), kWhat));
  if (limits_.options.topk == 1) {
    const size_t head_rows = std::min<size_t>(level_rows, gpu::kChoiceGemmRows);
    const size_t most_parts = std::max<size_t>(gpu::kTopBlocks, head_rows * gpu::choice_gemm_parts());
    WW_ASSIGN_OR_RETURN(top_parts_, DeviceBuffer::allocate(most_parts * sizeof(gpu::TopPart), kWhat));
  }
  WW_ASSIGN_OR_RETURN(choices_, DeviceBuffer::allocate(2 * max_choices_ * sizeof(DraftChoice), kWhat));
  WW_ASSIGN_OR_RETURN(host_choices_, PinnedBuffer::allocate(2 * max_choices_ * sizeof(DraftChoice), kWhat));
  if (parts_.kind) WW_RETURN_IF_ERROR(reserve_rows());
  WW_RETURN_IF_ERROR(reserve_trees());
  for (Staging& staging : staging_) {
    WW_ASSIGN_OR_RETURN(staging.memory, PinnedBuffer::allocate(all_arrays_bytes, kWhat));
    WW_ASSIGN_OR_RETURN(staging.read, create_event());
  }
  WW_ASSIGN_OR_RETURN(chosen_, create_event());
  return {};
}

// Of a head.
Status GpuDraftModel::reserve_rows() {
  const size_t row_bytes = parts_.model->config().hidden_size * dtype_info(target_.dtype()).block_bytes;
  const size_t rows = round_up_rows(limits_.max_tokens);
  const size_t fc_row_bytes = parts_.model->weights().fc.in_features * dtype_info(target_.dtype()).block_bytes;
  WW_ASSIGN_OR_RETURN(inputs_, DeviceBuffer::allocate(rows * fc_row_bytes, kWhat));
  WW_ASSIGN_OR_RETURN(kept_, DeviceBuffer::allocate((limits_.max_kept_rows + 1) * row_bytes, kWhat));
  if (parts_.kind == DraftHeadKind::eagle) {
    WW_ASSIGN_OR_RETURN(last_rows_, DeviceBuffer::allocate(limits_.max_level_rows * row_bytes, kWhat));
  }
  if (parts_.kind != DraftHeadKind::eagle3) return {};
  WW_ASSIGN_OR_RETURN(beside_, DeviceBuffer::allocate(rows * 2 * row_bytes, kWhat));
  parts_.model->bring_embeddings(beside_.as<void>());
  return {};
}

// What the columns of the logits stand for.
Status GpuDraftModel::reserve_tokens() {
  constexpr std::string_view kTokens = "tokens of drafts";
  const size_t size_bytes = parts_.tokens.size() * sizeof(int32_t);
  WW_ASSIGN_OR_RETURN(tokens_, DeviceBuffer::allocate(size_bytes, kTokens));
  WW_RETURN_IF_ERROR(copy_async(tokens_.as<void>(), parts_.tokens.data(), size_bytes, stream_, kTokens));
  return wait_for_stream(stream_, kTokens);
}

const void* GpuDraftModel::kept(int row) const {
  const size_t row_bytes = parts_.model->config().hidden_size * dtype_info(target_.dtype()).block_bytes;
  return kept_.as<std::byte>() + row * row_bytes;
}

Status GpuDraftModel::copy_pages(std::span<const PageCopy> copies) {
  const int64_t page_size = parts_.cache->shape().page_size;
  for (const PageCopy& copy : copies) {
    WW_RETURN_IF_ERROR(
        parts_.cache->copy_tokens(copy.src_page * page_size, copy.dst_page * page_size, copy.num_tokens, stream_));
  }
  return {};
}

Status GpuDraftModel::start_upload() {
  filled_ = &staging_[next_staging_];
  next_staging_ = (next_staging_ + 1) % static_cast<int>(staging_.size());
  filled_bytes_ = 0;
  return wait_for_event(filled_->read.get(), "an earlier pass of the draft model");
}

Status GpuDraftModel::finish_upload() {
  gpu::StepUpload up;
  up.host_arrays = filled_->memory.as<void>();
  up.arrays = arrays_.as<void>();
  up.size_bytes = static_cast<int64_t>(filled_bytes_);
  gpu::upload_step(up, stream_);
  WW_RETURN_IF_ERROR(launch_status("uploading a pass of the draft model"));
  return record_event(filled_->read.get(), stream_, "a pass of the draft model");
}

// Brings the pass to the GPU and describes it.
Status GpuDraftModel::upload(const DraftPass& pass, ForwardBatch& batch, Arrays& arrays) {
  WW_RETURN_IF_ERROR(start_upload());
  choice_slots_.resize(pass.rows());
  std::transform(pass.input_ids.begin(), pass.input_ids.end(), choice_slots_.begin(),
                 [](int32_t id) { return id < 0 ? (-1 - id) * kWordsOfChoice : -1; });
  const auto ints = [&](const std::vector<int32_t>& values) { return put(std::span<const int32_t>(values)); };
  arrays = {.input_ids = ints(pass.input_ids), .choice_slots = ints(choice_slots_), .requests = ints(pass.requests),
            .features = ints(pass.features), .keep = ints(pass.keep), .reads_target = pass.reads_target};
  batch.input_ids = pass.input_ids;
  batch.positions = pass.positions;
  batch.kv_slots = pass.kv_slots;
  batch.q_indptr = pass.q_indptr;
  batch.kv_lens = pass.kv_lens;
  batch.logits_rows = pass.logits_rows;
  batch.tree_mask = pass.mask;
  batch.tree_mask_words = pass.mask_words();
  batch.device.stream = stream_;
  batch.device.input_ids = arrays.input_ids;
  batch.device.positions = ints(pass.positions);
  batch.device.kv_slots = ints(pass.kv_slots);
  batch.device.q_indptr = ints(pass.q_indptr);
  batch.device.kv_lens = ints(pass.kv_lens);
  batch.device.logits_rows = ints(pass.logits_rows);
  if (!pass.mask.empty()) batch.device.tree_mask = put(std::span<const uint32_t>(pass.mask));
  WW_RETURN_IF_ERROR(finish_upload());

  batch.num_reqs = pass.num_requests();
  batch.num_tokens = pass.rows();
  batch.max_q_len = pass.max_q_len();
  batch.max_kv_len = *std::max_element(pass.kv_lens.begin(), pass.kv_lens.end());
  batch.mode = batch.max_q_len == 1 ? ForwardMode::decode : ForwardMode::draft_extend;
  batch.page_size = page_size();
  batch.page_table_stride = limits_.max_pages_per_request;
  batch.device.page_table = target_table_;
  const bool in_place = pass.requests.back() == pass.num_requests() - 1;  // they ascend
  if (!in_place) {
    gpu::gather_rows({target_table_, arrays.requests, pass.num_requests(),
                     int64_t{limits_.max_pages_per_request} * 4, page_table_.as<void>()}, stream_);
    batch.device.page_table = page_table_.as<int32_t>();
  }
  return {};
}

// The rows that the head's layer begins with (model/draft_head.h).
Status GpuDraftModel::make_head_rows(int64_t rows, const Arrays& arrays) {
  const int64_t hidden = parts_.model->config().hidden_size;
  const bool eagle3 = parts_.kind == DraftHeadKind::eagle3;
  const GpuDraftNorms& norms = parts_.model->weights().draft_norms;
  const NormSpec& rule = parts_.model->spec().norm;
  const void* const features = arrays.reads_target ? target_.hidden() : kept_.as<void>();
  gpu::draft_inputs({.table = target_.weights().embedding,
                     .scale = target_.embedding_scale(),
                     .dtype = target_.dtype(),
                     .ids = arrays.input_ids,
                     .choices = choices_.as<DraftChoice>(),
                     .features = eagle3 ? nullptr : features,
                     .feature_rows = arrays.features,
                     .rows = rows,
                     .cols = hidden,
                     .embedding_norm = norms.embedding.weight.data,
                     .feature_norm = norms.hidden.weight.data,
                     .norm_weight_offset = rule.weight_offset,
                     .norm_eps = rule.eps,
                     .out = eagle3 ? beside_.as<void>() : inputs_.as<void>()},
                    stream_);
  if (!eagle3) return multiply_fc(rows);
  if (arrays.reads_target) {
    const int64_t row_bytes = target_.hidden_width() * static_cast<int64_t>(dtype_info(target_.dtype()).block_bytes);
    gpu::gather_rows({features, arrays.features, rows, row_bytes, inputs_.as<void>()}, stream_);
    return multiply_fc(rows);
  }
  gpu::embedding({.table = features, .dtype = target_.dtype(), .ids = arrays.features, .rows = rows, .cols = hidden,
                  .out = parts_.model->first_rows()}, stream_);
  return {};
}

Status GpuDraftModel::multiply_fc(int64_t rows) {
  const int64_t gemm_rows = rows < kGemmRows ? rows : round_up_rows(rows);  // few shapes, for each costs a search
  return parts_.model->begin_with_fc(inputs_.as<void>(), gemm_rows, stream_);
}

// Keeps the rows that the next pass goes on from; what logits are made of.
HeadRows GpuDraftModel::keep_rows(int64_t wanted, const Arrays& arrays) {
  const DType dtype = target_.dtype();
  const int64_t hidden = parts_.model->config().hidden_size;
  const gpu::RowCodes codes = head_owner().head_codes(wanted, head_copy());
  if (parts_.kind == DraftHeadKind::eagle && codes.codes != nullptr && gpu::code_sums_takes(hidden)) {
    gpu::code_sums({.x = parts_.model->last_rows(),
                    .partials = parts_.model->last_sums(),
                    .rows = wanted,
                    .cols = hidden,
                    .dtype = dtype,
                    .kept = kept_.as<void>(),
                    .keep = arrays.keep,
                    .to = codes},
                   stream_);
    return {codes.codes, wanted, codes.scales};
  }
  gpu::KeepRowsCall call = {.x = parts_.model->last_rows(),
                            .rows = wanted,
                            .cols = hidden,
                            .dtype = dtype,
                            .out = last_rows_.as<void>(),
                            .kept = kept_.as<void>(),
                            .keep = arrays.keep};
  const void* read = last_rows_.as<void>();
  if (parts_.kind == DraftHeadKind::eagle) {
    call.partials = parts_.model->last_sums();
  } else {
    read = parts_.model->normed_last_rows();
  }
  if (parts_.kind == DraftHeadKind::nextn) {  // EAGLE3 goes on from its rows as they are before their norm
    call.x = read;
    call.x_dtype = dtype;
  }
  gpu::keep_rows(call, stream_);
  return {read, wanted};
}

// What logits are made of.
Result<HeadRows> GpuDraftModel::forward_head(const ForwardBatch& batch, const Arrays& arrays) {
  WW_RETURN_IF_ERROR(make_head_rows(batch.num_tokens, arrays));
  WW_RETURN_IF_ERROR(parts_.model->forward({.batch = batch, .cache = *parts_.cache, .attention = *parts_.attention,
                                            .from_rows = true}));
  const auto wanted = static_cast<int64_t>(batch.logits_rows.size());
  return wanted == 0 ? HeadRows{} : keep_rows(wanted, arrays);
}

CopiedHead GpuDraftModel::head_copy() {
  const gpu::GpuLinear& copy = parts_.head.linear;
  return has_own_head() || copy.empty() ? CopiedHead{} : CopiedHead{&copy, &parts_.model->gemm()};
}

Status GpuDraftModel::forward_standalone(const ForwardBatch& batch, const Arrays& arrays) {
  const GpuFutureTokens chosen = {arrays.choice_slots, reinterpret_cast<const int32_t*>(choices_.as<std::byte>())};
  return parts_.model->forward({.batch = batch,
                                .cache = *parts_.cache,
                                .attention = *parts_.attention,
                                .futures = chosen,
                                .logits = logits_.as<float>()});
}

Status GpuDraftModel::run(const DraftPass& pass, const BatchBuilder&) {
  const int wanted = static_cast<int>(pass.logits_rows.size()), choices = wanted * pass.topk;
  if (pass.rows() > limits_.max_tokens || pass.num_requests() > limits_.max_requests ||
      wanted > limits_.max_level_rows || num_choices_ + choices > max_choices_ || drafted_.requests > 0) {
    return Status::internal("a pass of the draft model is larger than the memory for it");
  }
  ForwardBatch batch;
  Arrays arrays;
  WW_RETURN_IF_ERROR(upload(pass, batch, arrays));
  WW_RETURN_IF_ERROR(parts_.attention->init_forward_metadata(batch));
  WW_RETURN_IF_ERROR(choose(batch, arrays, pass.topk, choices_.as<DraftChoice>() + num_choices_));
  num_choices_ += choices;
  return {};
}

// The planned batch's choices, by logits row.
Status GpuDraftModel::choose(const ForwardBatch& batch, const Arrays& arrays, int topk, DraftChoice* out) {
  const auto wanted = static_cast<int>(batch.logits_rows.size());
  const int32_t* const tokens = parts_.tokens.empty() ? nullptr : tokens_.as<int32_t>();
  if (parts_.kind) {
    WW_ASSIGN_OR_RETURN(const HeadRows rows, forward_head(batch, arrays));
    if (rows.count == 0) return launch_status("a pass of the draft model");
    const int parts = limits_.options.topk == 1 ? head_owner().choice_parts(wanted, head_copy()) : 0;
    if (parts > 0) {
      auto* const found = top_parts_.as<gpu::TopPart>();
      WW_RETURN_IF_ERROR(head_owner().head_choices(rows, found, stream_, head_copy()));
      gpu::top_of_parts({.found = found, .rows = wanted, .parts = parts, .tokens = tokens, .out = out}, stream_);
      return launch_status("a pass of the draft model");
    }
    WW_RETURN_IF_ERROR(head_owner().head_logits(rows, logits_.as<float>(), stream_, head_copy()));
  } else {
    WW_RETURN_IF_ERROR(forward_standalone(batch, arrays));
  }
  gpu::top_choices({.logits = logits_.as<float>(),
                    .rows = wanted,
                    .vocab_size = static_cast<int>(head_columns()),
                    .tokens = tokens,
                    .topk = topk,
                    .out = out,
                    .parts = top_parts_.as<gpu::TopPart>()},
                   stream_);
  return launch_status("a pass of the draft model");
}

void GpuDraftModel::forget_choices() {
  num_choices_ = 0;
  drafted_ = {};
}

// Those of single passes, and then of the graph, without its padding.
Result<std::span<const DraftChoice>> GpuDraftModel::take_choices() {
  const int count = std::exchange(num_choices_, 0);
  const ChainShape drafted = std::exchange(drafted_, {});
  if (count == 0 && drafted.requests == 0) return std::span<const DraftChoice>();
  DraftChoice* const host = host_choices_.as<DraftChoice>();
  WW_RETURN_IF_ERROR(copy_async(host, choices_.as<void>(), count * sizeof(DraftChoice), stream_, "reading drafts"));
  const int of_request = drafted.topk * drafted.topk, of_pass = drafted_requests_ * of_request;
  for (int pass = 0; pass < drafted.passes; ++pass) {
    WW_RETURN_IF_ERROR(copy_async(host + count + pass * of_pass,
                                  chain_choices() + pass * drafted.requests * of_request, of_pass * sizeof(DraftChoice),
                                  stream_, "reading drafts"));
  }
  WW_RETURN_IF_ERROR(record_event(chosen_.get(), stream_, "reading drafts"));
  WW_RETURN_IF_ERROR(wait_for_event(chosen_.get(), "a draft on the GPU"));
  return std::span<const DraftChoice>(host, static_cast<size_t>(count + drafted.passes * of_pass));
}

}  // namespace warpweave
