#include "linear/cuda/chunked_kernel.h"

#include <algorithm>
#include <limits>

#include "linear/cuda/prompt_forms.h"

namespace warpweave::linear {
namespace {

constexpr int64_t kAlign = 256;
// How a long prompt is cut into segments (H200, 32 v heads, 128 x 128). KDA's chunks take longer to prepare, on all of the device.
struct SegmentRule {
  int least;          // tokens of a prompt that is cut
  int first;          // tokens of its first segment, before whose scan nothing else runs
  int most;           // tokens of a segment at most
  int next_quarters;  // how many quarters of a segment's tokens the next one has
};
constexpr SegmentRule kSegmentsOfGdn = {8192, 2048, 8192, 5}, kSegmentsOfKda = {32768, 2048, 16384, 6};
SegmentRule segment_rule(const LinearParams& p) { return p.decay_channels > 1 ? kSegmentsOfKda : kSegmentsOfGdn; }

// Pieces of prompts, microseconds (H200, 2 to 16 v heads, 128 x 128): a chunk of a scan; a chunk where ends are sought, and what every
// block of a multiprocessor adds to it; a step of join_pieces; what pieces take besides; what they have to save. Of a token and head,
// preparation, which segments hide: GDN's, KDA's.
constexpr double kScanUs = 1.2, kEndUs = 0.3, kEndOfBlockUs = 0.6, kJoinUs = 1.7, kPiecesUs = 16, kLeastGainOfPieces = 1.05;
constexpr double kPrepareGdnUs = 2e-4, kPrepareKdaUs = 1e-3;

// Cuts the workspace into parts; without memory it only counts.
class Parts {
 public:
  explicit Parts(void* memory) : memory_(static_cast<std::byte*>(memory)) {}
  template <class T>
  T* take(int64_t bytes) {
    std::byte* const part = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += (bytes + kAlign - 1) / kAlign * kAlign;
    return reinterpret_cast<T*>(part);
  }
  size_t used() const { return static_cast<size_t>(used_); }

 private:
  std::byte* memory_;
  int64_t used_ = 0;
};

struct Workspace {
  void* packed;
  Chunk* list;
  int* list_first;
  ChunkWork work;
  size_t bytes;
};

Workspace cut(void* memory, const LinearAttnShape& s, const LinearAttnLimits& limits) {
  Parts parts(memory);
  Workspace w{};
  const int64_t tokens = std::max<int64_t>(1, limits.max_tokens);
  w.packed = parts.take<void>(4 * tokens * s.conv_channels());  // of f32 at most
  w.work.rows = tokens;
  w.work.capacity = linear_chunk_capacity(limits);
  w.list = parts.take<Chunk>(w.work.capacity * static_cast<int64_t>(sizeof(Chunk)));
  w.list_first = parts.take<int>((limits.max_requests + 1) * 4);
  const int64_t head_rows = s.v_heads * tokens;
  w.work.t = parts.take<void>(head_rows * kChunk * 2);
  w.work.p = parts.take<void>(head_rows * kChunk * 2);
  w.work.handover = parts.take<float>(int64_t{s.v_heads} * s.v_dim * s.k_dim * 4);
  w.work.handed_over = parts.take<int>(kMostScanBlocks * 4);
  if (s.k_dim > 64 && s.k_dim <= 128) {
    w.work.pieces.begins = parts.take<float>(int64_t{kMostHeadPieces} * s.v_dim * s.k_dim * 4);
    w.work.pieces.transfers = parts.take<void>(int64_t{kMostHeadPieces} * s.k_dim * s.k_dim * 4);
  }
  if (s.kind == LinearAttnKind::gdn) {
    w.work.factors = parts.take<float>(head_rows * 16);
  } else {
    w.work.kg = parts.take<void>(head_rows * s.k_dim * 2);
    w.work.qg = parts.take<void>(head_rows * s.k_dim * 2);
    w.work.kd = parts.take<void>(head_rows * s.k_dim * 2);
    w.work.decay = parts.take<float>(s.v_heads * w.work.capacity * s.k_dim * 4);
  }
  w.bytes = parts.used();
  return w;
}

LinearAttnLimits limits_of(const LinearAttnCall& call) {
  return {call.batch->num_requests, call.batch->num_tokens, call.conv != nullptr ? call.conv->width : 0};
}

int64_t bytes_of(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

// Whether `elements` neighbours, from every multiple of them, are aligned to their size.
bool aligned(const LinearAttnRows& rows, int elements) {
  return reinterpret_cast<uintptr_t>(rows.data) % (elements * bytes_of(rows.dtype)) == 0 && rows.token_stride % elements == 0 &&
         rows.head_stride % elements == 0;
}

LinearParams params_of(const LinearAttnCall& call) {
  LinearParams p;
  const LinearAttnShape& s = call.shape;
  p.k_heads = s.k_heads, p.v_heads = s.v_heads, p.heads_per_k = s.heads_per_k(), p.k_dim = s.k_dim, p.v_dim = s.v_dim;
  p.decay_channels = s.decay_dim();
  p.batch = *call.batch;
  p.q = call.q, p.k = call.k, p.v = call.v, p.g = call.g, p.beta = call.beta;
  p.has_gates = call.gates != nullptr;
  if (p.has_gates) p.gates = *call.gates;
  p.l2norm = call.l2norm, p.l2norm_eps = call.l2norm_eps, p.scale = call.scale;
  p.state = call.state;
  p.out = call.out, p.out_dtype = call.out_dtype, p.out_token_stride = call.out_token_stride;
  p.out_vectors = reinterpret_cast<uintptr_t>(call.out) % 16 == 0 && call.out_token_stride % 8 == 0;
  return p;
}

RowsParams rows_of(const LinearAttnCall& call, const LinearParams& p) {
  RowsParams rows;
  rows.linear = p;
  rows.has_conv = call.conv != nullptr;
  if (rows.has_conv) rows.conv = *call.conv;
  if (call.norm != nullptr) rows.norm = *call.norm;
  rows.channels = call.shape.conv_channels();
  rows.blocks = static_cast<int>(call.batch->num_tokens / kChunk) + call.batch->num_requests;
  return rows;
}

// Whether conv_step.cuh can make the rows of a decode step.
bool conv_step_takes(const RowsParams& rows) {
  const LinearAttnConv& conv = rows.conv;
  const auto state = reinterpret_cast<uintptr_t>(conv.state), weight = reinterpret_cast<uintptr_t>(conv.weight);
  return conv.width == kConvStepWidth && conv.v_weight.data == nullptr && rows.channels % 4 == 0 && aligned(conv.x, 4) && weight % 16 == 0 &&
         state % (4 * bytes_of(conv.state_dtype)) == 0 && conv.slot_stride % 4 == 0;
}

// q, k and v are the rows that make_rows leaves.
void use_packed(LinearParams& p, const RowsParams& rows) {
  const int of_q = p.k_heads * p.k_dim;
  const auto part = [&](int channel, int dim) {
    auto* const data = static_cast<std::byte*>(rows.packed) + channel * bytes_of(rows.packed_dtype);
    return LinearAttnRows{data, rows.packed_dtype, rows.channels, dim};
  };
  p.q = part(0, p.k_dim), p.k = part(of_q, p.k_dim), p.v = part(2 * of_q, p.v_dim);
}

void set_vectors(LinearParams& p) {
  p.vectors = aligned(p.q, 4) && aligned(p.k, 4);
  if (p.decay_channels > 1) p.vectors = p.vectors && aligned(p.has_gates ? p.gates.a : p.g, 4);
}

// The outputs of drafted nodes before their norm; what was computed.
LinearParams verify_exactly(const LinearAttnCall& call, LinearDevice& device) {
  LinearParams p = params_of(call);
  p.writes_state = false;
  p.batch.accepted = p.batch.checkpoint_indptr = nullptr;
  if (call.conv != nullptr) {
    RowsParams rows = rows_of(call, p);
    rows.packed = cut(call.workspace, call.shape, limits_of(call)).packed;
    rows.packed_dtype = DType::f32;
    device.make_rows(rows, call.stream);
    use_packed(p, rows);
  }
  set_vectors(p);
  device.extend_exactly(p, call.stream);
  return p;
}

}  // namespace

int64_t linear_chunk_capacity(const LinearAttnLimits& limits) {
  return limits.max_tokens / kChunk + limits.max_requests + 1 +
         linear_attn_most_checkpoints(limits.max_tokens, limits.max_requests);
}

const LinearAttnKernelCaps& chunked_kernel_caps(bool wgmma) {
  const auto caps_of = [](std::string_view name) {
    return LinearAttnKernelCaps{.name = name, .gdn = true, .kda = true, .decode = true, .extend = true, .verify_chain = true,
                                .verify_tree = true, .bf16_state = true, .checkpoints = true, .graph_capture = true, .deterministic = true};
  };
  static const LinearAttnKernelCaps of_tile = caps_of("tile"), of_wgmma = caps_of("wgmma");
  return wgmma ? of_wgmma : of_tile;
}

ChunkedLinearKernel::ChunkedLinearKernel(std::unique_ptr<LinearDevice> device, bool wgmma)
    : device_(std::move(device)), wgmma_(wgmma && device_->has_wgmma()) {}

size_t ChunkedLinearKernel::workspace_bytes(const LinearAttnShape& shape, const LinearAttnLimits& limits) const {
  return cut(nullptr, shape, limits).bytes;
}

// Drafted nodes are computed by the recurrence of exact prompts, so that decode has its bits where it is used, too.
void ChunkedLinearKernel::decode(const LinearAttnCall& call) {
  recurrent(call, call.same_bits_drafted ? RecurrentMode::extend : RecurrentMode::decode, /*checkpoints=*/false);
}
void ChunkedLinearKernel::commit(const LinearAttnCall& call) { recurrent(call, RecurrentMode::commit, /*checkpoints=*/false); }
void ChunkedLinearKernel::extend(const LinearAttnCall& call) {
  call.exact ? recurrent(call, RecurrentMode::extend, /*checkpoints=*/true) : chunks(call, true);
}
void ChunkedLinearKernel::target_verify(const LinearAttnCall& call) {
  if (!call.exact && !call.same_bits_drafted) return chunks(call, false);
  if (call.batch->num_requests > 0) norm(call, verify_exactly(call, *device_));
}

void ChunkedLinearKernel::recurrent(const LinearAttnCall& call, RecurrentMode mode, bool checkpoints) {
  if (call.batch->num_requests == 0) return;
  LinearParams p = params_of(call);
  if (mode != RecurrentMode::commit) p.batch.parents = p.batch.accepted = nullptr;
  if (!checkpoints) p.batch.checkpoint_indptr = nullptr;
  if (call.conv != nullptr) {
    RowsParams rows = rows_of(call, p);
    rows.packed = cut(call.workspace, call.shape, limits_of(call)).packed;
    rows.packed_dtype = DType::f32;
    rows.writes_conv_state = true;
    rows.conv_step = mode == RecurrentMode::decode && conv_step_takes(rows);
    device_->make_rows(rows, call.stream);
    use_packed(p, rows);
  }
  set_vectors(p);
  switch (mode) {
    case RecurrentMode::commit: return device_->commit(p, call.stream);
    case RecurrentMode::extend:
      device_->extend_exactly(p, call.stream);
      return norm(call, p);
    case RecurrentMode::decode: break;
  }
  if (call.norm != nullptr) {
    p.has_norm = true;
    p.norm = *call.norm;
    p.norm_vectors = reinterpret_cast<uintptr_t>(p.norm.weight) % 16 == 0 && aligned(p.norm.z, static_cast<int>(16 / bytes_of(p.norm.z.dtype)));
    p.state_settled = call.conv != nullptr;
  }
  device_->decode(p, call.stream);
}

void ChunkedLinearKernel::chunks(const LinearAttnCall& call, bool writes_state) {
  if (call.batch->num_requests == 0) return;
  LinearParams p = params_of(call);
  p.writes_state = writes_state;
  p.batch.accepted = nullptr;
  if (writes_state) p.batch.parents = nullptr;
  else p.batch.checkpoint_indptr = nullptr;
  const Workspace w = cut(call.workspace, call.shape, limits_of(call));
  p.work = w.work;
  const DType from = call.conv != nullptr ? call.conv->x.dtype : call.q.dtype;
  const DType element = from == DType::f16 ? DType::f16 : DType::bf16;
  const bool as_they_are = call.conv == nullptr && call.q.dtype == element && call.k.dtype == element && call.v.dtype == element &&
                           aligned(p.q, 8) && aligned(p.k, 8) && aligned(p.v, 8);
  if (!as_they_are) {
    RowsParams rows = rows_of(call, p);
    rows.packed = w.packed;
    rows.packed_dtype = element;
    rows.writes_conv_state = writes_state;
    device_->make_rows(rows, call.stream);
    use_packed(p, rows);
  }
  set_vectors(p);
  if (verify_few_takes(p)) {
    device_->verify_few(p, element, call.stream);
    p.least_nodes = kFewNodes + 1;
    if (p.batch.max_q_tokens <= kFewNodes) return norm(call, p);
  }
  p.work.grid_chunks = static_cast<int>(call.batch->num_tokens / kChunk) + call.batch->num_requests;
  if (p.batch.checkpoint_indptr != nullptr && !p.batch.checkpoints_end_chunks) {
    p.work.list = w.list;
    p.work.list_first = w.list_first;
    device_->list_chunks(p, call.stream);
  }
  const int in_one = call.any_form && wgmma_ && fused_takes(p) ? heads_in_one_launch(p, device_->multiprocessors()) : 0;
  if (in_one > 0) device_->prepare_and_scan(heads_of(p, 0, in_one), element, call.stream);
  if (in_one < p.v_heads) in_two_launches(heads_of(p, in_one, p.v_heads - in_one), element, call);
  norm(call, p);
}

void ChunkedLinearKernel::in_two_launches(LinearParams p, DType element, const LinearAttnCall& call) {
  const ScanShape shape = scan_shape(p);
  if (call.any_form && cut_in_pieces(p, shape)) {
    device_->prepare(p, element, call.stream);
    device_->piece_ends(p, element, call.stream);
    device_->join_pieces(p, call.stream);
    device_->piece_scan(p, element, call.stream);
  } else if (in_segments(p, shape)) {
    segments(p, element, shape, call.stream);
  } else {
    if (p.batch.num_tokens > 0) device_->prepare(p, element, call.stream);
    device_->scan(p, element, shape, call.stream);
  }
}

// Cuts prompts into pieces where that is faster by reckoning. A launch takes as many rounds as it has blocks for each multiprocessor;
// the search is over how many pieces a prompt has, three at least.
bool ChunkedLinearKernel::cut_in_pieces(LinearParams& p, const ScanShape& shape) const {
  const LinearAttnBatch& batch = p.batch;
  if (!shape.wgmma || shape.groups > 1 || p.k_dim <= 64 || p.k_dim > 128) return false;
  if (!p.writes_state || p.work.list != nullptr) return false;
  const int64_t heads = int64_t{batch.num_requests} * p.v_heads;
  const int of_v = (p.v_dim + 63) / 64, of_k = (p.k_dim + 63) / 64, chunks = (batch.max_q_tokens + kChunk - 1) / kChunk;
  const int64_t places = device_->multiprocessors();
  const auto rounds = [&](int64_t blocks) { return static_cast<double>((blocks + places - 1) / places); };
  const double prepare = (p.decay_channels > 1 ? kPrepareKdaUs : kPrepareGdnUs) * static_cast<double>(batch.num_tokens * p.v_heads);
  double least = kScanUs * chunks * rounds(heads * of_v) / kLeastGainOfPieces - (in_segments(p, shape) ? prepare : 0);
  if (device_->cuts_all_in_pieces()) least = std::numeric_limits<double>::max();
  for (int n = 3; n <= chunks && n * heads <= kMostHeadPieces; ++n) {
    const int of_piece = (chunks + n - 1) / n, pieces = (chunks + of_piece - 1) / of_piece;
    const double ends = kEndUs + kEndOfBlockUs * rounds(heads * (of_v + (pieces - 2) * (of_v + of_k)));
    const double scan = kScanUs * rounds(heads * of_v * pieces);
    const double us = of_piece * (ends + scan) + kJoinUs * (pieces - 2) + kPiecesUs;
    if (us >= least || pieces < 3) continue;
    least = us;
    p.work.pieces.most = pieces, p.work.pieces.chunks = of_piece;
  }
  return p.work.pieces.most > 0;
}

// Where the scan of one request leaves much of the device idle.
bool ChunkedLinearKernel::in_segments(const LinearParams& p, const ScanShape& shape) const {
  const LinearAttnBatch& batch = p.batch;
  if (batch.num_requests != 1 || !p.writes_state) return false;
  const int least = std::min(segment_rule(p).least, device_->least_segmented_tokens());
  // chunk_prepare counts the chunks of a segment from row 0, so the request has to begin in the first of them.
  const bool begins_at_once = batch.num_tokens - batch.max_q_tokens < kChunk;
  const int blocks = p.v_heads * ((p.v_dim + 64 * shape.groups - 1) / (64 * shape.groups));
  return batch.max_q_tokens >= least && begins_at_once && blocks <= kMostScanBlocks && 4 * blocks <= 3 * device_->multiprocessors();
}

void ChunkedLinearKernel::segments(LinearParams& p, DType element, const ScanShape& shape, void* stream) {
  const int tokens = p.batch.max_q_tokens;
  const SegmentRule rule = segment_rule(p);
  int size = rule.first;
  for (int begin = 0; begin < tokens; begin += size, size = std::min(rule.most, size * rule.next_quarters / 4 / kChunk * kChunk)) {
    const int end = std::min(tokens, begin + size);
    p.work.segment = {p.work.segment.index + 1, begin, end, end == tokens};
    p.work.grid_chunks = (end - begin) / kChunk + 1;
    device_->prepare(p, element, stream);
    device_->scan(p, element, shape, stream);
  }
}

void ChunkedLinearKernel::norm(const LinearAttnCall& call, const LinearParams& p) {
  if (call.norm == nullptr) return;
  RowsParams rows = rows_of(call, p);
  rows.norm_from = p.out, rows.norm_from_dtype = p.out_dtype, rows.norm_from_stride = p.out_token_stride;
  rows.linear.out = call.out, rows.linear.out_dtype = call.out_dtype, rows.linear.out_token_stride = call.out_token_stride;
  device_->norm_rows(rows, call.stream);
}

// Two groups share what a block reads of q and k; one each gives twice the blocks, where multiprocessors would idle.
ScanShape ChunkedLinearKernel::scan_shape(const LinearParams& p) const {
  const int64_t pairs = int64_t{p.batch.num_requests} * p.v_heads * ((p.v_dim + 127) / 128);
  return {wgmma_, wgmma_ && p.k_dim <= 128 && p.v_dim > 64 && 2 * pairs > device_->multiprocessors() ? 2 : 1};
}

}  // namespace warpweave::linear
