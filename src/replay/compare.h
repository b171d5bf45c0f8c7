// A recording run again: one backend against another, or against what was recorded.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/threads.h"
#include "replay/recording.h"

namespace warpweave {

inline constexpr const char* kAgainstRecorded = "recorded";

struct ReplayOptions {
  std::string backend;                  // to be judged
  std::string against = "reference";    // a backend, or "recorded"
  std::optional<int> layer = {};        // unset: all
  std::optional<double> tolerance = {}; // unset: by the KV format, relative to the largest value
};

// Where two outputs differ.
struct DifferenceAt {
  int request = 0;
  int row = 0;         // of the request
  int position = 0;    // of the row in its sequence
  int head = 0;
  int element = 0;
  double difference = 0;
  float value = 0, expected = 0;
};

struct LayerDifference {
  int layer = 0;
  double tolerance = 0;
  DifferenceAt largest;
  std::optional<DifferenceAt>
      first;  // in order of request, row, head: the first beyond the tolerance
  std::vector<double> by_head;          // the largest of each query head
};

// `not_found` for an unknown backend or layer, `unsupported` when a backend's Caps do not claim
// what the recording asks for, or its batch is refused.
Result<std::vector<LayerDifference>> replay(const Recording& recording,
                                            const ReplayOptions& options, ThreadTeam& team);

}  // namespace warpweave
