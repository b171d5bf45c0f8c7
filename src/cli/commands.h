// The commands of the `warpweave` program. Each takes the arguments after its name and returns the
// process's exit code: 0 done, 1 failed, 2 bad command line, 3 refused by `explain`.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "flags/server_args.h"
#include "warpweave/status.h"

namespace CLI {
class App;
}

namespace warpweave {

inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitRefused = 3;

int serve_command(std::span<const std::string> argv);
int run_command(std::span<const std::string> argv);
int explain_command(std::span<const std::string> argv);
int backends_command(std::span<const std::string> argv);
int doctor_command(std::span<const std::string> argv);
int health_command(std::span<const std::string> argv);
int docs_command(std::span<const std::string> argv);
int conformance_command(std::span<const std::string> argv);
int bench_command(std::span<const std::string> argv);
int tune_command(std::span<const std::string> argv);
int replay_command(std::span<const std::string> argv);

// "warpweave 0.1.0"
std::string version_text();

// --allowed-origins and --allowed-hosts, as serve takes them.
Status check_allowed(const ServerArgs& args);

// Prints "error: ..." to stderr; returns `exit_code`.
int fail(const Status& status, int exit_code);

// For commands with flags of their own: an exit code when help was printed or the line is wrong.
std::optional<int> parse_command(CLI::App& app, std::span<const std::string> argv);

// Parses the flags, prints help or notices. An exit code when the command is over.
struct Started {
  ServerArgs args;
  std::optional<int> exit_code;
};
Started start_command(Command command, std::span<const std::string> argv);

}  // namespace warpweave
