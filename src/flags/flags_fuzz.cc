// Any words, one a line, as the command line of each command: values within their rules, or an error that
// says something.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "flags/server_args.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> words;
  while (!text.empty() && words.size() < 64) {
    const size_t end = text.find('\n');
    words.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  for (const warpweave::Command command : {warpweave::Command::serve, warpweave::Command::run, warpweave::Command::explain}) {
    const auto parsed = warpweave::parse_flags(command, words);
    if (!parsed.ok() && parsed.status().message().empty()) std::abort();
    if (parsed.ok() && (parsed->args.port < 0 || parsed->args.port > 65535)) std::abort();
  }
  return 0;
}
