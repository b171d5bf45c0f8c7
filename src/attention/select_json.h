// The result of select_attention as JSON, for `warpweave explain --json` and /get_server_info.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "attention/select.h"

namespace warpweave {

nlohmann::json to_json(const Resolved& resolved);
// {"error": {"flag": ..., "message": ..., "code": ...}}
nlohmann::json selection_error_json(const Status& status);

}  // namespace warpweave
