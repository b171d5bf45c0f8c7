// Token maps in each form, and what is refused. The archives are what torch 2.5 writes of [1, 5, 300, 70000] as a list,
// and of torch.tensor([5, 1, 700]) (tests/golden/token_map); view.pt is tensor([90, 5, 1, 700, 91, 92])[1:4],
// strided.pt tensor([9, 5, 8, 1, 7, 700])[1::2], both written by torch 2.15 with the whole storage behind them.
#include "spec/token_map.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

namespace warpweave {
namespace {

std::string file(const std::string& name) {
  std::ifstream in("tests/golden/token_map/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<int32_t> parsed(std::string_view bytes, int vocab_size = 100000) {
  const auto map = parse_token_map(bytes, vocab_size);
  EXPECT_TRUE(map.ok()) << map.status().message();
  return map.ok() ? *map : std::vector<int32_t>();
}

std::string refusal(std::string_view bytes, int vocab_size = 100) {
  const auto map = parse_token_map(bytes, vocab_size);
  EXPECT_FALSE(map.ok());
  return map.ok() ? "" : map.status().message();
}

using Ids = std::vector<int32_t>;

TEST(TokenMap, IsReadInEachForm) {
  EXPECT_EQ(parsed("[7, 3, 5]"), (Ids{3, 5, 7}));
  EXPECT_EQ(parsed(file("list.pt")), (Ids{1, 5, 300, 70000}));
  EXPECT_EQ(parsed(file("tensor.pt")), (Ids{1, 5, 700}));
  EXPECT_EQ(parsed(file("int32.pt")), (Ids{1, 5, 700}));
  EXPECT_EQ(parsed(file("protocol4.pt")), (Ids{1, 5, 700}));
}

TEST(TokenMap, OfAViewOnlyItsOwnNumbersAreRead) {
  EXPECT_EQ(parsed(file("view.pt")), (Ids{1, 5, 700}));
  EXPECT_EQ(parsed(file("strided.pt")), (Ids{1, 5, 700}));
}

// The same archive with another number in its pickle: K 1 (the offset), K 3 (the size), K 1 (the stride).
TEST(TokenMap, AViewThatReachesOutOfItsStorageIsRefused) {
  const std::string whole = file("view.pt");
  const size_t at = whole.find("QK\x01K\x03\x85");
  ASSERT_NE(at, std::string::npos);
  for (const size_t byte : {at + 2, at + 4, at + 9}) {
    std::string changed = whole;
    changed[byte] = '\x06';
    EXPECT_NE(refusal(changed, 100000).find("reaches out"), std::string::npos) << byte - at;
  }
}

TEST(TokenMap, RefusesWhatIsNoMap) {
  EXPECT_NE(refusal("").find("neither a JSON list"), std::string::npos);
  EXPECT_NE(refusal("{}").find("no list"), std::string::npos);
  EXPECT_NE(refusal("[]").find("no token"), std::string::npos);
  EXPECT_NE(refusal("[1, 2.5]").find("no whole number"), std::string::npos);
  EXPECT_NE(refusal("[1, 100]").find("0 to 99"), std::string::npos);
  EXPECT_NE(refusal("[-1]").find("token -1"), std::string::npos);
  EXPECT_NE(refusal("[4, 9, 4]").find("token 4 twice"), std::string::npos);
  EXPECT_NE(refusal(file("floats.pt")).find("torch.int64"), std::string::npos);
  EXPECT_NE(refusal(file("matrix.pt")).find("one dimension"), std::string::npos);
  EXPECT_NE(refusal(file("dict.pt")).find("neither a list"), std::string::npos);
}

TEST(TokenMap, ACutArchiveIsRefused) {
  const std::string whole = file("list.pt");
  ASSERT_FALSE(whole.empty());
  for (size_t size = 4; size < whole.size(); ++size) {
    const auto map = parse_token_map(std::string_view(whole).substr(0, size), 100000);
    EXPECT_FALSE(map.ok()) << size;
  }
}

}  // namespace
}  // namespace warpweave
