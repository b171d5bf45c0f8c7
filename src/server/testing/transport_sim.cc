#include "server/testing/transport_sim.h"

#include <algorithm>

namespace warpweave::server::testing {

// The server's end of a wire.
class SimSocket : public Socket {
 public:
  SimSocket(TransportSim& sim, std::shared_ptr<Wire> wire) : sim_(sim), wire_(std::move(wire)) {}

  IoResult read(char* into, size_t max_bytes) override {
    if (sim_.io_breaks()) return {IoResult::State::closed, 0};
    if (wire_->to_server.empty())
      return {wire_->client_left ? IoResult::State::closed : IoResult::State::would_block, 0};
    const size_t bytes = std::min({max_bytes, wire_->to_server.size(), 1 + sim_.pick(3000)});
    wire_->to_server.copy(into, bytes);
    wire_->to_server.erase(0, bytes);
    return {IoResult::State::ok, bytes};
  }
  IoResult write(std::string_view bytes) override {
    if (sim_.io_breaks() || wire_->client_left) return {IoResult::State::closed, 0};
    const size_t room = wire_->window_bytes - std::min(wire_->window_bytes, wire_->to_client.size());
    if (room == 0) return {IoResult::State::would_block, 0};
    const size_t sent = std::min(room, bytes.size());
    wire_->to_client += bytes.substr(0, sent);
    return {IoResult::State::ok, sent};
  }
  void wait_readable(std::shared_ptr<SocketEvents> events) override {
    if (wire_->read_waiter) sim_.fail("two waits for bytes");
    wire_->read_waiter = std::move(events);
  }
  void wait_writable(std::shared_ptr<SocketEvents> events) override {
    if (wire_->write_waiter) sim_.fail("two waits for room");
    wire_->write_waiter = std::move(events);
  }
  void shutdown_send() override { wire_->server_closed = true; }
  void close() override {
    wire_->server_closed = true;
    wire_->read_waiter.reset();
    wire_->write_waiter.reset();
  }

 private:
  TransportSim& sim_;
  const std::shared_ptr<Wire> wire_;
};

namespace {

std::string event_of(const SimRequest& request, int index) {
  return "data: " + std::to_string(request.id) + ":" + std::to_string(index) + std::string(request.event_bytes, '.') +
         "\n\n";
}

// One answer taken off the front of `bytes`; `whole` is false where its end is missing.
struct Answer {
  int status = 0;
  std::string body;
  bool whole = false;
  bool closes = false;
};

Answer take_answer(std::string& bytes) {
  Answer answer;
  const size_t head_end = bytes.find("\r\n\r\n");
  if (head_end == std::string::npos) return answer;
  const std::string head = bytes.substr(0, head_end + 2);
  answer.status = std::stoi(head.substr(9, 3));
  answer.closes = head.find("Connection: close") != std::string::npos;
  std::string rest = bytes.substr(head_end + 4);
  if (const size_t at = head.find("Content-Length: "); at != std::string::npos) {
    const size_t length = std::stoul(head.substr(at + 16));
    answer.whole = rest.size() >= length;
    answer.body = rest.substr(0, length);
    rest.erase(0, answer.body.size());
  } else {
    for (size_t line; (line = rest.find("\r\n")) != std::string::npos;) {
      const size_t size = std::stoul(rest.substr(0, line), nullptr, 16);
      if (rest.size() < line + 2 + size + 2) break;
      answer.body += rest.substr(line + 2, size);
      rest.erase(0, line + 2 + size + 2);
      if (size == 0) {
        answer.whole = true;
        break;
      }
    }
  }
  bytes = rest;
  return answer;
}

}  // namespace

std::string SimRequest::bytes() const {
  const std::string path = "/" + std::to_string(id);
  const std::string host = " HTTP/1.1\r\nHost: localhost\r\n";
  switch (kind) {
    case Kind::ping: return "GET /ping" + host + "\r\n";
    case Kind::unknown: return "GET /nothing" + host + "\r\n";
    case Kind::bad: return "GET /ping" + host + "Transfer-Encoding: chunked, x\r\n\r\n";
    case Kind::stream:
    case Kind::hold: return "GET /stream" + path + host + "\r\n";
    case Kind::echo: return "POST /echo" + host + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
    case Kind::chunked_echo: {
      std::string out = "POST /echo" + host + "Transfer-Encoding: chunked\r\n\r\n";
      for (size_t at = 0; at < body.size(); at += 100) append_chunk(out, std::string_view(body).substr(at, 100));
      return out + std::string(kLastChunk);
    }
  }
  return {};
}

TransportSim::TransportSim(SimOptions options) : options_(options), random_(options.seed) {
  ServerOptions server;
  server.max_connections = 3;
  server.spare_connections = 1;
  server.max_body_bytes = 4000;
  server.max_total_body_bytes = 6000;
  server.max_write_buffer_bytes = 3000;
  if (!options.rough) {
    server.max_connections = 64;
    server.max_total_body_bytes = 1 << 20;
    server.max_write_buffer_bytes = 20'000;
  }
  server.on_response = [this](const AnsweredRequest& answered) {
    if (answered.duration_s < 0) fail("an answer was there before its request");
  };
  transport_ = std::make_unique<Transport>(
      server, make_router(),
      TransportHooks{.now = [this] { return now_; },
                     .wake = [this] { posted_.emplace_back([this] { transport_->flush_woken(); }); },
                     .submit =
                         [this](std::function<void()> job) {
                           if (options_.fail_nth_submit && ++submits_ % 3 == 0) return false;
                           jobs_.push_back(std::move(job));
                           return true;
                         }});
  for (int i = 0; i < options.clients; ++i) add_client();
}

TransportSim::~TransportSim() { transport_->close_all(); }

Router TransportSim::make_router() {
  Router router;
  router.add(
      {"GET", "/ping", AuthLevel::open, [](auto, auto writer) { writer->send(200, "text/plain", "pong"); }, true});
  router.add({"POST", "/echo", AuthLevel::api_key,
              [](auto request, auto writer) { writer->send(200, "text/plain", request->body); }});
  router.add({"GET", "/stream/*", AuthLevel::api_key, [this](auto request, auto writer) {
                const int id = std::stoi(request->path.substr(8));
                Stream stream{asked_.at(id), writer};
                disconnects_.push_back(stream.disconnects);
                writer->begin_stream(200, "text/event-stream");
                writer->on_disconnect([this, id, count = stream.disconnects] {
                  ++*count;
                  streams_.erase(id);
                });
                if (*stream.disconnects == 0) streams_.emplace(id, std::move(stream));
              }});
  return router;
}

void TransportSim::add_client() {
  using Kind = SimRequest::Kind;
  SimClient client;
  client.wire = std::make_shared<Wire>();
  client.wire->window_bytes = size_t{1} << 20;
  client.leaves_early = options_.rough && chance(25);
  client.reads = !options_.rough || chance(85);
  const size_t count = 1 + pick(4);
  for (size_t i = 0; i < count; ++i) {
    SimRequest request;
    request.kind = static_cast<Kind>(pick(7));
    if (!options_.rough && request.kind == Kind::hold) request.kind = Kind::stream;
    request.id = next_id_++;
    request.events = static_cast<int>(pick(options_.rough ? 12 : 40));
    request.event_bytes = chance(20) ? pick(9000) : pick(100);
    request.body.assign(chance(10) ? 4000 + pick(200) : pick(1500), static_cast<char>('a' + pick(26)));
    asked_[request.id] = request;
    client.unsent += request.bytes();
    client.requests.push_back(std::move(request));
    if (client.requests.back().kind == Kind::bad) break;
  }
  clients_.push_back(std::move(client));
  transport_->admit(std::make_unique<SimSocket>(*this, clients_.back().wire), true);
  if (options_.rough) clients_.back().wire->window_bytes = 1 + pick(4000);  // what is sent at once always fits
}

void TransportSim::fail(const std::string& what) {
  if (error_.empty()) error_ = "seed " + std::to_string(options_.seed) + ": " + what;
}

std::string TransportSim::run() {
  for (int i = 0; i < options_.steps && error_.empty(); ++i) {
    step();
    check_always();
  }
  // Now everybody finishes: clients send and read what is left, the engine ends every stream.
  for (int i = 0; i < 100'000 && error_.empty() && settle_once(); ++i) check_always();
  for (const SimClient& client : clients_) check_client(client);
  check_end();
  return error_;
}

bool TransportSim::wake_socket(Wire& wire) {
  if (wire.read_waiter && (!wire.to_server.empty() || wire.client_left)) {
    std::exchange(wire.read_waiter, nullptr)->on_readable();
    return true;
  }
  if (wire.write_waiter && (wire.to_client.size() < wire.window_bytes || wire.client_left)) {
    std::exchange(wire.write_waiter, nullptr)->on_writable();
    return true;
  }
  return false;
}

void TransportSim::client_acts(SimClient& client) {
  Wire& wire = *client.wire;
  if (client.leaves_early && chance(2)) {
    wire.client_left = true;
    wire.to_server.clear();
  }
  if (wire.client_left) return;
  const size_t sent = std::min(client.unsent.size(), 1 + pick(options_.rough ? 700 : 5000));
  wire.to_server += client.unsent.substr(0, sent);
  client.unsent.erase(0, sent);
  if (!client.reads) return;
  const size_t read = std::min(wire.to_client.size(), 1 + pick(options_.rough ? 2000 : 100'000));
  client.received += wire.to_client.substr(0, read);
  wire.to_client.erase(0, read);
}

bool TransportSim::engine_acts(bool to_the_end) {
  if (!options_.rough && !posted_.empty()) return false;  // in calm weather each event is sent before the next
  for (auto& [id, stream] : streams_) {
    const bool holds = stream.request.kind == SimRequest::Kind::hold;
    if (!to_the_end && (holds || chance(50))) continue;
    const auto writer = stream.writer;
    if (!holds && stream.written < stream.request.events) {
      if (stream.request.asks_for_room() && !writer->has_room()) continue;
      writer->write(event_of(stream.request, stream.written++));
    } else {
      streams_.erase(streams_.find(id));  // one that holds is dropped: the engine died
      if (!holds) writer->end();
    }
    return true;
  }
  return false;
}

void TransportSim::step() {
  switch (pick(7)) {
    case 0: wake_socket(*clients_[pick(clients_.size())].wire); break;
    case 1: client_acts(clients_[pick(clients_.size())]); break;
    case 2: engine_acts(false); break;
    case 3:
      if (!posted_.empty()) {
        const auto work = std::move(posted_.front());
        posted_.pop_front();
        work();
      }
      break;
    case 4:
      if (!jobs_.empty()) {
        const auto job = std::move(jobs_.front());
        jobs_.pop_front();
        job();
      }
      break;
    case 5:
      now_ += std::chrono::milliseconds(pick(20));
      if (options_.rough && chance(2)) {
        now_ += std::chrono::seconds(pick(200));
        jumped_ = true;
      }
      transport_->check_deadlines();
      break;
    default:
      if (options_.rough && chance(1)) streams_.clear();  // engine death: every writer is dropped
      if (options_.rough && chance(1)) transport_->draining = true;
  }
}

// False when nothing can happen any more.
bool TransportSim::settle_once() {
  bool busy = false;
  for (SimClient& client : clients_) {
    busy |= wake_socket(*client.wire);
    const size_t before = client.unsent.size() + client.wire->to_client.size();
    if (before > 0 && !client.wire->client_left) client_acts(client);
    busy |= client.unsent.size() + client.wire->to_client.size() < before;
  }
  busy |= engine_acts(true);
  for (auto* queue : {&posted_, &jobs_}) {
    if (queue->empty()) continue;
    const auto work = std::move(queue->front());
    queue->pop_front();
    work();
    busy = true;
  }
  return busy;
}

void TransportSim::check_always() {
  const size_t limit = std::max(transport_->options.max_total_body_bytes, transport_->options.max_body_bytes);
  if (transport_->body_memory->used_bytes() > limit) fail("bodies hold more than their limit");
  if (transport_->active_requests < 0) fail("fewer than no requests are active");
  for (const auto& count : disconnects_) {
    if (*count > 1) fail("a handler was told twice that its client left");
  }
  for (const SimClient& client : clients_) {
    if (!client.wire->server_closed) continue;
    for (const SimRequest& request : client.requests) {
      if (streams_.contains(request.id)) fail("the engine works on for a client that is gone");
    }
  }
}

// What a client got: answers in the order of its requests, each right, refused, or missing for a reason.
void TransportSim::check_client(const SimClient& client) {
  using Kind = SimRequest::Kind;
  const bool calm = !options_.rough && options_.fail_nth_io == 0 && !options_.fail_nth_submit;
  const bool may_be_cut = client.wire->client_left || !client.reads || jumped_ || options_.fail_nth_io != 0;
  std::string bytes = client.received;
  for (const SimRequest& request : client.requests) {
    const std::string name = "request " + std::to_string(request.id);
    const Answer answer = take_answer(bytes);
    if (!answer.whole) {
      const bool may_be_unread = transport_->draining && answer.status == 0;
      if (!may_be_cut && !may_be_unread) fail(name + (answer.status == 0 ? " got no answer" : " got half an answer"));
      return;
    }
    if (answer.status >= 400) {
      const bool expected = request.kind == Kind::bad || request.kind == Kind::unknown ||
                            (answer.status == 413 && request.body.size() > transport_->options.max_body_bytes);
      if (calm && !expected) fail(name + " was refused in calm weather");
    } else {
      check_answer(request, answer.body, calm);
    }
    if (!answer.closes) continue;
    if (!bytes.empty()) fail("bytes behind an answer that ends the connection");
    return;
  }
}

void TransportSim::check_answer(const SimRequest& request, const std::string& body, bool calm) {
  using Kind = SimRequest::Kind;
  if (request.kind == Kind::ping && body != "pong") fail("a wrong answer to ping: " + body);
  if ((request.kind == Kind::echo || request.kind == Kind::chunked_echo) && body != request.body) fail("a wrong echo");
  if (request.kind != Kind::stream) return;
  std::string expected;
  for (int i = 0; i < request.events; ++i) expected += event_of(request, i);
  if (body == expected) return;
  const size_t error = body.find("data: {\"error\":");
  if (calm || error == std::string::npos) return fail("a stream ended early and did not say why");
  const bool too_slow = body.find("reader_too_slow", error) != std::string::npos;
  if (request.asks_for_room() && too_slow) fail("a stream that asked for room was cut for its reader");
  // Whole events, some left out before the error.
  for (size_t at = 0; at < error;) {
    const size_t end = body.find("\n\n", at) + 2;
    if (expected.find(body.substr(at, end - at)) == std::string::npos) return fail("a torn event before the error");
    at = end;
  }
}

void TransportSim::check_end() {
  // Past every deadline nothing is left but what the test itself holds.
  for (int i = 0; i < 4; ++i) {
    now_ += std::chrono::seconds(200);
    transport_->check_deadlines();
    while (settle_once()) {
    }
  }
  if (!error_.empty()) return;
  streams_.clear();
  if (transport_->active_requests != 0) fail(std::to_string(transport_->active_requests) + " requests never end");
  if (transport_->body_memory->used_bytes() != 0) fail("body memory leaks");
  if (!transport_->idle.empty()) fail("an idle connection stays past its timeout");
  for (const SimClient& client : clients_) {
    if (!client.wire->server_closed) fail("a connection is never closed");
    if (client.wire->read_waiter || client.wire->write_waiter) fail("a closed socket is waited for");
  }
}

}  // namespace warpweave::server::testing
