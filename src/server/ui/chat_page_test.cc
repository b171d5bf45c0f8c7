#include "server/ui/chat_page.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

namespace warpweave::server {
namespace {

const std::filesystem::path kFolder = "src/server/ui";

TEST(ChatPage, IsTheFolderByteForByte) {
  std::set<std::string> embedded;
  for (const PageFile& file : chat_page_files()) {
    embedded.insert(std::string(file.name));
    std::ifstream in(kFolder / file.name, std::ios::binary);
    ASSERT_TRUE(in.good()) << file.name;
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    EXPECT_EQ(file.bytes, bytes) << file.name;
  }
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    const std::string extension = entry.path().extension();
    if (extension != ".js" && extension != ".css" && extension != ".html") continue;
    EXPECT_TRUE(embedded.contains(entry.path().filename())) << entry.path() << " is not in PAGE_FILES";
  }
  EXPECT_EQ(chat_page_files()[0].name, "index.html");
}

TEST(ChatPage, LoadsNothingFromElsewhereAndSetsNoMarkupFromText) {
  for (const PageFile& file : chat_page_files()) {
    for (const char* part : {"//cdn", "src=\"//", "@import", "url(", "innerHTML", "outerHTML", "insertAdjacentHTML",
                             "document.write", "eval(", "new Function", "createContextualFragment", "DOMParser",
                             "setHTML", "srcdoc", "createElement(\"img\")", "createElement(\"script\")"}) {
      EXPECT_EQ(file.bytes.find(part), std::string_view::npos) << file.name << ": " << part;
    }
  }
}

TEST(ChatPage, AllowsItsOwnScriptsAndStylesOnly) {
  const std::string_view page = chat_page_files()[0].bytes;
  EXPECT_NE(page.find("default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'"),
            std::string_view::npos);
  EXPECT_EQ(page.find("unsafe-inline"), std::string_view::npos);
}

}  // namespace
}  // namespace warpweave::server
