#include "warpweave/status.h"

namespace warpweave {

std::string_view status_code_name(StatusCode code) {
  switch (code) {
    case StatusCode::ok: return "ok";
    case StatusCode::invalid_argument: return "invalid_argument";
    case StatusCode::not_found: return "not_found";
    case StatusCode::unsupported: return "unsupported";
    case StatusCode::resource_exhausted: return "resource_exhausted";
    case StatusCode::data_loss: return "data_loss";
    case StatusCode::unavailable: return "unavailable";
    case StatusCode::cancelled: return "cancelled";
    case StatusCode::internal: return "internal";
  }
  return "unknown";
}

}  // namespace warpweave
