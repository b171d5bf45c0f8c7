#include "server/api/chat_request.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "server/api/chat_prompt.h"
#include "server/api/json_write.h"
#include "server/api/limits.h"
#include "server/api/request_cost.h"

namespace warpweave::server {
namespace {

Status read_options(const Api& api, FieldReader* reader, std::string_view id_prefix, ChatOptions* out) {
  WW_RETURN_IF_ERROR(read_openai_options(api, reader, id_prefix, out));
  out->sampling.default_new_tokens = std::numeric_limits<int>::max();
  bool echo = false;
  if (reader->get("echo", &echo) && echo) {
    reader->fail(Status::unsupported(
        "echo is not supported for chats: the answer holds the assistant's message only; leave it "
        "out.",
        "echo"));
  }
  std::vector<std::string> modalities;
  constexpr TextLimit kFew{16, 8};
  if (reader->get("modalities", kFew, &modalities) &&
      std::ranges::any_of(modalities, [](const std::string& kind) { return kind != "text"; })) {
    reader->fail(Status::unsupported("modalities asks for more than text, and this server answers text; leave it out.",
                                     "modalities"));
  }
  reader->get("logprobs", &out->logprobs);
  if (reader->get("top_logprobs", IntRange{0, kMaxChatTopLogprobs}, &out->top_logprobs) &&
      out->top_logprobs > 0 && !out->logprobs) {
    reader->fail(Status::invalid_argument("top_logprobs needs logprobs to be true.",
                                          "top_logprobs"));
  }
  return reader->status();
}

void make_requests(const ChatOptions& options, const SamplingParams& params, const std::vector<int32_t>& ids,
                   GenerationJob* job) {
  const int n = options.sampling.n;
  for (int choice = 0; choice < n; ++choice) {
    GenerateRequest request = make_request(options, params, choice);
    request.rid = sequence_rid(options.rid, job->requests.size(), static_cast<size_t>(n));
    request.input_ids = ids;
    request.return_logprob = options.logprobs;
    request.top_logprobs_num = options.top_logprobs;
    job->requests.push_back(std::move(request));
  }
  job->stream = options.stream;
  job->group_rid = options.rid;
}

}  // namespace

Result<PreparedChat> prepare_chat(const Api& api, const Json& body, std::string_view strings,
                                  std::string_view id_prefix) {
  FieldReader reader(body, {}, unknown_fields(api));
  PreparedChat chat;
  ChatOptions& options = chat.options;
  options.add_special_tokens = false;  // the template writes its own
  WW_RETURN_IF_ERROR(read_options(api, &reader, id_prefix, &options));
  WW_RETURN_IF_ERROR(check_sequences(api, 1, options.sampling.n, "n"));
  WW_RETURN_IF_ERROR(SamplingBudget().copy(options.sampling.params, static_cast<size_t>(options.sampling.n), "n"));
  WW_ASSIGN_OR_RETURN(const ToolRequest tools, read_tools(api, reader));
  const ReasoningRequest reasoning = read_reasoning_fields(&reader);
  WW_RETURN_IF_ERROR(reader.status());
  WW_ASSIGN_OR_RETURN(const ChatPrompt prompt, read_chat_prompt(api, &reader, strings, tools));
  WW_ASSIGN_OR_RETURN(chat.plan, plan_answer(api, tools, reasoning, {prompt.rendered.text, prompt.continued},
                                             &options.sampling.params));
  PromptEncoder encoder(api, options.sampling.n, options.truncate_prompt_tokens);
  WW_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                      encoder.encode(prompt.rendered.text, "messages",
                                     {.add_special_tokens = options.add_special_tokens,
                                      .literal_at = prompt.rendered.literal_at}));
  WW_ASSIGN_OR_RETURN(const SamplingParams params,
                      fit_to_context(options.sampling, ids.size(), api.info().context_len, Dialect::openai));
  make_requests(options, params, ids, &chat.job);
  WW_RETURN_IF_ERROR(fit_to_logprob_limit(api, !options.sampling.max_new_tokens, &chat.job.requests));
  if (options.return_token_ids) append_json_items(ids, &chat.prompt_ids.emplace_back());
  return chat;
}

}  // namespace warpweave::server
