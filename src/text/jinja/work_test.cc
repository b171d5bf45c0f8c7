// Whatever a template does is paid for: every operation on a large value takes units in proportion to what it
// looks at, and what once held a worker for minutes is refused. Units are counted, never time.
#include <gtest/gtest.h>

#include <ctime>
#include <set>

#include "text/chat_template.h"
#include "text/jinja/expression_parser.h"
#include "text/jinja/filters.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/json.h"
#include "text/jinja/methods.h"
#include "text/jinja/parser.h"

namespace warpweave::jinja {
namespace {

using nlohmann::ordered_json;

constexpr size_t kNoLimit = size_t{1} << 40;
constexpr size_t kBytes = size_t{1} << 18;
constexpr size_t kItems = 5000;

// Large values of every kind under short names.
const ordered_json& variables() {
  static const ordered_json values = [] {
    ordered_json numbers = ordered_json::array(), words = ordered_json::array(), object = ordered_json::object(),
                 pairs = ordered_json::array(), records = ordered_json::array();
    for (size_t i = 0; i < kItems; ++i) {
      numbers.push_back((i * 7919) % kItems);
      words.push_back("w" + std::to_string(i));
      object["k" + std::to_string(i)] = i;
      pairs.push_back({"k" + std::to_string(i), i});
      records.push_back({{"a", i % 100}, {"b", "x"}});
    }
    return ordered_json{{"s", std::string(kBytes, 'a')}, {"t", std::string(kBytes / 2, 'a') + "b"},
                        {"sp", std::string(kBytes, ' ')}, {"n", numbers}, {"w", words}, {"d", object},
                        {"p", pairs}, {"r", records}, {"q", numbers}, {"u", std::string(kBytes, 'a')}};
  }();
  return values;
}

// What `source` takes beyond taking over the variables.
size_t work_of(const std::string& source) {
  const auto work = [](const std::string& text) {
    const auto parsed = parse_template(text);
    Interpreter interpreter(*parsed, variables(), {kNoLimit, size_t{64} << 20}, std::tm{});
    try {
      (void)interpreter.run();
    } catch (const Error&) {  // "substring not found" costs as much
    }
    return interpreter.work();
  };
  static const size_t nothing = work("");
  return work(source) - nothing;
}

// An expression, and how many units it takes at least.
struct Priced {
  std::string expression;
  size_t least;
};

constexpr size_t kCopied = kBytes / kCopyBytes, kScanned = kBytes / kScanBytes, kLooked = kBytes / 2;

const std::vector<Priced>& priced_methods() {
  static const std::vector<Priced> all = {
      {"s.capitalize()", kLooked}, {"s.casefold()", kLooked}, {"s.center(2000000)", kScanned},
      {"s.count('b')", kScanned}, {"s.count(t)", kScanned}, {"s.endswith(s)", kScanned},
      {"s.endswith((t, s))", kScanned}, {"s.expandtabs()", 0}, {"s.find('b')", kScanned}, {"s.find(t)", kScanned},
      {"s.find('b', 1)", kScanned}, {"s.format()", kScanned}, {"s.index('b')", kScanned},
      {"s.isalnum()", kLooked}, {"s.isalpha()", kLooked}, {"s.isascii()", kScanned}, {"s.isdecimal()", kLooked},
      {"s.isdigit()", kLooked}, {"s.islower()", kLooked}, {"s.isnumeric()", kLooked}, {"sp.isspace()", kLooked},
      {"s.isupper()", kLooked}, {"''.join(s)", kBytes}, {"s.join(['a', 'b'])", kCopied}, {"s.ljust(2000000)", kScanned},
      {"s.lower()", kLooked}, {"sp.lstrip()", kScanned}, {"s.lstrip('a')", kLooked}, {"s.partition('b')", kScanned},
      {"s.removeprefix(s)", kScanned}, {"s.removesuffix(s)", kScanned}, {"s.replace('a', '')", kBytes},
      {"s.replace(t, '')", kScanned}, {"s.rfind('b')", kScanned}, {"s.rfind(t)", kScanned}, {"s.rindex('b')", kScanned},
      {"s.rjust(2000000)", kScanned}, {"s.rpartition('b')", kScanned}, {"s.rsplit('a')", kBytes},
      {"s.rsplit(t)", kScanned}, {"sp.rstrip()", kScanned}, {"s.split('a')", kBytes}, {"s.split(t)", kScanned},
      {"s.split()", kScanned}, {"s.splitlines()", kScanned}, {"s.startswith(s)", kScanned}, {"s.strip(s)", 2 * kLooked},
      {"sp.strip()", kScanned}, {"s.swapcase()", kLooked}, {"s.title()", kLooked}, {"s.upper()", kLooked},
      {"s.zfill(2000000)", kScanned}, {"n.copy()", 0}, {"n.count(-1)", kItems}, {"n.index(-1)", kItems},
      {"d.copy()", 0}, {"d.get(s)", kScanned}, {"d.items()", kItems}, {"d.keys()", kItems}, {"d.values()", kItems},
      {"1.5.is_integer()", 0},
  };
  return all;
}

const std::vector<Priced>& priced_filters() {
  static const std::vector<Priced> all = {
      {"1|abs", 0},
      {"d|attr('x')", 0},
      {"n|batch(2)", kItems},
      {"s|capitalize", kLooked},
      {"s|center(2000000)", kScanned},
      {"n|count", 0},
      {"s|count", kScanned},
      {"1|d", 0},
      {"1|default(2)", 0},
      {"d|dictsort", 9 * kItems},
      {"s|e", kScanned},
      {"s|escape", kScanned},
      {"s|forceescape", kScanned},
      {"n|first", 0},
      {"s|float", kScanned},
      {"s|format", kScanned},
      {"r|groupby('a')", 9 * kItems},
      {"s|indent(2)", kScanned},
      {"s|int", kScanned},
      {"d|items", kItems},
      {"n|join", kItems},
      {"s|join", kBytes},
      {"n|last", 0},
      {"n|length", 0},
      {"s|length", kScanned},
      {"n|list", kItems},
      {"s|list", kBytes},
      {"s|lower", kLooked},
      {"n|map('abs')", 3 * kItems},
      {"r|map(attribute='a')", 2 * kItems},
      {"n|max", kItems},
      {"n|min", kItems},
      {"n|reject", kItems},
      {"r|rejectattr('a')", 2 * kItems},
      {"s|replace('a', 'b')", kBytes},
      {"n|reverse", kItems},
      {"s|reverse", kBytes},
      {"1.5|round(300)", 20},
      {"1|safe", 0},
      {"n|select('odd')", 3 * kItems},
      {"r|selectattr('a')", 2 * kItems},
      {"n|slice(3)", kItems},
      {"n|sort", 9 * kItems},
      {"w|sort", 9 * kItems},
      {"n|string", kItems},
      {"n|sum", kItems},
      {"s|title", kLooked},
      {"n|tojson", kItems},
      {"s|tojson", kScanned},
      {"d|tojson(sort_keys=true)", 9 * kItems},
      {"sp|trim", kScanned},
      {"s|trim('a')", kLooked},
      {"s|truncate(200000)", kScanned},
      {"n|unique", 2 * kItems},
      {"n|map('string')|unique", 3 * kItems},
      {"s|upper", kLooked},
      {"s|wordcount", kLooked},
  };
  return all;
}

const std::vector<Priced>& priced_rest() {
  static const std::vector<Priced> all = {
      {"'b' in s", kScanned},
      {"t in s", kScanned},
      {"s in t", kScanned},
      {"s in w", kItems},
      {"-1 in n", kItems},
      {"[n, n, n] == [n, n, q]", kItems},
      {"n == q", kItems},
      {"n != q", kItems},
      {"s == u", kScanned},
      {"n < q", kItems},
      {"n >= q", kItems},
      {"s < u", kScanned},
      {"d == d", kItems},
      {"n in [q]", kItems},
      {"s[1:]", kScanned},
      {"s[:-1]", kScanned},
      {"s[::2]", kLooked},
      {"s[::-1]", kBytes},
      {"n[::-1]", kItems},
      {"s[5]", kScanned},
      {"s[-1]", kScanned},
      {"s + s", 2 * kCopied},
      {"n + n", 2 * kItems},
      {"s ~ s", 2 * kCopied},
      {"s * 3", 3 * kCopied},
      {"n * 3", 3 * kItems},
      {"'x' * 1000000", 1'000'000 / kCopyBytes},
      {"'%s' % n", kItems},
      {"'%r' % s", kLooked / 4},
      {"'%10000d' % 1", 5000},
      {"'{:>10000}'.format(1)", 5000},
      {"'{!r}'.format(n)", kItems},
      {"n ~ ''", kItems},
      {"range(9999)", 9999},
      {"dict(d)", kItems},
      {"dict(p)", 2 * kItems},
      {"dict(**d)", kItems},
      {"namespace(d)", kItems},
      {"cycler(s)", kCopied},
      {"joiner(', ')", 0},
      {"{s: 1}", kScanned},
      {"n is sameas(q)", kItems},
      {"n is eq(q)", kItems},
      {"s is lower", kLooked},
      {"s is upper", kLooked},
      {"'b' is in(s)", kScanned},
      {"n is string", 0},
      {"raise_exception(s)", kCopied},
      {"[1, 2] in [[1]] * 9999", 9999},
      {"strftime_now('%Y')", 100},
  };
  return all;
}

TEST(TemplateWork, EveryOperationIsPaidFor) {
  for (const auto* table : {&priced_methods(), &priced_filters(), &priced_rest()}) {
    for (const Priced& priced : *table) {
      EXPECT_GE(work_of("{% set x = " + priced.expression + " %}{{ x is defined }}"), priced.least)
          << priced.expression;
    }
  }
  EXPECT_GE(work_of("{{ s }}"), kCopied);
  EXPECT_GE(work_of("{{ n }}"), kItems);
  EXPECT_GE(work_of("{% for x in n %}{% endfor %}"), 4 * kItems);
  EXPECT_GE(work_of("{% for x in s %}{% endfor %}"), 4 * kBytes);
  EXPECT_GE(work_of("{% for x in n if loop is undefined %}{% endfor %}"), 4 * kItems);
  EXPECT_GE(work_of("{% for x in [1, 2] %}{{ loop.changed(n) }}{% endfor %}"), 2 * kItems);
  EXPECT_GE(work_of("{% set x %}{{ s }}{% endset %}"), 2 * kCopied);
  EXPECT_GE(work_of("{% macro m() %}{{ s }}{% endmacro %}{% set x = m() %}"), 2 * kCopied);
  EXPECT_GE(work_of("{% filter upper %}{{ s }}{% endfilter %}"), kLooked);
  EXPECT_GE(work_of("{% macro m() %}{{ kwargs }}{% endmacro %}{{ m(**d) }}"), kItems);
}

// A new filter or method has to be priced above.
TEST(TemplateWork, NoFilterOrMethodIsMissing) {
  const auto named = [](const std::vector<Priced>& table, const std::string& before, const std::string& name) {
    for (const Priced& priced : table) {
      const size_t at = priced.expression.find(before + name);
      const char next = at == std::string::npos
                            ? 'x'
                            : priced.expression[std::min(at + before.size() + name.size(), priced.expression.size())];
      if (at != std::string::npos && std::isalnum(static_cast<unsigned char>(next)) == 0 && next != '_') return true;
    }
    return false;
  };
  for (std::string_view name : filter_names()) EXPECT_TRUE(named(priced_filters(), "|", std::string(name))) << name;
  for (std::string_view name : method_names()) EXPECT_TRUE(named(priced_methods(), ".", std::string(name))) << name;
}

Status render(const std::string& source, const ordered_json& values = ordered_json::object()) {
  auto parsed = ChatTemplate::parse(source);
  if (!parsed.ok()) return parsed.status();
  return parsed->render(values).status();
}

void expect_too_much(const std::string& source, const ordered_json& values = ordered_json::object()) {
  const Status status = render(source, values);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument) << source.substr(0, 200);
  EXPECT_NE(status.message().find("units of work"), std::string::npos) << status.message();
}

// Each of these held a worker for seconds to minutes.
TEST(TemplateWork, WhatOnceEscapedTheBudgetIsRefused) {
  const std::string large(size_t{4} << 20, 'a'), half = large.substr(0, large.size() / 2) + "b";
  for (const char* expression : {"b in a", "a.find(b)", "a.rfind(b)", "a.count(b)", "a.split(b)", "a.replace(b, '')",
                                 "a.strip(b)", "a.rsplit(b)", "a|upper", "a == c", "a[::-1]", "a|tojson", "a|e"}) {
    expect_too_much(std::string("{% for i in range(1000) %}{% set x = ") + expression + " %}{% endfor %}",
                    {{"a", large}, {"b", half}, {"c", large}});
  }
  std::string many;
  for (int i = 0; i < 30'000; ++i) many += "{% set v" + std::to_string(i) + " = 1 %}";
  many += "{% for i in range(99999) %}{% for j in range(99) %}{{ v29999 }}{% endfor %}{% endfor %}";
  expect_too_much(many);
  expect_too_much("{% for i in range(999) %}{{ d == e }}{% endfor %}",
                  {{"d", variables()["d"]}, {"e", variables()["d"]}});
}

// Variables are found without walking over all of them: the same work for the first as for the last.
TEST(TemplateWork, ThousandsOfVariablesCostNoMoreEach) {
  const auto work = [](int count) {
    std::string source;
    for (int i = 0; i < count; ++i) source += "{% set v" + std::to_string(i) + "=1 %}";
    for (int i = 0; i < count; ++i) source += "{{v" + std::to_string(i) + "}}";
    return work_of(source);
  };
  EXPECT_LE(work(8000), 9 * work(1000));
  std::string names;
  for (int i = 0; i < 300; ++i) names += (i > 0 ? ", p" : "p") + std::to_string(i);
  const Status status = render("{% macro m(" + names + ") %}{% endmacro %}");
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("at most 255 parameters"), std::string::npos) << status.message();
  EXPECT_NE(render("{{ " + std::string(300, 'x') + " }}").message().find("a name has more than 256 bytes"),
            std::string::npos);
}

TEST(TemplateWork, KeysThatAreNoStringsArePaidForWhereverTheyAreLookedAt) {
  // Comparing such a mapping takes the square of its keys.
  std::string pairs = "{% set d = dict([";
  for (int i = 0; i < 1000; ++i) pairs += "(" + std::to_string(i) + ", 1),";
  pairs += "]) %}";
  const size_t building = work_of(pairs);
  EXPECT_GE(building, 1000u * 1000 / 2);
  EXPECT_GE(work_of(pairs + "{{ d == d }}") - building, 1000u * 1000 / 2);
}

TEST(TemplateWork, AConversationOfAMillionTokensFits) {
  ordered_json messages = ordered_json::array();
  std::string text;
  while (text.size() < 40'000) text += "Once upon a time there was a fox. ";
  for (int i = 0; i < 100; ++i) messages.push_back({{"role", i % 2 ? "assistant" : "user"}, {"content", text}});
  const auto parsed = ChatTemplate::parse(
      "{% for m in messages %}{% if '</think>' in m.content %}{{ m.content.split('</think>')[-1].lstrip('\\n') }}"
      "{% endif %}{{ '<|im_start|>' + m.role + '\\n' + (m.content | trim) + '<|im_end|>\\n' }}{% endfor %}");
  ASSERT_TRUE(parsed.ok());
  const auto rendered = parsed->render({{"messages", messages}});
  ASSERT_TRUE(rendered.ok()) << rendered.status().message();
  EXPECT_GT(rendered->size(), 4'000'000u);
}

}  // namespace
}  // namespace warpweave::jinja
