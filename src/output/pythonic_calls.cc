// Calls as Python writes them: [get_weather(city='Paris'), search(query="a")] (Llama 4 and others). A list goes out
// when it is closed and every part of it is a call with literals; anything else in brackets is content.
#include <cctype>
#include <utility>

#include "output/formats.h"
#include "output/values.h"

namespace warpweave::output {
namespace {

using To = AnswerReader::To;

struct PythonCall {
  std::string name;
  std::string arguments;  // JSON
};

class CallList {
 public:
  explicit CallList(std::string_view text) : text_(text) {}

  // The whole text, brackets included; false: it is something else. A call whose arguments are no literals is left out.
  bool read(std::vector<PythonCall>* calls) {
    if (!take('[')) return false;
    while (true) {
      PythonCall call;
      if (!read_call(&call)) return false;
      calls->push_back(std::move(call));
      if (take(']')) return at_ == text_.size();
      if (!take(',')) return false;
      if (take(']')) return at_ == text_.size();
    }
  }

 private:
  void skip_space() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }
  bool take(char wanted) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  std::string name() {
    skip_space();
    const size_t begin = at_;
    while (at_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '_' || text_[at_] == '.'))
      ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }
  bool read_call(PythonCall* call) {
    call->name = name();
    if (call->name.empty() || call->name.size() > kMaxCallNameBytes || !take('(')) return false;
    call->arguments = "{";
    while (!take(')')) {
      if (call->arguments.size() > 1) {
        if (!take(',')) return false;
        if (take(')')) break;
        call->arguments += ", ";
      }
      const std::string key = name();
      if (key.empty() || !take('=')) return false;
      const std::optional<std::string> value = python_literal_to_json(text_, &at_);
      if (!value) return false;
      call->arguments += quoted_json(key) + ": " + *value;
    }
    call->arguments += '}';
    return true;
  }

  const std::string_view text_;
  size_t at_ = 0;
};

// From '[' (kept already) to its end, outside of texts in quotes. False: what is kept begins no list of calls.
ParserTask<bool> read_brackets(AnswerReader& reader, std::string* list) {
  *list = "[";
  int depth = 1;
  char quote = 0;
  bool escaped = false, named = false;
  while (depth > 0) {  // the last bracket ends it: what follows is not waited for
    const int byte = co_await reader.peek();
    if (byte < 0) break;
    const char c = static_cast<char>(byte);
    // Up to the first call's parenthesis only a name stands there; most brackets in texts end here.
    if (!named && !is_space(byte) && std::isalnum(byte) == 0 && c != '_' && c != '.') {
      if (c != '(' || list->find_first_not_of(" \n\t\r[") == std::string::npos) co_return false;
      named = true;
    }
    if (list->size() >= kMaxHeldBytes) co_return false;
    reader.take();
    *list += c;
    if (quote != 0) {
      if (!escaped && c == quote) quote = 0;
      escaped = c == '\\' && !escaped;
    } else if (c == '\'' || c == '"') {
      quote = c;
      escaped = false;
    } else if (c == '[') {
      ++depth;
    } else if (c == ']') {
      --depth;
    }
  }
  co_return depth == 0;
}

}  // namespace

ParserTask<> read_pythonic(AnswerReader& reader) {
  static constexpr std::string_view kMarks[] = {"[", "<|python_start|>", "<|python_end|>"};
  int mark = co_await reader.until(kMarks, To::content);
  while (mark >= 0) {
    if (mark == 0) {
      reader.keep("[");
      std::string list;
      std::vector<PythonCall> calls;
      const bool closed = co_await read_brackets(reader, &list);
      if (closed && CallList(list).read(&calls)) {
        reader.forget();
        for (const PythonCall& call : calls) {
          reader.begin_call(call.name);
          reader.put_text(To::arguments, call.arguments);
          reader.end_call();
        }
        co_await reader.next_piece();  // SGLang's parser hands over one list at a time
      } else {
        reader.give_back();
      }
    }
    mark = co_await reader.until(kMarks, To::content);
  }
}

}  // namespace warpweave::output
