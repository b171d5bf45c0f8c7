// Bytes in, requests out: the parser, fed in pieces of any sizes, against the reference.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "server/http_parser.h"
#include "server/testing/http_reference.h"

namespace {

using namespace warpweave::server;
using Event = RequestParser::Event;

// Small, so that inputs of a few hundred bytes pass every bound.
constexpr ParserLimits kLimits{.max_header_bytes = 256, .max_fields = 6, .max_body_bytes = 64, .max_chunk_line_bytes = 24};

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "http_fuzz: %s\n", what);
  std::abort();
}

// Piece sizes come from a generator seeded by the input's first byte.
testing::ReferenceResult parse(std::string_view bytes, uint32_t seed) {
  testing::ReferenceResult result;
  RequestParser parser(kLimits);
  std::string body;
  size_t begin = 0, end = 0;
  while (true) {
    const RequestParser::Step step = parser.next(bytes.substr(begin, end - begin));
    if (step.used > end - begin) fail("more bytes used than given");
    begin += step.used;
    body += step.body;
    if (body.size() > kLimits.max_body_bytes) fail("a body past its bound");
    if (step.event == Event::failed) {
      result.error_status = parser.error().status;
      if (parser.error().message.empty() || parser.error().code.empty()) fail("an error without words");
      return result;
    }
    if (step.event == Event::done) {
      const RequestHead& head = parser.head();
      result.requests.push_back({head.method, head.target, body, head.fields, head.keep_alive});
      parser = RequestParser(kLimits);
      body.clear();
    }
    if (step.event != Event::need_more) continue;
    if (begin != end) fail("more bytes wanted while some are left");
    if (end == bytes.size()) return result;
    seed = seed * 1664525 + 1013904223;
    end = std::min(bytes.size(), end + 1 + (seed >> 24) % ((seed >> 8) % 64 + 1));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const testing::ReferenceResult got = parse(bytes, data[0]);
  const testing::ReferenceResult expected = testing::read_requests(bytes, kLimits);
  if (got.error_status != expected.error_status) {
    std::fprintf(stderr, "status %d, the reference says %d\n", got.error_status, expected.error_status);
    fail("another error");
  }
  if (got.requests != expected.requests) fail("other requests");
  return 0;
}
