#include "capi/tensor_args.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/float16.h"
#include "ops/elementwise.h"

namespace warpweave::capi {
namespace {

constexpr int64_t kMinParallelElements = 1
                                         << 15;  // below, waking the team costs more than it saves

std::string dtype_text(const ww_dtype& dtype) {
  return fmt::format("DLPack dtype code {} with {} bits and {} lanes", dtype.code, dtype.bits,
                     dtype.lanes);
}

Status invalid(const char* name, std::string_view text) {
  return Status::invalid_argument(fmt::format("{}: {}", name, text), name);
}

struct Rank { int min, max; };

Status check_tensor(const ww_tensor* tensor, const char* name, Rank rank, Place place) {
  if (tensor == nullptr) return invalid(name, "a tensor is needed, this is NULL");
  const int type = tensor->device.device_type;
  const bool here = place == Place::gpu ? type == WW_DEVICE_CUDA
                                        : type == WW_DEVICE_CPU || type == WW_DEVICE_CUDA_HOST;
  if (!here) {
    return Status::unsupported(
        fmt::format(
            "{}: the tensor is on DLPack device type {}; this runs on {}: copy the tensor there",
            name, type, place == Place::gpu ? "the GPU (type 2)" : "the CPU (type 1)"),
        name);
  }
  if (place == Place::gpu && tensor->device.device_id != 0) {
    return Status::unsupported(
        fmt::format("{}: the tensor is on GPU {}; this runs on the first GPU: copy the tensor there", name,
                    tensor->device.device_id),
        name);
  }
  const auto [min_rank, max_rank] = rank;
  if (tensor->ndim < min_rank || tensor->ndim > max_rank) {
    return invalid(name, min_rank == max_rank ? fmt::format("has {} dimensions, must have {}",
                                                            tensor->ndim, min_rank)
                                              : fmt::format("has {} dimensions, must have {} to {}",
                                                            tensor->ndim, min_rank, max_rank));
  }
  if (tensor->shape == nullptr) return invalid(name, "its shape is NULL");
  bool empty = false;
  for (int i = 0; i < tensor->ndim; ++i) {
    if (tensor->shape[i] < 0)
      return invalid(name, fmt::format("dimension {} is {}", i, tensor->shape[i]));
    empty |= tensor->shape[i] == 0;
  }
  if (tensor->data == nullptr && !empty) return invalid(name, "its data is NULL");
  return {};
}

int64_t stride_of(const ww_tensor& tensor, int dimension) {
  if (tensor.strides != nullptr) return tensor.strides[dimension];
  int64_t stride = 1;
  for (int i = tensor.ndim - 1; i > dimension; --i) stride *= tensor.shape[i];
  return stride;
}

char* data_of(const ww_tensor& tensor) {
  return tensor.data == nullptr ? nullptr : static_cast<char*>(tensor.data) + tensor.byte_offset;
}

int64_t element_bytes(DType dtype) { return dtype_info(dtype).block_bytes; }

char* row_at(const RowsView& view, int64_t row, int head) {
  const int64_t element = row / view.rows_per_batch * view.batch_stride +
                          row % view.rows_per_batch * view.row_stride + head * view.head_stride;
  return view.data + element * element_bytes(view.dtype);
}

void convert(const char* from, DType from_type, char* to, DType to_type, int64_t count) {
  if (from_type == to_type) {
    std::copy_n(from, count * element_bytes(from_type), to);
  } else if (to_type == DType::f32) {
    float* out = reinterpret_cast<float*>(to);
    const auto* in = reinterpret_cast<const uint16_t*>(from);
    from_type == DType::bf16 ? bf16_to_f32_row(in, count, out) : f16_to_f32_row(in, count, out);
  } else {
    // Only f32 becomes a 16-bit type: results are computed in f32.
    const float* in = reinterpret_cast<const float*>(from);
    auto* out = reinterpret_cast<uint16_t*>(to);
    to_type == DType::bf16 ? f32_to_bf16_row(in, count, out) : f32_to_f16_row(in, count, out);
  }
}

// The bits that a KV tensor of this format may have.
bool kv_dtype_matches(const ww_dtype& dtype, KvFormat format) {
  const bool byte = dtype.code == WW_DTYPE_UINT && dtype.bits == 8 && dtype.lanes == 1;
  switch (format) {
    case KvFormat::f32: return dtype_of(dtype) == DType::f32;
    case KvFormat::bf16: return dtype_of(dtype) == DType::bf16;
    case KvFormat::f16: return dtype_of(dtype) == DType::f16;
    case KvFormat::fp8_e4m3: return byte || dtype_of(dtype) == DType::fp8_e4m3;
    case KvFormat::fp8_e5m2: return byte || dtype_of(dtype) == DType::fp8_e5m2;
    case KvFormat::fp4_e2m1:
      return byte || (dtype.code == WW_DTYPE_FLOAT4_E2M1FN && dtype.bits == 4 && dtype.lanes == 2);
    case KvFormat::fp8_ds_mla: return byte || dtype_of(dtype) == DType::fp8_e4m3;
    case KvFormat::fp4_mla: return byte;
  }
  return false;
}

// Where the dimensions of a KV tensor stand.
struct KvDimensions {
  int page, token, head, last;
};

KvDimensions kv_dimensions(ww_kv_layout layout, bool paged) {
  if (paged) return layout == WW_KV_HND ? KvDimensions{0, 2, 1, 3} : KvDimensions{0, 1, 2, 3};
  return layout == WW_KV_HND ? KvDimensions{-1, 1, 0, 2} : KvDimensions{-1, 0, 1, 2};
}

// A stride is of no account along a dimension of one element, nor in a tensor of none.
bool strides_differ(const ww_tensor& tensor, int dimension, int64_t stride) {
  const bool empty = std::count(tensor.shape, tensor.shape + tensor.ndim, 0) > 0;
  return !empty && tensor.shape[dimension] > 1 && stride_of(tensor, dimension) != stride;
}

struct KvTensor {
  const char* name;
  const ww_tensor* values;
  const char* block_scales_name;
  const ww_tensor* block_scales;
  int dim;
};

Status read_block_scales(const KvTensor& tensor, const KvDimensions& dims, Place place, KvPoolView& view) {
  const ww_tensor* const scales = tensor.block_scales;
  const char* const name = tensor.block_scales_name;
  const ww_tensor& values = *tensor.values;
  WW_RETURN_IF_ERROR(check_tensor(scales, name, {values.ndim, values.ndim}, place));
  if (scales->dtype.bits != 8 || scales->dtype.lanes != 1) {
    return invalid(name, "must hold e4m3 or uint8; it has " + dtype_text(scales->dtype));
  }
  for (int i = 0; i < values.ndim; ++i) {
    const int64_t wanted =
        i == dims.last ? values.shape[i] * 2 / kFp4BlockElements : values.shape[i];
    if (scales->shape[i] != wanted) {
      return invalid(name, fmt::format("dimension {} is {}, must be {}: one scale for {} elements",
                                       i, scales->shape[i], wanted, kFp4BlockElements));
    }
    // Strides of `values` count bytes, which hold two elements.
    const int64_t stride = i == dims.last ? 1 : stride_of(values, i) * 2 / kFp4BlockElements;
    if (strides_differ(*scales, i, stride)) {
      return invalid(
          name, fmt::format("its stride along dimension {} is {}, must be {}: the scales lie as "
                            "their values do",
                            i, stride_of(*scales, i), stride));
    }
  }
  view.block_scales = reinterpret_cast<const uint8_t*>(data_of(*scales));
  return {};
}

Status read_kv_tensor(const KvTensor& tensor, const KvSpec& spec, ww_kv_layout layout, KvView& out,
                      KvPoolView& view) {
  const bool paged = spec.page_size > 0, fp4 = spec.format == KvFormat::fp4_e2m1;
  const KvDimensions dims = kv_dimensions(layout, paged);
  WW_RETURN_IF_ERROR(
      check_tensor(tensor.values, tensor.name, {paged ? 4 : 3, paged ? 4 : 3}, spec.place));
  const ww_tensor& values = *tensor.values;
  if (!kv_dtype_matches(values.dtype, spec.format)) {
    return invalid(tensor.name, fmt::format("the KV format is {}, but the tensor has {}",
                                            kv_format_name(spec.format), dtype_text(values.dtype)));
  }
  const int stored = fp4 ? tensor.dim / 2 : kv_stored_dim(spec.format, tensor.dim), per_element = fp4 ? 2 : 1;
  if (fp4 && tensor.dim % kFp4BlockElements != 0) {
    return invalid(tensor.name, fmt::format("fp4 needs a head dim that {} divides, this is {}",
                                            kFp4BlockElements, tensor.dim));
  }
  if (values.shape[dims.last] != stored || values.shape[dims.head] != spec.num_kv_heads ||
      (paged && values.shape[dims.token] != spec.page_size)) {
    const std::string page = paged ? fmt::format("page_size {}, ", spec.page_size) : "";
    return invalid(tensor.name,
                   fmt::format("its shape does not have {}{} heads and {} {} at the end in {} "
                               "order",
                               page, spec.num_kv_heads, stored,
                               fp4 || kv_format_is_packed(spec.format) ? "bytes" : "elements",
                               layout == WW_KV_HND ? "HND" : "NHD"));
  }
  if (strides_differ(values, dims.last, 1)) {
    return invalid(tensor.name, "the last dimension must be contiguous");
  }
  out.extent = values.shape[paged ? dims.page : dims.token];
  view.data = data_of(values);
  view.format = spec.format;
  view.page_stride = paged ? stride_of(values, dims.page) * per_element : 0;
  view.token_stride = stride_of(values, dims.token) * per_element;
  view.head_stride = stride_of(values, dims.head) * per_element;
  if (!fp4) return {};
  for (int i = 0; i < values.ndim; ++i) {
    if (i != dims.last && stride_of(values, i) * 2 % kFp4BlockElements != 0) {
      return invalid(tensor.name,
                     fmt::format("its stride along dimension {} is {} bytes; fp4 needs a "
                                 "multiple of 8",
                                 i, stride_of(values, i)));
    }
  }
  return read_block_scales(tensor, dims, spec.place, view);
}

Status read_head_scales(const ww_tensor* scales, const char* name, const KvSpec& spec,
                        float* storage, KvPoolView& view) {
  if (scales == nullptr) return {};
  if (!kv_format_is_scaled(spec.format)) {
    return invalid(name, fmt::format("{} has no scales; pass NULL", kv_format_name(spec.format)));
  }
  if (spec.place == Place::gpu) {
    WW_ASSIGN_OR_RETURN(view.head_scales, gpu_floats(scales, name, spec.num_kv_heads));
    return {};
  }
  WW_RETURN_IF_ERROR(read_floats(scales, name, spec.num_kv_heads, storage));
  view.head_scales = storage;
  return {};
}

}  // namespace

bool RowsView::is_plain() const {
  return (rows <= rows_per_batch || batch_stride == rows_per_batch * row_stride) &&
         (heads == 1 || head_stride == dim);
}

std::optional<DType> dtype_of(const ww_dtype& dtype) {
  if (dtype.lanes != 1) return std::nullopt;
  switch (dtype.code) {
    case WW_DTYPE_FLOAT:
      return dtype.bits == 32 ? std::optional(DType::f32)
             : dtype.bits == 16 ? std::optional(DType::f16) : std::nullopt;
    case WW_DTYPE_BFLOAT: return dtype.bits == 16 ? std::optional(DType::bf16) : std::nullopt;
    case WW_DTYPE_FLOAT8_E4M3FN: return DType::fp8_e4m3;
    case WW_DTYPE_FLOAT8_E5M2: return DType::fp8_e5m2;
    default: return std::nullopt;
  }
}

Result<RowsView> read_rows(const ww_tensor* tensor, const RowsSpec& spec) {
  const bool flat = spec.dim == 0;
  const int rank = flat ? 2 : 3;
  WW_RETURN_IF_ERROR(check_tensor(tensor, spec.name, {rank, rank + 1}, spec.place));
  const std::optional<DType> dtype = dtype_of(tensor->dtype);
  if (dtype != DType::f32 && (flat || (dtype != DType::f16 && dtype != DType::bf16))) {
    return invalid(spec.name,
                   fmt::format("must be {}; it has {}", flat ? "f32" : "f32, f16 or bf16",
                               dtype_text(tensor->dtype)));
  }
  const bool batched = tensor->ndim == rank + 1;
  const int row_dim = batched ? 1 : 0, head_dim = row_dim + 1;
  RowsView view;
  view.data = data_of(*tensor);
  view.dtype = *dtype;
  view.rows_per_batch = std::max<int64_t>(1, tensor->shape[row_dim]);
  view.rows = tensor->shape[row_dim] * (batched ? tensor->shape[0] : 1);
  view.heads = spec.heads;
  view.dim = flat ? 1 : spec.dim;
  view.batch_stride = batched ? stride_of(*tensor, 0) : 0;
  view.row_stride = stride_of(*tensor, row_dim);
  view.head_stride = stride_of(*tensor, head_dim);
  if (view.rows != spec.rows) {
    return invalid(spec.name, fmt::format("has {} rows, the batch has {}", view.rows, spec.rows));
  }
  if (tensor->shape[head_dim] != spec.heads || (!flat && tensor->shape[head_dim + 1] != spec.dim)) {
    return invalid(spec.name,
                   fmt::format("has {} heads{}, must have {}{}", tensor->shape[head_dim],
                               flat ? "" : fmt::format(" of {}", tensor->shape[head_dim + 1]),
                               spec.heads, flat ? "" : fmt::format(" of {}", spec.dim)));
  }
  if (!flat && strides_differ(*tensor, head_dim + 1, 1)) {
    return invalid(spec.name, "the last dimension must be contiguous");
  }
  return view;
}

bool is_misaligned(const void* data, std::initializer_list<int64_t> strides, int bits) {
  constexpr int64_t kVectorBytes = 16;
  bool odd = reinterpret_cast<uintptr_t>(data) % kVectorBytes != 0;
  for (const int64_t stride : strides) odd |= stride * bits / 8 % kVectorBytes != 0;
  return odd;
}

void copy_rows(const RowsView& from, const RowsView& to, ThreadTeam& team) {
  const int64_t row_elements = int64_t{from.heads} * from.dim;
  auto copy = [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const bool whole = from.head_stride == from.dim && to.head_stride == to.dim;
      const int pieces = whole ? 1 : from.heads;
      for (int head = 0; head < pieces; ++head) {
        convert(row_at(from, row, head), from.dtype, row_at(to, row, head), to.dtype,
                whole ? row_elements : from.dim);
      }
    }
  };
  if (from.rows * row_elements < kMinParallelElements) return copy(0, from.rows);
  team.parallel_for(from.rows, std::max<int64_t>(1, kMinParallelElements / 4 / row_elements), copy);
}

float* floats_at(const RowsView& view, int64_t row, int head) {
  return reinterpret_cast<float*>(row_at(view, row, head));
}

void read_head(const RowsView& view, int64_t row, int head, float* out) {
  convert(row_at(view, row, head), view.dtype, reinterpret_cast<char*>(out), DType::f32, view.dim);
}

Result<const float*> gpu_floats(const ww_tensor* tensor, const char* name, int count) {
  WW_RETURN_IF_ERROR(check_tensor(tensor, name, {1, 1}, Place::gpu));
  if (dtype_of(tensor->dtype) != DType::f32 || tensor->shape[0] != count ||
      strides_differ(*tensor, 0, 1)) {
    return invalid(name, fmt::format("must be {} contiguous f32 on a GPU", count));
  }
  return reinterpret_cast<const float*>(data_of(*tensor));
}

Status read_floats(const ww_tensor* tensor, const char* name, int count, float* out) {
  WW_RETURN_IF_ERROR(check_tensor(tensor, name, {0, 1}, Place::cpu));
  if (dtype_of(tensor->dtype) != DType::f32) {
    return invalid(name, "must be f32; it has " + dtype_text(tensor->dtype));
  }
  const int64_t size = tensor->ndim == 0 ? 1 : tensor->shape[0];
  if (size != 1 && size != count) {
    return invalid(name, fmt::format("has {} values, must have 1 or {}", size, count));
  }
  const float* data = reinterpret_cast<const float*>(data_of(*tensor));
  const int64_t stride = size == 1 ? 0 : stride_of(*tensor, 0);
  for (int i = 0; i < count; ++i) out[i] = data[i * stride];
  return {};
}

Result<KvFormat> read_kv_format(ww_kv_format format) {
  switch (format) {
    case WW_KV_F32: return KvFormat::f32;
    case WW_KV_BF16: return KvFormat::bf16;
    case WW_KV_F16: return KvFormat::f16;
    case WW_KV_FP8_E4M3: return KvFormat::fp8_e4m3;
    case WW_KV_FP8_E5M2: return KvFormat::fp8_e5m2;
    case WW_KV_FP4_E2M1: return KvFormat::fp4_e2m1;
    case WW_KV_FP8_DS_MLA: return KvFormat::fp8_ds_mla;
    case WW_KV_FP4_MLA: return KvFormat::fp4_mla;
    default:
      return invalid("kv_format",
                     fmt::format("is {}; use one of WW_KV_F32 ... WW_KV_FP4_MLA", format));
  }
}

Result<KvView> read_kv(const ww_kv_cache& cache, const KvSpec& spec, float* scales) {
  if (cache.layout != WW_KV_NHD && cache.layout != WW_KV_HND) {
    return invalid("kv.layout", fmt::format("is {}; use WW_KV_NHD or WW_KV_HND", cache.layout));
  }
  KvView view;
  int64_t k_extent = 0;
  WW_RETURN_IF_ERROR(read_kv_tensor({"kv.k", cache.k, "kv.k_block_scales", cache.k_block_scales,
                                     spec.head_dim}, spec, cache.layout, view, view.k));
  k_extent = view.extent;
  if (spec.latent) {
    if (cache.v != nullptr || cache.v_scales != nullptr || cache.v_block_scales != nullptr) {
      return invalid("kv.v", "the plan is latent: V is the first part of kv.k; pass NULL, for its scales too");
    }
    WW_RETURN_IF_ERROR(read_head_scales(cache.k_scales, "kv.k_scales", spec, scales, view.k));
    view.v = view.k;
    return view;
  }
  WW_RETURN_IF_ERROR(read_kv_tensor({"kv.v", cache.v, "kv.v_block_scales", cache.v_block_scales,
                                     spec.v_head_dim}, spec, cache.layout, view, view.v));
  if (view.extent != k_extent) {
    return invalid("kv.v", fmt::format("has {} {}, kv.k has {}", view.extent,
                                       spec.page_size > 0 ? "pages" : "tokens", k_extent));
  }
  WW_RETURN_IF_ERROR(read_head_scales(cache.k_scales, "kv.k_scales", spec, scales, view.k));
  WW_RETURN_IF_ERROR(
      read_head_scales(cache.v_scales, "kv.v_scales", spec, scales + spec.num_kv_heads, view.v));
  return view;
}

}  // namespace warpweave::capi
