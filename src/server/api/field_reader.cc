#include "server/api/field_reader.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "base/log.h"
#include "flags/nearest_name.h"
#include "server/api/field_listener.h"

namespace warpweave::server {
namespace {

thread_local FieldListener* listener = nullptr;

std::string with_hint(std::string message, std::string_view hint) {
  if (!hint.empty()) message += fmt::format("; {}", hint);
  return message + ".";
}

std::string int_bounds(const IntRange& range) {
  return fmt::format("between {} and {}", range.min, range.max);
}

std::string number_bounds(const NumberRange& range) {
  if (range.above_min) return fmt::format("above {} and at most {}", range.min, range.max);
  return fmt::format("between {} and {}", range.min, range.max);
}

Status out_of_range(std::string_view field, const Json& value, std::string_view bounds,
                    std::string_view hint) {
  std::string message =
      fmt::format("{} is {}, but must be {}", field, describe_value(value), bounds);
  return Status::invalid_argument(with_hint(std::move(message), hint), std::string(field));
}

}  // namespace

FieldListener::FieldListener() { listener = this; }
FieldListener::~FieldListener() { listener = nullptr; }

std::string describe_value(const Json& value) {
  if (value.is_null()) return "null";
  if (value.is_string()) {
    return fmt::format("a string (\"{}\")", log_safe(value.get_ref<const std::string&>(), 40));
  }
  if (value.is_array()) return fmt::format("a list of {} items", value.size());
  if (value.is_object()) return "an object";
  return value.dump();
}

Status wrong_type(std::string_view field, std::string_view expected, const Json& value) {
  return Status::invalid_argument(
      fmt::format("{} is {}, but must be {}.", field, describe_value(value), expected),
      std::string(field));
}

Status read_bool(const Json& value, std::string_view field, bool* out) {
  if (!value.is_boolean()) return wrong_type(field, "true or false", value);
  *out = value.get<bool>();
  return {};
}

Status read_int(const Json& value, std::string_view field, const IntRange& range, int64_t* out) {
  int64_t number = 0;
  if (value.is_number_unsigned()) {
    const auto wide = value.get<uint64_t>();
    if (wide > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return out_of_range(field, value, int_bounds(range), range.hint);
    }
    number = static_cast<int64_t>(wide);
  } else if (value.is_number_integer()) {
    number = value.get<int64_t>();
  } else if (value.is_number_float()) {
    // Some clients write 16.0; beyond 2^53 a double no longer tells which integer was meant.
    const double real = value.get<double>();
    if (std::trunc(real) != real) return wrong_type(field, "an integer", value);
    if (std::abs(real) > 9007199254740992.0) {
      return out_of_range(field, value, int_bounds(range), range.hint);
    }
    number = static_cast<int64_t>(real);
  } else {
    return wrong_type(field, "an integer", value);
  }
  if (number < range.min || number > range.max) {
    return out_of_range(field, value, int_bounds(range), range.hint);
  }
  *out = number;
  return {};
}

Status read_number(const Json& value, std::string_view field, const NumberRange& range,
                   float* out) {
  if (!value.is_number()) return wrong_type(field, "a number", value);
  const double number = value.get<double>();
  const bool inside = number <= range.max &&
                      (range.above_min ? number > range.min : number >= range.min);
  if (!inside) return out_of_range(field, value, number_bounds(range), range.hint);
  // What is above 0 stays so as a float, and can be divided by.
  const auto smallest = static_cast<double>(std::numeric_limits<float>::min());
  *out = static_cast<float>(number > 0 ? std::max(number, smallest) : number);
  return {};
}

Status read_string(const Json& value, std::string_view field, size_t max_bytes, std::string* out) {
  if (!value.is_string()) return wrong_type(field, "a string", value);
  const auto& text = value.get_ref<const std::string&>();
  if (text.size() > max_bytes) {
    return Status::invalid_argument(
        fmt::format("{} has {} bytes, but at most {} are allowed.", field, text.size(), max_bytes),
        std::string(field));
  }
  *out = text;
  return {};
}

Status read_token_ids(const Json& value, std::string_view field, int vocab_size, size_t max_items,
                      std::vector<int32_t>* out) {
  if (!value.is_array()) return wrong_type(field, "a list of token ids", value);
  if (value.size() > max_items) {
    return Status::invalid_argument(
        fmt::format("{} has {} token ids, but at most {} are allowed.", field, value.size(),
                    max_items),
        std::string(field));
  }
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (const Json& item : value.get_ref<const Json::array_t&>()) {
    if (item.is_number_unsigned()) {  // the fast way: no message to prepare
      const auto id = item.get<uint64_t>();
      if (id < static_cast<uint64_t>(vocab_size)) {
        ids.push_back(static_cast<int32_t>(id));
        continue;
      }
    }
    int64_t id = 0;
    const std::string hint = fmt::format("Token ID {} is out of vocabulary", item.is_number() ? item.dump() : "");
    WW_RETURN_IF_ERROR(read_int(item, fmt::format("{}[{}]", field, ids.size()), {0, vocab_size - 1, hint}, &id));
    ids.push_back(static_cast<int32_t>(id));
  }
  *out = std::move(ids);
  return {};
}

const Json* FieldReader::find(std::string_view name) const {
  asked_.push_back(name);
  if (listener != nullptr) listener->paths.insert(path(name));
  if (!status_.ok()) return nullptr;
  for (const auto& [key, value] : object_.get_ref<const Json::object_t&>()) {
    if (key == name) return value.is_null() ? nullptr : &value;
  }
  return nullptr;
}

namespace {

// What other endpoints and servers call the field, of those that are known here.
std::string_view other_name(std::string_view name, const std::vector<std::string_view>& known) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {{"max_tokens", "max_new_tokens"},
                                                                      {"max_completion_tokens", "max_new_tokens"},
                                                                      {"max_output_tokens", "max_new_tokens"},
                                                                      {"max_new_tokens", "max_tokens"},
                                                                      {"num_predict", "max_tokens"},
                                                                      {"n_predict", "max_tokens"},
                                                                      {"repeat_penalty", "repetition_penalty"},
                                                                      {"stop_sequences", "stop"},
                                                                      {"text", "prompt"},
                                                                      {"content", "prompt"},
                                                                      {"prompt", "text"},
                                                                      {"prompt", "input"},
                                                                      {"input", "prompt"},
                                                                      {"messages", "prompt"},
                                                                      {"ids", "tokens"}};
  for (const auto& [theirs, ours] : kNames) {
    if (theirs == name && std::binary_search(known.begin(), known.end(), ours)) return ours;
  }
  return {};
}

}  // namespace

void FieldReader::refuse_unknown(std::span<const std::string_view> without_effect) {
  if (!status_.ok() || unknown_ == UnknownFields::ignored) return;
  std::vector<std::string_view> known = asked_;
  known.insert(known.end(), without_effect.begin(), without_effect.end());
  std::sort(known.begin(), known.end());
  for (const auto& [key, value] : object_.get_ref<const Json::object_t&>()) {
    if (value.is_null() || std::binary_search(known.begin(), known.end(), key)) continue;
    const std::string name = log_safe(key, 64);
    const std::string_view other = other_name(key, known), near = other.empty() ? nearest_name(name, known) : other;
    return fail(Status::invalid_argument(
        fmt::format("{} is no field of this request{}; correct it or leave it out (a server started "
                    "with --allow-unknown-fields ignores such fields).",
                    prefix_ + name,
                    near.empty() ? std::string() : fmt::format(" (did you mean {}?)", near)),
        prefix_ + name));
  }
}

void FieldReader::fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

bool FieldReader::finish(Status status) {
  if (status.ok()) return true;
  fail(std::move(status));
  return false;
}

bool FieldReader::get(std::string_view name, bool* out) {
  const Json* value = find(name);
  return value && finish(read_bool(*value, path(name), out));
}

bool FieldReader::get(std::string_view name, const IntRange& range, int64_t* out) {
  const Json* value = find(name);
  return value && finish(read_int(*value, path(name), range, out));
}

bool FieldReader::get(std::string_view name, const IntRange& range, int* out) {
  int64_t wide = 0;
  if (!get(name, range, &wide)) return false;
  *out = static_cast<int>(wide);
  return true;
}

bool FieldReader::get(std::string_view name, const NumberRange& range, float* out) {
  const Json* value = find(name);
  return value && finish(read_number(*value, path(name), range, out));
}

bool FieldReader::get(std::string_view name, const TextLimit& limit, std::string* out) {
  const Json* value = find(name);
  return value && finish(read_string(*value, path(name), limit.max_bytes, out));
}

bool FieldReader::get(std::string_view name, const TextLimit& limit,
                      std::vector<std::string>* out) {
  const Json* value = find(name);
  if (!value) return false;
  const std::string field = path(name);
  std::vector<std::string> texts;
  if (!value->is_array()) {
    if (!value->is_string()) {
      return finish(wrong_type(field, "a string or a list of strings", *value));
    }
    if (!finish(read_string(*value, field, limit.max_bytes, &texts.emplace_back()))) return false;
  } else if (value->size() > limit.max_items) {
    return finish(Status::invalid_argument(
        fmt::format("{} has {} items, but at most {} are allowed.", field, value->size(),
                    limit.max_items),
        field));
  } else {
    for (const Json& item : *value) {
      const std::string item_field = fmt::format("{}[{}]", field, texts.size());
      if (!finish(read_string(item, item_field, limit.max_bytes, &texts.emplace_back()))) {
        return false;
      }
    }
  }
  *out = std::move(texts);
  return true;
}

bool FieldReader::get_filled(std::string_view name, const TextLimit& limit, std::vector<std::string>* out) {
  std::vector<std::string> texts;
  if (!get(name, limit, &texts)) return false;
  const auto empty = std::ranges::find(texts, std::string());
  if (empty == texts.end()) {
    *out = std::move(texts);
    return true;
  }
  if (find(name)->is_string()) return false;
  const std::string field = fmt::format("{}[{}]", path(name), empty - texts.begin());
  return finish(Status::invalid_argument(field + " is an empty text, which has no effect; leave it out.", field));
}

bool FieldReader::get_token_ids(std::string_view name, int vocab_size, size_t max_items,
                                std::vector<int32_t>* out) {
  const Json* value = find(name);
  return value && finish(read_token_ids(*value, path(name), vocab_size, max_items, out));
}

}  // namespace warpweave::server
