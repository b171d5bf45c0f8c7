#include "server/api/completion_template.h"

#include <array>
#include <initializer_list>

#include <fmt/format.h>

#include "base/mapped_file.h"
#include "server/api/field_reader.h"

namespace warpweave::server {
namespace {

using Order = CompletionTemplate::Order;

struct Named {
  const char* name;
  CompletionTemplate markers;
};

const std::array<Named, 3>& named_templates() {
  static const std::array<Named, 3> kNamed = {{
      {"deepseek_coder", {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", Order::prompt_gap_suffix}},
      {"star_coder", {"<fim_prefix>", "<fim_middle>", "<fim_suffix>", Order::prompt_suffix_gap}},
      {"qwen_coder", {"<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", Order::prompt_suffix_gap}},
  }};
  return kNamed;
}

Status about_flag(std::string_view what) {
  return Status::invalid_argument(
      fmt::format("--completion-template: {}; give deepseek_coder, star_coder, qwen_coder, auto, none, or "
                  "a JSON file with fim_begin_token, fim_middle_token, fim_end_token and fim_position",
                  what),
      "--completion-template");
}

Result<CompletionTemplate> read_template(const std::string& path) {
  constexpr size_t kMaxFileBytes = 1 << 16;
  constexpr TextLimit kMarker{256};
  const Result<std::string> text = read_text_file(path, kMaxFileBytes);
  if (!text.ok()) return about_flag(text.status().message());
  const Result<OwnedJson> json = parse_body(*text);
  if (!json.ok()) return about_flag(json.status().message());
  FieldReader reader(json->value);
  CompletionTemplate out;
  std::string name, position;
  reader.get("name", kMarker, &name);
  const bool whole = reader.get("fim_begin_token", kMarker, &out.begin) &&
                     reader.get("fim_middle_token", kMarker, &out.gap) &&
                     reader.get("fim_end_token", kMarker, &out.end) && reader.get("fim_position", kMarker, &position);
  reader.refuse_unknown();
  if (!reader.status().ok()) return about_flag(reader.status().message());
  if (!whole || (position != "MIDDLE" && position != "END")) {
    return about_flag(path + " lacks one of the four members, or its fim_position is neither MIDDLE nor END");
  }
  out.order = position == "MIDDLE" ? Order::prompt_gap_suffix : Order::prompt_suffix_gap;
  return out;
}

}  // namespace

std::string CompletionTemplate::fill(std::string_view prompt, std::string_view suffix) const {
  const bool gap_first = order == Order::prompt_gap_suffix;
  return fmt::format("{}{}{}{}{}", begin, prompt, gap_first ? gap : end, suffix, gap_first ? end : gap);
}

std::string_view CompletionTemplate::missing_from(const Tokenizer& tokenizer) const {
  for (const std::string* marker : {&begin, &gap, &end}) {
    if (!tokenizer.token_to_id(*marker)) return *marker;
  }
  return {};
}

Result<std::optional<CompletionTemplate>> open_completion_template(const std::string& flag) {
  if (flag == "auto" || flag == "none") return std::optional<CompletionTemplate>();
  for (const Named& named : named_templates()) {
    if (named.name == flag) return std::optional(named.markers);
  }
  WW_ASSIGN_OR_RETURN(CompletionTemplate read, read_template(flag));
  return std::optional(std::move(read));
}

std::optional<CompletionTemplate> guess_completion_template(const Tokenizer& tokenizer) {
  for (const Named& named : named_templates()) {
    if (named.markers.missing_from(tokenizer).empty()) return named.markers;
  }
  return std::nullopt;
}

}  // namespace warpweave::server
