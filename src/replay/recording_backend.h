// An attention backend that records one forward of another: --dump-batch.
//
// Passes every call on and costs nothing but a count until the forward it waits for. That one's
// tensors are copied as its layers run, at most kMaxRecordingBytes of them, and written when the
// last wanted layer has run. Failures to record are logged; the forward itself goes on. Host memory
// only.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "attention/backend.h"

namespace warpweave {

struct RecordingOptions {
  int64_t forward = 1;          // which one, from 1
  std::optional<int> layer;     // unset: all
  int num_layers = 0;           // of the model, up to the last with attention
  std::string path;
};

std::unique_ptr<AttentionBackend> record_forward(std::unique_ptr<AttentionBackend> backend,
                                                 RecordingOptions options);

}  // namespace warpweave
