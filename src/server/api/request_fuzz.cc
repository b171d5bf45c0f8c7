// Any bytes as the body of any endpoint: an answer comes, once, and a refusal has OpenAI's shape.
// The first byte picks the endpoint.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "server/api/testing.h"

using warpweave::server::Json;
using warpweave::server::testing::Reply;
using warpweave::server::testing::TestApi;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static TestApi api;
  static const char* const kPaths[] = {"/generate",   "/v1/completions", "/v1/chat/completions",
                                       "/tokenize",   "/detokenize",     "/abort_request",
                                       "/v1/messages", "/v1/responses"};
  if (size == 0) return 0;
  const char* path = kPaths[data[0] % 8];
  const std::string body(reinterpret_cast<const char*>(data + 1), size - 1);
  const Reply reply = api.post(path, body);
  if (reply.status == 200 && reply.streamed) {
    const std::string_view end = path[4] == 'm' || path[4] == 'r' ? "" : "[DONE]";  // typed events have none
    if (!end.empty() && reply.events().back() != end) std::abort();
  } else if (reply.status == 200) {
    if (!Json::accept(reply.body)) std::abort();
  } else if (reply.status >= 400 && reply.status < 500) {
    if (!Json::parse(reply.body)["error"]["message"].is_string()) std::abort();
  } else {
    std::abort();
  }
  return 0;
}
