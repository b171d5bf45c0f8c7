// The kernels that make plans, run on the host: whatever the lengths, every tile is somebody's, once, and workers that
// share a pair know of each other. Threads take their turns in several orders.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "device/cuda/testing/host_cta.h"

#include "attention/cuda/decode_plan.cuh"
#include "attention/cuda/extend_plan.cuh"
#include "attention/cuda/fixed_split_plan.cuh"
#include "attention/cuda/whole_pairs_plan.cuh"

namespace warpweave::cuda {
namespace {

using host_cta::Order;

int ceil_div(int a, int b) { return (a + b - 1) / b; }

struct Batch {
  std::vector<int32_t> q_indptr = {0}, kv_lens;

  void add(int q_len, int kv_len) {
    q_indptr.push_back(q_indptr.back() + q_len);
    kv_lens.push_back(kv_len);
  }
  int size() const { return static_cast<int>(kv_lens.size()); }
  int q_len(int r) const { return q_indptr[r + 1] - q_indptr[r]; }
  PlanInput input(int num_kv_heads) const {
    PlanInput in;
    in.q_indptr = q_indptr.data();
    in.kv_lens = kv_lens.data();
    in.num_requests = size();
    in.num_kv_heads = num_kv_heads;
    in.decode_q_len = 1;
    return in;
  }
};

// `prompts` of 8 requests have more than one query token.
Batch random_batch(std::mt19937& random, int requests, int most_kv_tokens, int prompts) {
  Batch out;
  for (int i = 0; i < requests; ++i) {
    const int q_len = static_cast<int>(random() % 8) < prompts ? 2 + static_cast<int>(random() % 700) : 1;
    out.add(q_len, q_len + static_cast<int>(random() % static_cast<unsigned>(most_kv_tokens)));
  }
  return out;
}

class PlanTest : public testing::TestWithParam<Order> {
 protected:
  std::vector<DecodeWorker> decode(const PlanInput& in, int num_workers) {
    std::vector<DecodeWorker> workers(num_workers, DecodeWorker{.request = -7, .num_tiles = -7});
    const int lockstep = lockstep_heads(in.num_kv_heads, num_workers);
    host_cta::run(kPlanThreads, GetParam(), [&] {
      decode_plan(of_lockstep(in, lockstep), workers.data(), num_workers, num_workers / lockstep, lockstep);
    });
    return workers;
  }
};

// The line of one of the heads in lockstep.
struct Line {
  std::vector<int> tiles;  // of a request's pairs
  std::vector<int64_t> begins;
  int groups;
  int64_t total = 0;

  Line(const Batch& batch, const PlanInput& in, int lockstep) : groups(in.num_kv_heads / lockstep) {
    for (int r = 0; r < batch.size(); ++r) {
      const int seen = batch.kv_lens[r] - first_visible(batch.kv_lens[r], batch.q_len(r), in.window_left);
      tiles.push_back(batch.q_len(r) > in.decode_q_len ? 0 : std::max(1, ceil_div(seen, kDecodeTileTokens)));
      begins.push_back(total);
      total += int64_t{tiles.back()} * groups;
    }
  }
  int64_t place(const DecodeWorker& w, int lockstep) const {
    return begins[w.request] + int64_t{w.head / lockstep} * tiles[w.request] + w.tile;
  }
  // Begin and end of the pair that has this tile.
  std::pair<int64_t, int64_t> pair(int64_t tile) const {
    size_t r = 0;
    while (tile >= begins[r] + int64_t{tiles[r]} * groups) ++r;
    const int64_t begin = begins[r] + (tile - begins[r]) / tiles[r] * tiles[r];
    return {begin, begin + tiles[r]};
  }
};

void expect_whole(const Batch& batch, const PlanInput& in, const std::vector<DecodeWorker>& workers) {
  const int num_workers = static_cast<int>(workers.size()), lockstep = lockstep_heads(in.num_kv_heads, num_workers);
  const Line line(batch, in, lockstep);
  for (int side = 0; side < lockstep; ++side) {
    std::map<int64_t, int> owners;  // by where a run begins
    int64_t reached = 0;
    for (int w = side; w < num_workers / lockstep * lockstep; w += lockstep) {
      const DecodeWorker& run = workers[w];
      if (run.num_tiles == 0) continue;
      ASSERT_LT(reached, line.total) << "worker " << w;
      ASSERT_EQ(run.head % lockstep, side);
      ASSERT_EQ(line.place(run, lockstep), reached) << "worker " << w;
      ASSERT_EQ(run.q_begin, batch.q_indptr[run.request]);
      ASSERT_EQ(run.q_len, batch.q_len(run.request));
      ASSERT_EQ(run.kv_len, batch.kv_lens[run.request]);
      owners[reached] = w;
      reached += run.num_tiles;
    }
    ASSERT_EQ(reached, line.total);
    const auto owner = [&](int64_t tile) { return std::prev(owners.upper_bound(tile))->second; };
    for (const auto& [begin, w] : owners) {
      const auto [pair_begin, pair_end] = line.pair(begin);
      ASSERT_EQ(workers[w].first_pair_begin, owner(pair_begin)) << "worker " << w;
      ASSERT_EQ(workers[w].first_pair_end, owner(pair_end - 1)) << "worker " << w;
      ASSERT_EQ(workers[w].last_pair_end, owner(line.pair(begin + workers[w].num_tiles - 1).second - 1))
          << "worker " << w;
    }
  }
  for (int w = num_workers / lockstep * lockstep; w < num_workers; ++w) ASSERT_EQ(workers[w].num_tiles, 0);
}

TEST_P(PlanTest, DecodeCoversEveryTileOnce) {
  std::mt19937 random(3);
  for (const int requests : {1, 2, 5, 64, 300, 1500}) {
    for (const int heads : {1, 2, 8, 12}) {
      const Batch batch = random_batch(random, requests, requests > 100 ? 900 : 9000, static_cast<int>(random() % 4));
      PlanInput in = batch.input(heads);
      if (random() % 3 == 0) in.window_left = static_cast<int>(random() % 2000);
      const int num_workers = random() % 2 ? 132 : 8 + static_cast<int>(random() % 265);
      SCOPED_TRACE(testing::Message() << requests << " requests, " << heads << " heads, " << num_workers << " workers");
      ASSERT_NO_FATAL_FAILURE(expect_whole(batch, in, decode(in, num_workers)));
    }
  }
}

TEST_P(PlanTest, WeighedCutsCoverEveryTileOnce) {
  std::mt19937 random(4);
  for (const int requests : {1, 2, 5, 20, 64, 131, 133, 300, 1024, 1500, 3000}) {
    for (const int heads : {1, 2, 3, 8}) {
      const Batch batch = random_batch(random, requests, 64 << random() % 10, static_cast<int>(random() % 4));
      PlanInput in = batch.input(heads);
      in.segment_tiles = 1 + static_cast<int>(random() % 4);
      in.merge_tiles = static_cast<int>(random() % 5);
      in.merged_pieces_a_tile = 1 + static_cast<int>(random() % 30);
      const int num_workers = random() % 2 ? 132 : 8 + static_cast<int>(random() % 265);
      SCOPED_TRACE(testing::Message() << requests << " requests, " << heads << " heads, " << num_workers << " workers");
      ASSERT_NO_FATAL_FAILURE(expect_whole(batch, in, decode(in, num_workers)));
    }
  }
}

PlanInput weighed(const Batch& batch) {
  PlanInput in = batch.input(1);
  in.segment_tiles = 3;
  in.merge_tiles = 1;
  in.merged_pieces_a_tile = 20;
  return in;
}

// A prompt behind a long prefix beside short ones, in slices: the short pairs' beginnings count, also where requests
// are more than the plan's threads.
TEST_P(PlanTest, WeighedCutsOfManyPairsAreOfEqualWeight) {
  for (const int short_ones : {300, 900, 2500}) {
    Batch batch;
    for (int i = 0; i < short_ones; ++i) batch.add(1, 64 + i % 5 * 64);
    for (int i = 0; i < 600; ++i) batch.add(1, 4500 + i);
    const PlanInput in = weighed(batch);
    const std::vector<DecodeWorker> workers = decode(in, 66);
    ASSERT_NO_FATAL_FAILURE(expect_whole(batch, in, workers));
    int most = 0, sum = 0;
    for (const DecodeWorker& run : workers) {
      int weight = 0, request = run.request, tile = run.tile;
      for (int left = run.num_tiles; left > 0; ++request, tile = 0) {
        const int tiles = std::min(left, ceil_div(batch.kv_lens[request], kDecodeTileTokens) - tile);
        weight += tiles + in.segment_tiles;
        left -= tiles;
      }
      most = std::max(most, weight);
      sum += weight;
    }
    EXPECT_LT(most * 66, sum * 21 / 20) << short_ones << " short requests";
  }
}

TEST_P(PlanTest, WeighedCutsGiveShortPairsAWorkerEach) {
  Batch few, many, unlike;
  for (int i = 0; i < 64; ++i) few.add(1, 70 + i);
  for (int i = 0; i < 300; ++i) many.add(1, 70 + i % 120);
  for (int i = 0; i < 40; ++i) unlike.add(1, i % 2 == 0 ? 40'000 : 300);
  for (const DecodeWorker& run : decode(weighed(few), 132)) {
    EXPECT_EQ(run.tile, 0) << "a pair is cut";
    EXPECT_LE(run.num_tiles, 3) << "more than a pair";
  }
  for (const DecodeWorker& run : decode(weighed(many), 132)) {
    EXPECT_EQ(run.tile, 0) << "a pair is cut";
    EXPECT_EQ(run.first_pair_begin, run.first_pair_end);
    EXPECT_LE(run.num_tiles, 9);
  }
  const std::vector<DecodeWorker> workers = decode(weighed(unlike), 132);
  const auto most = std::max_element(workers.begin(), workers.end(), [](auto& a, auto& b) { return a.num_tiles < b.num_tiles; });
  EXPECT_LE(most->num_tiles, 20 * (626 + 5) / 132 + 8) << "long ones are cut until runs are nearly equal";
}

TEST_P(PlanTest, WeighedCutsMergeNoMoreThanPays) {
  const auto pieces_of = [&](int tokens) {
    Batch one;
    one.add(1, tokens);
    const std::vector<DecodeWorker> workers = decode(weighed(one), 132);
    return std::count_if(workers.begin(), workers.end(), [](auto& run) { return run.num_tiles > 0; });
  };
  EXPECT_EQ(pieces_of(64), 1);
  EXPECT_EQ(pieces_of(64 * 16), 16) << "a tile each";
  EXPECT_LE(pieces_of(64 * 128), 64) << "merging 128 takes longer than two tiles";
  EXPECT_EQ(pieces_of(64 * 132 * 40), 132);
}

// Runs follow one another, begin and end with a pair, and are all of the line.
TEST_P(PlanTest, WholePairsAreNeverCut) {
  std::mt19937 random(11);
  for (const int requests : {1, 2, 131, 132, 133, 700, 3000}) {
    for (const int units : {1, 2, 3}) {
      const Batch batch = random_batch(random, requests, 9000, static_cast<int>(random() % 3));
      PlanInput in = batch.input(units);
      in.decode_q_len = 1000;
      const int num_workers = random() % 2 ? 132 : 1 + static_cast<int>(random() % 264);
      SCOPED_TRACE(testing::Message() << requests << " requests, " << units << " units, " << num_workers << " workers");
      std::vector<DecodeWorker> workers(num_workers, DecodeWorker{.request = -7, .num_tiles = -7});
      host_cta::run(kPlanThreads, GetParam(), [&] { whole_pairs_plan(in, workers.data(), num_workers); });
      int request = 0, unit = 0;
      size_t most_pairs = 0;
      for (const DecodeWorker& run : workers) {
        if (run.num_tiles == 0) continue;
        ASSERT_EQ(run.request, request);
        ASSERT_EQ(run.head, unit);
        ASSERT_EQ(run.tile, 0);
        ASSERT_EQ(run.q_begin, batch.q_indptr[request]);
        ASSERT_EQ(run.q_len, batch.q_len(request));
        ASSERT_EQ(run.kv_len, batch.kv_lens[request]);
        size_t pairs = 0;
        for (int left = run.num_tiles; left > 0; ++pairs) {
          ASSERT_LT(request, requests);
          left -= std::max(1, ceil_div(batch.kv_lens[request], kDecodeTileTokens));
          ASSERT_GE(left, 0) << "a pair is cut";
          if (++unit == units) unit = 0, ++request;
        }
        most_pairs = std::max(most_pairs, pairs);
      }
      EXPECT_EQ(request, requests);
      EXPECT_LE(most_pairs, static_cast<size_t>(ceil_div(requests * units, num_workers)));
    }
  }
}

TEST_P(PlanTest, DecodeRunsAreEqualWhereLengthsAreNot) {
  std::mt19937 random(5);
  const Batch batch = random_batch(random, 90, 9000, 0);
  const std::vector<DecodeWorker> workers = decode(batch.input(8), 264);
  const auto [least, most] =
      std::minmax_element(workers.begin(), workers.end(), [](auto& a, auto& b) { return a.num_tiles < b.num_tiles; });
  EXPECT_GT(least->num_tiles, 0) << "nobody is idle";
  EXPECT_LE(most->num_tiles - least->num_tiles, 1);
}

TEST_P(PlanTest, DecodeOfEqualLengthsKeepsPairsWholeOrCutsThemAlike) {
  Batch many, few;
  for (int i = 0; i < 33; ++i) many.add(1, 2048);
  for (int i = 0; i < 4; ++i) few.add(1, 32768);
  for (const DecodeWorker& run : decode(many.input(4), 132)) {
    EXPECT_EQ(run.num_tiles, 32);
    EXPECT_EQ(run.tile, 0);
  }
  std::set<int> lengths;
  for (const DecodeWorker& run : decode(few.input(8), 264)) lengths.insert(run.num_tiles);
  lengths.erase(0);
  EXPECT_EQ(lengths.size(), 1u) << "512 tiles a pair, in eight pieces";
}

TEST_P(PlanTest, DecodeCutsLongPairsOfEqualLengthsForAllWorkersWhereAsked) {
  Batch longer, shorter;
  for (int i = 0; i < 128; ++i) {
    longer.add(1, 16384);
    shorter.add(1, 4096);
  }
  PlanInput in = longer.input(1);
  EXPECT_EQ(decode(in, 132).back().num_tiles, 0);
  in.cut_long_pairs = true;
  const std::vector<DecodeWorker> workers = decode(in, 132);
  for (const DecodeWorker& run : workers) EXPECT_NEAR(run.num_tiles, 128 * 256 / 132, 1);
  ASSERT_NO_FATAL_FAILURE(expect_whole(longer, in, workers));
  in = shorter.input(1);
  in.cut_long_pairs = true;
  EXPECT_EQ(decode(in, 132).front().num_tiles, 64) << "short runs stay whole";
}

TEST_P(PlanTest, NothingToDecodeLeavesEveryWorkerIdle) {
  Batch batch;
  batch.add(40, 90);
  for (const DecodeWorker& run : decode(batch.input(8), 132)) EXPECT_EQ(run.num_tiles, 0);
}

struct Tiles {
  std::vector<ExtendItem> items;
  ExtendHeader header;
};

Tiles extend(Order order, const PlanInput& in, int tile_rows, int rows_per_token, size_t room) {
  Tiles out{std::vector<ExtendItem>(room, {-7, -7}), {.num_items = -7, .units_taken = -7}};
  host_cta::run(kPlanThreads, order,
                [&] { extend_plan(in, tile_rows, rows_per_token, out.items.data(), &out.header); });
  return out;
}

TEST_P(PlanTest, ExtendListsEveryTileOnceLongestFirst) {
  std::mt19937 random(11);
  for (const int requests : {1, 3, 40, 1100}) {
    for (const int rows_per_token : {1, 4}) {
      const Batch batch = random_batch(random, requests, 9000, 6);
      const PlanInput in = batch.input(8);
      std::set<std::pair<int, int>> wanted;
      int longest = 1;
      for (int r = 0; r < requests; ++r) {
        if (batch.q_len(r) == 1) continue;
        longest = std::max(longest, batch.kv_lens[r]);
        for (int t = 0; t < ceil_div(batch.q_len(r) * rows_per_token, 128); ++t) wanted.insert({r, t});
      }
      const size_t count = wanted.size();
      const Tiles tiles = extend(GetParam(), in, 128, rows_per_token, count + 1);
      ASSERT_EQ(tiles.header.num_items, static_cast<int>(count));
      EXPECT_EQ(tiles.header.units_taken, 0);
      EXPECT_EQ(in.num_kv_heads % tiles.header.section_kv_heads, 0);
      int last_seen = longest;
      for (size_t i = 0; i < count; ++i) {
        const auto [r, t] = tiles.items[i];
        ASSERT_EQ(wanted.erase({r, t}), 1u) << "item " << i << " is no tile, or one that was listed before";
        const int last_token = std::min(batch.q_len(r), ((t + 1) * 128 - 1) / rows_per_token + 1);
        const int seen = batch.kv_lens[r] - batch.q_len(r) + last_token;
        EXPECT_LE(seen, last_seen + ceil_div(longest, kBuckets - 1)) << "item " << i << " is of a shorter class";
        last_seen = seen;
      }
      EXPECT_EQ(tiles.items.back().request, -7) << "nothing is written behind the items";
      EXPECT_TRUE(wanted.empty());
    }
  }
}

TEST_P(PlanTest, ExtendSectionsHoldAsManyHeadsAsTheirBytes) {
  Batch batch;
  batch.add(1000, 1000);
  PlanInput in = batch.input(8);
  in.head_token_bytes = 512;
  for (const auto& [heads_of_bytes, wanted] : {std::pair(0, 1), {1, 1}, {2, 2}, {5, 4}, {8, 8}, {20, 8}}) {
    in.section_bytes = heads_of_bytes * 1000 * 512;
    EXPECT_EQ(extend(GetParam(), in, 128, 1, 64).header.section_kv_heads, wanted) << heads_of_bytes;
  }
}

TEST_P(PlanTest, ExtendListsTheBlocksToCopy) {
  std::mt19937 random(13);
  for (const int window : {-1, 1000}) {
    const Batch batch = random_batch(random, 1050, 3000, 5);
    PlanInput in = batch.input(8);
    in.window_left = window;
    std::vector<ExtendCopyBlock> wanted;
    for (int r = 0; r < batch.size(); ++r) {
      const int first = first_visible(batch.kv_lens[r], batch.q_len(r), window) / kCopyBlockTokens;
      for (int b = first; batch.q_len(r) > 1 && b < ceil_div(batch.kv_lens[r], kCopyBlockTokens); ++b)
        wanted.push_back({r, b});
    }
    std::vector<ExtendCopyBlock> blocks(wanted.size() + 1, {-7, -7});
    std::vector<int32_t> first_blocks(batch.size(), -7), ready(8, -7);
    in.copies = {
        .blocks = blocks.data(), .first_blocks = first_blocks.data(), .ready = ready.data(), .max_blocks = 1 << 20};
    const Tiles tiles = extend(GetParam(), in, 128, 1, 1 << 16);
    EXPECT_EQ(tiles.header.num_blocks, static_cast<int>(wanted.size()));
    EXPECT_EQ(tiles.header.section_kv_heads, 1);
    EXPECT_EQ(ready, std::vector<int32_t>(8, 0));
    EXPECT_EQ(blocks.back().request, -7);
    for (size_t i = 0; i < wanted.size(); ++i) {
      ASSERT_EQ(blocks[i].request, wanted[i].request) << "block " << i;
      ASSERT_EQ(blocks[i].block, wanted[i].block) << "block " << i;
      ASSERT_EQ(first_blocks[wanted[i].request] + wanted[i].block, static_cast<int>(i));
    }
  }
}

struct FixedCase {
  int requests, tokens_per_piece, split_tokens, num_workers;
  bool cut;
};

void expect_fixed(Order order, const Batch& batch, const PlanInput& in, const FixedCase& c) {
  const int room = num_fixed_pieces(batch.q_indptr.back(), batch.size(), c.tokens_per_piece);
  std::vector<DecodePiece> pieces(room);
  std::vector<long long> unit_ends(room);
  std::vector<DecodeWorker> workers(c.num_workers, DecodeWorker{.num_tiles = -7});
  const FixedSplitPlan plan = {c.tokens_per_piece, c.split_tokens, c.cut ? 1 << 30 : 0, pieces.data(), unit_ends.data(),
                               workers.data(), c.num_workers};
  host_cta::run(kPlanThreads, order, [&] { fixed_split_plan(in, plan); });

  int piece = 0;
  long long unit = 0;
  std::vector<int> splits;  // of a pair of each piece
  for (int r = 0; r < batch.size(); ++r) {
    for (int first = 0; first < batch.q_len(r); first += c.tokens_per_piece, ++piece) {
      ASSERT_LT(piece, room);
      const DecodePiece& p = pieces[piece];
      const int tokens = std::min(c.tokens_per_piece, batch.q_len(r) - first),
                before = batch.kv_lens[r] - batch.q_len(r);
      ASSERT_EQ(p.request, r);
      ASSERT_EQ(p.q_begin, batch.q_indptr[r] + first);
      ASSERT_EQ(p.q_len, tokens);
      ASSERT_EQ(p.position, before + first);
      ASSERT_EQ(p.visible_end, before + first + tokens);
      const int begin = in.window_left < 0 ? 0 : std::max(0, before + first - in.window_left);
      ASSERT_EQ(p.visible_begin, std::min(begin, p.visible_end));
      splits.push_back(std::max(1, ceil_div(p.visible_end, c.split_tokens) - p.visible_begin / c.split_tokens));
      unit += static_cast<long long>(splits.back()) * in.num_kv_heads;
      ASSERT_EQ(unit_ends[piece], unit);
    }
  }
  long long reached = 0, shortest = unit, longest = 0;
  for (const DecodeWorker& run : workers) {
    if (run.num_tiles == 0) continue;
    const int n = splits[run.request];
    ASSERT_EQ(unit_ends[run.request] - static_cast<long long>(n) * in.num_kv_heads + run.head * n + run.tile, reached);
    ASSERT_EQ(run.cut_pairs, c.cut);
    ASSERT_EQ(run.unit, reached);
    ASSERT_TRUE(c.cut || run.tile == 0) << "a pair is not cut";
    reached += run.num_tiles;
    shortest = std::min<long long>(shortest, run.num_tiles);
    longest = std::max<long long>(longest, run.num_tiles);
  }
  ASSERT_EQ(reached, unit);
  EXPECT_TRUE(!c.cut || longest - shortest <= 1);
}

TEST_P(PlanTest, FixedSplitsCoverEveryPieceOnce) {
  std::mt19937 random(17);
  for (const FixedCase& c : {FixedCase{1, 4, 256, 132, true}, FixedCase{30, 8, 1024, 264, true},
                             FixedCase{30, 1, 1024, 132, false}, FixedCase{12, 8, 256, 132, true},
                             FixedCase{1200, 4, 512, 132, false}, FixedCase{1200, 8, 1024, 264, true}}) {
    const Batch batch = random_batch(random, c.requests, 5000, 2);
    PlanInput in = batch.input(8);
    for (const int window : {-1, 700}) {
      in.window_left = window;
      SCOPED_TRACE(testing::Message() << c.requests << " requests, pieces of " << c.tokens_per_piece << ", window "
                                      << window);
      ASSERT_NO_FATAL_FAILURE(expect_fixed(GetParam(), batch, in, c));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, PlanTest, testing::Values(Order::ascending, Order::descending, Order::random),
                         [](const auto& info) {
                           return info.param == Order::ascending    ? "ascending"
                                  : info.param == Order::descending ? "descending"
                                                                    : "random";
                         });

}  // namespace
}  // namespace warpweave::cuda
