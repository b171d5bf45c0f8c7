#include <algorithm>
#include <cmath>
#include <random>

#include "base/float16.h"
#include "cli/gpu_times.h"
#include "cli/measure_attention.h"
#include "device/cuda/copy.h"
#include "device/cuda/graph.h"
#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "kv/kv_codec.h"

namespace warpweave {
namespace {

// Pools of a point's layers together pass the caches many times over.
constexpr double kUncachedBytes = 400e6;
constexpr int kMinLayers = 8, kMaxLayers = 64;

template <typename T>
Result<DeviceBuffer> on_device(const std::vector<T>& host) {
  WW_ASSIGN_OR_RETURN(DeviceBuffer out, DeviceBuffer::allocate(host.size() * sizeof(T), "a measurement"));
  WW_RETURN_IF_ERROR(copy_now(out.as<void>(), host.data(), host.size() * sizeof(T), "a measurement"));
  return out;
}

// `size_bytes` filled with repetitions of `page`.
Result<DeviceBuffer> repeated(const std::vector<uint8_t>& page, size_t size_bytes) {
  WW_ASSIGN_OR_RETURN(DeviceBuffer out, DeviceBuffer::allocate(size_bytes, "a pool; try a shorter --kv-len"));
  size_t filled = std::min(page.size(), size_bytes);
  WW_RETURN_IF_ERROR(copy_now(out.as<void>(), page.data(), filled, "a measurement"));
  while (filled < size_bytes) {
    const size_t count = std::min(filled, size_bytes - filled);
    WW_RETURN_IF_ERROR(copy_now(out.as<char>() + filled, out.as<void>(), count, "a measurement"));
    filled += count;
  }
  return out;
}

// K or V pages of all layers: one page of random values, in all of them.
struct GpuPool {
  DeviceBuffer data, scales;
  KvPoolView view;
  size_t layer_bytes = 0, layer_scales = 0;

  Status init(const TuningShape& shape, int page_size, int pages, int layers) {
    const int64_t head_dim = kv_stored_dim(shape.kv_format, shape.head_dim);
    const int64_t token = int64_t{shape.num_kv_heads} * head_dim, page = token * page_size;
    std::vector<uint8_t> values(static_cast<size_t>(page) * kv_format_bits(shape.kv_format) / 8);
    std::vector<uint8_t> block_scales(page / kFp4BlockElements);
    view = {values.data(), shape.kv_format, page, token, head_dim};
    const bool fp4 = shape.kv_format == KvFormat::fp4_e2m1;
    if (fp4) view.block_scales = block_scales.data();
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    std::vector<float> head(shape.head_dim);
    for (int64_t at = 0; at < page; at += head_dim) {
      for (float& value : head) value = normal(random);
      kv_encode_run(view, static_cast<int>(at % token / head_dim), at, shape.head_dim, head.data());
    }
    layer_bytes = values.size() * pages;
    layer_scales = fp4 ? block_scales.size() * pages : 0;
    WW_ASSIGN_OR_RETURN(data, repeated(values, layer_bytes * layers));
    if (fp4) {
      WW_ASSIGN_OR_RETURN(scales, repeated(block_scales, layer_scales * layers));
    }
    return {};
  }
  KvPoolView layer(int index) const {
    KvPoolView out = view;
    out.data = data.as<char>() + layer_bytes * index;
    out.block_scales = layer_scales > 0 ? scales.as<uint8_t>() + layer_scales * index : nullptr;
    return out;
  }
};

DType activation_dtype(KvFormat format) {
  return format == KvFormat::f32 ? DType::f32 : format == KvFormat::f16 ? DType::f16 : DType::bf16;
}

std::vector<uint8_t> random_rows(DType dtype, size_t count) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  std::vector<uint8_t> out(count * (dtype == DType::f32 ? 4 : 2));
  for (size_t i = 0; i < count; ++i) {
    const float value = normal(random);
    if (dtype == DType::f32) {
      reinterpret_cast<float*>(out.data())[i] = value;
    } else {
      reinterpret_cast<uint16_t*>(out.data())[i] = dtype == DType::f16 ? f32_to_f16(value) : f32_to_bf16(value);
    }
  }
  return out;
}

// Everything of a point in GPU memory, and a forward of all its layers.
class GpuPoint {
 public:
  Status init(const TuningShape& shape, const AttentionPoint& point, int page_size) {
    WW_ASSIGN_OR_RETURN(stream_, create_stream());
    batch_ = measured_batch(point, page_size, arrays_);
    layers_ = std::clamp(static_cast<int>(kUncachedBytes / point.kv_bytes(shape)), kMinLayers, kMaxLayers);
    if (point.phase == AttentionPhase::prefill) layers_ = 1;
    WW_RETURN_IF_ERROR(upload_arrays());
    const int pages = static_cast<int>(arrays_.page_table.size());
    WW_RETURN_IF_ERROR(k_.init(shape, page_size, pages, layers_));
    latent_ = shape.v_head_dim > 0;
    if (!latent_) WW_RETURN_IF_ERROR(v_.init(shape, page_size, pages, layers_));
    const int v_dim = latent_ ? shape.v_head_dim : shape.head_dim;
    const int64_t row = int64_t{shape.num_q_heads} * shape.head_dim;
    call_.q_dtype = call_.out_dtype = activation_dtype(shape.kv_format);
    WW_ASSIGN_OR_RETURN(q_, on_device(random_rows(call_.q_dtype, row * batch_.num_tokens)));
    WW_ASSIGN_OR_RETURN(out_, DeviceBuffer::allocate(q_.size_bytes(), "a measurement"));
    call_.num_q_heads = shape.num_q_heads;
    call_.num_kv_heads = shape.num_kv_heads;
    call_.head_dim = shape.head_dim;
    call_.v_head_dim = v_dim;
    call_.scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
    call_.q = q_.as<void>();
    call_.out = out_.as<void>();
    call_.q_token_stride = row;
    call_.out_token_stride = int64_t{shape.num_q_heads} * v_dim;
    return {};
  }

  const ForwardBatch& batch() const { return batch_; }
  cudaStream_t stream() const { return stream_.get(); }
  int layers() const { return layers_; }

  Status forward(AttentionBackend& backend) {
    for (int i = 0; i < layers_; ++i) {
      call_.k = k_.layer(i);
      call_.v = latent_ ? call_.k : v_.layer(i);
      WW_RETURN_IF_ERROR(batch_.mode == ForwardMode::decode ? backend.forward_decode(batch_, call_)
                                                            : backend.forward_extend(batch_, call_));
    }
    return {};
  }

 private:
  Status upload_arrays() {
    const std::vector<int32_t>* const hosts[] = {&arrays_.positions, &arrays_.slots, &arrays_.q_indptr,
                                                 &arrays_.kv_lens, &arrays_.page_table};
    const int32_t** const devices[] = {&batch_.device.positions, &batch_.device.kv_slots, &batch_.device.q_indptr,
                                       &batch_.device.kv_lens, &batch_.device.page_table};
    for (size_t i = 0; i < std::size(hosts); ++i) {
      WW_ASSIGN_OR_RETURN(DeviceBuffer copy, on_device(*hosts[i]));
      *devices[i] = copy.as<int32_t>();
      copies_.push_back(std::move(copy));
    }
    batch_.device.stream = stream_.get();
    return {};
  }

  CudaStream stream_;
  MeasuredArrays arrays_;
  ForwardBatch batch_;
  AttentionCall call_;
  GpuPool k_, v_;
  DeviceBuffer q_, out_;
  std::vector<DeviceBuffer> copies_;
  int layers_ = 1;
  bool latent_ = false;  // V is the first part of K
};

Result<CudaGraphExec> captured(AttentionBackend& backend, GpuPoint& point) {
  return capture_graph(point.stream(), "a measurement", [&] {
    const Status planned = backend.init_forward_metadata_capture_cuda_graph(point.batch());
    return planned.ok() ? point.forward(backend) : planned;
  });
}

}  // namespace

Result<double> measure_attention_on_gpu(AttentionBackend& backend, const TuningShape& shape,
                                        const AttentionPoint& point, const MeasureOptions& options) {
  GpuPoint gpu;
  WW_RETURN_IF_ERROR(gpu.init(shape, point, options.page_size));
  WW_RETURN_IF_ERROR(backend.init_forward_metadata(gpu.batch()));
  WW_RETURN_IF_ERROR(gpu.forward(backend));
  WW_RETURN_IF_ERROR(wait_for_stream(gpu.stream(), "a measurement"));
  const bool graphs = backend.caps().graph_capture && point.phase == AttentionPhase::decode;
  CudaGraphExec graph;
  if (graphs) {
    WW_ASSIGN_OR_RETURN(graph, captured(backend, gpu));
  }
  const GpuTimesOptions times = {.max_repeats = 4 * options.max_repeats, .max_seconds = options.max_seconds};
  WW_ASSIGN_OR_RETURN(const double us, median_gpu_us(gpu.stream(), times, [&] {
                        return graphs ? launch_graph(graph.get(), gpu.stream(), "a measurement") : gpu.forward(backend);
                      }));
  return us / gpu.layers();
}

}  // namespace warpweave
