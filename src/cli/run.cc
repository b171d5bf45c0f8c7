#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/chat_settings.h"
#include "cli/commands.h"
#include "cli/load_model.h"
#include "flags/nearest_name.h"

namespace warpweave {
namespace {

std::atomic<bool> interrupted{false};

void on_interrupt(int) { interrupted = true; }

// While this lives Ctrl-C stops the answer; at the prompt it ends the program.
class InterruptStopsAnswer {
 public:
  InterruptStopsAnswer() {
    interrupted = false;
    struct sigaction action {};
    action.sa_handler = on_interrupt;
    sigaction(SIGINT, &action, &before_);
  }
  ~InterruptStopsAnswer() { sigaction(SIGINT, &before_, nullptr); }

 private:
  struct sigaction before_ {};
};

struct Answer {
  std::string text;
  Status error;
  int completion_tokens = 0;
  double seconds = 0;
};

// One conversation: the messages so far, in the model's template or as plain text.
class Chat {
 public:
  Chat(LoadedModel& model, ChatSettings settings) : model_(model), settings_(std::move(settings)) {}

  ChatSettings& settings() { return settings_; }

  void clear() { messages_ = nlohmann::ordered_json::array(); }

  // Streams the answer to stdout.
  Status say(const std::string& line) {
    messages_.push_back({{"role", "user"}, {"content", line}});
    Result<std::vector<int32_t>> prompt = prompt_that_fits();
    if (!prompt.ok()) {
      messages_.erase(messages_.size() - 1);
      return prompt.status();
    }
    const Answer answer = generate(*std::move(prompt));
    std::printf("\n");
    if (isatty(STDOUT_FILENO) != 0 && answer.seconds > 0) {
      std::printf("[%d tokens, %.1f tokens/s]\n", answer.completion_tokens,
                  answer.completion_tokens / answer.seconds);
    }
    messages_.push_back({{"role", "assistant"}, {"content", answer.text}});
    return answer.error.code() == StatusCode::cancelled ? Status() : answer.error;
  }

 private:
  Result<std::vector<int32_t>> encode() const {
    const Tokenizer& tokenizer = *model_.served.tokenizer;
    if (!model_.chat_template) {
      return tokenizer.encode(messages_.back()["content"].get<std::string>(), true);
    }
    ChatInput input;
    input.messages = messages_;
    if (!settings_.system_prompt.empty()) {
      input.messages.insert(input.messages.begin(), {{"role", "system"}, {"content", settings_.system_prompt}});
    }
    const auto token_text = [&](std::optional<int32_t> id) {
      return id ? tokenizer.id_to_token(*id).value_or("") : "";
    };
    input.bos_token = token_text(tokenizer.bos_id());
    input.eos_token = token_text(tokenizer.eos_id());
    WW_ASSIGN_OR_RETURN(const std::string text, model_.chat_template->render_chat(std::move(input)));
    return tokenizer.encode(text, false);
  }

  // Forgets the oldest turns until a quarter of the context is free for the answer.
  Result<std::vector<int32_t>> prompt_that_fits() {
    const size_t limit = static_cast<size_t>(model_.served.engine->info().context_len) * 3 / 4;
    while (true) {
      Result<std::vector<int32_t>> prompt = encode();
      if (!prompt.ok() || prompt->size() <= limit || messages_.size() < 3) return prompt;
      messages_.erase(0);
      messages_.erase(0);
    }
  }

  Answer generate(std::vector<int32_t> prompt) {
    Engine& engine = *model_.served.engine;
    GenerateRequest request;
    request.rid = fmt::format("run-{}", ++turns_);
    request.sampling = settings_.sampling;
    const int room = std::max(1, engine.info().context_len - static_cast<int>(prompt.size()) - 1);
    request.sampling.max_new_tokens = std::min(room, settings_.max_tokens.value_or(room));
    request.input_ids = std::move(prompt);
    if (AdapterStore* const adapters = model_.served.adapters.get()) request.adapter = adapters->list()[0].weights;

    Answer answer;
    std::mutex mutex;
    std::condition_variable changed;
    bool finished = false;
    const std::string rid = request.rid;
    const InterruptStopsAnswer interrupt;
    const Status submitted = engine.submit(std::move(request), [&](OutputDelta delta) {
      std::lock_guard lock(mutex);
      std::fwrite(delta.text.data(), 1, delta.text.size(), stdout);
      std::fflush(stdout);
      answer.text += delta.text;
      answer.completion_tokens = delta.completion_tokens;
      answer.seconds = delta.e2e_latency_s;
      if (!delta.finish) return;
      answer.error = delta.finish->error;
      finished = true;
      changed.notify_all();
    });
    if (!submitted.ok()) return {{}, submitted};
    std::unique_lock lock(mutex);
    while (!finished) {
      changed.wait_for(lock, std::chrono::milliseconds(50));
      if (finished || !interrupted.exchange(false)) continue;
      lock.unlock();
      engine.abort(rid);
      lock.lock();
    }
    return answer;
  }

  LoadedModel& model_;
  ChatSettings settings_;
  nlohmann::ordered_json messages_ = nlohmann::ordered_json::array();
  int turns_ = 0;
};

constexpr const char* kHelp =
    "/set               show the settings\n"
    "/set NAME VALUE    change one, such as /set temperature 0.2\n"
    "/clear             forget the conversation\n"
    "/exit              end; so does Ctrl-D\n"
    "Ctrl-C stops an answer. Everything else goes to the model.\n";

// A line of the form /word ...; a path such as /etc/hosts is none.
bool is_command(std::string_view line) {
  const std::string_view word = line.substr(0, line.find(' '));
  return word.size() > 1 && word[0] == '/' && word.find('/', 1) == std::string_view::npos;
}

Status set_from_line(std::string_view line, Chat* conversation) {
  const auto next_word = [&line] {
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    const std::string_view word = line.substr(0, line.find(' '));
    line.remove_prefix(word.size());
    return word;
  };
  next_word();  // "/set"
  const std::string_view name = next_word();
  if (name.empty()) {
    std::fputs(chat_settings_text(conversation->settings()).c_str(), stdout);
    return {};
  }
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  if (line.empty() && name != "system_prompt") {
    return Status::invalid_argument("/set needs a value, such as /set temperature 0.2");
  }
  return set_chat_setting(name, line, &conversation->settings());
}

// False when the conversation is over.
bool run_chat_command(const std::string& line, Chat* conversation) {
  const std::string word = line.substr(0, line.find(' '));
  if (word == "/exit" || word == "/quit" || word == "/bye") return false;  // as other programs call it
  if (word == "/clear") {
    conversation->clear();
  } else if (word == "/help") {
    std::fputs(kHelp, stdout);
  } else if (word == "/set") {
    if (Status status = set_from_line(line, conversation); !status.ok()) fail(status, kExitFailed);
  } else {
    const std::string_view near = nearest_name(word, std::vector<std::string_view>{"/exit", "/clear", "/help", "/set"});
    fail(Status::invalid_argument(
             fmt::format("unknown command {}; {}", log_safe(word),
                         near.empty() ? "/help lists them" : fmt::format("did you mean {}?", near))),
         kExitFailed);
  }
  return true;
}

int chat(const ServerArgs& args) {
  if (args.skip_tokenizer_init) {
    return fail(Status::invalid_argument("--skip-tokenizer-init: a chat needs text; try: warpweave "
                                         "run without it"),
                kExitUsage);
  }
  Result<LoadedModel> loaded = load_model(args);
  if (!loaded.ok()) return fail(loaded.status(), kExitFailed);
  if (args.wants_lora() && loaded->served.adapters->list().size() != 1) {
    return fail(
        Status::invalid_argument("a chat in the terminal has one adapter; try: warpweave run --lora-paths NAME=FOLDER",
                                 "--lora-paths"),
        kExitUsage);
  }
  const bool terminal = isatty(STDIN_FILENO) != 0;
  if (terminal) {
    std::printf("%s, %s%s\n/help lists the commands, /exit ends, Ctrl-C stops an answer\n",
                version_text().c_str(), loaded->served.engine->info().served_model_name.c_str(),
                loaded->chat_template ? "" : " (no chat template: it continues your text)");
  }
  if (!args.system_prompt.empty() && !loaded->chat_template) {
    return fail(Status::invalid_argument("--system-prompt: this model has no chat template and continues plain text; "
                                         "leave it out, or give one with --chat-template FILE"),
                kExitUsage);
  }
  Chat conversation(*loaded, chat_settings(args, loaded->served.generation));
  int failures = 0;
  std::string line;
  while (true) {
    if (terminal) {
      std::printf("> ");
      std::fflush(stdout);
    }
    if (!std::getline(std::cin, line)) break;
    if (is_command(line)) {
      if (!run_chat_command(line, &conversation)) break;
    } else if (!line.empty()) {
      if (Status status = conversation.say(line); !status.ok()) failures += fail(status, kExitFailed);
    }
  }
  if (terminal) std::printf("\n");
  return failures == 0 || terminal ? 0 : kExitFailed;  // a script hears of an answer that failed
}

}  // namespace

int run_command(std::span<const std::string> argv) {
  Started started = start_command(Command::run, argv);
  if (started.exit_code) return *started.exit_code;
  // No status lines between the words.
  started.args.decode_log_interval_s = 0;
  if (started.args.log_level == "info") spdlog::set_level(spdlog::level::warn);
  return chat(started.args);
}

}  // namespace warpweave
