// Formats whose calls are JSON: Hermes and Qwen, Llama 3, Mistral, DeepSeek, Kimi.
#include <utility>

#include "output/formats.h"

namespace warpweave::output {
namespace {

using To = AnswerReader::To;

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// Arguments that some models write as JSON inside a string; null is none.
void put_held_arguments(AnswerReader& reader, std::string_view text) {
  if (text == "null") return;
  if (text.starts_with('"')) {
    const Result<Json> value = parse_json(text);
    if (value.ok() && value->is_string()) {
      const std::string inner = value->get<std::string>();
      const Result<Json> object = parse_json(inner);
      if (object.ok() && object->is_object()) return reader.put_text(To::arguments, inner);
    }
  }
  reader.put_text(To::arguments, text);
}

ParserTask<bool> read_arguments(AnswerReader& reader) {
  const int first = co_await reader.peek();
  if (first != '"' && first != 'n') {
    const bool whole = co_await reader.json_value(To::arguments);
    co_return whole;
  }
  const bool whole = co_await reader.json_value(To::held);
  put_held_arguments(reader, reader.held());
  co_return whole;
}

class CallObject {
 public:
  CallObject(AnswerReader& reader, bool only_offered) : reader_(reader), only_offered_(only_offered) {}

  // One object's members; "function" may hold a second object with the same ones.
  ParserTask<bool> members(int depth) {
    reader_.take();  // {
    while (true) {
      co_await reader_.skip_space();
      const int byte = co_await reader_.peek();
      if (byte == '}' || byte == ',') {
        reader_.take();
        if (byte == '}') break;
        continue;
      }
      const std::optional<std::string> key = co_await reader_.json_string(kMaxCallNameBytes);
      if (!key || reader_.holds_too_much()) co_return false;
      co_await reader_.skip_space();
      const bool colon = co_await reader_.match(":");
      if (!colon) co_return false;
      co_await reader_.skip_space();
      const bool whole = co_await member(*key, depth);
      if (!whole) co_return false;
    }
    co_return true;
  }

  bool begun() const { return begun_; }
  // At the object's end. False: it is no call.
  bool end() {
    if (!begun_) {
      if (name_.empty() || !begin()) return false;
      if (!arguments_.empty()) put_held_arguments(reader_, arguments_);
    }
    reader_.end_call();
    return true;
  }

 private:
  bool begin() {
    if (only_offered_ && !reader_.offers(name_)) return false;
    begun_ = true;
    reader_.forget();
    reader_.begin_call(name_, id_);
    return true;
  }

  ParserTask<bool> member(std::string key, int depth) {
    const int first = co_await reader_.peek();
    if (key == "function" && first == '{' && depth == 0) {
      const bool whole = co_await members(depth + 1);
      co_return whole;
    }
    if ((key == "name" || key == "function" || key == "id") && first == '"' && !begun_) {
      std::optional<std::string> text = co_await reader_.json_string(kMaxCallNameBytes);
      if (!text) co_return false;
      (key == "id" ? id_ : name_) = std::move(*text);
      co_return true;
    }
    if (key != "arguments" && key != "parameters") {
      const bool whole = co_await reader_.json_value(To::nowhere);
      co_return whole;
    }
    if (name_.empty()) {
      const bool whole = co_await reader_.json_value(To::held);
      arguments_ = reader_.held();
      co_return whole;
    }
    if (begun_ || !begin()) co_return false;
    const bool whole = co_await read_arguments(reader_);
    co_return whole;
  }

  AnswerReader& reader_;
  const bool only_offered_;
  bool begun_ = false;
  std::string name_, id_, arguments_;
};

// Objects with commas (or the given separator) between them, up to what is none. Counts them; a first one that is
// no call is given back, with all that was kept.
ParserTask<int> read_call_objects(AnswerReader& reader, bool only_offered, char separator) {
  int count = 0;
  while (true) {
    co_await reader.skip_space();
    const int byte = co_await reader.peek();
    if (count > 0 && (byte == ',' || byte == separator)) {
      reader.take();
      continue;
    }
    if (byte != '{') co_return count;
    if (count > 0) reader.keep({});
    const bool call = co_await read_call_object(reader, only_offered);
    if (!call) {
      reader.give_back();
      co_return count == 0 ? -1 : count;
    }
    ++count;
  }
}

}  // namespace

ParserTask<bool> read_call_object(AnswerReader& reader, bool only_offered) {
  CallObject object(reader, only_offered);
  const bool whole = co_await object.members(0);
  if (!whole && !object.begun()) co_return false;
  if (!whole) co_return true;  // it breaks inside its arguments, and stays so
  const bool call = object.end();
  co_return call;
}

// <tool_call>{"name": ..., "arguments": {...}}</tool_call>
ParserTask<> read_hermes(AnswerReader& reader) {
  static constexpr std::string_view kBegin[] = {"<tool_call>"};
  static constexpr std::string_view kEnd[] = {"</tool_call>", "<tool_call>"};
  int mark = co_await reader.until(kBegin, To::content);
  while (mark >= 0) {
    reader.keep(kBegin[0]);
    const int calls = co_await read_call_objects(reader, false, ',');
    if (calls > 0) {
      mark = co_await reader.until(kEnd, To::nowhere);
      if (mark == 1) continue;
    } else if (calls == 0) {
      reader.give_back();
    }
    mark = co_await reader.until(kBegin, To::content);
  }
}

// {"name": ..., "parameters": {...}} as the whole answer, or behind <|python_tag|>; several with ; between them.
ParserTask<> read_llama3(AnswerReader& reader) {
  static constexpr std::string_view kBegin[] = {"<|python_tag|>"};
  reader.keep({});
  co_await reader.skip_space();
  const int first = co_await reader.peek();
  if (first == '{') {
    const int calls = co_await read_call_objects(reader, true, ';');
    if (calls == 0) reader.give_back();
  } else {
    reader.read_again();
  }
  int mark = co_await reader.until(kBegin, To::content);
  while (mark >= 0) {
    reader.keep(kBegin[0]);
    const int calls = co_await read_call_objects(reader, false, ';');
    if (calls == 0) reader.give_back();
    mark = co_await reader.until(kBegin, To::content);
  }
}

// [{...}, ...] with '[' next; behind it, the list's end is read. As read_call_objects().
static ParserTask<int> read_call_list(AnswerReader& reader) {
  reader.take();
  const int calls = co_await read_call_objects(reader, false, ',');
  if (calls < 0) co_return calls;
  const int byte = co_await reader.peek();
  if (byte == ']') reader.take();
  if (calls == 0 && byte == ']') reader.forget();
  co_return calls == 0 && byte == ']' ? 1 : calls;
}

// A list of calls with '[' next, or one call with '{'. As read_call_objects(); 0: neither.
static ParserTask<int> read_calls_or_call(AnswerReader& reader, int next) {
  if (next == '[') co_return co_await read_call_list(reader);
  if (next == '{') co_return co_await read_call_objects(reader, false, ',');
  co_return 0;
}

// NAME[ARGS]{...}, perhaps with [CALL_ID]ID before [ARGS]. False: no call.
static ParserTask<bool> read_mistral_compact(AnswerReader& reader) {
  static constexpr std::string_view kBehindName[] = {"[ARGS]", "[CALL_ID]", "[TOOL_CALLS]"};
  int mark = co_await reader.until(kBehindName, To::held, kMaxCallNameBytes);
  const std::string name(trimmed(reader.held()));
  if (mark == 1) mark = co_await reader.until(kBehindName, To::held, kMaxCallNameBytes);
  if (mark != 0 || name.empty()) co_return false;
  co_await reader.skip_space();
  const int byte = co_await reader.peek();
  if (byte != '{') co_return false;
  reader.forget();
  reader.hold_call();  // SGLang's parser hands it over as a whole
  reader.begin_call(name);
  const bool whole = co_await reader.json_value(To::arguments);
  if (whole) reader.end_call();
  reader.release_call();
  co_return true;
}

// [TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...], or [TOOL_CALLS]NAME[ARGS]{...} once or more.
ParserTask<> read_mistral(AnswerReader& reader) {
  static constexpr std::string_view kBegin[] = {"[TOOL_CALLS]"};
  int mark = co_await reader.until(kBegin, To::content);
  while (mark >= 0) {
    reader.keep(kBegin[0]);
    co_await reader.skip_space();
    const int byte = co_await reader.peek();
    if (byte == '[' || byte == '{') {
      const int calls = co_await read_calls_or_call(reader, byte);
      if (calls == 0) reader.give_back();
    } else {
      const bool call = co_await read_mistral_compact(reader);
      if (!call) reader.give_back();
    }
    mark = co_await reader.until(kBegin, To::content);
  }
}

// What stands behind a call's beginning, with a header up to <｜tool▁sep｜>: the name (V3.1), or "function" and, behind
// the separator, the name on a line of its own before a block of JSON (V3, R1).
static ParserTask<bool> read_deepseek_call(AnswerReader& reader) {
  static constexpr std::string_view kSeparator[] = {"<｜tool▁sep｜>"};
  static constexpr std::string_view kLineEnd[] = {"\n"};
  static constexpr std::string_view kEnd[] = {"<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"};
  int mark = co_await reader.until(kSeparator, To::held, kMaxCallNameBytes);
  std::string name(trimmed(reader.held()));
  const bool block = mark == 0 && name == "function";
  if (block) {
    mark = co_await reader.until(kLineEnd, To::held, kMaxCallNameBytes);
    name = trimmed(reader.held());
    if (name.ends_with("```")) name.resize(name.size() - 3);
  }
  if (mark != 0 || name.empty()) co_return false;
  for (int byte = co_await reader.peek(); byte >= 0 && byte != '{' && byte != '<'; byte = co_await reader.peek()) {
    if (reader.holds_too_much()) co_return false;
    reader.take();  // ```json
  }
  reader.forget();
  if (block) reader.hold_call();  // SGLang's parser waits for the block's end
  reader.begin_call(name);
  const int byte = co_await reader.peek();
  bool whole = byte == '<';  // no arguments at all
  if (byte == '{') whole = co_await reader.json_value(To::arguments);
  if (whole) reader.end_call();
  reader.release_call();
  co_await reader.until(kEnd, To::nowhere);
  co_return true;
}

// <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>...<｜tool▁call▁end｜>...<｜tool▁calls▁end｜>
ParserTask<> read_deepseek(AnswerReader& reader) {
  static constexpr std::string_view kMarks[] = {"<｜tool▁call▁begin｜>", "<｜tool▁calls▁begin｜>",
                                                "<｜tool▁calls▁end｜>", "<｜tool▁call▁end｜>"};
  int mark = co_await reader.until(kMarks, To::content);
  while (mark >= 0) {
    if (mark == 0) {
      reader.keep(kMarks[0]);
      const bool call = co_await read_deepseek_call(reader);
      if (!call) reader.give_back();
    }
    mark = co_await reader.until(kMarks, To::content);
  }
}

// <|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|> in a section. The id goes
// back to the client, since the template wants it again.
ParserTask<> read_kimi(AnswerReader& reader) {
  static constexpr std::string_view kMarks[] = {"<|tool_call_begin|>", "<|tool_calls_section_begin|>",
                                                "<|tool_calls_section_end|>", "<|tool_call_end|>"};
  static constexpr std::string_view kArguments[] = {"<|tool_call_argument_begin|>"};
  bool in_section = false;
  int mark = co_await reader.until(kMarks, To::content);
  while (mark >= 0) {
    // Ends of what has not begun are text, as everything else in a broken call.
    if (mark == 1) in_section = true;
    if (mark > 1 && !in_section) reader.put_text(To::content, kMarks[mark]);
    if (mark == 0) {
      in_section = true;
      reader.keep(kMarks[0]);
      const int found = co_await reader.until(kArguments, To::held, kMaxCallNameBytes);
      const std::string id(trimmed(reader.held()));
      std::string name = id.substr(0, id.rfind(':'));
      if (name.starts_with("functions.")) name.erase(0, 10);
      if (found != 0 || name.empty()) {
        reader.give_back();
      } else {
        reader.forget();
        reader.begin_call(name, id);
        co_await reader.skip_space();
        const bool whole = co_await reader.json_value(To::arguments);
        if (whole) reader.end_call();
      }
    }
    mark = co_await reader.until(kMarks, To::content);
  }
}

ParserTask<> read_json_list(AnswerReader& reader) {
  reader.keep({});
  co_await reader.skip_space();
  const int calls = co_await read_calls_or_call(reader, co_await reader.peek());
  if (calls == 0) reader.give_back();
  co_await reader.until({}, To::content);
}

}  // namespace warpweave::output
