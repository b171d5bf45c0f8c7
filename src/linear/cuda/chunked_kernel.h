// The CUDA kernels as a LinearAttnKernelBase: "tile" (mma.sync, sm_80 and later) and "wgmma" (Hopper). Calls enqueue on
// call.stream.
//
// Beyond check_linear_attn_call: states and their strides are multiples of 16 bytes. A forward has at most
// linear_attn_most_checkpoints() of them; more stop the program.
//
// GEMMs take 16-bit elements: f16 where q is (the convolution's input, where there is one), bf16 otherwise. decode, commit
// and, where the call says exact, extend and target_verify compute in f32, token by token.
#pragma once

#include <memory>

#include "linear/cuda/linear_device.h"

namespace warpweave::linear {

const LinearAttnKernelCaps& chunked_kernel_caps(bool wgmma);

// The kernels' bits depend on a request's own tokens alone, but where a call says any_form: then extend prepares and scans GDN's
// chunks of 128 x 128, of all heads or some, in one launch where that is faster, which rounds elsewhere than the two launches do, or
// cuts long prompts of few heads into pieces (Pieces in linear_params.h). How many columns a block of those has differs, too, but changes no sum.
class ChunkedLinearKernel : public LinearAttnKernelBase {
 public:
  ChunkedLinearKernel(std::unique_ptr<LinearDevice> device, bool wgmma);

  const LinearAttnKernelCaps& caps() const override { return chunked_kernel_caps(wgmma_); }
  size_t workspace_bytes(const LinearAttnShape& shape, const LinearAttnLimits& limits) const override;
  void decode(const LinearAttnCall& call) override;
  void extend(const LinearAttnCall& call) override;
  void target_verify(const LinearAttnCall& call) override;
  void commit(const LinearAttnCall& call) override;

 private:
  void chunks(const LinearAttnCall& call, bool writes_state);
  void recurrent(const LinearAttnCall& call, RecurrentMode mode, bool checkpoints);
  void norm(const LinearAttnCall& call, const LinearParams& p);
  void in_two_launches(LinearParams p, DType element, const LinearAttnCall& call);
  bool cut_in_pieces(LinearParams& p, const ScanShape& shape) const;
  bool in_segments(const LinearParams& p, const ScanShape& shape) const;
  void segments(LinearParams& p, DType element, const ScanShape& shape, void* stream);
  ScanShape scan_shape(const LinearParams& p) const;

  std::unique_ptr<LinearDevice> device_;
  bool wgmma_;
};

// Chunks of a forward at most.
int64_t linear_chunk_capacity(const LinearAttnLimits& limits);

}  // namespace warpweave::linear
