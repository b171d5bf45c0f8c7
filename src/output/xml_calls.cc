// Formats whose arguments stand between tags: GLM and Qwen3-Coder. What a tool's schema calls a text goes out as it
// comes; other values are held until they end, and become JSON.
#include <cctype>

#include "output/formats.h"
#include "output/values.h"

namespace warpweave::output {
namespace {

using To = AnswerReader::To;

// An argument's value up to one of `marks`, as JSON.
ParserTask<int> read_value(AnswerReader& reader, std::string name, Marks marks) {
  const Json* schema = reader.argument_schema(name);
  if (takes_only_text(schema)) {
    reader.put(To::arguments, '"');
    const int mark = co_await reader.until(marks, To::quoted);
    if (mark >= 0) reader.put(To::arguments, '"');
    co_return mark;
  }
  int mark = co_await reader.until(marks, To::held);
  if (mark >= 0) {
    reader.put_text(To::arguments, value_to_json(reader.held(), schema));
  } else if (mark == -2) {  // too long to look at: a text
    const std::string beginning = reader.held();
    reader.put(To::arguments, '"');
    reader.put_text(To::quoted, beginning);
    mark = co_await reader.until(marks, To::quoted);
    if (mark >= 0) reader.put(To::arguments, '"');
  }
  co_return mark;
}

void put_key(AnswerReader& reader, bool first, std::string_view key) {
  if (!first) reader.put_text(To::arguments, ", ");
  reader.put_text(To::arguments, quoted_json(key));
  reader.put_text(To::arguments, ": ");
}

// A tool's name up to a line's end or a tag, which is not consumed; empty: there is none. Some models write the two
// characters \n for a line's end.
ParserTask<std::string> read_glm_name(AnswerReader& reader) {
  std::string name;
  co_await reader.skip_space();
  int byte = co_await reader.peek();
  while (byte >= 0 && byte != '\n' && byte != '<' && byte != '\\' && name.size() < kMaxCallNameBytes) {
    name += static_cast<char>(byte);
    reader.take();
    byte = co_await reader.peek();
  }
  if (byte != '\n' && byte != '<' && byte != '\\') co_return std::string();
  while (!name.empty() && is_space(name.back())) name.pop_back();
  co_return name;
}

ParserTask<> read_glm_arguments(AnswerReader& reader) {
  static constexpr std::string_view kParts[] = {"<arg_key>", "</tool_call>"};
  static constexpr std::string_view kKeyEnd[] = {"</arg_key>"};
  static constexpr std::string_view kValue[] = {"<arg_value>", "</tool_call>"};
  static constexpr std::string_view kValueEnd[] = {"</arg_value>"};
  reader.put(To::arguments, '{');
  for (bool first = true;; first = false) {
    const int part = co_await reader.until(kParts, To::nowhere);
    if (part < 0) co_return;
    if (part == 1) break;
    int mark = co_await reader.until(kKeyEnd, To::held, kMaxCallNameBytes);
    if (mark < 0) co_return;
    const std::string key = reader.held();
    mark = co_await reader.until(kValue, To::nowhere);
    if (mark < 0) co_return;
    if (mark == 1) break;
    put_key(reader, first, key);
    mark = co_await read_value(reader, key, kValueEnd);
    if (mark < 0) co_return;
  }
  reader.put(To::arguments, '}');
  reader.end_call();
}

ParserTask<> read_glm(AnswerReader& reader, bool name_has_line) {
  static constexpr std::string_view kBegin[] = {"<tool_call>"};
  int mark = co_await reader.until(kBegin, To::content);
  while (mark >= 0) {
    reader.keep(kBegin[0]);
    const std::string name = co_await read_glm_name(reader);
    const int byte = co_await reader.peek();
    if (name.empty() || (name_has_line && byte == '<')) {
      reader.give_back();
    } else {
      reader.forget();
      reader.begin_call(name);
      co_await read_glm_arguments(reader);
    }
    mark = co_await reader.until(kBegin, To::content);
  }
}

ParserTask<> read_qwen3_coder_arguments(AnswerReader& reader) {
  static constexpr std::string_view kParts[] = {"<parameter=", "</function>", "</tool_call>"};
  static constexpr std::string_view kNameEnd[] = {">"};
  static constexpr std::string_view kValueEnd[] = {"\n</parameter>", "</parameter>"};
  reader.put(To::arguments, '{');
  for (bool first = true;; first = false) {
    const int part = co_await reader.until(kParts, To::nowhere);
    if (part < 0) co_return;
    if (part > 0) break;
    int mark = co_await reader.until(kNameEnd, To::held, kMaxCallNameBytes);
    if (mark < 0) co_return;
    const std::string name = reader.held();
    const int byte = co_await reader.peek();
    if (byte == '\n') reader.take();
    put_key(reader, first, name);
    mark = co_await read_value(reader, name, kValueEnd);
    if (mark < 0) co_return;
  }
  reader.put(To::arguments, '}');
  reader.end_call();
}

// <function=NAME>, behind its first mark. False: no call.
ParserTask<bool> read_function(AnswerReader& reader) {
  static constexpr std::string_view kNameEnd[] = {">"};
  const int mark = co_await reader.until(kNameEnd, To::held, kMaxCallNameBytes);
  const std::string name = reader.held();
  if (mark != 0 || name.empty()) co_return false;
  reader.forget();
  reader.begin_call(name);
  co_await read_qwen3_coder_arguments(reader);
  co_return true;
}

}  // namespace

// <tool_call>NAME, a line's end, then <arg_key>KEY</arg_key><arg_value>VALUE</arg_value> and so on, </tool_call>
ParserTask<> read_glm45(AnswerReader& reader) { return read_glm(reader, /*name_has_line=*/true); }

// The same without line ends.
ParserTask<> read_glm47(AnswerReader& reader) { return read_glm(reader, /*name_has_line=*/false); }

// <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>, each on its line; the outer tags
// may be missing, and a call as JSON is one, too.
ParserTask<> read_qwen3_coder(AnswerReader& reader) {
  static constexpr std::string_view kMarks[] = {"<tool_call>", "<function=", "</tool_call>"};
  int mark = co_await reader.until(kMarks, To::content);
  while (mark >= 0) {
    if (mark < 2) reader.keep(kMarks[mark]);
    bool call = mark != 0;
    if (mark == 0) {
      co_await reader.skip_space();
      const int byte = co_await reader.peek();
      if (byte == '{') {
        call = co_await read_call_object(reader, false);
        if (!call) reader.give_back();
        call = true;  // settled
      } else {
        call = co_await reader.match(kMarks[1]);
        mark = call ? 1 : 0;
      }
    }
    if (mark == 1) call = co_await read_function(reader);
    if (!call) reader.give_back();
    mark = co_await reader.until(kMarks, To::content);
  }
}

}  // namespace warpweave::output
