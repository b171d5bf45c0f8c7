// HTTP/1.1 requests read once more, from all bytes at once and mostly by regular expressions: slow, plain
// and written apart from http_parser.cc, which the fuzz target holds against it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http_parser.h"

namespace warpweave::server::testing {

struct ReferenceRequest {
  std::string method, target, body;
  HeaderList fields;
  bool keep_alive = true;
  bool operator==(const ReferenceRequest&) const = default;
};

struct ReferenceResult {
  std::vector<ReferenceRequest> requests;  // whole ones, one behind the other
  int error_status = 0;                    // of what follows them; 0: only more bytes are missing
  std::optional<ReferenceRequest> head;    // of what follows them, where chunks behind it were read
};

ReferenceResult read_requests(std::string_view bytes, const ParserLimits& limits);

// The same for a request's target; nullopt: malformed.
std::optional<Target> read_target(const std::string& target);

}  // namespace warpweave::server::testing
