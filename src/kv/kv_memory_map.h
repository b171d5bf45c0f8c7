// Where each layer's K and V stand in the memory of a KV cache, the same on the host and on a GPU.
//
// With one group layers follow one another, each with all its pages. With several, pages follow one another, each
// with all layers of a group, so that a page can serve any group; the last page is blank and stays zero.
// Offsets are bytes from the beginning of the memory. Pure numbers; thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kv/cache_layout.h"
#include "kv/kv_pool_view.h"
#include "warpweave/status.h"

namespace warpweave {

struct KvCacheShape {
  int num_layers = 0;  // that keep K/V
  int num_pages = 0;   // that requests can have; a blank one comes on top where a group has a window
  int page_size = 1;   // tokens
  int num_kv_heads = 0;
  int k_head_dim = 0;
  int v_head_dim = 0;  // 0: the layer keeps no V of its own (latent attention reads it out of K)
  KvFormat format = KvFormat::bf16;
  CacheLayout layout = {};  // empty: one group

  bool grouped() const { return layout.num_groups() > 1 || layout.windowed(); }
  int num_groups() const { return layout.groups.empty() ? 1 : layout.num_groups(); }
  int group_of(int layer) const { return layout.groups.empty() ? 0 : layout.places[layer].group; }
  int physical_pages() const { return num_pages + grouped(); }
  int blank_page() const { return grouped() ? num_pages : -1; }
  // Layers of the model, and whether one of them keeps K/V.
  int model_layers() const { return layout.places.empty() ? num_layers : static_cast<int>(layout.places.size()); }
  bool keeps(int layer) const { return row_of(layer) >= 0; }
  int row_of(int layer) const { return layout.places.empty() ? layer : layout.places[layer].index; }
  int layers_per_page() const { return layout.groups.empty() ? num_layers : layout.layers_per_page; }
};

class KvMemoryMap {
 public:
  // A run of one token's bytes that repeats `count` times, `pitch` bytes apart, beginning at `offset`.
  struct TokenRun {
    size_t offset = 0;
    size_t token_bytes = 0;
    size_t pitch = 0;
    int count = 0;
  };
  // All that stands for slot (page, offset in it), in every layer of the page: K, V and their block scales.
  static constexpr int kRegions = 4;
  using TokenRuns = std::array<TokenRun, kRegions>;

  // `align_bytes` is that of each layer's part. Errors: sizes below 1, head dims that fp4_e2m1 cannot block, and
  // sizes past the address space.
  static Result<KvMemoryMap> create(const KvCacheShape& shape, size_t align_bytes);

  const KvCacheShape& shape() const { return shape_; }
  size_t size_bytes() const { return size_bytes_; }
  size_t layer_bytes() const { return layer_bytes_; }  // of one layer with all pages, about
  // Bytes of a page over the layers it holds, block scales included.
  static size_t page_bytes(const KvCacheShape& shape, size_t align_bytes);

  // K (side 0) or V (side 1) of a layer; head scales are left out.
  KvPoolView view(int layer, int side, const std::byte* base) const;
  TokenRuns token_runs(int64_t slot) const;

 private:
  struct Side {
    int head_dim = 0;
    size_t token_bytes = 0;        // of values
    size_t token_scale_bytes = 0;  // of block scales
    size_t offset = 0;             // of layer 0, page 0
    size_t scale_offset = 0;
    size_t page_stride = 0;        // bytes from page to page
    size_t scale_page_stride = 0;
  };
  explicit KvMemoryMap(const KvCacheShape& shape) : shape_(shape) {}
  void lay_out_layers(size_t align_bytes);
  void lay_out_pages(size_t align_bytes);

  KvCacheShape shape_;
  std::array<Side, 2> sides_;
  int rows_ = 0;                   // layers in a page
  size_t layer_pitch_ = 0;         // bytes from layer to layer, of values
  size_t scale_layer_pitch_ = 0;   // and of block scales
  size_t layer_bytes_ = 0;
  size_t size_bytes_ = 0;
};

}  // namespace warpweave
