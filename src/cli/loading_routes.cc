#include "cli/loading_routes.h"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warpweave {
namespace {

using server::AuthLevel;

std::string loading_body(const LoadingProgress& progress) {
  const int done = progress.done_layers(), all = progress.all_layers();
  const std::string how_far = all > 0 ? fmt::format("{} of {} layers are loaded", done, all) : "it has just begun";
  const nlohmann::ordered_json body = {
      {"status", "loading"},
      {"progress", all > 0 ? static_cast<double>(done) / all : 0.0},
      {"error", {{"message", "the model is loading: " + how_far}, {"type", "service_unavailable"},
                 {"param", nullptr}, {"code", "not_ready"}}}};
  return body.dump();
}

}  // namespace

server::Router loading_routes(const LoadingProgress& progress) {
  const server::Handler handler = [&progress](auto, auto writer) {
    writer->send(503, "application/json", loading_body(progress), {{"Retry-After", "1"}});
  };
  server::Router router;
  for (const char* method : {"GET", "POST", "PUT"}) {
    router.add({method, "/*", AuthLevel::open, handler, /*runs_at_once=*/true});
  }
  return router;
}

}  // namespace warpweave
