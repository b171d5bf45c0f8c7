// Room for a draft model's guesses, or guesses that earlier text says.
#include "spec/draft_room.h"

#include <gtest/gtest.h>

namespace warpweave {
namespace {

using Ids = std::vector<int32_t>;

Proposal propose(DraftRoom& room, const Ids& prompt, int max_tokens, int max_drafts) {
  Proposal out;
  room.propose({.input_ids = prompt, .output_ids = {}, .max_tokens = max_tokens, .max_drafts = max_drafts,
                .request = static_cast<uint64_t>(prompt.size())},
               out);
  return out;
}

Ids repeated(const Ids& piece, int times) {
  Ids out;
  for (int i = 0; i < times; ++i) out.insert(out.end(), piece.begin(), piece.end());
  return out;
}

const DraftOptions kChain = {.eagle = true, .num_steps = 3, .topk = 1, .num_draft_tokens = 4, .looks_up = true};

TEST(DraftRoom, IsOfZerosWhereNothingIsFound) {
  DraftRoom room(kChain);
  const Proposal out = propose(room, {5, 6, 7, 8, 9}, 5, 3);
  EXPECT_EQ(out.tokens, Ids({0, 0, 0}));
  EXPECT_FALSE(out.found);
  EXPECT_TRUE(out.is_chain());
}

TEST(DraftRoom, HoldsWhatTheTextSaidBefore) {
  DraftRoom room(kChain);
  const Proposal out = propose(room, repeated({11, 12, 13, 14, 15, 16, 17}, 6), 8, 3);
  EXPECT_TRUE(out.found);
  EXPECT_EQ(out.tokens, Ids({11, 12, 13, 14, 15})) << "as many as cost little";
  EXPECT_TRUE(out.is_chain());
}

// Where drafts do not pay, what is found still does.
TEST(DraftRoom, HoldsItWithoutRoomForDrafts) {
  DraftRoom room(kChain);
  EXPECT_EQ(propose(room, repeated({11, 12, 13, 14, 15, 16, 17}, 6), 2, 0).tokens, Ids({11, 12}));
  EXPECT_EQ(propose(room, {5, 6, 7, 8, 9}, 5, 0).size(), 0);
}

// While the draft model rests, what is found need not promise more than its guesses would.
TEST(DraftRoom, HoldsWhatIsLessLikelyWhereNothingIsDrafted) {
  DraftRoom room(kChain);
  const Ids prompt = {1, 2, 3, 1, 2, 4, 1, 2, 5, 1, 2, 6, 1, 2, 7, 1, 2};
  for (const bool only_found : {false, true}) {
    Proposal out;
    room.propose({.input_ids = prompt, .output_ids = {}, .max_tokens = 5, .only_found = only_found}, out);
    EXPECT_EQ(out.found, only_found);
    EXPECT_EQ(out.size() > 0, only_found);
  }
}

TEST(DraftRoom, FindsLessForRequestsInCompany) {
  DraftRoom room(kChain);
  const Ids prompt = repeated({11, 12, 13, 14, 15, 16, 17}, 6);
  for (const auto& [requests, wanted] : {std::pair(1, 5), {2, 2}, {3, 1}, {4, 0}, {40, 0}}) {
    Proposal out;
    room.propose({.input_ids = prompt, .output_ids = {}, .max_tokens = 8, .max_drafts = 0, .step_requests = requests,
                  .request = 1},
                 out);
    EXPECT_EQ(out.size(), wanted) << requests;
  }
}

TEST(DraftRoom, DoesNotLookWhereItShouldNot) {
  DraftOptions options = kChain;
  options.looks_up = false;
  DraftRoom room(options);
  EXPECT_EQ(propose(room, repeated({11, 12, 13}, 10), 8, 3).tokens, Ids({0, 0, 0}));
}

TEST(DraftRoom, IsAStarForATree) {
  DraftRoom room({.eagle = true, .num_steps = 3, .topk = 2, .num_draft_tokens = 6});
  EXPECT_EQ(propose(room, {5, 6, 7}, 5, 5).parents, std::vector<int>({0, 0, 0, 0, 0}));
  EXPECT_TRUE(propose(room, {5, 6, 7}, 2, 2).is_chain());
}

}  // namespace
}  // namespace warpweave
