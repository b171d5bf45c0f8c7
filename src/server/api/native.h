// The small native endpoints: bodies in, answers out; routes are in api.cc. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/api/api_state.h"

namespace warpweave::server {

// {"prompt": "..." or [...], "add_special_tokens": true} -> {"tokens", "count", "max_model_len"}; or "messages", as a
// chat's
Result<std::string> tokenize(const Api& api, std::string_view body);
// {"tokens": [...] or [[...]], "skip_special_tokens": true} -> {"text"}
Result<std::string> detokenize(const Api& api, std::string_view body);

// {"text", "tools", "tool_call_parser"} -> {"normal_text", "calls": [{"tool_index", "name", "parameters"}]}
Result<std::string> parse_function_call(const Api& api, std::string_view body);
// {"text", "reasoning_parser"} -> {"reasoning_text", "text"}
Result<std::string> separate_reasoning(const Api& api, std::string_view body);

// /v1/messages/count_tokens
Result<std::string> count_message_tokens(const Api& api, std::string_view body);

std::string version_json(const Api& api);       // /version
std::string load_json(const Api& api);          // /get_load
std::string model_info_json(const Api& api);    // /get_model_info
std::string server_info_json(const Api& api);   // /get_server_info: resolved flags, state
std::string weight_version_json(const Api& api);  // /get_weight_version
std::string model_list_json(const Api& api);    // /v1/models
Result<std::string> model_card_json(const Api& api, std::string_view id);  // /v1/models/{id}

// {"num_steps": 100, "start_step": 15}: a trace of the next steps, or of those behind the 15th, under --profile-dir.
Status start_profile(Api& api, std::string_view body);
Result<std::string> stop_profile(Api& api);  // {"path": "..."}

// {"new_version": "...", "abort_all_requests": true}: only the name; weights are read at start alone.
Result<std::string> update_weight_version(Api& api, std::string_view body);

// {"rid": "...", "abort_all": false}
Status abort_request(Api& api, std::string_view body);

// Answers 200 when a run of one token comes to its end.
void health_generate(const std::shared_ptr<Api>& api, std::shared_ptr<ResponseWriter> writer);

}  // namespace warpweave::server
