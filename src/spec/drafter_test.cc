// What a drafter asks of a draft model, whatever device runs it: a model that writes down its passes stands in for one.
#include "spec/drafter.h"

#include <gtest/gtest.h>

#include <numeric>

namespace warpweave {
namespace {

constexpr int kPageSize = 4, kPagesOfRequest = 64;

// Chooses 100, 101, 102, ... in the order of its logits rows, `topk` apart.
class Recorder : public DraftModel {
 public:
  explicit Recorder(int max_rows = 1000, bool sees_from_any_page = false)
      : max_rows_(max_rows), sees_from_any_page_(sees_from_any_page) {}
  int page_size() const override { return kPageSize; }
  int max_rows() const override { return max_rows_; }
  bool sees_from_any_page() const override { return sees_from_any_page_; }
  size_t weight_bytes() const override { return 0; }
  size_t cache_bytes() const override { return 0; }
  Status copy_pages(std::span<const PageCopy>) override { return {}; }
  Status run(const DraftPass& pass, const BatchBuilder&) override {
    if (fails) return Status::internal("told to fail");
    passes.push_back(pass);
    choose(pass.logits_rows.size(), pass.topk);
    return {};
  }
  Result<bool> run_trees(const TreeDraft& asked, const BatchBuilder&) override {
    if (!grows_trees) return false;
    trees = asked;
    choose(static_cast<size_t>(asked.passes) * asked.num_requests() * asked.topk, asked.topk);
    return true;
  }
  Status run_chain(std::span<const DraftPass> chain, const BatchBuilder& step) override {
    chains.push_back(static_cast<int>(chain.size()));
    return DraftModel::run_chain(chain, step);
  }
  Result<std::span<const DraftChoice>> take_choices() override {
    ++takes;
    taken_ = std::exchange(waiting_, {});
    return std::span<const DraftChoice>(taken_);
  }

  void forget_choices() override { waiting_.clear(); }
  Result<bool> run_chain_ahead(std::span<const DraftPass> chain, const BatchBuilder&) override {
    if (!drafts_ahead) return false;
    ahead.assign(chain.begin(), chain.end());
    return true;
  }

  std::vector<DraftPass> passes;
  std::vector<int> chains;  // passes of each
  bool drafts_ahead = false;
  std::vector<DraftPass> ahead;  // asked for last
  int takes = 0;
  bool fails = false;
  bool grows_trees = false;
  TreeDraft trees;  // asked for last

 private:
  void choose(size_t rows, int topk) {
    for (size_t i = 0; i < rows * topk; ++i) {
      waiting_.push_back({next_token_++, -0.1f * static_cast<float>(i % topk + 1)});
    }
  }
  const int max_rows_;
  const bool sees_from_any_page_;
  int32_t next_token_ = 100;
  std::vector<DraftChoice> waiting_, taken_;
};

// Requests of 10 tokens each that decode: row i has request i's last token.
class Requests {
 public:
  Requests(int count, const DraftOptions& options, int num_slots, int max_rows = 1000, bool sees_from_any_page = false)
      : states(count), prompts_(count), pages_(count) {
    auto model = std::make_unique<Recorder>(max_rows, sees_from_any_page);
    recorder = model.get();
    drafter = std::make_unique<Drafter>(std::move(model), options, num_slots, /*cache_group=*/0);
    for (int i = 0; i < count; ++i) {
      prompts_[i].assign(10, i);
      states[i].kv_len = options.eagle ? 9 : 0;  // EAGLE was shown the prompts
      pages_[i].resize(kPagesOfRequest);
      std::iota(pages_[i].begin(), pages_[i].end(), 1 + i * kPagesOfRequest);
    }
  }

  // Shows that the last token of these was followed by token 7.
  void observe(const std::vector<int>& requests) {
    const std::vector<DraftRow> rows = prepare(requests, 0);
    const int32_t next = 7;
    std::vector<ObservedRow> observed(requests.size());
    for (ObservedRow& row : observed) row.sampled = {&next, 1};
    ASSERT_TRUE(drafter->observe(builder_, rows, observed).ok());
  }

  std::vector<Proposal> draft(const std::vector<int>& requests, int nodes, bool tree = false) {
    const std::vector<DraftRow> rows = prepare(requests, nodes);
    std::vector<Proposal> out(requests.size());
    for (Proposal& proposal : out) {
      proposal.tokens.assign(nodes, 0);
      if (tree) proposal.parents.assign(nodes, 0);
    }
    drafted = drafter->draft(builder_, rows, out);
    return out;
  }

  bool draft_ahead(const std::vector<int>& requests, int nodes) {
    const std::vector<DraftRow> rows = prepare(requests, nodes);
    std::vector<Proposal> room(requests.size());
    for (Proposal& proposal : room) proposal.tokens.assign(nodes, 0);
    const Result<bool> drafted = drafter->draft_ahead(builder_, rows, room);
    return drafted.ok() && *drafted;
  }

  // The device shows that these were followed by `tokens`; where it keeps their hidden states.
  std::vector<int32_t> observe_ahead(const std::vector<int>& requests, const std::vector<int32_t>& tokens) {
    const std::vector<DraftRow> rows = prepare(requests, 0);
    const std::span<const int32_t> keep = drafter->observe_ahead(rows);
    std::vector<ObservedRow> observed(requests.size());
    for (ObservedRow& row : observed) row.sampled = tokens;
    if (!keep.empty()) Drafter::observed_ahead(rows, observed);
    return {keep.begin(), keep.end()};
  }

  std::vector<DraftState> states;
  std::unique_ptr<Drafter> drafter;
  Recorder* recorder = nullptr;
  Status drafted;

 private:
  std::vector<DraftRow> prepare(const std::vector<int>& requests, int proposals) {
    step_ = {};
    std::vector<DraftRow> rows;
    for (const int i : requests) {
      StepRow& row = step_.rows.emplace_back();
      row.id = i + 1;
      row.start = 9;
      row.num_tokens = row.num_logits = 1;
      row.max_proposals = proposals;
      row.sample_slot = static_cast<int>(rows.size());
      row.input_ids = &prompts_[i].back();
      row.pages = pages_[i].data();
      row.num_pages = kPagesOfRequest;
      row.pages_version = 1;
      rows.push_back(
          {.state = &states[i], .start = 9, .num_tokens = 1, .prefill = false, .prompt = prompts_[i], .output = {}});
    }
    step_.num_tokens = step_.num_samples = static_cast<int>(requests.size());
    builder_.build(step_);
    return rows;
  }

  Step step_;
  BatchBuilder builder_{BatchCache{kPageSize, 1, -1}};
  std::vector<std::vector<int32_t>> prompts_, pages_;
};

constexpr DraftOptions kEagleChain = {.eagle = true, .num_steps = 4, .topk = 1, .num_draft_tokens = 5};
constexpr DraftOptions kStandaloneChain = {.eagle = false, .num_steps = 4, .topk = 1, .num_draft_tokens = 5};

TEST(Drafter, TakesAChainsChoicesOnce) {
  Requests requests(2, kStandaloneChain, 0);
  const std::vector<Proposal> drafts = requests.draft({0, 1}, 4);
  EXPECT_EQ(drafts[0].tokens, (std::vector<int32_t>{100, 102, 104, 106}));
  EXPECT_EQ(drafts[1].tokens, (std::vector<int32_t>{101, 103, 105, 107}));
  EXPECT_TRUE(drafts[0].is_chain());
  ASSERT_EQ(requests.recorder->passes.size(), 4u);
  EXPECT_EQ(requests.recorder->takes, 1);
  EXPECT_EQ(requests.recorder->chains, std::vector<int>{3}) << "behind the pass that reads the text";
  EXPECT_EQ(requests.recorder->passes[0].rows(), 20) << "all that was not read yet";
  EXPECT_EQ(requests.recorder->passes[1].input_ids, (std::vector<int32_t>{-1, -2})) << "what the pass before chose";
  EXPECT_EQ(requests.recorder->passes[3].input_ids, (std::vector<int32_t>{-5, -6}));
  EXPECT_EQ(requests.recorder->passes[3].positions, (std::vector<int32_t>{12, 12}));
  EXPECT_EQ(requests.states[0].kv_len, 13);
}

TEST(Drafter, EagleGoesOnFromWhatItKept) {
  Requests requests(2, kEagleChain, 4);
  requests.observe({0, 1});
  const std::vector<Proposal> drafts = requests.draft({1}, 4);
  EXPECT_EQ(drafts[0].tokens, (std::vector<int32_t>{101, 102, 103, 104})) << "request 1's own first level";
  ASSERT_EQ(requests.recorder->passes.size(), 4u);
  const DraftPass& first = requests.recorder->passes[1];
  EXPECT_EQ(first.input_ids, std::vector<int32_t>{101});
  EXPECT_EQ(first.features, std::vector<int32_t>{requests.states[1].slot});
  for (int pass = 2; pass < 4; ++pass) {
    EXPECT_EQ(requests.recorder->passes[pass].features, requests.recorder->passes[pass - 1].keep);
  }
}

// Where the device puts guesses into the step, the first pass reads what the head chose when it was shown the texts.
TEST(Drafter, EagleDraftsAheadFromChoicesThatNobodyTook) {
  Requests requests(3, kEagleChain, 4);
  EXPECT_FALSE(requests.draft_ahead({0, 1}, 4)) << "the device does not";
  requests.recorder->drafts_ahead = true;
  EXPECT_FALSE(requests.draft_ahead({0, 1}, 4)) << "there is nothing to begin with";
  requests.observe({0, 1});
  EXPECT_FALSE(requests.draft_ahead({0, 2}, 4)) << "nothing is known of request 2";
  const int takes = requests.recorder->takes;
  EXPECT_TRUE(requests.draft_ahead({1, 0}, 4));
  EXPECT_EQ(requests.recorder->takes, takes);
  const std::vector<DraftPass>& passes = requests.recorder->ahead;
  ASSERT_EQ(passes.size(), 3u);
  EXPECT_EQ(passes[0].input_ids, (std::vector<int32_t>{-2, -1}));
  EXPECT_EQ(passes[0].features, (std::vector<int32_t>{requests.states[1].slot, requests.states[0].slot}));
  EXPECT_EQ(passes[1].input_ids, (std::vector<int32_t>{-3, -4}));
  EXPECT_EQ(requests.draft({0}, 2)[0].tokens, (std::vector<int32_t>{0, 0})) << "its first level was used up";
}

// A model of its own reads what it has not seen, and its chains go on from what that pass chose.
TEST(Drafter, StandaloneDraftsAheadOfTheHost) {
  Requests requests(2, kStandaloneChain, 2);
  requests.recorder->drafts_ahead = true;
  requests.states[0].kv_len = 8;
  requests.states[1].kv_len = 9;
  EXPECT_TRUE(requests.draft_ahead({1, 0}, 4));
  EXPECT_EQ(requests.recorder->takes, 0);
  ASSERT_EQ(requests.recorder->passes.size(), 1u);
  EXPECT_EQ(requests.recorder->passes[0].positions, (std::vector<int32_t>{9, 8, 9}));
  EXPECT_EQ(requests.recorder->passes[0].logits_rows, (std::vector<int32_t>{0, 2}));
  const std::vector<DraftPass>& ahead = requests.recorder->ahead;
  ASSERT_EQ(ahead.size(), 3u);
  EXPECT_EQ(ahead[0].input_ids, (std::vector<int32_t>{-1, -2}));
  EXPECT_EQ(ahead[0].positions, (std::vector<int32_t>{10, 10}));
  EXPECT_EQ(ahead[1].input_ids, (std::vector<int32_t>{-3, -4}));
  EXPECT_EQ(requests.states[0].kv_len, 13) << "all guesses but the last were read";
}

TEST(Drafter, StandaloneThatCannotDraftAheadBeginsAgain) {
  Requests requests(2, kStandaloneChain, 2);
  requests.states[0].kv_len = 8;
  EXPECT_FALSE(requests.draft_ahead({0, 1}, 3));
  EXPECT_EQ(requests.states[0].kv_len, 8);
  const std::vector<Proposal> drafted = requests.draft({0, 1}, 3);
  ASSERT_TRUE(requests.drafted.ok());
  EXPECT_EQ(drafted[0].tokens[0] + 1, drafted[1].tokens[0]) << "of one pass";
  EXPECT_EQ(requests.states[0].kv_len, 12);
}

TEST(Drafter, EagleIsShownAheadWhatADeviceVerified) {
  Requests requests(3, kEagleChain, 4);
  requests.recorder->drafts_ahead = true;
  requests.observe({0, 1});
  EXPECT_TRUE(requests.observe_ahead({0, 1}, {7}).empty()) << "choices wait";
  EXPECT_TRUE(requests.draft_ahead({0, 1}, 4));
  const std::vector<int32_t> keep = requests.observe_ahead({1, 0}, {7, 8});
  EXPECT_EQ(keep, (std::vector<int32_t>{requests.states[1].slot, requests.states[0].slot}));
  EXPECT_EQ(requests.states[1].kv_len, 11);
  EXPECT_TRUE(requests.draft_ahead({0, 1}, 2));
  EXPECT_EQ(requests.recorder->ahead[0].input_ids, (std::vector<int32_t>{-2, -1}));
  requests.states[0].kv_len = 8;
  EXPECT_TRUE(requests.observe_ahead({0, 1}, {7}).empty()) << "it was not shown all of request 0";
}

// Tokens that it was not shown are read with the next that it is shown, if they are few; the draft before them is
// forgotten.
TEST(Drafter, EagleCatchesUpWithWhatItWasNotShown) {
  Requests requests(2, kEagleChain, 2);
  requests.observe({0, 1});
  for (DraftState& state : requests.states) state.kv_len = 5;
  EXPECT_EQ(requests.draft({0}, 3)[0].tokens, (std::vector<int32_t>{0, 0, 0}))
      << "what it knew was of an earlier place";
  requests.states[1].kv_len = 9 - 1 - Drafter::kMostCaughtUp;
  requests.recorder->passes.clear();
  requests.observe({0, 1});
  ASSERT_EQ(requests.recorder->passes.size(), 1u);
  const DraftPass& pass = requests.recorder->passes[0];
  EXPECT_EQ(pass.positions, (std::vector<int32_t>{5, 6, 7, 8, 9, 9}));
  EXPECT_EQ(pass.input_ids, (std::vector<int32_t>{0, 0, 0, 0, 7, 7}));
  EXPECT_EQ(pass.features, (std::vector<int32_t>{0, 0, 0, 0, 0, 1}));
  EXPECT_EQ(pass.q_indptr, (std::vector<int32_t>{0, 5, 6}));
  EXPECT_EQ(pass.logits_rows, (std::vector<int32_t>{4, 5}));
  EXPECT_NE(requests.draft({0}, 3)[0].tokens[0], 0);
}

// Where a model can, it sees nothing of a text that it did not follow but what it reads of the page at hand.
TEST(Drafter, EagleBeginsAnewBehindWhatItDidNotFollow) {
  Requests requests(2, kEagleChain, 2, /*max_rows=*/1000, /*sees_from_any_page=*/true);
  requests.states[0].kv_len = 0;
  requests.observe({0, 1});
  ASSERT_EQ(requests.recorder->passes.size(), 1u);
  const DraftPass& read = requests.recorder->passes[0];
  EXPECT_EQ(read.positions, (std::vector<int32_t>{8, 9, 9}));
  EXPECT_EQ(read.features, (std::vector<int32_t>{0, 0, 1}));
  EXPECT_EQ(read.first_pages, (std::vector<int32_t>{2, 0})) << "request 1 was followed";
  EXPECT_EQ(read.kv_lens, (std::vector<int32_t>{2, 10}));
  requests.draft({0}, 3);
  const DraftPass& chain = requests.recorder->passes.back();
  EXPECT_EQ(chain.first_pages, std::vector<int32_t>{2});
  EXPECT_EQ(chain.positions, std::vector<int32_t>{10});
  EXPECT_EQ(chain.kv_lens, std::vector<int32_t>{3});
}

// A model of its own reads a text from the start instead, once it drafts for it.
TEST(Drafter, AStandaloneModelReadsAllThatItDidNotFollow) {
  Requests requests(1, kStandaloneChain, 0, /*max_rows=*/1000, /*sees_from_any_page=*/true);
  requests.draft({0}, 2);
  EXPECT_EQ(requests.recorder->passes[0].rows(), 10);
  EXPECT_EQ(requests.recorder->passes[0].first_pages, std::vector<int32_t>{0});
}

TEST(DraftPages, KnowsWhichTokensAreThere) {
  DraftPages pages(4);
  const std::vector<int32_t> text = {7, 3, 9};
  for (int position = 0; position < 10; ++position) pages.written(text[position / 4], position % 4);
  EXPECT_EQ(pages.tokens(9), 2);
  EXPECT_EQ(pages.begin_before(text.data(), 9), 0);
  pages.copied({.src_page = 3, .dst_page = 5, .num_tokens = 3});
  EXPECT_EQ(pages.tokens(5), 3);
  pages.skipped(3, 3);
  EXPECT_EQ(pages.begin_before(text.data(), 9), 8) << "page 3 is not whole";
  pages.written(3, 3);
  EXPECT_EQ(pages.begin_before(text.data(), 9), 0);
  pages.written(3, 0);  // another text has the page now
  EXPECT_EQ(pages.tokens(3), 1);
  pages.written(11, 2);
  EXPECT_EQ(pages.tokens(11), 0) << "the tokens before are missing";
}

TEST(Drafter, WhoWasNotSeenForLongestGivesItsSlotUp) {
  Requests requests(3, kEagleChain, 2);
  requests.observe({0});
  requests.observe({1});
  requests.observe({0});
  requests.observe({2});  // in the slot that was request 1's
  EXPECT_EQ(requests.states[2].slot, requests.states[1].slot);
  EXPECT_EQ(requests.draft({1}, 4)[0].tokens, (std::vector<int32_t>{0, 0, 0, 0})) << "nothing is known of it";
  EXPECT_EQ(requests.draft({0}, 1)[0].tokens, std::vector<int32_t>{102});
  EXPECT_EQ(requests.draft({2}, 1)[0].tokens, std::vector<int32_t>{103});
}

TEST(Drafter, ReadsALongBacklogInPassesOfTheModelsSize) {
  Requests requests(2, kStandaloneChain, 0, /*max_rows=*/8);
  EXPECT_EQ(requests.draft({0, 1}, 1)[1].tokens, std::vector<int32_t>{101});
  std::vector<int32_t> read;
  for (const DraftPass& pass : requests.recorder->passes) {
    EXPECT_LE(pass.rows(), 8);
    read.insert(read.end(), pass.positions.begin(), pass.positions.end());
  }
  std::vector<int32_t> expected(20);
  for (int i = 0; i < 20; ++i) expected[i] = i % 10;
  EXPECT_EQ(read, expected);
}

TEST(Drafter, AFailedPassLeavesNoChoicesToTheNextDraft) {
  Requests requests(2, kEagleChain, 4);
  requests.observe({0, 1});
  requests.recorder->fails = true;
  requests.draft({0}, 4);
  EXPECT_FALSE(requests.drafted.ok());
  requests.recorder->fails = false;
  requests.observe({0});
  EXPECT_EQ(requests.draft({0}, 1)[0].tokens, std::vector<int32_t>{102});
}

TEST(Drafter, ATreeIsTakenLevelByLevel) {
  Requests requests(1, {.eagle = true, .num_steps = 3, .topk = 2, .num_draft_tokens = 6}, 2);
  requests.observe({0});
  const Proposal tree = requests.draft({0}, 5, true)[0];
  EXPECT_EQ(tree.size(), 5);
  EXPECT_EQ(requests.recorder->takes, 3) << "the first level, and two more";
  for (size_t i = 1; i < requests.recorder->passes.size(); ++i) EXPECT_FALSE(requests.recorder->passes[i].mask.empty());
}

// By a device that grows them at once, the same trees.
TEST(Drafter, TreesAreGrownAtOnceWhereTheDeviceDoesThat) {
  for (const bool eagle : {true, false}) {
    const DraftOptions options = {.eagle = eagle, .num_steps = 4, .topk = 3, .num_draft_tokens = 8};
    Requests by_level(3, options, 4), at_once(3, options, 4);
    at_once.recorder->grows_trees = true;
    std::vector<Proposal> drafts[2];
    for (Requests* requests : {&by_level, &at_once}) {
      requests->observe({0, 2});
      drafts[requests == &at_once] = requests->draft({0, 1, 2}, 7, true);
      EXPECT_TRUE(requests->drafted.ok());
    }
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(drafts[1][i].tokens, drafts[0][i].tokens) << i;
      EXPECT_EQ(drafts[1][i].parents, drafts[0][i].parents) << i;
    }
    EXPECT_EQ(at_once.recorder->takes, 2) << "of the first level, and of all others";
    EXPECT_EQ(by_level.recorder->takes, 4);
    const TreeDraft& trees = at_once.recorder->trees;
    EXPECT_EQ(trees.requests, (eagle ? std::vector<int32_t>{0, 2} : std::vector<int32_t>{0, 1, 2}))
        << "an EAGLE head has nothing to begin with for request 1";
    const DraftPass& last = by_level.recorder->passes.back();
    EXPECT_EQ(trees.kv_slots, last.kv_slots) << "the last pass has all nodes";
    EXPECT_EQ(trees.begins[0], last.positions[0]);
    if (eagle) {
      EXPECT_EQ(trees.features[1], at_once.states[2].slot);
    }
  }
}

// A request with room for a chain only goes level by level, and so do those beside it.
TEST(Drafter, TreesBesideChainsAreTakenLevelByLevel) {
  Requests requests(1, {.eagle = true, .num_steps = 3, .topk = 2, .num_draft_tokens = 6}, 2);
  requests.recorder->grows_trees = true;
  requests.observe({0});
  EXPECT_TRUE(requests.draft({0}, 3, false)[0].is_chain());
  EXPECT_TRUE(requests.recorder->trees.requests.empty());
}

}  // namespace
}  // namespace warpweave
