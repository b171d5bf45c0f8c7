// What adapters lay beside a GEMM's weights and inputs, run on the host: the chunks of all CTAs, multiplied as the GEMM's
// kernel does, are what the rows' adapters add; the counters are zeros again; rows of others never meet an adapter's ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "device/cuda/testing/host_cta.h"

#include "ops/cuda/lora_join.cuh"
#include "ops/cuda/testing/lora_problem.h"

namespace warpweave::gpu {
namespace {

struct Cut {
  int boxes, box_rows, splits, workers;
  int apart;
};

// A GEMM's CTAs, one after the other; workers' sums first.
class StreamedGemm {
 public:
  // `largest`: ranks of all parts that the server has room for; 0: no more than the adapters have.
  StreamedGemm(const LoraProblem& problem, const std::vector<int32_t>& slots, const Cut& cut, int largest = 0)
      : p_(problem), cut_(cut), tiles_(max_lora_tiles(p_.rows, static_cast<int>(p_.adapters.size()))), places_(p_.rows),
        y_(p_.rows * p_.y_stride, 0.0f) {
    fill_lora_tiles(slots, tiles_, places_);
    const int slice_depth = kLoraSlice, slices = static_cast<int>((p_.shape.in_features + slice_depth - 1) / slice_depth);
    const int max_ranks = std::max(p_.max_ranks, largest);
    sums_.assign(slices * tiles_.size() * kLoraTileRows * max_ranks, NAN);  // where nothing may be read
    join_ = {.lora = {p_.sites.data(), 1, tiles_.data(), static_cast<int>(tiles_.size()), p_.x.data(), p_.shape.in_features, slices,
                      max_ranks, 0, sums_.data(), nullptr, 0, false, p_.shape},
             .places = places_.data(),
             .counters = counters_,
             .rows = p_.rows,
             .slice_depth = slice_depth,
             .workers = cut.workers};
  }

  std::vector<float> run(host_cta::Order order) {
    const int64_t columns = cut_.boxes == 2 ? cut_.apart : p_.y_stride;
    const int tiles = static_cast<int>((columns + cut_.box_rows - 1) / cut_.box_rows), ctas = tiles * cut_.splits;
    for (int cta = 0; cta < cut_.workers; ++cta) {
      host_cta::run(kLoraThreads, order, [&] {
        const int thread = static_cast<int>(threadIdx.x);
        list_adapters(join_, {cut_.boxes, cut_.box_rows, 0, cut_.apart, 0, 1}, thread, shared_);
        make_sums<ptx::Bf16>(join_, cta, thread, shared_);
      });
    }
    for (int cta = 0; cta < ctas; ++cta) {
      const JoinTile tile = {cut_.boxes, cut_.box_rows, cta / cut_.splits * cut_.box_rows, cut_.apart, cta % cut_.splits, cut_.splits};
      ptx::set_shared_memory(memory_, sizeof(memory_), kLoraThreads);
      host_cta::run(kLoraThreads, order, [&] { run_cta(tile, ctas); });
    }
    EXPECT_EQ(counters_[0], 0);
    EXPECT_EQ(counters_[1], 0);
    return y_;
  }

  // Items of every worker that have ranks, once the CTAs have run.
  std::vector<int> shares() const {
    std::vector<int> out(cut_.workers);
    for (int cta = 0; cta < cut_.workers; ++cta) {
      for (int item = cta; read_item(join_, shared_, item, 0).tile >= 0; item += cut_.workers) {
        out[cta] += read_item(join_, shared_, item, 0).ranks > 0;
      }
    }
    return out;
  }

 private:
  static constexpr int kMostWeightBytes = 224 * kJoinRowBytes;

  void run_cta(const JoinTile& tile, int ctas) {
    const int thread = static_cast<int>(threadIdx.x);
    list_adapters(join_, tile, thread, shared_);
    const JoinRow row(join_, shared_, thread);
    await_sums(join_, ctas, thread);
    keep_ranks<ptx::Bf16>(join_, shared_, tile, row, thread);
    for (int chunk = 0; chunk < shared_.chunks; ++chunk) {
      const JoinPiece piece = find_piece(join_, shared_, tile, chunk, thread % 8 / 2);
      lay_weights(join_, tile, piece, thread, 0);
      lay_ranks<ptx::Bf16>(join_, shared_, tile, row, {thread, chunk, memory_ + kMostWeightBytes});
      ptx::cp_async_commit();
      ptx::cp_async_wait<0>();
      join_sync();
      if (thread == 0) multiply(tile);
      join_sync();
    }
  }

  static float at(const char* rows, int row, int k) {
    uint16_t bits;
    std::memcpy(&bits, rows + row * kJoinRowBytes + ((k / 8) ^ (row % 8)) * 16 + k % 8 * 2, sizeof(bits));
    return bf16_to_f32(bits);
  }
  void multiply(const JoinTile& tile) {
    for (int i = 0; i < tile.boxes * tile.box_rows; ++i) {
      const int64_t inner = tile.first + i % tile.box_rows, column = inner + i / tile.box_rows * tile.apart;
      if (column >= p_.y_stride || (tile.boxes == 2 && inner >= tile.apart)) continue;
      for (int row = 0; row < p_.rows; ++row) {
        float& y = y_[row * p_.y_stride + column];
        for (int k = 0; k < 64; ++k) y += at(memory_ + kMostWeightBytes, row, k) * at(memory_, i, k);
      }
    }
  }

  const LoraProblem& p_;
  const Cut cut_;
  std::vector<LoraTile> tiles_;
  std::vector<int32_t> places_;
  std::vector<float> sums_, y_;
  int32_t counters_[2] = {};
  LoraJoin join_ = {};
  LoraJoinShared shared_ = {};
  alignas(1024) char memory_[kMostWeightBytes + kJoinTiles * kJoinRowBytes] = {};
};

TEST(LoraJoin, ChunksAreWhatTheAdaptersAdd) {
  for (const auto order : {host_cta::Order::ascending, host_cta::Order::random}) {
    const LoraProblem p(45, qkv(712), {{8, 16, 4}, {64, 0, 40}, {0, 16, 16}});
    const std::vector<int32_t> slots = mixed(45, 3);
    p.check(slots, StreamedGemm(p, slots, {1, 128, 1, 3, 0}).run(order));
    p.check(slots, StreamedGemm(p, slots, {1, 192, 3, 12, 0}).run(order));
  }
  const LoraProblem one(64, {1536, 1, {0}, {528}}, {{16}, {80}});
  const std::vector<int32_t> slots = mixed(64, 2);
  one.check(slots, StreamedGemm(one, slots, {1, 128, 4, 20, 0}).run(host_cta::Order::descending));
}

TEST(LoraJoin, GatesAndUpsAreOfTheirOwnBoxes) {
  const LoraProblem p(33, {520, 2, {0, 272}, {272, 272}}, {{16, 16}, {32, 0}, {0, 48}, {8, 8}, {16, 32}});
  const std::vector<int32_t> slots = mixed(33, 5);
  p.check(slots, StreamedGemm(p, slots, {2, 112, 1, 3, 272}).run(host_cta::Order::ascending));
}

// A server takes ranks up to 64; what its adapters have of them is shared alike.
TEST(LoraJoin, WorkersShareTheRanksThatTheBatchHas) {
  const LoraProblem p(64, qkv(4096), std::vector<std::array<int, kLoraParts>>(8, {16, 16, 16}));
  const std::vector<int32_t> slots = mixed(64, 8);
  StreamedGemm gemm(p, slots, {1, 128, 1, 12, 0}, /*largest=*/3 * 64);
  p.check(slots, gemm.run(host_cta::Order::ascending));
  const std::vector<int> shares = gemm.shares();
  const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
  EXPECT_GT(*least, 0);
  EXPECT_LE(*most - *least, 1);
}

TEST(LoraJoin, RowsWithoutAdaptersGetNothing) {
  const LoraProblem p(20, qkv(512), {{16, 16, 16}});
  const std::vector<int32_t> none(20, -1);
  for (const float value : StreamedGemm(p, none, {1, 128, 2, 4, 0}).run(host_cta::Order::ascending)) ASSERT_EQ(value, 0);
}

// Every row an adapter of its own: as many adapters as a streamed GEMM can meet.
TEST(LoraJoin, EveryRowMayHaveItsOwn) {
  const LoraProblem p(64, {264, 1, {0}, {128}}, std::vector<std::array<int, kLoraParts>>(64, {16}));
  std::vector<int32_t> slots(64);
  for (int i = 0; i < 64; ++i) slots[i] = (i * 13 + 5) % 64;
  p.check(slots, StreamedGemm(p, slots, {1, 128, 1, 60, 0}).run(host_cta::Order::random));
}

// Every CTA's chunks, its own and the adapters', have one order, whoever asks for it.
TEST(LoraJoin, AdaptersChunksStandAmongTheOthers) {
  for (int own = 1; own < 130; ++own) {
    for (const int chunks : {0, 1, 2, 4, 7, 16, 40}) {
      const JoinOrder order(own, chunks);
      int place = 0, met = 0;
      for (int i = 0; i < own; ++i, ++place) {
        if (!order.before(i)) continue;
        EXPECT_EQ(order.place(met++), place++);
        EXPECT_GE(i + JoinOrder::kApart, own / 2);  // where the weights' producer asks for their number
        EXPECT_EQ(i % JoinOrder::kApart, 0);        // and where its groups of stages end
      }
      EXPECT_EQ(met, order.inside);
      EXPECT_EQ(order.inside > 0, own >= JoinOrder::kShortest && chunks > 0);
      for (; met < chunks; ++met) EXPECT_EQ(order.place(met), place++);
    }
  }
}

}  // namespace
}  // namespace warpweave::gpu
