// Coroutines that read a text byte by byte, wherever it is cut: a parser is written as if the whole text were there,
// and waits inside AnswerReader::peek() while it is not. What it does depends on the bytes alone, never on their
// pieces.
//
// A task runs when it is awaited by another, or as the root by TaskDriver::run(). Nothing recurses: the driver resumes
// one coroutine at a time. Exceptions (memory) pass from task to task and out of run(). Not thread-safe.
#pragma once

#include <coroutine>
#include <exception>
#include <utility>

namespace warpweave::output {

struct TaskDriver {
  std::coroutine_handle<> current;  // the innermost task; null at the end of the root
  bool waiting = false;             // for more text

  void run() {
    waiting = false;
    while (current && !waiting) current.resume();
  }
};

namespace detail {

struct PromiseBase {
  TaskDriver* driver = nullptr;
  std::coroutine_handle<> parent;
  std::exception_ptr error;

  struct Final {
    bool await_ready() const noexcept { return false; }
    template <typename Promise>
    void await_suspend(std::coroutine_handle<Promise> own) const noexcept {
      own.promise().driver->current = own.promise().parent;
    }
    void await_resume() const noexcept {}
  };
  std::suspend_always initial_suspend() const noexcept { return {}; }
  Final final_suspend() const noexcept { return {}; }
  void unhandled_exception() noexcept { error = std::current_exception(); }
};

template <typename T>
struct Promise : PromiseBase {
  T value{};
  std::coroutine_handle<Promise> get_return_object() { return std::coroutine_handle<Promise>::from_promise(*this); }
  void return_value(T given) { value = std::move(given); }
  T take() { return std::move(value); }
};

template <>
struct Promise<void> : PromiseBase {
  std::coroutine_handle<Promise> get_return_object() { return std::coroutine_handle<Promise>::from_promise(*this); }
  void return_void() const noexcept {}
  void take() const noexcept {}
};

}  // namespace detail

template <typename T = void>
class [[nodiscard]] ParserTask {
 public:
  using promise_type = detail::Promise<T>;
  using Handle = std::coroutine_handle<promise_type>;

  ParserTask(Handle handle) : handle_(handle) {}  // NOLINT: what get_return_object() gives
  ParserTask(ParserTask&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  ParserTask& operator=(ParserTask&&) = delete;
  ~ParserTask() {
    if (handle_) handle_.destroy();
  }

  // As the root. The task must outlive the driver's run().
  void start(TaskDriver* driver) {
    handle_.promise().driver = driver;
    driver->current = handle_;
  }
  void rethrow() const {
    if (handle_.promise().error) std::rethrow_exception(handle_.promise().error);
  }

  bool await_ready() const noexcept { return false; }
  template <typename Promise>
  void await_suspend(std::coroutine_handle<Promise> parent) noexcept {
    handle_.promise().driver = parent.promise().driver;
    handle_.promise().parent = parent;
    parent.promise().driver->current = handle_;
  }
  T await_resume() {
    rethrow();
    return handle_.promise().take();
  }

 private:
  Handle handle_;
};

}  // namespace warpweave::output
