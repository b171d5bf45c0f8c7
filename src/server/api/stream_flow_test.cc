// Readers who are behind: they get fewer and larger events, all of the text, and no stream is cut.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <thread>

#include "base/resident_memory.h"
#include "server/api/testing.h"

namespace warpweave::server::testing {
namespace {

constexpr int kTokens = 200;

struct Shape {
  const char* name;
  const char* path;
  const char* body;
};

constexpr Shape kShapes[] = {
    {"native", "/generate", R"({"input_ids": [1, 2], "stream": true, "return_logprob": true, "logprob_start_len": 0,
        "sampling_params": {"max_new_tokens": 200, "n": 3}})"},
    {"completions", "/v1/completions",
     R"({"prompt": [1, 2], "stream": true, "max_tokens": 200, "n": 3, "logprobs": 2, "echo": true})"},
    {"chat", "/v1/chat/completions", R"({"messages": [{"role": "user", "content": "a"}], "stream": true,
        "max_tokens": 200, "n": 3, "logprobs": true, "top_logprobs": 2})"},
};

TestApiOptions slow_engine() {
  TestApiOptions options;
  options.engine.script.assign(kTokens, " word");
  options.engine.token_delay = std::chrono::milliseconds(1);
  return options;
}

// What a stream said of each choice, put together.
struct Said {
  std::map<int, std::string> texts;
  std::map<int, size_t> logprobs;
  size_t ends = 0;
  bool operator==(const Said&) const = default;
};

Said said_by(const std::vector<std::string>& events) {
  Said said;
  EXPECT_EQ(events.back(), "[DONE]");
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const Json event = Json::parse(events[i]);
    EXPECT_FALSE(event.contains("error")) << events[i];
    if (event.contains("meta_info")) {  // cumulative
      const int choice = event.value("index", 0);
      said.texts[choice] = event["text"];
      said.logprobs[choice] = event["meta_info"]["output_token_logprobs"].size();
      said.ends += !event["meta_info"]["finish_reason"].is_null();
      continue;
    }
    for (const Json& choice : event["choices"]) {
      const int index = choice["index"];
      said.texts[index] += choice.contains("text") ? choice.value("text", "") : choice["delta"].value("content", "");
      if (choice.contains("logprobs") && choice["logprobs"].is_object()) {
        const Json& logprobs = choice["logprobs"];
        said.logprobs[index] += logprobs[logprobs.contains("tokens") ? "tokens" : "content"].size();
      }
      said.ends += !choice["finish_reason"].is_null();
    }
  }
  return said;
}

class StreamFlow : public ::testing::TestWithParam<Shape> {
 protected:
  static std::vector<std::string> events_of(const std::shared_ptr<RecordingWriter>& writer) {
    EXPECT_TRUE(writer->wait_done());
    return Reply{writer->status, writer->content_type, writer->body, {}, true}.events();
  }
  static std::shared_ptr<RecordingWriter> begin_without_room(TestApi& api) {
    const auto request = std::make_shared<HttpRequest>();
    request->method = "POST";
    request->path = GetParam().path;
    request->body = GetParam().body;
    for (const Route& route : api.router().routes()) {
      if (route.method != "POST" || route.path != request->path) continue;
      const auto writer = std::make_shared<RecordingWriter>();
      writer->set_room(false);
      route.handler(request, writer);
      return writer;
    }
    return nullptr;
  }
  static void wait_for_end(TestApi& api) {
    while (api.engine().stats().running_reqs > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
};

TEST_P(StreamFlow, AReaderWhoIsBehindGetsFewerEventsAndAllOfTheText) {
  TestApi api(slow_engine());
  const std::vector<std::string> all = events_of(api.begin("POST", GetParam().path, GetParam().body));
  EXPECT_GT(all.size(), size_t{kTokens});
  // Behind from the first event to the end of the request.
  const auto writer = begin_without_room(api);
  ASSERT_NE(writer, nullptr);
  wait_for_end(api);
  writer->set_room(true);
  const std::vector<std::string> some = events_of(writer);
  EXPECT_LT(some.size(), all.size() / 2);
  EXPECT_EQ(said_by(some), said_by(all));
  EXPECT_EQ(said_by(some).texts.size(), 3U);
  EXPECT_EQ(said_by(some).ends, 3U);
}

TEST_P(StreamFlow, RoomThatComesAndGoesLosesNothing) {
  TestApi api(slow_engine());
  const Said expected = said_by(events_of(api.begin("POST", GetParam().path, GetParam().body)));
  const auto writer = api.begin("POST", GetParam().path, GetParam().body);
  while (api.engine().stats().running_reqs > 0) {
    for (const bool room : {false, true}) {
      writer->set_room(room);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  EXPECT_EQ(said_by(events_of(writer)), expected);
}

// What was kept goes out before the error.
TEST_P(StreamFlow, AShutdownWhileTheReaderIsBehindSaysAllThatCame) {
  TestApiOptions options = slow_engine();
  options.engine.never_finish = true;
  TestApi api(std::move(options));
  auto writer = api.begin("POST", GetParam().path, GetParam().body);
  ASSERT_TRUE(writer->wait_first_write());
  writer->set_room(false);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  api.engine().drain(0);
  const std::vector<std::string> events = events_of(writer);
  ASSERT_GE(events.size(), 2U);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_TRUE(Json::parse(events[events.size() - 2]).contains("error"));

  // And nobody holds the answer any more.
  const std::weak_ptr<RecordingWriter> held = writer;
  writer.reset();
  wait_for_end(api);
  for (int i = 0; i < 1000 && !held.expired(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(held.expired());
}

TEST_P(StreamFlow, AClientThatLeavesWhileItIsBehindEndsItsRequest) {
  TestApiOptions options = slow_engine();
  options.engine.never_finish = true;
  TestApi api(std::move(options));
  const auto writer = api.begin("POST", GetParam().path, GetParam().body);
  ASSERT_TRUE(writer->wait_first_write());
  writer->set_room(false);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  writer->disconnect();
  wait_for_end(api);
  writer->set_room(true);
}

INSTANTIATE_TEST_SUITE_P(Shapes, StreamFlow, ::testing::ValuesIn(kShapes),
                         [](const auto& info) { return info.param.name; });

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The most memory that was resident since the file /proc/self/clear_refs was told to begin anew.
int64_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}

// As values of JSON each log-probability takes some 400 bytes, in several copies: an answer would take 20 times its own size.
TEST(ResponsesMemory, LogprobsAreHeldAsTheirText) {
  TestApiOptions options;
  options.engine.script.assign(4000, " word");
  options.engine.info.context_len = 8192;
  TestApi api(options);
  const char* const body = R"({"input": "Hi", "max_output_tokens": 4000, "top_logprobs": 20, "include": ["message.output_text.logprobs"]})";
  std::ofstream("/proc/self/clear_refs") << "5";
  const int64_t before = resident_memory().bytes;
  const Reply reply = api.post("/v1/responses", body);
  ASSERT_EQ(reply.status, 200) << reply.body.substr(0, 300);
  const auto bytes = static_cast<int64_t>(reply.body.size());
  ASSERT_GT(bytes, 4 << 20);
  EXPECT_LT(peak_bytes() - before, 12 * bytes);
  EXPECT_EQ(reply.json()["output"][0]["content"][0]["logprobs"].size(), 4000u);
}
#endif

}  // namespace
}  // namespace warpweave::server::testing
