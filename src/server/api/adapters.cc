// Adapters: which one a request means, and loading and unloading them in SGLang's and vLLM's shapes.
#include "server/api/adapters.h"

#include <utility>

#include <fmt/format.h>

#include "server/api/limits.h"

namespace warpweave::server {
namespace {

Status not_served(std::string field) {
  return Status::unsupported(
      "This server serves no adapters; start it with --enable-lora, --lora-paths or --lora-root.", std::move(field));
}

struct NamedFolder {
  std::string name;
  std::string path;
};

// The fields of a body that loads or unloads. `with_path`: it names a folder, too.
Result<NamedFolder> read_names(const Api& api, std::string_view body, bool with_path) {
  if (api.context().adapters == nullptr) return not_served("lora_name");
  WW_ASSIGN_OR_RETURN(const OwnedJson owned, parse_body(body));
  FieldReader reader(owned.value);
  NamedFolder out;
  reader.get("lora_name", TextLimit{kMaxRidBytes}, &out.name);
  if (out.name.empty()) {
    reader.fail(Status::invalid_argument("lora_name is missing; send the adapter's name.", "lora_name"));
  }
  if (with_path) {
    reader.get("lora_path", TextLimit{4096}, &out.path);
    if (out.path.empty()) {
      reader.fail(Status::invalid_argument("lora_path is missing; send a folder below --lora-root.", "lora_path"));
    }
    bool in_place = false;
    if (reader.get("load_inplace", &in_place) && in_place) {
      reader.fail(Status::unsupported("load_inplace is not supported: unload the adapter first, then load it.",
                                      "load_inplace"));
    }
    const Json* const tokens = reader.find("added_tokens_config");
    if (tokens != nullptr && !tokens->is_null()) {
      reader.fail(Status::unsupported("added_tokens_config is not supported: adapters add no tokens; leave it out.",
                                      "added_tokens_config"));
    }
  }
  // Adapters stay until they are unloaded, and have no other name than theirs.
  constexpr std::string_view kWithoutEffect[] = {"pinned", "lora_id", "lora_int_id", "base_model_name",
                                                 "is_3d_lora_weight"};
  if (!api.context().args.allow_unknown_fields) reader.refuse_unknown(kWithoutEffect);
  WW_RETURN_IF_ERROR(reader.status());
  return out;
}

Result<NamedFolder> load_named(const Api& api, std::string_view body) {
  WW_ASSIGN_OR_RETURN(NamedFolder names, read_names(api, body, true));
  const Status status = api.context().adapters->load_from_root(names.name, names.path).status();
  if (status.ok()) return names;
  const std::string field = status.field().empty() ? "lora_path" : status.field();
  // A broken file is no failure of the server, and no room for another adapter is nothing that passes by waiting.
  if (status.code() == StatusCode::data_loss || status.code() == StatusCode::resource_exhausted) {
    return Status::invalid_argument(status.message(), field);
  }
  return Status(status.code(), status.message(), field);
}

std::string loaded_json(const Api& api) {
  Json loaded = Json::object();
  for (const AdapterInfo& adapter : api.context().adapters->list()) loaded[adapter.name] = adapter.path;
  return Json({{"success", true}, {"error_message", ""}, {"loaded_adapters", std::move(loaded)}})
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool names_the_model(const Api& api, std::string_view name) {
  const EngineInfo& info = api.info();
  return name == info.served_model_name || name == info.model_path || name == "default";
}

Status no_such_model(const Api& api, std::string_view name) {
  const bool adapters = api.context().adapters != nullptr && !api.context().adapters->list().empty();
  return Status::not_found(
      fmt::format("The model \"{}\" is not served here; this server has \"{}\"{}.", name.substr(0, 200),
                  api.info().served_model_name, adapters ? " and the adapters of /v1/models" : ""),
      "model");
}

}  // namespace

Result<AdapterInfo> find_adapter(const Api& api, const std::string& name, std::string_view field) {
  if (api.context().adapters == nullptr) return not_served(std::string(field));
  Result<AdapterInfo> found = api.context().adapters->take(name);
  if (found.ok()) return found;
  return Status(found.status().code(), found.status().message(), std::string(field));
}

Result<AdapterInfo> read_model(const Api& api, FieldReader* reader) {
  std::string name, lora_path;
  if (!reader->get("model", TextLimit{4096}, &name)) WW_RETURN_IF_ERROR(reader->status());
  reader->get("lora_path", TextLimit{kMaxRidBytes}, &lora_path);
  WW_RETURN_IF_ERROR(reader->status());
  AdapterInfo out;
  if (!name.empty() && !names_the_model(api, name)) {
    const size_t colon = name.rfind(':');
    const bool suffixed = colon != name.npos && names_the_model(api, std::string_view(name).substr(0, colon));
    Result<AdapterInfo> by_name = api.context().adapters != nullptr
                                      ? api.context().adapters->take(suffixed ? name.substr(colon + 1) : name)
                                      : Result<AdapterInfo>(no_such_model(api, name));
    if (by_name.ok()) {
      out = std::move(by_name).value();
    } else if (suffixed && api.context().adapters != nullptr) {
      return Status(by_name.status().code(), by_name.status().message(), "model");
    } else if (!api.context().args.any_model_name) {
      return no_such_model(api, name);
    }
  }
  if (lora_path.empty()) return out;
  if (out.weights != nullptr && out.name != lora_path) {
    return Status::invalid_argument("model and lora_path name two adapters; send one of them.", "lora_path");
  }
  return find_adapter(api, lora_path, "lora_path");
}

Result<std::string> load_adapter(const Api& api, std::string_view body) {
  WW_ASSIGN_OR_RETURN(const NamedFolder names, load_named(api, body));
  return loaded_json(api);
}

Result<std::string> unload_adapter(const Api& api, std::string_view body) {
  WW_ASSIGN_OR_RETURN(const NamedFolder names, read_names(api, body, false));
  WW_RETURN_IF_ERROR(api.context().adapters->unload(names.name));
  return loaded_json(api);
}

Result<std::string> load_adapter_vllm(const Api& api, std::string_view body) {
  WW_ASSIGN_OR_RETURN(const NamedFolder names, load_named(api, body));
  return fmt::format("Success: LoRA adapter '{}' added successfully.", names.name);
}

Result<std::string> unload_adapter_vllm(const Api& api, std::string_view body) {
  WW_ASSIGN_OR_RETURN(const NamedFolder names, read_names(api, body, false));
  WW_RETURN_IF_ERROR(api.context().adapters->unload(names.name));
  return fmt::format("Success: LoRA adapter '{}' removed successfully.", names.name);
}

}  // namespace warpweave::server
