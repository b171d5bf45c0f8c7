#include "cli/load_model.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "base/mapped_file.h"
#include "cli/model_search.h"
#include "text/tokenizer_unicode.h"

namespace warpweave {
namespace {

// Silent for the first moments: a small model is there before a bar could be read.
class WeightsProgress {
 public:
  void operator()(int done, int all) {
    if (std::chrono::steady_clock::now() - start_ < std::chrono::milliseconds(500)) return;
    const int quarter = all > 0 ? done * 4 / all : 4;
    if (isatty(STDERR_FILENO) != 0) {
      const int filled = all > 0 ? done * 30 / all : 30;
      std::fprintf(stderr, "\rweights [%s%s] %d/%d layers%s", std::string(filled, '#').c_str(),
                   std::string(30 - filled, ' ').c_str(), done, all, done == all ? "\n" : "");
    } else if (quarter > printed_quarters_) {
      std::fprintf(stderr, "weights: %d/%d layers\n", done, all);
    }
    printed_quarters_ = std::max(printed_quarters_, quarter);
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  int printed_quarters_ = 0;
};

// --chat-template is a file's name or the template itself.
Result<std::string> read_chat_template(const std::string& flag) {
  if (flag.find("{%") != std::string::npos || flag.find("{{") != std::string::npos) return flag;
  Result<std::string> text = read_text_file(flag);
  if (text.ok()) return text;
  return Status(text.status().code(),
                fmt::format("--chat-template: {}; give a file such as ./template.jinja or the template's "
                            "text, or leave the flag out", text.status().message()),
                "--chat-template");
}

SamplingParams sampling_defaults(const ServerArgs& args, const GenerationDefaults& generation) {
  SamplingParams sampling;
  if (args.sampling_defaults != "model") return sampling;
  if (generation.temperature) sampling.temperature = static_cast<float>(*generation.temperature);
  if (generation.top_p) sampling.top_p = static_cast<float>(*generation.top_p);
  if (generation.top_k) sampling.top_k = *generation.top_k;
  if (generation.min_p) sampling.min_p = static_cast<float>(*generation.min_p);
  if (generation.repetition_penalty) {
    sampling.repetition_penalty = static_cast<float>(*generation.repetition_penalty);
  }
  return sampling;
}

Result<ChatTemplate> parse_chat_template(const std::string& text) {
  if (const size_t at = find_invalid_utf8(text); at < text.size()) {
    return Status::invalid_argument(fmt::format("the chat template is not UTF-8 at byte {}; save it as UTF-8", at),
                                    "--chat-template");
  }
  return ChatTemplate::parse(text);
}

}  // namespace

Result<GivenTemplates> read_given_templates(const ServerArgs& args) {
  GivenTemplates out;
  if (!args.chat_template.empty()) {
    WW_ASSIGN_OR_RETURN(const std::string text, read_chat_template(args.chat_template));
    if (!text.empty()) {
      WW_ASSIGN_OR_RETURN(out.chat, parse_chat_template(text));
    }
  }
  WW_ASSIGN_OR_RETURN(out.completion, server::open_completion_template(args.completion_template));
  return out;
}

Result<LoadedModel> load_model(const ServerArgs& args, std::function<void(int done, int all)> on_progress) {
  // Read before the weights, so that a wrong name costs no wait.
  WW_ASSIGN_OR_RETURN(GivenTemplates given, read_given_templates(args));
  WW_ASSIGN_OR_RETURN(const ModelSource source, find_model(args.model_path));
  EngineOptions options;
  options.args = args;
  options.model_path = source.path();
  options.on_weights_progress = [printed = WeightsProgress(), on_progress](int done, int all) mutable {
    printed(done, all);
    if (on_progress) on_progress(done, all);
  };
  WW_ASSIGN_OR_RETURN(ServedModel served, create_engine(options));

  LoadedModel loaded;
  loaded.chat_template = std::move(given.chat);
  if (!loaded.chat_template && !served.chat_template.empty()) {
    WW_ASSIGN_OR_RETURN(loaded.chat_template, parse_chat_template(served.chat_template));
  }
  if (args.completion_template == "auto" && served.tokenizer != nullptr) {
    given.completion = server::guess_completion_template(*served.tokenizer);
  }
  loaded.completion_template = std::move(given.completion);
  loaded.default_sampling = sampling_defaults(args, served.generation);
  loaded.served = std::move(served);
  loaded.embedded = source.embedded();
  return loaded;
}

}  // namespace warpweave
