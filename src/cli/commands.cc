#include "cli/commands.h"

#include <cstdio>

#include "base/log.h"

#ifndef WARPWEAVE_VERSION
#error "the build passes WARPWEAVE_VERSION"
#endif

namespace warpweave {

std::string version_text() { return "warpweave " WARPWEAVE_VERSION; }

int fail(const Status& status, int exit_code) {
  std::fprintf(stderr, "error: %s\n", status.message().c_str());
  return exit_code;
}

Started start_command(Command command, std::span<const std::string> argv) {
  Result<ParsedFlags> parsed = parse_flags(command, argv);
  if (!parsed.ok()) return {{}, fail(parsed.status(), kExitUsage)};
  if (parsed->help || parsed->help_all) {
    std::fputs(flags_help(command, parsed->help_all).c_str(), stdout);
    return {{}, 0};
  }
  if (Status status = init_log(parsed->args.log_level); !status.ok()) {
    return {{}, fail(status, kExitUsage)};
  }
  for (const std::string& notice : parsed->notices) std::fprintf(stderr, "note: %s\n", notice.c_str());
  return {std::move(parsed->args), std::nullopt};
}

int docs_command(std::span<const std::string> argv) {
  if (argv.size() == 1 && argv[0] == "flags") {
    std::fputs(flags_markdown().c_str(), stdout);
    return 0;
  }
  return fail(Status::invalid_argument("usage: warpweave docs flags > docs/flags.md"), kExitUsage);
}

}  // namespace warpweave
