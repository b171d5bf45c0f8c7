#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "base/log.h"
#include "cli/commands.h"
#include "flags/nearest_name.h"

namespace warpweave {
namespace {

struct CommandEntry {
  std::string_view name;
  int (*run)(std::span<const std::string>);
  std::string_view summary;
};

constexpr CommandEntry kCommands[] = {
    {"serve", serve_command, "Serve a model over HTTP (the default when flags come first)"},
    {"run", run_command, "Chat with a model in the terminal"},
    {"health", health_command, "Ask a running server whether it is ready"},
    {"explain", explain_command, "Say which attention backends would run, and why"},
    {"backends", backends_command, "List the attention backends"},
    {"doctor", doctor_command, "Check this machine: CPU, memory, models"},
    {"conformance", conformance_command, "Test the attention backends against the reference"},
    {"replay", replay_command, "Run a recorded batch through a backend again and compare"},
    {"bench", bench_command, "Time the attention backends, or speculative decoding: bench attention, bench spec"},
    {"tune", tune_command, "Measure which backend is fastest for a model on this machine"},
    {"docs", docs_command, "Write generated documentation: docs flags, docs matrix"},
};

void print_overview() {
  std::printf("%s\n\nUsage: warpweave <command> [flags]\n\n", version_text().c_str());
  for (const CommandEntry& entry : kCommands) {
    std::printf("  %-12s %.*s\n", std::string(entry.name).c_str(),
                static_cast<int>(entry.summary.size()), entry.summary.data());
  }
  std::printf("  %-12s Print the version\n\nFlags of a command: warpweave <command> --help\n",
              "version");
}

int dispatch(const std::vector<std::string>& argv) {
  if (argv.empty() || argv[0] == "--help" || argv[0] == "-h" || argv[0] == "help") {
    print_overview();
    return 0;
  }
  if (argv[0] == "version" || argv[0] == "--version") {
    std::printf("%s\n", version_text().c_str());
    return 0;
  }
  if (argv[0].starts_with("-")) return serve_command(argv);
  std::vector<std::string_view> names = {"version"};
  for (const CommandEntry& entry : kCommands) {
    if (entry.name == argv[0]) return entry.run(std::span(argv).subspan(1));
    names.push_back(entry.name);
  }
  const std::string_view near = nearest_name(argv[0], names);
  return fail(Status::invalid_argument(
                  "unknown command '" + log_safe(argv[0]) + "'" +
                  (near.empty() ? "; see warpweave --help"
                                : "; did you mean warpweave " + std::string(near) + "?")),
              kExitUsage);
}

}  // namespace
}  // namespace warpweave

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 1 << 16);
  try {
    return warpweave::dispatch({argv + 1, argv + argc});
  } catch (const std::bad_alloc&) {
    std::fputs("error: there is not enough memory; use a smaller model or --max-total-tokens\n", stderr);
    return warpweave::kExitFailed;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return warpweave::kExitFailed;
  }
}
