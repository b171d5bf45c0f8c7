// The fields and endpoints of sessions (session_store.h). Thread-safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/api/api_state.h"
#include "server/api/session_store.h"

namespace warpweave::server {

// session_params of /generate; failures are in reader->status().
std::optional<SessionWish> read_session(const Api& api, FieldReader* reader);

// {"capacity_of_str_len": 1000, "session_id": null, "timeout": seconds} -> "ID"
Result<std::string> open_session(const Api& api, std::string_view body, const std::string& owner);
// {"session_id": "ID"} -> {}
Result<std::string> close_session(const Api& api, std::string_view body, const std::string& owner);

}  // namespace warpweave::server
