#include "text/tokenizer_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cctype>
#include <utility>

namespace warpweave {
namespace {

constexpr size_t kMaxPatternBytes = 64 << 10;
constexpr uint32_t kMatchLimit = 20'000'000;  // steps; a whole 10^6-character run needs 10^6
constexpr uint32_t kHeapLimitKib = 64 << 10;
constexpr size_t kJitStackBytes = 16 << 20;
constexpr unsigned kSearchesPerClockRead = 16;

std::string pcre2_error_text(int code) {
  unsigned char buffer[160];
  if (pcre2_get_error_message(code, buffer, sizeof buffer) < 0) return "unknown error";
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

struct RegexScratch::Pcre2 {
  Pcre2()
      : match_data(pcre2_match_data_create(1, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(32 << 10, kJitStackBytes, nullptr)) {
    if (context == nullptr) return;
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_set_heap_limit(context, kHeapLimitKib);
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Pcre2() {
    pcre2_match_data_free(match_data);
    pcre2_match_context_free(context);
    if (stack != nullptr) pcre2_jit_stack_free(stack);
  }

  pcre2_match_data* match_data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
};

RegexScratch::RegexScratch(std::chrono::milliseconds per_text)
    : pcre2_(std::make_unique<Pcre2>()), per_text_(per_text), deadline_(per_text, kSearchesPerClockRead) {}
RegexScratch::~RegexScratch() = default;

void RegexScratch::start_text(size_t text_bytes) {
  // Ordinary patterns need about 0.05 us a byte: two hundred times that is a runaway.
  deadline_ = ThreadDeadline(per_text_ + std::chrono::microseconds(text_bytes * 10), kSearchesPerClockRead);
}

struct Regex::Code {
  pcre2_code* code = nullptr;
  bool jit = false;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Result<Regex> Regex::compile(std::string_view oniguruma_pattern) {
  if (oniguruma_pattern.size() > kMaxPatternBytes) {
    return Status::unsupported("a regular expression of " +
                                   std::to_string(oniguruma_pattern.size()) +
                                   " bytes; the limit is " + std::to_string(kMaxPatternBytes),
                               "pattern");
  }
  WW_ASSIGN_OR_RETURN(std::string translated, translate_oniguruma(oniguruma_pattern));
  return compile_pcre2(translated, oniguruma_pattern);
}

Result<Regex> Regex::literal(std::string_view text) {
  std::string quoted;
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && !std::isalnum(byte)) {
      static const char* const digits = "0123456789ABCDEF";
      quoted += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
    } else {
      quoted += c;
    }
  }
  return compile_pcre2(quoted, text);
}

Result<Regex> Regex::compile_pcre2(const std::string& pcre2_pattern, std::string_view shown) {
  auto code = std::make_unique<Code>();
  std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  if (context == nullptr) return Status::resource_exhausted("no memory for a regular expression");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t offset = 0;
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  code->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pcre2_pattern.data()),
                             pcre2_pattern.size(), options, &error, &offset, context.get());
  if (code->code == nullptr) {
    return Status::data_loss("regular expression \"" + std::string(shown.substr(0, 200)) + "\": " +
                                 pcre2_error_text(error),
                             "pattern");
  }
  code->jit = pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE) == 0;
  return Regex(std::move(code));
}

Status Regex::find(std::string_view subject, size_t start, RegexScratch* scratch,
                   RegexMatch* match) const {
  RegexScratch::Pcre2& own = *scratch->pcre2_;
  if (own.match_data == nullptr || own.context == nullptr) {
    return Status::unavailable("no memory for a regular expression search");
  }
  if (scratch->deadline_.passed()) {
    return Status::resource_exhausted(
        "the text keeps the tokenizer's pattern busy longer than 2 s and 10 us a byte");
  }
  const auto* bytes = reinterpret_cast<PCRE2_SPTR>(subject.data());
  const auto search = code_->jit ? pcre2_jit_match : pcre2_match;
  // Subjects are valid UTF-8 already; checking again for each search would cost O(n^2).
  const int rc = search(code_->code, bytes, subject.size(), start, PCRE2_NO_UTF_CHECK,
                        own.match_data, own.context);
  match->found = rc >= 0;
  if (rc >= 0) {
    const size_t* ovector = pcre2_get_ovector_pointer(own.match_data);
    match->begin = ovector[0];
    match->end = ovector[1];
    return {};
  }
  if (rc == PCRE2_ERROR_NOMATCH) return {};
  return Status::resource_exhausted("the text exceeds the limits of the tokenizer's pattern: " +
                                    pcre2_error_text(rc));
}

}  // namespace warpweave
