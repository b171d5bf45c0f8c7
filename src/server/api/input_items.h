// GET /v1/responses/ID/input_items: what a response was asked with, as a list in pages.
// Source: https://platform.openai.com/docs/api-reference/responses/input-items
#pragma once

#include <string>
#include <string_view>

#include "base/json_parse.h"
#include "warpweave/status.h"

namespace warpweave::server {

// The items of a request's `input` (checked: a text, or a list of items) with the members that a listed item has: an
// id, its type, and content in parts.
Json listed_input(const Json& input);

// The page of `items` (a JSON list) that the query asks for: `after` an id, `limit` of 1 to 100 items (20), `order` asc
// or desc (the last item first). Errors name the parameter.
Result<std::string> page_of_items(std::string_view items, std::string_view query);

}  // namespace warpweave::server
