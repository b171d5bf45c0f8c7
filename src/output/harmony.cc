// The format of gpt-oss: messages with a header, each on a channel. analysis is reasoning, final is content, and what
// is addressed to functions.NAME is a call; commentary to nobody is content said before calls.
// Source: https://cookbook.openai.com/articles/openai-harmony
#include "output/formats.h"

namespace warpweave::output {
namespace {

using To = AnswerReader::To;

// The word behind `key` in a header, up to whitespace or a mark.
std::string word_behind(std::string_view header, std::string_view key) {
  const size_t at = header.find(key);
  if (at == std::string_view::npos) return {};
  header.remove_prefix(at + key.size());
  return std::string(header.substr(0, header.find_first_of(" \n\t\r<")));
}

// A message's body, up to its end. Returns the mark, or -1.
ParserTask<int> read_body(AnswerReader& reader, To to) {
  static constexpr std::string_view kEnds[] = {"<|end|>", "<|return|>", "<|call|>", "<|start|>", "<|channel|>"};
  const int mark = co_await reader.until(kEnds, to);
  co_return mark;
}

}  // namespace

ParserTask<> read_harmony(AnswerReader& reader) {
  static constexpr std::string_view kStarts[] = {"<|start|>", "<|channel|>"};
  static constexpr std::string_view kMessage[] = {"<|message|>"};
  constexpr size_t kMaxHeaderBytes = 1024;
  constexpr int kEndedByStart = 3;
  int mark = co_await reader.until(kStarts, To::content);
  while (mark >= 0) {
    const std::string_view start = kStarts[mark];
    reader.keep(start);
    mark = co_await reader.until(kMessage, To::held, kMaxHeaderBytes);
    if (mark < 0) {
      reader.give_back();
      mark = co_await reader.until(kStarts, To::content);
      continue;
    }
    reader.forget();
    const std::string header = std::string(start) + reader.held();
    const std::string channel = word_behind(header, "<|channel|>");
    std::string recipient = word_behind(header, "to=");
    if (recipient.empty()) {
      const bool thinks = channel == "analysis";
      mark = co_await read_body(reader, thinks ? To::reasoning : To::content);
      if (thinks) reader.end_reasoning();
    } else {
      recipient.erase(0, recipient.rfind('.') + 1);
      reader.begin_call(recipient);
      mark = co_await read_body(reader, To::arguments);
      if (mark >= 0) reader.end_call();
    }
    // A start mark that ended a body begins the next header.
    mark = mark >= kEndedByStart ? mark - kEndedByStart : -1;
    if (mark < 0) mark = co_await reader.until(kStarts, To::content);
  }
}

}  // namespace warpweave::output
