#include "cli/loading_routes.h"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warpweave {
namespace {

using server::AuthLevel;

std::string how_far(int done, int all) {
  return all > 0 ? fmt::format("{} of {} layers are loaded", done, all) : "it has just begun";
}

std::string loading_body(const LoadingProgress& progress) {
  const int done = progress.done_layers(), all = progress.all_layers();
  const nlohmann::ordered_json body = {
      {"status", "loading"},
      {"progress", all > 0 ? static_cast<double>(done) / all : 0.0},
      {"error", {{"message", "the model is loading: " + how_far(done, all)}, {"type", "service_unavailable"},
                 {"param", nullptr}, {"code", "not_ready"}}}};
  return body.dump();
}

// For a browser that comes early: it asks again until the chat page is there.
std::string loading_page(const LoadingProgress& progress) {
  const int done = progress.done_layers(), all = progress.all_layers();
  return fmt::format(
      R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="1">
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<title>Warpweave is loading</title></head>
<body style="font: 16px/1.5 system-ui, sans-serif; display: grid; place-content: center; min-height: 90vh; text-align: center">
<h1 style="font-size: 1.25rem">The model is loading</h1>
<p>{}; the chat opens by itself.</p><progress value="{}" max="{}" style="width: 18rem"></progress></body></html>
)",
      how_far(done, all), done, std::max(all, 1));
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
  router.add({"GET", "/", AuthLevel::open,
              [&progress](auto, auto writer) {
                writer->send(503, "text/html; charset=utf-8", loading_page(progress),
                             {{"Retry-After", "1"}, {"Cache-Control", "no-store"}});
              },
              /*runs_at_once=*/true});
  return router;
}

}  // namespace warpweave
