// Keeps web pages from driving the server through their visitors' browsers.
//
// A browser sends the page's Origin, and lets a page read an answer only where the answer allows it. Routes
// that change the server (AuthLevel::admin) take requests of the server's own page and of the allowed
// origins; the others take any page's, unless --allowed-origins names some. A name that a hostile DNS
// server lets point to this machine (DNS rebinding) makes a foreign page look like the server's own, so
// the Host of a change must be an address, localhost, or an allowed name. Immutable; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/http.h"
#include "server/http_parser.h"

namespace warpweave::server {

struct WebAccess {
  std::vector<std::string> allowed_origins;  // "https://a.example"; "*": all; empty: see above
  std::vector<std::string> allowed_hosts;    // names without a port; "*": all
  std::string own_host;                      // --host
};

struct WebRequest {
  std::string_view host;
  std::string_view origin;        // empty: not sent by a page
  std::string_view content_type;
  bool peer_is_loopback = true;
  bool key_was_checked = false;   // a key is set, and the request has it
};

class WebGuard {
 public:
  explicit WebGuard(WebAccess access) : access_(std::move(access)) {}

  // nullopt: go on.
  std::optional<HttpError> check(AuthLevel level, const WebRequest& request) const;
  // The value of Access-Control-Allow-Origin: the origin, "*", or empty.
  std::string allow_origin(AuthLevel level, std::string_view host, std::string_view origin) const;
  bool host_allowed(std::string_view host) const;

 private:
  bool origin_allowed(AuthLevel level, std::string_view host, std::string_view origin) const;

  const WebAccess access_;
};

}  // namespace warpweave::server
