// Replies of /generate in SGLang's shape: {"text", "output_ids", "meta_info": {...}}.
//
// As there, a stream repeats the text, ids and log-probabilities so far in each event, unless --stream-output is given;
// they are kept as JSON text, so that an event is a few copies.
#pragma once

#include <memory>
#include <span>

#include "server/api/generation.h"

namespace warpweave::server {

struct NativeReplyOptions {
  bool as_list = false;  // the request was a batch or n > 1: replies carry their index
  bool return_text_in_logprobs = false;
  bool only_new = false;  // events of a stream hold what is new, not all so far
};

std::unique_ptr<ResponseBuilder> make_native_builder(const Api& api,
                                                     const NativeReplyOptions& options,
                                                     std::span<const GenerateRequest> requests);

}  // namespace warpweave::server
