// Any bytes as an answer of every format, whole and in pieces: the same events, and no more text held than the bound.
// The first two bytes pick the formats, the third the size of the pieces.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "output/formats.h"

namespace {

using warpweave::Json;
using namespace warpweave::output;

// Events as one text, neighbours of one kind joined.
std::string joined(const AnswerFormat& format, std::string_view text, size_t piece) {
  AnswerParser parser(format);
  std::string out;
  int last = -1;
  const auto add = [&](std::vector<AnswerEvent> events) {
    for (const AnswerEvent& event : events) {
      const int kind = static_cast<int>(event.kind);
      if (kind != last || event.kind == AnswerEvent::Kind::call)
        out += "\n#" + std::to_string(kind) + " " + std::to_string(event.call) + ":";
      last = kind;
      out += event.text + event.id;
    }
  };
  for (size_t at = 0; at < text.size(); at += piece) add(parser.feed(text.substr(at, piece)));
  add(parser.finish());
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto tools = std::make_shared<const ToolSet>(*warpweave::parse_json(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}, "n": {"type": "number"}}}}},
          {"type": "function", "function": {"name": "get_weather", "parameters": {"properties": {"city": {"type": "string"},
           "days": {"type": "integer"}, "exact": {"type": "boolean"}, "data": {"type": "array"}, "o": {"type": "object"},
           "unit": {"enum": ["celsius", 1]}, "any": {"type": ["null", "number"]}}}}},
          {"type": "function", "function": {"name": "search"}}, {"type": "function", "function": {"name": "noop"}}])"));
  static const std::vector<std::string_view> reasoning = reasoning_format_names();
  static const std::vector<std::string_view> calls = call_format_names();
  if (size < 3) return 0;
  AnswerFormat format;
  if (const size_t pick = data[0] % (reasoning.size() + 1); pick > 0) format.reasoning = reasoning[pick - 1];
  format.calls = calls[data[1] % calls.size()];
  format.begins_in_reasoning = (data[0] & 128) != 0;
  format.parallel_calls = (data[1] & 128) == 0;
  format.tools = tools;
  const std::string_view text(reinterpret_cast<const char*>(data + 3), size - 3);
  if (joined(format, text, text.size() + 1) != joined(format, text, 1 + data[2] % 16)) std::abort();
  return 0;
}
