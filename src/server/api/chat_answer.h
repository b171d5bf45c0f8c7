// The parts of one choice of a chat answer, as its text comes: for a stream as events, for a whole answer collected.
// Not thread-safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "output/answer_parser.h"
#include "server/api/chat_tools.h"

namespace warpweave::server {

class ChoiceReader {
 public:
  explicit ChoiceReader(const AnswerPlan& plan);

  // What a delta adds; at the finish also what was held back. Calls have ids.
  std::vector<output::AnswerEvent> read(const OutputDelta& delta);
  bool calls_tools() const { return parser_ && parser_->calls() > 0; }

 private:
  void hold_reasoning(bool finished, std::vector<output::AnswerEvent>* events);

  std::optional<output::AnswerParser> parser_;  // none: all is content
  bool stream_reasoning_;
  bool short_ids_;                              // Mistral's templates take ids of nine characters only
  std::string held_reasoning_;
};

struct CollectedAnswer {
  struct Call {
    std::string id, name, arguments;
  };
  std::string reasoning;
  std::string content;
  std::vector<Call> calls;

  void add(const std::vector<output::AnswerEvent>& events);
};

// [{"id", "type", "function": {"name", "arguments"}}]
void append_tool_calls(const std::vector<CollectedAnswer::Call>& calls, std::string* out);

}  // namespace warpweave::server
