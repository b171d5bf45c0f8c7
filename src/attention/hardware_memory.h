// Memory of the devices that --hardware describes, as they are sold; of several sizes the largest.
#pragma once

#include <cstdint>
#include <string_view>

namespace warpweave {

// By the names of named_hardware(); 0: not known, or not the device's own.
int64_t named_hardware_memory_bytes(std::string_view name);

}  // namespace warpweave
