// Which route a request belongs to, and whether its key is good enough. Immutable after
// construction, so any thread may read it.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "server/http.h"

namespace warpweave::server {

struct ApiKeys {
  std::string api_key;        // empty: not set
  std::string admin_api_key;  // empty: not set
};

class RouteTable {
 public:
  explicit RouteTable(const Router& router);

  struct Match {
    const Route* route = nullptr;      // null: see `allowed`
    std::string allowed;               // "GET, POST": methods of this path; empty: no such path
    AuthLevel strictest = AuthLevel::open;  // of this path's routes
  };
  // HEAD finds the GET route.
  Match find(std::string_view method, const std::string& path) const;

 private:
  void add_match(std::string_view method, const Route& route, Match& match) const;

  std::vector<Route> routes_;
  std::unordered_map<std::string, std::vector<size_t>> exact_;
  std::vector<size_t> prefixes_;  // longest first
};

// `authorization` is the header's value: "Bearer <key>". The admin key opens everything.
bool needs_key(AuthLevel level, const ApiKeys& keys);
bool authorized(AuthLevel level, std::string_view authorization, const ApiKeys& keys);

}  // namespace warpweave::server
