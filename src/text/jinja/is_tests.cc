// The tests behind `is`.
#include <array>

#include "text/jinja/expression_parser.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace warpweave::jinja {

namespace {

using Args = const CallArgs&;

template <Kind kind>
bool kind_test(Runtime&, const Value& v, Args) {
  return v.is(kind);
}

bool defined_test(Runtime&, const Value& v, Args) { return !v.is(Kind::undefined); }
bool number_test(Runtime&, const Value& v, Args) { return v.is_number(); }
bool true_test(Runtime&, const Value& v, Args) { return v.is(Kind::boolean) && v.boolean(); }
bool false_test(Runtime&, const Value& v, Args) { return v.is(Kind::boolean) && !v.boolean(); }
bool callable_test(Runtime&, const Value& v, Args) {
  return v.is(Kind::object) && v.object()->callable();
}
// An undefined value counts: it iterates as empty.
bool sequence_test(Runtime&, const Value& v, Args) {
  return v.is(Kind::string) || v.is(Kind::list) || v.is(Kind::dict) || v.is(Kind::undefined);
}

bool even_test(Runtime&, const Value& v, Args) { return to_index(v, "even") % 2 == 0; }
bool odd_test(Runtime&, const Value& v, Args) { return to_index(v, "odd") % 2 != 0; }

bool divisible_test(Runtime& rt, const Value& v, Args args) {
  Bound b(args, "divisibleby", {"num"}, 1);
  return equal(arithmetic(rt, "%", v, b[0]), Value(int64_t{0}));
}

template <bool (*predicate)(std::string_view)>
bool case_test(Runtime& rt, const Value& v, Args) {
  const std::string text = rt.str(v);
  rt.charge_characters(text);
  return predicate(text);
}

constexpr char kEqual[] = "==";
constexpr char kUnequal[] = "!=";
constexpr char kLess[] = "<";
constexpr char kLessEqual[] = "<=";
constexpr char kGreater[] = ">";
constexpr char kGreaterEqual[] = ">=";
constexpr char kIn[] = "in";

template <const char* op>
bool compare_test(Runtime& rt, const Value& v, Args args) {
  Bound b(args, "the test", {"other"}, 1);
  return compare(rt, op, v, b[0]);
}

bool same_test(Runtime& rt, const Value& v, Args args) {
  Bound b(args, "sameas", {"other"}, 1);
  rt.charge_equal(v, b[0]);
  return v.kind() == b[0].kind() && equal(v, b[0]);
}

bool filter_test(Runtime& rt, const Value& v, Args) {
  return v.is(Kind::string) && find_filter(rt.str(v)) != nullptr;
}
bool test_test(Runtime& rt, const Value& v, Args) {
  return v.is(Kind::string) && find_test(rt.str(v)) != nullptr;
}
bool escaped_test(Runtime&, const Value&, Args) { return false; }

struct Entry {
  std::string_view name;
  TestFunction test;
};

constexpr std::array kTests = std::to_array<Entry>({
    {"!=", compare_test<kUnequal>},
    {"<", compare_test<kLess>},
    {"<=", compare_test<kLessEqual>},
    {"==", compare_test<kEqual>},
    {">", compare_test<kGreater>},
    {">=", compare_test<kGreaterEqual>},
    {"boolean", kind_test<Kind::boolean>},
    {"callable", callable_test},
    {"defined", defined_test},
    {"divisibleby", divisible_test},
    {"eq", compare_test<kEqual>},
    {"equalto", compare_test<kEqual>},
    {"escaped", escaped_test},
    {"even", even_test},
    {"false", false_test},
    {"filter", filter_test},
    {"float", kind_test<Kind::real>},
    {"ge", compare_test<kGreaterEqual>},
    {"greaterthan", compare_test<kGreater>},
    {"gt", compare_test<kGreater>},
    {"in", compare_test<kIn>},
    {"integer", kind_test<Kind::integer>},
    {"iterable", sequence_test},
    {"le", compare_test<kLessEqual>},
    {"lessthan", compare_test<kLess>},
    {"lower", case_test<is_lower>},
    {"lt", compare_test<kLess>},
    {"mapping", kind_test<Kind::dict>},
    {"ne", compare_test<kUnequal>},
    {"none", kind_test<Kind::none>},
    {"number", number_test},
    {"odd", odd_test},
    {"sameas", same_test},
    {"sequence", sequence_test},
    {"string", kind_test<Kind::string>},
    {"test", test_test},
    {"true", true_test},
    {"undefined", kind_test<Kind::undefined>},
    {"upper", case_test<is_upper>},
});

}  // namespace

TestFunction find_test(std::string_view name) {
  for (const Entry& entry : kTests) {
    if (entry.name == name) return entry.test;
  }
  return nullptr;
}

}  // namespace warpweave::jinja
