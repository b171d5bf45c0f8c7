#include "kv/kv_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "base/huge_pages.h"

namespace warpweave {
namespace {

// A layer's part starts on a cache-line boundary whatever the shape.
constexpr size_t kAlignBytes = 64;

// From this size on a layer asks for huge pages. A first write then commits 2 MB of K and of V, which
// is little of a large layer and would be most of a small one. Both begin at one, so that few tokens touch no second.
constexpr size_t kHugeLayerBytes = size_t{64} << 20;

size_t alignment(const KvCacheShape& shape) {
  if (shape.grouped() || shape.num_layers < 1) return kAlignBytes;
  const double bytes = static_cast<double>(KvCache::page_bytes(shape)) * shape.num_pages / shape.num_layers;
  return bytes >= static_cast<double>(kHugeLayerBytes) ? kHugePageBytes : kAlignBytes;
}

Status check_scales(const KvCacheShape& shape, const KvHeadScales& scales) {
  const size_t wanted = static_cast<size_t>(shape.model_layers()) * shape.num_kv_heads;
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

size_t KvCache::page_bytes(const KvCacheShape& shape) { return KvMemoryMap::page_bytes(shape, kAlignBytes); }

Result<KvCache> KvCache::create(const KvCacheShape& shape, KvHeadScales scales) {
  WW_ASSIGN_OR_RETURN(KvMemoryMap map, KvMemoryMap::create(shape, alignment(shape)));
  if (!kv_format_is_scaled(shape.format)) scales = {};
  WW_RETURN_IF_ERROR(check_scales(shape, scales));
  KvCache cache(std::move(map), std::move(scales));
  WW_RETURN_IF_ERROR(cache.reserve());
  return cache;
}

Status KvCache::reserve() {
  base_ = map_at_huge_page(size_bytes(), MAP_NORESERVE);
  if (base_ == nullptr) {
    return Status::resource_exhausted("cannot reserve " + std::to_string(size_bytes()) +
                                      " bytes for the KV cache (" + std::strerror(errno) +
                                      "); lower --max-total-tokens");
  }
  // Decoding reads pages in random order, one TLB miss per 4 KB without. A kernel that has no huge
  // pages to give refuses, and the cache works as before.
  if (map_.layer_bytes() >= kHugeLayerBytes) madvise(base_, size_bytes(), MADV_HUGEPAGE);
  return {};
}

KvCache::KvCache(KvCache&& other) noexcept
    : map_(other.map_), scales_(std::move(other.scales_)), base_(std::exchange(other.base_, nullptr)) {}

KvCache& KvCache::operator=(KvCache&& other) noexcept {
  std::swap(map_, other.map_);
  std::swap(scales_, other.scales_);
  std::swap(base_, other.base_);
  return *this;
}

KvCache::~KvCache() {
  if (base_ != nullptr) munmap(base_, size_bytes());
}

KvPoolView KvCache::view(int layer, int side, const std::vector<float>& scales) const {
  KvPoolView view = map_.view(layer, side, base_);
  if (!scales.empty()) view.head_scales = scales.data() + int64_t{layer} * shape().num_kv_heads;
  return view;
}

void KvCache::copy_tokens(int64_t src_slot, int64_t dst_slot, int num_tokens) {
  assert(num_tokens > 0 && src_slot % shape().page_size + num_tokens <= shape().page_size &&
         dst_slot % shape().page_size + num_tokens <= shape().page_size);
  const KvMemoryMap::TokenRuns from = map_.token_runs(src_slot), to = map_.token_runs(dst_slot);
  for (int region = 0; region < KvMemoryMap::kRegions; ++region) {
    for (int row = 0; row < from[region].count; ++row) {
      const size_t pitch = row * from[region].pitch;
      std::memcpy(base_ + to[region].offset + pitch, base_ + from[region].offset + pitch,
                  num_tokens * from[region].token_bytes);
    }
  }
}

// Calls visit(bytes, count) for every stretch of the page until one is false.
template <typename Visit>
bool KvCache::visit_page(int32_t page, Visit&& visit) const {
  for (const KvMemoryMap::TokenRun& run : map_.token_runs(static_cast<int64_t>(page) * shape().page_size)) {
    for (int row = 0; row < run.count; ++row) {
      if (!visit(base_ + run.offset + row * run.pitch, shape().page_size * run.token_bytes)) return false;
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
