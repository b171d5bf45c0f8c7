#include "server/route_table.h"

#include <algorithm>

#include "server/http_syntax.h"
#include "server/http_wire.h"

namespace warpweave::server {
namespace {

std::string_view bearer_key(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  if (!equal_ignoring_case(authorization.substr(0, kScheme.size()), kScheme)) return {};
  authorization.remove_prefix(kScheme.size());
  const size_t begin = authorization.find_first_not_of(' ');
  if (begin == std::string_view::npos) return {};
  const size_t end = authorization.find_last_not_of(' ');
  return authorization.substr(begin, end - begin + 1);
}

}  // namespace

RouteTable::RouteTable(const Router& router) : routes_(router.routes()) {
  for (size_t i = 0; i < routes_.size(); ++i) {
    if (routes_[i].path.ends_with("/*")) {
      prefixes_.push_back(i);
    } else {
      exact_[routes_[i].path].push_back(i);
    }
  }
  std::stable_sort(prefixes_.begin(), prefixes_.end(), [&](size_t a, size_t b) {
    return routes_[a].path.size() > routes_[b].path.size();
  });
}

void RouteTable::add_match(std::string_view method, const Route& route, Match& match) const {
  if (match.route == nullptr &&
      (route.method == method || (method == "HEAD" && route.method == "GET"))) {
    match.route = &route;
  }
  if (!match.allowed.empty()) match.allowed += ", ";
  match.allowed += route.method;
  match.strictest = std::max(match.strictest, route.auth);
}

RouteTable::Match RouteTable::find(std::string_view method, const std::string& path) const {
  Match match;
  if (const auto it = exact_.find(path); it != exact_.end()) {
    for (size_t i : it->second) add_match(method, routes_[i], match);
    return match;
  }
  for (size_t i : prefixes_) {
    const Route& route = routes_[i];
    if (path.starts_with(std::string_view(route.path).substr(0, route.path.size() - 1))) {
      add_match(method, route, match);
    }
  }
  return match;
}

bool needs_key(AuthLevel level, const ApiKeys& keys) {
  return level != AuthLevel::open &&
         (!keys.api_key.empty() || (level == AuthLevel::admin && !keys.admin_api_key.empty()));
}

bool authorized(AuthLevel level, std::string_view authorization, const ApiKeys& keys) {
  if (!needs_key(level, keys)) return true;
  const bool admin_only = level == AuthLevel::admin && !keys.admin_api_key.empty();
  const std::string_view key = bearer_key(authorization);
  // Both comparisons always run, so that time does not tell which key was nearly right.
  const bool is_admin =
      constant_time_equal(key, keys.admin_api_key) && !keys.admin_api_key.empty();
  const bool is_user = constant_time_equal(key, keys.api_key) && !keys.api_key.empty();
  return is_admin || (is_user && !admin_only);
}

}  // namespace warpweave::server
