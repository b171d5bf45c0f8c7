#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <set>

#include "flags/flag_table.h"
#include "flags/nearest_name.h"
#include "flags/server_args.h"

namespace warpweave {
namespace {

constexpr size_t kMaxValueBytes = 1 << 20;
constexpr int kMostValues = 4096;  // of a flag that takes several

std::string command_line(Command command) {
  switch (command) {
    case Command::serve: return "warpweave serve";
    case Command::run: return "warpweave run";
    case Command::explain: return "warpweave explain";
  }
  return {};
}

// A failure in one form: flag and value, the rule, a command that works.
Status bad_value(Command command, std::string_view flag, std::string_view value,
                 std::string_view rule, std::string_view fix) {
  return Status::invalid_argument(
      fmt::format("{} {}: {}; try: {} {}", flag, value, rule, command_line(command), fix),
      std::string(flag));
}

// `what`: the flag, with its value where that is what is refused; `flag`: of the field, where it differs.
Status not_here(std::string_view what, std::string_view why, std::string_view advice, std::string_view flag = {}) {
  return Status::unsupported(fmt::format("{}: {}; {}", what, why, advice), std::string(flag.empty() ? what : flag));
}

// Digits with an optional suffix: k, M, G (powers of 1000, decimals allowed), Ki, Mi, Gi.
std::optional<double> parse_scaled(std::string_view text) {
  struct Suffix { std::string_view name; double scale; };
  static constexpr Suffix kSuffixes[] = {{"Ki", 1024.0}, {"Mi", 1048576.0}, {"Gi", 1073741824.0},
                                         {"k", 1e3},     {"M", 1e6},        {"G", 1e9}};
  double scale = 1;
  for (const Suffix& suffix : kSuffixes) {
    if (text.size() > suffix.name.size() && text.ends_with(suffix.name)) {
      scale = suffix.scale;
      text.remove_suffix(suffix.name.size());
      break;
    }
  }
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(number)) {
    return std::nullopt;
  }
  return number * scale;
}

std::string number_text(double value) {
  return value == std::floor(value) && std::abs(value) < 1e15
             ? fmt::format("{}", static_cast<int64_t>(value))
             : fmt::format("{}", value);
}

std::string range_text(const FlagSpec& spec, bool whole) {
  const std::string kind = whole ? "a whole number" : "a number";
  return spec.max >= std::numeric_limits<int>::max()
             ? fmt::format("must be {} from {} up", kind, number_text(spec.min))
             : fmt::format("must be {} between {} and {}", kind, number_text(spec.min),
                           number_text(spec.max));
}

// The number, checked against the flag's bounds.
Result<double> checked_number(Command command, const FlagSpec& spec, std::string_view text,
                              bool whole) {
  const std::optional<double> number = parse_scaled(text);
  const bool in_range = number && *number >= spec.min && *number <= spec.max;
  if (in_range && (!whole || *number == std::floor(*number))) return *number;
  const double nearest = std::clamp(number ? std::round(*number) : spec.min, spec.min, spec.max);
  return bad_value(command, spec.names[0], text, range_text(spec, whole),
                   fmt::format("{} {}", spec.names[0], number_text(nearest)));
}

struct Assign {
  Command command;
  const FlagSpec& spec;
  std::string_view value;
  ServerArgs& args;

  Status operator()(bool ServerArgs::*member) const {
    args.*member = true;
    return {};
  }
  Status operator()(std::string ServerArgs::*member) const {
    if (value.empty()) {
      return bad_value(command, spec.names[0], "''", "the value is empty",
                       fmt::format("without {}", spec.names[0]));
    }
    if (value.size() > kMaxValueBytes || value.find('\0') != std::string_view::npos) {
      return bad_value(command, spec.names[0], "...", "the value is too long or holds a NUL",
                       fmt::format("{} {}", spec.names[0], spec.value_name));
    }
    if (!spec.choices.empty() &&
        std::find(spec.choices.begin(), spec.choices.end(), value) == spec.choices.end()) {
      if (std::find(spec.unserved_choices.begin(), spec.unserved_choices.end(), value) !=
          spec.unserved_choices.end()) {
        return refuse("known, not supported here", fmt::format("supported: {}; ", fmt::join(spec.choices, ", ")));
      }
      for (const RefusedValue& refused : spec.refused) {
        if (refused.value == value) return refuse(refused.rule, "");
      }
      const std::string_view near = nearest_name(value, spec.choices);
      return bad_value(command, spec.names[0], value,
                       fmt::format("must be one of {}", fmt::join(spec.choices, ", ")),
                       fmt::format("{} {}", spec.names[0], near.empty() ? spec.choices[0] : near));
    }
    args.*member = std::string(value);
    return {};
  }
  template <typename T>
  Status operator()(T ServerArgs::*member) const {
    return number<T>(args.*member);
  }
  template <typename T>
  Status operator()(std::optional<T> ServerArgs::*member) const {
    T parsed{};
    WW_RETURN_IF_ERROR(number<T>(parsed));
    args.*member = parsed;
    return {};
  }
  // A known value that is not served: all such are refused together, when every flag is read.
  Status refuse(std::string_view rule, const std::string& choices) const {
    args.unserved_values.push_back(
        not_here(fmt::format("{} {}", spec.names[0], value), rule,
                 fmt::format("{}try: {} {} {}", choices, command_line(command), spec.names[0], spec.choices[0]),
                 spec.names[0]));
    return {};
  }
  template <typename T>
  Status number(T& slot) const {
    WW_ASSIGN_OR_RETURN(const double parsed,
                        checked_number(command, spec, value, std::is_integral_v<T>));
    slot = static_cast<T>(parsed);
    return {};
  }
};

Status unknown_flag(Command command, std::string_view typed) {
  if (!typed.starts_with("-")) {
    return Status::invalid_argument(
        fmt::format("unexpected argument '{}'; every value follows its flag, try: {} --model-path "
                    "{}",
                    typed, command_line(command), typed),
        std::string(typed));
  }
  const std::string_view name = typed.substr(0, typed.find('='));
  std::vector<std::string_view> names;
  for (const FlagSpec& spec : flag_table()) {
    names.insert(names.end(), spec.names.begin(), spec.names.end());
  }
  for (const KnownFlag& flag : known_flags()) names.push_back(flag.name);
  const std::string_view near = nearest_name(name, names);
  return Status::invalid_argument(
      near.empty() ? fmt::format("unknown flag {}; see {} --help-all", name, command_line(command))
                   : fmt::format("unknown flag {}; did you mean {}? See {} --help-all", name, near,
                                 command_line(command)),
      std::string(name));
}

// A flag of the field that is not ours: accepted with a notice when it asks for what happens
// anyway, else among what is refused, with advice.
Status check_known(Command command, const KnownFlag& flag, const std::string& value,
                   ParsedFlags& parsed) {
  const bool asks_for_default =
      !flag.accepted.empty() && (flag.is_switch ? flag.accepted == "on" : flag.accepted == value);
  if (asks_for_default) {
    parsed.notices.push_back(
        flag.is_switch ? fmt::format("{}: already so here ({})", flag.name, flag.advice)
                       : fmt::format("{} {}: already so here", flag.name, value));
    return {};
  }
  std::string advice(flag.advice);
  if (!flag.accepted.empty() && !flag.is_switch) {
    advice = fmt::format("{}{}only {} {} works", advice, advice.empty() ? "" : "; ", flag.name,
                         flag.accepted);
  }
  if (advice.empty()) advice = fmt::format("try: {} without it", command_line(command));
  parsed.args.unserved_values.push_back(not_here(flag.name, "known, not supported here", advice));
  return {};
}

// All of them in one text, under the first one's flag.
Status joined(const std::vector<Status>& refusals) {
  if (refusals.empty()) return {};
  std::string text = refusals[0].message();
  for (size_t i = 1; i < refusals.size(); ++i) text += "; " + refusals[i].message();
  return Status::unsupported(std::move(text), refusals[0].field());
}

// Rules that need more than one flag's value.
Status check_together(Command command, const ServerArgs& args) {
  if (args.chunked_prefill_size == 0) {
    return bad_value(command, "--chunked-prefill-size", "0",
                     "must be -1 (never split) or at least 1", "--chunked-prefill-size 2048");
  }
  if (args.enable_mixed_chunk && args.disable_mixed_chunk) {
    return Status::invalid_argument(
        fmt::format("--disable-mixed-chunk contradicts --enable-mixed-chunk; try: {} with one of the two",
                    command_line(command)), "--disable-mixed-chunk");
  }
  if (args.device != "auto" && args.device != "cpu" && args.device != "cuda") {
    return Status::invalid_argument(
        fmt::format("--device: '{}' is not a device; there are auto, cpu and cuda; try: {} --device auto, or see "
                    "what another machine would run with warpweave explain --hardware NAME",
                    args.device, command_line(command)), "--device");
  }
  if (!args.hardware.empty() && args.device != "auto") {
    return Status::invalid_argument(
        fmt::format("--device {} is of this machine, --hardware {} describes another; try: {} with one of the two",
                    args.device, args.hardware, command_line(command)), "--device");
  }
  if (command == Command::explain) return {};  // it lists them beside what else is not served
  return joined(unserved_flags(args));
}

// CLI11 splits the command line; values are kept as text and checked by Assign.
class Parser {
 public:
  Parser(Command command, std::span<const std::string> argv) : command_(command) {
    app_.allow_extras();
    app_.set_help_flag();
    app_.add_flag("-h,--help", parsed_.help);
    app_.add_flag("--help-all", parsed_.help_all);
    specs_.resize(flag_table().size());
    for (size_t i = 0; i < specs_.size(); ++i) {
      const FlagSpec& spec = flag_table()[i];
      add(fmt::format("{}", fmt::join(spec.names, ",")), spec.value_name.empty(), specs_[i]);
      if (spec.many) specs_[i].option->expected(1, kMostValues)->multi_option_policy(CLI::MultiOptionPolicy::Join);
    }
    // CLI11 compares each option that is added with all before it: other servers' hundreds only where they are named.
    std::set<std::string_view> named;
    for (const std::string_view word : argv) named.insert(word.substr(0, word.find('=')));
    known_.resize(known_flags().size());
    for (size_t i = 0; i < known_.size(); ++i) {
      const KnownFlag& flag = known_flags()[i];
      if (named.contains(flag.name)) add(std::string(flag.name), flag.is_switch, known_[i]);
    }
  }

  Result<ParsedFlags> parse(std::span<const std::string> argv) {
    std::vector<std::string> reversed(argv.rbegin(), argv.rend());
    try {
      app_.parse(std::move(reversed));
    } catch (const CLI::ParseError& e) {
      return split_error(argv, e);
    }
    if (parsed_.help || parsed_.help_all) return std::move(parsed_);
    for (size_t i = 0; i < known_.size(); ++i) {
      if (known_[i].option == nullptr || known_[i].option->count() == 0) continue;
      WW_RETURN_IF_ERROR(check_known(command_, known_flags()[i], known_[i].value, parsed_));
    }
    for (size_t i = 0; i < specs_.size(); ++i) {
      if (specs_[i].option->count() == 0) continue;
      WW_RETURN_IF_ERROR(assign(flag_table()[i], specs_[i].value));
    }
    if (const auto extras = app_.remaining(); !extras.empty()) {
      return unknown_flag(command_, extras[0]);
    }
    WW_RETURN_IF_ERROR(check_together(command_, parsed_.args));
    return std::move(parsed_);
  }

 private:
  struct Slot {
    CLI::Option* option = nullptr;  // null: not named on the command line
    std::string value;
    bool on = false;
  };

  void add(const std::string& names, bool is_switch, Slot& slot) {
    slot.option = is_switch ? app_.add_flag(names, slot.on) : app_.add_option(names, slot.value);
    slot.option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }

  Status assign(const FlagSpec& spec, const std::string& value) {
    const std::string first = value.substr(0, value.find('\n'));
    if (!spec.value_name.empty() && first.starts_with("--") &&
        (find_flag(first) != nullptr || find_known_flag(first) != nullptr)) {
      return missing_value(spec);
    }
    if (spec.explain_only && command_ != Command::explain) {
      return not_here(spec.names[0],
                      "a flag of warpweave explain",
                      "try: warpweave explain with the same flags");
    }
    if (spec.run_only && command_ != Command::run) {
      return not_here(spec.names[0], "a flag of warpweave run",
                      "requests to a server bring their own; leave it out");
    }
    WW_RETURN_IF_ERROR(std::visit(Assign{command_, spec, value, parsed_.args}, spec.target));
    if (!spec.notice.empty()) parsed_.notices.emplace_back(spec.notice);
    return {};
  }

  Status missing_value(const FlagSpec& spec) const {
    return Status::invalid_argument(
        fmt::format("{} needs a value; try: {} {} {}", spec.names[0], command_line(command_),
                    spec.names[0], spec.value_name),
        std::string(spec.names[0]));
  }

  // CLI11 refused the line's shape: a flag at the end without its value, or a switch with one.
  Status split_error(std::span<const std::string> argv, const CLI::ParseError& error) const {
    for (const std::string& arg : argv) {
      const std::string name = arg.substr(0, arg.find('='));
      const FlagSpec* spec = find_flag(name);
      if (spec == nullptr) continue;
      if (spec->value_name.empty() && arg.size() > name.size()) {
        return bad_value(command_, name, arg.substr(name.size() + 1), "this switch takes no value",
                         name);
      }
      if (!spec->value_name.empty() && (&arg == &argv.back() || arg == name + "=")) {
        return missing_value(*spec);
      }
    }
    return Status::invalid_argument(
        fmt::format("{}; see {} --help", error.what(), command_line(command_)));
  }

  const Command command_;
  CLI::App app_;
  ParsedFlags parsed_;
  std::vector<Slot> specs_;
  std::vector<Slot> known_;
};

}  // namespace

std::vector<Status> unserved_flags(const ServerArgs& args) {
  std::vector<Status> list = args.unserved_values;
  if (args.tp_size != 1) {
    list.push_back(not_here(fmt::format("--tp-size {}", args.tp_size),
                            "tensor parallelism over several devices is not served yet",
                            "try: --tp-size 1, and --threads N for CPU threads", "--tp-size"));
  }
  return list;
}

Result<ParsedFlags> parse_flags(Command command, std::span<const std::string> argv) {
  return Parser(command, argv).parse(argv);
}

}  // namespace warpweave
