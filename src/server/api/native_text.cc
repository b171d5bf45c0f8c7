// /tokenize and /detokenize.
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "server/api/chat_prompt.h"
#include "server/api/json_write.h"
#include "server/api/limits.h"
#include "server/api/native.h"
#include "server/api/request_cost.h"

namespace warpweave::server {
namespace {

void append_ids(const std::vector<int32_t>& ids, std::string* out) {
  *out += '[';
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) *out += ',';
    append_json_int(ids[i], out);
  }
  *out += ']';
}

// Messages as the chat template writes them, with tools where they come.
Result<std::string> tokenize_messages(const Api& api, const Json& json, std::string_view body) {
  FieldReader reader(json);
  WW_RETURN_IF_ERROR(api.check_model(&reader));
  WW_RETURN_IF_ERROR(api.require_tokenizer("/tokenize"));
  bool add_special_tokens = false;  // the template writes its own
  reader.get("add_special_tokens", &add_special_tokens);
  WW_ASSIGN_OR_RETURN(const ToolRequest tools, read_tools(api, reader));
  WW_ASSIGN_OR_RETURN(const ChatPrompt prompt, read_chat_prompt(api, &reader, body, tools));
  WW_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, encode_text(api, prompt.rendered.text, "messages",
                                                                  {.add_special_tokens = add_special_tokens,
                                                                   .literal_at = prompt.rendered.literal_at}));
  std::string tokens;
  append_ids(ids, &tokens);
  return fmt::format("{{\"tokens\":{},\"count\":{},\"max_model_len\":{}}}", tokens, ids.size(), api.info().context_len);
}

}  // namespace

Result<std::string> tokenize(const Api& api, std::string_view body) {
  WW_ASSIGN_OR_RETURN(const OwnedJson owned, parse_body(body));
  const Json& json = owned.value;
  if (const auto messages = json.find("messages"); messages != json.end() && !messages->is_null()) {
    return tokenize_messages(api, json, body);
  }
  FieldReader reader(json);
  WW_RETURN_IF_ERROR(api.check_model(&reader));
  WW_RETURN_IF_ERROR(api.require_tokenizer("/tokenize"));
  bool add_special_tokens = true;
  reader.get("add_special_tokens", &add_special_tokens);
  reader.find("prompt");
  if (!api.context().args.allow_unknown_fields) reader.refuse_unknown(kOpenAiFieldsWithoutEffect);
  WW_RETURN_IF_ERROR(reader.status());
  std::vector<std::string> prompts;
  const bool found = reader.get("prompt", TextLimit{kMaxTextBytes, kMaxSequences}, &prompts);
  WW_RETURN_IF_ERROR(reader.status());
  if (!found) {
    return Status::invalid_argument("prompt is missing; send a string or a list of strings.",
                                    "prompt");
  }
  const bool is_batch = reader.find("prompt")->is_array();
  std::string tokens;
  std::string counts;
  for (const std::string& prompt : prompts) {
    WW_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                        encode_text(api, prompt, "prompt",
                                    {.add_special_tokens = add_special_tokens}));
    if (!counts.empty()) {
      tokens += ',';
      counts += ',';
    }
    append_ids(ids, &tokens);
    append_json_int(static_cast<int64_t>(ids.size()), &counts);
  }
  const char* open = is_batch ? "[" : "";
  const char* close = is_batch ? "]" : "";
  return fmt::format("{{\"tokens\":{0}{2}{1},\"count\":{0}{3}{1},\"max_model_len\":{4}}}", open,
                     close, tokens, counts, api.info().context_len);
}

Result<std::string> detokenize(const Api& api, std::string_view body) {
  WW_ASSIGN_OR_RETURN(const OwnedJson owned, parse_body(body));
  const Json& json = owned.value;
  FieldReader reader(json);
  WW_RETURN_IF_ERROR(api.check_model(&reader));
  WW_RETURN_IF_ERROR(api.require_tokenizer("/detokenize"));
  bool skip_special_tokens = true;
  reader.get("skip_special_tokens", &skip_special_tokens);
  reader.find("tokens");
  if (!api.context().args.allow_unknown_fields) reader.refuse_unknown(kOpenAiFieldsWithoutEffect);
  WW_RETURN_IF_ERROR(reader.status());
  const Json* tokens = reader.find("tokens");
  if (!tokens) {
    return Status::invalid_argument("tokens is missing; send a list of token ids.", "tokens");
  }
  const bool is_batch = tokens->is_array() && !tokens->empty() && tokens->front().is_array();
  const auto append_text = [&](const Json& list, const std::string& field,
                               std::string* out) -> Status {
    std::vector<int32_t> ids;
    WW_RETURN_IF_ERROR(read_token_ids(list, field, api.info().vocab_size,
                                      std::numeric_limits<int32_t>::max(), &ids));
    append_json_string(api.tokenizer()->decode(ids, skip_special_tokens), out);
    return {};
  };
  std::string out = "{\"text\":";
  if (is_batch) {
    out += '[';
    for (size_t i = 0; i < tokens->size(); ++i) {
      if (i > 0) out += ',';
      WW_RETURN_IF_ERROR(append_text((*tokens)[i], fmt::format("tokens[{}]", i), &out));
    }
    out += ']';
  } else {
    WW_RETURN_IF_ERROR(append_text(*tokens, "tokens", &out));
  }
  return out += '}';
}

}  // namespace warpweave::server
