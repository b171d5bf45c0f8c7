// Chat templates: a list of messages in, the prompt text out.
//
// The template is the Jinja2 source of a model's tokenizer_config.json (or GGUF metadata); the text
// is the one that jinja2's ImmutableSandboxedEnvironment gives under the settings Hugging Face
// transformers uses (trim_blocks, lstrip_blocks, loopcontrols, {% generation %}, tojson without
// ASCII escapes, raise_exception, strftime_now). A template is data from outside: nothing it says
// can reach files, the network or memory, and work, output bytes, depth and ranges are limited.
//
// A ChatTemplate is immutable after parse(): copies share it, any thread may render.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "warpweave/status.h"

namespace warpweave {

namespace jinja {
struct Template;
}

// What one rendering may use. The defaults leave room for prompts of a million tokens, and end a rendering well
// within a second whatever the template and the messages do.
struct ChatTemplateLimits {
  size_t max_work = 4'000'000;          // units of about 50 ns: jinja/runtime.h says what costs how many
  size_t max_output_bytes = 64u << 20;  // of the rendered text and of any one string
};

// The variables of the usual call, as a server has them.
struct ChatInput {
  nlohmann::ordered_json messages;      // array of {"role": ..., "content": ...}
  nlohmann::ordered_json tools;         // array, or null for none
  bool add_generation_prompt = true;    // end with the opening of the assistant's turn
  std::string bos_token;                // empty: the model has none; the variable stays undefined
  std::string eos_token;
  nlohmann::ordered_json extra;         // object or null: chat_template_kwargs, e.g. enable_thinking;
                                        // wins over everything above except messages and tools

  ChatInput() = default;
  ChatInput(ChatInput&&) = default;
  ChatInput& operator=(ChatInput&&) = default;
  ~ChatInput();                         // without allocating: see dismantle()
};

class ChatTemplate {
 public:
  // Fails with invalid_argument (field "chat_template") naming the line and what to fix.
  static Result<ChatTemplate> parse(std::string source);

  // Renders with exactly these variables (an object). Fails with invalid_argument, field
  // "messages", when the template calls raise_exception (its message is passed on) or when the
  // variables do not fit the template; the message names the template's line.
  Result<std::string> render(const nlohmann::ordered_json& variables) const;

  // Renders the usual call. Content given as a list of text parts becomes one string unless the
  // template walks over parts itself, and tool-call arguments given as JSON text become objects,
  // which is what templates expect of the OpenAI message form.
  Result<std::string> render_chat(ChatInput input) const;

  // True when the template iterates over message content, so lists of parts may be passed as is.
  bool accepts_content_parts() const;

  const std::string& source() const;

  void set_limits(const ChatTemplateLimits& limits) { limits_ = limits; }
  // The moment strftime_now sees instead of the clock's; for tests.
  void set_now(std::chrono::system_clock::time_point now) { now_ = now; }

 private:
  explicit ChatTemplate(std::shared_ptr<const jinja::Template> parsed) : parsed_(std::move(parsed)) {}

  std::shared_ptr<const jinja::Template> parsed_;
  ChatTemplateLimits limits_;
  std::optional<std::chrono::system_clock::time_point> now_;
};

}  // namespace warpweave
