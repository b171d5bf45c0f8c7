// The tools of a chat request and how they may be called; where they meet a grammar and the answer's format.
#pragma once

#include <memory>
#include <string>

#include "output/answer_parser.h"
#include "server/api/api_state.h"

namespace warpweave::server {

struct ToolRequest {
  OwnedJson tools;  // those that may be called, for the template; null: none
  std::shared_ptr<const output::ToolSet> set;
  std::string only;           // tool_choice names this one
  bool must_call = false;     // tool_choice is required, or names one
  bool parallel_calls = true;

  bool any() const { return set != nullptr; }
};

// tools, where nothing chooses among them; null: none.
Result<std::shared_ptr<const output::ToolSet>> read_tool_set(const Api& api, const FieldReader& reader);
// tools, tool_choice and parallel_tool_calls.
Result<ToolRequest> read_tools(const Api& api, const FieldReader& reader);

// How an answer is taken apart.
struct AnswerPlan {
  output::AnswerFormat format;
  bool parses = false;            // else all of it is content
  bool stream_reasoning = true;   // false: reasoning comes in one piece
};

struct ReasoningRequest {
  bool separate = true;
  bool stream = true;
};
// separate_reasoning, stream_reasoning and include_reasoning.
ReasoningRequest read_reasoning_fields(FieldReader* reader);

struct PromptEnd {
  std::string_view text;
  std::string_view continued;  // of a final message that goes on; empty: none
};

// The plan for an answer to a prompt; sets what of `params` it needs: a grammar for calls that must be made, and
// special tokens kept in the text where the format's marks are such.
Result<AnswerPlan> plan_answer(const Api& api, const ToolRequest& tools, const ReasoningRequest& reasoning,
                               const PromptEnd& prompt, SamplingParams* params);

}  // namespace warpweave::server
