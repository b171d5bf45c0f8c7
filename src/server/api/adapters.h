// Adapters in requests and their own endpoints. Thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "server/api/api_state.h"

namespace warpweave::server {

// The adapter that a body names by `model` or `lora_path`; without weights: the model itself. `model` is absent,
// "default", the served name or the model's path; an adapter's name; or one of the former, a colon and an adapter's
// name. Else not_found.
Result<AdapterInfo> read_model(const Api& api, FieldReader* reader);

// An adapter by its name, which stands in `field`.
Result<AdapterInfo> find_adapter(const Api& api, const std::string& name, std::string_view field);

// {"lora_name": "...", "lora_path": "..."} of /load_lora_adapter and /unload_lora_adapter, answered as by SGLang: all
// that are loaded; and of /v1/load_lora_adapter and /v1/unload_lora_adapter, answered as by vLLM: a sentence.
Result<std::string> load_adapter(const Api& api, std::string_view body);
Result<std::string> unload_adapter(const Api& api, std::string_view body);
Result<std::string> load_adapter_vllm(const Api& api, std::string_view body);
Result<std::string> unload_adapter_vllm(const Api& api, std::string_view body);

}  // namespace warpweave::server
