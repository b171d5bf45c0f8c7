#include "base/trim_memory.h"

#include <malloc.h>

namespace warpweave {

namespace {

#ifdef __GLIBC__
constexpr int kHeaps = 2, kFreeBytesOfAHeap = 256 << 10, kBlockApartBytes = 1 << 20;
#endif

}  // namespace

void bound_free_memory() noexcept {
#ifdef __GLIBC__
  mallopt(M_ARENA_MAX, kHeaps);
  mallopt(M_MMAP_THRESHOLD, kBlockApartBytes);
  mallopt(M_TRIM_THRESHOLD, kFreeBytesOfAHeap);
#endif
}

void trim_memory() noexcept {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace warpweave
