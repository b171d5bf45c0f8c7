#include "attention/backends/fa3/kernels/kernels.h"

#include "attention/backends/fa3/kernels/sm90_variants.h"
#include "attention/backends/flashinfer/kernels/kernels.h"
#include "attention/cuda/tensor_map.h"

namespace warpweave::cuda {
namespace {

// Smaller boxes take the copy engine longer than gathering takes the threads.
constexpr int kMinBoxTokens = 8;

Sm90Variant variant_for(const KernelShape& shape, const AttentionParams& p) {
  if (shape.kv != KvType::same16 || p.tree_mask != nullptr) return {};
  const bool gather = box_tokens_of(p.page_size, kMinBoxTokens) < kMinBoxTokens;
  return (shape.element == ElementType::bf16 ? sm90_bf16 : sm90_f16)(shape.head_dim, gather);
}

}  // namespace

ExtendLayout sm90_extend_layout(const KernelShape& shape, const AttentionParams& p, int max_q_len) {
  const Sm90Variant variant = variant_for(shape, p);
  if (variant.launch == nullptr) return sm80_extend_layout(shape, p, max_q_len);
  return {variant.tile_rows, 1};
}

cudaError_t sm90_extend(const KernelShape& shape, const AttentionParams& p, const ExtendLaunch& launch,
                        cudaStream_t stream) {
  const Sm90Variant variant = variant_for(shape, p);
  if (variant.launch == nullptr) return sm80_extend(shape, p, launch, stream);
  return variant.launch(p, launch.work, launch.max_items, launch.num_sms, stream);
}

}  // namespace warpweave::cuda
