// What the server answers while its model loads: 503, and how far it is. Thread-safe.
#pragma once

#include <atomic>

#include "server/http.h"

namespace warpweave {

class LoadingProgress {
 public:
  void set(int done, int all) {
    all_layers_ = all;
    done_layers_ = done;
  }
  int done_layers() const { return done_layers_; }
  int all_layers() const { return all_layers_; }  // 0: not known yet

 private:
  std::atomic<int> done_layers_{0};
  std::atomic<int> all_layers_{0};
};

// `progress` outlives the routes.
server::Router loading_routes(const LoadingProgress& progress);

}  // namespace warpweave
