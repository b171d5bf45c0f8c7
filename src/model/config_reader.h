// Checked reading of one JSON object of a model's configuration: each getter names the key, the
// value and the rule when it refuses. The first error sticks; read on and ask status() once.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "warpweave/status.h"

namespace warpweave {

class ConfigReader {
 public:
  ConfigReader(const nlohmann::json& object, std::string file) : object_(object), file_(std::move(file)) {}

  const Status& status() const { return status_; }
  bool has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }
  const nlohmann::json* find(const char* key) const { return has(key) ? &object_[key] : nullptr; }
  bool is_null(const char* key) const { return object_.contains(key) && object_[key].is_null(); }
  void fail(Status status) {  // of a section read by another reader
    if (status_.ok()) status_ = std::move(status);
  }
  void fail(const std::string& key, const std::string& rule) {
    if (status_.ok()) status_ = Status::invalid_argument(file_ + ": " + key + " " + rule, key);
  }

  int integer(const char* key, int fallback, int min, int max) {
    const nlohmann::json* value = find(key);
    if (value == nullptr) return fallback;
    if (value->is_number_integer() || value->is_number_unsigned()) {
      const double wide = value->get<double>();
      if (wide >= min && wide <= max) return static_cast<int>(wide);
    }
    fail(key, "must be an integer from " + std::to_string(min) + " to " + std::to_string(max) +
                  ", got " + shown(*value));
    return fallback;
  }

  int required_integer(const char* key, int min, int max) {
    if (!has(key)) fail(key, "is missing");
    return integer(key, min, min, max);
  }

  double number(const char* key, double fallback, NumberRange range) {
    return number(key, fallback, range.min, range.max);
  }

  double number(const char* key, double fallback, double min, double max) {
    const nlohmann::json* value = find(key);
    if (value == nullptr) return fallback;
    if (value->is_number()) {
      const double got = value->get<double>();
      if (got >= min && got <= max) return got;
    }
    fail(key, fmt::format("must be a number from {:g} to {:g}, got {}", min, max, shown(*value)));
    return fallback;
  }

  bool boolean(const char* key, bool fallback) {
    const nlohmann::json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) fail(key, "must be true or false, got " + shown(*value));
    return value->is_boolean() ? value->get<bool>() : fallback;
  }

  std::string text(const char* key, std::string fallback) {
    const nlohmann::json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_string()) fail(key, "must be a string, got " + shown(*value));
    return value->is_string() ? value->get<std::string>() : fallback;
  }

  // One id or a list of ids.
  std::vector<int32_t> token_ids(const char* key) {
    std::vector<int32_t> out;
    const nlohmann::json* value = find(key);
    if (value == nullptr) return out;
    const nlohmann::json list = value->is_array() ? *value : nlohmann::json::array({*value});
    for (const nlohmann::json& item : list) {
      if (!item.is_number_integer() || item.get<double>() < 0 || item.get<double>() > 2147483647.0 ||
          out.size() >= 4096) {
        fail(key, "must be a token id or a list of token ids, got " + shown(*value));
        return {};
      }
      out.push_back(item.get<int32_t>());
    }
    return out;
  }

 private:
  static std::string shown(const nlohmann::json& value) {
    std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    return text.size() > 60 ? text.substr(0, 60) + "..." : text;
  }

  const nlohmann::json& object_;
  std::string file_;
  Status status_;
};

}  // namespace warpweave
