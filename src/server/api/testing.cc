#include "server/api/testing.h"

#include <cstdlib>
#include <fstream>
#include <iterator>

namespace warpweave::server::testing {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::unique_ptr<Tokenizer> load_tale_tokenizer() {
  const std::string folder = "models/tale-llama/";
  Result<std::unique_ptr<Tokenizer>> tokenizer = load_hf_tokenizer(
      read_file(folder + "tokenizer.json"), read_file(folder + "tokenizer_config.json"));
  if (!tokenizer.ok()) std::abort();  // tests run in the source root
  return std::move(tokenizer).value();
}

}  // namespace

void RecordingWriter::finish() {
  done_ = true;
  changed_.notify_all();
}

void RecordingWriter::send(int code, std::string_view type, std::string text,
                           std::vector<std::pair<std::string, std::string>> extra) {
  std::lock_guard lock(mutex_);
  ++answers;
  status = code;
  content_type = type;
  body = std::move(text);
  headers = std::move(extra);
  finish();
}

void RecordingWriter::begin_stream(int code, std::string_view type) {
  std::lock_guard lock(mutex_);
  ++answers;
  status = code;
  content_type = type;
  streamed = true;
}

void RecordingWriter::write(std::string chunk) {
  std::lock_guard lock(mutex_);
  body += chunk;
  changed_.notify_all();
}

void RecordingWriter::end() {
  std::function<void()> dropped;  // outside the lock: it may hold this writer
  std::lock_guard lock(mutex_);
  dropped.swap(when_room_);
  finish();
}

void RecordingWriter::on_disconnect(std::function<void()> callback) {
  std::lock_guard lock(mutex_);
  on_disconnect_ = std::move(callback);
}

bool RecordingWriter::call_when_room(std::function<void()> callback) {
  std::lock_guard lock(mutex_);
  if (room) return false;
  when_room_.swap(callback);
  return true;
}

void RecordingWriter::set_room(bool has_room) {
  std::function<void()> callback;
  {
    std::lock_guard lock(mutex_);
    room = has_room;
    if (has_room) callback.swap(when_room_);
  }
  if (callback) callback();
}

bool RecordingWriter::wait_done(std::chrono::seconds timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [&] { return done_; });
}

bool RecordingWriter::wait_first_write(std::chrono::seconds timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [&] { return done_ || !body.empty(); });
}

void RecordingWriter::disconnect() {
  std::function<void()> callback;
  {
    std::lock_guard lock(mutex_);
    callback = std::move(on_disconnect_);
  }
  if (callback) callback();
}

std::vector<std::string> Reply::events() const {
  std::vector<std::string> events;
  constexpr std::string_view kData = "data: ";
  for (size_t begin = 0; begin < body.size();) {
    const size_t end = body.find("\n\n", begin);
    if (end == body.npos || body.compare(begin, kData.size(), kData) != 0) {
      events.push_back("malformed event: " + body.substr(begin));
      break;
    }
    events.push_back(body.substr(begin + kData.size(), end - begin - kData.size()));
    begin = end + 2;
  }
  return events;
}

TestApi::TestApi(TestApiOptions options) : options_(std::move(options)) {
  if (options_.with_tokenizer) tokenizer_ = load_tale_tokenizer();
  if (!options_.chat_template.empty()) {
    Result<ChatTemplate> parsed = ChatTemplate::parse(options_.chat_template);
    if (!parsed.ok()) std::abort();
    chat_template_ = std::move(parsed).value();
  }
  engine_ = std::make_unique<FakeEngine>(options_.engine);
  register_api(router_, {.engine = *engine_,
                         .args = options_.args,
                         .tokenizer = tokenizer_.get(),
                         .chat_template = chat_template_ ? &*chat_template_ : nullptr,
                         .metrics = nullptr,
                         .adapters = options_.adapters,
                         .default_sampling = options_.default_sampling,
                         .completion_template = options_.completion_template,
                         .is_ready = options_.is_ready});
}

std::shared_ptr<RecordingWriter> TestApi::begin(const std::string& method, const std::string& target,
                                                const std::string& body) {
  auto writer = std::make_shared<RecordingWriter>();
  auto request = std::make_shared<HttpRequest>();
  const std::string path = target.substr(0, target.find('?'));
  request->method = method;
  request->path = path;
  if (path.size() < target.size()) request->query = target.substr(path.size() + 1);
  request->body = body;
  for (const Route& route : router_.routes()) {
    const bool prefix = route.path.ends_with("/*");
    const bool matches = prefix ? path.starts_with(route.path.substr(0, route.path.size() - 1))
                                : path == route.path;
    if (route.method != method || !matches) continue;
    route.handler(request, writer);
    return writer;
  }
  writer->send(404, "", "no route", {});
  return writer;
}

Reply TestApi::call(const std::string& method, const std::string& path, const std::string& body) {
  const auto writer = begin(method, path, body);
  if (!writer->wait_done()) return {};
  return {writer->status, writer->content_type, writer->body, writer->headers, writer->streamed};
}

}  // namespace warpweave::server::testing
