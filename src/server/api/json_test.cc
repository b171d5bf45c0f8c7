#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "server/api/errors.h"
#include "server/api/field_reader.h"
#include "server/api/request_body.h"
#include "server/api/json_write.h"

namespace warpweave::server {
namespace {

std::string repeat(std::string_view text, size_t times) {
  std::string out;
  for (size_t i = 0; i < times; ++i) out += text;
  return out;
}

TEST(JsonParse, BuildsTheSameValueAsTheLibrary) {
  const std::string text =
      R"({"b": [1, -2, 3.5, true, null, {"x": {}}], "a": "\u00e9\n", "c": [[], [[]]], "d": {}})";
  const Result<Json> parsed = parse_json(text);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->dump(), Json::parse(text).dump());
}

TEST(JsonParse, OfEqualKeysTheLastOneCounts) {
  const Result<Json> parsed = parse_json(R"({"a": 1, "b": 2, "a": [3], "b": 4})");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->dump(), R"({"a":[3],"b":4})");
}

TEST(JsonParse, DepthIsBounded) {
  EXPECT_TRUE(parse_json(repeat("[", 64) + repeat("]", 64)).ok());
  const Result<Json> deep = parse_json(repeat("[", 65) + repeat("]", 65));
  ASSERT_FALSE(deep.ok());
  EXPECT_NE(deep.status().message().find("deeper than 64"), std::string::npos);
  EXPECT_FALSE(parse_json(repeat("[", 1000000)).ok());
  EXPECT_FALSE(parse_json(repeat(R"({"a":)", 100000)).ok());
}

TEST(JsonParse, ValuesAndMembersAreBounded) {
  EXPECT_FALSE(parse_json("[1,2,3]", {.max_values = 6}).ok());
  EXPECT_TRUE(parse_json("[1,2,3]", {.max_values = 7}).ok());
  EXPECT_FALSE(parse_json(R"({"a":1,"b":2})", {.max_members = 1}).ok());
}

TEST(JsonParse, MessagesNameTheFaultAndItsPlace) {
  const auto message = [](std::string_view text) {
    const Result<Json> parsed = parse_json(text);
    return parsed.ok() ? "accepted" : parsed.status().message();
  };
  EXPECT_NE(message("{\"a\": \"\xff\"}").find("not UTF-8"), std::string::npos);
  EXPECT_NE(message("{\"a\": 1e999}").find("too large"), std::string::npos);
  EXPECT_NE(message("{\"a\": NaN}").find("at byte"), std::string::npos);
  EXPECT_NE(message("").find("unexpected end"), std::string::npos);
  EXPECT_NE(message("{\"a\": 1} x").find("not valid JSON"), std::string::npos);
  EXPECT_NE(message("{'a': 1}").find("not valid JSON"), std::string::npos);
}

TEST(JsonParse, TheBodyMustBeAnObject) {
  EXPECT_TRUE(parse_body("{}").ok());
  EXPECT_FALSE(parse_body("[]").ok());
  EXPECT_FALSE(parse_body("\"text\"").ok());
}

TEST(JsonWrite, StringsAreValidJsonForAnyBytes) {
  for (int first = 0; first < 256; ++first) {
    for (int second : {0x00, 0x22, 0x41, 0x80, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF}) {
      const std::string text = {static_cast<char>(first), static_cast<char>(second)};
      std::string out;
      append_json_string(text, &out);
      ASSERT_TRUE(Json::accept(out)) << first << ' ' << second << ' ' << out;
    }
  }
}

TEST(JsonWrite, ValidTextSurvives) {
  const std::string text = "a\"\\\b\x01\n\t\x7f é 漢 😀 \xED\x9F\xBF \xF4\x8F\xBF\xBF";
  std::string out;
  append_json_string(text, &out);
  EXPECT_EQ(Json::parse(out).get<std::string>(), text);
}

TEST(JsonWrite, BrokenTextBecomesReplacementCharacters) {
  std::string out;
  append_json_string("\xC0\x80 \xED\xA0\x80 \xF5 \xE2\x82", &out);
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(Json::parse(out).get<std::string>(), r + r + " " + r + r + r + " " + r + " " + r + r);
}

TEST(JsonWrite, NumbersThatJsonLacks) {
  std::string out;
  append_json_logprob(std::numeric_limits<float>::quiet_NaN(), &out);
  out += ' ';
  append_json_logprob(-std::numeric_limits<float>::infinity(), &out);
  out += ' ';
  append_json_logprob(-0.25f, &out);
  EXPECT_EQ(out, "null -9999.0 -0.25");
}

TEST(FieldReader, RangesAndTypes) {
  const Json body = Json::parse(R"({"int": 5, "whole": 5.0, "half": 5.5, "bool": true, "text": "5",
      "big": 9223372036854775808, "huge": 1e308, "negative": -1, "none": null, "list": [1]})");
  const auto read = [&](std::string_view name) {
    FieldReader reader(body);
    int value = -99;
    reader.get(name, IntRange{0, 10}, &value);
    return reader.status().ok() ? std::to_string(value) : reader.status().message();
  };
  EXPECT_EQ(read("int"), "5");
  EXPECT_EQ(read("whole"), "5");
  EXPECT_EQ(read("none"), "-99");
  EXPECT_EQ(read("absent"), "-99");
  EXPECT_EQ(read("half"), "half is 5.5, but must be an integer.");
  EXPECT_EQ(read("bool"), "bool is true, but must be an integer.");
  EXPECT_EQ(read("text"), "text is a string (\"5\"), but must be an integer.");
  EXPECT_EQ(read("list"), "list is a list of 1 items, but must be an integer.");
  EXPECT_EQ(read("negative"), "negative is -1, but must be between 0 and 10.");
  EXPECT_NE(read("big").find("between 0 and 10"), std::string::npos);
  EXPECT_NE(read("huge").find("between 0 and 10"), std::string::npos);
}

TEST(FieldReader, TheFirstFailureIsKept) {
  const Json body = Json::parse(R"({"a": "x", "b": 3})");
  FieldReader reader(body, "outer.");
  bool flag = false;
  int number = 0;
  EXPECT_FALSE(reader.get("a", &flag));
  EXPECT_FALSE(reader.get("b", IntRange{0, 10}, &number));
  EXPECT_EQ(number, 0);
  EXPECT_EQ(reader.status().field(), "outer.a");
}

TEST(FieldReader, TokenIdsAreInTheVocabulary) {
  const auto read = [](const char* text) {
    std::vector<int32_t> ids;
    const Status status = read_token_ids(Json::parse(text), "ids", 100, 4, &ids);
    return status.ok() ? "ok" : status.message();
  };
  EXPECT_EQ(read("[0, 99]"), "ok");
  EXPECT_NE(read("[0, 100]").find("ids[1] is 100, but must be between 0 and 99"),
            std::string::npos);
  EXPECT_NE(read("[-1]").find("ids[0] is -1"), std::string::npos);
  EXPECT_NE(read("[1, \"a\"]").find("ids[1] is a string"), std::string::npos);
  EXPECT_NE(read("[true]").find("ids[0] is true"), std::string::npos);
  EXPECT_NE(read("[1,2,3,4,5]").find("at most 4"), std::string::npos);
  EXPECT_NE(read("7").find("list of token ids"), std::string::npos);
}

TEST(Errors, OpenAiShapeWithSglangsMembersBesideIt) {
  const Json json = Json::parse(error_json(Status::not_found("no \"x\"", "model")));
  EXPECT_EQ(json["error"].dump(), R"({"message":"no \"x\"","type":"invalid_request_error",)"
                                  R"("param":"model","code":"model_not_found"})");
  EXPECT_EQ(json["object"], "error");
  EXPECT_EQ(json["message"], "no \"x\"");
  EXPECT_EQ(json["type"], "NotFoundError");
  EXPECT_EQ(json["param"], "model");
  EXPECT_EQ(json["code"], 404);
  EXPECT_EQ(error_json(Status::not_found("x"), ErrorShape::anthropic),
            R"({"type":"error","error":{"message":"x","type":"not_found_error"}})");
  EXPECT_EQ(http_status(StatusCode::invalid_argument), 400);
  EXPECT_EQ(http_status(StatusCode::unsupported), 400);
  EXPECT_EQ(http_status(StatusCode::resource_exhausted), 429);
  EXPECT_EQ(http_status(StatusCode::unavailable), 503);
  EXPECT_EQ(http_status(StatusCode::internal), 500);
}

}  // namespace
}  // namespace warpweave::server
