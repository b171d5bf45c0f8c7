// Tensors that come through the C interface, checked and brought into the library's own terms.
//
// Every function names the argument in its errors ("q: ..."). Nothing here allocates unless it
// fails.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>

#include "base/threads.h"
#include "kv/kv_pool_view.h"
#include "warpweave/c.h"
#include "warpweave/status.h"
#include "warpweave/tensor.h"

namespace warpweave::capi {

// Rows of heads of contiguous elements, anywhere in memory:
// row r, head h starts at (r / rows_per_batch) * batch_stride + (r % rows_per_batch) * row_stride
// + h * head_stride elements.
struct RowsView {
  char* data = nullptr;
  DType dtype = DType::f32;
  int64_t rows = 0;
  int64_t rows_per_batch = 1;
  int heads = 0;
  int dim = 0;
  int64_t batch_stride = 0, row_stride = 0, head_stride = 0;  // in elements

  // One row stride holds for all rows and heads are dense: what backends read in place.
  bool is_plain() const;
};

enum class Place { cpu, gpu };

struct RowsSpec {
  const char* name;
  int64_t rows;
  int heads;
  int dim;  // 0: the tensor has no last dimension, heads hold one value each
  Place place = Place::cpu;
};

std::optional<DType> dtype_of(const ww_dtype& dtype);
// f32, f16 and bf16 only.
Result<RowsView> read_rows(const ww_tensor* tensor, const RowsSpec& spec);

// Whether elements of so many bits, at the start or a stride away from it, are off the multiples of 16 bytes that
// kernels on a GPU read and write at once.
bool is_misaligned(const void* data, std::initializer_list<int64_t> strides, int bits);

// Copies and converts, on the team when that is worth it. Shapes are equal.
void copy_rows(const RowsView& from, const RowsView& to, ThreadTeam& team);

// Where a head of an f32 tensor starts.
float* floats_at(const RowsView& view, int64_t row, int head);
// One head of a row, as f32.
void read_head(const RowsView& view, int64_t row, int head, float* out);

// Where an f32 array [count] on the GPU is.
Result<const float*> gpu_floats(const ww_tensor* tensor, const char* name, int count);
// A float array of `count` values, or one value for all: written to `out`.
Status read_floats(const ww_tensor* tensor, const char* name, int count, float* out);

struct KvSpec {
  int num_kv_heads;
  int head_dim;
  int v_head_dim;
  int page_size;  // 0: no pages
  KvFormat format;
  Place place = Place::cpu;
  bool latent = false;  // V is the first v_head_dim values of K's rows
};

struct KvView {
  KvPoolView k, v;
  int64_t extent = 0;  // pages, or tokens without pages (page strides are then 0)
};

// `scales`: room for 2 * num_kv_heads floats that live as long as the view; on a GPU it is not
// used.
Result<KvView> read_kv(const ww_kv_cache& cache, const KvSpec& spec, float* scales);
Result<KvFormat> read_kv_format(ww_kv_format format);

}  // namespace warpweave::capi
