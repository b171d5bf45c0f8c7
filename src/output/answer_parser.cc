#include "output/answer_parser.h"

#include "output/formats.h"

namespace warpweave::output {
namespace {

using To = AnswerReader::To;

// <think>...</think> at the answer's beginning.
ParserTask<> read_reasoning(AnswerReader& reader, const ReasoningFormat& format) {
  reader.keep({});
  co_await reader.skip_space();
  const bool begun = co_await reader.match(format.begin);
  if (begun) {
    reader.forget();
  } else {
    reader.read_again();
    if (!reader.format().begins_in_reasoning) co_return;
  }
  while (begun) {  // some models repeat the mark
    reader.keep({});
    const bool again = co_await reader.match(format.begin);
    if (!again) break;
    reader.forget();
  }
  if (begun) reader.read_again();
  const std::string_view marks[] = {format.end, format.interrupted_by};
  const bool interrupts =
      !format.interrupted_by.empty() && (format.interrupted_without_tools || !reader.format().calls.empty());
  const int mark = co_await reader.until({marks, interrupts ? size_t{2} : size_t{1}}, To::reasoning);
  reader.end_reasoning();
  if (mark == 1) reader.unread(format.interrupted_by);
}

// The mark of which a beginning outside of reasoning is held back.
std::string_view reasoning_end(std::string_view format) {
  const ReasoningFormat* found = find_reasoning_format(format);
  return found == nullptr ? std::string_view() : found->end;
}

ParserTask<> read_answer(AnswerReader& reader, const ReasoningFormat* reasoning, const CallFormat* calls) {
  if (reasoning != nullptr && !reasoning->begin.empty()) co_await read_reasoning(reader, *reasoning);
  if (reasoning != nullptr && reasoning->begin.empty()) {
    co_await read_harmony(reader);
  } else if (calls != nullptr) {
    co_await calls->read(reader);
  }
  co_await reader.until({}, To::content);
}

}  // namespace

ToolSet::ToolSet(const Json& tools) {
  for (const Json& tool : tools) {
    const Json& function = tool["function"];
    const auto parameters = function.find("parameters");
    parameters_.insert_or_assign(function["name"].get<std::string>(),
                                 OwnedJson(parameters == function.end() ? Json() : *parameters));
  }
}

const Json* ToolSet::argument_schema(std::string_view name, std::string_view argument) const {
  const auto tool = parameters_.find(name);
  if (tool == parameters_.end() || !tool->second.value.is_object()) return nullptr;
  const auto properties = tool->second.value.find("properties");
  if (properties == tool->second.value.end() || !properties->is_object()) return nullptr;
  const auto schema = properties->find(argument);
  return schema == properties->end() ? nullptr : &*schema;
}

struct AnswerParser::State {
  explicit State(const AnswerFormat& format)
      : calls(find_call_format(format.calls)),
        reader(format, calls != nullptr && calls->trims_content, reasoning_end(format.reasoning)),
        root(read_answer(reader, find_reasoning_format(format.reasoning), calls)) {
    root.start(&reader.driver());
  }
  std::vector<AnswerEvent> run() {
    reader.driver().run();
    root.rethrow();
    return reader.take_events();
  }

  const CallFormat* calls;
  AnswerReader reader;
  ParserTask<> root;  // ends before what it reads
};

AnswerParser::AnswerParser(const AnswerFormat& format) : state_(std::make_unique<State>(format)) {}
AnswerParser::~AnswerParser() = default;
AnswerParser::AnswerParser(AnswerParser&&) noexcept = default;

std::vector<AnswerEvent> AnswerParser::feed(std::string_view piece) {
  state_->reader.add(piece);
  return state_->run();
}

std::vector<AnswerEvent> AnswerParser::finish() {
  state_->reader.end();
  state_->reader.driver().run();
  state_->root.rethrow();
  state_->reader.flush_content();
  return state_->reader.take_events();
}

size_t AnswerParser::calls() const { return state_->reader.calls(); }
const std::vector<std::string>& AnswerParser::unknown_calls() const { return state_->reader.unknown_calls(); }

}  // namespace warpweave::output
