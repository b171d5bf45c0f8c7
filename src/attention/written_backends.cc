// The backends of the source tree as data, built into this program or not, so that selection, explain and
// the matrix say the same in every build. The list is generated from backends/*/caps.h.
#include "attention/registry.h"
#include "written_backend_headers.inc"

namespace warpweave {

std::span<const Caps* const> written_backends() {
  static constexpr const Caps* kWritten[] = {
#include "written_backends.inc"
  };
  return kWritten;
}

}  // namespace warpweave
