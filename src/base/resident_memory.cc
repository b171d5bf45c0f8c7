#include "base/resident_memory.h"

#include <unistd.h>

#include <fstream>

namespace warpweave {

ResidentMemory resident_memory() {
  int64_t all_pages = 0, resident_pages = 0, file_pages = 0;
  if (!(std::ifstream("/proc/self/statm") >> all_pages >> resident_pages >> file_pages)) return {};
  const int64_t page_bytes = sysconf(_SC_PAGESIZE);
  return {resident_pages * page_bytes, (resident_pages - file_pages) * page_bytes};
}

}  // namespace warpweave
