#include "base/trim_memory.h"

#include <malloc.h>

namespace warpweave {

void trim_memory() noexcept {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace warpweave
