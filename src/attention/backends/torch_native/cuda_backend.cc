// torch_native on CUDA GPUs: one plain kernel, planned by nothing, so it runs in graphs as it is.
#include <memory>

#include "attention/backend.h"
#include "attention/backends/torch_native/caps.h"
#include "attention/backends/torch_native/cuda_attention.h"
#include "attention/batch_check.h"
#include "attention/registry.h"

namespace warpweave::torch_native {
namespace {

class CudaBackend : public AttentionBackend {
 public:
  explicit CudaBackend(const Caps& caps) : caps_(caps) {}
  const Caps& caps() const override { return caps_; }
  Status init_forward_metadata(const ForwardBatch& batch) override { return check_batch(batch); }
  Status forward_extend(const ForwardBatch& batch, const AttentionCall& call) override {
    return launch_cuda_attention(batch, call);
  }
  Status forward_decode(const ForwardBatch& batch, const AttentionCall& call) override {
    return launch_cuda_attention(batch, call);
  }
  Status init_cuda_graph_state(const GraphLimits&) override { return {}; }
  Status init_forward_metadata_capture_cuda_graph(const ForwardBatch&) override { return {}; }
  Status init_forward_metadata_replay_cuda_graph(const ForwardBatch&) override { return {}; }
  bool captures_verification() const override { return true; }

 private:
  const Caps& caps_;
};

std::unique_ptr<AttentionBackend> create_cuda(const BackendContext&) {
  return std::make_unique<CudaBackend>(kCudaCaps);
}
std::unique_ptr<AttentionBackend> create_cuda_mla(const BackendContext&) {
  return std::make_unique<CudaBackend>(kCudaMlaCaps);
}

}  // namespace
}  // namespace warpweave::torch_native

namespace warpweave {
BackendRegistration register_attention_torch_native_cuda() {
  return {&torch_native::kCudaCaps, torch_native::create_cuda, nullptr, torch_native::cuda_code_version};
}
BackendRegistration register_attention_torch_native_cuda_mla() {
  return {&torch_native::kCudaMlaCaps, torch_native::create_cuda_mla, nullptr, torch_native::cuda_code_version};
}
}
