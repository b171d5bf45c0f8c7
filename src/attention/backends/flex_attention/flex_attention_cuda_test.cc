// Modifiers compiled into the GPU's kernels, against attention computed cell by cell in f64 with the
// evaluator. f32 queries take the plain kernels, bf16 ones the tensor cores. Skips without a GPU.
#include <gtest/gtest.h>

#include <deque>
#include <span>

#include "attention/backends/flex_attention/cuda_source.h"
#include "attention/backends/flex_attention/testing.h"
#include "attention/registry.h"
#include "attention/select.h"
#include "attention/tile/tile_spec.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/memory.h"
#include "device/cuda/nvrtc.h"
#include "device/cuda/stream.h"

namespace warpweave::flex_attention {
namespace {

const BackendRegistration* find_backend(AttentionKind kind = AttentionKind::mha) {
  const auto gpu = probe_cuda_device();
  if (!gpu.ok()) return nullptr;
  const auto arch = arch_of_compute_capability(gpu->compute_capability);
  for (const BackendRegistration& backend : built_backends()) {
    if (backend.caps->name == "flex_attention" && backend.caps->kinds.has(kind) && arch &&
        backend.caps->archs.has(*arch)) {
      return &backend;
    }
  }
  return nullptr;
}

// The batch on the GPU; results come back into the batch's own arrays.
class OnDevice {
 public:
  OnDevice(Batch& problem, DType dtype) : host_(problem), batch_(problem.batch), call_(problem.call) {
    const size_t values = host_.rows_and_heads() * call_.head_dim;
    batch_.device.q_indptr = copy(batch_.q_indptr);
    batch_.device.kv_lens = copy(batch_.kv_lens);
    batch_.device.page_table = copy(batch_.page_table);
    call_.q_dtype = dtype;
    std::vector<uint16_t> bits;
    for (size_t i = 0; i < values; ++i) bits.push_back(f32_to_bf16(host_.call.q_f32()[i]));
    call_.q = dtype == DType::f32 ? copy(std::span(host_.call.q_f32(), values))
                                  : static_cast<const void*>(copy(std::span<const uint16_t>(bits)));
    call_.k.data = copy(std::span(static_cast<const uint16_t*>(host_.call.k.data), host_.pool_values()));
    const bool latent = host_.call.v.data == host_.call.k.data;
    call_.v.data = latent ? call_.k.data
                          : copy(std::span(static_cast<const uint16_t*>(host_.call.v.data), host_.pool_values()));
    call_.out = const_cast<float*>(copy(std::span<const float>(host_.call.out_f32(), host_.out_values())));
    call_.lse = const_cast<float*>(copy(std::span<const float>(host_.call.lse, host_.rows_and_heads())));
  }

  void run(AttentionBackend& backend, bool decode) {
    ASSERT_TRUE(backend.init_forward_metadata(batch_).ok());
    const Status status = decode ? backend.forward_decode(batch_, call_) : backend.forward_extend(batch_, call_);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    cudaMemcpy(host_.call.out, call_.out, host_.out_values() * sizeof(float), cudaMemcpyDeviceToHost);
    cudaMemcpy(host_.call.lse, call_.lse, host_.rows_and_heads() * sizeof(float), cudaMemcpyDeviceToHost);
  }

 private:
  template <typename T>
  const std::remove_const_t<T>* copy(std::span<T> values) {
    Result<DeviceBuffer> memory = DeviceBuffer::allocate(values.size_bytes(), "a test");
    EXPECT_TRUE(memory.ok());
    cudaMemcpy(memory->as<void>(), values.data(), values.size_bytes(), cudaMemcpyHostToDevice);
    memory_.push_back(std::move(*memory));
    return memory_.back().as<std::remove_const_t<T>>();
  }

  Batch& host_;
  ForwardBatch batch_;
  AttentionCall call_;
  std::deque<DeviceBuffer> memory_;
};

class FlexOnGpu : public testing::TestWithParam<Mods> {};

TEST_P(FlexOnGpu, MatchesTheEvaluator) {
  const BackendRegistration* registration = find_backend();
  if (registration == nullptr) GTEST_SKIP() << "no GPU that flex_attention runs on";
  if (const Status lacks = registration->probe(Probe::thorough); !lacks.ok()) GTEST_SKIP() << lacks.message();
  const mods::Modifiers wanted = modifiers(GetParam().score, GetParam().mask);
  const auto backend = registration->create({.modifiers = &wanted});
  for (const auto& [dtype, bound] : {std::pair(DType::f32, 5e-5), std::pair(DType::bf16, 1e-2)}) {
    Batch extend({{1, 1}, {70, 70}, {3, 200}, {130, 190}, {1, 333}, {9, 1500}});
    OnDevice(extend, dtype).run(*backend, false);
    EXPECT_LE(extend.error(wanted), bound) << dtype_info(dtype).name;
    Batch decode({{1, 250}, {1, 64}, {1, 1}, {1, 4000}});
    OnDevice(decode, dtype).run(*backend, true);
    EXPECT_LE(decode.error(wanted), bound) << dtype_info(dtype).name << ", decode";
  }
}

TEST_P(FlexOnGpu, MatchesTheEvaluatorOnLatentRows) {
  const BackendRegistration* registration = find_backend(AttentionKind::mla);
  if (registration == nullptr) GTEST_SKIP() << "no GPU that flex_attention runs on";
  if (const Status lacks = registration->probe(Probe::thorough); !lacks.ok()) GTEST_SKIP() << lacks.message();
  const mods::Modifiers wanted = modifiers(GetParam().score, GetParam().mask);
  const auto backend = registration->create({.modifiers = &wanted});
  for (const auto& [dtype, bound] : {std::pair(DType::f32, 5e-5), std::pair(DType::bf16, 1e-2)}) {
    for (const Batch::Dims& dims : {Batch::kLatent, Batch::kWideLatent}) {
      Batch extend({{1, 1}, {30, 70}, {3, 200}, {1, 333}}, dims);
      OnDevice(extend, dtype).run(*backend, false);
      EXPECT_LE(extend.error(wanted), bound) << dtype_info(dtype).name << ", " << dims.k;
      Batch decode({{1, 250}, {1, 64}, {1, 1}, {1, 1000}}, dims);
      OnDevice(decode, dtype).run(*backend, true);
      EXPECT_LE(decode.error(wanted), bound) << dtype_info(dtype).name << ", decode, " << dims.k;
    }
  }
}

// Without a GPU at least the compiler must take the text.
TEST(FlexNvrtc, Compiles) {
  const auto nvrtc = Nvrtc::get();
  if (!nvrtc.ok()) GTEST_SKIP() << nvrtc.status().message();
  const mods::Modifiers wanted = modifiers("softcap(20, alibi) + exp(score * 0.1)", "causal && document(20, 64, 130)");
  const CudaSource modifiers_text = cuda_source(wanted);
  tile::TileShape heads, latent;
  heads.head_dim = heads.v_head_dim = 128;
  latent.head_dim = 576;
  latent.v_head_dim = 512;
  latent.latent = true;
  for (const auto& [dtype, dims] : {std::pair(DType::f32, heads), {DType::bf16, heads}, {DType::bf16, latent}}) {
    tile::TileShape shape = dims;
    shape.q_dtype = shape.out_dtype = dtype;
    shape.mask_modifier = true;
    const auto spec = tile::choose_tile(
        shape, 1 << 20, {.lanes = tile::LaneKind::mma, .local_memory_bytes = size_t{160} << 10, .even_splits = true});
    ASSERT_TRUE(spec.ok()) << spec.status().message();
    NvrtcSource source = {tile::tile_source(spec->lanes, modifiers_text.text), tile::tile_defines(*spec), 80};
    source.defines.insert(source.defines.end(), modifiers_text.defines.begin(), modifiers_text.defines.end());
    const auto cubin = (*nvrtc)->compile(source);
    EXPECT_TRUE(cubin.ok()) << cubin.status().message();
  }
}

INSTANTIATE_TEST_SUITE_P(Expressions, FlexOnGpu, testing::ValuesIn(kModifierCases));

}  // namespace
}  // namespace warpweave::flex_attention
