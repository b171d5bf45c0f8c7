// Every allocation of a request's way through the endpoints fails once: the client gets one answer,
// the next request is served.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "base/testing/failing_allocator.h"
#include "server/api/response_store.h"
#include "server/api/testing.h"

namespace warpweave::server::testing {
namespace {

using warpweave::testing::AllocationFailure;
using warpweave::testing::FailOn;

// An engine whose deltas the test hands out itself, so that sinks run on its thread.
class HandEngine : public Engine {
 public:
  HandEngine() {
    info_.served_model_name = info_.model_path = "hand";
    info_.context_len = 1024;
    info_.vocab_size = 4096;
  }
  const EngineInfo& info() const override { return info_; }
  EngineStats stats() const override { return {}; }
  Status submit(GenerateRequest request, OutputSink sink) override {
    live.push_back({std::move(request), std::move(sink)});
    return {};
  }
  void abort(const std::string&) override { ++aborts; }
  bool flush_cache() override { return true; }
  Status audit() override { return {}; }
  void drain(double) override {}

  struct Live {
    GenerateRequest request;
    OutputSink sink;
  };
  std::deque<Live> live;
  int aborts = 0;

 private:
  EngineInfo info_;
};

OutputDelta delta_of(const GenerateRequest& request, bool last) {
  OutputDelta delta;
  delta.rid = request.rid;
  delta.token_ids = {100};
  delta.text = "a text that does not fit into a string's own bytes";
  delta.prompt_tokens = 3;
  delta.completion_tokens = last ? 2 : 1;
  if (request.return_logprob) {
    PositionLogprobs logprobs{{-0.5f, 100}, {{-0.5f, 100}, {-1.5f, 101}}, {}};
    delta.output_logprobs = {logprobs};
  }
  if (last) delta.finish = FinishReason{FinishReason::Type::length, -1, {}, {}};
  return delta;
}

struct Case {
  const char* path;
  const char* body;
};

constexpr Case kCases[] = {
    {"/generate", R"({"text": ["a b", "c"], "return_logprob": true, "top_logprobs_num": 2, "rid": ["x", "y"],
        "sampling_params": {"n": 2, "stop": ["zz"], "bad_words": ["cat"]}})"},
    {"/generate", R"({"text": "a b", "stream": true})"},
    {"/open_session", "{}"},
    {"/generate", R"({"text": "a b", "session_params": {"id": "a session that does not fit into a string", "replace": true}})"},
    {"/v1/completions", R"({"prompt": "once upon", "n": 2, "logprobs": 2, "echo": true, "return_token_ids": true,
        "max_tokens": 4, "logit_bias": {"5": 1}})"},
    {"/v1/completions", R"({"prompt": [1, 2], "stream": true, "stream_options": {"include_usage": true}})"},
    {"/v1/chat/completions", R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
        "logprobs": true, "top_logprobs": 2, "stream": true, "n": 2})"},
    {"/tokenize", R"({"prompt": ["a", "b"]})"},
    {"/detokenize", R"({"tokens": [[5, 6]]})"},
    {"/abort_request", R"({"rid": "a rid that does not fit into a string"})"},
};

// What a client sees: one answer, or a writer dropped, which the transport answers.
void run_case(const Route& route, HandEngine& engine, const Case& test) {
  const auto request = std::make_shared<HttpRequest>();
  request->method = "POST";
  request->path = test.path;
  request->body = test.body;
  const auto writer = std::make_shared<RecordingWriter>();
  std::vector<OutputDelta> first, last;
  bool failed = false;
  {
    AllocationFailure failure(FailOn::this_thread);
    try {
      route.handler(request, writer);
    } catch (const std::bad_alloc&) {
      // Only where the answer 503 could not be sent; the transport catches it.
    }
    failed = AllocationFailure::happened();
  }
  for (const auto& live : engine.live) {
    first.push_back(delta_of(live.request, false));
    last.push_back(delta_of(live.request, true));
  }
  if (!failed) {
    AllocationFailure failure(FailOn::this_thread);
    for (size_t i = 0; i < engine.live.size(); ++i) engine.live[i].sink(std::move(first[i]));
    for (size_t i = 0; i < engine.live.size(); ++i) engine.live[i].sink(std::move(last[i]));
    failed = AllocationFailure::happened();
  } else {
    for (size_t i = 0; i < engine.live.size(); ++i) engine.live[i].sink(std::move(last[i]));
  }
  EXPECT_LE(writer->answers, failed ? 2 : 1);  // the transport drops a second one
  if (!failed) {
    EXPECT_EQ(writer->status, 200) << test.path << writer->body;
  } else if (writer->answers > 0) {
    EXPECT_TRUE(writer->status == 200 || writer->status == 503) << writer->status << writer->body;
  }
  engine.live.clear();
}

TEST(AllocationFailure, OfEveryPlaceLeavesTheEndpointsAlive) {
  TestApi tokenizer_owner;
  HandEngine engine;
  const ServerArgs args;
  Router router;
  register_api(router, {.engine = engine, .args = args, .tokenizer = &tokenizer_owner.tokenizer(),
                        .chat_template = tokenizer_owner.chat_template()});
  const auto route_of = [&](const std::string& path) {
    return std::ranges::find_if(router.routes(), [&](const Route& route) { return route.method == "POST" && route.path == path; });
  };
  const auto opening = std::make_shared<HttpRequest>();
  opening->body = R"({"session_id": "a session that does not fit into a string"})";
  route_of("/open_session")->handler(opening, std::make_shared<RecordingWriter>());
  for (const Case& test : kCases) {
    const auto route = route_of(test.path);
    ASSERT_NE(route, router.routes().end());
    size_t before = 0, runs = 0;
    do {
      before = AllocationFailure::places();
      run_case(*route, engine, test);
      ++runs;
    } while (AllocationFailure::places() != before && !HasFailure() && runs < 20000);
    EXPECT_GT(runs, 2u) << test.path;
  }
  EXPECT_GT(AllocationFailure::places(), 100u);
}

// What fails half-way must not be counted, nor found, nor walked to.
TEST(AllocationFailure, AResponseThatIsNotKeptLeavesTheStoreAsItWas) {
  AllocationFailure::forget_places();
  const std::string owner(40, 'o'), other(40, 'p');
  const ResponseStore::Entry entry{std::string(100, 'b'), std::string(100, 'm')};
  const size_t bytes = 40 + 2 + 200;
  size_t before = 0, failures = 0;
  do {
    before = AllocationFailure::places();
    ResponseStore store(1);
    ResponseStore::Entry given = entry;
    bool failed = false;
    {
      AllocationFailure failure(FailOn::this_thread);
      try {
        store.put(owner, "r1", std::move(given));
      } catch (const std::bad_alloc&) {
        failed = true;
      }
    }
    failures += failed;
    EXPECT_EQ(store.get(owner, "r1").has_value(), !failed);
    EXPECT_EQ(store.bytes(), failed ? 0 : bytes);
    EXPECT_TRUE(store.put(owner, "r2", entry));
    EXPECT_TRUE(store.put(other, "r1", entry));
    EXPECT_TRUE(store.put(owner, "r3", entry));
    EXPECT_FALSE(store.get(owner, "r1").has_value());
    EXPECT_FALSE(store.get(owner, "r2").has_value());
    EXPECT_EQ(store.bytes(), 2 * bytes);
    EXPECT_TRUE(store.erase(owner, "r3"));
    EXPECT_TRUE(store.erase(other, "r1"));
    EXPECT_EQ(store.bytes(), 0u);
  } while (AllocationFailure::places() != before && !HasFailure());
  EXPECT_GT(failures, 2u);
}

}  // namespace
}  // namespace warpweave::server::testing
