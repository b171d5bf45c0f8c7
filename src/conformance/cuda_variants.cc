#include "conformance/cuda_variants.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <set>

#include "base/float16.h"
#include "device/cuda/copy.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/graph.h"
#include "device/cuda/memory.h"
#include "device/cuda/stream.h"

namespace warpweave::conformance {
namespace {

// Kernels load 16 bytes of values and 4 of fp4's block scales at a time: rows and heads start at multiples
// of 64 elements.
constexpr int kGapMultiple = 64;

constexpr char kSuite[] = "the conformance suite";  // in messages

DType activation_dtype(KvFormat format) {
  return format == KvFormat::f32 ? DType::f32 : format == KvFormat::f16 ? DType::f16 : DType::bf16;
}

uint16_t to_16_bits(DType dtype, float value) {
  return dtype == DType::f16 ? f32_to_f16(value) : f32_to_bf16(value);
}
float from_16_bits(DType dtype, uint16_t bits) {
  return dtype == DType::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

// Device memory with the first failure kept.
class DeviceMemory {
 public:
  const Status& status() const { return status_; }

 protected:
  void keep(const Status& status) {
    if (status_.ok()) status_ = status;
  }

  void* allocate(size_t bytes) {
    Result<DeviceBuffer> buffer = DeviceBuffer::allocate(std::max<size_t>(bytes, 256), "a test case");
    if (!buffer.ok()) {
      keep(buffer.status());
      return nullptr;
    }
    buffers_.push_back(std::move(*buffer));
    return buffers_.back().as<void>();
  }

  template <typename T>
  T* copy_array(const T* host, size_t count) {
    T* device = static_cast<T*>(allocate(count * sizeof(T)));
    if (device != nullptr) keep(copy_now(device, host, count * sizeof(T), kSuite));
    return device;
  }
  template <typename T>
  const T* copy(const std::vector<T>& host) { return copy_array(host.data(), host.size()); }

 private:
  Status status_;
  std::deque<DeviceBuffer> buffers_;
};

// Device copies of a problem's pools of K and V, which backends only read.
class DevicePools : public DeviceMemory {
 public:
  DevicePools(const Problem& problem, const Forward& forward)
      : problem_id_(problem.id()), k_(forward.call.k), v_(forward.call.v) {
    const int64_t gap = far_gap(forward);
    k_.data = allocate(std::max(forward.k_bytes.data, gap > 0 ? gap + forward.v_bytes.data : 0));
    v_.data = gap > 0 && k_.data != nullptr ? static_cast<const char*>(k_.data) + gap : allocate(forward.v_bytes.data);
    upload_pool(forward, forward.call.k, forward.k_bytes, k_);
    upload_pool(forward, forward.call.v, forward.v_bytes, v_);
  }
  const KvPoolView& k() const { return k_; }
  const KvPoolView& v() const { return v_; }

  // Those of `problem`. A check of equal bits runs one problem dozens of times, so its pools stay until another comes.
  static const DevicePools& of(const Problem& problem, const Forward& forward) {
    // Variants run one after the other on one thread. Never destroyed: CUDA may be gone when statics are.
    static auto& last = *new std::unique_ptr<DevicePools>();
    if (!last || last->problem_id_ != problem.id()) {
      last.reset();
      last = std::make_unique<DevicePools>(problem, forward);
    }
    return *last;
  }

 private:
  static int64_t page_elements(const Forward& forward, const KvPoolView& host) {
    return std::min<int64_t>(host.page_stride, int64_t{forward.batch.page_size} * host.token_stride);
  }

  // Where V's pages may stand behind K's in the same memory, in bytes: pages that lie far apart (48 GiB of f32, which a
  // GPU of 80 has once) leave room for both. 0: they have memory of their own.
  static int64_t far_gap(const Forward& forward) {
    constexpr size_t kFarBytes = size_t{1} << 30;
    const KvPoolView &k = forward.call.k, &v = forward.call.v;
    if (forward.k_bytes.data < kFarBytes || k.format != v.format || k.page_stride != v.page_stride) return 0;
    const int64_t page = page_elements(forward, k), bits = kv_format_bits(k.format);
    return page + page_elements(forward, v) <= k.page_stride ? page * bits / 8 : 0;
  }

  // `rows` pieces of `row_bytes`, `pitch_bytes` apart on both sides.
  static constexpr size_t kLargestPitchBytes = 1 << 20;  // far apart they are copied one by one
  void upload_pieces(void* to, const void* from, size_t pitch_bytes, size_t row_bytes, size_t rows) {
    if (pitch_bytes == row_bytes) return keep(copy_now(to, from, rows * row_bytes, kSuite));
    if (pitch_bytes <= kLargestPitchBytes) {
      return keep(copy_rows_now({to, pitch_bytes, from, pitch_bytes, row_bytes, rows}, kSuite));
    }
    for (size_t row = 0; row < rows; ++row) {
      const size_t offset = row * pitch_bytes;
      keep(copy_now(static_cast<char*>(to) + offset, static_cast<const char*>(from) + offset, row_bytes, kSuite));
    }
  }

  // Into device.data. Only the pages are copied: what lies between far ones is never touched.
  void upload_pool(const Forward& forward, const KvPoolView& host, const Forward::PoolBytes& bytes,
                   KvPoolView& device) {
    const int bits = kv_format_bits(host.format);
    const int64_t used = page_elements(forward, host);
    const int64_t elements = static_cast<int64_t>(bytes.data) * 8 / bits;
    uint8_t* scales = nullptr;
    if (host.block_scales != nullptr) {
      scales = static_cast<uint8_t*>(allocate(bytes.block_scales));
      device.block_scales = scales;
    }
    if (host.head_scales != nullptr) {
      device.head_scales = copy_array(host.head_scales, forward.call.num_kv_heads);
    }
    if (!status().ok()) return;
    char* const data = static_cast<char*>(const_cast<void*>(device.data));
    const int64_t whole = (elements - used) / host.page_stride + 1, rest_at = whole * host.page_stride;
    const int64_t rest = std::max<int64_t>(0, elements - rest_at);
    const auto upload = [&](void* to, const void* from, auto bytes_of) {
      upload_pieces(to, from, bytes_of(host.page_stride), bytes_of(used), whole);
      if (rest == 0) return;
      keep(copy_now(static_cast<char*>(to) + bytes_of(rest_at), static_cast<const char*>(from) + bytes_of(rest_at),
                    bytes_of(rest), kSuite));
    };
    upload(data, host.data, [&](int64_t count) { return count * bits / 8; });
    if (scales != nullptr) upload(scales, host.block_scales, [](int64_t count) { return count / kFp4BlockElements; });
  }

  const uint64_t problem_id_;
  KvPoolView k_, v_;
};

// Device copies of one forward's other arrays.
class DeviceForward : public DeviceMemory {
 public:
  DeviceForward(const Problem& problem, Forward& forward, cudaStream_t stream)
      : forward_(forward), dtype_(activation_dtype(problem.kv_format())),
        batch_(forward.batch), call_(forward.call) {
    batch_.device.stream = stream;
    batch_.device.positions = copy(forward.positions);
    batch_.device.kv_slots = copy(forward.kv_slots);
    batch_.device.q_indptr = copy(forward.q_indptr);
    batch_.device.kv_lens = copy(forward.kv_lens);
    batch_.device.page_table = copy(forward.page_table);
    if (!forward.tree_mask.empty()) batch_.device.tree_mask = copy(forward.tree_mask);
    upload_rows();
    const DevicePools& pools = DevicePools::of(problem, forward);
    keep(pools.status());
    call_.k = pools.k();
    call_.v = pools.v();
    const int q_heads = forward.call.num_q_heads;
    if (call_.sinks != nullptr) call_.sinks = copy_array(call_.sinks, q_heads);
  }

  const ForwardBatch& batch() const { return batch_; }
  const AttentionCall& call() const { return call_; }

  // All ones are NaN in every type.
  void clear_output() {
    const auto stream = static_cast<cudaStream_t>(batch_.device.stream);
    keep(fill_async(call_.out, 0xff, out_bytes_, stream, kSuite));
    keep(fill_async(call_.lse, 0xff, forward_.lse.size() * sizeof(float), stream, kSuite));
  }

  // The arrays that change between a capture and its replays.
  void set_lengths_and_pages(const std::vector<int32_t>& kv_lens, const std::vector<int32_t>& page_table) {
    const auto write = [&](const int32_t* to, const std::vector<int32_t>& from) {
      keep(copy_now(const_cast<int32_t*>(to), from.data(), from.size() * sizeof(int32_t), kSuite));
    };
    write(batch_.device.kv_lens, kv_lens);
    write(batch_.device.page_table, page_table);
  }

  // Results into the Forward's own arrays.
  void download() {
    const size_t n = forward_.out.size();
    if (dtype_ == DType::f32) {
      keep(copy_now(forward_.out.data(), call_.out, n * sizeof(float), kSuite));
    } else {
      std::vector<uint16_t> bits(n);
      keep(copy_now(bits.data(), call_.out, n * sizeof(uint16_t), kSuite));
      for (size_t i = 0; i < n; ++i) forward_.out[i] = from_16_bits(dtype_, bits[i]);
    }
    keep(copy_now(forward_.lse.data(), call_.lse, forward_.lse.size() * sizeof(float), kSuite));
  }

 private:
  const void* copy_queries(const std::vector<float>& queries) {
    if (dtype_ == DType::f32) return copy(queries);
    std::vector<uint16_t> bits;
    for (float value : queries) bits.push_back(to_16_bits(dtype_, value));
    return copy(bits);
  }

  void upload_rows() {
    call_.q_dtype = call_.out_dtype = dtype_;
    const size_t out_bytes = forward_.out.size() * (dtype_ == DType::f32 ? 4 : 2);
    call_.out = allocate(out_bytes);
    call_.lse = static_cast<float*>(allocate(forward_.lse.size() * sizeof(float)));
    call_.q = copy_queries(forward_.q);
    if (call_.dual_chunk != nullptr) {
      dual_chunk_ = *call_.dual_chunk;
      dual_chunk_.q_succ = copy_queries(forward_.q_succ);
      dual_chunk_.q_inter = copy_queries(forward_.q_inter);
      call_.dual_chunk = &dual_chunk_;
    }
    if (!status().ok()) return;
    out_bytes_ = out_bytes;
    clear_output();
  }

  Forward& forward_;
  DType dtype_;
  size_t out_bytes_ = 0;
  ForwardBatch batch_;
  AttentionCall call_;
  DualChunkQueries dual_chunk_;
};

Status run_layer(const ForwardBatch& batch, const AttentionCall& call, AttentionBackend& backend, bool decode) {
  return decode ? backend.forward_decode(batch, call) : backend.forward_extend(batch, call);
}

Status run_on_device(const Problem& problem, AttentionBackend& backend, Forward& forward, bool decode) {
  WW_ASSIGN_OR_RETURN(const CudaStream stream, create_stream());
  DeviceForward device(problem, forward, stream.get());
  WW_RETURN_IF_ERROR(device.status());
  WW_RETURN_IF_ERROR(backend.init_forward_metadata(device.batch()));
  WW_RETURN_IF_ERROR(run_layer(device.batch(), device.call(), backend, decode));
  if (device.batch().mode == ForwardMode::mixed) {
    // As the layers after the first do, with plans that are there: kernels may then overlap.
    device.clear_output();
    WW_RETURN_IF_ERROR(backend.forward_extend(device.batch(), device.call()));
  }
  WW_RETURN_IF_ERROR(wait_for_stream(stream.get(), "the backend"));
  device.download();
  return device.status();
}

// As the engine captures: two trial forwards, which try and allocate, then the captured one.
Result<CudaGraphExec> capture(const ForwardBatch& batch, const AttentionCall& call, AttentionBackend& backend,
                              bool decode) {
  const auto stream = static_cast<cudaStream_t>(batch.device.stream);
  for (int i = 0; i < 2; ++i) {
    WW_RETURN_IF_ERROR(backend.init_forward_metadata_capture_cuda_graph(batch));
    WW_RETURN_IF_ERROR(run_layer(batch, call, backend, decode));
  }
  WW_RETURN_IF_ERROR(wait_for_stream(stream, "a trial run"));
  return capture_graph(stream, "capturing a graph", [&] {
    const Status planned = backend.init_forward_metadata_capture_cuda_graph(batch);
    return planned.ok() ? run_layer(batch, call, backend, decode) : planned;
  });
}

// Captured while every request has its new tokens alone, on page 0; replayed with the lengths and pages
// of the case.
Status replay_on_device(const Problem& problem, AttentionBackend& backend, Forward& real, bool decode) {
  WW_ASSIGN_OR_RETURN(const CudaStream stream, create_stream());
  DeviceForward device(problem, real, stream.get());
  WW_RETURN_IF_ERROR(device.status());
  GraphLimits limits;
  limits.max_batch_size = real.batch.num_reqs;
  limits.max_tokens = real.batch.num_tokens;
  limits.max_pages_per_request = real.batch.page_table_stride;
  WW_RETURN_IF_ERROR(backend.init_cuda_graph_state(limits));
  ForwardBatch early = device.batch();
  std::vector<int32_t> short_lens;
  early.max_kv_len = 0;
  for (int r = 0; r < early.num_reqs; ++r) {
    short_lens.push_back(std::min(real.kv_lens[r], real.q_indptr[r + 1] - real.q_indptr[r]));
    early.max_kv_len = std::max(early.max_kv_len, static_cast<int>(short_lens.back()));
  }
  const std::vector<int32_t> first_page(real.page_table.size(), 0);
  early.kv_lens = short_lens;
  early.page_table = first_page;
  device.set_lengths_and_pages(short_lens, first_page);
  WW_ASSIGN_OR_RETURN(const CudaGraphExec exec, capture(early, device.call(), backend, decode));
  device.set_lengths_and_pages(real.kv_lens, real.page_table);
  device.clear_output();
  WW_RETURN_IF_ERROR(backend.init_forward_metadata_replay_cuda_graph(device.batch()));
  WW_RETURN_IF_ERROR(launch_graph(exec.get(), stream.get(), "launching a graph"));
  WW_RETURN_IF_ERROR(wait_for_stream(stream.get(), "a graph"));
  device.download();
  return device.status();
}

Output run_graph(const Problem& problem, AttentionBackend& backend, const std::vector<Slice>& slices,
                 bool decode) {
  Forward forward = problem.prepare(slices, decode);
  const Status status = replay_on_device(problem, backend, forward, decode);
  if (!status.ok()) return {{}, {}, status.message()};
  return problem.collect(forward);
}

Output run(const Problem& problem, AttentionBackend& backend, const std::vector<Slice>& slices,
           bool decode) {
  Forward forward = problem.prepare(slices, decode);
  const Status status = run_on_device(problem, backend, forward, decode);
  if (!status.ok()) return {{}, {}, status.message()};
  return problem.collect(forward);
}

// For the number of rows that the longest request has; `all_lengths`: for every number that first_difference()
// (determinism.h) gives a request. A failure is left to the run that meets it again.
void compile(AttentionBackend& backend, const Case& c, AttentionCall call, bool all_lengths) {
  const DualChunkQueries forms = {nullptr, nullptr, int64_t{c.q_heads} * c.head_dim, c.dual_chunk_len};
  if (c.dual_chunk_len > 0) call.dual_chunk = &forms;
  call.q_dtype = call.out_dtype = activation_dtype(call.k.format);
  std::set<int> lengths = {1};
  for (const Case::Request& request : c.requests) lengths.insert(std::max(1, request.q_len));
  if (all_lengths) lengths.insert(7);
  else lengths = {*lengths.rbegin()};
  for (const int length : lengths) static_cast<void>(backend.compile(call, length));
}

}  // namespace

std::vector<Variant> cuda_variants() {
  std::vector<Variant> variants;
  const Result<CudaDeviceInfo> info = probe_cuda_device();
  if (!info.ok()) return variants;
  const std::optional<DeviceArch> arch = arch_of_compute_capability(info->compute_capability);
  if (!arch) return variants;
  for (const BackendRegistration& backend : built_backends()) {
    if (!backend.caps->selectable || !backend.caps->archs.has(*arch)) continue;
    // What it needs beside the GPU, such as NVRTC, may be missing here.
    if (backend.probe && !backend.probe(Probe::thorough).ok()) continue;
    const std::string of_kind = backend.caps->kinds.has(AttentionKind::mla) ? "-mla" : "";
    Variant variant = {std::string(backend.caps->name) + of_kind + "@cuda", "cuda",
                       {info->name, *arch, info->driver_version}, backend.caps, backend.create, run,
                       kGapMultiple, true, run_graph};
    const std::shared_ptr<AttentionBackend> compiler = backend.create({});
    variant.compile = [compiler](const Case& c, KvFormat format, int page_size, bool all_lengths) {
      compile(*compiler, c, call_shape(c, format, page_size), all_lengths);
    };
    // Code of an older architecture proves something about that one, and nothing about the device's.
    const int version = backend.code_version != nullptr ? backend.code_version() : 0;
    const std::optional<DeviceArch> code = arch_of_compute_capability(version);
    if (code && *code != *arch && backend.caps->archs.has(*code)) {
      variant.hardware.arch = *code;
      variant.via = "PTX of " + std::string(arch_name(*code)) + ", compiled by the driver";
    }
    variants.push_back(std::move(variant));
  }
  return variants;
}

}  // namespace warpweave::conformance
