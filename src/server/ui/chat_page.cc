#include "server/ui/chat_page.h"

namespace warpweave::server {

namespace {

constexpr std::string_view content_type(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  return "text/javascript; charset=utf-8";
}

template <size_t N>
PageFile page_file(std::string_view name, const unsigned char (&bytes)[N]) {
  return {name, content_type(name), {reinterpret_cast<const char*>(bytes), N}};
}

}  // namespace

std::span<const PageFile> chat_page_files() {
#include "page_files.inc"
  return kPageFiles;
}

}  // namespace warpweave::server
