// For tests and benchmarks: the folder of an adapter of random matrices, as PEFT saves one.
#pragma once

#include <filesystem>
#include <string>

#include "lora/target_modules.h"

namespace warpweave {

struct RandomAdapter {
  int rank = 8;
  double alpha = 16;
  float deviation = 0.05f;     // of the values of A and B
  unsigned seed = 1;
  DType dtype = DType::bf16;   // or f32
};

// Matrices for every module of `targets`. Replaces what is in `folder`.
void write_random_adapter(const std::filesystem::path& folder, const LoraTargets& targets,
                          const RandomAdapter& adapter);

}  // namespace warpweave
