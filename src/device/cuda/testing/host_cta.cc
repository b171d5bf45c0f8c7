#include "device/cuda/testing/host_cta.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace warpweave::host_cta {
namespace {

constexpr size_t kStackBytes = size_t{256} << 10;  // touched as far as it is used
constexpr size_t kMostExchangedBytes = 8;

constexpr int kNamedBarriers = 16;

enum class State { ready, at_warp, at_cta, at_named, done };

// What the thread sanitizer has to know of a change of stacks.
class Sanitized {
 public:
#if defined(__SANITIZE_THREAD__)
  void create() { fiber_ = __tsan_create_fiber(0); }
  void adopt() { fiber_ = __tsan_get_current_fiber(); }
  void destroy() { __tsan_destroy_fiber(fiber_); }
  void enter() { __tsan_switch_to_fiber(fiber_, 0); }

 private:
  void* fiber_ = nullptr;
#else
  void create() {}
  void adopt() {}
  void destroy() {}
  void enter() {}
#endif
};

// Where a thread of control stands while others run. swapcontext() is a system call each time, so it only begins each, except
// where a sanitizer has to follow.
struct Context {
  ucontext_t saved;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  void change_to(Context& to) { ::swapcontext(&saved, &to.saved); }
#else
  jmp_buf place;
  bool begun = false;

  void change_to(Context& to) {
    begun = true;
    if (_setjmp(place) != 0) return;
    if (to.begun) _longjmp(to.place, 1);
    ::setcontext(&to.saved);
  }
#endif
};

struct Fiber {
  Index index;
  State state = State::ready;
  int barrier = 0;  // that it waits at, by name
  unsigned exchanges = 0;
  Context context;
  Sanitized sanitized;
};

[[noreturn]] void give_up(const char* why) {
  std::fprintf(stderr, "host_cta: %s\n", why);
  std::abort();
}

class Cta {
 public:
  Cta(int threads, const std::function<void()>& kernel, Index block);
  ~Cta();
  void run(Order order);
  void wait(State state);
  void come_to(int barrier, int threads, bool waits);
  void exchange(const void* mine, size_t bytes, void* all);
  const Index& index() const { return running_->index; }
  const Index& block() const { return block_; }

 private:
  static void start();
  void enter(Fiber& fiber);
  void run_warp(const size_t* lanes, size_t warp);
  bool release(State state, size_t first, size_t count);

  const std::function<void()>& kernel_;
  const Index block_;
  std::vector<Fiber> fibers_;
  int came_[kNamedBarriers] = {};  // to each barrier, since it opened last
  std::vector<std::byte> exchanged_;  // of a warp's last two exchanges in turn: nobody is further ahead
  char* stacks_ = nullptr;
  Context scheduler_;
  Sanitized sanitized_;
  Fiber* running_ = nullptr;
};

Cta* current = nullptr;

Cta::Cta(int threads, const std::function<void()>& kernel, Index block)
    : kernel_(kernel), block_(block), fibers_(threads), exchanged_(2 * threads * kMostExchangedBytes) {
  if (threads <= 0 || threads % kWarp != 0) give_up("a CTA has whole warps");
  void* const memory = ::mmap(nullptr, fibers_.size() * kStackBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) give_up("no memory for stacks");
  stacks_ = static_cast<char*>(memory);
  sanitized_.adopt();
  for (size_t i = 0; i < fibers_.size(); ++i) {
    Fiber& fiber = fibers_[i];
    fiber.index.x = static_cast<unsigned>(i);
    fiber.sanitized.create();
    ucontext_t& saved = fiber.context.saved;
    ::getcontext(&saved);
    saved.uc_stack.ss_sp = stacks_ + i * kStackBytes;
    saved.uc_stack.ss_size = kStackBytes;
    saved.uc_link = nullptr;
    ::makecontext(&saved, start, 0);
  }
}

Cta::~Cta() {
  for (Fiber& fiber : fibers_) fiber.sanitized.destroy();
  ::munmap(stacks_, fibers_.size() * kStackBytes);
}

void Cta::start() {
  current->kernel_();
  current->wait(State::done);
}

void Cta::enter(Fiber& fiber) {
  running_ = &fiber;
  fiber.sanitized.enter();
  scheduler_.change_to(fiber.context);
}

void Cta::wait(State state) {
  Fiber& fiber = *running_;
  fiber.state = state;
  sanitized_.enter();
  fiber.context.change_to(scheduler_);
}

// Whether all of these threads that have not ended wait there; they are ready then.
bool Cta::release(State state, size_t first, size_t count) {
  const auto begin = fibers_.begin() + static_cast<std::ptrdiff_t>(first),
             end = begin + static_cast<std::ptrdiff_t>(count);
  const auto of = [&](State wanted) {
    return std::count_if(begin, end, [&](const Fiber& f) { return f.state == wanted; });
  };
  const auto waiting = of(state);
  if (waiting == 0 || waiting + of(State::done) != static_cast<std::ptrdiff_t>(count)) return false;
  std::for_each(begin, end, [&](Fiber& f) {
    if (f.state == state) f.state = State::ready;
  });
  return true;
}

void Cta::come_to(int barrier, int threads, bool waits) {
  if (barrier < 0 || barrier >= kNamedBarriers || threads % kWarp != 0)
    give_up("there are 16 barriers, of whole warps");
  if (++came_[barrier] < threads) {
    running_->barrier = barrier;
    if (waits) wait(State::at_named);
    return;
  }
  came_[barrier] = 0;
  for (Fiber& fiber : fibers_) {
    if (fiber.state == State::at_named && fiber.barrier == barrier) fiber.state = State::ready;
  }
}

// A warp runs as far ahead of the others as barriers let it.
void Cta::run_warp(const size_t* lanes, size_t warp) {
  do {
    for (int i = 0; i < kWarp; ++i) {
      Fiber& fiber = fibers_[warp * kWarp + lanes[i]];
      if (fiber.state == State::ready) enter(fiber);
    }
  } while (release(State::at_warp, warp * kWarp, kWarp));
}

void Cta::run(Order order) {
  std::vector<size_t> warps(fibers_.size() / kWarp), lanes(kWarp);
  std::iota(warps.begin(), warps.end(), 0);
  std::iota(lanes.begin(), lanes.end(), 0);
  if (order == Order::descending) {
    std::reverse(warps.begin(), warps.end());
    std::reverse(lanes.begin(), lanes.end());
  }
  std::mt19937 random(1);
  const auto ready = [](const Fiber& f) { return f.state == State::ready; };
  do {
    if (order == Order::random) {
      std::shuffle(warps.begin(), warps.end(), random);
      std::shuffle(lanes.begin(), lanes.end(), random);
    }
    for (const size_t warp : warps) run_warp(lanes.data(), warp);
    // Some are ready where a named barrier opened behind them.
  } while (std::any_of(fibers_.begin(), fibers_.end(), ready) || release(State::at_cta, 0, fibers_.size()));
  if (!std::all_of(fibers_.begin(), fibers_.end(), [](const Fiber& f) { return f.state == State::done; })) {
    give_up("some threads wait for others that do not come");
  }
}

void Cta::exchange(const void* mine, size_t bytes, void* all) {
  if (bytes > kMostExchangedBytes) give_up("8 bytes a lane are exchanged at most");
  Fiber& fiber = *running_;
  const size_t warp = fiber.index.x / kWarp, lane = fiber.index.x % kWarp;
  std::byte* const place = &exchanged_[(2 * warp + fiber.exchanges++ % 2) * kWarp * kMostExchangedBytes];
  std::memcpy(place + lane * bytes, mine, bytes);
  wait(State::at_warp);
  std::memcpy(all, place, kWarp * bytes);
}

}  // namespace

void run(int threads, Order order, const std::function<void()>& kernel, Index block) {
  Cta cta(threads, kernel, block);
  current = &cta;
  cta.run(order);
  current = nullptr;
}

const Index& thread_index() { return current->index(); }
const Index& block_index() { return current->block(); }
void come_to_barrier(int barrier, int threads, bool waits) { current->come_to(barrier, threads, waits); }
void sync_threads() { current->wait(State::at_cta); }
void let_others_run() { current->wait(State::ready); }
void exchange(const void* mine, size_t bytes, void* all) { current->exchange(mine, bytes, all); }

}  // namespace warpweave::host_cta
