#include "attention/cuda/mla/mla_decode.h"

#include <algorithm>

#include "attention/cuda/mla/mla_variants.h"
#include "attention/cuda/mla/sm80_mla_merging.h"
#include "attention/cuda/plan.h"
#include "attention/cuda/pool_map.h"

namespace warpweave::cuda {
namespace {

// Smaller boxes take TMA longer than gathering takes the threads: 33 to 39 ns a box of 64 columns, whatever it holds.
// Two CTAs that share a tile copy half of it each.
constexpr int kMinBoxTokens = 16, kMinPairedBoxTokens = 8;
constexpr int kMaxPageTokensOfBox = 64;

constexpr int kWgmmaTileRows = 64;

SplitWork work_of(const MlaLayout& layout, void* workspace) {
  SplitWork work = split_work_of(workspace, layout.num_workers, layout.tile_rows);
  work.units = layout.row_tiles;
  work.lockstep = layout.lockstep;
  return work;
}

bool takes_boxes(MlaFormat format, const MlaParams& p, bool paired) {
  return format == MlaFormat::same16 &&
         box_tokens_of(p.page_size, kMaxPageTokensOfBox) >= (paired ? kMinPairedBoxTokens : kMinBoxTokens);
}

// Who merges pieces, by what was the fastest (docs/gpu-tuning.md); lengths are not known here. From half as many units
// as CTAs on, a unit is in one or two pieces, which the last CTA merges: a kernel behind attention takes 8 us in most
// steps. Whole pairs have no pieces. Fewer units are in more pieces: of few rows all their CTAs merge them, and of many
// rows a kernel does.
MlaMerging merging_of(const MlaShape& shape, const MlaLayout& layout, const MlaParams& p) {
  constexpr int kFewRows = 16;
  if (shape.family == MlaFamily::mma && sm80_mla_merges(shape.format, p, layout.num_workers)) {
    return MlaMerging::last_cta;
  }
  if (shape.family != MlaFamily::wgmma || shape.format != MlaFormat::same16) return MlaMerging::by_kernel;
  const int units = p.num_requests * layout.row_tiles, nearly_all = layout.num_workers - layout.num_workers / 16;
  if (layout.whole_pairs || 2 * units >= nearly_all) return MlaMerging::last_cta;
  return p.max_q_len * p.num_heads <= kFewRows ? MlaMerging::shares : MlaMerging::by_kernel;
}

MlaKernel kernel_of(const MlaShape& shape, const MlaLayout& layout, const MlaParams& p, MlaMerging merging) {
  if (shape.family == MlaFamily::mma) {
    return (shape.element == MlaElement::bf16 ? sm80_mla_bf16 : sm80_mla_f16)(shape.format, layout.tile_rows);
  }
  const bool paired = layout.lockstep % 2 == 0 && layout.num_workers % 2 == 0;
  const bool boxes = takes_boxes(shape.format, p, paired);
  return (shape.element == MlaElement::bf16 ? sm90_mla_bf16 : sm90_mla_f16)(shape.format, boxes, paired, merging);
}

}  // namespace

// The wgmma kernel takes as long for 16 rows as for 64: it loses for 16 where it widens codes and many requests keep it
// busy, unless they are short, and of 16-bit tokens where the mma.sync kernel has about a request for each of an H200's
// 264 CTAs (docs/gpu-tuning.md).
MlaFamily faster_mla_family(MlaFormat format, const MlaParams& p) {
  constexpr int kMmaRows = 16, kMmaCtas = 264;
  if (p.max_q_len * p.num_heads > kMmaRows) return MlaFamily::wgmma;
  if (format == MlaFormat::same16) {
    const bool one_each = p.num_requests >= kMmaCtas * 7 / 8 && p.num_requests <= kMmaCtas;
    return one_each ? MlaFamily::mma : MlaFamily::wgmma;
  }
  const int mma_requests = mla_is_packed(format) ? 48 : 64;
  return p.num_requests < mma_requests ? MlaFamily::wgmma : MlaFamily::mma;
}

MlaLayout mla_layout(const MlaShape& shape, const MlaParams& p, int num_sms) {
  MlaLayout out;
  const int rows = p.max_q_len * p.num_heads;
  out.tile_rows = shape.family == MlaFamily::wgmma ? kWgmmaTileRows : sm80_mla_tile_rows(rows);
  out.row_tiles = (rows + out.tile_rows - 1) / out.tile_rows;
  out.num_workers = num_sms * (shape.family == MlaFamily::mma ? sm80_mla_ctas_per_sm(rows) : 1);
  if (kernel_of(shape, out, p, MlaMerging::by_kernel) == nullptr) return {};
  out.lockstep = lockstep_heads(out.row_tiles, out.num_workers);
  out.workspace_bytes = split_workspace_bytes(out.num_workers, out.tile_rows, kMlaLatentDim);
  return out;
}

MlaLayout with_whole_pairs(MlaLayout layout) {
  layout.whole_pairs = true;
  layout.lockstep = 1;
  return layout;
}

size_t most_mla_workspace_bytes(int num_sms) {
  size_t most = split_workspace_bytes(num_sms, kWgmmaTileRows, kMlaLatentDim);
  for (const int rows : {1, kWgmmaTileRows}) {
    most = std::max(
        most, split_workspace_bytes(num_sms * sm80_mla_ctas_per_sm(rows), sm80_mla_tile_rows(rows), kMlaLatentDim));
  }
  return most;
}

cudaError_t launch_mla_plan(const MlaLayout& layout, const MlaParams& p, void* workspace, cudaStream_t stream) {
  PlanInput input;
  input.kv_lens = p.kv_lens;
  input.q_indptr = p.q_indptr;
  input.num_requests = p.num_requests;
  input.num_kv_heads = layout.row_tiles;
  input.decode_q_len = p.max_q_len;
  input.causal = p.causal;
  // Measured on an H200, where a tile takes 1.1 us when there are few (docs/gpu-tuning.md).
  constexpr int kMergedPiecesATile = 20;  // of 64 rows
  input.segment_tiles = 3;
  input.merge_tiles = 1;
  input.merged_pieces_a_tile = kMergedPiecesATile * kWgmmaTileRows /
                               std::min(layout.tile_rows, p.max_q_len * p.num_heads);
  input.arrivals = work_of(layout, workspace).arrivals;
  auto* const workers = static_cast<DecodeWorker*>(workspace);
  if (layout.whole_pairs) return launch_whole_pairs_plan(input, workers, layout.num_workers, stream);
  return launch_decode_plan(input, workers, layout.num_workers, stream);
}

cudaError_t launch_mla_decode(const MlaShape& shape, const MlaLayout& layout, const MlaParams& p, void* workspace,
                              bool plan_is_older, cudaStream_t stream) {
  const MlaMerging merging = merging_of(shape, layout, p);
  const MlaKernel kernel = kernel_of(shape, layout, p, merging);
  if (kernel == nullptr || layout.tile_rows == 0) return cudaErrorNotSupported;
  SplitWork work = work_of(layout, workspace);
  work.plan_is_older = plan_is_older;
  const cudaError_t error = kernel(p, work, stream);
  return error == cudaSuccess && merging == MlaMerging::by_kernel ? launch_mla_combine(shape, p, work, stream) : error;
}

}  // namespace warpweave::cuda
