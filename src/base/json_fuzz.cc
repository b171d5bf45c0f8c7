// Any bytes as JSON: both readers agree with the library on what is JSON, but for what the limits refuse.
#include <simdjson.h>

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/json_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto ordered = warpweave::read_json<nlohmann::ordered_json>(text, {});
  const auto sorted = warpweave::read_json<nlohmann::json>(text, {});
  if (ordered.ok() != sorted.ok()) std::abort();
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  const bool tape = warpweave::read_json_tape(parser, text, {}, root).ok();
  if (!ordered.ok()) return 0;
  if (!nlohmann::json::accept(text)) std::abort();
  // What is printed parses again to the same; of equal keys the last one counts in both.
  const std::string printed = ordered->dump();
  const auto again = warpweave::read_json<nlohmann::ordered_json>(printed, {});
  if (!again.ok() || *again != *ordered || nlohmann::json::parse(printed) != *sorted) std::abort();
  (void)tape;  // stricter about numbers and byte order marks
  return 0;
}
