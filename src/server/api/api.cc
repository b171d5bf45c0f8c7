#include "server/api/api.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include <fmt/format.h>

#include "server/api/adapters.h"
#include "server/api/errors.h"
#include "server/api/input_items.h"
#include "server/api/json_write.h"
#include "server/api/native.h"
#include "server/api/native_session.h"
#include "server/api/pooled.h"
#include "server/api/requests.h"
#include "server/ui/chat_page.h"

namespace warpweave::server {
namespace {

using Request = std::shared_ptr<const HttpRequest>;
using Writer = std::shared_ptr<ResponseWriter>;
using ApiPtr = std::shared_ptr<Api>;

constexpr std::string_view kJson = "application/json";
constexpr std::string_view kText = "text/plain; charset=utf-8";

void send_json(ResponseWriter& writer, Result<std::string> body) {
  if (!body.ok()) return send_error(writer, body.status());
  writer.send(200, kJson, std::move(body).value());
}

using Parser = Result<GenerationJob> (*)(const Api&, std::string_view);

Handler generation_handler(ApiPtr api, Parser parse) {
  return [api = std::move(api), parse](Request request, Writer writer) {
    Result<GenerationJob> job = parse(*api, request->body);
    if (!job.ok()) return send_error(*writer, job.status());
    start_generation(api, std::move(job).value(), std::move(writer));
  };
}

// Whose stored responses and sessions a request may see: those of the key it sends, in whichever header.
std::string owner_of(const HttpRequest& request) {
  std::string_view key = request.header("authorization");
  if (key.empty()) return std::string(request.header("x-api-key"));
  constexpr std::string_view kScheme = "bearer ";
  const auto same = [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; };
  if (std::ranges::equal(key.substr(0, kScheme.size()), kScheme, same)) key.remove_prefix(kScheme.size());
  while (key.starts_with(' ')) key.remove_prefix(1);
  return std::string(key);
}

Handler responses_handler(ApiPtr api) {
  return [api = std::move(api)](Request request, Writer writer) {
    Result<GenerationJob> job = parse_response(*api, request->body, owner_of(*request));
    if (!job.ok()) return send_error(*writer, job.status());
    start_generation(api, std::move(job).value(), std::move(writer));
  };
}

Status no_such_response(std::string_view id) {
  if (const size_t slash = id.find('/'); slash != std::string_view::npos) {
    return Status::not_found(
        fmt::format("Of a response itself and its input_items are kept here, and not its {}; ask for /v1/responses/{}.",
                    id.substr(slash + 1, 100), id.substr(0, std::min<size_t>(slash, 100))),
        "response_id");
  }
  return Status::not_found(fmt::format("The response \"{}\" is not stored here.", id.substr(0, 100)), "response_id");
}

constexpr std::string_view kResponsePrefix = "/v1/responses/";
constexpr std::string_view kInputItems = "/input_items";

// Events are sent once, as they come; what is kept is the whole answer.
Status refuse_stream_of_kept(std::string_view query) {
  while (!query.empty()) {
    const std::string_view parameter = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), parameter.size() + 1));
    const std::string_view name = parameter.substr(0, parameter.find('='));
    if ((name == "stream" && !parameter.ends_with("=false")) || name == "starting_after") {
      return Status::unsupported(
          fmt::format("{} asks for a response's events again, but the whole answer is kept; leave it out.", name),
          std::string(name));
    }
  }
  return {};
}

// GET /v1/responses/ID, and /v1/responses/ID/input_items.
void send_response(Api& api, const HttpRequest& request, ResponseWriter& writer) {
  std::string id = request.path.substr(kResponsePrefix.size());
  const bool items = id.ends_with(kInputItems);
  if (items) id.resize(id.size() - kInputItems.size());
  const std::optional<ResponseStore::Entry> entry = api.responses().get(owner_of(request), id);
  if (!entry) return send_error(writer, no_such_response(id));
  if (!items) {
    const Status whole = refuse_stream_of_kept(request.query);
    return whole.ok() ? writer.send(200, kJson, entry->body) : send_error(writer, whole);
  }
  Result<std::string> page = page_of_items(entry->input, request.query);
  if (!page.ok()) return send_error(writer, page.status());
  writer.send(200, kJson, std::move(page).value());
}

void add_responses_routes(Router& router, const ApiPtr& api) {
  router.add({"POST", "/v1/responses", AuthLevel::api_key, responses_handler(api)});
  router.add({"GET", "/v1/responses/*", AuthLevel::api_key, [api](Request request, Writer writer) {
                send_response(*api, *request, *writer);
              }});
  router.add({"DELETE", "/v1/responses/*", AuthLevel::api_key, [api](Request request, Writer writer) {
                const std::string id = request->path.substr(kResponsePrefix.size());
                if (!api->responses().erase(owner_of(*request), id)) return send_error(*writer, no_such_response(id));
                std::string body = "{\"id\":";
                append_json_string(id, &body);
                writer->send(200, kJson, body + ",\"object\":\"response\",\"deleted\":true}");
              }});
}

// Anthropic's shape, also of its errors.
void add_messages_routes(Router& router, const ApiPtr& api) {
  router.add({"POST", "/v1/messages", AuthLevel::api_key, [api](Request request, Writer writer) {
                Result<GenerationJob> job = parse_messages(*api, request->body);
                if (!job.ok()) return send_error(*writer, job.status(), ErrorShape::anthropic);
                start_generation(api, std::move(job).value(), std::move(writer));
              }});
  router.add({"POST", "/v1/messages/count_tokens", AuthLevel::api_key, [api](Request request, Writer writer) {
                Result<std::string> count = count_message_tokens(*api, request->body);
                if (!count.ok()) return send_error(*writer, count.status(), ErrorShape::anthropic);
                writer->send(200, kJson, std::move(count).value());
              }});
}

using BodyAnswer = Result<std::string> (*)(const Api&, std::string_view);

Handler body_handler(ApiPtr api, BodyAnswer answer) {
  return [api = std::move(api), answer](Request request, Writer writer) {
    send_json(*writer, answer(*api, request->body));
  };
}

using InfoAnswer = std::string (*)(const Api&);

Handler info_handler(ApiPtr api, InfoAnswer answer) {
  return [api = std::move(api), answer](Request, Writer writer) {
    writer->send(200, kJson, answer(*api));
  };
}

Handler health_handler(ApiPtr api) {
  return [api = std::move(api)](Request, Writer writer) {
    if (!api->is_ready()) {
      return send_error(*writer, Status::unavailable("The server is not ready."));
    }
    writer->send(200, kJson, "{\"status\":\"ok\"}");
  };
}

void add_adapter_routes(Router& router, const ApiPtr& api) {
  struct JsonRoute {
    const char* path;
    BodyAnswer answer;
  };
  for (const auto& [path, answer] :
       {JsonRoute{"/load_lora_adapter", load_adapter}, {"/unload_lora_adapter", unload_adapter}}) {
    router.add({"POST", path, AuthLevel::admin, body_handler(api, answer)});
  }
  for (const auto& [path, answer] :
       {JsonRoute{"/v1/load_lora_adapter", load_adapter_vllm}, {"/v1/unload_lora_adapter", unload_adapter_vllm}}) {
    router.add({"POST", path, AuthLevel::admin, [api, answer = answer](Request request, Writer writer) {
                  Result<std::string> said = answer(*api, request->body);
                  if (!said.ok()) return send_error(*writer, said.status());
                  writer->send(200, kText, std::move(said).value());
                }});
  }
}

void add_session_routes(Router& router, const ApiPtr& api) {
  struct SessionRoute {
    const char* path;
    Result<std::string> (*answer)(const Api&, std::string_view, const std::string&);
  };
  for (const auto& [path, answer] : {SessionRoute{"/open_session", open_session}, {"/close_session", close_session}}) {
    router.add({"POST", path, AuthLevel::api_key, [api, answer = answer](Request request, Writer writer) {
                  send_json(*writer, answer(*api, request->body, owner_of(*request)));
                }});
  }
}

void flush_cache(Api& api, ResponseWriter& writer) {
  if (api.engine().flush_cache()) return writer.send(200, kText, "Cache flushed.\n");
  send_error(writer, Status::invalid_argument(
                         "The cache was not flushed: requests are running; try again when "
                         "num_running_reqs and num_queue_reqs in /get_server_info are 0."));
}

constexpr std::string_view kModelPrefix = "/v1/models/";

void add_openai_routes(Router& router, const ApiPtr& api) {
  router.add({"POST", "/v1/completions", AuthLevel::api_key,
              generation_handler(api, parse_completion)});
  for (const char* path : {"/v1/chat/completions", "/invocations"}) {  // the second is SageMaker's
    router.add({"POST", path, AuthLevel::api_key, generation_handler(api, parse_chat)});
  }
  router.add({"GET", "/v1/models", AuthLevel::api_key, info_handler(api, model_list_json)});
  router.add({"GET", "/v1/models/*", AuthLevel::api_key, [api](Request request, Writer writer) {
                send_json(*writer,
                          model_card_json(*api, std::string_view(request->path)
                                                    .substr(kModelPrefix.size())));
              }});
}

void add_native_routes(Router& router, const ApiPtr& api) {
  for (const char* method : {"POST", "PUT"}) {
    router.add({method, "/generate", AuthLevel::api_key, [api](Request request, Writer writer) {
                  Result<GenerationJob> job = parse_native_generate(*api, request->body, owner_of(*request));
                  if (!job.ok()) return send_error(*writer, job.status());
                  start_generation(api, std::move(job).value(), std::move(writer));
                }});
  }
  add_session_routes(router, api);
  for (const char* path : {"/tokenize", "/v1/tokenize"}) {
    router.add({"POST", path, AuthLevel::api_key, body_handler(api, tokenize)});
  }
  for (const char* path : {"/detokenize", "/v1/detokenize"}) {
    router.add({"POST", path, AuthLevel::api_key, body_handler(api, detokenize)});
  }
  router.add({"POST", "/parse_function_call", AuthLevel::api_key, body_handler(api, parse_function_call)});
  router.add({"POST", "/separate_reasoning", AuthLevel::api_key, body_handler(api, separate_reasoning)});
  for (const char* path : {"/get_model_info", "/model_info"}) {
    router.add({"GET", path, AuthLevel::api_key, info_handler(api, model_info_json)});
  }
  for (const char* path : {"/get_server_info", "/server_info"}) {
    router.add({"GET", path, AuthLevel::api_key, info_handler(api, server_info_json)});
  }
  router.add({"GET", "/version", AuthLevel::api_key, info_handler(api, version_json)});
  for (const char* path : {"/get_load", "/v1/loads"}) {
    router.add({"GET", path, AuthLevel::api_key, info_handler(api, load_json)});
  }
  router.add({"POST", "/abort_request", AuthLevel::admin, [api](Request request, Writer writer) {
                const Status status = abort_request(*api, request->body);
                if (!status.ok()) return send_error(*writer, status);
                writer->send(200, kJson, "{\"status\":\"ok\"}");
              }});
  for (const char* path : {"/get_weight_version", "/weight_version"}) {
    router.add({"GET", path, AuthLevel::api_key, info_handler(api, weight_version_json)});
  }
  router.add({"POST", "/update_weight_version", AuthLevel::admin, [api](Request request, Writer writer) {
                send_json(*writer, update_weight_version(*api, request->body));
              }});
  router.add({"POST", "/start_profile", AuthLevel::admin, [api](Request request, Writer writer) {
                const Status status = start_profile(*api, request->body);
                if (!status.ok()) return send_error(*writer, status);
                writer->send(200, kText, "Start profiling.\n");
              }});
  router.add({"POST", "/stop_profile", AuthLevel::admin,
              [api](Request, Writer writer) { send_json(*writer, stop_profile(*api)); }});
  router.add({"GET", "/debug/audit", AuthLevel::admin, [api](Request, Writer writer) {
                const Status status = api->engine().audit();
                if (!status.ok()) return send_error(*writer, status);
                writer->send(200, kJson, "{\"status\":\"ok\"}");
              }});
  router.add({"POST", "/flush_cache", AuthLevel::admin,
              [api](Request, Writer writer) { flush_cache(*api, *writer); }});
}

void add_pooled_routes(Router& router, const ApiPtr& api) {
  struct PooledRoute {
    const char* path;
    Parser parse;
  };
  for (const auto& [path, parse] : {PooledRoute{"/v1/embeddings", parse_embeddings}, {"/encode", parse_encode},
                                    {"/classify", parse_classify}, {"/v1/classify", parse_classify},
                                    {"/score", parse_score}, {"/v1/score", parse_score}, {"/rerank", parse_rerank},
                                    {"/v2/rerank", parse_rerank}, {"/v1/rerank", parse_rerank_native}}) {
    router.add({"POST", path, AuthLevel::api_key, generation_handler(api, parse)});
  }
}

void add_open_routes(Router& router, const ApiPtr& api) {
  for (const char* path : {"/health", "/ready", "/ping"}) {
    router.add({"GET", path, AuthLevel::open, health_handler(api), /*runs_at_once=*/true});
  }
  // It costs a run of the model, so it is not for anyone.
  router.add({"GET", "/health_generate", AuthLevel::api_key,
              [api](Request, Writer writer) { health_generate(api, std::move(writer)); }});
  for (const PageFile& file : chat_page_files()) {
    const std::string path = file.name == "index.html" ? "/" : fmt::format("/ui/{}", file.name);
    router.add({"GET", path, AuthLevel::open, [file](Request, Writer writer) {
                  // A newer program's page must not run an older one's script.
                  writer->send(200, file.content_type, std::string(file.bytes),
                               {{"Cache-Control", "no-cache"}, {"X-Content-Type-Options", "nosniff"}});
                }});
  }
}

}  // namespace

void register_api(Router& router, ApiContext context) {
  const auto api = std::make_shared<Api>(std::move(context));
  Router own;
  add_openai_routes(own, api);
  add_responses_routes(own, api);
  add_messages_routes(own, api);
  add_native_routes(own, api);
  add_adapter_routes(own, api);
  add_pooled_routes(own, api);
  add_open_routes(own, api);
  for (Route route : own.routes()) {
    route.handler = guarded(std::move(route.handler));
    router.add(std::move(route));
  }
}

}  // namespace warpweave::server
