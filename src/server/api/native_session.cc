#include "server/api/native_session.h"

#include <limits>

#include "server/api/json_write.h"
#include "server/api/limits.h"

namespace warpweave::server {

std::optional<SessionWish> read_session(const Api& api, FieldReader* reader) {
  const Json* const object = reader->find("session_params");
  if (object == nullptr) return std::nullopt;
  if (!object->is_object()) {
    reader->fail(wrong_type("session_params", "an object with the session's id", *object));
    return std::nullopt;
  }
  FieldReader fields(*object, "session_params.");
  SessionWish wish;
  const bool has_id = fields.get("id", TextLimit{kMaxRidBytes}, &wish.id);
  fields.get("rid", TextLimit{kMaxRidBytes}, &wish.rid);
  constexpr int kMost = std::numeric_limits<int>::max();
  fields.get("offset", IntRange{-kMost, kMost}, &wish.offset);
  fields.get("replace", &wish.replace);
  fields.get("drop_previous_output", &wish.drop_previous_output);
  if (!api.context().args.allow_unknown_fields) fields.refuse_unknown();
  if (!has_id) {
    fields.fail(Status::invalid_argument("session_params.id is missing; send what /open_session answered.",
                                         "session_params.id"));
  }
  reader->fail(fields.status());
  return wish;
}

Result<std::string> open_session(const Api& api, std::string_view body, const std::string& owner) {
  WW_ASSIGN_OR_RETURN(const OwnedJson owned, parse_body(body));
  FieldReader reader(owned.value);
  std::string id;
  reader.get("session_id", TextLimit{kMaxRidBytes}, &id);
  // SGLang keeps the number and does nothing with it; here the store's own bounds hold.
  int64_t capacity = 0;
  reader.get("capacity_of_str_len", IntRange{0, std::numeric_limits<int64_t>::max()}, &capacity);
  float idle_timeout_s = 0;
  reader.get("timeout", NumberRange{0, 1e9, false, "0 keeps it open"}, &idle_timeout_s);
  bool streaming = false;
  if (reader.get("streaming", &streaming) && streaming) {
    reader.fail(Status::unsupported("streaming sessions are not served; send each part as a request of the session.",
                                    "streaming"));
  }
  if (!api.context().args.allow_unknown_fields) reader.refuse_unknown();
  WW_RETURN_IF_ERROR(reader.status());
  WW_ASSIGN_OR_RETURN(const std::string opened, api.sessions().open(owner, id, idle_timeout_s));
  std::string out;
  append_json_string(opened, &out);
  return out;
}

Result<std::string> close_session(const Api& api, std::string_view body, const std::string& owner) {
  WW_ASSIGN_OR_RETURN(const OwnedJson owned, parse_body(body));
  FieldReader reader(owned.value);
  std::string id;
  const bool has_id = reader.get("session_id", TextLimit{kMaxRidBytes}, &id);
  if (!api.context().args.allow_unknown_fields) reader.refuse_unknown();
  WW_RETURN_IF_ERROR(reader.status());
  if (!has_id) {
    return Status::invalid_argument("session_id is missing; send what /open_session answered.", "session_id");
  }
  if (!api.sessions().close(owner, id)) return Status::not_found("The session is not open.", "session_id");
  return std::string("{}");
}

}  // namespace warpweave::server
