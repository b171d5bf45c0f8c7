#include "text/jinja/json.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "text/jinja/unicode.h"

namespace warpweave::jinja {

namespace {

Value convert(Runtime& runtime, const nlohmann::ordered_json& json, int depth) {
  runtime.charge();
  if (depth > kMaxValueDepth) {
    throw Error("the JSON nests deeper than " + std::to_string(kMaxValueDepth) + " levels; flatten it");
  }
  switch (json.type()) {
    case nlohmann::json::value_t::boolean: return Value(json.get<bool>());
    case nlohmann::json::value_t::number_integer: return Value(json.get<int64_t>());
    case nlohmann::json::value_t::number_unsigned: {
      const uint64_t n = json.get<uint64_t>();
      return n <= INT64_MAX ? Value(static_cast<int64_t>(n)) : Value(static_cast<double>(n));
    }
    case nlohmann::json::value_t::number_float: return Value(json.get<double>());
    case nlohmann::json::value_t::string: return runtime.text(json.get_ref<const std::string&>());
    case nlohmann::json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(convert(runtime, item, depth + 1));
      return Value::list(std::move(items));
    }
    case nlohmann::json::value_t::object: {
      auto dict = std::make_shared<Dict>();
      for (const auto& [key, item] : json.get_ref<const nlohmann::ordered_json::object_t&>()) {
        set_item(runtime, *dict, runtime.text(key), convert(runtime, item, depth + 1));
      }
      return Value(std::shared_ptr<const Dict>(std::move(dict)));
    }
    default: return Value(None{});
  }
}

class Writer {
 public:
  Writer(Runtime& runtime, const JsonStyle& style) : runtime_(runtime), style_(style) {}

  void write(const Value& value, int depth) {
    pay();
    switch (value.kind()) {
      case Kind::none: out_ += "null"; break;
      case Kind::boolean: out_ += value.boolean() ? "true" : "false"; break;
      case Kind::integer: out_ += std::to_string(value.as_integer()); break;
      case Kind::real: write_real(value.real()); break;
      case Kind::string: write_string(value.string()); break;
      case Kind::list: write_list(value, depth); break;
      case Kind::dict: write_dict(value, depth); break;
      default:
        require_defined(value);
        throw Error("an object of type '" + value.type_name() + "' cannot be written as JSON");
    }
  }

  std::string take() { return std::move(out_); }

 private:
  // For what was written since the last time; escapes make text up to six times as long.
  void pay() {
    const size_t written = out_.size() - paid_;
    runtime_.charge_bytes(out_.size() > runtime_.limits().max_string_bytes ? out_.size() : written);
    runtime_.charge(1 + written / kScanBytes);
    paid_ = out_.size();
  }

  void write_real(double d) {
    out_ += std::isnan(d) ? "NaN" : std::isinf(d) ? (d < 0 ? "-Infinity" : "Infinity") : format_real(d);
  }

  void write_escape(char32_t unit) {
    char buffer[16];
    std::snprintf(buffer, sizeof buffer, "\\u%04x", static_cast<unsigned>(unit));
    out_ += buffer;
  }

  void write_string(const std::string& text) {
    static constexpr std::string_view kFrom = "\"\\\n\r\t\f\b";
    static constexpr std::string_view kTo = "\"\\nrtfb";
    out_ += '"';
    for (size_t at = 0; at < text.size();) {
      const CodePoint c = decode(text, at);
      size_t named = c.value < 0x80 ? kFrom.find(static_cast<char>(c.value)) : std::string_view::npos;
      if (named != std::string_view::npos) {
        out_ += '\\';
        out_ += kTo[named];
      } else if (c.value < 0x20 || (style_.ensure_ascii && c.value > 0x7E && c.value < 0x10000)) {
        write_escape(c.value);
      } else if (style_.ensure_ascii && c.value >= 0x10000) {
        write_escape(0xD800 + ((c.value - 0x10000) >> 10));
        write_escape(0xDC00 + ((c.value - 0x10000) & 0x3FF));
      } else {
        out_.append(text, at, c.bytes);
      }
      at += c.bytes;
      if (out_.size() - paid_ > kPaidAtOnce) pay();
    }
    out_ += '"';
  }

  void write_key(const Value& key) {
    if (key.is(Kind::list) || key.is(Kind::object) || key.is(Kind::undefined)) {
      throw Error("a mapping with a key of type '" + key.type_name() + "' cannot be written as JSON");
    }
    if (key.is(Kind::string)) {
      write_string(key.string());
    } else {
      out_ += '"';
      write(key, 0);
      out_ += '"';
    }
  }

  void new_line(int depth) {
    if (!style_.pretty) return;
    runtime_.charge_bytes(static_cast<size_t>(depth) + 1, style_.indent.size());
    runtime_.charge(1 + static_cast<size_t>(depth) / 4);
    out_ += '\n';
    for (int i = 0; i < depth; ++i) out_ += style_.indent;
  }

  void write_list(const Value& value, int depth) {
    out_ += '[';
    bool first = true;
    for (const Value& item : value.list_items()) {
      if (!first) out_ += style_.item_separator;
      first = false;
      new_line(depth + 1);
      write(item, depth + 1);
    }
    if (!first) new_line(depth);
    out_ += ']';
  }

  void write_dict(const Value& value, int depth) {
    auto items = value.dict().items();
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(), [&](const auto& a, const auto& b) {
        runtime_.charge_less(a.first, b.first);
        return less(a.first, b.first);
      });
    }
    out_ += '{';
    bool first = true;
    for (const auto& [key, item] : items) {
      if (!first) out_ += style_.item_separator;
      first = false;
      new_line(depth + 1);
      write_key(key);
      out_ += style_.key_separator;
      write(item, depth + 1);
    }
    if (!first) new_line(depth);
    out_ += '}';
  }

  Runtime& runtime_;
  const JsonStyle& style_;
  static constexpr size_t kPaidAtOnce = 4096;
  std::string out_;
  size_t paid_ = 0;
};

}  // namespace

Value from_json(Runtime& runtime, const nlohmann::ordered_json& json) { return convert(runtime, json, 0); }

Value to_json(Runtime& runtime, const Value& value, const JsonStyle& style) {
  Writer writer(runtime, style);
  writer.write(value, 0);
  return runtime.text(writer.take());
}

}  // namespace warpweave::jinja
