// The core: masks against trying every token, rollback, forks, notations, limits.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <thread>

#include "grammar/char_partition.h"
#include "grammar/testing/grammar_texts.h"

namespace warpweave::grammar::testing {
namespace {

using Kind = GrammarSpec::Kind;

// Walks at random along the mask; at each step every token's bit must be what accepting it says.
void check_masks(const GrammarSpec& spec, int walks, int length, std::shared_ptr<const Vocabulary> over) {
  const auto grammar = compile(spec, {}, std::move(over));
  ASSERT_NE(grammar, nullptr) << spec.source << ": " << failure(spec);
  const Vocabulary& vocabulary = grammar->vocabulary();
  std::mt19937 random(7);
  for (int walk = 0; walk < walks; ++walk) {
    GrammarMatcher matcher(grammar);
    std::string text;
    for (int step = 0; step < length && !matcher.ended(); ++step) {
      MaskWords mask(mask_words(vocabulary.size()), ~0u);
      ASSERT_TRUE(matcher.fill_mask(mask)) << spec.source << " is stuck behind " << text;
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < static_cast<int32_t>(vocabulary.size()); ++id) {
        GrammarMatcher fork = matcher;
        const bool bit = mask[id >> 5] >> (id & 31) & 1;
        ASSERT_EQ(fork.accept_token(id), bit)
            << spec.source << " behind " << text << ": token " << vocabulary.token(id);
        if (bit) allowed.push_back(id);
      }
      const int32_t id = allowed[random() % allowed.size()];
      ASSERT_TRUE(matcher.accept_token(id));
      text += vocabulary.token(id);
    }
  }
}

const GrammarSpec kSpecs[] = {
    {Kind::json_object, "", {}},
    compact_schema(
        R"({"type":"object","properties":{"name":{"type":"string","maxLength":6},"n":{"type":"integer","maximum":120}},"required":["name"]})"),
    compact_schema(R"({"type":"array","items":{"type":"string"},"uniqueItems":true})"),
    compact_schema(R"({"type":"array","items":{"enum":["a","ab","abc",1,2,12,true,false]},"uniqueItems":true})"),
    compact_schema(R"({"type":"array","items":{"type":"integer"},"uniqueItems":true})"),
    compact_schema(R"({"type":"string","pattern":"^(a|b|é)*abc"})"),
    compact_schema(R"({"type":"string","minLength":3,"maxLength":12})"),
    {Kind::regex, "[a-c]{2,4}(\\.[0-9]+)?|true", {}},
    {Kind::regex, "(a|ab)*b", {}},
    {Kind::ebnf, "root ::= expr\nexpr ::= expr \"+\" term | term\nterm ::= [0-9]+ | \"(\" expr \")\"", {}},
    {Kind::ebnf, "root ::= a\na ::= b \"a\" | \"1\"\nb ::= a \"b\" | a", {}},
    {Kind::ebnf, "root ::= s\ns ::= s s | \"a\" | \"\"", {}},
    {Kind::ebnf, "root ::= ws \"x\"\nws ::= [ \\n] ws | \"\"", {}},
    {Kind::ebnf,
     "start: item (\",\" item)*\nitem: NAME | NUMBER\nNAME: /[a-z]+/\n%import common.NUMBER\n%ignore \" \"",
     {}},
    {Kind::choice, R"(["true","abc","ab","日本"])", {}},
    {Kind::structural_tag,
     R"({"structures":[{"begin":"[\"","schema":{"type":"integer"},"end":"\"]"}],"triggers":["[\""]})",
     {}},
};

TEST(Masks, EqualTryingEveryToken) {
  for (const GrammarSpec& spec : kSpecs) check_masks(spec, 4, 24, small_vocabulary());
}

// Ready sets and runs, which a small vocabulary does not reach: alike or not, counted or endless, by kind.
TEST(Masks, OfSlicesEqualTryingEveryToken) {
  const GrammarSpec specs[] = {
      {Kind::json_object, "", {}},
      compact_schema(R"({"type":"string","minLength":3,"maxLength":20})"),
      compact_schema(R"({"type":"string","maxLength":80})"),
      compact_schema(R"({"type":"string","minLength":2,"maxLength":3000})"),
      compact_schema(R"({"type":"string","pattern":"^[^@ ]+@[a-z]+\\.com$"})"),
      compact_schema(R"({"type":"string","pattern":"end"})"),
      compact_schema(
          R"({"anyOf":[{"type":"string","maxLength":7},{"type":"string","pattern":"^[a-z]*$"},{"const":"aa bb"}]})"),
      compact_schema(
          R"({"type":"object","patternProperties":{"^x":{"type":"integer"},"y$":{"type":"integer","minimum":5}},"additionalProperties":false})"),
      {Kind::regex, "[a-z]+", {}},
      {Kind::regex, "[a-z]{2,5}[0-9]|[A-Z ]+", {}},
      {Kind::regex, "[A-Z][a-z ]*\n", {}},
      {Kind::regex, "[^\n]{5,20}", {}},
      {Kind::regex, "[^a]{1,4}|[^é]{2,}", {}},
      {Kind::regex, "(\\w+ ){2,4}\\w+\\.", {}},
      {Kind::regex, ".*end", {}},
      {Kind::regex, "\"[^\"]*\"", {}},
      {Kind::regex, "([a-z][A-Z ])*", {}},
      {Kind::regex, "[ \n]{3,}|=+", {}},
      {Kind::regex, "[^\\x00-\\x7f]{1,3}a*", {}},
      {Kind::regex, "[\\u0080-\\u07ff]+|日[\\u0800-\\uffff]*", {}},
      {Kind::regex, "[a-z]{3}(n|y)[a-z]*", {}},
      {Kind::ebnf, "start: line+\nline: /[A-Z][a-z ]*/ \".\\n\" | \"<\" line \">\"", {}},
  };
  const auto vocabulary = word_vocabulary();
  for (const GrammarSpec& spec : specs) check_masks(spec, 16, 12, vocabulary);
}

// Tokens with the same bytes are allowed together.
TEST(Masks, OfEqualTokens) {
  const auto vocabulary = std::make_shared<Vocabulary>(
      std::vector<std::string>{"ab", "a", "ab", "a\"", "a\"", "\"", "b", ""}, std::vector<int32_t>{7});
  for (const char* pattern : {"ab", "[a-z]+", "a\"", "\"?.*"})
    check_masks({Kind::regex, pattern, {}}, 2, 3, vocabulary);
}

TEST(Masks, StayRightWhenTheAutomatonIsReplaced) {
  GrammarLimits limits;
  limits.max_automaton_bytes = 24 << 10;
  for (const GrammarSpec& spec : kSpecs) {
    const auto small = compile(spec, limits), large = compile(spec);
    GrammarMatcher a(small), b(large);
    std::mt19937 random(3);
    for (int step = 0; step < 60 && !b.ended(); ++step) {
      MaskWords mask_a(mask_words(small->vocabulary().size())), mask_b = mask_a;
      const bool going = b.fill_mask(mask_b);
      ASSERT_EQ(a.fill_mask(mask_a), going) << spec.source;
      ASSERT_EQ(mask_a, mask_b) << spec.source << " step " << step;
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < static_cast<int32_t>(large->vocabulary().size()); ++id) {
        if (mask_b[id >> 5] >> (id & 31) & 1) allowed.push_back(id);
      }
      const int32_t id = allowed[random() % allowed.size()];
      ASSERT_TRUE(a.accept_token(id));
      ASSERT_TRUE(b.accept_token(id));
    }
  }
}

TEST(Matcher, RollbackUndoesTokens) {
  for (const GrammarSpec& spec : kSpecs) {
    const auto grammar = compile(spec);
    GrammarMatcher matcher(grammar);
    std::mt19937 random(5);
    std::vector<MaskWords> masks;
    const auto mask = [&] {
      MaskWords words(mask_words(grammar->vocabulary().size()));
      matcher.fill_mask(words);
      return words;
    };
    for (int step = 0; step < 20; ++step) {
      masks.push_back(mask());
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < static_cast<int32_t>(grammar->vocabulary().size()); ++id) {
        if (masks.back()[id >> 5] >> (id & 31) & 1) allowed.push_back(id);
      }
      if (matcher.ended() || allowed.empty()) break;
      ASSERT_TRUE(matcher.accept_token(allowed[random() % allowed.size()]));
    }
    while (matcher.num_tokens() > 0) {
      const size_t back = std::min<size_t>(1 + random() % 3, matcher.num_tokens());
      ASSERT_TRUE(matcher.rollback(back));
      EXPECT_EQ(mask(), masks[matcher.num_tokens()]) << spec.source;
    }
    EXPECT_FALSE(matcher.rollback(1));
  }
}

TEST(Matcher, JumpsOverWhatIsForced) {
  const auto grammar = compile(compact_schema(
      R"({"type":"object","properties":{"name":{"enum":["abcd","abcx"]}},"required":["name"],"additionalProperties":false})"));
  GrammarMatcher matcher(grammar);
  EXPECT_EQ(matcher.jump_forward(), R"({"name":"abc)");
  ASSERT_TRUE(matcher.accept_bytes(R"({"name":"abcx)"));
  EXPECT_EQ(matcher.jump_forward(), R"("})");
  ASSERT_TRUE(matcher.accept_bytes(R"("})"));
  EXPECT_EQ(matcher.jump_forward(), "");
  EXPECT_TRUE(matcher.can_end());
}

TEST(Matcher, EndTokensEndAndNothingFollows) {
  const auto grammar = compile({Kind::choice, R"(["ab"])", {}});
  const auto end = static_cast<int32_t>(grammar->vocabulary().size()) - 1;
  GrammarMatcher matcher(grammar);
  EXPECT_FALSE(matcher.accept_token(end));
  ASSERT_TRUE(matcher.accept_bytes("ab"));
  EXPECT_TRUE(matcher.accept_token(end));
  EXPECT_TRUE(matcher.ended());
  EXPECT_FALSE(matcher.accept_token('a'));
  EXPECT_FALSE(matcher.accept_token(-1));
  EXPECT_FALSE(matcher.accept_token(1 << 30));
}

TEST(Matcher, ThreadsShareOneGrammar) {
  const auto grammar = compile(kSpecs[1]);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int walk = 0; walk < 20; ++walk) {
        GrammarMatcher matcher(grammar);
        MaskWords mask(mask_words(grammar->vocabulary().size()));
        for (int step = 0; step < 20 && matcher.fill_mask(mask) && !matcher.ended(); ++step) {
          int32_t id = static_cast<int32_t>(random() % grammar->vocabulary().size());
          while (!(mask[id >> 5] >> (id & 31) & 1)) id = (id + 1) % static_cast<int32_t>(grammar->vocabulary().size());
          EXPECT_TRUE(matcher.accept_token(id));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Notations, Regex) {
  const auto regex = [](const char* pattern) { return GrammarSpec{Kind::regex, pattern, {}}; };
  EXPECT_EQ(takes(regex("^\\d{3}-[A-F]+$"), "123-AF"), "yes");
  EXPECT_EQ(takes(regex("\\d{3}"), "12"), "prefix");
  EXPECT_EQ(takes(regex("\\p{Lu}\\w*"), "Éa"), "yes");
  EXPECT_EQ(takes(regex("[^a]"), "日"), "yes");
  EXPECT_EQ(takes(regex("a.c"), "a\nc"), "no");
  // Dialects differ in what \d, \w and \s hold: a negated class leaves out whatever one of them holds.
  for (const char* space : {" ", "\u00a0", "\u0085", "\u2003"}) EXPECT_EQ(takes(regex("[^\\sx]"), space), "no");
  EXPECT_EQ(takes(regex("[^\\w]"), "é"), "no");
  EXPECT_EQ(takes(regex("[^\\d]"), "\u0663"), "no");
  EXPECT_EQ(takes(regex("[^\\D]"), "7"), "yes");
  EXPECT_EQ(takes(regex("[^\\S]"), "\n"), "yes");
  EXPECT_EQ(takes(regex("(?:ab|c)+?"), "abcab"), "yes");
  EXPECT_EQ(takes(regex("x{2,}y{0}z"), "xxxz"), "yes");
  EXPECT_EQ(takes(regex("\\x41\\u0042\\."), "AB."), "yes");
  for (const char* bad : {"(", "a)", "[a", "*", "a{3,2}", "\\1", "\\b", "(?i)a", "a++", "[z-a]", "a^b", "\\p{Nope}",
                          "a{99999}", "[]a]", "\\"}) {
    EXPECT_NE(failure(regex(bad)), "") << bad;
  }
  EXPECT_EQ(takes(regex("(a+)+b"), std::string(3000, 'a') + "c"), "no");  // in linear time
}

// Properties by all the names that dialects give them; anything else is an error.
TEST(Notations, PropertiesOfCharacters) {
  const auto has = [](const char* property, const char* c) {
    return takes({Kind::regex, "\\p{" + std::string(property) + "}", {}}, c) == "yes";
  };
  struct Case { const char* name; const char* in; const char* out; };
  for (const Case& c : std::vector<Case>{{"L", "日", "1"},
                                         {"Letter", "a", "_"},
                                         {"gc=Lu", "Ω", "ω"},
                                         {"General_Category=Lowercase_Letter", "ω", "Ω"},
                                         {"uppercase_letter", "A", "a"},
                                         {"Nd", "\u0663", "x"},
                                         {"P", "!", "+"},
                                         {"Sc", "€", "!"},
                                         {"Zs", "\u00a0", "\n"},
                                         {"Greek", "ω", "w"},
                                         {"Script=Greek", "ω", "w"},
                                         {"sc=Grek", "ω", "w"},
                                         {"scx=Deva", "\u1cd0", "a"},
                                         {"Han", "日", "ひ"},
                                         {"Hiragana", "ひ", "日"},
                                         {"Alphabetic", "ñ", "1"},
                                         {"White_Space", "\u2003", "a"},
                                         {"ASCII_Hex_Digit", "f", "g"},
                                         {"Any", "😀", ""},
                                         {"Assigned", "a", "\U0010fffe"},
                                         {"Emoji", "😀", "a"}}) {
    EXPECT_TRUE(has(c.name, c.in)) << c.name;
    EXPECT_FALSE(has(c.name, c.out)) << c.name;
  }
  EXPECT_EQ(takes({Kind::regex, "\\P{L}\\pL", {}}, "1a"), "yes");
  // A mark that several scripts use is of no single one: Script is not Script_Extensions.
  EXPECT_FALSE(has("Devanagari", "\u1cd0"));
  // Both ends, and both sides of the surrogates.
  for (const char* c : {"\U0010fffd", "\ue000", "\uf8ff"}) EXPECT_TRUE(has("Co", c));
  for (const char* c : {"\ud7fb", "\uabf9"}) EXPECT_EQ(has("Hangul", c), std::string(c) == "\ud7fb");
  EXPECT_TRUE(has("sc=Unknown", "\U0010fffd"));
  for (const char* bad : {"", "Nope", "sc=Nope", "gc=Greek", "gc=", "sc=", "=", "Lu,Ll", "^L", "L|.", "Script Greek"}) {
    EXPECT_NE(failure({Kind::regex, "\\p{" + std::string(bad) + "}", {}}), "") << bad;
  }
}

TEST(Notations, GbnfAndLark) {
  const auto ebnf = [](const char* text) { return GrammarSpec{Kind::ebnf, text, {}}; };
  EXPECT_EQ(takes(ebnf("# a list\nroot ::= \"- \" item{1,2} \"\\n\"\nitem ::= ([a-z] | \"_\")+ \";\""), "- ab;c_;\n"),
            "yes");
  EXPECT_EQ(takes(ebnf("start: \"a\"i~2..3 [\"z\"] END\nEND: \"!\""), "aAaz!"), "yes");
  EXPECT_EQ(takes(ebnf("start: A+\nA: \"a\"..\"f\"\n%ignore /\\s+/"), "a b  f"), "yes");
  EXPECT_NE(failure(ebnf("root ::= missing")).find("missing"), std::string::npos);
  EXPECT_NE(failure(ebnf("root ::= \"a")), "");
  EXPECT_NE(failure(ebnf("start: a\na: start")).find("no text can satisfy"), std::string::npos);
  EXPECT_NE(failure(ebnf("rule: \"x\"")).find("start"), std::string::npos);
  EXPECT_NE(failure(ebnf("root ::= \"a\" )")), "");
  EXPECT_NE(failure(ebnf("")), "");
}

TEST(Notations, StructuralTags) {
  const GrammarSpec tag{Kind::structural_tag,
                        R"({"format":{"type":"triggered_tags","triggers":["<f="],"at_least_one":true,"tags":[
      {"begin":"<f=a>","content":{"type":"json_schema","json_schema":{"type":"integer"}},"end":"</f>"},
      {"begin":"<f=b>","content":{"type":"regex","pattern":"x+"},"end":"</f>"}]}})",
                        {}};
  EXPECT_EQ(takes(tag, "hi <f <f=a>12</f> and <f=b>xx</f>."), "yes");
  EXPECT_EQ(takes(tag, "hi"), "prefix");
  EXPECT_EQ(takes(tag, "<f=c"), "no");
  EXPECT_EQ(takes(tag, "<f=a>x"), "no");
  EXPECT_NE(failure({Kind::structural_tag, R"({"format":{"type":"qwen_xml"}})", {}}).find("qwen_xml"),
            std::string::npos);
  EXPECT_NE(failure({Kind::structural_tag, "{}", {}}), "");
}

TEST(Notations, StructuralTagsRefuseWhatTheyDoNotKnow) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"format": {"type": "any_text", "excludes": ["x"]}})", "excludes"},
      {R"({"format": {"type": "json_schema", "json_schema": {}, "style": "qwen_xml"}})", "style"},
      {R"({"format": {"type": "tag", "begin": "<a>", "content": {"type": "any_text", "excludes": ["x"]}, "end": "</a>"}})", "excludes"},
      {R"({"format": {"type": "tags_with_separator", "separator": ",", "at_least_one": "yes", "tags": [
          {"begin": "a", "content": {"type": "any_text"}, "end": "b"}]}})", "at_least_one"},
      {R"({"format": {"type": "triggered_tags", "triggers": ["a"], "stop_after": 1, "tags": [
          {"begin": "a", "content": {"type": "any_text"}, "end": "b"}]}})", "stop_after"},
      {R"({"format": {"type": "any_text"}, "formats": 1})", "formats"},
      {R"({"structures": [{"begin": "<a>", "schema": {}, "end": "</a>", "style": 1}], "triggers": ["<a>"]})", "style"}};
  for (const auto& [tag, name] : cases) EXPECT_NE(failure({Kind::structural_tag, tag, {}}).find(name), std::string::npos) << tag;
  for (const char* tag : {R"({"type": "structural_tag", "format": {"type": "any_text", "excludes": []}})",
                          R"({"format": {"type": "json_schema", "json_schema": {}, "style": "json"}})"}) {
    EXPECT_EQ(failure({Kind::structural_tag, tag, {}}), "") << tag;
  }
}

TEST(Limits, DepthIsBoundedWhileMatching) {
  const auto grammar = compile({Kind::json_object, "", {.any_whitespace = false}});
  GrammarMatcher matcher(grammar);
  ASSERT_TRUE(matcher.accept_bytes("{\"a\":"));
  int open = 0;
  while (open < 100'000 && matcher.accept_bytes("[")) ++open;
  EXPECT_GT(open, 100);
  EXPECT_LT(open, 600);
  EXPECT_TRUE(matcher.accept_bytes("]"));
}

// `count` different characters, from U+4E00 on.
std::string characters(int count) {
  std::string out;
  for (int i = 0; i < count; ++i) append_utf8(0x4E00 + static_cast<uint32_t>(i), &out);
  return out;
}

std::string repeated(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

// By the bounds on an automaton's table and on the steps to it: the first took 18 seconds, the second more than 8 GB.
TEST(Limits, AutomataOfManyCharactersAreRefused) {
  const auto pattern = [](const std::string& text) { return Json{{"type", "string"}, {"pattern", text}}; };
  Json names = {{"type", "object"}, {"properties", Json::object()}};
  for (int i = 0; i < 3000; ++i) {
    names["properties"][characters(20'000).substr(static_cast<size_t>(i) * 18, 60) + std::to_string(i)] = true;
  }
  const std::pair<const char*, Json> cases[] = {
      {"classes of characters", pattern("^" + characters(20'000))},
      {"classes of characters", names},
      {"steps", pattern("(?:" + characters(300) + "|.{3000})" + repeated("[^a][^b][^c]", 600))}};
  for (const auto& [bound, schema] : cases) {
    const std::string message = failure(compact_schema(schema.dump()));
    EXPECT_NE(message.find(bound), std::string::npos) << schema.dump().substr(0, 100) << ": " << message;
  }
}

// A request that ignores the end goes on with ends.
TEST(Matcher, BehindTheEndOnlyEndsFollow) {
  const auto grammar = compile({Kind::ebnf, "root ::= \"a\"", {}});
  const int32_t end = grammar->vocabulary().end_ids().front();
  GrammarMatcher matcher(grammar);
  MaskWords mask(mask_words(grammar->vocabulary().size()));
  ASSERT_TRUE(matcher.accept_bytes("a"));
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(matcher.accept_token(end));
    EXPECT_TRUE(matcher.ended());
    ASSERT_TRUE(matcher.fill_mask(mask));
  }
  EXPECT_FALSE(matcher.accept_bytes("a"));
  ASSERT_TRUE(matcher.rollback(2));
  EXPECT_TRUE(matcher.ended());
  ASSERT_TRUE(matcher.rollback(1));
  EXPECT_FALSE(matcher.ended());
  EXPECT_TRUE(matcher.can_end());
}

// Parses of one text side by side, more with each character: without a bound on the work a token took seconds, and all
// requests of the batch with it.
TEST(Limits, AmbiguousGrammarsFailInsteadOfStandingStill) {
  const std::shared_ptr<const CompiledGrammar> grammar =
      compile({Kind::ebnf, "root ::= s\ns ::= s s s | s s | [a-z ]*", {}});
  const auto fails_after = [&] {
    GrammarMatcher matcher(grammar);
    MaskWords mask(mask_words(grammar->vocabulary().size()));
    int tokens = 0;
    while (tokens < 5000 && matcher.accept_bytes(tokens % 5 == 0 ? " " : "a") && matcher.fill_mask(mask)) ++tokens;
    EXPECT_TRUE(matcher.failed());
    return tokens;
  };
  const int first = fails_after();
  EXPECT_GT(first, 5);
  EXPECT_LT(first, 5000);
  EXPECT_NEAR(fails_after(), first, first);  // what the first left behind does not hinder the second
}

// Each value is looked for in the list it stands in: 20,000 of them took a minute when they were compared one by one.
TEST(Limits, LongListsOfValuesCostWhatTheirTextDoes) {
  Json values = Json::array(), texts = Json::array();
  for (int i = 0; i < 20'000; ++i) {
    values.push_back(i);
    texts.push_back("t" + std::to_string(i));
  }
  EXPECT_EQ(failure(compact_schema(Json{{"enum", values}}.dump())), "");
  EXPECT_EQ(failure(compact_schema(Json{{"const", values}, {"uniqueItems", true}}.dump())), "");
  EXPECT_EQ(failure(compact_schema(Json{{"enum", texts}, {"not", Json{{"enum", Json::array({"t7"})}}}}.dump())), "");
  const GrammarSpec both = compact_schema(
      R"({"enum": [1, 10, "1", {"a": 1, "b": [2]}], "allOf": [{"enum": [1.0e1, 2, {"b": [2.0], "a": 1}]}]})");
  EXPECT_EQ(takes(both, "10"), "yes");
  EXPECT_EQ(takes(both, R"({"a":1,"b":[2]})"), "yes");
  EXPECT_NE(takes(both, R"("1")"), "yes");
}

// Wide sets, overlapping ones, equal ones, and none.
TEST(CharPartition, IsTheCoarsestThatTellsTheSetsApart) {
  std::vector<CharSet> sets = {CharSet::any(), CharSet::of('a', 'z'), CharSet::of('f', 'm'), CharSet::of('f', 'm'), {},
                               CharSet::of('x', 0x2000).complement(), CharSet::of(0xD000, 0xE001)};
  WorkBudget budget(1'000'000);
  const std::optional<CharPartition> out = partition_chars(sets, &budget);
  ASSERT_TRUE(out);
  CharSet all;
  std::set<std::vector<bool>> kinds;
  for (size_t atom = 0; atom < out->atoms.size(); ++atom) {
    EXPECT_TRUE(all.intersect(out->atoms[atom]).empty());
    all.add(out->atoms[atom]);
    std::vector<bool> inside;
    for (size_t set = 0; set < sets.size(); ++set) {
      inside.push_back(sets[set].contains(out->atoms[atom]));
      EXPECT_EQ(inside.back(), !sets[set].intersect(out->atoms[atom]).empty());
      const auto& own = out->atoms_of_set[set];
      EXPECT_EQ(inside.back(), std::find(own.begin(), own.end(), static_cast<int>(atom)) != own.end());
    }
    EXPECT_TRUE(kinds.insert(inside).second) << "two classes that no set tells apart";
  }
  EXPECT_EQ(all, CharSet::any());
  WorkBudget none(3);
  EXPECT_FALSE(partition_chars(sets, &none));
}

// Also what a grammar says of differing elements and of indentation.
TEST(Compiler, BehindReasoningAGrammarTakesTheSameTexts) {
  GrammarCompilerOptions options;
  options.make_vocabulary = [] { return small_vocabulary(); };
  GrammarCompiler compiler(options);
  const GrammarSpec specs[] = {
      {Kind::json_schema, R"({"type":"array","uniqueItems":true,"items":{"enum":[1,2,"a"]}})", {}}, {Kind::json_object, "", {}},
      {Kind::json_schema, R"({"type":"string","minLength":2,"maxLength":3})", {}}, {Kind::ebnf, "root ::= root \"a\" | \"b\"", {}},
      {Kind::regex, "(ab)*", {}}};
  const std::string texts[] = {"[1, 2]", "[1, 1]", R"(["a",1])", "{\n            \"a\": 1}", "{\n             \"a\": 1}", "{", "\"\"", "\"ab\"", "\"abcd\"",
                               "b", "baa", "ab", "abab", "aba", ""};
  for (const GrammarSpec& spec : specs) {
    const auto alone = compiler.compile(spec).value();
    const auto inside = compiler.behind_reasoning(alone, {.begin = "", .end = "</think>"}).value();
    const auto before = compiler.behind_reasoning(alone, {.begin = "<think>", .end = "</think>"}).value();
    EXPECT_EQ(compiler.behind_reasoning(alone, {.begin = "", .end = "</think>"}).value(), inside);
    EXPECT_NE(inside, before);
    for (const std::string& text : texts) {
      const std::string expected = takes(alone, text);
      EXPECT_EQ(takes(inside, "well </thin</think>\n\n" + text), expected) << spec.source << text;
      EXPECT_EQ(takes(before, "<think></think>" + text), expected) << spec.source << text;
      EXPECT_EQ(takes(before, text), expected) << spec.source << text;
      EXPECT_EQ(takes(inside, "</think" + text), "prefix") << "not at its end yet";
      EXPECT_EQ(takes(inside, "</think>\n\n\n" + text), "no") << spec.source << text;
    }
  }
}

TEST(Compiler, CachesByBytesAndCompilesOnce) {
  int vocabularies = 0;
  GrammarCompilerOptions options;
  options.make_vocabulary = [&] { return ++vocabularies, small_vocabulary(); };
  options.max_cache_bytes = 200 << 10;
  GrammarCompiler compiler(options);
  const auto first = compiler.compile(kSpecs[1]);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(*compiler.compile(kSpecs[1]), *first);
  EXPECT_EQ(compiler.stats().hits, 1u);
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(
        compiler
            .compile(compact_schema(R"({"type":"string","minLength":100,"maxLength":)" + std::to_string(200 + i) + "}"))
            .ok());
  }
  EXPECT_LE(compiler.stats().bytes, options.max_cache_bytes);
  EXPECT_LT(compiler.stats().entries, 200u);
  EXPECT_EQ(vocabularies, 1);
  EXPECT_FALSE(compiler.compile({Kind::regex, "(", {}}).ok());
}

}  // namespace
}  // namespace warpweave::grammar::testing
