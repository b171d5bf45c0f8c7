// Health, model and server information, /flush_cache's relatives.
#include <ctime>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "server/api/errors.h"
#include "server/api/limits.h"
#include "server/api/native.h"

namespace warpweave::server {
namespace {

// Names and paths come from flags and files and may be no UTF-8.
std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json model_card(const EngineInfo& info) {
  static const int64_t started = std::time(nullptr);
  return {{"id", info.served_model_name},
          {"object", "model"},
          {"created", started},
          {"owned_by", "warpweave"},
          {"root", info.served_model_name},  // as SGLang says it; the path is in /get_model_info
          {"parent", nullptr},
          {"max_model_len", info.context_len}};
}

Json adapter_card(const EngineInfo& info, const AdapterInfo& adapter) {
  Json card = model_card(info);
  card["id"] = adapter.name;
  card["root"] = adapter.path;
  card["parent"] = info.served_model_name;
  return card;
}

std::vector<AdapterInfo> adapters_of(const Api& api) {
  AdapterStore* const store = api.context().adapters;
  return store != nullptr ? store->list() : std::vector<AdapterInfo>();
}

Json attention_json(const EngineInfo& info) {
  return {{"prefill", info.prefill_attention_backend},
          {"decode", info.decode_attention_backend},
          {"reasons", info.attention_reasons},
          {"refused", info.attention_refused}};
}

Json state_json(const EngineStats& stats) {
  const auto total = static_cast<double>(stats.max_total_tokens);
  const auto prompt = static_cast<double>(stats.prompt_tokens_total);
  Json json = {{"num_running_reqs", stats.running_reqs},
          {"num_queue_reqs", stats.queued_reqs},
          {"num_used_tokens", stats.used_tokens},
          {"num_evictable_tokens", stats.evictable_tokens},
          {"token_usage", total > 0 ? static_cast<double>(stats.used_tokens) / total : 0.0},
          {"last_gen_throughput", stats.gen_throughput_tokens_per_s},
          {"prompt_tokens_total", stats.prompt_tokens_total},
          {"cached_tokens_total", stats.cached_tokens_total},
          {"cache_hit_rate",
           prompt > 0 ? static_cast<double>(stats.cached_tokens_total) / prompt : 0.0},
          {"generation_tokens_total", stats.generation_tokens_total},
          {"num_requests_total", stats.requests_total},
          {"num_aborted_requests_total", stats.aborted_requests_total},
          {"num_retracted_reqs", stats.retracted_reqs_total},
          {"evicted_tokens_total", stats.evicted_tokens_total},
          {"steps_total", stats.steps_total},
          {"step_overhead_us", stats.step_overhead_us}};
  if (!stats.speculation) return json;
  json["spec_verify_ct"] = stats.speculation->verify_steps;
  json["spec_draft_token_num"] = stats.speculation->draft_tokens;
  json["spec_accept_token_num"] = stats.speculation->accepted_tokens;
  json["avg_spec_accept_length"] = stats.speculation->accept_length();
  json["spec_accept_rate"] = stats.speculation->accept_rate();
  return json;
}

}  // namespace

std::string version_json(const Api&) { return dump({{"version", WARPWEAVE_VERSION}}); }

// One entry: SGLang has one for each of its data-parallel ranks.
std::string load_json(const Api& api) {
  const EngineStats stats = api.engine().stats();
  return dump(Json::array({{{"dp_rank", 0},
                            {"num_reqs", stats.running_reqs + stats.queued_reqs},
                            {"num_running_reqs", stats.running_reqs},
                            {"num_waiting_reqs", stats.queued_reqs},
                            {"num_tokens", stats.used_tokens},
                            {"max_total_num_tokens", stats.max_total_tokens}}}));
}

std::string model_info_json(const Api& api) {
  const EngineInfo& info = api.info();
  const ServerArgs& args = api.context().args;
  return dump({{"model_path", info.model_path},
               {"tokenizer_path",
                args.tokenizer_path.empty() ? info.model_path : args.tokenizer_path},
               {"served_model_name", info.served_model_name},
               {"is_generation", info.generates && !args.is_embedding},
               {"preferred_sampling_params", nullptr},
               {"weight_version", api.weight_version()},
               {"has_image_understanding", false},
               {"has_audio_understanding", false},
               {"model_type", info.model_type},
               {"architectures", Json::array({info.architecture})},
               {"dtype", info.dtype},
               {"context_length", info.context_len},
               {"vocab_size", info.vocab_size}});
}

// SGLang's shape: the flags at the top level, then what was resolved, then the running state.
std::string server_info_json(const Api& api) {
  const EngineInfo& info = api.info();
  Json json = server_args_json(api.context().args);
  const Json resolved = {{"model_path", info.model_path},
                         {"served_model_name", info.served_model_name},
                         {"dtype", info.dtype},
                         {"kv_cache_dtype", info.kv_cache_dtype},
                         {"device", info.device},
                         {"page_size", info.page_size},
                         {"num_pages", info.num_pages},
                         {"context_length", info.context_len},
                         {"max_total_num_tokens", info.max_total_tokens},
                         {"max_num_tokens_at_context_length", info.max_tokens_at_context},
                         {"max_running_requests", info.max_running_requests},
                         {"chunked_prefill_size", info.chunked_prefill_size},
                         {"enable_mixed_chunk", info.enable_mixed_chunk},
                         {"prefill_attention_backend", info.prefill_attention_backend},
                         {"decode_attention_backend", info.decode_attention_backend},
                         {"attention", attention_json(info)},
                         {"eos_token_ids", info.eos_token_ids},
                         {"weight_bytes", info.weight_bytes},
                         {"kv_cache_bytes", info.kv_cache_bytes},
                         {"load_seconds", info.load_seconds},
                         {"status", api.is_ready() ? "ready" : "not_ready"}};
  for (const auto& [name, value] : resolved.items()) json[name] = value;
  json["internal_states"] = Json::array({state_json(api.engine().stats())});
  json["version"] = WARPWEAVE_VERSION;
  return dump(json);
}

std::string model_list_json(const Api& api) {
  Json cards = Json::array({model_card(api.info())});
  for (const AdapterInfo& adapter : adapters_of(api)) cards.push_back(adapter_card(api.info(), adapter));
  return dump({{"object", "list"}, {"data", std::move(cards)}});
}

Result<std::string> model_card_json(const Api& api, std::string_view id) {
  const EngineInfo& info = api.info();
  for (const AdapterInfo& adapter : adapters_of(api)) {
    if (adapter.name == id) return dump(adapter_card(info, adapter));
  }
  if (id != info.served_model_name && id != info.model_path && id != "default") {
    return Status::not_found(fmt::format("The model \"{}\" is not served here; this server has "
                                         "\"{}\".",
                                         id.substr(0, 200), info.served_model_name),
                             "model");
  }
  return dump(model_card(info));
}

Status abort_request(Api& api, std::string_view body) {
  WW_ASSIGN_OR_RETURN(const OwnedJson owned, parse_body(body));
  const Json& json = owned.value;
  FieldReader reader(json);
  std::string rid;
  bool abort_all = false;
  reader.get("rid", TextLimit{kMaxRidBytes}, &rid);
  reader.get("abort_all", &abort_all);
  // Both are about the message to the client, which is always "aborted" here.
  constexpr std::string_view kWithoutEffect[] = {"abort_message", "finished_reason"};
  if (!api.context().args.allow_unknown_fields) reader.refuse_unknown(kWithoutEffect);
  WW_RETURN_IF_ERROR(reader.status());
  if (abort_all) {
    api.engine().abort("");
    return {};
  }
  if (rid.empty()) {  // for the engine it would mean all of them
    return Status::invalid_argument("rid is missing; send the request's rid or abort_all: true.",
                                    "rid");
  }
  api.abort(rid);
  return {};
}

std::string weight_version_json(const Api& api) { return dump({{"weight_version", api.weight_version()}}); }

Result<std::string> update_weight_version(Api& api, std::string_view body) {
  WW_ASSIGN_OR_RETURN(const OwnedJson owned, parse_body(body));
  FieldReader reader(owned.value);
  std::string version;
  const bool named = reader.get("new_version", TextLimit{kMaxRidBytes}, &version);
  bool abort_all = true;  // SGLang's default
  reader.get("abort_all_requests", &abort_all);
  if (!api.context().args.allow_unknown_fields) reader.refuse_unknown();
  WW_RETURN_IF_ERROR(reader.status());
  if (!named) return Status::invalid_argument("new_version is missing; send a text.", "new_version");
  if (abort_all) api.engine().abort("");
  api.set_weight_version(version);
  return dump(
      {{"success", true}, {"message", "The version is changed; the weights are not."}, {"new_version", version}});
}

// SGLang takes the number as a text, too.
Status read_start_step(FieldReader* reader, ProfileRequest* out) {
  constexpr IntRange kRange{0, std::numeric_limits<int>::max(), "the server's steps count from its start"};
  const Json* value = reader->find("start_step");
  if (value == nullptr) return {};
  Json number = *value;
  if (value->is_string()) {
    const auto& digits = value->get_ref<const std::string&>();
    const bool plain =
        !digits.empty() && digits.size() < 10 && digits.find_first_not_of("0123456789") == std::string::npos;
    if (!plain) return wrong_type("start_step", "a whole number", *value);
    number = std::stoi(digits);
  }
  return read_int(number, "start_step", kRange, &out->start_step);
}

Status start_profile(Api& api, std::string_view body) {
  ProfileRequest request;
  request.folder = api.context().args.profile_dir;
  if (request.folder.empty()) {
    return Status::unsupported(
        "profiles are written under --profile-dir, which this server was started without; give it a folder.",
        "--profile-dir");
  }
  if (!body.empty()) {
    WW_ASSIGN_OR_RETURN(const OwnedJson owned, parse_body(body));
    FieldReader reader(owned.value);
    reader.get("num_steps", IntRange{1, std::numeric_limits<int>::max()}, &request.num_steps);
    reader.fail(read_start_step(&reader, &request));
    if (reader.find("output_dir") != nullptr) {
      reader.fail(Status::unsupported("output_dir is chosen at start, by --profile-dir; leave it out.", "output_dir"));
    }
    // What a torch profile would record besides; every trace here is of steps.
    constexpr std::string_view kWithoutEffect[] = {"activities", "with_stack", "record_shapes", "profile_by_stage"};
    if (!api.context().args.allow_unknown_fields) reader.refuse_unknown(kWithoutEffect);
    WW_RETURN_IF_ERROR(reader.status());
  }
  return api.engine().start_profile(request);
}

Result<std::string> stop_profile(Api& api) {
  WW_ASSIGN_OR_RETURN(const std::string path, api.engine().stop_profile());
  return dump({{"path", path}});
}

void health_generate(const std::shared_ptr<Api>& api, std::shared_ptr<ResponseWriter> writer) {
  if (!api->is_ready()) {
    return send_error(*writer, Status::unavailable("The server is not ready."));
  }
  GenerateRequest request;
  request.rid = random_id("HEALTH_CHECK_");
  request.input_ids = {0};
  request.sampling.max_new_tokens = 1;
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  if (!api->info().generates) request.states = StateWish::pooled;
  const std::string rid = request.rid;
  const Status status = api->engine().submit(std::move(request), [writer](OutputDelta delta) {
    if (!delta.finish) return;
    if (delta.finish->type == FinishReason::Type::abort) {
      return send_error(*writer, delta.finish->error.ok()
                                     ? Status::unavailable("The check was aborted.")
                                     : delta.finish->error);
    }
    writer->send(200, "application/json", "{\"status\":\"ok\"}");
  });
  if (!status.ok()) return send_error(*writer, status);
  writer->on_disconnect([api, rid] { api->engine().abort(rid); });
}

}  // namespace warpweave::server
