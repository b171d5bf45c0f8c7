// Units of rows cut by the plan and merged again, on the host: the plan, the runs of workers and the merging kernel are
// those of the GPU; what stands between them, attention itself, is a sum in double precision here. Whatever the
// lengths, windows and tile sizes, every row comes out as if nothing had been cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "device/cuda/testing/host_cta.h"

#include "attention/cuda/decode_plan.cuh"
#include "attention/cuda/split_combine.cuh"
#include "attention/cuda/split_in_place.cuh"

namespace warpweave::cuda {
namespace {

using host_cta::Order;

constexpr int kDim = 128;
constexpr int kHalfTiles = kDim / 8 / 2;

struct Params {
  const int32_t* kv_lens;
  const int32_t* q_indptr;
  int max_q_len, window_left;
};
int split_max_q_len(const Params& p) { return p.max_q_len; }
int split_page_row(const Params&, int request) { return request; }
int split_first_token(const Params& p, int kv_len, int q_len, int tile_tokens) {
  return first_visible(kv_len, q_len, p.window_left) / tile_tokens * tile_tokens;
}

// What token `token` of request row `page_row` brings to a row of a unit.
float score(int page_row, int unit, int row, int token) {
  return 9 * std::sin(token * 0.37f + row * 1.7f + unit * 0.3f + page_row);
}
float value(int page_row, int token, int column) { return std::cos(token * 0.11f + column * 0.7f + page_row * 2); }

struct Sums {
  double maximum = -INFINITY, sum = 0;
  double out[kDim] = {};

  void add_tokens(const SplitSegment& s, int row, int begin, int end) {
    for (int token = begin; token < end; ++token) {
      const double x = score(s.page_row, s.unit, row, token), next = std::max(maximum, x);
      const double old = sum == 0 ? 0 : std::exp2(maximum - next), own = std::exp2(x - next);
      for (int c = 0; c < kDim; ++c) out[c] = out[c] * old + own * value(s.page_row, token, c);
      sum = sum * old + own;
      maximum = next;
    }
  }
};

struct Batch {
  std::vector<int32_t> q_indptr = {0}, kv_lens;
  int units = 1, window_left = -1, max_q_len = 4;
};

template <int kTileTokens>
class Split {
 public:
  Split(const Batch& batch, int num_workers, int rows = 32)
      : batch_(batch), rows_(rows), p_{batch.kv_lens.data(), batch.q_indptr.data(), batch.max_q_len, batch.window_left},
        memory_(split_workspace_bytes(num_workers, rows, kDim), std::byte{0x7f}),  // no number in it is one to use
        work_(split_work_of(memory_.data(), num_workers, rows)) {
    work_.units = batch.units;
    work_.lockstep = lockstep_heads(batch.units, num_workers);
    const int tokens = batch.q_indptr.back();
    out_.assign(size_t{1} * tokens * batch.units * rows * kDim, NAN);
  }

  void check(Order order) {
    plan(order);
    check_in_place(order, false);
    if (rows_ <= MergeMemory::kRows && work_.lockstep == 1) check_in_place(order, true);
    out_.assign(out_.size(), NAN);
    for (int worker = 0; worker < work_.num_workers; ++worker) attend(worker, nullptr);
    static CombineShared shared;
    constexpr int kCtas = 7;
    for (int cta = 0; cta < kCtas; ++cta) {
      host_cta::run(kCombineThreads, order, [&] { SplitCombine<Split>(work_, *this, shared).run(cta, kCtas); });
    }
    expect_right();
  }

  // What SplitCombine asks of Rows.
  static constexpr int kValueDim = kDim;
  int most_rows() const { return rows_; }
  int rows_of(const SplitCut& cut) const { return rows_of(cut.unit); }
  void write(const SplitCut& cut, int row, int column, const float (&sum)[2], const SplitTotal& total) const {
    for (int i = 0; i < 2; ++i) out(cut.q_begin, cut.unit, row)[column + i] = sum[i] / total.sum;
  }

 private:
  // Every worker merges its shares of what it has cut, a warpgroup for each half of the columns, or the last one all.
  void check_in_place(Order order, bool shares) {
    out_.assign(out_.size(), NAN);
    std::vector<SplitCuts> cuts(work_.num_workers);
    for (int worker = 0; worker < work_.num_workers; ++worker) {
      cuts[worker].begin(work_, worker);
      attend(worker, &cuts[worker]);
    }
    for (int worker = 0; worker < work_.num_workers; ++worker) {
      for (int i = 0; i < cuts[worker].count; ++i) {
        shares ? merge_shares(cuts[worker].units[i], order) : merge_if_last(cuts[worker].units[i]);
      }
    }
    expect_right();
  }

  void merge_if_last(const SplitCutUnit& unit) {
    if (!arrives_last(unit.arrivals(work_, 0), unit.cut.pieces)) return;
    constexpr int kTiles = kDim / 8;
    for (int block = 0; block < rows_ / 16; ++block) {
      host_cta::run(32, Order::ascending, [&] {
        merge_in_place<kTiles>(work_, *this, {unit.cut, unit.pieces(work_.lockstep), block, 0});
      });
    }
  }

  void merge_shares(const SplitCutUnit& unit, Order order) {
    constexpr int kThreads = 128;
    static std::vector<char> memory(MergeMemory::kTileBytes + MergeMemory::kTotalsBytes + MergeMemory::kRows * 8);
    ptx::set_shared_memory(memory.data(), memory.size(), kThreads);
    const ptx::u32 tiles = ptx::smem_address(memory.data()), totals = tiles + MergeMemory::kTileBytes;
    const MergeMemory parts = {tiles, totals, totals + MergeMemory::kTotalsBytes};
    for (int half = 0; half < 2; ++half) {
      host_cta::run(kThreads, order, [&] {
        const SplitMerge<kHalfTiles, Split> merge(work_, *this, parts, 1);
        merge.run(unit, half * kHalfTiles);
      });
    }
  }

  int rows_of(int unit) const { return unit == batch_.units - 1 ? rows_ * 5 / 8 : rows_; }
  float* out(int q_begin, int unit, int row) const {
    return out_.data() + ((size_t{1} * q_begin * batch_.units + unit) * rows_ + row) * kDim;
  }

  void plan(Order order) {
    PlanInput in;
    in.q_indptr = batch_.q_indptr.data();
    in.kv_lens = batch_.kv_lens.data();
    in.num_requests = static_cast<int>(batch_.kv_lens.size());
    in.num_kv_heads = batch_.units;
    in.decode_q_len = batch_.max_q_len;
    in.window_left = batch_.window_left;
    in.cut_long_pairs = true;
    in.whole_tiles = true;
    in.tile_tokens = kTileTokens;
    if (in.num_requests % 2 == 1) {  // some as latent attention cuts them
      in.segment_tiles = 3;
      in.merge_tiles = 1;
      in.merged_pieces_a_tile = 20;
    }
    in.arrivals = work_.arrivals;
    const int lockstep = work_.lockstep, workers = work_.num_workers;
    host_cta::run(kPlanThreads, order, [&] {
      decode_plan(of_lockstep(in, lockstep), const_cast<DecodeWorker*>(work_.workers), workers, workers / lockstep,
                  lockstep);
    });
  }

  // What an attention kernel does. `cuts`: of the worker, which merges in place, or null.
  void attend(int worker, SplitCuts* cuts) {
    SplitRunState<kTileTokens> run;
    run.begin(work_, worker);
    if (run.left <= 0) work_.cuts[worker] = {};
    SplitSegment s;
    while (run.next(p_, work_, s)) {
      if (cuts == nullptr) note_cut(work_, worker, s);
      const int first = split_first_token(p_, s.kv_len, s.q_len, kTileTokens);
      const int begin = std::max(first + s.tile_begin * kTileTokens, first_visible(s.kv_len, s.q_len, p_.window_left));
      const int end = std::min(first + s.tile_end * kTileTokens, s.kv_len);
      for (int row = 0; row < rows_of(s.unit); ++row) {
        Sums sums;
        sums.add_tokens(s, row, begin, end);
        if (s.whole()) {
          for (int c = 0; c < kDim; ++c) out(s.q_begin, s.unit, row)[c] = static_cast<float>(sums.out[c] / sums.sum);
        } else {
          write_piece(s.slot(worker), row, sums);
        }
      }
      if (cuts != nullptr && !s.whole()) cuts->add(s, worker, work_.lockstep, rows_of(s.unit));
    }
  }

  void write_piece(int slot, int row, const Sums& sums) {
    float* const max_sum = work_.partial_max_sum + (size_t{1} * slot * rows_ + row) * 2;
    max_sum[0] = static_cast<float>(sums.maximum);
    max_sum[1] = static_cast<float>(sums.sum);
    for (int c = 0; c < kDim; ++c) {
      float4& four = split_piece<kDim>(work_, slot, row / 16, c / 8)[row % 8 * 4 + c % 8 / 2];
      (row % 16 < 8 ? (c % 2 == 0 ? four.x : four.y) : (c % 2 == 0 ? four.z : four.w)) =
          static_cast<float>(sums.out[c]);
    }
  }

  void expect_right() const {
    for (size_t r = 0; r < batch_.kv_lens.size(); ++r) {
      const int q_begin = batch_.q_indptr[r], q_len = batch_.q_indptr[r + 1] - q_begin, kv_len = batch_.kv_lens[r];
      if (q_len > batch_.max_q_len) continue;
      for (int unit = 0; unit < batch_.units; ++unit) {
        for (int row = 0; row < rows_of(unit); ++row) {
          SplitSegment s{};
          s.page_row = static_cast<int>(r);
          s.unit = unit;
          Sums sums;
          sums.add_tokens(s, row, first_visible(kv_len, q_len, p_.window_left), kv_len);
          for (int c = 0; c < kDim; ++c) {
            ASSERT_NEAR(out(q_begin, unit, row)[c], sums.out[c] / sums.sum, 1e-4)
                << "request " << r << " unit " << unit << " row " << row;
          }
        }
      }
    }
  }

  const Batch& batch_;
  const int rows_;  // of a unit
  const Params p_;
  std::vector<std::byte> memory_;
  SplitWork work_;
  mutable std::vector<float> out_;
};

Batch batch_of(std::vector<std::pair<int, int>> lengths, int units, int window_left = -1) {
  Batch out;
  for (const auto& [q_len, kv_len] : lengths) {
    out.q_indptr.push_back(out.q_indptr.back() + q_len);
    out.kv_lens.push_back(kv_len);
  }
  out.units = units;
  out.window_left = window_left;
  return out;
}

class SplitTest : public testing::TestWithParam<Order> {};

TEST_P(SplitTest, OneRequestIsCutForAllWorkers) {
  Split<64>(batch_of({{4, 5000}}, 2), 24).check(GetParam());
  Split<128>(batch_of({{4, 5000}}, 3), 17).check(GetParam());
}

TEST_P(SplitTest, RequestsOfAnyLength) {
  const Batch batch =
      batch_of({{1, 1}, {4, 700}, {2, 64}, {9, 900}, {3, 2049}, {4, 4}, {1, 1300}}, 4);  // the fourth is too long
  Split<64>(batch, 12).check(GetParam());
  Split<128>(batch, 9).check(GetParam());
}

// Of which workers merge shares, too.
TEST_P(SplitTest, UnitsOfOneRowBlock) {
  Split<64>(batch_of({{4, 5000}}, 1), 24, 16).check(GetParam());
  Split<128>(batch_of({{1, 1}, {4, 700}, {2, 64}, {3, 2049}, {4, 4}, {1, 1300}}, 1), 17, 16).check(GetParam());
}

TEST_P(SplitTest, WindowsThatBeginWithinATile) {
  const Batch batch = batch_of({{4, 3000}, {2, 100}, {1, 1111}}, 2, 777);
  Split<64>(batch, 10).check(GetParam());
  Split<128>(batch, 10).check(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Orders, SplitTest, testing::Values(Order::ascending, Order::descending, Order::random));

}  // namespace
}  // namespace warpweave::cuda
