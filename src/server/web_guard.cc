#include "server/web_guard.h"

#include <arpa/inet.h>

#include <algorithm>

#include "server/http_syntax.h"

namespace warpweave::server {
namespace {

bool holds(const std::vector<std::string>& list, std::string_view value) {
  return std::any_of(list.begin(), list.end(), [&](const std::string& entry) {
    return entry == "*" || equal_ignoring_case(entry, value);
  });
}

// No DNS server can point an address elsewhere.
bool is_address(std::string_view name) {
  if (name.starts_with('[')) return true;  // is_host() has looked inside
  in_addr ignored{};
  return inet_pton(AF_INET, std::string(name).c_str(), &ignored) == 1;
}

bool same_origin(std::string_view origin, std::string_view host) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (origin.starts_with(scheme) && equal_ignoring_case(origin.substr(scheme.size()), host)) return true;
  }
  return false;
}

bool is_json(std::string_view content_type) {
  return equal_ignoring_case(trim(content_type.substr(0, content_type.find(';'))), "application/json");
}

}  // namespace

bool WebGuard::host_allowed(std::string_view host) const {
  const std::string_view name = host_without_port(host);
  if (name.empty()) return false;
  const std::string lower = to_lower(name);
  return is_address(lower) || lower == "localhost" || lower.ends_with(".localhost") ||
         equal_ignoring_case(lower, access_.own_host) || holds(access_.allowed_hosts, lower);
}

bool WebGuard::origin_allowed(AuthLevel level, std::string_view host, std::string_view origin) const {
  if (origin.empty() || same_origin(origin, host) || holds(access_.allowed_origins, origin)) return true;
  return level != AuthLevel::admin && access_.allowed_origins.empty();
}

std::string WebGuard::allow_origin(AuthLevel level, std::string_view host, std::string_view origin) const {
  if (access_.allowed_origins.empty() && level != AuthLevel::admin) return "*";
  if (holds(access_.allowed_origins, "*")) return "*";
  return !origin.empty() && origin_allowed(level, host, origin) ? std::string(origin) : std::string();
}

std::optional<HttpError> WebGuard::check(AuthLevel level, const WebRequest& request) const {
  if (!origin_allowed(level, request.host, request.origin)) {
    return HttpError{403, "origin_not_allowed",
                     "web pages of another origin may not do this; allow theirs with --allowed-origins ORIGIN"};
  }
  const bool hosts_named = !access_.allowed_hosts.empty() && level != AuthLevel::open;
  if ((hosts_named || level == AuthLevel::admin) && !request.key_was_checked && !host_allowed(request.host)) {
    return HttpError{403, "host_not_allowed",
                     "the Host header names no address of this server; allow the name with --allowed-hosts NAME"};
  }
  if (level != AuthLevel::admin) return std::nullopt;
  if (!request.peer_is_loopback && !request.key_was_checked) {
    return HttpError{403, "key_required",
                     "from another machine this needs a key; start the server with --admin-api-key KEY"};
  }
  if (!request.origin.empty() && !is_json(request.content_type)) {
    return HttpError{415, "unsupported_media_type", "a web page must send Content-Type: application/json here"};
  }
  return std::nullopt;
}

}  // namespace warpweave::server
