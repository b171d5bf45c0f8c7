// The transport on real sockets, threads and the clock. Only this file sees Boost.Asio.
#include <utility>  // Asio 1.74 uses std::exchange without including it

#include <boost/asio.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <future>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "base/log.h"
#include "server/transport.h"
#include "server/worker_pool.h"

namespace warpweave::server {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using asio::ip::tcp;
using Executor = asio::io_context::executor_type;
using StreamSocket = asio::basic_stream_socket<tcp, Executor>;
using Acceptor = asio::basic_socket_acceptor<tcp, Executor>;
using Timer = asio::basic_waitable_timer<Clock, asio::wait_traits<Clock>, Executor>;

constexpr std::chrono::minutes kAcceptLogPause{1};
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr std::chrono::milliseconds kRearmPause{10};

class AsioSocket : public Socket {
 public:
  explicit AsioSocket(StreamSocket socket) : socket_(std::move(socket)) {}

  IoResult read(char* into, size_t max_bytes) override {
    error_code error;
    const size_t bytes = socket_.read_some(asio::buffer(into, max_bytes), error);
    return {state(error), bytes};
  }
  IoResult write(std::string_view bytes) override {
    error_code error;
    const size_t sent = socket_.write_some(asio::buffer(bytes.data(), bytes.size()), error);
    return {state(error), sent};
  }
  void wait_readable(std::shared_ptr<SocketEvents> events) override {
    socket_.async_wait(StreamSocket::wait_read, [events = std::move(events)](error_code error) {
      if (error != asio::error::operation_aborted) events->on_readable();
    });
  }
  void wait_writable(std::shared_ptr<SocketEvents> events) override {
    socket_.async_wait(StreamSocket::wait_write, [events = std::move(events)](error_code error) {
      if (error != asio::error::operation_aborted) events->on_writable();
    });
  }
  void shutdown_send() override {
    error_code ignored;
    socket_.shutdown(StreamSocket::shutdown_send, ignored);
  }
  void close() override {
    error_code ignored;
    socket_.close(ignored);
  }

 private:
  static IoResult::State state(error_code error) {
    if (!error) return IoResult::State::ok;
    return error == asio::error::would_block ? IoResult::State::would_block : IoResult::State::closed;
  }

  StreamSocket socket_;
};

// In the handler of an operation: the flag is set while that waits. Asio drops a handler unheard where memory ends
// before its call.
class Waiting {
 public:
  explicit Waiting(bool& flag) : flag_(&flag) { flag = true; }
  Waiting(Waiting&& other) noexcept : flag_(std::exchange(other.flag_, nullptr)) {}
  ~Waiting() { end(); }
  void end() {
    if (flag_ != nullptr) *std::exchange(flag_, nullptr) = false;
  }

 private:
  bool* flag_;
};

// Memory for one operation of Asio's, so that posting it cannot fail. One at a time.
class OperationSlot {
 public:
  void* take(size_t bytes) {
    if (bytes > sizeof memory_) throw std::bad_alloc();  // a test posts through it: it never is
    return memory_;
  }

 private:
  alignas(std::max_align_t) std::byte memory_[256];
};

template <typename T>
struct SlotAllocator {
  using value_type = T;
  explicit SlotAllocator(OperationSlot* memory) : slot(memory) {}
  template <typename U>
  SlotAllocator(const SlotAllocator<U>& other) : slot(other.slot) {}
  T* allocate(size_t count) { return static_cast<T*>(slot->take(count * sizeof(T))); }
  void deallocate(T*, size_t) {}
  template <typename U>
  bool operator==(const SlotAllocator<U>& other) const { return slot == other.slot; }

  OperationSlot* slot;
};

struct FlushWoken {
  using allocator_type = SlotAllocator<void>;
  allocator_type get_allocator() const { return allocator_type(slot); }
  void operator()() const { transport->flush_woken(); }

  OperationSlot* slot;
  Transport* transport;
};

// Lets other threads post work for as long as the I/O thread runs.
class IoGate {
 public:
  explicit IoGate(asio::io_context& io) : io_(&io) {}
  bool post(std::function<void()> work) {
    std::lock_guard lock(mutex_);
    if (io_ == nullptr) return false;
    asio::post(*io_, std::move(work));
    return true;
  }
  // Has transport->flush_woken() called: takes no memory. One at a time.
  void wake() {
    std::lock_guard lock(mutex_);
    if (io_ != nullptr) asio::post(*io_, FlushWoken{&slot_, transport});
  }
  void close() {
    std::lock_guard lock(mutex_);
    io_ = nullptr;
  }

  Transport* transport = nullptr;  // set once, before the first wake()

 private:
  std::mutex mutex_;
  asio::io_context* io_;
  OperationSlot slot_;
};

}  // namespace

struct HttpServer::Impl {
  Impl(ServerOptions options, const Router& router)
      : gate(std::make_shared<IoGate>(io)),
        workers(options.max_pending_handlers),
        transport(std::move(options), router,
                  {.now = [] { return Clock::now(); },
                   .wake = [gate = gate] { gate->wake(); },
                   .submit = [this](std::function<void()> job) { return workers.submit(std::move(job)); }}) {
    gate->transport = &transport;
  }

  Status listen();
  Status start_threads();
  void accept_next();
  void on_accept(error_code error, StreamSocket socket);
  void on_accept_error(error_code error);
  void sweep();
  void run() noexcept;
  bool arm() noexcept;
  void stop() noexcept;

  // Of the I/O thread; above what sets them.
  bool accepting = false;  // a connection is waited for, or the pause before that
  bool sweeping = false;   // the timer runs

  asio::io_context io{1};
  const std::shared_ptr<IoGate> gate;
  WorkerPool workers;
  Transport transport;
  Acceptor acceptor{io};
  Timer sweep_timer{io};
  Timer accept_pause{io};
  Clock::time_point accept_error_logged{};
  std::atomic<bool> stop_asked{false};
  bool stopping = false;   // of the I/O thread
  std::thread thread;
  int port = 0;
};

Status HttpServer::Impl::listen() {
  const ServerOptions& options = transport.options;
  const std::string where = options.host + ":" + std::to_string(options.port);
  error_code error;
  asio::ip::address address = asio::ip::make_address(options.host, error);
  if (error) {
    asio::ip::tcp::resolver resolver(io);
    const auto found = resolver.resolve(options.host, std::to_string(options.port), error);
    if (error || found.empty()) {
      return Status::invalid_argument("--host " + options.host + " is no address of this machine (" +
                                          error.message() + "); use --host 127.0.0.1 or 0.0.0.0",
                                      "--host");
    }
    address = found.begin()->endpoint().address();
  }
  const tcp::endpoint endpoint(address, static_cast<uint16_t>(options.port));
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  // Told of it, we look at once for the next; Asio itself would wait until another one comes.
  if (!error) acceptor.set_option(asio::socket_base::enable_connection_aborted(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    error_code ignored;
    acceptor.close(ignored);
    const bool in_use = error == asio::error::address_in_use;
    return Status::invalid_argument(
        "cannot listen on " + where + ": " + error.message() +
            (in_use ? "; stop the other process or use --port " +
                          std::to_string(options.port % 65535 + 1)
                    : "; use --host 127.0.0.1 or 0.0.0.0 and a --port above 1023"),
        in_use ? "--port" : "--host");
  }
  port = acceptor.local_endpoint(error).port();
  return {};
}

Status HttpServer::Impl::start_threads() {
  WorkerPool::StartThread start = transport.options.start_thread;
  if (!start) start = [](std::function<void()> run) { return std::thread(std::move(run)); };
  Status started = workers.start(transport.options.worker_threads, start);
  if (started.ok()) {
    try {
      thread = start([this] { run(); });
      return {};
    } catch (const std::system_error& e) {
      started = Status::unavailable("the system gives no thread for HTTP (" + std::string(e.what()) +
                                    "); raise its limit, see ulimit -u");
    }
  }
  workers.stop();
  error_code ignored;
  acceptor.close(ignored);
  return started;
}

// What fails inside, for want of memory most likely, has ended what it was done for. Accepting and sweeping begin
// again; the loop ends with stop().
void HttpServer::Impl::run() noexcept {
  for (;;) {
    io.restart();
    if (stop_asked && !stopping) stop();
    const bool ending = stopping;
    const bool armed = ending || arm();
    try {
      if (armed) {
        io.run();
        if (ending) return;
      } else {
        io.poll();
        std::this_thread::sleep_for(kRearmPause);
      }
    } catch (const std::exception& error) {
      LOG_ERROR("the thread of connections goes on after an error: {}", error.what());
    }
  }
}

bool HttpServer::Impl::arm() noexcept {
  try {
    if (!accepting) accept_next();
    if (!sweeping) sweep();
    return true;
  } catch (const std::exception&) {
    return false;  // tried again soon
  }
}

void HttpServer::Impl::accept_next() {
  acceptor.async_accept([this, waiting = Waiting(accepting)](error_code error, StreamSocket socket) mutable {
    waiting.end();
    on_accept(error, std::move(socket));
  });
}

void HttpServer::Impl::on_accept(error_code error, StreamSocket socket) {
  if (stopping || error == asio::error::operation_aborted) return;
  if (error == asio::error::connection_aborted) return accept_next();  // its client has left already
  if (error) return on_accept_error(error);
  error_code ignored;
  socket.non_blocking(true, ignored);
  socket.set_option(tcp::no_delay(true), ignored);
  const auto peer = socket.remote_endpoint(ignored).address();
  const bool is_loopback = peer.is_loopback() || (peer.is_v6() && peer.to_v6().is_v4_mapped() &&
                                                  peer.to_v6().to_bytes()[12] == 127);
  transport.admit(std::make_unique<AsioSocket>(std::move(socket)), is_loopback);
  accept_next();
}

// Out of file descriptors or memory, most likely: make room, do not spin, and say it once a minute.
void HttpServer::Impl::on_accept_error(error_code error) {
  const auto now = Clock::now();
  if (now - accept_error_logged > kAcceptLogPause) {
    accept_error_logged = now;
    LOG_WARN("a connection could not be accepted: {}; said once a minute", error.message());
  }
  const bool made_room = transport.close_longest_idle(std::chrono::seconds(0));
  accept_pause.expires_after(made_room ? Clock::duration(0) : Clock::duration(kAcceptPause));
  accept_pause.async_wait([this, waiting = Waiting(accepting)](error_code) mutable {
    waiting.end();
    if (!stopping) accept_next();
  });
}

void HttpServer::Impl::sweep() {
  if (stopping) return;
  const ServerOptions& options = transport.options;
  transport.check_deadlines();
  const double shortest_s = std::min({options.read_timeout_s, options.idle_timeout_s, options.write_timeout_s});
  sweep_timer.expires_after(std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(std::clamp(shortest_s / 4, 0.01, 0.5))));
  sweep_timer.async_wait([this, waiting = Waiting(sweeping)](error_code) mutable {
    waiting.end();
    sweep();
  });
}

// With every socket closed and nothing new posted, the I/O thread runs out of work and returns.
void HttpServer::Impl::stop() noexcept {
  stopping = true;
  gate->close();
  error_code ignored;
  acceptor.close(ignored);
  sweep_timer.cancel(ignored);
  accept_pause.cancel(ignored);
  transport.close_all();
}

HttpServer::HttpServer(ServerOptions options, Router router)
    : impl_(std::make_unique<Impl>(std::move(options), router)) {}

HttpServer::~HttpServer() { stop(); }

Status HttpServer::start() {
  Status no_memory(StatusCode::unavailable, "out of memory");  // a text that takes none
  try {
    WW_RETURN_IF_ERROR(impl_->listen());
    impl_->accept_next();
    impl_->sweep();
    return impl_->start_threads();
  } catch (const std::bad_alloc&) {
    impl_->workers.stop();
    error_code ignored;
    impl_->acceptor.close(ignored);
    return no_memory;
  }
}

int HttpServer::port() const { return impl_->port; }

void HttpServer::set_router(Router router) {
  std::promise<void> done;
  const bool posted = impl_->thread.joinable() && impl_->gate->post([&] {
    try {
      impl_->transport.set_router(router);
      done.set_value();
    } catch (const std::exception&) {
      done.set_exception(std::current_exception());
    }
  });
  if (posted) return done.get_future().get();
  impl_->transport.set_router(router);
}

void HttpServer::begin_drain() { impl_->transport.draining = true; }

int HttpServer::active_requests() const { return impl_->transport.active_requests; }

void HttpServer::stop() {
  if (!impl_->thread.joinable()) return;
  impl_->stop_asked = true;
  impl_->io.stop();
  impl_->thread.join();
  impl_->workers.stop();
}

}  // namespace warpweave::server
