// Web pages of others, in front of routes that change the server.
#include "server/web_guard.h"

#include <gtest/gtest.h>

#include "server/testing/http_test.h"

namespace warpweave::server {
namespace {

using namespace testing;

class WebPagesTest : public HttpTest {
 protected:
  // The status of a POST to a route that changes the server.
  std::string change(const std::string& host, const std::string& fields) {
    return ask("POST /admin HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: 0\r\n" + fields + "\r\n").substr(9, 3);
  }
  std::string preflight(const std::string& path, const std::string& origin) {
    return ask("OPTIONS " + path + " HTTP/1.1\r\nHost: localhost\r\nOrigin: " + origin +
               "\r\nAccess-Control-Request-Method: POST\r\n\r\n");
  }
};

constexpr char kJson[] = "Content-Type: application/json; charset=utf-8\r\n";

TEST_F(WebPagesTest, AForeignPageChangesNothing) {
  start();
  EXPECT_EQ(change("localhost", ""), "200");
  EXPECT_EQ(change("localhost:30000", std::string("Origin: http://localhost:30000\r\n") + kJson), "200");
  EXPECT_EQ(change("localhost:30000", std::string("Origin: http://localhost:3000\r\n") + kJson), "403");
  EXPECT_EQ(change("localhost", std::string("Origin: https://evil.example\r\n") + kJson), "403");
  EXPECT_EQ(change("localhost", std::string("Origin: null\r\n") + kJson), "403");
  EXPECT_EQ(change("localhost", "Origin: http://localhost\r\nContent-Type: text/plain\r\n"), "415");
  EXPECT_EQ(change("localhost", "Origin: http://localhost\r\n"), "415");
  EXPECT_EQ(preflight("/admin", "https://evil.example").find("Access-Control-Allow"), std::string::npos);
  EXPECT_NE(preflight("/echo", "https://a.example").find("Access-Control-Allow-Origin: *"), std::string::npos);
}

// SDKs in a page send headers of their own; what is no header's name is not repeated.
TEST_F(WebPagesTest, APreflightAllowsTheHeadersItAsksFor) {
  start();
  const auto allowed = [&](const std::string& asked) {
    return ask(
        "OPTIONS /echo HTTP/1.1\r\nHost: localhost\r\nOrigin: https://a.example\r\nAccess-Control-Request-Method: "
        "POST\r\n"
        "Access-Control-Request-Headers: " +
        asked + "\r\n\r\n");
  };
  EXPECT_NE(allowed("authorization,x-stainless-os, x-api-key")
                .find("Access-Control-Allow-Headers: Authorization, Content-Type, x-stainless-os, x-api-key\r\n"),
            std::string::npos);
  EXPECT_EQ(allowed("x y, <script>, x-good").find("script"), std::string::npos);
}

// DNS rebinding: the page's own name points here, so origin and host agree.
TEST_F(WebPagesTest, AForeignNameForThisMachineChangesNothing) {
  start();
  EXPECT_EQ(change("evil.example:30000", std::string("Origin: http://evil.example:30000\r\n") + kJson), "403");
  EXPECT_EQ(change("evil.example", ""), "403");
  EXPECT_EQ(change("", ""), "403");
  EXPECT_EQ(change("127.0.0.1.evil.example", ""), "403");
  EXPECT_EQ(change("localhost.evil.example", ""), "403");
  const std::string absolute = ask(
      "POST http://evil.example/admin HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
  EXPECT_TRUE(absolute.starts_with("HTTP/1.1 403")) << absolute;
  for (const char* own : {"localhost", "LOCALHOST:1", "127.0.0.1:30000", "[::1]", "10.1.2.3", "x.localhost"}) {
    EXPECT_EQ(change(own, ""), "200") << own;
  }
}

TEST_F(WebPagesTest, AllowedOriginsAndHostsAreNamed) {
  start({.allowed_origins = {"https://a.example"}, .allowed_hosts = {"gpu-box"}});
  EXPECT_EQ(change("localhost", std::string("Origin: https://a.example\r\n") + kJson), "200");
  EXPECT_EQ(change("gpu-box:80", ""), "200");
  EXPECT_EQ(change("other-box", ""), "403");
  EXPECT_NE(
      preflight("/admin", "https://a.example").find("Access-Control-Allow-Origin: https://a.example\r\nVary: Origin"),
      std::string::npos);
  // Named origins hold for every route, named hosts for all but the open ones.
  EXPECT_EQ(preflight("/echo", "https://b.example").find("Access-Control-Allow-Origin"), std::string::npos);
  EXPECT_TRUE(ask(post("/echo", "a", "Origin: https://b.example\r\n")).starts_with("HTTP/1.1 403"));
  EXPECT_TRUE(ask("POST /echo HTTP/1.1\r\nHost: b.example\r\nContent-Length: 0\r\n\r\n").starts_with("HTTP/1.1 403"));
  EXPECT_TRUE(ask("POST /echo HTTP/1.1\r\nHost: gpu-box\r\nContent-Length: 0\r\n\r\n").starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(ask("GET /ping HTTP/1.1\r\nHost: b.example\r\n\r\n").starts_with("HTTP/1.1 200"));
}

// Who has the key need not prove where the request comes from; a page must still be allowed.
TEST_F(WebPagesTest, AKeyStandsInForTheHost) {
  start({.api_key = "k"});
  const std::string key = "Authorization: Bearer k\r\n";
  EXPECT_EQ(change("gpu-box", key), "200");
  EXPECT_EQ(change("gpu-box", ""), "401");
  EXPECT_EQ(change("gpu-box", key + "Origin: https://evil.example\r\n" + kJson), "403");
}

TEST(WebGuard, FromAnotherMachineAChangeNeedsAKey) {
  const WebGuard guard({});
  WebRequest request{.host = "10.0.0.1", .origin = {}, .content_type = {}, .peer_is_loopback = false};
  const auto refused = guard.check(AuthLevel::admin, request);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->status, 403);
  EXPECT_EQ(refused->code, "key_required");
  EXPECT_FALSE(guard.check(AuthLevel::api_key, request).has_value());
  request.key_was_checked = true;
  EXPECT_FALSE(guard.check(AuthLevel::admin, request).has_value());
}

}  // namespace
}  // namespace warpweave::server
