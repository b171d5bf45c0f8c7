#include "server/ui/chat_page.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

namespace warpweave::server {
namespace {

TEST(ChatPage, IsTheFileByteForByte) {
  std::ifstream in("src/server/ui/index.html", std::ios::binary);
  ASSERT_TRUE(in.good());
  const std::string file{std::istreambuf_iterator<char>(in), {}};
  EXPECT_EQ(chat_page_html(), file);
}

TEST(ChatPage, LoadsNothingFromElsewhereAndSetsNoMarkupFromText) {
  const std::string_view page = chat_page_html();
  for (const char* part : {"http://", "https://", "//cdn", "src=\"//", "@import", "innerHTML",
                           "outerHTML", "insertAdjacentHTML", "document.write", "eval("}) {
    EXPECT_EQ(page.find(part), std::string_view::npos) << part;
  }
  EXPECT_NE(page.find("Content-Security-Policy"), std::string_view::npos);
}

}  // namespace
}  // namespace warpweave::server
