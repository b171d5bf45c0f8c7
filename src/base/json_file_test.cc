// Both forms of reading JSON refuse what nests too deep, whatever its length.
#include "base/json_file.h"

#include <gtest/gtest.h>
#include <simdjson.h>

namespace warpweave {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

std::string repeat(std::string_view text, size_t times) {
  std::string out;
  for (size_t i = 0; i < times; ++i) out += text;
  return out;
}

std::string nested(size_t depth) { return repeat("[", depth) + repeat("]", depth); }

Status read_tape(std::string_view text) {
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  return read_json_tape(parser, text, {"tokenizer.json", StatusCode::data_loss}, root);
}

TEST(JsonFile, DepthIsBoundedInBothForms) {
  EXPECT_TRUE(read_json<json>(nested(64), {}).ok());
  EXPECT_TRUE(read_json<ordered_json>(nested(64), {}).ok());
  EXPECT_TRUE(read_tape(nested(60)).ok());
  for (const std::string& text : {nested(65), nested(100'000), repeat("{\"a\":", 100'000), repeat("[", 1'000'000),
                                  "{\"a\":[" + nested(100'000) + "]}"}) {
    for (const Status& status : {read_json<json>(text, {"config.json"}).status(),
                                 read_json<ordered_json>(text, {"config.json"}).status(), read_tape(text)}) {
      EXPECT_NE(status.message().find(".json cannot be read: "), std::string::npos) << status.message();
    }
    EXPECT_NE(read_json<json>(text, {}).status().message().find("nested deeper than 64"), std::string::npos);
  }
  EXPECT_NE(read_tape(nested(100'000)).message().find("nested deeper than 64"), std::string::npos)
      << read_tape(nested(100'000)).message();
}

TEST(JsonFile, BothKindsOfValuesAgreeWithTheLibrary) {
  const std::string text =
      R"({"b": [1, -2, 3.5, true, null, {"x": {}}], "a": "\u00e9\n", "c": [[], [[]]], "d": {}, "a": [7]})";
  EXPECT_EQ(read_json<json>(text, {})->dump(), json::parse(text).dump());
  EXPECT_EQ(read_json<ordered_json>(text, {})->dump(),
            R"({"b":[1,-2,3.5,true,null,{"x":{}}],"c":[[],[[]]],"d":{},"a":[7]})");
}

TEST(JsonFile, TheErrorHasTheCallersCodeAndField) {
  const Status status = read_json<json>("{", {"config.json", StatusCode::data_loss, "config.json"}).status();
  EXPECT_EQ(status.code(), StatusCode::data_loss);
  EXPECT_EQ(status.field(), "config.json");
  EXPECT_EQ(read_tape("").code(), StatusCode::data_loss);
  EXPECT_EQ(read_tape("nul").code(), StatusCode::data_loss);
}

}  // namespace
}  // namespace warpweave
