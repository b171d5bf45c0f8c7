#include "attention/cuda/paged_backend.h"

#include <algorithm>
#include <cassert>

#include "attention/batch_check.h"
#include "base/log.h"
#include "device/cuda/compute_capability.h"
#include "device/cuda/copy.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/current_device.h"
#include "device/cuda/stream.h"
#include "device/cuda/tensor_map.h"

namespace warpweave::cuda {
namespace {

// The worklist's header stands before its items, in the room of this many.
constexpr int kHeaderItems = sizeof(ExtendHeader) / sizeof(ExtendItem);
static_assert(sizeof(ExtendHeader) % sizeof(ExtendItem) == 0);

// Bounds over all decode layouts: CTAs an SM, and floats of one partial result.
constexpr int kMaxCtasPerSm = 4;
constexpr int kMaxPartialFloats = 16 * 256;
constexpr int kMaxPartialRows = 32;
constexpr size_t kMinHeadDim = 64;

// With fewer requests than this, kv heads taken in pairs leave too little to hide latencies behind.
constexpr int kHeadPairRequests = 16;
// The same where TMA brings K and V of up to so many q heads (8x8192 gains 14 %, 8x2048 loses 1 to 6 %).
constexpr int kBoxedHeadPairRequests = 8;
constexpr int kBoxedGroup = 4;

// Decode: the last worker of a pair merges its pieces by itself and reads 16 at once; more cost it the time of a tile.
constexpr int kPairPiecesATile = 17;

// The most memory for copies of K and V.
constexpr int64_t kMaxCopyBytes = int64_t{768} << 20;

// Fixed splits: long enough that merging costs little, short enough to spread one long request.
constexpr int kSplitTokens = 1024;
constexpr size_t kFixedPartialFloats = size_t{16} << 20;
constexpr int kFixedCounters = 16384;

KernelShape shape_of(const AttentionCall& call) {
  KernelShape shape;
  shape.element = call.q_dtype == DType::f16 ? ElementType::f16 : ElementType::bf16;
  shape.head_dim = call.head_dim;
  const int64_t pair = 2 * call.head_dim;
  shape.head_pairs = call.num_kv_heads % 2 == 0 && call.k.head_stride == call.head_dim &&
                     call.k.token_stride % pair == 0 && call.k.page_stride % pair == 0;
  if (call.k.format == KvFormat::fp8_e4m3) shape.kv = KvStorage::e4m3;
  if (call.k.format == KvFormat::fp8_e5m2) shape.kv = KvStorage::e5m2;
  if (call.k.format == KvFormat::fp4_e2m1) shape.kv = KvStorage::e2m1;
  return shape;
}

AttentionParams params_of(const ForwardBatch& batch, const AttentionCall& call) {
  assert(call.head_dim == call.v_head_dim && call.q_dtype == call.out_dtype);
  assert(call.k.page_stride == call.v.page_stride && call.k.token_stride == call.v.token_stride &&
         call.k.head_stride == call.v.head_stride);
  AttentionParams p;
  p.q = call.q;
  p.q_token_stride = call.q_token_stride;
  p.out = call.out;
  p.out_token_stride = call.out_token_stride;
  p.lse = call.lse;
  p.k = call.k.data;
  p.v = call.v.data;
  p.page_stride = call.k.page_stride;
  p.token_stride = call.k.token_stride;
  p.head_stride = call.k.head_stride;
  p.k_head_scales = call.k.head_scales;
  p.v_head_scales = call.v.head_scales;
  p.k_block_scales = call.k.block_scales;
  p.v_block_scales = call.v.block_scales;
  p.sinks = call.sinks;
  p.page_table = batch.device.page_table;
  p.page_table_stride = batch.page_table_stride;
  p.kv_lens = batch.device.kv_lens;
  p.q_indptr = batch.device.q_indptr;
  p.positions = batch.device.positions;
  p.tree_mask = batch.tree_mask_words > 0 ? batch.device.tree_mask : nullptr;
  p.tree_mask_words = batch.tree_mask_words;
  p.num_requests = batch.num_reqs;
  p.num_tokens = batch.num_tokens;
  p.num_q_heads = call.num_q_heads;
  p.num_kv_heads = call.num_kv_heads;
  p.group = call.num_q_heads / call.num_kv_heads;
  p.page_size = batch.page_size;
  p.page_shift = page_shift_of(batch.page_size);
  p.window_left = call.window_left;
  p.earlier_kv_settled = call.earlier_kv_settled;
  p.causal = batch.causal;
  p.scale = call.scale;
  p.softcap = call.logit_softcap;
  return p;
}

// Of an element, without block scales.
int kv_bits(KvStorage kv) { return kv == KvStorage::same16 ? 16 : kv == KvStorage::e2m1 ? 4 : 8; }

int head_token_bytes(const KernelShape& shape) { return 2 * shape.head_dim * kv_bits(shape.kv) / 8; }

PlanInput plan_input(const AttentionParams& p, const KernelShape& shape) {
  PlanInput input;
  input.kv_lens = p.kv_lens;
  input.q_indptr = p.q_indptr;
  input.num_requests = p.num_requests;
  input.num_kv_heads = p.num_kv_heads;
  input.window_left = p.window_left;
  input.decode_q_len = p.decode_q_len;
  input.head_token_bytes = head_token_bytes(shape);
  input.causal = p.causal;
  return input;
}

// The plan made for `key`, else a free place, else one to make anew.
template <class Plans, class Key>
auto& place_of(Plans& plans, const Key& key) {
  for (auto& plan : plans) {
    if (!plan.made || plan.key == key) return plan;
  }
  return plans.back();
}

cudaStream_t stream_of(const ForwardBatch& batch) { return static_cast<cudaStream_t>(batch.device.stream); }

}  // namespace

Status PagedCudaBackend::prepare() {
  if (num_sms_ > 0) return {};
  WW_ASSIGN_OR_RETURN(const int sms, multiprocessors("attention"));
  dependent_launch_ = current_compute_capability() >= 90;
  const size_t workers = static_cast<size_t>(sms) * kMaxCtasPerSm;
  const size_t partials = 2 * static_cast<size_t>(sms) * 2;
  const size_t out_floats = deterministic_ ? kFixedPartialFloats : partials * kMaxPartialFloats;
  const size_t rows = deterministic_ ? kFixedPartialFloats / kMinHeadDim : partials * kMaxPartialRows;
  const size_t counters = deterministic_ ? size_t{kFixedCounters} : workers;
  WW_ASSIGN_OR_RETURN(partial_out_, DeviceBuffer::allocate(out_floats * 4, "attention partials"));
  WW_ASSIGN_OR_RETURN(partial_max_sum_, DeviceBuffer::allocate(rows * 8, "attention partials"));
  WW_ASSIGN_OR_RETURN(counters_, DeviceBuffer::allocate(counters * 4, "attention counters"));
  for (DecodePlan& plan : decode_plans_) {
    WW_ASSIGN_OR_RETURN(plan.workers, DeviceBuffer::allocate(workers * sizeof(DecodeWorker), "attention plan"));
  }
  if (kernels_.short_layout != nullptr && !deterministic_) {
    WW_ASSIGN_OR_RETURN(short_workspace_,
                        DeviceBuffer::allocate(kernels_.short_workspace_bytes(sms), "attention partials"));
    const size_t cuts_bytes = workers * sizeof(SplitCut);
    WW_ASSIGN_OR_RETURN(short_cuts_, DeviceBuffer::allocate(cuts_bytes, "attention counters"));
    WW_RETURN_IF_ERROR(fill_now(short_cuts_.as<void>(), 0, cuts_bytes, "attention counters"));
    for (ShortPlan& plan : short_plans_) {
      WW_ASSIGN_OR_RETURN(plan.workers, DeviceBuffer::allocate(workers * sizeof(DecodeWorker), "attention plan"));
    }
  }
  WW_ASSIGN_OR_RETURN(q_ready_, DeviceBuffer::allocate(sizeof(int32_t), "attention counters"));
  WW_RETURN_IF_ERROR(fill_now(counters_.as<void>(), 0, counters * 4, "attention counters"));
  WW_RETURN_IF_ERROR(fill_now(q_ready_.as<void>(), 0, sizeof(int32_t), "attention counters"));
  num_sms_ = sms;
  return {};
}

Status PagedCudaBackend::init_forward_metadata(const ForwardBatch& batch) {
  WW_RETURN_IF_ERROR(prepare());
  if (!batch.q_indptr.empty()) WW_RETURN_IF_ERROR(check_batch(batch));
  forget_plans();
  capturing_ = false;
  return {};
}

Status PagedCudaBackend::forward_decode(const ForwardBatch& batch, const AttentionCall& call) {
  const KernelShape shape = shape_of(call);
  const AttentionParams p = params_of(batch, call);
  if (deterministic_) return run_fixed(batch, shape, p, {1, true});
  if (kernels_.decode_layout(shape, p.group, false).rows > 0) {
    WW_ASSIGN_OR_RETURN(const PlannedDecode planned, plan_decode(batch, shape, p, 1, num_sms_));
    return launch_decode(batch, planned);
  }
  // A kv head with more q heads than the decode kernel takes.
  return run_extend(batch, shape, p, kernels_.extend_layout(shape, p, 1), {.tile_sms = num_sms_});
}

Status PagedCudaBackend::forward_extend(const ForwardBatch& batch, const AttentionCall& call) {
  const KernelShape shape = shape_of(call);
  const AttentionParams p = params_of(batch, call);
  if (batch.num_tokens == 0) return {};
  if (deterministic_ && p.tree_mask != nullptr) return run_fixed_tree(batch, shape, p);
  if (deterministic_) return run_fixed(batch, shape, p, {batch.max_q_len, batch.max_q_len == 1});
  // Decoding requests keep the one-row decode kernel: together with the last few rows of a prompt they would all run
  // the kernel of several rows a request, which takes two to four times as long.
  if (batch.mode == ForwardMode::mixed && kernels_.decode_layout(shape, p.group, false).rows > 0) {
    return forward_mixed(batch, shape, p);
  }
  if (kernels_.short_layout != nullptr) {
    AttentionParams all = p;
    all.decode_q_len = batch.max_q_len;
    const ShortLayout layout = kernels_.short_layout(shape, all, num_sms_);
    if (layout.tile_rows > 0) return run_short(batch, shape, all, layout);
  }
  // Few rows a request: their KV range is split over the GPU, which prefill tiles of 64 rows and more could not fill.
  if (kernels_.decode_layout(shape, batch.max_q_len * p.group, true).rows > 0) {
    WW_ASSIGN_OR_RETURN(const PlannedDecode planned, plan_decode(batch, shape, p, batch.max_q_len, num_sms_));
    return launch_decode(batch, planned);
  }
  return run_extend(batch, shape, p, kernels_.extend_layout(shape, p, batch.max_q_len), {.tile_sms = num_sms_});
}

Status PagedCudaBackend::forward_mixed(const ForwardBatch& batch, const KernelShape& shape, AttentionParams p) {
  p.decode_q_len = 1;
  if (batch.max_q_len <= 1) {
    WW_ASSIGN_OR_RETURN(const PlannedDecode planned, plan_decode(batch, shape, p, 1, num_sms_));
    return launch_decode(batch, planned);
  }
  const ExtendLayout layout = kernels_.extend_layout(shape, p, batch.max_q_len);
  const SmShares shares = shares_of(batch, shape, p, layout);
  WW_ASSIGN_OR_RETURN(PlannedDecode decode, plan_decode(batch, shape, p, 1, shares.decode_sms));
  DecodeWorkspace& work = decode.launch.work;
  if (shares.order == MixedOrder::decode_first) {
    work.others_beside = work.plan_is_older;
    WW_RETURN_IF_ERROR(launch_decode(batch, decode));
    return run_extend(batch, shape, p, layout,
                      {work.others_beside ? shares.order : MixedOrder::apart, shares.tile_sms});
  }
  WW_RETURN_IF_ERROR(run_extend(batch, shape, p, layout, shares));
  if (shares.order == MixedOrder::side_by_side) {
    work.q_ready = q_ready_.as<int32_t>();
    work.q_epoch = q_epoch_;
  }
  return launch_decode(batch, decode);
}

SmShares PagedCudaBackend::shares_of(const ForwardBatch& batch, const KernelShape& shape, const AttentionParams& p,
                                     const ExtendLayout& layout) const {
  const SmShares all = {MixedOrder::apart, num_sms_, num_sms_};
  if (!layout.side_by_side || !dependent_launch_ || batch.q_indptr.empty()) return all;
  // A graph would give the same word at every launch (q_epoch).
  if (capturing_ || may_be_capturing(batch.device.stream)) return all;
  return share_sms(batch, {.num_sms = num_sms_,
                           .tile_rows = layout.tile_rows,
                           .rows_per_token = layout.rows_per_token,
                           .decode_may_be_first = layout.after_decode,
                           .num_q_heads = p.num_q_heads,
                           .num_kv_heads = p.num_kv_heads,
                           .head_dim = shape.head_dim,
                           .head_token_bytes = head_token_bytes(shape),
                           .window_left = p.window_left,
                           .decode_q_len = p.decode_q_len});
}

auto PagedCudaBackend::plan_decode(const ForwardBatch& batch, KernelShape shape, AttentionParams p, int q_len,
                                   int num_sms) -> Result<PlannedDecode> {
  const bool boxed = has_tensor_copies() && copied_in_boxes(p) && q_len == 1 && p.group <= kBoxedGroup;
  shape.head_pairs &= p.num_requests >= (boxed ? kBoxedHeadPairRequests : kHeadPairRequests);
  const int rows = q_len * p.group;
  const bool multi_row = q_len > 1;
  const DecodeLayout layout = kernels_.decode_layout(shape, rows, multi_row);
  assert(layout.rows > 0 && layout.ctas_per_sm * layout.rows * shape.head_dim <= 2 * kMaxPartialFloats);
  assert(layout.ctas_per_sm <= kMaxCtasPerSm && layout.ctas_per_sm * layout.rows <= 2 * kMaxPartialRows);
  p.decode_q_len = q_len;
  const int num_workers = layout.ctas_per_sm * num_sms;
  PlanInput input = weighed_for_decode(plan_input(p, shape));
  input.merged_pieces_a_tile = kPairPiecesATile * p.num_requests;
  input.num_kv_heads /= layout.heads;
  const DecodeKey key = {p.window_left, input.num_kv_heads, num_workers, q_len, planned_batch(batch)};
  DecodePlan& plan = place_of(decode_plans_, key);
  const bool plan_is_older = plan.made && plan.key == key;
  if (!plan_is_older) {
    plan.made = true;
    plan.key = key;
    plan.input = input;
    WW_CUDA_RETURN_IF_ERROR(
        launch_decode_plan(input, plan.workers.as<DecodeWorker>(), num_workers, stream_of(batch)), "decode plan");
  }
  DecodeWorkspace workspace = {plan.workers.as<DecodeWorker>(), partial_out_.as<float>(),
                               partial_max_sum_.as<float>(), counters_.as<int32_t>()};
  workspace.plan_is_older = plan_is_older && dependent_launch_;
  return PlannedDecode{shape, p, {rows, multi_row, workspace, num_workers}};
}

Status PagedCudaBackend::launch_decode(const ForwardBatch& batch, const PlannedDecode& planned) {
  return cuda_status(kernels_.decode(planned.shape, planned.params, planned.launch, stream_of(batch)),
                     "decode attention");
}

Status PagedCudaBackend::run_short(const ForwardBatch& batch, const KernelShape& shape, const AttentionParams& p,
                                   const ShortLayout& layout) {
  const int row_tiles = (p.decode_q_len * p.group + layout.tile_rows - 1) / layout.tile_rows;
  const ShortKey key = {p.window_left, p.num_kv_heads * row_tiles, layout.tile_rows, p.decode_q_len};
  const int num_workers = num_sms_ * layout.ctas_per_sm;
  ShortPlan& plan = place_of(short_plans_, key);
  const bool plan_is_older = plan.made && plan.key == key;
  SplitWork work = split_work_of(short_workspace_.as<void>(), num_workers, layout.tile_rows);
  work.workers = plan.workers.as<DecodeWorker>();
  work.cuts = short_cuts_.as<SplitCut>();  // zero between launches, whatever their layouts
  work.units = key.units;
  work.lockstep = lockstep_heads(key.units, num_workers);
  work.plan_is_older = plan_is_older;
  if (!plan_is_older) {
    plan.made = true;
    plan.key = key;
    PlanInput input = plan_input(p, shape);
    input.num_kv_heads = key.units;
    input.cut_long_pairs = true;
    input.whole_tiles = true;
    input.tile_tokens = layout.tile_tokens;
    WW_CUDA_RETURN_IF_ERROR(
        launch_decode_plan(input, plan.workers.as<DecodeWorker>(), num_workers, stream_of(batch)), "decode plan");
  }
  return cuda_status(kernels_.short_extend(shape, p, work, stream_of(batch)), "extend attention");
}

Status PagedCudaBackend::reserve_fixed(FixedPlan& plan, int pieces) {
  const size_t workers_bytes = static_cast<size_t>(num_sms_) * kMaxCtasPerSm * sizeof(DecodeWorker);
  if (plan.workers.size_bytes() == 0) {
    WW_ASSIGN_OR_RETURN(plan.workers, DeviceBuffer::allocate(workers_bytes, "attention plan"));
  }
  if (plan.pieces.size_bytes() >= pieces * sizeof(DecodePiece)) return {};
  const size_t room = static_cast<size_t>(pieces) + pieces / 2;
  outgrown_.push_back(std::exchange(plan.pieces, {}));
  outgrown_.push_back(std::exchange(plan.unit_ends, {}));
  WW_ASSIGN_OR_RETURN(plan.pieces, DeviceBuffer::allocate(room * sizeof(DecodePiece), "attention plan"));
  WW_ASSIGN_OR_RETURN(plan.unit_ends, DeviceBuffer::allocate(room * sizeof(long long), "attention plan"));
  return {};
}

// All decode kernels of one shape sum a row in the same order, whatever number of rows they take, so pieces are as
// large as they can be.
Status PagedCudaBackend::run_fixed(const ForwardBatch& batch, KernelShape shape, AttentionParams p,
                                   const FixedRows& requests) {
  if (p.num_tokens == 0) return {};
  shape.head_pairs = false;
  int rows = std::min(requests.q_len * p.group, kMaxPartialRows / p.group * p.group);
  DecodeLayout layout;
  for (; rows > 0; rows -= p.group) {
    layout = kernels_.decode_layout(shape, rows, rows > p.group);
    if (layout.rows > 0) break;
  }
  assert(rows > 0);  // Caps::deterministic_group
  const int tokens = rows / p.group;
  p.decode_q_len = tokens;
  const int num_workers = layout.ctas_per_sm * num_sms_;
  const size_t slots = kFixedPartialFloats / (static_cast<size_t>(layout.rows) * shape.head_dim);
  const FixedKey key = {p.window_left, p.num_kv_heads, num_workers, tokens,
                        static_cast<int>(std::min<size_t>(slots, kFixedCounters))};
  const cudaStream_t stream = stream_of(batch);
  FixedPlan& plan = place_of(requests.decode ? fixed_decode_plans_ : fixed_extend_plans_, key);
  if (!plan.made || plan.key != key) {
    int pieces = num_fixed_pieces(p.num_tokens, p.num_requests, tokens);
    if (requests.decode) pieces = std::max(pieces, 2 * graph_requests_);
    WW_RETURN_IF_ERROR(reserve_fixed(plan, pieces));
    plan.made = true;
    plan.key = key;
    FixedSplitPlan to_make;
    to_make.tokens_per_piece = tokens;
    to_make.split_tokens = kSplitTokens;
    to_make.max_cut_units = key.max_cut_units;
    to_make.pieces = plan.pieces.as<DecodePiece>();
    to_make.unit_ends = plan.unit_ends.as<long long>();
    to_make.workers = plan.workers.as<DecodeWorker>();
    to_make.num_workers = num_workers;
    WW_CUDA_RETURN_IF_ERROR(launch_fixed_split_plan(plan_input(p, shape), to_make, stream), "decode plan");
  }
  DecodeWorkspace workspace = {plan.workers.as<DecodeWorker>(), partial_out_.as<float>(),
                               partial_max_sum_.as<float>(), counters_.as<int32_t>()};
  workspace.pieces = plan.pieces.as<DecodePiece>();
  workspace.split_tokens = kSplitTokens;
  return cuda_status(kernels_.decode(shape, p, {rows, tokens > 1, workspace, num_workers}, stream), "decode attention");
}

// The blocks of K and V to copy, 0 where that is not worth it; has the memory for them.
Result<int> PagedCudaBackend::copy_blocks(const ForwardBatch& batch, const KernelShape& shape, const AttentionParams& p,
                                          const ExtendLayout& layout) {
  if (layout.copied_tile_rows == 0 || capturing_ || batch.q_indptr.empty() || batch.kv_lens.empty()) return 0;
  int64_t blocks = 0;
  double reads = 0;
  for (int r = 0; r < batch.num_reqs; ++r) {
    const int q_len = batch.q_len(r), kv_len = batch.kv_lens[r];
    if (q_len <= p.decode_q_len) continue;
    const int first = first_visible(kv_len, q_len, p.window_left) / kCopyBlockTokens;
    blocks += (kv_len + kCopyBlockTokens - 1) / kCopyBlockTokens - first;
    const double seen = kv_len - (p.causal ? q_len / 2.0 : 0);  // in the mean
    const int most = p.window_left < 0 ? kv_len : p.window_left + layout.copied_tile_rows;
    const int tiles = (q_len + layout.copied_tile_rows - 1) / layout.copied_tile_rows;
    reads += tiles * p.group * std::min<double>(seen, most) / kCopyBlockTokens;
  }
  const int64_t bytes = blocks * kCopyBlockTokens * shape.head_dim * 2 * p.num_kv_heads * 2;
  if (reads < static_cast<double>(layout.min_copy_reads * blocks) || bytes > kMaxCopyBytes) return 0;
  if (copies_.size_bytes() < static_cast<size_t>(bytes)) {
    WW_RETURN_IF_ERROR(wait_for_stream(stream_of(batch), "copies of K and V"));
    copies_ = {};
    auto grown = DeviceBuffer::allocate(std::min(bytes + bytes / 2, kMaxCopyBytes), "copies of K and V");
    if (!grown.ok()) return 0;  // slower without, but right
    copies_ = std::move(*grown);
  }
  return static_cast<int>(blocks);
}

ExtendCopies PagedCudaBackend::copies_of(const ExtendPlan& plan, const KernelShape& shape,
                                         const AttentionParams& p) const {
  ExtendCopies copies;
  copies.max_blocks = plan.key.copy_blocks;
  if (copies.max_blocks == 0) return copies;
  copies.k = copies_.as<char>();
  copies.v = copies_.as<char>() + int64_t{copies.max_blocks} * kCopyBlockTokens * shape.head_dim * 2 * p.num_kv_heads;
  copies.blocks = plan.copy_lists.as<ExtendCopyBlock>();
  copies.first_blocks = reinterpret_cast<int32_t*>(copies.blocks + copies.max_blocks);
  if (!plan.key.copied_before) copies.ready = copies.first_blocks + p.num_requests;
  return copies;
}

// Before larger memory takes its place.
Status PagedCudaBackend::retire(DeviceBuffer& memory, cudaStream_t stream) {
  if (graph_tokens_ == 0) return wait_for_stream(stream, "extend plan");
  if (memory.size_bytes() > 0) outgrown_.push_back(std::exchange(memory, {}));
  return {};
}

Status PagedCudaBackend::run_extend(const ForwardBatch& batch, const KernelShape& shape,
                                    const AttentionParams& p, ExtendLayout layout, const SmShares& shares) {
  assert(layout.tile_rows > 0);
  const cudaStream_t stream = stream_of(batch);
  WW_ASSIGN_OR_RETURN(const int blocks, copy_blocks(batch, shape, p, layout));
  if (blocks > 0) layout.tile_rows = layout.copied_tile_rows;
  const ExtendKey key = {p.window_left, layout.tile_rows, layout.rows_per_token, p.decode_q_len, p.num_kv_heads,
                         layout.tiles_in_turn && blocks == 0, blocks,
                         blocks > 0 && layout.copied_before};
  ExtendPlan& plan = place_of(extend_plans_, key);
  // Every request may add one partly filled tile to the tiles that its rows fill.
  auto most_items = [&](int64_t tokens, int requests) {
    return tokens * layout.rows_per_token / layout.tile_rows + requests;
  };
  const bool plan_is_older = plan.made && plan.key == key;
  if (!plan_is_older) {
    const int64_t room = most_items(std::max(batch.num_tokens, graph_tokens_),
                                    std::max(batch.num_reqs, graph_requests_));
    const size_t bytes = static_cast<size_t>(room + kHeaderItems) * sizeof(ExtendItem);
    if (plan.items.size_bytes() < bytes) {
      WW_RETURN_IF_ERROR(retire(plan.items, stream));
      WW_ASSIGN_OR_RETURN(plan.items, DeviceBuffer::allocate(bytes + bytes / 2, "attention worklist"));
    }
    const size_t list_bytes = sizeof(ExtendCopyBlock) * blocks + sizeof(int32_t) * (p.num_requests + p.num_kv_heads);
    if (blocks > 0 && plan.copy_lists.size_bytes() < list_bytes) {
      WW_RETURN_IF_ERROR(retire(plan.copy_lists, stream));
      WW_ASSIGN_OR_RETURN(plan.copy_lists, DeviceBuffer::allocate(list_bytes + list_bytes / 2, "attention worklist"));
    }
    plan.made = true;
    plan.key = key;
    PlanInput input = plan_input(p, shape);
    input.tiles_in_turn = key.tiles_in_turn;
    input.copies = copies_of(plan, shape, p);
    WW_CUDA_RETURN_IF_ERROR(
        launch_extend_plan(input, {layout.tile_rows, layout.rows_per_token}, plan.items.as<ExtendItem>() + kHeaderItems,
                           plan.items.as<ExtendHeader>(), stream),
        "extend plan");
  }
  ExtendLaunch launch;
  launch.layout = layout;
  launch.work = {plan.items.as<ExtendItem>() + kHeaderItems, plan.items.as<ExtendHeader>(), copies_of(plan, shape, p)};
  launch.work.beside_predecessor = plan_is_older && shares.order == MixedOrder::decode_first && blocks == 0;
  if (shares.order == MixedOrder::side_by_side) {
    launch.work.q_ready = q_ready_.as<int32_t>();
    launch.work.q_epoch = ++q_epoch_;
  }
  launch.max_items = static_cast<int>(most_items(batch.num_tokens, batch.num_reqs));
  launch.num_sms = shares.tile_sms;
  return cuda_status(kernels_.extend(shape, p, launch, stream), "extend attention");
}

}  // namespace warpweave::cuda
