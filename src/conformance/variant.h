// A backend on a device, as the suite runs it. host_variants() lists every built backend that reads
// host memory, intel_amx once per tier of this machine; a device with its own memory adds its
// variants in variants.cc with a `run` that copies a Forward there and back (see problem.h).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "attention/registry.h"
#include "attention/select.h"
#include "conformance/problem.h"

namespace warpweave::conformance {

struct Variant {
  std::string name;        // "intel_amx@avx512": the backend, and which of its kernels
  std::string device;      // "cpu", "cuda", "opencl": what --device filters
  HardwareFacts hardware;  // what selection is told; its name goes into the results
  const Caps* caps = nullptr;
  std::function<std::unique_ptr<AttentionBackend>(const BackendContext&)> create;
  // Empty: Problem::run, which hands over host memory.
  std::function<Output(const Problem&, AttentionBackend&, const std::vector<Slice>&, bool decode)>
      run;
  int gap_multiple = 1;    // gaps of a case are rounded up to a multiple: what the device can load
  bool rounds_output = false;  // out is in the 16-bit type of the activations, where they have one
  // As `run`, from a captured graph that was made for other lengths; empty where none can be captured.
  std::function<Output(const Problem&, AttentionBackend&, const std::vector<Slice>&, bool decode)>
      run_graph = {};
  // Compiles what `run` of the case will need, for devices that compile at run time; called from several threads at
  // once. `all_lengths`: parts of the case will run as well.
  std::function<void(const Case&, KvFormat, int page_size, bool all_lengths)> compile = {};
  std::string via = {};    // what stands between kernels and device: "OpenCL, Portable Computing Language"

  Output run_problem(const Problem& problem, AttentionBackend& backend,
                     const std::vector<Slice>& slices, bool decode) const {
    return run ? run(problem, backend, slices, decode) : problem.run(backend, slices, decode);
  }
};

// Variant::via of the tile kernels on a CPU, which run through its OpenCL driver.
std::string opencl_name();

std::vector<Variant> host_variants();
// Those of every device of this machine.
std::vector<Variant> all_variants();

}  // namespace warpweave::conformance
