#include "attention/backends/fa3/kernels/kernels.h"

#include "attention/backends/fa3/caps.h"
#include "attention/backends/fa3/kernels/sm90_numbers.h"
#include "attention/backends/fa3/kernels/sm90_variants.h"
#include "attention/backends/flashinfer/kernels/kernels.h"
#include "attention/cuda/pool_map.h"

namespace warpweave::cuda {
namespace {

bool multiplies_fp8(const KernelShape& shape, const AttentionParams& p, int max_q_len) {
  return shape.kv == KvStorage::e4m3 && p.tree_mask == nullptr &&
         fa3::kFp8Mma.apply(KvFormat::fp8_e4m3, shape.head_dim, p.page_size, max_q_len);
}

bool gathers(const AttentionParams& p) { return box_tokens_of(p.page_size, sm90::kMinBoxTokens) < sm90::kMinBoxTokens; }

bool takes_tall_tiles(const KernelShape& shape, const AttentionParams& p, int max_q_len, Sm90Source source) {
  if (shape.head_dim != 128) return max_q_len >= sm90::kTallTokens;
  constexpr int kBox = sm90::kTallBoxTokensDim128;
  return max_q_len >= sm90::kTallTokensDim128 &&
         (source == Sm90Source::copies || box_tokens_of(p.page_size, kBox) == kBox);
}

bool multiplies_16_bits(const KernelShape& shape, const AttentionParams& p) {
  return shape.kv == KvStorage::same16 && p.tree_mask == nullptr;
}

Sm90Source pools_source(const AttentionParams& p) { return gathers(p) ? Sm90Source::gather : Sm90Source::boxes; }

Sm90Variant fp8_variant(const KernelShape& shape, bool tall) {
  return (shape.element == ElementType::bf16 ? sm90_fp8_bf16 : sm90_fp8_f16)(shape.head_dim, tall);
}

Sm90Variant variant(const KernelShape& shape, Sm90Source source, Sm90Tiling tiling) {
  return (shape.element == ElementType::bf16 ? sm90_bf16 : sm90_f16)(shape.head_dim, source, tiling);
}

Sm90Tiling tiling_of(const KernelShape& shape, const AttentionParams& p, int max_q_len, Sm90Source source) {
  if (takes_tall_tiles(shape, p, max_q_len, source)) return Sm90Tiling::tall;
  return max_q_len <= sm90::kPairTokens ? Sm90Tiling::pairs : Sm90Tiling::usual;
}

Sm90ShortKernel short_kernel(const KernelShape& shape, int tile_rows, const AttentionParams& p) {
  return (shape.element == ElementType::bf16 ? sm90_short_bf16 : sm90_short_f16)(shape.head_dim, tile_rows,
                                                                                 !gathers(p));
}

bool favours_decode(const AttentionParams& p, int rows, int num_sms) {
  return rows <= sm90::kDecodeRows ||
         (rows <= sm90::kManyDecodeRows && p.num_requests * p.num_kv_heads >= sm90::kManyDecodeUnits * num_sms);
}

// Whether the kernel for short requests has the fewer tiles of 128 rows (counted in halves), or the one for prompts,
// which does not split K and V, too few to fill half of the GPU.
bool favours_short(const AttentionParams& p, int rows, int num_sms) {
  if (p.tree_mask != nullptr) return true;
  const int tall_tiles = (rows + sm90::kShortTallRows - 1) / sm90::kShortTallRows;
  const int prompt_tiles = (p.decode_q_len + sm90::kShortTileRows - 1) / sm90::kShortTileRows;
  const int halves = p.num_requests * p.num_kv_heads * (rows <= 64 ? 1 : 2 * tall_tiles);
  const bool pairs = p.decode_q_len <= 64 && p.group % 2 == 0;
  const int prompt_halves = p.num_requests * p.num_q_heads * (pairs ? 1 : 2 * prompt_tiles);
  return prompt_halves < num_sms || 10 * halves <= sm90::kShortTilesOfTen * prompt_halves;
}

}  // namespace

ShortLayout sm90_short_layout(const KernelShape& shape, const AttentionParams& p, int num_sms) {
  if (shape.kv != KvStorage::same16) return {};
  const int rows = p.decode_q_len * p.group;
  if (favours_decode(p, rows, num_sms) || !favours_short(p, rows, num_sms)) return {};
  const bool low = rows <= 64 && shape.head_dim != 256;
  const int consumers = low ? 1 : 2;
  const ShortLayout layout = {64 * consumers, low ? 2 : 1, short_tile_tokens(shape.head_dim, consumers)};
  return short_kernel(shape, layout.tile_rows, p) != nullptr ? layout : ShortLayout{};
}

cudaError_t sm90_short_extend(const KernelShape& shape, const AttentionParams& p, const SplitWork& work,
                              cudaStream_t stream) {
  const Sm90ShortKernel kernel = short_kernel(shape, work.tile_rows, p);
  return kernel != nullptr ? kernel(p, work, stream) : cudaErrorNotSupported;
}

size_t sm90_short_workspace_bytes(int num_sms) {
  return split_workspace_bytes(2 * num_sms, sm90::kShortTallRows / 2, 256);
}

ExtendLayout sm90_extend_layout(const KernelShape& shape, const AttentionParams& p, int max_q_len) {
  if (multiplies_fp8(shape, p, max_q_len)) {
    const Sm90Variant fp8 = fp8_variant(shape, max_q_len >= sm90::kTallFp8Tokens);
    if (fp8.launch != nullptr) return {.tile_rows = fp8.tile_rows, .fp8_mma = true};
  }
  if (!multiplies_16_bits(shape, p)) return sm80_extend_layout(shape, p, max_q_len);
  const Sm90Source source = pools_source(p);
  const Sm90Tiling tiling = tiling_of(shape, p, max_q_len, source);
  ExtendLayout out{.tile_rows = variant(shape, source, tiling).tile_rows};
  if (out.tile_rows == 0) return sm80_extend_layout(shape, p, max_q_len);
  out.pairs = tiling == Sm90Tiling::pairs;
  out.tiles_in_turn = source == Sm90Source::gather;
  out.side_by_side = true;
  out.after_decode = source == Sm90Source::boxes;
  const Sm90Tiling copied = tiling_of(shape, p, max_q_len, Sm90Source::copies);
  const int copied_rows = variant(shape, Sm90Source::copies, copied).tile_rows;
  if (source == Sm90Source::gather || copied_rows > out.tile_rows) {
    out.copied_tile_rows = copied_rows;
    out.copied_before = copied_rows > sm90::kShortTileRows;
    out.min_copy_reads = source == Sm90Source::gather ? sm90::kMinReadsNotGathered : sm90::kMinReadsNotBoxed;
  }
  return out;
}

cudaError_t sm90_extend(const KernelShape& shape, const AttentionParams& p, const ExtendLaunch& launch,
                        cudaStream_t stream) {
  const bool tall = launch.layout.tile_rows > sm90::kShortTileRows;
  if (launch.layout.fp8_mma) {
    return fp8_variant(shape, tall).launch(p, launch.work, launch.max_items, launch.num_sms, stream);
  }
  if (!multiplies_16_bits(shape, p)) return sm80_extend(shape, p, launch, stream);
  const Sm90Source source = launch.work.copies.max_blocks > 0 ? Sm90Source::copies : pools_source(p);
  const Sm90Tiling tiling = tall ? Sm90Tiling::tall : launch.layout.pairs ? Sm90Tiling::pairs : Sm90Tiling::usual;
  const Sm90Variant kernel = variant(shape, source, tiling);
  if (kernel.launch == nullptr) return sm80_extend(shape, p, launch, stream);
  return kernel.launch(p, launch.work, launch.max_items, launch.num_sms, stream);
}

cudaError_t sm90_latent_extend(ElementType element, const AttentionParams& p, const ExtendLaunch& launch,
                               cudaStream_t stream) {
  const Sm90Variant kernel = element == ElementType::bf16 ? sm90_latent_bf16() : sm90_latent_f16();
  if (kernel.tile_rows != kLatentTileRows || p.page_size % kLatentTileRows != 0) return cudaErrorNotSupported;
  return kernel.launch(p, launch.work, launch.max_items, launch.num_sms, stream);
}

}  // namespace warpweave::cuda
