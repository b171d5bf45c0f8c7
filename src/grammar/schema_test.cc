// What schemas allow and refuse, keyword by keyword: the definition in draft 2020-12.
#include <gtest/gtest.h>

#include "grammar/testing/grammar_texts.h"

namespace warpweave::grammar::testing {
namespace {

struct Case {
  const char* schema;
  std::vector<const char*> valid;
  std::vector<const char*> invalid;
};

class SchemaTexts : public ::testing::TestWithParam<Case> {};

TEST_P(SchemaTexts, AllowsTheValidAndOnlyThose) {
  const Case& c = GetParam();
  const auto grammar = compile(compact_schema(c.schema));
  ASSERT_NE(grammar, nullptr) << c.schema << ": " << failure(compact_schema(c.schema));
  for (const char* text : c.valid) EXPECT_EQ(takes(grammar, text), "yes") << c.schema << " <- " << text;
  for (const char* text : c.invalid) EXPECT_NE(takes(grammar, text), "yes") << c.schema << " <- " << text;
}

const Case kCases[] = {
    {R"({})",
     {"1", "null", R"("x")", R"({"a":[1,{"b":null}]})", "-0.5e+10", "[]", "{}"},
     {"", "01", "1.", "tru", "[1,]", "{,}"}},
    {R"(true)", {"1"}, {""}},
    {R"({"type":"integer"})", {"0", "-12", "900"}, {"1.0", "1e3", "+1", "007"}},
    // No number goes on for ever.
    {R"({"type":"integer"})", {"18446744073709551615", "-9223372036854775808"}, {"184467440737095516150"}},
    {R"({"type":"number"})",
     {"1.7976931348623157e+308", "5e-324", "0.12345678901234567890", "12345678901234567890.5E-7"},
     {"1e1234", "0.123456789012345678901", "123456789012345678901"}},
    {R"({"type":"integer","minimum":0})", {"0", "99999999999999999999"}, {"100000000000000000000", "-1"}},
    {R"({"type":"integer","maximum":0})", {"0", "-99999999999999999999"}, {"-100000000000000000000", "1"}},
    {R"({"type":"integer","minimum":1000000000000000000000})",
     {"1000000000000000000000", "99999999999999999999999"},
     {"100000000000000000000000", "999999999999999999999"}},
    {R"({"type":"number","minimum":0,"maximum":1})",
     {"0.12345678901234567890", "1.00000000000000000000"},
     {"0.123456789012345678901", "1.000000000000000000000"}},
    {R"({"type":"integer","multipleOf":7})",
     {"77777777777777777777"},
     {"77777777777777777778", "777777777777777777777"}},
    {R"({"type":"integer","multipleOf":99991})", {"9999100000000000000000000"}, {"9999100000000000000000001"}},
    {R"({"type":["null","boolean"]})", {"null", "true", "false"}, {"0"}},
    {R"({"type":"string"})",
     {R"("")", R"("a\"\\\n")", "\"日本é\"", R"("\u0001")"},
     {R"("\x")", "\"\n\"", "\"\xED\xA0\x80\"", R"("\/")"}},
    {R"({"type":"string","minLength":2,"maxLength":3})",
     {R"("ab")", "\"日本語\"", R"("\n\n")"},
     {R"("a")", R"("abcd")"}},
    {R"({"type":"string","maxLength":5000,"minLength":1})", {R"("abc")"}, {R"("")"}},
    {R"({"type":"string","pattern":"^a+$"})", {R"("a")", R"("aaaa")"}, {R"("b")", R"("")", R"("ab")"}},
    {R"({"type":"string","pattern":"\\b\\d{3}\\b"})",
     {R"("123")", R"("a 123")", R"("-123-4")"},
     {R"("1234")", R"("a123")", R"("é123")", R"("12")"}},
    {R"({"type":"string","pattern":"^a\\b-b\\Bc$"})", {R"("a-bc")"}, {R"("abc")", R"("a-b")"}},
    {R"({"type":"string","pattern":"^\\bx\\b"})", {R"("x")", R"("x y")"}, {R"("")", R"("xy")", R"(" x")"}},
    {R"({"type":"string","pattern":"^a\\Bb|c\\b$"})", {R"("ab")", R"("xc")"}, {R"("a b")", R"("cd")"}},
    {R"({"type":"string","pattern":"b"})", {R"("b")", R"("abc")"}, {R"("ac")"}},
    {R"j({"type":"string","pattern":"(^x|y$)","maxLength":2})j",
     {R"("x")", R"("xz")", R"("zy")"},
     {R"("zz")", R"("xzz")"}},
    {R"({"type":"string","pattern":"^[^\"]\"$"})", {R"("a\"")"}, {R"("ab")"}},
    {R"({"type":"string","format":"date"})",
     {R"("2024-02-29")", R"("1999-12-31")"},
     {R"("2023-02-29")", R"("2023-13-01")", R"("20230101")"}},
    {R"({"type":"string","format":"google-duration"})", {R"("3.5s")", R"("-10s")"}, {R"("3")", R"(".5s")", R"("1.s")"}},
    {R"({"type":"string","format":"uuid"})", {R"("123e4567-e89b-12d3-a456-426614174000")"}, {R"("123e4567")"}},
    {R"({"type":"string","format":"ipv6"})",
     {R"("::1")", R"("2001:db8::8a2e:370:7334")"},
     {R"("1:::2")", R"("::12345")"}},
    {R"({"type":"string","format":"email"})",
     {R"("a.b@example.com")", R"("a@[127.0.0.1]")"},
     {R"("a@")", R"("@b")", R"("a@[127.0.0]")", R"("a@127.0.0.1]")", R"("a@b-")"}},
    {R"({"type":"string","format":"date-time"})",
     {R"("2024-01-01T00:00:00Z")", R"("2024-01-01t00:00:00z")"},
     {R"("2024-01-01 00:00:00Z")", R"("2024-01-01T00:00:60Z")"}},
    {R"({"type":"string","format":"hostname"})",
     {R"("localhost")", R"("a.aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffggg.org")",
      R"("a.b.c.d.e.f.g.h")"},
     {R"("aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffgggg")", R"("-a")", R"("a-.b")", R"("a..b")"}},
    {R"({"type":"integer","minimum":5,"maximum":123})", {"5", "10", "99", "123"}, {"4", "124", "1000", "-5", "05"}},
    {R"({"type":"integer","exclusiveMinimum":-3,"maximum":2})", {"-2", "-1", "0", "2"}, {"-3", "3", "-10"}},
    {R"({"type":"integer","minimum":95})", {"95", "100", "10000"}, {"94", "9", "-95"}},
    {R"({"type":"integer","maximum":-95})", {"-95", "-100"}, {"-94", "95", "0"}},
    {R"({"type":"number","minimum":0.5,"exclusiveMaximum":2.25})",
     {"0.5", "1", "2.2", "2.2499", "0.50"},
     {"0.4", "2.25", "3", "0.4999", "2.250"}},
    {R"({"type":"number","exclusiveMinimum":1.5})", {"1.51", "2", "1.5001", "100.25"}, {"1.5", "1.50", "1.4"}},
    {R"({"type":"integer","multipleOf":7,"minimum":10,"maximum":100})", {"14", "98"}, {"7", "15", "105"}},
    {R"({"type":"number","multipleOf":0.25})", {"0.25", "1.5", "3", "-0.75"}, {"0.3", "0.125"}},
    {R"({"enum":["a",1,null,{"x":[1]}]})", {R"("a")", "1", "null", R"({"x":[1]})"}, {R"("b")", "2", R"({"x":[2]})"}},
    {R"({"const":"é\n"})", {"\"é\\n\""}, {R"("e")"}},
    {R"({"type":"string","enum":["a",1]})", {R"("a")"}, {"1"}},
    {R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3})",
     {"[1]", "[1,2,3]"},
     {"[]", "[1,2,3,4]", R"(["a"])"}},
    {R"({"type":"array","prefixItems":[{"const":1},{"const":2}],"items":{"const":3}})",
     {"[]", "[1]", "[1,2]", "[1,2,3,3]"},
     {"[2]", "[1,3]"}},
    {R"({"type":"array","items":[{"const":1}],"additionalItems":false})", {"[]", "[1]"}, {"[1,1]"}},
    {R"({"type":"array","contains":{"const":5},"items":{"type":"integer"}})",
     {"[5]", "[1,5]", "[5,2]", "[1,5,2]"},
     {"[]", "[1,2]"}},
    {R"({"type":"array","items":{"type":"string"},"uniqueItems":true})",
     {"[]", R"(["a","b"])", R"(["a","aa"])"},
     {R"(["a","a"])", R"(["a","b","a"])"}},
    {R"({"type":"array","items":{"enum":["a","ab",1,12]},"uniqueItems":true})",
     {R"(["ab","a",12,1])"},
     {"[1,1]", R"(["ab","ab"])", R"(["a","ab",1,12,1])"}},
    {R"({"type":"array","items":{"type":"array","items":{"type":"integer"}},"uniqueItems":true})",
     {"[[1],[1,1]]", "[[],[1]]"},
     {"[[1],[1]]"}},
    {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a"],"additionalProperties":false})",
     {R"({"a":1})", R"({"a":1,"b":"x"})"},
     {"{}", R"({"b":"x"})", R"({"a":1,"c":2})", R"({"a":"1"})"}},
    {R"({"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":{"type":"string"}})",
     {"{}", R"({"a":1})", R"({"a":1,"z":"y"})", R"({"ab":"y"})"},
     {R"({"a":"1"})", R"({"z":1})", R"({"a":1,"a":"x"})"}},
    {R"({"type":"object","patternProperties":{"^x-":{"type":"integer"}},"additionalProperties":false})",
     {"{}", R"({"x-a":1})"},
     {R"({"y":1})", R"({"x-a":"b"})"}},
    {R"({"type":"object","propertyNames":{"pattern":"^[a-z]+$","maxLength":3}})",
     {R"({"abc":1})"},
     {R"({"A":1})", R"({"abcd":1})"}},
    {R"({"type":"object","minProperties":1,"properties":{"a":{},"b":{}},"additionalProperties":false})",
     {R"({"a":1})", R"({"b":1})", R"({"a":1,"b":2})"},
     {"{}"}},
    {R"({"type":"object","maxProperties":1,"additionalProperties":{"type":"integer"}})",
     {"{}", R"({"q":1})"},
     {R"({"q":1,"r":2})"}},
    {R"({"type":"object","minProperties":1,"additionalProperties":{"type":"integer"}})",
     {R"({"q":1})", R"({"q":1,"r":2})"},
     {"{}"}},
    {R"({"type":"object","properties":{"a":{},"b":{}},"dependentRequired":{"a":["b"]},"additionalProperties":false})",
     {"{}", R"({"b":1})", R"({"a":1,"b":1})"},
     {R"({"a":1})"}},
    {R"({"type":"object","properties":{"a":{},"b":{}},"dependentSchemas":{"a":{"properties":{"b":{"const":1}}}},"additionalProperties":false})",
     {R"({"b":2})", R"({"a":0,"b":1})"},
     {R"({"a":0,"b":2})"}},
    {R"({"allOf":[{"type":"integer","minimum":3},{"maximum":5}]})", {"3", "5"}, {"2", "6", R"("x")"}},
    {R"({"allOf":[{"properties":{"a":{"type":"integer"}}},{"properties":{"a":{"minimum":5}},"required":["a"]}],"type":"object","additionalProperties":true})",
     {R"({"a":5})"},
     {R"({"a":4})", "{}"}},
    {R"({"anyOf":[{"type":"integer"},{"type":"string","maxLength":1}]})", {"12", R"("a")"}, {R"("ab")", "null"}},
    {R"({"oneOf":[{"type":"integer","minimum":0},{"type":"integer","maximum":10}]})", {"-1", "11"}, {"5", "0", "10"}},
    {R"({"oneOf":[{"required":["a"]},{"required":["b"]}],"type":"object","properties":{"a":{},"b":{}},"additionalProperties":false})",
     {R"({"a":1})", R"({"b":1})"},
     {"{}", R"({"a":1,"b":1})"}},
    {R"({"oneOf":[{"type":"object","properties":{"k":{"const":"x"},"v":{"type":"integer"}},"required":["k","v"],"additionalProperties":false},
                  {"type":"object","properties":{"k":{"const":"y"},"v":{"type":"string"}},"required":["k","v"],"additionalProperties":false}]})",
     {R"({"k":"x","v":1})", R"({"k":"y","v":"s"})"},
     {R"({"k":"x","v":"s"})"}},
    {R"({"not":{"type":"string"}})", {"1", "{}"}, {R"("a")"}},
    {R"({"type":"string","not":{"enum":["no","never"]}})",
     {R"("n")", R"("now")", R"("nevermore")"},
     {R"("no")", R"("never")"}},
    {R"({"type":"string","not":{"pattern":"b"}})", {R"("ac")"}, {R"("abc")"}},
    {R"({"type":"object","properties":{"a":{},"b":{"type":"integer"}},"required":["b"],"if":{"properties":{"a":{"const":1}},"required":["a"]},"then":{"properties":{"b":{"minimum":10}}},"additionalProperties":false})",
     {R"({"a":1,"b":10})", R"({"a":2,"b":1})", R"({"b":1})"},
     {R"({"a":1,"b":9})"}},
    {R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"next":{"$ref":"#/$defs/node"}},"additionalProperties":false}}})",
     {"{}", R"({"next":{"next":{}}})"},
     {R"({"next":1})"}},
    {R"({"$defs":{"p":{"$anchor":"pos","type":"integer","minimum":1}},"$ref":"#pos"})", {"1"}, {"0"}},
    {R"({"type":"object","properties":{"c":{"type":"array","items":{"$ref":"#"}}},"additionalProperties":false})",
     {R"({"c":[{"c":[]},{}]})"},
     {R"({"c":[1]})"}},
    {R"({"type":"object","properties":{"a":{}},"unevaluatedProperties":false,"allOf":[{"properties":{"b":{}}}]})",
     {R"({"a":1,"b":2})"},
     {R"({"c":1})"}},
    {R"({"anyOf":[false,{"const":1}]})", {"1"}, {"2"}},
    // A part with an $id is a document of its own: what its references name is in it.
    {R"({"$ref":"https://a.example/b.json","definitions":{"x":{"const":1}},"$defs":{"b":{"$id":"https://a.example/b.json","type":"array","items":{"$ref":"#/definitions/x"},"definitions":{"x":{"const":2}}}}})",
     {"[2]", "[]"},
     {"[1]"}},
    {R"({"type":"string","pattern":"^(?!-)(?!.*--)[a-z-]+$"})",
     {R"("a-b")", R"("a-")"},
     {R"("-a")", R"("a--b")", R"("")"}},
    {R"({"type":"string","pattern":"^(?=.*\\d)(?!bad$).*$"})", {R"("x1")", R"("bad1")"}, {R"("bad")", R"("x")"}},
    {R"s({"type":"string","pattern":"^(?!a)","maxLength":2})s", {R"("ba")", R"("")"}, {R"("ab")"}},
    {R"({"type":"object","properties":{"bad":false,"ok":{"const":1}},"additionalProperties":false})",
     {R"({"ok":1})"},
     {R"({"bad":1})"}},
};
INSTANTIATE_TEST_SUITE_P(Keywords, SchemaTexts, ::testing::ValuesIn(kCases));

TEST(Schema, WhitespaceIsWhatWritersUseOrAsTheStyleSays) {
  GrammarSpec spec{
      GrammarSpec::Kind::json_schema,
      R"({"type":"object","properties":{"a":{"type":"array","items":{"type":"integer"}}},"additionalProperties":false})",
      {}};
  EXPECT_EQ(takes(spec, "{ \"a\":\n\t[1, 2,\r\n    3 ]\n}"), "yes");
  EXPECT_EQ(takes(spec, "{  \"a\": []}"), "no");
  EXPECT_EQ(takes(spec, "{\n\n\"a\": []}"), "no");
  EXPECT_EQ(takes(spec, " {}"), "no");
  spec.style = {.any_whitespace = false, .separator = " "};
  EXPECT_EQ(takes(spec, R"({"a": [1, 2]})"), "yes");
  EXPECT_EQ(takes(spec, R"({"a":[1,2]})"), "no");
}

std::string indented_by(const std::string& blanks) { return "{\n" + blanks + "\"a\": 1}"; }

// Blanks are JSON, too: a model that likes them must not go on with them until its answer is cut.
TEST(Schema, IndentationIsBoundedByNesting) {
  const GrammarSpec any{GrammarSpec::Kind::json_object, "", {}};
  EXPECT_EQ(takes(any, indented_by(std::string(12, ' '))), "yes");
  EXPECT_EQ(takes(any, indented_by(std::string(13, ' '))), "no");
  EXPECT_EQ(takes(any, indented_by("\t\t\t")), "yes");
  EXPECT_EQ(takes(any, indented_by("\t\t\t ")), "no");  // a tab is four columns
  EXPECT_EQ(takes(any, "{\"a\":\n" + std::string(12, ' ') + "1}"), "yes");
  EXPECT_EQ(takes(any, "{\"a\": 1\n" + std::string(13, ' ') + "}"), "no");
  for (const auto& [open, close] : {std::pair("[", "]"), std::pair("{\"b\":", "}")}) {
    std::string begin, end;
    for (int level = 2; level <= 9; ++level) {
      begin += open;
      end += close;
      const auto nested = [&](int columns) {
        return "{\"a\":" + begin + indented_by(std::string(columns, ' ')) + end + "}";
      };
      const int most = std::min(64, 8 * (level + 1) + 4);  // indented_by() opens one more
      EXPECT_EQ(takes(any, nested(most)), "yes") << level;
      EXPECT_EQ(takes(any, nested(most + 1)), "no") << level;
    }
  }
}

// Brackets count, not rules: alternatives, references and tags around them give no further columns.
TEST(Schema, IndentationCountsBracketsAlone) {
  GrammarSpec spec{GrammarSpec::Kind::json_schema,
                   R"({"anyOf":[{"type":"null"},{"$ref":"#/$defs/a"}],
      "$defs":{"a":{"oneOf":[{"type":"object","properties":{"a":{"type":["integer","string"]}}},{"type":"array","items":{"$ref":"#"}}]}}})",
                   {}};
  EXPECT_EQ(takes(spec, indented_by(std::string(12, ' '))), "yes");
  EXPECT_EQ(takes(spec, indented_by(std::string(13, ' '))), "no");
  EXPECT_EQ(takes(spec, "[" + indented_by(std::string(20, ' ')) + "]"), "yes");
  EXPECT_EQ(takes(spec, "[" + indented_by(std::string(21, ' ')) + "]"), "no");
}

TEST(Schema, WhatCannotBeObeyedIsRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type":"array","contains":{},"maxContains":2})", "maxContains"},
      {R"({"type":"string","format":"postcode"})", "postcode"},
      {R"({"$ref":"https://example.com/other.json"})", "$ref"},
      {R"({"type":"strng"})", "type"},
      {R"({"type":"string","pattern":"(?=a)b"})", "look-ahead"},
      {R"({"type":"string","pattern":"^(?=a)b|c"})", "look-ahead"},
      {R"({"type":"string","pattern":"^(?!a"})", "'(' without ')'"},
      {R"({"type":"string","pattern":"(a)\\1"})", "back-references"},
      {R"({"type":"integer","minimum":5,"maximum":4})", "no text can satisfy"},
      {R"({"$ref":"#"})", "$ref"},
      {R"({"extends":{}})", "extends"},
      {R"({"properties":[]})", "properties"},
      {R"({"minLength":-1})", "minLength"},
      {R"([1])", "object or a boolean"},
      {R"({"type":)", "no JSON"},
      {R"({"type":"object","required":["a"],"properties":{"a":{"$ref":"#"}}})", "no text can satisfy"},
  };
  for (const auto& [schema, word] : cases) {
    EXPECT_NE(failure(compact_schema(schema)).find(word), std::string::npos)
        << schema << ": " << failure(compact_schema(schema));
  }
}

TEST(Schema, LimitsEndInErrors) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  EXPECT_NE(failure(compact_schema(R"({"enum":[)" + deep + "]}")).find("nested"), std::string::npos);
  EXPECT_NE(failure(compact_schema(R"({"type":"array","maxItems":3000000})")), "");
  EXPECT_NE(failure(compact_schema(R"({"type":"string","pattern":"^(a|b)*a(a|b){30}$"})")).find("states"),
            std::string::npos);
  std::string many = R"({"allOf":[)";
  for (int i = 0; i < 12; ++i)
    many += std::string(i ? "," : "") + R"({"anyOf":[{"minimum":)" + std::to_string(i) + R"(},{"maximum":)" +
            std::to_string(-i) + R"(},{"type":"string","maxLength":)" + std::to_string(i) + "}]}";
  EXPECT_NE(failure(compact_schema(many + "]}")).find("combinations"), std::string::npos);
}

// As many places as the divisor has steps follow each other; none of them takes room on the stack.
TEST(Schema, LargeDivisors) {
  for (const char* schema : {R"({"type":"integer","multipleOf":100000})", R"({"type":"number","multipleOf":99991})",
                             R"({"type":"integer","multipleOf":99991,"minimum":5})"}) {
    EXPECT_NE(compile(compact_schema(schema)), nullptr) << schema << ": " << failure(compact_schema(schema));
  }
}

TEST(Schema, CompilesTheSameEachTime) {
  const char* schema =
      R"({"allOf":[{"properties":{"x":{},"y":{}}},{"properties":{"z":{}}}],"properties":{"w":{}},"type":"object","additionalProperties":true})";
  for (int i = 0; i < 8; ++i) EXPECT_EQ(takes(compact_schema(schema), R"({"x":2,"y":3,"z":4,"w":1})"), "yes");
}

// Members stand as the document names them.
TEST(Schema, PartsOfAllOfKeepTheirPlaceAmongMembers) {
  const char* before =
      R"({"$defs":{"s":{"properties":{"x":{}}}},"allOf":[{"$ref":"#/$defs/s"}],"properties":{"w":{}},"additionalProperties":true,"type":"object"})";
  const char* behind =
      R"({"$defs":{"s":{"properties":{"x":{}}}},"properties":{"w":{}},"allOf":[{"$ref":"#/$defs/s"}],"additionalProperties":true,"type":"object"})";
  EXPECT_EQ(takes(compact_schema(before), R"({"x":1,"w":2})"), "yes");
  EXPECT_NE(takes(compact_schema(before), R"({"w":2,"x":1})"), "yes");
  EXPECT_EQ(takes(compact_schema(behind), R"({"w":2,"x":1})"), "yes");
}

// Each with a member of its own that it requires, and others that it does not forbid: two may hold at once.
std::string overlapping_parts() {
  Json parts = Json::array();
  for (int i = 0; i < 40; ++i) {
    const std::string n = std::to_string(i);
    Json properties{{"k" + n, Json{{"type", "integer"}}}};
    for (int k = 0; k < 8; ++k) properties["p" + n + "x" + std::to_string(k)] = Json{{"type", "string"}};
    parts.push_back(Json{{"type", "object"}, {"properties", properties}, {"required", Json::array({"k" + n})}});
  }
  return Json{{"oneOf", parts}}.dump();
}

// Of the many ways around parts of oneOf that overlap some are kept for each part, not all for the first.
TEST(Schema, EachPartOfAnOverlappingOneOfStaysPossible) {
  const GrammarSpec spec = compact_schema(overlapping_parts());
  GrammarLimits limits;
  limits.max_compile_time *= 8;  // a sanitizer takes four times as long
  const auto grammar = compile(spec, limits);
  ASSERT_NE(grammar, nullptr) << failure(spec);
  for (int i = 0; i < 40; ++i) EXPECT_EQ(takes(grammar, "{\"k" + std::to_string(i) + "\":1}"), "yes") << i;
}

// A clock that counts how often it is asked, a millisecond each.
int looks = 0;
std::chrono::nanoseconds counting_clock() { return std::chrono::milliseconds(++looks); }

// A machine that is too slow refuses a schema, and never makes another grammar of it.
TEST(Schema, TimeDoesNotChangeTheGrammar) {
  const GrammarSpec spec = compact_schema(overlapping_parts());
  GrammarLimits limits;
  limits.clock = counting_clock;
  limits.max_compile_time = std::chrono::hours(24);
  looks = 0;
  const auto whole = compile_grammar(spec, limits);
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  const int enough = looks;
  ASSERT_GT(enough, 64);
  for (const int time : {1, enough / 64, enough / 8, enough / 4, enough}) {
    limits.max_compile_time = std::chrono::milliseconds(time);
    const auto grammar = compile_grammar(spec, limits);
    ASSERT_EQ(grammar.ok(), time == enough) << time << " of " << enough;
    if (grammar.ok()) {
      EXPECT_EQ((*grammar)->num_states(), (*whole)->num_states());
    } else {
      EXPECT_NE(grammar.status().message().find("take"), std::string::npos) << grammar.status().message();
    }
  }
}

TEST(Schema, ManyStepsLeaveFewWaysAround) {
  const GrammarSpec spec = compact_schema(overlapping_parts());
  GrammarLimits limits;
  limits.max_compile_time = std::chrono::hours(1);
  const auto many = compile_grammar(spec, limits);
  limits.max_schema_work /= 10;
  const auto few = compile_grammar(spec, limits);
  ASSERT_TRUE(many.ok() && few.ok());
  EXPECT_LT((*few)->num_states(), (*many)->num_states());
  limits.max_schema_work = 1000;
  const auto none = compile_grammar(spec, limits);
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.status().message().find("make it simpler"), std::string::npos) << none.status().message();
}

TEST(Schema, ManyPatternsOfNamesThatDoNotOverlap) {
  Json patterns, overlapping;
  for (int i = 0; i < 20; ++i) {
    patterns["^" + std::string(1, static_cast<char>('a' + i))] = Json{{"const", i}};
    overlapping["x.{" + std::to_string(i) + "}y"] = Json{{"minimum", i}};
  }
  const GrammarSpec spec =
      compact_schema(Json{{"type", "object"}, {"patternProperties", patterns}, {"additionalProperties", false}}.dump());
  EXPECT_EQ(takes(spec, R"({"aa":0,"tt":19})"), "yes");
  EXPECT_NE(takes(spec, R"({"aa":1})"), "yes");
  EXPECT_NE(takes(spec, R"({"zz":1})"), "yes");
  EXPECT_NE(failure(compact_schema(Json{{"type", "object"}, {"patternProperties", overlapping}}.dump())), "");
}

}  // namespace
}  // namespace warpweave::grammar::testing
