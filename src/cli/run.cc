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
#include "cli/commands.h"
#include "cli/load_model.h"

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
  explicit Chat(LoadedModel& model) : model_(model) {}

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
    request.sampling = model_.default_sampling;
    const int room = engine.info().context_len - static_cast<int>(prompt.size()) - 1;
    request.sampling.max_new_tokens = std::max(1, room);
    request.input_ids = std::move(prompt);

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
  nlohmann::ordered_json messages_ = nlohmann::ordered_json::array();
  int turns_ = 0;
};

int chat(const ServerArgs& args) {
  if (args.skip_tokenizer_init) {
    return fail(Status::invalid_argument("--skip-tokenizer-init: a chat needs text; try: warpweave "
                                         "run without it"),
                kExitUsage);
  }
  Result<LoadedModel> loaded = load_model(args);
  if (!loaded.ok()) return fail(loaded.status(), kExitFailed);
  const bool terminal = isatty(STDIN_FILENO) != 0;
  if (terminal) {
    std::printf("%s, %s%s\n/exit ends, /clear forgets, Ctrl-C stops an answer\n",
                version_text().c_str(), loaded->served.engine->info().served_model_name.c_str(),
                loaded->chat_template ? "" : " (no chat template: it continues your text)");
  }
  Chat conversation(*loaded);
  std::string line;
  while (true) {
    if (terminal) {
      std::printf("> ");
      std::fflush(stdout);
    }
    if (!std::getline(std::cin, line) || line == "/exit") break;
    if (line == "/clear") {
      conversation.clear();
    } else if (!line.empty()) {
      if (Status status = conversation.say(line); !status.ok()) fail(status, kExitFailed);
    }
  }
  if (terminal) std::printf("\n");
  return 0;
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
