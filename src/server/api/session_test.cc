// Sessions of /generate: what a request goes on from, and what is forgotten.
#include <gtest/gtest.h>

#include <thread>

#include "server/api/session_store.h"
#include "server/api/testing.h"

namespace warpweave::server::testing {
namespace {

using Ids = std::vector<int32_t>;

class Session : public ::testing::Test {
 protected:
  static TestApiOptions options() {
    TestApiOptions out;
    out.engine.script = {};  // a prompt's ids come back
    return out;
  }

  std::string open(const std::string& body = R"({"capacity_of_str_len": 1000})") {
    const Reply reply = api_.post("/open_session", body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.status == 200 ? reply.json().get<std::string>() : "";
  }
  // `more`: members of session_params beside the id.
  Reply ask(const std::string& session, const Ids& ids, const std::string& rid, const Json& more = Json::object()) {
    Json body = {{"input_ids", ids}, {"rid", rid}, {"sampling_params", {{"max_new_tokens", ids.size()}, {"ignore_eos", true}}}};
    body["session_params"] = more;
    body["session_params"]["id"] = session;
    return api_.post("/generate", body.dump());
  }
  Ids last_prompt() { return api_.engine().submitted().back().input_ids; }

  TestApi api_{options()};
};

TEST_F(Session, ARequestGoesOnFromAnEarlierOne) {
  const std::string id = open();
  const Reply first = ask(id, {5, 6}, "a");
  ASSERT_EQ(first.status, 200) << first.body;
  const Ids wrote = first.json()["output_ids"];
  ASSERT_EQ(wrote.size(), 2u);
  ASSERT_EQ(ask(id, {7}, "b", {{"rid", "a"}}).status, 200);
  EXPECT_EQ(last_prompt(), (Ids{5, 6, wrote[0], wrote[1], 7}));
  ASSERT_EQ(ask(id, {7}, "c", {{"rid", "a"}, {"offset", -1}}).status, 200);
  EXPECT_EQ(last_prompt(), (Ids{5, 6, wrote[0], 7}));
  ASSERT_EQ(ask(id, {7}, "d", {{"rid", "a"}, {"offset", 1}}).status, 200);
  EXPECT_EQ(last_prompt(), (Ids{5, 7}));
  ASSERT_EQ(ask(id, {7}, "e", {{"rid", "a"}, {"drop_previous_output", true}}).status, 200);
  EXPECT_EQ(last_prompt(), (Ids{5, 6, 7}));
  ASSERT_EQ(ask(id, {8}, "f", {{"rid", "e"}, {"offset", 3}}).status, 200);  // the session is a tree
  EXPECT_EQ(last_prompt(), (Ids{5, 6, 7, 8}));
  ASSERT_EQ(ask(id, {9}, "g").status, 200);  // from nothing
  EXPECT_EQ(last_prompt(), (Ids{9}));
}

TEST_F(Session, ReplacingForgetsWhatCameBehind) {
  const std::string id = open();
  ASSERT_EQ(ask(id, {5}, "a").status, 200);
  ASSERT_EQ(ask(id, {6}, "b", {{"rid", "a"}}).status, 200);
  ASSERT_EQ(ask(id, {7}, "c", {{"rid", "b"}}).status, 200);
  ASSERT_EQ(ask(id, {8}, "d", {{"rid", "a"}, {"replace", true}}).status, 200);
  for (const char* gone : {"b", "c"}) {
    const Reply reply = ask(id, {9}, "e", {{"rid", gone}});
    EXPECT_EQ(reply.status, 400) << gone;
    EXPECT_EQ(reply.json()["error"]["param"], "session_params.rid");
  }
  EXPECT_EQ(ask(id, {9}, "e", {{"rid", "d"}}).status, 200);
  EXPECT_EQ(ask(id, {9}, "f", {{"replace", true}}).status, 200);  // all of it
  EXPECT_EQ(ask(id, {9}, "g", {{"rid", "a"}}).status, 400);
}

TEST_F(Session, ARefusedRequestChangesNothing) {
  const std::string id = open();
  ASSERT_EQ(ask(id, {5}, "a").status, 200);
  ASSERT_EQ(ask(id, {6}, "b", {{"rid", "a"}}).status, 200);
  Json body = {{"input_ids", {7}}, {"rid", "c"}, {"return_logprob", true}, {"logprob_start_len", 100}};
  body["session_params"] = {{"id", id}, {"rid", "a"}, {"replace", true}};
  EXPECT_EQ(api_.post("/generate", body.dump()).status, 400);
  EXPECT_EQ(ask(id, {7}, "b", {{"rid", "a"}}).status, 400);  // "b" is there
  EXPECT_EQ(ask(id, {7}, "c", {{"rid", "b"}}).status, 200);
  EXPECT_EQ(ask(id, {7}, "d", {{"rid", "c"}, {"offset", "1"}}).status, 400);
  EXPECT_EQ(ask(id, {7}, "d", {{"rid", "c"}, {"who", 1}}).status, 400);
  EXPECT_EQ(ask("", {7}, "d").status, 400);
  body = {{"input_ids", {{7}, {8}}}, {"session_params", {{"id", id}}}};
  EXPECT_EQ(api_.post("/generate", body.dump()).json()["error"]["param"], "session_params");
  body = {{"messages", {{{"role", "user"}, {"content", "a"}}}}, {"session_params", {{"id", id}}}};
  EXPECT_EQ(api_.post("/v1/chat/completions", body.dump()).json()["error"]["param"], "session_params");
}

TEST_F(Session, IsOpenUntilItIsClosed) {
  EXPECT_EQ(open(R"({"session_id": "mine"})"), "mine");
  const Reply again = api_.post("/open_session", R"({"session_id": "mine", "capacity_of_str_len": 5})");
  EXPECT_EQ(again.status, 400);
  EXPECT_EQ(again.json()["error"]["param"], "session_id");
  EXPECT_NE(open(), open());
  ASSERT_EQ(ask("mine", {5}, "a").status, 200);
  EXPECT_EQ(api_.post("/close_session", R"({"session_id": "mine"})").status, 200);
  EXPECT_EQ(ask("mine", {5}, "b", {{"rid", "a"}}).json()["error"]["param"], "session_params.id");
  EXPECT_EQ(api_.post("/close_session", R"({"session_id": "mine"})").status, 404);
  EXPECT_EQ(api_.post("/close_session", "{}").status, 400);
  EXPECT_EQ(api_.post("/open_session", R"({"streaming": true})").status, 400);
  EXPECT_EQ(open(R"({"session_id": "brief", "timeout": 1e-6})"), "brief");
  EXPECT_EQ(ask("brief", {5}, "a").status, 400);
}

TEST_F(Session, ARunningRequestIsReplacedOrWaitedFor) {
  TestApiOptions slow = options();
  slow.engine.never_finish = true;
  slow.engine.token_delay = std::chrono::milliseconds(5);
  TestApi api(std::move(slow));
  const std::string id = api.post("/open_session", "{}").json();
  const auto body = [&](const char* rid, const Json& more) {
    Json out = {{"input_ids", {5, 6}}, {"rid", rid}, {"stream", true}, {"sampling_params", {{"ignore_eos", true}}}};
    out["session_params"] = more;
    out["session_params"]["id"] = id;
    return out.dump();
  };
  const auto running = api.begin("POST", "/generate", body("a", Json::object()));
  ASSERT_TRUE(running->wait_first_write());
  EXPECT_EQ(api.post("/generate", body("b", {{"rid", "a"}})).status, 400);
  const auto next = api.begin("POST", "/generate", body("b", {{"rid", "a"}, {"offset", 3}, {"replace", true}}));
  ASSERT_TRUE(running->wait_done());
  EXPECT_NE(running->body.find("\"abort\""), std::string::npos) << running->body;
  ASSERT_TRUE(next->wait_first_write());
  EXPECT_EQ(api.engine().submitted().back().input_ids.size(), 5u);
  next->disconnect();
  EXPECT_TRUE(next->wait_done());
}

TEST(Sessions, BelongToTheirKeyAndAreBounded) {
  SessionStore store;
  const std::string id = *store.open("key", "", 0);
  EXPECT_FALSE(store.close("other", id));
  EXPECT_FALSE(store.prefix("other", {.id = id}).ok());
  EXPECT_TRUE(store.prefix("key", {.id = id}).ok());
  for (size_t i = 1; i < SessionStore::kMaxSessions; ++i) ASSERT_TRUE(store.open("key", "", 0).ok());
  EXPECT_EQ(store.open("other", "", 0).status().code(), StatusCode::resource_exhausted);
  const std::vector<int32_t> half(SessionStore::kMaxTokens / 2 + 1);
  auto begun = store.begin("key", {.id = id}, "a", half);
  ASSERT_TRUE(begun.ok());
  EXPECT_EQ(store.begin("key", {.id = id}, "b", half).status().code(), StatusCode::resource_exhausted);
  EXPECT_TRUE(store.close("key", id));  // while it runs
  begun->turn->add(half, /*is_last=*/true);
  begun->turn.reset();
  const std::string next = *store.open("key", "", 0);
  EXPECT_TRUE(store.begin("key", {.id = next}, "a", half).ok());
}

// What the refusal advises helps.
TEST(Sessions, ReplacingMakesRoom) {
  SessionStore store;
  const std::string id = *store.open("", "", 0);
  const auto begin = [&](const std::string& rid, const SessionWish& wish, std::vector<int32_t> prompt = {1}) {
    auto begun = store.begin("", wish, rid, std::move(prompt));
    if (begun.ok()) begun->turn->add({}, /*is_last=*/true);
    return begun.status();
  };
  for (size_t i = 0; i < SessionStore::kMaxRequests; ++i) ASSERT_TRUE(begin(std::to_string(i), {.id = id}).ok());
  const Status refused = begin("a", {.id = id});
  EXPECT_EQ(refused.code(), StatusCode::resource_exhausted);
  EXPECT_NE(refused.message().find("replace: true"), std::string::npos);
  EXPECT_TRUE(begin("a", {.id = id, .replace = true}).ok());
  const std::vector<int32_t> half(SessionStore::kMaxTokens / 2 + 1);
  EXPECT_TRUE(begin("b", {.id = id, .rid = "a"}, half).ok());
  EXPECT_FALSE(begin("c", {.id = id, .rid = "a"}, half).ok());
  EXPECT_TRUE(begin("c", {.id = id, .rid = "a", .replace = true}, half).ok());
}

// Requests of a token each take memory, too.
TEST(Sessions, RequestsAreBoundedTogether) {
  SessionStore store;
  size_t kept = 0;
  for (size_t session = 0; session < SessionStore::kMaxSessions; ++session) {
    const std::string id = *store.open("", "", 0);
    for (int i = 0; i < 64; ++i) {
      auto begun = store.begin("", {.id = id}, std::to_string(i), {1});
      if (!begun.ok()) break;
      begun->turn->add({}, /*is_last=*/true);
      ++kept;
    }
  }
  EXPECT_EQ(kept, SessionStore::kMaxTokens / (SessionStore::kTokensOfARequest + 1));
}

TEST(Sessions, ARunningRequestKeepsItsSessionOpen) {
  SessionStore store;
  const std::string id = *store.open("", "", 0.5);
  auto begun = store.begin("", {.id = id}, "a", {1});
  ASSERT_TRUE(begun.ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  begun->turn->add(std::vector<int32_t>{2}, /*is_last=*/false);
  begun->turn->add({}, /*is_last=*/true);
  EXPECT_TRUE(store.prefix("", {.id = id, .rid = "a"}).ok());
  begun->turn.reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  EXPECT_FALSE(store.prefix("", {.id = id, .rid = "a"}).ok());
}

// Then its rid is free before the client knows.
TEST(Sessions, ARequestThatFailsAtOnceMayBeSentAgain) {
  TestApiOptions failing;
  failing.engine.first_error = Status::internal("the model's result is not a number");
  TestApi api(std::move(failing));
  api.post("/open_session", R"({"session_id": "s"})");
  for (int i = 0; i < 20; ++i) {
    const Reply reply = api.post("/generate", R"({"input_ids": [5], "rid": "a", "session_params": {"id": "s"}})");
    EXPECT_EQ(reply.status, 500) << reply.body;
  }
}

TEST(Sessions, ARequestThatNeverRanWasNeverThere) {
  SessionStore store;
  const std::string id = *store.open("", "", 0);
  EXPECT_TRUE(store.begin("", {.id = id}, "a", {1}).ok());  // its turn ends here, without a token
  EXPECT_FALSE(store.prefix("", {.id = id, .rid = "a"}).ok());
  EXPECT_TRUE(store.begin("", {.id = id}, "a", {1}).ok());
}

}  // namespace
}  // namespace warpweave::server::testing
