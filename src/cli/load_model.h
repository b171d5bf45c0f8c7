// What `serve` and `run` share: finding and loading the model with progress on the terminal, and
// the sampling values a request leaves out.
#pragma once

#include <functional>
#include <optional>

#include "engine/engine_impl.h"
#include "flags/server_args.h"
#include "server/api/completion_template.h"
#include "text/chat_template.h"
#include "warpweave/status.h"

namespace warpweave {

struct LoadedModel {
  ServedModel served;
  std::optional<ChatTemplate> chat_template;  // none: the model has no template
  SamplingParams default_sampling;
  std::optional<server::CompletionTemplate> completion_template;  // of `suffix`
  bool embedded = false;  // the program's own copy
};

// What flags give as texts or as files with them, opened and parsed. `auto` gives no completion template here: that
// takes the model's tokenizer.
struct GivenTemplates {
  std::optional<ChatTemplate> chat;  // none: the model's own
  std::optional<server::CompletionTemplate> completion;
};
Result<GivenTemplates> read_given_templates(const ServerArgs& args);

// Prints progress to stderr: a bar on a terminal, else a line per quarter. `on_progress`, where given, gets
// the layers read and all of them.
Result<LoadedModel> load_model(const ServerArgs& args, std::function<void(int done, int all)> on_progress = {});

}  // namespace warpweave
