#include "cli/commands.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "attention/plugin.h"
#include "attention/select_json.h"
#include "base/log.h"
#include "conformance/matrix.h"
#include "conformance/plugin_check.h"

#ifndef WARPWEAVE_VERSION
#error "the build passes WARPWEAVE_VERSION"
#endif

namespace warpweave {

std::string version_text() { return "warpweave " WARPWEAVE_VERSION; }

int fail(const Status& status, int exit_code) {
  std::fprintf(stderr, "error: %s\n", status.message().c_str());
  return exit_code;
}

namespace {

// Loads --attention-backend-plugin, which then is the backend unless another is named. To explain needs
// no proof of what it claims; to serve does.
Status use_plugin(Command command, ServerArgs& args) {
  if (args.attention_backend_plugin.empty()) return {};
  const std::string& path = args.attention_backend_plugin;
  WW_ASSIGN_OR_RETURN(const Caps* caps, command == Command::explain ? load_attention_plugin(path)
                                                                    : conformance::load_checked_plugin(path));
  if (args.attention_backend.empty() && args.prefill_attention_backend.empty() &&
      args.decode_attention_backend.empty()) {
    args.attention_backend = caps->name;
  }
  return {};
}

}  // namespace

Started start_command(Command command, std::span<const std::string> argv) {
  Result<ParsedFlags> parsed = parse_flags(command, argv);
  if (!parsed.ok()) {
    // To explain, a flag that is known and not served is an answer.
    const bool refused = command == Command::explain && parsed.status().code() == StatusCode::unsupported;
    if (refused && std::find(argv.begin(), argv.end(), "--json") != argv.end()) {
      std::printf("%s\n", selection_error_json(parsed.status()).dump(2).c_str());
      return {{}, kExitRefused};
    }
    return {{}, fail(parsed.status(), refused ? kExitRefused : kExitUsage)};
  }
  if (parsed->help || parsed->help_all) {
    std::fputs(flags_help(command, parsed->help_all).c_str(), stdout);
    return {{}, 0};
  }
  if (Status status = init_log(parsed->args.log_level); !status.ok()) {
    return {{}, fail(status, kExitUsage)};
  }
  for (const std::string& notice : parsed->notices) std::fprintf(stderr, "note: %s\n", notice.c_str());
  if (Status status = use_plugin(command, parsed->args); !status.ok()) return {{}, fail(status, kExitFailed)};
  return {std::move(parsed->args), std::nullopt};
}

std::optional<int> parse_command(CLI::App& app, std::span<const std::string> argv) {
  std::vector<std::string> reversed(argv.rbegin(), argv.rend());
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return 0;
  } catch (const CLI::ParseError& e) {
    return fail(Status::invalid_argument(std::string(e.what()) + "; see " + app.get_name() + " --help"),
                kExitUsage);
  }
  return std::nullopt;
}

int docs_command(std::span<const std::string> argv) {
  constexpr const char* kUsage = "warpweave docs flags > docs/flags.md, or warpweave docs matrix > docs/matrix.md";
  if (argv.size() == 1 && (argv[0] == "--help" || argv[0] == "-h")) {
    std::printf("Usage: %s\n", kUsage);
    return 0;
  }
  if (argv.size() == 1 && argv[0] == "flags") {
    std::fputs(flags_markdown().c_str(), stdout);
    return 0;
  }
  if (argv.size() == 1 && argv[0] == "matrix") {
    std::fputs(conformance::matrix_markdown(conformance::committed_reports()).c_str(), stdout);
    return 0;
  }
  return fail(Status::invalid_argument(std::string("usage: ") + kUsage), kExitUsage);
}

}  // namespace warpweave
