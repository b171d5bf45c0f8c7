#include "base/json_parse.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warpweave {
namespace {

using Members = std::vector<std::pair<std::string, Json>>;

// The object of these members, the last of equal keys. Made in one go: the library's object copies
// all of its values whenever it grows, and looks each key up.
Json make_object(Members&& members) {
  std::map<std::string_view, size_t> last;
  for (size_t i = 0; i < members.size(); ++i) last[members[i].first] = i;
  Json::object_t object;
  object.reserve(last.size());
  for (size_t i = 0; i < members.size(); ++i) {
    if (last[members[i].first] != i) {
      dismantle(members[i].second);
    } else {
      object.emplace_back(members[i].first, std::move(members[i].second));
    }
  }
  return Json(std::move(object));
}

class DomBuilder final : public nlohmann::json_sax<Json> {
 public:
  explicit DomBuilder(const JsonLimits& limits) : limits_(limits) {}
  ~DomBuilder() override {
    dismantle(root_);
    for (Frame& frame : stack_) {
      for (Json& item : frame.items) dismantle(item);
      for (auto& [key, value] : frame.members) dismantle(value);
    }
  }

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

  bool start_object(size_t) override { return open(/*is_object=*/true); }
  bool start_array(size_t) override { return open(/*is_object=*/false); }
  bool end_array() override {
    Json list(std::move(stack_.back().items));
    stack_.pop_back();
    insert(std::move(list));
    return true;
  }
  bool end_object() override {
    Json object = make_object(std::move(stack_.back().members));
    stack_.pop_back();
    insert(std::move(object));
    return true;
  }

  bool key(std::string& name) override {
    Members& members = stack_.back().members;
    if (members.size() >= limits_.max_members) {
      return pass_limit(fmt::format("an object has more than {} members", limits_.max_members));
    }
    members.emplace_back(std::move(name), Json());
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

  void insert(Json&& value) {
    if (stack_.empty()) {
      root_ = std::move(value);
    } else if (stack_.back().is_object) {
      stack_.back().members.back().second = std::move(value);
    } else {
      stack_.back().items.push_back(std::move(value));
    }
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

  bool open(bool is_object) {
    if (stack_.size() >= limits_.max_depth) {
      return pass_limit(
          fmt::format("lists and objects are nested deeper than {}", limits_.max_depth));
    }
    if (!count_values(kJsonContainerValues)) return false;
    stack_.emplace_back().is_object = is_object;
    return true;
  }

  // A list or object that has begun.
  struct Frame {
    bool is_object = false;
    Json::array_t items;
    Members members;
  };

  const JsonLimits limits_;
  Json root_;
  std::vector<Frame> stack_;  // open containers, the innermost last
  size_t values_ = 0;
  Status status_;
};

}  // namespace

// As deep as the limits let values nest.
void dismantle(Json& value) noexcept {
  if (value.is_array()) {
    auto& items = value.get_ref<Json::array_t&>();
    for (Json& item : items) dismantle(item);
    items.clear();
  } else if (value.is_object()) {
    auto& members = value.get_ref<Json::object_t&>();
    for (auto& [key, item] : members) dismantle(item);
    members.clear();
  }
}

Result<Json> parse_json(std::string_view text, const JsonLimits& limits, size_t* used_values) {
  DomBuilder builder(limits);
  const bool whole = Json::sax_parse(text.begin(), text.end(), &builder);
  if (used_values != nullptr) *used_values = builder.used_values();
  if (!whole) return builder.status();
  return builder.take();
}

}  // namespace warpweave
