// The one declaration of every flag: name, target, bounds, help. parse_flags.cc and flags_text.cc
// read it; nothing else knows a flag's name.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "flags/server_args.h"

namespace warpweave {

enum class FlagGroup { model, numbers, http, memory, attention, speculative, adapters, observation, chat };
std::string_view flag_group_title(FlagGroup group);

using FlagTarget =
    std::variant<bool ServerArgs::*, std::string ServerArgs::*, int ServerArgs::*,
                 int64_t ServerArgs::*, double ServerArgs::*, std::optional<int> ServerArgs::*,
                 std::optional<int64_t> ServerArgs::*, std::optional<double> ServerArgs::*>;

// A value that SGLang takes for a flag of ours and this program does not, and the rule why.
struct RefusedValue {
  std::string_view value;
  std::string_view rule;                // "needs an AMD GPU"
};

struct FlagSpec {
  std::vector<std::string_view> names;  // "--port"; the first is the one to show
  FlagGroup group;
  FlagTarget target;
  std::string_view value_name = {};     // "PATH"; empty for a switch
  std::string_view help = {};
  std::string_view default_text = {};   // what an unset value becomes; else ServerArgs{} says
  std::vector<std::string_view> choices = {};
  std::vector<std::string_view> unserved_choices = {};  // SGLang's other ones, refused by name
  std::span<const RefusedValue> refused = {};  // beside `choices`
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool common = false;                  // shown by --help, not only by --help-all
  bool explain_only = false;            // `explain` resolves it; this version does not serve it
  bool run_only = false;                // of the chat in the terminal
  bool secret = false;                  // never printed
  bool many = false;                    // takes several values, which become one text with a line each
  std::string_view notice = {};         // said at start when given
};

std::span<const FlagSpec> flag_table();
const FlagSpec* find_flag(std::string_view name);
std::vector<FlagSpec> adapter_flags();  // a part of it

// A flag of SGLang's or vLLM's that has no effect or no meaning here.
struct KnownFlag {
  std::string_view name;
  std::string_view advice;    // "use --threads N"; empty: no substitute
  std::string_view accepted;  // the one value that is already what happens ("1" for --dp-size)
  bool is_switch = false;
};

std::span<const KnownFlag> known_flags();
std::span<const KnownFlag> newer_known_flags();  // a part of them
std::span<const KnownFlag> vllm_known_flags();   // another
const KnownFlag* find_known_flag(std::string_view name);

}  // namespace warpweave
