// Any bytes as a template over a fixed conversation, and any bytes as a message of a fixed template.
#include <cstddef>
#include <cstdint>
#include <string>

#include "text/chat_template.h"

namespace {

using warpweave::ChatTemplate;
using warpweave::ChatTemplateLimits;

const ChatTemplateLimits kSmall{200'000, 1u << 18};

nlohmann::ordered_json conversation(const std::string& content) {
  return {{"messages",
           {{{"role", "system"}, {"content", "Be brief."}},
            {{"role", "user"}, {"content", content}},
            {{"role", "assistant"},
             {"content", nullptr},
             {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", {{"x", 1.5}}}}}}}}}}},
          {"tools", {{{"type", "function"}, {"function", {{"name", "f"}}}}}},
          {"add_generation_prompt", true},
          {"bos_token", "<s>"},
          {"numbers", {3, -1, 2}}};
}

constexpr char kTemplate[] =
    "{%- for m in messages %}{{ m.role|upper ~ m.content|trim|tojson(indent=2) }}"
    "{{ (m.content or '').split('x')[1:]|join('-')|indent(2)|title }}{{ m.content is string }}"
    "{{ (m.content or '')[::-1].strip().lower().center(9) }}{% endfor %}";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (auto parsed = ChatTemplate::parse(text); parsed.ok()) {
    parsed->set_limits(kSmall);
    (void)parsed->render(conversation("h\xc3\xa9llo <|x|> \"quoted\"\n")).ok();
  }
  static const ChatTemplate fixed = ChatTemplate::parse(kTemplate).value();
  (void)fixed.render(conversation(text)).ok();
  return 0;
}
