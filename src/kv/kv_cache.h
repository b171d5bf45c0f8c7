// KvCache: the memory behind the pages: K and V of every layer, [pages, page_size, kv_heads, dim], where
// kv_memory_map.h says.
//
// Which page belongs to whom is PagePool's business; this class only stores. Memory is reserved at
// create() and committed by the kernel when a page is first written, so resident memory grows with
// use: by huge pages, if a layer is large and the kernel has them. Not synchronised: writers of
// different slots may run in parallel, a slot has one writer.
// Under fp4_e2m1 a token has block scales beside its values, in a region of their own per layer.
// Errors: create() refuses zero or overflowing shapes, head dims that fp4_e2m1 cannot block, scales
// that are not positive numbers or do not fit the shape, and failed reservations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kv/kv_memory_map.h"
#include "kv/kv_pool_view.h"
#include "warpweave/status.h"
#include "warpweave/tensor.h"

namespace warpweave {

// The head scales of the fp8 and fp4 formats (kv_pool_view.h), [layers of the model, num_kv_heads] each, or
// empty: all 1. A scale per tensor is the same value for all heads of a layer.
struct KvHeadScales {
  std::vector<float> k;
  std::vector<float> v;
};

class KvCache {
 public:
  // `scales` are left out of the views of the 16- and 32-bit formats.
  static Result<KvCache> create(const KvCacheShape& shape, KvHeadScales scales = {});
  // Bytes of one page over the layers it holds, block scales included; what sizing a pool by memory needs.
  static size_t page_bytes(const KvCacheShape& shape);

  KvCache(KvCache&& other) noexcept;
  KvCache& operator=(KvCache&& other) noexcept;
  ~KvCache();

  const KvCacheShape& shape() const { return map_.shape(); }
  size_t size_bytes() const { return map_.size_bytes(); }
  int group_of(int layer) const { return shape().group_of(layer); }

  // Layers are dense: a page's tokens, their kv heads and a head's elements stand side by side, in
  // the values and in the block scales.
  KvPoolView k(int layer) const { return view(layer, 0, scales_.k); }
  KvPoolView v(int layer) const { return view(layer, 1, scales_.v); }

  // Copies `num_tokens` consecutive slots of all layers of a page (copy-on-write of a shared tail page).
  // Both runs stay within one page and do not overlap.
  void copy_tokens(int64_t src_slot, int64_t dst_slot, int num_tokens);

  // Every byte of a page, in all its layers, values and block scales; for KvCanary.
  void fill_page(int32_t page, std::byte value);
  bool page_is_filled(int32_t page, std::byte value) const;

 private:
  KvCache(KvMemoryMap map, KvHeadScales scales) : map_(std::move(map)), scales_(std::move(scales)) {}
  Status reserve();
  KvPoolView view(int layer, int side, const std::vector<float>& scales) const;
  template <typename Visit>
  bool visit_page(int32_t page, Visit&& visit) const;

  KvMemoryMap map_;
  KvHeadScales scales_;
  std::byte* base_ = nullptr;
};

}  // namespace warpweave
