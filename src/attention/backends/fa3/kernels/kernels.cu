#include "attention/backends/fa3/kernels/kernels.h"

#include "attention/backends/fa3/caps.h"
#include "attention/backends/fa3/kernels/sm90_variants.h"
#include "attention/backends/flashinfer/kernels/kernels.h"
#include "attention/cuda/tensor_map.h"

namespace warpweave::cuda {
namespace {

// Smaller boxes take the copy engine longer than gathering takes the threads.
constexpr int kMinBoxTokens = 8;

bool multiplies_fp8(const KernelShape& shape, const AttentionParams& p, int max_q_len) {
  return shape.kv == KvType::e4m3 && p.tree_mask == nullptr &&
         fa3::kFp8Products.apply(KvFormat::fp8_e4m3, shape.head_dim, p.page_size, max_q_len);
}

bool gathers(const AttentionParams& p) { return box_tokens_of(p.page_size, kMinBoxTokens) < kMinBoxTokens; }

// Shorter requests leave more rows of tall tiles empty than those gain (200 and 256 tokens -20 %, 1024 +3 %).
constexpr int kTallTokens = 1024;
// With fp8 products (256 tokens -21 %, on a prefix of 2048 -9 %; 512 -2 %, on one of 16384 +8 %, head dim 64 +8 %).
constexpr int kTallFp8Tokens = 512;
// Head dim 128, bf16: 1024 tokens -11 %, 4096 +1 %, 8192 +5 %, 16384 +7 %; in boxes of 16 tokens -3 % at 16384.
constexpr int kTallTokensDim128 = 8192;
constexpr int kTallBoxTokensDim128 = 64;
constexpr int kShortTileRows = 128;

bool takes_tall_tiles(const KernelShape& shape, const AttentionParams& p, int max_q_len, bool fp8_products) {
  if (fp8_products) return max_q_len >= kTallFp8Tokens;
  if (shape.head_dim != 128) return max_q_len >= kTallTokens;
  return max_q_len >= kTallTokensDim128 &&
         box_tokens_of(p.page_size, kTallBoxTokensDim128) == kTallBoxTokensDim128;
}

Sm90Variant variant_for(const KernelShape& shape, const AttentionParams& p, bool fp8_products, bool tall,
                        bool copies = false) {
  if (fp8_products) return (shape.element == ElementType::bf16 ? sm90_fp8_bf16 : sm90_fp8_f16)(shape.head_dim, tall);
  if (shape.kv != KvType::same16 || p.tree_mask != nullptr) return {};
  const Sm90Source source = copies ? Sm90Source::copies : gathers(p) ? Sm90Source::gather : Sm90Source::boxes;
  return (shape.element == ElementType::bf16 ? sm90_bf16 : sm90_f16)(shape.head_dim, source, tall);
}

}  // namespace

ExtendLayout sm90_extend_layout(const KernelShape& shape, const AttentionParams& p, int max_q_len) {
  const bool fp8_products = multiplies_fp8(shape, p, max_q_len);
  const Sm90Variant variant =
      variant_for(shape, p, fp8_products, takes_tall_tiles(shape, p, max_q_len, fp8_products));
  if (variant.launch == nullptr) return sm80_extend_layout(shape, p, max_q_len);
  const bool gather = !fp8_products && gathers(p);
  ExtendLayout out{.tile_rows = variant.tile_rows};
  out.fp8_products = fp8_products;
  out.tiles_in_turn = gather;
  out.takes_copies = gather;
  out.others_beside = !fp8_products;
  out.beside_decode = !fp8_products && !gather;
  return out;
}

cudaError_t sm90_extend(const KernelShape& shape, const AttentionParams& p, const ExtendLaunch& launch,
                        cudaStream_t stream) {
  const Sm90Variant variant = variant_for(shape, p, launch.layout.fp8_products, launch.layout.tile_rows > kShortTileRows,
                                          launch.work.copies.max_blocks > 0);
  if (variant.launch == nullptr) return sm80_extend(shape, p, launch, stream);
  return variant.launch(p, launch.work, launch.max_items, launch.num_sms, stream);
}

}  // namespace warpweave::cuda
