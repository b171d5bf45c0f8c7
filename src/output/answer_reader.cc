#include "output/answer_reader.h"

#include <algorithm>

namespace warpweave::output {
namespace {

constexpr size_t kMaxHeldSpace = 4096;
constexpr size_t kMaxJsonDepth = 256;
constexpr size_t kMaxUnknownNames = 16;

bool begins_mark(std::string_view text, Marks marks) {
  return std::any_of(marks.begin(), marks.end(), [&](std::string_view mark) { return mark.starts_with(text); });
}

bool is_scalar_byte(int byte) {
  return (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || byte == '-' ||
         byte == '+' || byte == '.';
}

}  // namespace

void AnswerReader::add(std::string_view piece) {
  text_.erase(0, at_);
  at_ = 0;
  text_ += piece;
}

size_t AnswerReader::ready_events() const {
  if (ended_) return events_.size();
  if (first_held_) {
    size_t held_bytes = 0;
    for (size_t i = *first_held_; i < events_.size(); ++i) held_bytes += events_[i].text.size();
    return held_bytes <= kMaxHeldBytes ? *first_held_ : events_.size();
  }
  const bool begins_held_mark = events_.size() == 1 && events_[0].kind == AnswerEvent::Kind::content &&
                                events_[0].text.size() < held_mark_.size() && held_mark_.starts_with(events_[0].text);
  return begins_held_mark ? 0 : events_.size();
}

std::vector<AnswerEvent> AnswerReader::take_events() {
  const size_t ready = ready_events();
  if (ready == events_.size()) {
    release_call();
    return std::exchange(events_, {});
  }
  const auto end = events_.begin() + static_cast<ptrdiff_t>(ready);
  std::vector<AnswerEvent> taken(std::move_iterator(events_.begin()), std::move_iterator(end));
  events_.erase(events_.begin(), end);
  if (first_held_) first_held_ = 0;
  return taken;
}

void AnswerReader::take() {
  if (keeping_ && kept_.size() <= kMaxHeldBytes) kept_ += text_[at_];
  ++at_;
}

ParserTask<int> AnswerReader::until(Marks marks, To to, size_t max_held_bytes) {
  held_.clear();
  std::string begun;  // the longest end of the text that begins a mark
  for (int byte = co_await peek(); byte >= 0; byte = co_await peek()) {
    take();
    begun += static_cast<char>(byte);
    while (!begun.empty() && !begins_mark(begun, marks)) {
      put(to, begun[0]);
      begun.erase(0, 1);
    }
    const auto found = std::find(marks.begin(), marks.end(), begun);
    if (found != marks.end()) co_return static_cast<int>(found - marks.begin());
    if (to == To::held && (held_.size() >= max_held_bytes || kept_.size() >= kMaxHeldBytes)) {
      put_text(to, begun);
      co_return -2;
    }
  }
  put_text(to, begun);
  co_return -1;
}

ParserTask<> AnswerReader::skip_space() {
  for (int byte = co_await peek(); is_space(byte); byte = co_await peek()) take();
}

ParserTask<bool> AnswerReader::match(std::string_view literal) {
  for (const char wanted : literal) {
    const int byte = co_await peek();
    if (byte != static_cast<unsigned char>(wanted)) co_return false;
    take();
  }
  co_return true;
}

void AnswerReader::keep(std::string_view beginning) {
  kept_ = beginning;
  keeping_ = true;
}

void AnswerReader::forget() {
  kept_.clear();
  keeping_ = false;
}

void AnswerReader::give_back() {
  const std::string kept = std::exchange(kept_, {});
  keeping_ = false;
  put_text(To::content, kept);
}

void AnswerReader::read_again() {
  unread(std::exchange(kept_, {}));
  keeping_ = false;
}

ParserTask<bool> AnswerReader::json_value(To to) {
  std::string open;  // the brackets around
  bool in_string = false, escaped = false;
  if (to == To::held) held_.clear();
  int byte = co_await peek();
  if (byte != '{' && byte != '[' && byte != '"' && !is_scalar_byte(byte)) co_return false;
  const bool scalar = is_scalar_byte(byte);
  for (; byte >= 0; byte = co_await peek()) {
    if (scalar && !is_scalar_byte(byte)) co_return true;
    take();
    put(to, static_cast<char>(byte));
    if (holds_too_much()) co_return false;
    if (scalar) continue;
    if (in_string) {
      if (escaped) {
        escaped = false;
      } else if (byte == '\\') {
        escaped = true;
      } else if (byte == '"') {
        in_string = false;
      }
    } else if (byte == '"') {
      in_string = true;
    } else if (byte == '{' || byte == '[') {
      if (open.size() == kMaxJsonDepth) co_return false;
      open += static_cast<char>(byte == '{' ? '}' : ']');
    } else if (byte == '}' || byte == ']') {
      if (open.empty() || open.back() != byte) co_return false;
      open.pop_back();
    }
    if (!in_string && open.empty()) co_return true;
  }
  co_return scalar;
}

ParserTask<std::optional<std::string>> AnswerReader::json_string(size_t max_bytes) {
  std::string raw;
  bool escaped = false;
  for (int byte = co_await peek(); byte >= 0 && raw.size() <= max_bytes; byte = co_await peek()) {
    if (raw.empty() && byte != '"') break;
    take();
    raw += static_cast<char>(byte);
    const bool closes = byte == '"' && !escaped && raw.size() > 1;
    escaped = byte == '\\' && !escaped;
    if (!closes) continue;
    const Result<Json> value = parse_json(raw);
    if (!value.ok()) break;
    co_return value->get<std::string>();
  }
  co_return std::nullopt;
}

AnswerEvent& AnswerReader::event(AnswerEvent::Kind kind) {
  if (events_.empty() || events_.back().kind != kind) events_.push_back({kind, {}, {}, calls_ > 0 ? calls_ - 1 : 0});
  return events_.back();
}

void AnswerReader::put(To to, char byte) {
  switch (to) {
    case To::nowhere: return;
    case To::content: return put_content(byte);
    case To::reasoning: return put_reasoning(byte);
    case To::held:
      if (held_.size() <= kMaxHeldBytes) held_ += byte;
      return;
    case To::arguments:
      if (!in_call_) return;
      has_arguments_ = true;
      if (!call_left_out_) event(AnswerEvent::Kind::arguments).text += byte;
      return;
    case To::quoted: break;
  }
  if (byte == '"' || byte == '\\') {
    put(To::arguments, '\\');
    put(To::arguments, byte);
  } else if (static_cast<unsigned char>(byte) >= 0x20) {
    put(To::arguments, byte);
  } else if (byte == '\n') {
    put_text(To::arguments, "\\n");
  } else {
    constexpr char kHex[] = "0123456789abcdef";
    put_text(To::arguments, "\\u00");
    put(To::arguments, kHex[static_cast<unsigned char>(byte) >> 4]);
    put(To::arguments, kHex[byte & 15]);
  }
}

void AnswerReader::put_text(To to, std::string_view bytes) {
  for (const char byte : bytes) put(to, byte);
}

void AnswerReader::put_content(char byte) {
  if (is_space(byte) && (trims_content_ || skips_space_)) {
    if (!skips_space_) content_space_ += byte;
    if (content_space_.size() > kMaxHeldSpace) flush_content();
    return;
  }
  skips_space_ = false;
  flush_content();
  event(AnswerEvent::Kind::content).text += byte;
}

void AnswerReader::flush_content() {
  if (content_space_.empty()) return;
  event(AnswerEvent::Kind::content).text += content_space_;
  content_space_.clear();
}

void AnswerReader::put_reasoning(char byte) {
  if (byte == '\n') {
    if (reasoning_begun_) reasoning_newlines_ += byte;
    if (reasoning_newlines_.size() < kMaxHeldSpace) return;
  }
  AnswerEvent& reasoning = event(AnswerEvent::Kind::reasoning);
  reasoning.text += std::exchange(reasoning_newlines_, {});
  if (byte != '\n') reasoning.text += byte;
  reasoning_begun_ = true;
}

void AnswerReader::end_reasoning() {
  reasoning_newlines_.clear();
  reasoning_begun_ = false;
  skips_space_ = true;
}

bool AnswerReader::begin_call(std::string_view name, std::string_view id) {
  in_call_ = true;
  has_arguments_ = false;
  call_name_ = name;
  if (trims_content_) {
    content_space_.clear();
    skips_space_ = true;
  }
  const bool known = offers(name);
  if (!known && unknown_calls_.size() < kMaxUnknownNames) unknown_calls_.emplace_back(name);
  call_left_out_ = !known || calls_ == (format_.parallel_calls ? kMaxCalls : 1);
  if (call_left_out_) return false;
  events_.push_back({AnswerEvent::Kind::call, std::string(name), std::string(id), calls_++});
  return true;
}

void AnswerReader::end_call() {
  if (in_call_ && !has_arguments_) put_text(To::arguments, "{}");
  in_call_ = false;
  release_call();
}

const Json* AnswerReader::argument_schema(std::string_view argument) const {
  return format_.tools == nullptr ? nullptr : format_.tools->argument_schema(call_name_, argument);
}

}  // namespace warpweave::output
