// Filters over lists and mappings.
#include <algorithm>
#include <array>
#include <numeric>

#include "text/jinja/expression_parser.h"
#include "text/jinja/filters.h"
#include "text/jinja/methods.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace warpweave::jinja {

namespace {

using Args = const CallArgs&;

int64_t length_of(Runtime& rt, const Value& v) {
  rt.charge();
  switch (v.kind()) {
    case Kind::undefined: return 0;
    case Kind::string:
      rt.charge_scan(v.string());
      return static_cast<int64_t>(length(v.string()));
    case Kind::list: return static_cast<int64_t>(v.list_items().size());
    case Kind::dict: return static_cast<int64_t>(v.dict().items().size());
    default: throw Error("object of type '" + v.type_name() + "' has no length");
  }
}

Value length_filter(Runtime& rt, const Value& v, Args args) {
  Bound b(args, "length", {});
  return Value(length_of(rt, v));
}

Value first_filter(Runtime& rt, const Value& v, Args args) {
  Bound b(args, "first", {});
  auto items = iterate(rt, v);
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}

Value last_filter(Runtime& rt, const Value& v, Args args) {
  Bound b(args, "last", {});
  auto items = iterate(rt, v);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value list_filter(Runtime& rt, const Value& v, Args args) {
  Bound b(args, "list", {});
  return Value::list(iterate(rt, v));
}

Value items_filter(Runtime& rt, const Value& v, Args args) {
  Bound b(args, "items", {});
  if (v.is(Kind::undefined)) return Value::list({});
  if (!v.is(Kind::dict)) throw Error("items needs a mapping, got '" + v.type_name() + "'");
  return dict_items(rt, v);
}

Value reverse_filter(Runtime& rt, const Value& v, Args args) {
  Bound b(args, "reverse", {});
  auto items = iterate(rt, v);
  std::reverse(items.begin(), items.end());
  if (!v.is(Kind::string)) return Value::list(std::move(items));
  std::string out;
  for (const Value& c : items) out += c.string();
  return rt.text(std::move(out));
}

// "a.b.0" of an item; an undefined step gives the default, if there is one.
Value lookup(Runtime& rt, Value item, const Value& path, const Value* otherwise) {
  auto step = [&](const Value& key) {
    item = get_item(rt, item, key);
    if (item.is(Kind::undefined) && otherwise != nullptr) item = *otherwise;
  };
  if (!path.is(Kind::string)) {
    step(path);
    return item;
  }
  std::string_view rest = path.string();
  while (true) {
    const size_t dot = rest.find('.');
    const std::string part(rest.substr(0, dot));
    rt.charge_scan(part);
    const bool digits = !part.empty() && part.size() < 10 &&
                        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    step(digits ? Value(int64_t{std::stoi(part)}) : Value(part));
    if (dot == std::string_view::npos) return item;
    rest.remove_prefix(dot + 1);
  }
}

Value join_filter(Runtime& rt, const Value& v, Args args) {
  Bound b(args, "join", {"d", "attribute"});
  const std::string separator = b.has(0) ? rt.str(b[0]) : "";
  std::string out;
  bool first = true;
  for (const Value& item : iterate(rt, v)) {
    const std::string part = rt.str(b.given(1) != nullptr ? lookup(rt, item, b[1], nullptr) : item);
    const size_t bytes = out.size() + part.size() + separator.size();
    rt.charge_bytes(bytes > rt.limits().max_string_bytes ? bytes : separator.size());
    if (!first) out += separator;
    out += part;
    first = false;
  }
  return rt.text(std::move(out));
}

CallArgs without_first(Args args, size_t count) {
  CallArgs rest = args;
  rest.positional.erase(rest.positional.begin(), rest.positional.begin() + static_cast<long>(count));
  return rest;
}

// jinja2's lazy filters look at a value's truth before they walk over it, so that none and 0 have no items.
std::vector<Value> items_if_any(Runtime& rt, const Value& v) {
  return v.truthy() ? iterate(rt, v) : std::vector<Value>{};
}

Value map_filter(Runtime& rt, const Value& v, Args args) {
  std::vector<Value> out;
  if (args.positional.empty()) {
    Bound b(args, "map", {"attribute", "default"}, 1);
    for (const Value& item : items_if_any(rt, v)) out.push_back(lookup(rt, item, b[0], b.given(1)));
    return Value::list(std::move(out));
  }
  const std::string name = rt.str(args.positional[0]);
  FilterFunction filter = find_filter(name);
  if (filter == nullptr) throw Error("there is no filter named '" + name + "'");
  const CallArgs rest = without_first(args, 1);
  for (const Value& item : items_if_any(rt, v)) {
    rt.charge(2);
    out.push_back(filter(rt, item, rest));
  }
  return Value::list(std::move(out));
}

// select, reject, selectattr, rejectattr.
template <bool keep, bool by_attribute>
Value select_filter(Runtime& rt, const Value& v, Args args) {
  const size_t skip = by_attribute ? 1 : 0;
  if (args.positional.size() < skip) throw Error("selectattr misses the name of the attribute");
  TestFunction test = nullptr;
  if (args.positional.size() > skip) {
    const std::string name = rt.str(args.positional[skip]);
    test = find_test(name);
    if (test == nullptr) throw Error("there is no test named '" + name + "'");
  }
  const CallArgs rest = test != nullptr ? without_first(args, skip + 1) : CallArgs{};
  std::vector<Value> out;
  for (const Value& item : items_if_any(rt, v)) {
    const Value subject = by_attribute ? lookup(rt, item, args.positional[0], nullptr) : item;
    rt.charge(test != nullptr ? 2 : 0);
    const bool passes = test != nullptr ? test(rt, subject, rest) : subject.truthy();
    if (passes == keep) out.push_back(item);
  }
  return Value::list(std::move(out));
}

Value fold_case(Runtime& rt, const Value& v, bool case_sensitive) {
  if (!v.is(Kind::string) || case_sensitive) return v;
  rt.charge(2);
  rt.charge_characters(v.string());
  return rt.text(lower(v.string()));
}

// The sort key of each item: the attribute (several joined by commas give a tuple), case folded.
std::vector<Value> keys_of(Runtime& rt, const std::vector<Value>& items, const Value* attribute,
                           bool case_sensitive, const Value* otherwise = nullptr) {
  std::vector<Value> keys;
  keys.reserve(items.size());
  const std::string_view path =
      attribute != nullptr && attribute->is(Kind::string) ? std::string_view(attribute->string()) : "";
  for (const Value& item : items) {
    if (attribute == nullptr) {
      keys.push_back(fold_case(rt, item, case_sensitive));
    } else if (path.find(',') == std::string_view::npos) {
      keys.push_back(fold_case(rt, lookup(rt, item, *attribute, otherwise), case_sensitive));
    } else {
      std::vector<Value> parts;
      for (std::string_view rest = path; ; rest.remove_prefix(rest.find(',') + 1)) {
        const Value part(std::string(rest.substr(0, rest.find(','))));
        parts.push_back(fold_case(rt, lookup(rt, item, part, otherwise), case_sensitive));
        if (rest.find(',') == std::string_view::npos) break;
      }
      keys.push_back(Value::tuple(std::move(parts)));
    }
  }
  return keys;
}

// Positions of the keys in ascending order, equal ones in their order.
std::vector<size_t> sorted_positions(Runtime& rt, const std::vector<Value>& keys, bool reverse) {
  rt.charge(keys.size());
  std::vector<size_t> order(keys.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    rt.charge_less(keys[a], keys[b]);
    return reverse ? less(keys[b], keys[a]) : less(keys[a], keys[b]);
  });
  return order;
}

Value sort_filter(Runtime& rt, const Value& v, Args args) {
  Bound b(args, "sort", {"reverse", "case_sensitive", "attribute"});
  const auto items = iterate(rt, v);
  const auto keys = keys_of(rt, items, b.given(2), b.truth(1, false));
  std::vector<Value> out;
  for (size_t i : sorted_positions(rt, keys, b.truth(0, false))) out.push_back(items[i]);
  return Value::list(std::move(out));
}

Value dictsort_filter(Runtime& rt, const Value& v, Args args) {
  Bound b(args, "dictsort", {"case_sensitive", "by", "reverse"});
  require_defined(v);
  if (!v.is(Kind::dict)) throw Error("dictsort needs a mapping, got '" + v.type_name() + "'");
  const std::string by = b.has(1) ? to_string(b[1]) : "key";
  if (by != "key" && by != "value") throw Error("dictsort sorts by 'key' or 'value'");
  const auto pairs = dict_items(rt, v);
  const Value column(int64_t{by == "value"});
  const auto keys = keys_of(rt, pairs.list_items(), &column, b.truth(0, false));
  std::vector<Value> out;
  for (size_t i : sorted_positions(rt, keys, b.truth(2, false))) out.push_back(pairs.list_items()[i]);
  return Value::list(std::move(out));
}

Value unique_filter(Runtime& rt, const Value& v, Args args) {
  Bound b(args, "unique", {"case_sensitive", "attribute"});
  const auto items = iterate(rt, v);
  const auto keys = keys_of(rt, items, b.given(1), b.truth(0, false));
  std::vector<Value> out;
  Dict seen;
  for (size_t i = 0; i < items.size(); ++i) {
    if (find_item(rt, seen, keys[i]) != nullptr) continue;
    set_item(rt, seen, keys[i], Value(None{}));
    out.push_back(items[i]);
  }
  return Value::list(std::move(out));
}

Value groupby_filter(Runtime& rt, const Value& v, Args args) {
  Bound b(args, "groupby", {"attribute", "default", "case_sensitive"}, 1);
  const auto items = iterate(rt, v);
  const auto keys = keys_of(rt, items, &b[0], b.truth(2, false), b.given(1));
  const auto order = sorted_positions(rt, keys, false);
  std::vector<Value> out;
  for (size_t begin = 0; begin < order.size();) {
    std::vector<Value> group;
    size_t end = begin;
    const auto same = [&](const Value& a, const Value& b) {
      rt.charge_equal(a, b);
      return equal(a, b);
    };
    for (; end < order.size() && same(keys[order[begin]], keys[order[end]]); ++end) {
      group.push_back(items[order[end]]);
    }
    const Value key = lookup(rt, group[0], b[0], b.given(1));
    out.push_back(Value::tuple({key, Value::list(std::move(group))}));
    begin = end;
  }
  return Value::list(std::move(out));
}

template <bool want_max>
Value extreme_filter(Runtime& rt, const Value& v, Args args) {
  Bound b(args, want_max ? "max" : "min", {"case_sensitive", "attribute"});
  const auto items = iterate(rt, v);
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  const auto keys = keys_of(rt, items, b.given(1), b.truth(0, false));
  size_t best = 0;
  for (size_t i = 1; i < items.size(); ++i) {
    rt.charge_less(keys[best], keys[i]);
    if (want_max ? less(keys[best], keys[i]) : less(keys[i], keys[best])) best = i;
  }
  return items[best];
}

Value sum_filter(Runtime& rt, const Value& v, Args args) {
  Bound b(args, "sum", {"attribute", "start"});
  Value total = b.has(1) ? b[1] : Value(int64_t{0});
  if (total.is(Kind::string)) throw Error("sum cannot add strings; use join");
  for (const Value& item : iterate(rt, v)) {
    total = arithmetic(rt, "+", total, b.given(0) != nullptr ? lookup(rt, item, b[0], nullptr) : item);
  }
  return total;
}

int64_t positive(const Bound& b, size_t i, std::string_view what) {
  const int64_t n = b.integer(i, 0);
  if (n < 1 || n > kMaxRange) {
    throw Error(std::string(what) + " needs a count from 1 to " + std::to_string(kMaxRange) +
                ", got " + std::to_string(n));
  }
  return n;
}

Value batch_filter(Runtime& rt, const Value& v, Args args) {
  Bound b(args, "batch", {"linecount", "fill_with"}, 1);
  const size_t size = static_cast<size_t>(positive(b, 0, "batch"));
  std::vector<Value> out;
  std::vector<Value> row;
  for (const Value& item : iterate(rt, v)) {
    if (row.size() == size) out.push_back(Value::list(std::exchange(row, {})));
    row.push_back(item);
  }
  if (!row.empty()) {
    rt.charge(size);
    while (b.given(1) != nullptr && row.size() < size) row.push_back(b[1]);
    out.push_back(Value::list(std::move(row)));
  }
  return Value::list(std::move(out));
}

Value slice_filter(Runtime& rt, const Value& v, Args args) {
  Bound b(args, "slice", {"slices", "fill_with"}, 1);
  const size_t slices = static_cast<size_t>(positive(b, 0, "slice"));
  const auto items = iterate(rt, v);
  rt.charge(slices);
  const size_t each = items.size() / slices;
  const size_t longer = items.size() % slices;
  std::vector<Value> out;
  size_t at = 0;
  for (size_t i = 0; i < slices; ++i) {
    const size_t take = each + (i < longer);
    std::vector<Value> part(items.begin() + static_cast<long>(at),
                            items.begin() + static_cast<long>(at + take));
    if (b.given(1) != nullptr && i >= longer) part.push_back(b[1]);
    out.push_back(Value::list(std::move(part)));
    at += take;
  }
  return Value::list(std::move(out));
}

struct Entry {
  std::string_view name;
  FilterFunction filter;
};

constexpr std::array kFilters = std::to_array<Entry>({
    {"batch", batch_filter},
    {"count", length_filter},
    {"dictsort", dictsort_filter},
    {"first", first_filter},
    {"groupby", groupby_filter},
    {"items", items_filter},
    {"join", join_filter},
    {"last", last_filter},
    {"length", length_filter},
    {"list", list_filter},
    {"map", map_filter},
    {"max", extreme_filter<true>},
    {"min", extreme_filter<false>},
    {"reject", select_filter<false, false>},
    {"rejectattr", select_filter<false, true>},
    {"reverse", reverse_filter},
    {"select", select_filter<true, false>},
    {"selectattr", select_filter<true, true>},
    {"slice", slice_filter},
    {"sort", sort_filter},
    {"sum", sum_filter},
    {"unique", unique_filter},
});

}  // namespace

std::vector<std::string_view> sequence_filter_names() {
  std::vector<std::string_view> names;
  for (const Entry& entry : kFilters) names.push_back(entry.name);
  return names;
}

FilterFunction find_sequence_filter(std::string_view name) {
  for (const Entry& entry : kFilters) {
    if (entry.name == name) return entry.filter;
  }
  return nullptr;
}

}  // namespace warpweave::jinja
