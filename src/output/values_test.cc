#include "output/values.h"

#include <gtest/gtest.h>

namespace warpweave::output {
namespace {

std::string literal(std::string_view text) {
  size_t at = 0;
  const auto json = python_literal_to_json(text, &at);
  return json && at == text.size() ? *json : "none";
}

TEST(PythonLiterals, AreJson) {
  EXPECT_EQ(literal("'a\"b'"), R"("a\"b")");
  EXPECT_EQ(literal("\"it's\""), R"("it's")");
  EXPECT_EQ(literal("'''a'b'''"), R"("a'b")");
  EXPECT_EQ(literal(R"('\n\x41\u00e9\q')"), "\"\\nA\u00e9\\\\q\"");
  EXPECT_EQ(literal("-1_000"), "-1000");
  EXPECT_EQ(literal(".5"), "0.5");
  EXPECT_EQ(literal("3."), "3.0");
  EXPECT_EQ(literal("1e-3"), "1e-3");
  EXPECT_EQ(literal("[True, False, None, ]"), "[true, false, null]");
  EXPECT_EQ(literal("{'a': {1: [ ]}}"), R"({"a": {"1": []}})");
  for (const char* bad :
       {"f(x)", "'a", "[1 2]", "{[1]: 2}", "1.2.3", "0x1g", "'\\ud800'", "x", "", "[", "{'a'}", "1+2"}) {
    EXPECT_EQ(literal(bad), "none") << bad;
  }
  EXPECT_EQ(literal(std::string(100000, '[')), "none");
}

TEST(Values, FollowTheSchema) {
  const Json text = Json::parse(R"({"type": "string"})"), number = Json::parse(R"({"type": "number"})");
  EXPECT_EQ(value_to_json("42", &text), "\"42\"");
  EXPECT_EQ(value_to_json("\"42\"", &number), "42");
  EXPECT_EQ(value_to_json(" 12345678901234567890 ", &number), "12345678901234567890");
  EXPECT_EQ(value_to_json("1e999", nullptr), "\"1e999\"");
  EXPECT_EQ(value_to_json("True", nullptr), "true");
  EXPECT_EQ(value_to_json("two words", &number), "\"two words\"");
}

}  // namespace
}  // namespace warpweave::output
