// Help, docs/flags.md and the JSON of /get_server_info, all written from the table.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <type_traits>

#include "flags/flag_table.h"
#include "flags/server_args.h"

namespace warpweave {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

constexpr FlagGroup kGroups[] = {FlagGroup::model,     FlagGroup::numbers,     FlagGroup::http,
                                 FlagGroup::memory,    FlagGroup::attention,
                                 FlagGroup::speculative, FlagGroup::adapters, FlagGroup::observation, FlagGroup::chat};

nlohmann::ordered_json value_json(const FlagSpec& spec, const ServerArgs& args) {
  return std::visit(
      [&](auto member) -> nlohmann::ordered_json {
        const auto& value = args.*member;
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::string>) {
          if (spec.secret) return !value.empty();
          if (value.empty()) return nullptr;
          if (spec.many) return lines_of(value);
          return value;
        } else if constexpr (std::is_arithmetic_v<T>) {
          return value;
        } else {
          if (!value) return nullptr;
          return *value;
        }
      },
      spec.target);
}

std::string default_text(const FlagSpec& spec) {
  if (!spec.default_text.empty()) return std::string(spec.default_text);
  if (spec.value_name.empty()) return "off";
  const nlohmann::ordered_json value = value_json(spec, ServerArgs{});
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float() && value.get<double>() == static_cast<int64_t>(value.get<double>())) {
    return fmt::format("{}", static_cast<int64_t>(value.get<double>()));
  }
  return value.dump();
}

bool shown(const FlagSpec& spec, Command command, bool all) {
  if (spec.explain_only && command != Command::explain) return false;
  if (spec.run_only && command != Command::run) return false;
  return all || spec.common || spec.explain_only;
}

std::string usage(Command command) {
  switch (command) {
    case Command::serve:
      return "Usage: warpweave serve [flags]\n\nServes a model over HTTP.\n\n"
             "  warpweave serve                            the embedded model at port 30000\n"
             "  warpweave serve --model-path ./my-model    a model folder or GGUF file\n";
    case Command::run:
      return "Usage: warpweave run [flags]\n\nChats in the terminal; /help lists its commands, /exit or Ctrl-D ends, "
             "Ctrl-C "
             "stops an answer.\nTakes the flags of `warpweave serve` too.\n";
    case Command::explain:
      return "Usage: warpweave explain [flags]\n\nPrints which attention backend each phase would "
             "run and why, without loading weights.\nTakes the flags of `warpweave serve`. Exit "
             "code 0: resolved, 3: refused.\n";
  }
  return {};
}

}  // namespace

std::string flags_help(Command command, bool all) {
  std::string out = usage(command);
  for (FlagGroup group : kGroups) {
    std::string part;
    for (const FlagSpec& spec : flag_table()) {
      if (spec.group != group || !shown(spec, command, all)) continue;
      std::string head = fmt::format("  {}", fmt::join(spec.names, ", "));
      if (!spec.value_name.empty()) head += fmt::format(" {}", spec.value_name);
      if (head.size() > 36) {
        part += head + "\n";
        head.clear();
      }
      part += fmt::format("{:<38}{}", head, spec.help);
      if (!spec.choices.empty()) part += fmt::format(": {}", fmt::join(spec.choices, ", "));
      if (!spec.value_name.empty()) part += fmt::format(" [{}]", default_text(spec));
      part += "\n";
    }
    if (!part.empty()) out += fmt::format("\n{}:\n{}", flag_group_title(group), part);
  }
  if (!all) out += "\n  --help-all                          Every flag\n";
  return out;
}

std::string flags_markdown() {
  std::string out =
      "# Flags\n\nWritten by `warpweave docs flags` from the table that parses them; do not edit.\n"
      "`--flag value` and `--flag=value` are the same; of a flag given twice the last counts.\n"
      "Token and byte counts take suffixes: `8k` is 8000, `8Ki` is 8192.\n"
      "A flag that SGLang knows and this server does not is refused with advice, never ignored.\n";
  for (FlagGroup group : kGroups) {
    out += fmt::format("\n## {}\n\n| flag | default | meaning |\n|---|---|---|\n",
                       flag_group_title(group));
    for (const FlagSpec& spec : flag_table()) {
      if (spec.group != group) continue;
      std::string name = fmt::format("`{}", fmt::join(spec.names, "`, `"));
      if (!spec.value_name.empty()) name += fmt::format(" {}", spec.value_name);
      std::string help(spec.help);
      if (!spec.choices.empty()) help += fmt::format(": {}", fmt::join(spec.choices, ", "));
      out += fmt::format("| {}` | {} | {} |\n", name, default_text(spec), help);
    }
  }
  return out;
}

nlohmann::ordered_json server_args_json(const ServerArgs& args) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const FlagSpec& spec : flag_table()) {
    if (spec.explain_only || spec.run_only) continue;
    std::string key(spec.names[0].substr(2));
    std::replace(key.begin(), key.end(), '-', '_');
    json[key] = value_json(spec, args);
  }
  return json;
}

}  // namespace warpweave
