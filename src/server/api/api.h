// The endpoints: /generate and its relatives, the OpenAI ones, health, info, the chat page.
//
// register_api() adds every route; handlers parse a request, hand it to the engine and write the
// answer or a stream from the engine's deltas. What ApiContext points to must outlive the server.
// Thread-safe.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "flags/server_args.h"
#include "server/http.h"
#include "server/api/completion_template.h"
#include "server/metrics.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "warpweave/adapters.h"
#include "warpweave/engine.h"

namespace warpweave::server {

struct ApiContext {
  Engine& engine;
  const ServerArgs& args;
  const Tokenizer* tokenizer = nullptr;         // null with --skip-tokenizer-init: ids only
  const ChatTemplate* chat_template = nullptr;  // null: the model has none
  ServerMetrics* metrics = nullptr;             // null: not measured
  AdapterStore* adapters = nullptr;             // null: no adapters are served
  // What a request to an OpenAI endpoint leaves out: generation_config.json, or the plain values
  // under --sampling-defaults openai. /generate keeps the plain values.
  SamplingParams default_sampling = {};
  std::optional<CompletionTemplate> completion_template = {};  // of `suffix`; none: it is refused
  // False while draining or warming up: /health and /ready answer 503. Empty: always ready.
  std::function<bool()> is_ready = {};
};

void register_api(Router& router, ApiContext context);

}  // namespace warpweave::server
