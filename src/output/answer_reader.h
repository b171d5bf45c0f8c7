// What the formats are written with: the text byte by byte, and where its parts go. Not thread-safe.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "output/answer_parser.h"
#include "output/parser_task.h"

namespace warpweave::output {

using Marks = std::span<const std::string_view>;  // of texts that live as long as the program

class AnswerReader {
 public:
  enum class To { nowhere, content, reasoning, arguments, quoted, held };  // quoted: arguments, as inside a JSON string

  // Content that is the beginning of `held_mark` and nothing else waits for what follows, as SGLang's parsers hold it.
  AnswerReader(const AnswerFormat& format, bool trims_content, std::string_view held_mark)
      : format_(format), trims_content_(trims_content), held_mark_(held_mark) {}

  // The text's side.
  void add(std::string_view piece);
  void end() { ended_ = true; }
  std::vector<AnswerEvent> take_events();  // but those held
  void flush_content();
  TaskDriver& driver() { return driver_; }

  // The next byte, or -1 at the end. take() consumes it.
  struct Peek {
    AnswerReader& reader;
    bool await_ready() const noexcept { return reader.at_ < reader.text_.size() || reader.ended_; }
    void await_suspend(std::coroutine_handle<>) const noexcept { reader.driver_.waiting = true; }
    int await_resume() const noexcept {
      return reader.at_ < reader.text_.size() ? static_cast<unsigned char>(reader.text_[reader.at_]) : -1;
    }
  };
  Peek peek() { return {*this}; }
  // Waits for the next piece of the text, however much of this one is left; not if that is more than may be held.
  struct NextPiece {
    AnswerReader& reader;
    bool await_ready() const noexcept { return reader.ended_ || reader.text_.size() - reader.at_ > kMaxHeldBytes; }
    void await_suspend(std::coroutine_handle<>) const noexcept { reader.driver_.waiting = true; }
    void await_resume() const noexcept {}
  };
  NextPiece next_piece() { return {*this}; }
  void take();
  // To be read again.
  void unread(std::string_view bytes) { text_.replace(0, at_, bytes), at_ = 0; }

  // Everything up to one of `marks` to `to`; returns the mark's number, -1 at the end of the text. No mark may begin
  // another. `held()` has what went to To::held since the call; where that passes `max_held_bytes`, -2.
  ParserTask<int> until(Marks marks, To to, size_t max_held_bytes = kMaxHeldBytes);
  const std::string& held() const { return held_; }
  bool holds_too_much() const { return held_.size() > kMaxHeldBytes || kept_.size() > kMaxHeldBytes; }
  ParserTask<> skip_space();
  // Whether `literal` comes next; consumes what of it is there.
  ParserTask<bool> match(std::string_view literal);

  // What is consumed from now on is kept (up to a bound, see holds_too_much()), to be given back as content or read
  // again if it turns out to be no mark.
  void keep(std::string_view beginning);
  void forget();
  void give_back();
  void read_again();

  // One JSON value as it stands. False: none begins here, or the text ends or breaks inside it.
  ParserTask<bool> json_value(To to);
  // A JSON string of at most `max_bytes`, decoded.
  ParserTask<std::optional<std::string>> json_string(size_t max_bytes);

  void put(To to, char byte);
  void put_text(To to, std::string_view bytes);

  // False: no tool that was offered, or one too many; its arguments go nowhere.
  bool begin_call(std::string_view name, std::string_view id = {});
  void end_call();  // without arguments: {}
  // The call that begins next is handed over when it ends or is released, unless it is longer than may be held.
  void hold_call() { first_held_ = events_.size(); }
  void release_call() { first_held_.reset(); }
  bool offers(std::string_view name) const { return format_.tools == nullptr || format_.tools->has(name); }
  const Json* argument_schema(std::string_view argument) const;
  void end_reasoning();

  size_t calls() const { return calls_; }
  const std::vector<std::string>& unknown_calls() const { return unknown_calls_; }
  const AnswerFormat& format() const { return format_; }

 private:
  AnswerEvent& event(AnswerEvent::Kind kind);
  void put_content(char byte);
  void put_reasoning(char byte);
  size_t ready_events() const;

  const AnswerFormat format_;
  const bool trims_content_;
  const std::string_view held_mark_;
  TaskDriver driver_;
  std::string text_;
  size_t at_ = 0;
  bool ended_ = false;
  std::vector<AnswerEvent> events_;
  std::optional<size_t> first_held_;  // the event from which on they are held

  std::string held_;
  bool keeping_ = false;
  std::string kept_;
  std::string content_space_;     // whitespace that may stand before a call
  bool skips_space_ = false;      // behind a call or reasoning
  std::string reasoning_newlines_;
  bool reasoning_begun_ = false;

  bool in_call_ = false;
  bool call_left_out_ = false;
  bool has_arguments_ = false;
  std::string call_name_;
  size_t calls_ = 0;
  std::vector<std::string> unknown_calls_;
};

inline bool is_space(int byte) { return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r'; }

}  // namespace warpweave::output
