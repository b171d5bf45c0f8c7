// Steps that all readers of tokenizer.json's parts take. Private to this folder.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "text/tokenizer_spec.h"
#include "warpweave/status.h"

namespace warpweave::tokenizer_json {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

inline constexpr int kMaxDepth = 16;  // of sequences in sequences

inline Status broken(const std::string& what, std::string field) {
  return Status::data_loss(what, std::move(field));
}

inline std::string type_of(const object& node) {
  std::string_view type;
  if (node["type"].get(type) != simdjson::SUCCESS) return {};
  return std::string(type);
}

inline std::optional<std::string> get_string(const object& node, std::string_view key) {
  std::string_view value;
  if (node[key].get(value) != simdjson::SUCCESS) return std::nullopt;
  return std::string(value);
}

// Calls read(child) for every element of the array `key`.
template <typename F>
Status for_each(const object& node, std::string_view key, F&& read) {
  array items;
  if (node[key].get(items) != simdjson::SUCCESS) {
    return broken("needs an array \"" + std::string(key) + "\"", std::string(key));
  }
  for (element item : items) {
    object child;
    if (item.get(child) != simdjson::SUCCESS) {
      return broken("\"" + std::string(key) + "\" must hold objects", std::string(key));
    }
    WW_RETURN_IF_ERROR(read(child));
  }
  return {};
}

inline Status unknown_type(std::string_view part, const std::string& type) {
  return Status::unsupported(std::string(part) + " of type \"" + type.substr(0, 60) +
                                 "\" is not known here",
                             std::string(part));
}

inline Status get_id(const element& value, int32_t* id) {
  uint64_t number = 0;
  if (value.get(number) != simdjson::SUCCESS || number > static_cast<uint64_t>(kMaxTokenId)) {
    return broken("a token id must be an integer in 0.." + std::to_string(kMaxTokenId), "id");
  }
  *id = static_cast<int32_t>(number);
  return {};
}

// The post-processor: what it puts around a text, and how it joins two.
Status read_post_processor(const object& node, int depth, TokenizerSpec* spec);

}  // namespace warpweave::tokenizer_json
