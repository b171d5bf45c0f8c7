// Memory kept for the moment when there is none: what runs while std::bad_alloc unwinds.
//
// Destructors may allocate (the JSON library's do) and must not throw. hold_memory_reserve() sets
// aside a few MiB and installs a new-handler that gives them up, once, to an allocation that fails
// during unwinding; every other failed allocation throws std::bad_alloc as ever. Where that ends the process all the
// same, it says so and exits with 1. refill_memory_reserve()
// sets them aside again; call it when a failed request has been answered. Thread-safe.
#pragma once

namespace warpweave {

void hold_memory_reserve();
void refill_memory_reserve() noexcept;

}  // namespace warpweave
