// Pieces of JSON text appended to a string: what streams use for each token instead of a DOM.
// All functions write valid JSON for any input. Thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace warpweave::server {

// The inside of a JSON string: escapes what must be escaped; bytes that are no UTF-8 become U+FFFD.
void append_json_escaped(std::string_view text, std::string* out);
// With the quotes around it.
void append_json_string(std::string_view text, std::string* out);

void append_json_int(int64_t value, std::string* out);
void append_json_double(double value, std::string* out);  // not finite: null
// [0.25,-1.5]; all are finite.
void append_json_floats(std::span<const float> values, std::string* out);

// A log-probability: NaN becomes null; minus infinity, which JSON lacks, becomes -9999.0.
void append_json_logprob(float value, std::string* out);

// 1,2,3: the items of a list, behind those that are in `list` already.
void append_json_items(std::span<const int32_t> values, std::string* list);

// ,"cached_tokens_by_layer":{...} behind an object's cached_tokens: of models with recurrent layers, whose cache ends
// at a state.
void append_cached_by_layer(int64_t attention_tokens, int64_t recurrent_tokens, std::string* out);

// [0,255,...]
void append_json_bytes(std::string_view bytes, std::string* out);

}  // namespace warpweave::server
