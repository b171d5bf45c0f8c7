// The chat page of the root URL, built into the program.
#pragma once

#include <string_view>

namespace warpweave::server {

// The whole page; text/html in UTF-8. It loads nothing else.
std::string_view chat_page_html();

}  // namespace warpweave::server
