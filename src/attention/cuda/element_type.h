// The numbers that CUDA attention kernels read. Plain C++: NVRTC and the host read it, too.
#pragma once

namespace warpweave::cuda {

enum class ElementType { bf16, f16 };  // of Q and of results
enum class KvStorage { same16, e4m3, e5m2, e2m1 };  // of K and V in the pool; same16: those of Q

}  // namespace warpweave::cuda
