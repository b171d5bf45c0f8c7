// A fixed team of threads for data-parallel loops inside one forward pass.
//
// The caller of run() is member 0; the others spin briefly between loops and then sleep, so that
// back-to-back loops of a decode step cost about a microsecond each. One run() at a time: a team
// belongs to one thread (the engine's device thread). Loop bodies must not call run() again.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace warpweave {

// A non-owning reference to a callable; valid for the duration of the call it is passed to.
template <typename Signature>
class FunctionRef;
template <typename R, typename... Args>
class FunctionRef<R(Args...)> {
 public:
  template <typename F, typename = std::enable_if_t<!std::is_same_v<std::decay_t<F>, FunctionRef>>>
  FunctionRef(F&& f)  // NOLINT: implicit on purpose
      : object_(const_cast<void*>(static_cast<const void*>(&f))),
        call_([](void* object, Args... args) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(object))(args...);
        }) {}
  R operator()(Args... args) const { return call_(object_, args...); }

 private:
  void* object_;
  R (*call_)(void*, Args...);
};

class ThreadTeam {
 public:
  // `threads` >= 1 counts the caller. `pin` binds member i to the i-th CPU of the process's mask.
  explicit ThreadTeam(int threads, bool pin = false);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(member, size()) on every member; returns when all are done. What a body throws is
  // thrown here then, the first where there are several.
  void run(FunctionRef<void(int, int)> body);

  // Splits [0, count) into chunks of `grain` that members take in turn: body(begin, end).
  void parallel_for(int64_t count, int64_t grain, FunctionRef<void(int64_t, int64_t)> body);

  // body(member, index) for every index of [0, count), count < 2^32. A member takes a range of neighbours in ascending
  // order, so that what it reads is one long stream, and then single indices from the ends of the others' ranges.
  void parallel_ranges(int64_t count, FunctionRef<void(int, int64_t)> body);

 private:
  // What is left of a member's range: its beginning in the upper half, its end in the lower one.
  struct alignas(64) Range {
    std::atomic<uint64_t> left{0};
    bool take(bool last, int64_t* index);  // its first index or its last; false: none is left
  };
  void worker_loop(int member);
  void call(const FunctionRef<void(int, int)>& body, int member) noexcept;
  void stop();

  std::vector<Range> ranges_;  // one a member
  std::vector<std::thread> workers_;
  const FunctionRef<void(int, int)>* body_ = nullptr;
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<int> pending_{0};
  alignas(64) std::atomic<int64_t> next_chunk_{0};
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;  // written by who set failed_, read when all are done
  bool stopping_ = false;
};

// CPUs this process may use at a time, at least 1: those of its affinity mask, or fewer where a container has a quota.
int available_cpus();

}  // namespace warpweave
