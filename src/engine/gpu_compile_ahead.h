// Attention kernels that are compiled at run time (AttentionBackend::compile), compiled while weights are read.
#pragma once

#include <future>
#include <vector>

#include "attention/backend.h"
#include "engine/start_device.h"

namespace warpweave {

// Compiles in threads of its own for decode steps and for prompts of all lengths. What is returned is waited for when
// it goes away, so that it has to go before `backend`. A kernel that could not be compiled is said by the step that
// asks for it again.
[[nodiscard]] std::vector<std::future<void>> compile_attention_ahead(const DeviceSetup& setup,
                                                                     AttentionBackend& backend);

}  // namespace warpweave
