// For the tests and the fuzz target of this folder: the endpoints over a FakeEngine and the
// tokenizer of models/tale-llama, called without a socket.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/api/api.h"
#include "server/api/request_body.h"
#include "server/testing/fake_engine.h"

namespace warpweave::server::testing {

// A ResponseWriter that keeps what is written.
class RecordingWriter : public ResponseWriter {
 public:
  void send(int status, std::string_view content_type, std::string body,
            std::vector<std::pair<std::string, std::string>> headers) override;
  void begin_stream(int status, std::string_view content_type) override;
  void write(std::string chunk) override;
  void end() override;
  bool has_room() const override { return room; }
  bool call_when_room(std::function<void()> callback) override;
  void on_disconnect(std::function<void()> callback) override;

  // Waits for send() or end(); false after `timeout`.
  bool wait_done(std::chrono::seconds timeout = std::chrono::seconds(30));
  bool wait_first_write(std::chrono::seconds timeout = std::chrono::seconds(30));
  void disconnect();
  void set_room(bool has_room);  // runs what waited for it

  int status = 0;
  bool streamed = false;
  int answers = 0;  // calls of send() and begin_stream(): must end up as 1
  std::string content_type;
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;

 private:
  void finish();

  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::function<void()> on_disconnect_, when_room_;
  std::atomic<bool> room{true};
};

struct Reply {
  int status = 0;
  std::string content_type;
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  bool streamed = false;

  Json json() const { return Json::parse(body); }
  // The payloads of the stream's events; the last one is "[DONE]".
  std::vector<std::string> events() const;
};

struct TestApiOptions {
  FakeEngineOptions engine;
  ServerArgs args;
  bool with_tokenizer = true;
  std::string chat_template =  // ChatML; empty: none
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  SamplingParams default_sampling;
  std::optional<CompletionTemplate> completion_template;
  std::function<bool()> is_ready;
  AdapterStore* adapters = nullptr;
};

class TestApi {
 public:
  explicit TestApi(TestApiOptions options = {});

  Reply get(const std::string& path) { return call("GET", path, ""); }
  Reply post(const std::string& path, const std::string& body) { return call("POST", path, body); }
  Reply call(const std::string& method, const std::string& path, const std::string& body);
  // Starts a request and returns at once.
  std::shared_ptr<RecordingWriter> begin(const std::string& method, const std::string& path,
                                         const std::string& body);

  FakeEngine& engine() { return *engine_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const ChatTemplate* chat_template() const { return chat_template_ ? &*chat_template_ : nullptr; }
  const ServerArgs& args() const { return options_.args; }
  const Router& router() const { return router_; }

 private:
  TestApiOptions options_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<ChatTemplate> chat_template_;
  Router router_;
  std::unique_ptr<FakeEngine> engine_;  // ends first: its sinks use what stands above
};

}  // namespace warpweave::server::testing
