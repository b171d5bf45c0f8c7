// KvCache: the memory behind the pages: K and V of every layer, [pages, page_size, kv_heads, dim].
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
#include <vector>

#include "kv/kv_pool_view.h"
#include "warpweave/status.h"
#include "warpweave/tensor.h"

namespace warpweave {

struct KvCacheShape {
  int num_layers = 0;
  int num_pages = 0;
  int page_size = 1;   // tokens
  int num_kv_heads = 0;
  int k_head_dim = 0;
  int v_head_dim = 0;
  KvFormat format = KvFormat::bf16;
};

// The head scales of the fp8 and fp4 formats (kv_pool_view.h), [num_layers, num_kv_heads] each, or
// empty: all 1. A scale per tensor is the same value for all heads of a layer.
struct KvHeadScales {
  std::vector<float> k;
  std::vector<float> v;
};

class KvCache {
 public:
  // `scales` are left out of the views of the 16- and 32-bit formats.
  static Result<KvCache> create(const KvCacheShape& shape, KvHeadScales scales = {});
  // Bytes that one token takes over all layers, block scales included; what sizing a pool by memory
  // needs.
  static size_t bytes_per_token(const KvCacheShape& shape);

  KvCache(KvCache&& other) noexcept;
  KvCache& operator=(KvCache&& other) noexcept;
  ~KvCache();

  const KvCacheShape& shape() const { return shape_; }
  size_t size_bytes() const { return size_bytes_; }

  // Layers are dense: a page's tokens, their kv heads and a head's elements stand side by side, in
  // the values and in the block scales.
  KvPoolView k(int layer) const { return view(layer, k_, scales_.k); }
  KvPoolView v(int layer) const { return view(layer, v_, scales_.v); }

  // Copies `num_tokens` consecutive slots of every layer (copy-on-write of a shared tail page).
  // Both runs stay within one page and do not overlap.
  void copy_tokens(int64_t src_slot, int64_t dst_slot, int num_tokens);

  // Every byte of a page, in all layers, values and block scales; for KvCanary.
  void fill_page(int32_t page, std::byte value);
  bool page_is_filled(int32_t page, std::byte value) const;

 private:
  // Where K or V of each layer stand: `offset` is layer 0's, the next layers follow at layer_bytes_.
  struct Side {
    int head_dim = 0;
    size_t token_bytes = 0;        // of values
    size_t token_scale_bytes = 0;  // of block scales
    size_t offset = 0;
    size_t scale_offset = 0;
  };

  KvCache(const KvCacheShape& shape, KvHeadScales scales);
  Status reserve();
  KvPoolView view(int layer, const Side& side, const std::vector<float>& scales) const;
  template <typename Visit>
  bool visit_page(int32_t page, Visit&& visit) const;
  void copy(const Side& side, int64_t src_slot, int64_t dst_slot, int num_tokens);

  KvCacheShape shape_;
  KvHeadScales scales_;
  std::byte* base_ = nullptr;
  size_t size_bytes_ = 0;
  size_t layer_bytes_ = 0;
  Side k_;
  Side v_;
};

}  // namespace warpweave
