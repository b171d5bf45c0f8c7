// KvCache: the memory behind the pages: K and V of every layer, [pages, page_size, kv_heads, dim].
//
// Which page belongs to whom is PagePool's business; this class only stores. Memory is reserved at
// create() and committed by the kernel when a page is first written, so resident memory grows with
// use. Not synchronised: writers of different slots may run in parallel, a slot has one writer.
// Errors: create() refuses zero or overflowing shapes, quantised dtypes and failed reservations.
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

class KvCache {
 public:
  static Result<KvCache> create(const KvCacheShape& shape);
  // Bytes that one token takes over all layers; what sizing a pool by memory needs.
  static size_t bytes_per_token(const KvCacheShape& shape);

  KvCache(KvCache&& other) noexcept;
  KvCache& operator=(KvCache&& other) noexcept;
  ~KvCache();

  const KvCacheShape& shape() const { return shape_; }
  size_t size_bytes() const { return size_bytes_; }

  KvPoolView k(int layer) const { return view(layer, k_offset(layer), shape_.k_head_dim); }
  KvPoolView v(int layer) const { return view(layer, v_offset(layer), shape_.v_head_dim); }

  // First element of a slot (page * page_size + offset), all kv heads contiguous: where write_kv
  // puts a token's K or V.
  void* k_slot(int layer, int64_t slot) {
    return base_ + k_offset(layer) + static_cast<size_t>(slot) * k_token_bytes_;
  }
  void* v_slot(int layer, int64_t slot) {
    return base_ + v_offset(layer) + static_cast<size_t>(slot) * v_token_bytes_;
  }

  // Copies `num_tokens` consecutive slots of every layer (copy-on-write of a shared tail page).
  // Both runs stay within one page and do not overlap.
  void copy_tokens(int64_t src_slot, int64_t dst_slot, int num_tokens);

 private:
  KvCache(const KvCacheShape& shape, std::byte* base, size_t size_bytes);
  size_t k_offset(int layer) const { return static_cast<size_t>(layer) * layer_bytes_; }
  size_t v_offset(int layer) const { return k_offset(layer) + k_layer_bytes_; }
  KvPoolView view(int layer, size_t offset, int head_dim) const;

  KvCacheShape shape_;
  std::byte* base_ = nullptr;
  size_t size_bytes_ = 0;
  size_t k_token_bytes_ = 0;
  size_t v_token_bytes_ = 0;
  size_t k_layer_bytes_ = 0;
  size_t layer_bytes_ = 0;
};

}  // namespace warpweave
