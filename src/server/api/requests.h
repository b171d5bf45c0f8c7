// Request bodies to generation jobs: the parsers, apart from HTTP so that they can be fuzzed.
//
// Each returns everything the answer needs, or the Status to answer with. Tokenizing happens here.
#pragma once

#include <memory>
#include <string_view>

#include "server/api/generation.h"

namespace warpweave::server {

// `owner`: whose sessions these are.
Result<GenerationJob> parse_native_generate(const Api& api, std::string_view body, std::string_view owner);
Result<GenerationJob> parse_completion(const Api& api, std::string_view body);
Result<GenerationJob> parse_chat(const Api& api, std::string_view body);
Result<GenerationJob> parse_messages(const Api& api, std::string_view body);
// `owner`: whose stored responses these are.
Result<GenerationJob> parse_response(Api& api, std::string_view body, std::string_view owner);

}  // namespace warpweave::server
