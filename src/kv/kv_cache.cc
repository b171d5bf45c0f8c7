#include "kv/kv_cache.h"

#include <sys/mman.h>

#include <cassert>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace warpweave {
namespace {

// Layers start on a cache-line boundary whatever the shape.
constexpr size_t kLayerAlignBytes = 64;

size_t align_up(size_t bytes) { return (bytes + kLayerAlignBytes - 1) & ~(kLayerAlignBytes - 1); }

size_t token_bytes(const KvCacheShape& shape, int head_dim) {
  return static_cast<size_t>(shape.num_kv_heads) * head_dim * kv_format_bits(shape.format) / 8;
}

}  // namespace

size_t KvCache::bytes_per_token(const KvCacheShape& shape) {
  return static_cast<size_t>(shape.num_layers) *
         (token_bytes(shape, shape.k_head_dim) + token_bytes(shape, shape.v_head_dim));
}

Result<KvCache> KvCache::create(const KvCacheShape& shape) {
  if (kv_format_bits(shape.format) < 16) {
    return Status::unsupported("kv_cache_dtype " + std::string(kv_format_name(shape.format)) +
                                   " is not supported here; use auto, bf16, f16 or f32",
                               "--kv-cache-dtype");
  }
  if (shape.num_layers < 1 || shape.num_pages < 1 || shape.page_size < 1 ||
      shape.num_kv_heads < 1 || shape.k_head_dim < 1 || shape.v_head_dim < 1) {
    return Status::invalid_argument("the KV cache shape has a size below 1");
  }
  // 2^47 bytes is all the address space there is; below it the sums in view() cannot overflow.
  const __int128 total = static_cast<__int128>(bytes_per_token(shape)) * shape.page_size *
                             shape.num_pages +
                         static_cast<__int128>(shape.num_layers) * 2 * kLayerAlignBytes;
  if (total >= (static_cast<__int128>(1) << 47)) {
    return Status::invalid_argument(
        "a KV cache of " + std::to_string(shape.num_pages) + " pages of " +
            std::to_string(shape.page_size) + " tokens does not fit in the address space; "
            "lower --max-total-tokens",
        "--max-total-tokens");
  }
  const size_t size_bytes = static_cast<size_t>(total);
  void* base = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return Status::resource_exhausted("cannot reserve " + std::to_string(size_bytes) +
                                      " bytes for the KV cache (" + std::strerror(errno) +
                                      "); lower --max-total-tokens");
  }
  return KvCache(shape, static_cast<std::byte*>(base), size_bytes);
}

KvCache::KvCache(const KvCacheShape& shape, std::byte* base, size_t size_bytes)
    : shape_(shape),
      base_(base),
      size_bytes_(size_bytes),
      k_token_bytes_(token_bytes(shape, shape.k_head_dim)),
      v_token_bytes_(token_bytes(shape, shape.v_head_dim)) {
  const size_t slots = static_cast<size_t>(shape.num_pages) * shape.page_size;
  k_layer_bytes_ = align_up(slots * k_token_bytes_);
  layer_bytes_ = k_layer_bytes_ + align_up(slots * v_token_bytes_);
}

KvCache::KvCache(KvCache&& other) noexcept { *this = std::move(other); }

KvCache& KvCache::operator=(KvCache&& other) noexcept {
  std::swap(shape_, other.shape_);
  std::swap(base_, other.base_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(k_token_bytes_, other.k_token_bytes_);
  std::swap(v_token_bytes_, other.v_token_bytes_);
  std::swap(k_layer_bytes_, other.k_layer_bytes_);
  std::swap(layer_bytes_, other.layer_bytes_);
  return *this;
}

KvCache::~KvCache() {
  if (base_ != nullptr) munmap(base_, size_bytes_);
}

KvPoolView KvCache::view(int layer, size_t offset, int head_dim) const {
  assert(layer >= 0 && layer < shape_.num_layers);
  KvPoolView view;
  view.data = base_ + offset;
  view.format = shape_.format;
  view.head_stride = head_dim;
  view.token_stride = int64_t{shape_.num_kv_heads} * head_dim;
  view.page_stride = shape_.page_size * view.token_stride;
  return view;
}

void KvCache::copy_tokens(int64_t src_slot, int64_t dst_slot, int num_tokens) {
  assert(num_tokens > 0 && src_slot % shape_.page_size + num_tokens <= shape_.page_size &&
         dst_slot % shape_.page_size + num_tokens <= shape_.page_size);
  for (int layer = 0; layer < shape_.num_layers; ++layer) {
    std::memcpy(k_slot(layer, dst_slot), k_slot(layer, src_slot), num_tokens * k_token_bytes_);
    std::memcpy(v_slot(layer, dst_slot), v_slot(layer, src_slot), num_tokens * v_token_bytes_);
  }
}

}  // namespace warpweave
