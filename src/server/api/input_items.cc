#include "server/api/input_items.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "server/api/api_state.h"
#include "server/api/chat_answer.h"

namespace warpweave::server {
namespace {

constexpr size_t kMaxPageItems = 100;
constexpr size_t kPageItems = 20;

struct Page {
  std::string after;
  size_t limit = kPageItems;
  bool last_first = true;
};

Status bad_parameter(std::string_view name, std::string_view value, std::string_view rule) {
  return Status::invalid_argument(fmt::format("{} is \"{}\", but must be {}.", name, value.substr(0, 60), rule),
                                  std::string(name));
}

Result<Page> read_page(std::string_view query) {
  Page page;
  while (!query.empty()) {
    const std::string_view parameter = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), parameter.size() + 1));
    if (parameter.empty()) continue;
    const std::string_view name = parameter.substr(0, parameter.find('='));
    const std::string_view value = parameter.substr(std::min(parameter.size(), name.size() + 1));
    if (name == "after") {
      page.after = value;
    } else if (name == "limit") {
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), page.limit);
      if (error != std::errc() || end != value.data() + value.size() || page.limit < 1 || page.limit > kMaxPageItems) {
        return bad_parameter(name, value, fmt::format("a number from 1 to {}", kMaxPageItems));
      }
    } else if (name == "order") {
      if (value != "asc" && value != "desc") return bad_parameter(name, value, "asc or desc");
      page.last_first = value == "desc";
    } else {
      return Status::invalid_argument(
          fmt::format("{} is not known here; after, limit and order are.", name.substr(0, 60)),
          std::string(name.substr(0, 60)));
    }
  }
  return page;
}

Json content_parts(const Json& content, std::string_view part_type) {
  if (!content.is_string()) return content;
  return Json::array({Json{{"type", part_type}, {"text", content}}});
}

// Null is as good as missing, as everywhere in a request.
Json listed_item(const Json& given) {
  Json item = Json::object();
  for (const auto& [name, value] : given.items()) {
    if (!value.is_null()) item[name] = value;
  }
  if (!item.contains("type")) item["type"] = "message";
  const std::string type = item["type"].get<std::string>();
  if (type == "message" && item.contains("content")) {
    const bool assistant = is_text(item["role"], "assistant");
    item["content"] = content_parts(item["content"], assistant ? "output_text" : "input_text");
  }
  if (!item.contains("status")) item["status"] = "completed";
  if (item.contains("id")) return item;
  const char* prefix = "msg_";
  if (type == "function_call") prefix = "fc_";
  if (type == "function_call_output") prefix = "fco_";
  if (type == "reasoning") prefix = "rs_";
  item["id"] = random_id(prefix);
  return item;
}

}  // namespace

Json listed_input(const Json& input) {
  if (input.is_string()) return Json::array({listed_item({{"role", "user"}, {"content", input}})});
  Json items = Json::array();
  for (const Json& item : input) items.push_back(listed_item(item));
  return items;
}

Result<std::string> page_of_items(std::string_view items, std::string_view query) {
  WW_ASSIGN_OR_RETURN(const Page page, read_page(query));
  WW_ASSIGN_OR_RETURN(Json list, parse_json(items));
  if (page.last_first) std::reverse(list.begin(), list.end());
  size_t begin = 0;
  if (!page.after.empty()) {
    const auto at =
        std::find_if(list.begin(), list.end(), [&](const Json& item) { return is_text(item["id"], page.after); });
    if (at == list.end()) return bad_parameter("after", page.after, "the id of an item of this response");
    begin = static_cast<size_t>(at - list.begin()) + 1;
  }
  const size_t end = std::min(list.size(), begin + page.limit);
  Json data = Json::array();
  for (size_t i = begin; i < end; ++i) data.push_back(list[i]);
  const Json answer = {{"object", "list"},
                       {"data", data},
                       {"first_id", data.empty() ? Json() : data.front()["id"]},
                       {"last_id", data.empty() ? Json() : data.back()["id"]},
                       {"has_more", end < list.size()}};
  return answer.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace warpweave::server
