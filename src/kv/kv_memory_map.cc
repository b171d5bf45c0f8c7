#include "kv/kv_memory_map.h"

#include <cassert>
#include <string>

#include "kv/kv_codec.h"
#include "kv/latent_token.h"

namespace warpweave {
namespace {

size_t align_up(size_t bytes, size_t align) { return (bytes + align - 1) / align * align; }

size_t token_bytes(const KvCacheShape& shape, int head_dim) {
  return static_cast<size_t>(shape.num_kv_heads) * kv_stored_dim(shape.format, head_dim) *
         kv_format_bits(shape.format) / 8;
}

size_t token_scale_bytes(const KvCacheShape& shape, int head_dim) {
  if (shape.format != KvFormat::fp4_e2m1) return 0;
  return static_cast<size_t>(shape.num_kv_heads) * head_dim / kFp4BlockElements;
}

Status check_shape(const KvCacheShape& shape) {
  if (shape.num_layers < 1 || shape.num_pages < 1 || shape.page_size < 1 || shape.num_kv_heads < 1 ||
      shape.k_head_dim < 1 || shape.v_head_dim < 0) {
    return Status::invalid_argument("the KV cache shape has a size below 1");
  }
  const bool latent = shape.num_kv_heads == 1 && shape.k_head_dim == kPackedTokenDim && shape.v_head_dim == 0;
  if (kv_format_is_packed(shape.format) && !latent) {
    return Status::unsupported(
        "--kv-cache-dtype " + std::string(kv_format_name(shape.format)) +
            " is for latent attention of 512 + 64 values a token; use --kv-cache-dtype fp8_e4m3 or auto",
        "--kv-cache-dtype");
  }
  for (const int head_dim : {shape.k_head_dim, shape.v_head_dim}) {
    if (shape.format == KvFormat::fp4_e2m1 && head_dim % kFp4BlockElements != 0) {
      return Status::unsupported(
          "--kv-cache-dtype fp4_e2m1 keeps one scale per 16 elements of a head, and this model's "
          "head dim " + std::to_string(head_dim) +
              " is not a multiple of 16; use --kv-cache-dtype fp8_e4m3 or auto",
          "--kv-cache-dtype");
    }
  }
  return {};
}

}  // namespace

size_t KvMemoryMap::page_bytes(const KvCacheShape& shape, size_t align_bytes) {
  size_t bytes = 0;
  for (const int head_dim : {shape.k_head_dim, shape.v_head_dim}) {
    const size_t values = shape.page_size * token_bytes(shape, head_dim);
    bytes += (shape.grouped() ? align_up(values, align_bytes) : values) +
             shape.page_size * token_scale_bytes(shape, head_dim);
  }
  return bytes * shape.layers_per_page();
}

Result<KvMemoryMap> KvMemoryMap::create(const KvCacheShape& shape, size_t align_bytes) {
  WW_RETURN_IF_ERROR(check_shape(shape));
  // 2^47 bytes is all the address space there is; below it the sums in the layout cannot overflow.
  const __int128 total = static_cast<__int128>(page_bytes(shape, align_bytes)) * shape.physical_pages() +
                         static_cast<__int128>(shape.num_layers) * 4 * align_bytes;
  if (total >= (static_cast<__int128>(1) << 47)) {
    return Status::invalid_argument(
        "a KV cache of " + std::to_string(shape.num_pages) + " pages of " + std::to_string(shape.page_size) +
            " tokens does not fit in the address space; lower --max-total-tokens",
        "--max-total-tokens");
  }
  KvMemoryMap map(shape);
  for (int i = 0; i < 2; ++i) {
    Side& side = map.sides_[i];
    side.head_dim = i == 0 ? shape.k_head_dim : shape.v_head_dim;
    side.token_bytes = token_bytes(shape, side.head_dim);
    side.token_scale_bytes = token_scale_bytes(shape, side.head_dim);
  }
  map.rows_ = shape.layers_per_page();
  if (shape.grouped()) {
    map.lay_out_pages(align_bytes);
  } else {
    map.lay_out_layers(align_bytes);
  }
  return map;
}

void KvMemoryMap::lay_out_layers(size_t align_bytes) {
  const size_t slots = static_cast<size_t>(shape_.physical_pages()) * shape_.page_size;
  for (Side& side : sides_) {
    side.offset = layer_bytes_;
    side.scale_offset = side.offset + align_up(slots * side.token_bytes, align_bytes);
    layer_bytes_ = side.scale_offset + align_up(slots * side.token_scale_bytes, align_bytes);
    side.page_stride = shape_.page_size * side.token_bytes;
    side.scale_page_stride = shape_.page_size * side.token_scale_bytes;
  }
  layer_pitch_ = scale_layer_pitch_ = layer_bytes_;
  size_bytes_ = layer_bytes_ * shape_.num_layers;
}

// Values first, then the block scales as their image, one byte for kFp4BlockElements elements: kernels find a scale
// by its element's index.
void KvMemoryMap::lay_out_pages(size_t align_bytes) {
  const size_t scale_part = kFp4BlockElements * kv_format_bits(shape_.format) / 8;  // bytes of values a scale is for
  for (Side& side : sides_) {
    side.offset = layer_pitch_;
    layer_pitch_ += align_up(shape_.page_size * side.token_bytes, align_bytes);
  }
  const size_t page_bytes = layer_pitch_ * rows_;
  const size_t values_bytes = page_bytes * shape_.physical_pages();
  const bool scaled = shape_.format == KvFormat::fp4_e2m1;
  for (Side& side : sides_) {
    side.page_stride = page_bytes;
    if (!scaled) continue;
    side.scale_offset = values_bytes + side.offset / scale_part;
    side.scale_page_stride = page_bytes / scale_part;
  }
  scale_layer_pitch_ = layer_pitch_ / scale_part;
  size_bytes_ = values_bytes + (scaled ? values_bytes / scale_part : 0);
  layer_bytes_ = size_bytes_ / rows_;
}

KvPoolView KvMemoryMap::view(int layer, int index, const std::byte* base) const {
  assert(layer >= 0 && layer < shape_.model_layers() && shape_.keeps(layer));
  const Side& side = sides_[index];
  const int row = shape_.row_of(layer);
  KvPoolView view;
  view.data = base + side.offset + row * layer_pitch_;
  view.format = shape_.format;
  view.head_stride = kv_stored_dim(shape_.format, side.head_dim);
  view.token_stride = int64_t{shape_.num_kv_heads} * view.head_stride;
  view.page_stride = static_cast<int64_t>(side.page_stride * 8 / kv_format_bits(shape_.format));
  if (side.token_scale_bytes > 0) {
    view.block_scales = reinterpret_cast<const uint8_t*>(base + side.scale_offset + row * scale_layer_pitch_);
  }
  return view;
}

KvMemoryMap::TokenRuns KvMemoryMap::token_runs(int64_t slot) const {
  const size_t page = slot / shape_.page_size, in_page = slot % shape_.page_size;
  TokenRuns runs;
  for (int i = 0; i < 2; ++i) {
    const Side& side = sides_[i];
    runs[2 * i] = {side.offset + page * side.page_stride + in_page * side.token_bytes, side.token_bytes, layer_pitch_,
                   rows_};
    runs[2 * i + 1] = {side.scale_offset + page * side.scale_page_stride + in_page * side.token_scale_bytes,
                       side.token_scale_bytes, scale_layer_pitch_, rows_};
  }
  return runs;
}

}  // namespace warpweave
