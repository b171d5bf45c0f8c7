// The chat page of the root URL, built into the program.
#pragma once

#include <span>
#include <string_view>

namespace warpweave::server {

struct PageFile {
  std::string_view name;          // "index.html": what "/" answers; "main.js": what "/ui/main.js" answers
  std::string_view content_type;
  std::string_view bytes;         // UTF-8
};

// All files of the page; index.html is the first. They load each other and nothing else.
std::span<const PageFile> chat_page_files();

}  // namespace warpweave::server
