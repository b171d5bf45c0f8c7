#include "server/api/api_state.h"

#include <sys/random.h>

#include <random>
#include <utility>

#include <fmt/format.h>

#include "output/formats.h"
#include "server/api/limits.h"

namespace warpweave::server {
namespace {

// What a flag says: a name, "auto" for what the template is recognised by, "none".
std::string_view choose_format(std::string_view flag, const ChatTemplate* chat_template,
                               std::string_view (*guess)(std::string_view)) {
  if (flag == "none") return {};
  if (flag != "auto") return flag;
  return chat_template ? guess(chat_template->source()) : std::string_view();
}

}  // namespace

Api::Api(ApiContext context)
    : context_(std::move(context)), grammars_(make_grammar_compiler(context_.tokenizer, info().eos_token_ids)),
      reasoning_format_(
          choose_format(context_.args.reasoning_parser, context_.chat_template, output::guess_reasoning_format)),
      call_format_(choose_format(context_.args.tool_call_parser, context_.chat_template, output::guess_call_format)),
      weight_version_(context_.args.weight_version) {}

Status Api::require_tokenizer(std::string_view field) const {
  if (context_.tokenizer) return {};
  return Status::unsupported(
      fmt::format("{} needs the tokenizer, and the server runs with --skip-tokenizer-init; send "
                  "input_ids to /generate.",
                  field),
      std::string(field));
}

Status Api::check_model(FieldReader* reader) const {
  std::string name;
  if (!reader->get("model", TextLimit{4096}, &name)) return reader->status();
  const EngineInfo& info = this->info();
  if (context_.args.any_model_name || name == info.served_model_name || name == info.model_path || name == "default") {
    return {};
  }
  return Status::not_found(
      fmt::format("The model \"{}\" is not served here; this server has \"{}\".",
                  name.substr(0, 200), info.served_model_name),
      "model");
}

bool Api::add_group(const std::string& group_rid, std::vector<std::string> rids) {
  std::lock_guard lock(mutex_);
  return groups_.emplace(group_rid, std::move(rids)).second;
}

void Api::remove_group(const std::string& group_rid) {
  std::lock_guard lock(mutex_);
  groups_.erase(group_rid);
}

void Api::abort(const std::string& rid) {
  std::vector<std::string> rids{rid};
  {
    std::lock_guard lock(mutex_);
    if (const auto it = groups_.find(rid); it != groups_.end()) rids = it->second;
  }
  for (const std::string& one : rids) engine().abort(one);
}

std::string Api::weight_version() const {
  std::lock_guard lock(mutex_);
  return weight_version_;
}

void Api::set_weight_version(std::string version) {
  std::lock_guard lock(mutex_);
  weight_version_ = std::move(version);
}

// From the system: an id opens a stored answer, and who has seen many of a generator's numbers can compute the next.
std::string random_id(std::string_view prefix) {
  uint64_t words[2];
  if (getrandom(words, sizeof words, 0) != static_cast<ssize_t>(sizeof words)) {
    std::random_device device;
    for (uint64_t& word : words) word = uint64_t{device()} << 32 | device();
  }
  return fmt::format("{}{:016x}{:016x}", prefix, words[0], words[1]);
}

}  // namespace warpweave::server
