#include "server/http_parser.h"

#include <gtest/gtest.h>

namespace warpweave::server {
namespace {

using Event = RequestParser::Event;

// What came out of feeding `bytes` in pieces of `piece` bytes.
struct Parsed {
  Event last = Event::need_more;
  std::string body;
  size_t used = 0;
  int heads = 0;
};

Parsed feed(RequestParser& parser, std::string_view bytes, size_t piece) {
  Parsed out;
  size_t end = 0;
  while (true) {
    const RequestParser::Step step = parser.next(bytes.substr(out.used, end - out.used));
    out.last = step.event;
    out.used += step.used;
    out.body += step.body;
    out.heads += step.event == Event::head;
    if (step.event == Event::done || step.event == Event::failed) return out;
    if (step.event != Event::need_more) continue;
    if (end == bytes.size()) return out;
    end = std::min(bytes.size(), end + piece);
  }
}

TEST(RequestParser, ReadsTheSameWhateverThePieces) {
  const std::string request =
      "\r\nPOST /a?b=c HTTP/1.1\r\nHost: h:1\r\nX-Y:  z \t\r\nTransfer-Encoding: chunked\r\nConnection: x, "
      "close\r\n\r\n"
      "5;a=\"b;c\"\r\nhello\r\n00A\r\n0123456789\r\n0\r\nTrailer: t\r\n\r\n";
  for (size_t piece = 1; piece <= request.size(); ++piece) {
    RequestParser parser;
    const Parsed parsed = feed(parser, request + "NEXT", piece);
    EXPECT_EQ(parsed.last, Event::done) << parser.error().message;
    EXPECT_EQ(parsed.used, request.size());
    EXPECT_EQ(parsed.heads, 1);
    EXPECT_EQ(parsed.body, "hello0123456789");
    EXPECT_EQ(parser.head().method, "POST");
    EXPECT_EQ(parser.head().target, "/a?b=c");
    EXPECT_EQ(parser.head().host, "h:1");
    EXPECT_FALSE(parser.head().keep_alive);
    EXPECT_EQ(parser.head().fields[1], (std::pair<std::string, std::string>("x-y", "z")));
  }
}

TEST(ParseTarget, TakesTheOriginAndTheAbsoluteFormAndNothingElse) {
  EXPECT_EQ(parse_target("/a%20b?c=%zz")->path, "/a b");
  EXPECT_EQ(parse_target("/a%20b?c=%zz")->query, "c=%zz");
  EXPECT_EQ(parse_target("HTTP://h:1/a")->authority, "h:1");
  EXPECT_EQ(parse_target("http://h")->path, "/");
  for (const char* target : {"", "*", "a", "h:80", "http", "https", "http:", "http:/a", "ftp://h/a", "http://h?a",
                             "http://h /a", "/%", "/%0", "/%0a", "/%zz"}) {
    EXPECT_FALSE(parse_target(target)) << target;
  }
}

TEST(RequestParser, SaysWhetherTheConnectionStays) {
  const auto keeps = [](const std::string& version, const std::string& fields) {
    RequestParser parser;
    feed(parser, "GET / HTTP/" + version + "\r\nHost: h\r\n" + fields + "\r\n", 1000);
    EXPECT_TRUE(parser.done()) << parser.error().message;
    return parser.head().keep_alive;
  };
  EXPECT_TRUE(keeps("1.1", ""));
  EXPECT_FALSE(keeps("1.1", "Connection: Close\r\n"));
  EXPECT_FALSE(keeps("1.0", ""));
  EXPECT_TRUE(keeps("1.0", "Connection: keep-alive\r\n"));
}

// A body at its bound passes, one byte more does not, however it is framed.
TEST(RequestParser, BoundsAreExact) {
  const ParserLimits limits{.max_header_bytes = 64, .max_fields = 3, .max_body_bytes = 10, .max_chunk_line_bytes = 8};
  const auto status = [&](const std::string& request) {
    RequestParser parser(limits);
    const Parsed parsed = feed(parser, request, 3);
    return parsed.last == Event::done ? 200 : parser.error().status;
  };
  const std::string head = "POST / HTTP/1.1\r\nHost: h\r\n";
  EXPECT_EQ(status(head + "Content-Length: 10\r\n\r\n0123456789"), 200);
  EXPECT_EQ(status(head + "Content-Length: 11\r\n\r\n"), 413);
  const std::string chunked = head + "Transfer-Encoding:chunked\r\n\r\n";
  EXPECT_EQ(status(chunked + "5\r\n01234\r\n5\r\n01234\r\n0\r\n\r\n"), 200);
  EXPECT_EQ(status(chunked + "5\r\n01234\r\n6\r\n"), 413);
  EXPECT_EQ(status(chunked + "ffffffffffffffff\r\n"), 400);  // the line's bound comes first
  EXPECT_EQ(status(chunked + "1;abcd\r\nx\r\n0\r\n\r\n"), 200);
  EXPECT_EQ(status(chunked + "1;abcde\r\nx\r\n0\r\n\r\n"), 400);
  EXPECT_EQ(status(head + "a:" + std::string(64 - head.size() - 6, 'x') + "\r\n\r\n"), 200);
  EXPECT_EQ(status(head + "a:" + std::string(64 - head.size() - 5, 'x') + "\r\n\r\n"), 431);
  EXPECT_EQ(status(head + "a:\r\nb:\r\n\r\n"), 200);
  EXPECT_EQ(status(head + "a:\r\nb:\r\nc:\r\n\r\n"), 431);
}

TEST(RequestParser, BytesOfTlsAreRefusedAtOnce) {
  RequestParser parser;
  EXPECT_EQ(feed(parser, std::string("\x16\x03\x01\x02\x00", 5), 1).last, Event::failed);
  EXPECT_EQ(parser.error().code, "bad_request_line");
}

}  // namespace
}  // namespace warpweave::server
