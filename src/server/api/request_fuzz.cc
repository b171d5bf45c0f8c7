// Any bytes as the body of any endpoint: an answer comes, once, and a refusal has OpenAI's shape.
// The first byte picks the endpoint, and whether the model generates and embeds or gives labels.
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <string>

#include "server/api/testing.h"

namespace {

using namespace warpweave::server;
using testing::Reply;
using testing::TestApi;

testing::TestApiOptions options(std::vector<std::string> labels) {
  testing::TestApiOptions out;
  out.engine.info.pools = out.engine.info.gives_states = true;
  out.engine.info.hidden_size = out.engine.info.pooled_size = 4;
  out.engine.info.pooling = "last";
  if (labels.empty()) return out;
  out.engine.info.generates = false;
  out.engine.info.pooled_size = static_cast<int>(labels.size());
  out.engine.info.labels = std::move(labels);
  return out;
}

constexpr const char* kPaths[] = {
    "/generate",    "/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/abort_request",
    "/v1/messages", "/v1/responses",   "/v1/embeddings",       "/encode",   "/classify",   "/v1/score",
    "/rerank",      "/v1/rerank",      "/v1/messages/count_tokens", "/open_session", "/close_session",
    "/parse_function_call", "/separate_reasoning", "/update_weight_version"};

void check(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static TestApi generating(options({})), labelling(options({"relevant"}));
  if (size == 0) return 0;
  const std::string path = kPaths[(data[0] & 127) % std::size(kPaths)];
  TestApi& api = (data[0] & 128) != 0 ? labelling : generating;
  const Reply reply = api.post(path, std::string(reinterpret_cast<const char*>(data + 1), size - 1));
  api.engine().forget_submitted();
  if (reply.status == 200 && reply.streamed) {
    const bool typed_events = path == "/v1/messages" || path == "/v1/responses";  // they have no last one
    check(typed_events || reply.events().back() == "[DONE]");
  } else if (reply.status == 200) {
    check(Json::accept(reply.body));
  } else {
    check(reply.status >= 400 && reply.status < 500);
    check(Json::parse(reply.body)["error"]["message"].is_string());
  }
  return 0;
}
