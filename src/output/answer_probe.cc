// The parser by lines of JSON on standard input, for comparisons with other parsers in Python.
//
//   {"reasoning": "", "calls": "hermes", "begins_in_reasoning": false, "tools": [...], "pieces": ["...", ...], "end":
//   bool}
// Each line is answered by a list with the events of each piece, and with "end" of the answer's end as well:
// [[["content" | "reasoning" | "call" | "arguments", text, number of the call], ...], ...]
#include <iostream>
#include <string>

#include "output/answer_parser.h"

namespace {

using namespace warpweave;
using namespace warpweave::output;

const char* kind_name(AnswerEvent::Kind kind) {
  switch (kind) {
    case AnswerEvent::Kind::reasoning: return "reasoning";
    case AnswerEvent::Kind::content: return "content";
    case AnswerEvent::Kind::call: return "call";
    case AnswerEvent::Kind::arguments: return "arguments";
  }
  return "";
}

Json to_json(const std::vector<AnswerEvent>& events) {
  Json out = Json::array();
  for (const AnswerEvent& event : events) out.push_back({kind_name(event.kind), event.text, event.call});
  return out;
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const Result<Json> parsed = parse_json(line);
    if (!parsed.ok()) {
      std::cerr << parsed.status().message() << "\n";
      return 1;
    }
    const std::string reasoning = parsed->value("reasoning", ""), calls = parsed->value("calls", "");
    AnswerFormat format;
    format.reasoning = reasoning;
    format.calls = calls;
    format.begins_in_reasoning = parsed->value("begins_in_reasoning", false);
    if (parsed->contains("tools")) format.tools = std::make_shared<const ToolSet>((*parsed)["tools"]);
    AnswerParser parser(format);
    Json out = Json::array();
    for (const Json& piece : (*parsed)["pieces"])
      out.push_back(to_json(parser.feed(piece.get_ref<const std::string&>())));
    if (parsed->value("end", false)) out.push_back(to_json(parser.finish()));
    std::cout << out.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
  }
  return 0;
}
