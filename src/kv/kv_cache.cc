#include "kv/kv_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

namespace warpweave {
namespace {

// Layers start on a cache-line boundary whatever the shape.
constexpr size_t kLayerAlignBytes = 64;

// From this size on a layer asks for huge pages. A first write then commits 2 MB of K and of V, which
// is little of a large layer and would be most of a small one.
constexpr size_t kHugeLayerBytes = size_t{64} << 20;

size_t align_up(size_t bytes) { return (bytes + kLayerAlignBytes - 1) & ~(kLayerAlignBytes - 1); }

size_t token_bytes(const KvCacheShape& shape, int head_dim) {
  return static_cast<size_t>(shape.num_kv_heads) * head_dim * kv_format_bits(shape.format) / 8;
}

size_t token_scale_bytes(const KvCacheShape& shape, int head_dim) {
  if (shape.format != KvFormat::fp4_e2m1) return 0;
  return static_cast<size_t>(shape.num_kv_heads) * head_dim / kFp4BlockElements;
}

Status check_shape(const KvCacheShape& shape) {
  if (shape.num_layers < 1 || shape.num_pages < 1 || shape.page_size < 1 ||
      shape.num_kv_heads < 1 || shape.k_head_dim < 1 || shape.v_head_dim < 1) {
    return Status::invalid_argument("the KV cache shape has a size below 1");
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

Status check_scales(const KvCacheShape& shape, const KvHeadScales& scales) {
  const size_t wanted = static_cast<size_t>(shape.num_layers) * shape.num_kv_heads;
  for (const std::vector<float>* list : {&scales.k, &scales.v}) {
    const std::string name = list == &scales.k ? "k_scale" : "v_scale";
    if (!list->empty() && list->size() != wanted) {
      return Status::invalid_argument("the KV cache needs " + std::to_string(wanted) + " " + name +
                                      " values, one per layer and head, and got " +
                                      std::to_string(list->size()));
    }
    for (const float scale : *list) {
      // The inverse must be finite, too.
      if (!(scale >= std::numeric_limits<float>::min() && scale <= 1e30f)) {
        return Status::invalid_argument("a " + name + " of the KV cache is " + std::to_string(scale) +
                                        "; it must be a positive number");
      }
    }
  }
  return {};
}

}  // namespace

size_t KvCache::bytes_per_token(const KvCacheShape& shape) {
  size_t bytes = 0;
  for (const int head_dim : {shape.k_head_dim, shape.v_head_dim}) {
    bytes += token_bytes(shape, head_dim) + token_scale_bytes(shape, head_dim);
  }
  return static_cast<size_t>(shape.num_layers) * bytes;
}

Result<KvCache> KvCache::create(const KvCacheShape& shape, KvHeadScales scales) {
  WW_RETURN_IF_ERROR(check_shape(shape));
  if (!kv_format_is_scaled(shape.format)) scales = {};
  WW_RETURN_IF_ERROR(check_scales(shape, scales));
  // 2^47 bytes is all the address space there is; below it the sums in the layout cannot overflow.
  const __int128 total = static_cast<__int128>(bytes_per_token(shape)) * shape.page_size *
                             shape.num_pages +
                         static_cast<__int128>(shape.num_layers) * 4 * kLayerAlignBytes;
  if (total >= (static_cast<__int128>(1) << 47)) {
    return Status::invalid_argument(
        "a KV cache of " + std::to_string(shape.num_pages) + " pages of " +
            std::to_string(shape.page_size) + " tokens does not fit in the address space; "
            "lower --max-total-tokens",
        "--max-total-tokens");
  }
  KvCache cache(shape, std::move(scales));
  WW_RETURN_IF_ERROR(cache.reserve());
  return cache;
}

KvCache::KvCache(const KvCacheShape& shape, KvHeadScales scales)
    : shape_(shape), scales_(std::move(scales)) {
  const size_t slots = static_cast<size_t>(shape.num_pages) * shape.page_size;
  for (Side* side : {&k_, &v_}) {
    side->head_dim = side == &k_ ? shape.k_head_dim : shape.v_head_dim;
    side->token_bytes = token_bytes(shape, side->head_dim);
    side->token_scale_bytes = token_scale_bytes(shape, side->head_dim);
    side->offset = layer_bytes_;
    side->scale_offset = side->offset + align_up(slots * side->token_bytes);
    layer_bytes_ = side->scale_offset + align_up(slots * side->token_scale_bytes);
  }
  size_bytes_ = layer_bytes_ * shape.num_layers;
}

Status KvCache::reserve() {
  void* base = mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return Status::resource_exhausted("cannot reserve " + std::to_string(size_bytes_) +
                                      " bytes for the KV cache (" + std::strerror(errno) +
                                      "); lower --max-total-tokens");
  }
  base_ = static_cast<std::byte*>(base);
  // Decoding reads pages in random order, one TLB miss per 4 KB without. A kernel that has no huge
  // pages to give refuses, and the cache works as before.
  if (layer_bytes_ >= kHugeLayerBytes) madvise(base, size_bytes_, MADV_HUGEPAGE);
  return {};
}

KvCache::KvCache(KvCache&& other) noexcept { *this = std::move(other); }

KvCache& KvCache::operator=(KvCache&& other) noexcept {
  std::swap(shape_, other.shape_);
  std::swap(scales_, other.scales_);
  std::swap(base_, other.base_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(layer_bytes_, other.layer_bytes_);
  std::swap(k_, other.k_);
  std::swap(v_, other.v_);
  return *this;
}

KvCache::~KvCache() {
  if (base_ != nullptr) munmap(base_, size_bytes_);
}

KvPoolView KvCache::view(int layer, const Side& side, const std::vector<float>& scales) const {
  assert(layer >= 0 && layer < shape_.num_layers);
  const std::byte* layer_base = base_ + layer * layer_bytes_;
  KvPoolView view;
  view.data = layer_base + side.offset;
  view.format = shape_.format;
  view.head_stride = side.head_dim;
  view.token_stride = int64_t{shape_.num_kv_heads} * side.head_dim;
  view.page_stride = shape_.page_size * view.token_stride;
  if (side.token_scale_bytes > 0) {
    view.block_scales = reinterpret_cast<const uint8_t*>(layer_base + side.scale_offset);
  }
  if (!scales.empty()) view.head_scales = scales.data() + int64_t{layer} * shape_.num_kv_heads;
  return view;
}

void KvCache::copy(const Side& side, int64_t src_slot, int64_t dst_slot, int num_tokens) {
  for (int layer = 0; layer < shape_.num_layers; ++layer) {
    const auto copy_region = [&](size_t offset, size_t token_bytes) {
      std::byte* region = base_ + layer * layer_bytes_ + offset;
      std::memcpy(region + dst_slot * token_bytes, region + src_slot * token_bytes,
                  num_tokens * token_bytes);
    };
    copy_region(side.offset, side.token_bytes);
    copy_region(side.scale_offset, side.token_scale_bytes);
  }
}

void KvCache::copy_tokens(int64_t src_slot, int64_t dst_slot, int num_tokens) {
  assert(num_tokens > 0 && src_slot % shape_.page_size + num_tokens <= shape_.page_size &&
         dst_slot % shape_.page_size + num_tokens <= shape_.page_size);
  copy(k_, src_slot, dst_slot, num_tokens);
  copy(v_, src_slot, dst_slot, num_tokens);
}

// Calls visit(bytes, count) for every stretch of the page until one is false.
template <typename Visit>
bool KvCache::visit_page(int32_t page, Visit&& visit) const {
  const auto slot = static_cast<size_t>(page) * shape_.page_size;
  for (int layer = 0; layer < shape_.num_layers; ++layer) {
    for (const Side* side : {&k_, &v_}) {
      for (const auto& [offset, token_bytes] : {std::pair(side->offset, side->token_bytes),
                                                {side->scale_offset, side->token_scale_bytes}}) {
        std::byte* begin = base_ + layer * layer_bytes_ + offset + slot * token_bytes;
        if (!visit(begin, shape_.page_size * token_bytes)) return false;
      }
    }
  }
  return true;
}

void KvCache::fill_page(int32_t page, std::byte value) {
  visit_page(page, [&](std::byte* begin, size_t count) {
    std::fill_n(begin, count, value);
    return true;
  });
}

bool KvCache::page_is_filled(int32_t page, std::byte value) const {
  return visit_page(page, [&](const std::byte* begin, size_t count) {
    return std::all_of(begin, begin + count, [&](std::byte b) { return b == value; });
  });
}

}  // namespace warpweave
