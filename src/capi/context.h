// The objects behind ww_context and ww_workspace.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "base/threads.h"
#include "ops/aligned_buffer.h"
#include "warpweave/status.h"

namespace warpweave::capi {

// One call at a time: the team and the scratch memory belong to whoever holds the mutex.
struct Context {
  explicit Context(int threads) : team(threads) {}
  std::mutex mutex;
  ThreadTeam team;
  AlignedBuffer scratch;  // of ww_linear_attention; grows
};

// Memory aligned to cache lines. Contents do not survive reserve().
class Workspace {
 public:
  Workspace(Context& context, size_t fixed_bytes) : context_(context), fixed_bytes_(fixed_bytes) {}

  Context& context() const { return context_; }
  // `resource_exhausted` when a fixed workspace is too small or there is no memory.
  Status reserve(size_t bytes);
  char* data() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };

  Context& context_;
  const size_t fixed_bytes_;  // 0: grows
  size_t bytes_ = 0;
  std::unique_ptr<char, Free> memory_;
};

}  // namespace warpweave::capi
