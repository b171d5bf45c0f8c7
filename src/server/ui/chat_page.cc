#include "server/ui/chat_page.h"

namespace warpweave::server {

namespace {

constexpr unsigned char kPage[] = {
#include "chat_page_bytes.inc"
};

}  // namespace

std::string_view chat_page_html() { return {reinterpret_cast<const char*>(kPage), sizeof kPage}; }

}  // namespace warpweave::server
