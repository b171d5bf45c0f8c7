// The tile kernels on OpenCL: what the backends triton and intel_xpu are on a CPU and on Intel GPUs.
//
// Programs are built on first use of a shape and kept for the process, and on disk (program_cache.h).
// One launch a layer; two, when a decode batch is too small to keep the device busy and is split.
// Where OpenCL is missing, init_forward_metadata says why; a program that cannot be built or a launch that fails is
// the Status of its forward_*.
#pragma once

#include <memory>

#include "attention/backend.h"
#include "attention/registry.h"

namespace warpweave::tile {

struct OpenClOptions {
  const Caps* caps = nullptr;
  // On a CPU: run the kernels as they are laid out for GPUs, or for GPUs with matrix units, emulated.
  bool threads_as_lanes = false;
  bool emulate_matrix = false;
};

std::unique_ptr<AttentionBackend> create_opencl_attention(const BackendContext& context,
                                                          const OpenClOptions& options);

// What a name registers.
template <const Caps& kCaps>
std::unique_ptr<AttentionBackend> create_opencl(const BackendContext& context) {
  return create_opencl_attention(context, {.caps = &kCaps});
}

// Whether such a backend can run on this machine; if not, why, and what to install.
Status probe_opencl(Probe probe);

}  // namespace warpweave::tile
