#include "server/testing/http_reference.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <regex>

namespace warpweave::server::testing {
namespace {

#define TOKEN R"([!#$%&'*+\-.^_`|~0-9A-Za-z]+)"

std::string strip(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::vector<std::string> elements(const std::string& list) {
  std::vector<std::string> out;
  size_t begin = 0;
  while (begin <= list.size()) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string element = lower(strip(list.substr(begin, end - begin)));
    if (!element.empty()) out.push_back(element);
    begin = end + 1;
  }
  return out;
}

struct Failure {
  int status;  // 0: more bytes are missing
};

class Reader {
 public:
  Reader(std::string_view bytes, const ParserLimits& limits) : bytes_(bytes), limits_(limits) {}

  // Throws Failure where there is no whole request.
  ReferenceRequest read() {
    size_t room = limits_.max_header_bytes;
    std::string line;
    while ((line = read_line(&room, 431)).empty()) room = limits_.max_header_bytes;
    ReferenceRequest request = read_request_line(line);
    while (!(line = read_line(&room, 431)).empty()) read_field(line, &request);
    read_body(&request);
    return request;
  }

 private:
  // Takes a line that has `room` bytes with its end; what is wrong first counts.
  std::string read_line(size_t* room, int too_long) {
    for (size_t i = 0; i < bytes_.size(); ++i) {
      if (i >= *room) throw Failure{too_long};
      const auto c = static_cast<unsigned char>(bytes_[i]);
      const bool after_cr = i > 0 && bytes_[i - 1] == '\r';
      if (c == '\n' && after_cr) {
        const std::string line(bytes_.substr(0, i - 1));
        bytes_.remove_prefix(i + 1);
        *room -= i + 1;
        return line;
      }
      if (after_cr || c == 127 || (c < 32 && c != '\t' && c != '\r')) throw Failure{400};
    }
    throw Failure{0};
  }

  ReferenceRequest read_request_line(const std::string& line) {
    static const std::regex kLine("(" TOKEN ") ([\\x21-\\x7e]+) HTTP/([0-9])\\.([0-9])");
    std::smatch part;
    if (!std::regex_match(line, part, kLine)) throw Failure{400};
    if (part[3] != "1" || (part[4] != "0" && part[4] != "1")) throw Failure{505};
    old_ = part[4] == "0";
    ReferenceRequest request;
    request.method = part[1];
    request.target = part[2];
    return request;
  }

  void read_field(const std::string& line, ReferenceRequest* request) {
    static const std::regex kName(TOKEN);
    const size_t colon = line.find(':');
    if (colon == std::string::npos || !std::regex_match(line.substr(0, colon), kName)) throw Failure{400};
    if (request->fields.size() + 1 > limits_.max_fields) throw Failure{431};
    request->fields.emplace_back(lower(line.substr(0, colon)), strip(line.substr(colon + 1)));
  }

  static std::vector<std::string> values(const ReferenceRequest& request, const std::string& name) {
    std::vector<std::string> out;
    for (const auto& [field, value] : request.fields) {
      if (field == name) out.push_back(value);
    }
    return out;
  }

  void read_body(ReferenceRequest* request) {
    static const std::regex kHost(R"((\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~%\-]*)(:[0-9]*)?)");
    const auto hosts = values(*request, "host");
    if (hosts.size() > 1 || (hosts.empty() && !old_)) throw Failure{400};
    if (!hosts.empty() && !std::regex_match(hosts[0], kHost)) throw Failure{400};
    for (const std::string& value : values(*request, "expect")) {
      if (lower(value) != "100-continue") throw Failure{417};
    }
    request->keep_alive = !old_;
    for (const std::string& value : values(*request, "connection")) {
      for (const std::string& option : elements(value)) {
        if (option == "close") request->keep_alive = false;
        if (option == "keep-alive" && old_) request->keep_alive = true;
      }
    }
    const auto lengths = values(*request, "content-length");
    const auto encodings = values(*request, "transfer-encoding");
    if (lengths.size() > 1 || (!lengths.empty() && !encodings.empty())) throw Failure{400};
    if (!encodings.empty()) {
      check_encodings(encodings);
      head_ = *request;
      request->body = read_chunks();
    } else if (!lengths.empty()) {
      request->body = take(read_length(lengths[0]));
    }
  }

  void check_encodings(const std::vector<std::string>& fields) {
    std::vector<std::string> all;
    for (const std::string& field : fields) {
      for (std::string& coding : elements(field)) all.push_back(std::move(coding));
    }
    if (old_ || all.empty() || all.back() != "chunked" || std::count(all.begin(), all.end(), "chunked") != 1) {
      throw Failure{400};
    }
    if (all.size() > 1) throw Failure{501};
  }

  size_t read_length(const std::string& text) {
    static const std::regex kDigits("0*([0-9]{0,20})");
    std::smatch part;
    if (text.empty() || !std::regex_match(text, part, kDigits)) throw Failure{400};
    const std::string digits = part[1];
    const std::string largest = "18446744073709551615";
    if (digits.size() == largest.size() && digits > largest) throw Failure{400};
    if (digits.size() > 15 || std::stoull("0" + digits) > limits_.max_body_bytes) throw Failure{413};
    return std::stoull("0" + digits);
  }

  std::string read_chunks() {
    static const std::regex kChunk("0*([0-9A-Fa-f]{0,16})([ \\t]*;[ \\t]*" TOKEN "([ \\t]*=[ \\t]*(" TOKEN
                                   R"(|"([^"\\]|\\[^])*"))?)*)");
    static const std::regex kTrailer(TOKEN ":[^]*");
    std::string body;
    uint64_t announced = 0;
    while (true) {
      size_t room = limits_.max_chunk_line_bytes;
      const std::string line = read_line(&room, 400);
      std::smatch part;
      if (line.empty() || !std::isxdigit(static_cast<unsigned char>(line[0])) ||
          !std::regex_match(line, part, kChunk)) {
        throw Failure{400};
      }
      const uint64_t size = std::stoull("0" + part[1].str(), nullptr, 16);
      if (size == 0) break;
      if (size > limits_.max_body_bytes - announced) throw Failure{413};
      announced += size;
      body += take(size);
      const std::string end(bytes_.substr(0, 2));
      if (end != std::string("\r\n").substr(0, end.size())) {
        // The first byte may be one of a longer line; the end of that is waited for.
        room = 2;
        read_line(&room, 400);
        throw Failure{400};
      }
      take(2);
    }
    size_t room = limits_.max_header_bytes;
    for (std::string line; !(line = read_line(&room, 431)).empty();) {
      if (!std::regex_match(line, kTrailer)) throw Failure{400};
    }
    return body;
  }

  std::string take(size_t count) {
    if (bytes_.size() < count) throw Failure{0};
    const std::string out(bytes_.substr(0, count));
    bytes_.remove_prefix(count);
    return out;
  }

  std::string_view bytes_;
  const ParserLimits& limits_;
  bool old_ = false;  // HTTP/1.0
  std::optional<ReferenceRequest> head_;

 public:
  std::string_view rest() const { return bytes_; }
  const std::optional<ReferenceRequest>& head() const { return head_; }
};

#define HOST R"((?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~%\-]*)(?::[0-9]*)?)"

}  // namespace

std::optional<Target> read_target(const std::string& target) {
  static const std::regex kTarget("(?:[Hh][Tt][Tt][Pp][Ss]?://(" HOST ")(?=/|$))?(?:(/[^?]*)(?:[?]([^]*))?)?");
  static const std::regex kPath("(?:[^%]|%[0-9A-Fa-f]{2})*");
  std::smatch part;
  if (target.empty() || !std::regex_match(target, part, kTarget)) return std::nullopt;
  const std::string path = part[2].matched ? part[2].str() : "/";
  if (!std::regex_match(path, kPath)) return std::nullopt;
  Target out{.path = {}, .query = part[3], .authority = part[1]};
  for (size_t i = 0; i < path.size(); ++i) {
    const bool escaped = path[i] == '%';
    const int c = escaped ? std::stoi(path.substr(i + 1, 2), nullptr, 16) : static_cast<unsigned char>(path[i]);
    if (c < 32 || c == 127) return std::nullopt;
    out.path += static_cast<char>(c);
    if (escaped) i += 2;
  }
  return out;
}

ReferenceResult read_requests(std::string_view bytes, const ParserLimits& limits) {
  ReferenceResult result;
  while (true) {
    Reader reader(bytes, limits);
    try {
      result.requests.push_back(reader.read());
    } catch (const Failure& failure) {
      result.error_status = failure.status;
      result.head = reader.head();
      return result;
    }
    bytes = reader.rest();
  }
}

}  // namespace warpweave::server::testing
