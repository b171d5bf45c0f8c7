#include "base/json_parse.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warpweave {
namespace {

// Keeps the last of equal keys. Members are appended unchecked while parsing, because looking each
// one up in an ordered object would make a large object quadratic.
void drop_overwritten_members(Json::object_t& object) {
  const size_t count = object.size();
  auto* members = object.data();  // the object's own operator[] looks up keys
  std::map<std::string_view, size_t> last;
  for (size_t i = 0; i < count; ++i) last[members[i].first] = i;
  if (last.size() == count) return;
  Json::object_t kept;
  for (size_t i = 0; i < count; ++i) {
    if (last[members[i].first] == i) {
      kept.emplace_back(members[i].first, std::move(members[i].second));
    }
  }
  object = std::move(kept);
}

class DomBuilder final : public nlohmann::json_sax<Json> {
 public:
  explicit DomBuilder(const JsonLimits& limits) : limits_(limits) {}

  Json take() { return std::move(root_); }
  const Status& status() const { return status_; }

  size_t used_values() const { return values_; }

  bool null() override { return place(Json(), 1); }
  bool boolean(bool value) override { return place(Json(value), 1); }
  bool number_integer(int64_t value) override { return place(Json(value), 1); }
  bool number_unsigned(uint64_t value) override { return place(Json(value), 1); }
  bool number_float(double value, const std::string&) override { return place(Json(value), 1); }
  bool string(std::string& value) override {
    return place(Json(std::move(value)), kJsonStringValues);
  }
  bool binary(Json::binary_t&) override { return false; }  // does not exist in JSON

  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }
  bool end_object() override {
    drop_overwritten_members(stack_.back()->get_ref<Json::object_t&>());
    return close();
  }

  bool key(std::string& name) override {
    auto& object = stack_.back()->get_ref<Json::object_t&>();
    if (object.size() >= limits_.max_members) {
      return pass_limit(fmt::format("an object has more than {} members", limits_.max_members));
    }
    object.emplace_back(std::move(name), Json());
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    if (status_.ok()) {
      status_ = Status::invalid_argument(
          fmt::format("it is not valid JSON: {} at byte {}", reason(error.what()), position));
    }
    return false;
  }

 private:
  // The library's reason without its prefix and without "last read", which repeats raw input.
  static std::string reason(std::string_view what) {
    if (what.find("ill-formed UTF-8") != what.npos) return "text that is not UTF-8";
    if (what.find("number overflow") != what.npos) return "a number too large for a double";
    if (what.find("unexpected end of input") != what.npos) return "unexpected end";
    const size_t dash = what.rfind(" - ", what.find("; last read"));
    if (dash == what.npos) return "syntax error";
    const std::string_view rest = what.substr(dash + 3);
    return std::string(rest.substr(0, rest.find("; ")));
  }

  bool pass_limit(std::string which) {
    if (status_.ok()) status_ = Status::resource_exhausted(std::move(which));
    return false;
  }

  Json* insert(Json&& value) {
    if (stack_.empty()) return &(root_ = std::move(value));
    Json* parent = stack_.back();
    if (parent->is_array()) {
      auto& list = parent->get_ref<Json::array_t&>();
      list.push_back(std::move(value));
      return &list.back();
    }
    Json& slot = parent->get_ref<Json::object_t&>().back().second;
    slot = std::move(value);
    return &slot;
  }

  bool count_values(size_t count) {
    values_ += count;
    return values_ <= limits_.max_values ||
           pass_limit(fmt::format("it holds more values than {} (a text counts {}, a list or object {})",
                                  limits_.max_values, kJsonStringValues, kJsonContainerValues));
  }

  bool place(Json&& value, size_t count) {
    if (!count_values(count)) return false;
    insert(std::move(value));
    return true;
  }

  bool open(Json&& container) {
    if (stack_.size() >= limits_.max_depth) {
      return pass_limit(
          fmt::format("lists and objects are nested deeper than {}", limits_.max_depth));
    }
    if (!count_values(kJsonContainerValues)) return false;
    stack_.push_back(insert(std::move(container)));
    return true;
  }

  bool close() {
    stack_.pop_back();
    return true;
  }

  const JsonLimits limits_;
  Json root_;
  std::vector<Json*> stack_;  // open containers; stable, since only the innermost one grows
  size_t values_ = 0;
  Status status_;
};

}  // namespace

Result<Json> parse_json(std::string_view text, const JsonLimits& limits, size_t* used_values) {
  DomBuilder builder(limits);
  const bool whole = Json::sax_parse(text.begin(), text.end(), &builder);
  if (used_values != nullptr) *used_values = builder.used_values();
  if (!whole) return builder.status();
  return builder.take();
}

}  // namespace warpweave
