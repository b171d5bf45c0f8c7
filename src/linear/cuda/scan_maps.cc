#include "linear/cuda/scan_maps.h"

#include <algorithm>

#include "device/cuda/tensor_map.h"

namespace warpweave::linear {
namespace {

static_assert(sizeof(ScanMap) == sizeof(CUtensorMap) && alignof(ScanMap) == alignof(CUtensorMap));

struct Tiles {
  const void* data;
  int64_t columns, tokens, heads, token_stride, head_stride;  // strides in elements
};
bool make_map(ScanMap& map, const Tiles& t) {
  const auto bytes = [](int64_t elements) { return static_cast<cuuint64_t>(std::max<int64_t>(16, 2 * elements)); };
  const cuda::TensorShape shape = {
      .dims = {static_cast<cuuint64_t>(t.columns), static_cast<cuuint64_t>(t.tokens), static_cast<cuuint64_t>(t.heads), 1},
      .strides_bytes = {bytes(t.token_stride), bytes(t.head_stride), bytes(t.head_stride * t.heads)}};
  return cuda::make_tensor_map(reinterpret_cast<CUtensorMap*>(map.bytes), t.data, shape, kChunk) == cudaSuccess;
}

}  // namespace

ScanMaps make_scan_maps(const LinearParams& p) {
  ScanMaps maps;
  if (p.k_dim < 64 || p.v_dim < 64) return maps;  // their boxes are narrower, and not swizzled by 128 bytes
  const auto of_rows = [&](const LinearAttnRows& rows, int heads, int dim) {
    return Tiles{rows.data, dim, p.batch.num_tokens, heads, rows.token_stride, rows.head_stride};
  };
  const auto of_work = [&](const void* data, int64_t columns) {
    return Tiles{data, columns, p.work.rows, p.v_heads, columns, p.work.rows * columns};
  };
  maps.usable = make_map(maps.v, of_rows(p.v, p.v_heads, p.v_dim)) && make_map(maps.t, of_work(p.work.t, kChunk)) &&
                make_map(maps.p, of_work(p.work.p, kChunk));
  if (p.decay_channels > 1) {
    // The decays of channels that k has not come with zeros only by cp.async.
    maps.usable = maps.usable && p.k_dim % 64 == 0 && make_map(maps.k, of_work(p.work.kg, p.k_dim)) &&
                  make_map(maps.q, of_work(p.work.qg, p.k_dim)) && make_map(maps.kd, of_work(p.work.kd, p.k_dim));
  } else {
    maps.usable = maps.usable && make_map(maps.k, of_rows(p.k, p.k_heads, p.k_dim)) && make_map(maps.q, of_rows(p.q, p.k_heads, p.k_dim));
  }
  return maps;
}

FusedMaps make_fused_maps(const LinearParams& p) {
  FusedMaps maps{make_scan_maps(p), {}};
  maps.usable = maps.usable && make_map(maps.out, {p.out, p.v_dim, p.batch.num_tokens, p.v_heads, p.out_token_stride, p.v_dim});
  return maps;
}

}  // namespace warpweave::linear
