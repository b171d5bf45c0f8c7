// Against the method's definition, position by position in f64: every pair of query and key has a
// relative distance, and the rotary embedding is applied for that distance alone. The test rotates
// queries and keys as the model does; the truth knows only distances.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <numeric>
#include <random>

#include "attention/backends/dual_chunk_flash_attn/backend.h"
#include "base/threads.h"

namespace warpweave::dual_chunk_flash_attn {
namespace {

constexpr int kDim = 16, kHeads = 4, kKvHeads = 2, kPage = 7;

struct Chunks {
  int chunk_size, local_size;
  int len() const { return chunk_size - local_size; }
  // The distance that the rotation of a query at `q` and a key at `kv` <= q stands for.
  int distance(int q, int kv) const {
    const int apart = q / len() - kv / len();
    if (apart == 0) return q - kv;
    const int farthest = std::min(chunk_size, 2 * len() - 1);
    const int from = apart == 1 ? std::min(q % len() + len(), farthest) : farthest;
    return from - kv % len();
  }
};

std::vector<double> random_values(size_t count, std::mt19937& random) {
  std::normal_distribution<double> normal;
  std::vector<double> values(count);
  for (double& x : values) x = normal(random);
  return values;
}

// Pairs (i, i + kDim / 2) turned by position * 10000^(-2i / kDim).
void rotate(const double* from, double position, float* to) {
  for (int i = 0; i < kDim / 2; ++i) {
    const double angle = position * std::pow(10000.0, -2.0 * i / kDim);
    const std::complex<double> turned = std::complex(from[i], from[i + kDim / 2]) * std::polar(1.0, angle);
    to[i] = static_cast<float>(turned.real());
    to[i + kDim / 2] = static_cast<float>(turned.imag());
  }
}

double rotated_dot(const double* q, const double* k, int distance) {
  double sum = 0;
  for (int i = 0; i < kDim / 2; ++i) {
    const double angle = distance * std::pow(10000.0, -2.0 * i / kDim);
    const std::complex<double> a(q[i], q[i + kDim / 2]), b(k[i], k[i + kDim / 2]);
    sum += (a * std::polar(1.0, angle) * std::conj(b)).real();
  }
  return sum;
}

// One sequence of `kv_len` tokens of which the last `q_len` are query rows.
class Sequence {
 public:
  Sequence(Chunks chunks, int kv_len) : chunks_(chunks), kv_len_(kv_len) {
    std::mt19937 random(5);
    q_ = random_values(static_cast<size_t>(kv_len) * kHeads * kDim, random);
    k_ = random_values(static_cast<size_t>(kv_len) * kKvHeads * kDim, random);
    v_ = random_values(static_cast<size_t>(kv_len) * kKvHeads * kDim, random);
    const int pages = (kv_len + kPage - 1) / kPage;
    pages_.resize(pages);
    std::iota(pages_.begin(), pages_.end(), 0);
    std::shuffle(pages_.begin(), pages_.end(), random);
    k_pool_.assign(static_cast<size_t>(pages) * kPage * kKvHeads * kDim, NAN);
    v_pool_ = k_pool_;
    for (int t = 0; t < kv_len; ++t) {
      for (int h = 0; h < kKvHeads; ++h) {
        const size_t at = (static_cast<size_t>(pages_[t / kPage] * kPage + t % kPage) * kKvHeads + h) * kDim;
        const size_t from = (static_cast<size_t>(t) * kKvHeads + h) * kDim;
        rotate(&k_[from], t % chunks.len(), &k_pool_[at]);
        std::copy_n(&v_[from], kDim, &v_pool_[at]);
      }
    }
  }

  // Rows [begin, end) as one forward; `ordinary`: without chunks, keys being rotated likewise.
  std::vector<float> run(AttentionBackend& backend, int begin, int end, bool ordinary = false) const {
    const int rows = end - begin, width = kHeads * kDim, c = chunks_.len();
    const int farthest = std::min(chunks_.chunk_size, 2 * c - 1);
    std::vector<float> q(rows * width), q_succ(q), q_inter(q), out(q);
    for (int i = 0; i < rows; ++i) {
      for (int h = 0; h < kHeads; ++h) {
        const int p = begin + i, at = i * width + h * kDim;
        const double* raw = &q_[(static_cast<size_t>(p) * kHeads + h) * kDim];
        rotate(raw, p % c, &q[at]);
        rotate(raw, std::min(p % c + c, farthest), &q_succ[at]);
        rotate(raw, farthest, &q_inter[at]);
      }
    }
    const std::vector<int32_t> q_indptr = {0, rows}, kv_lens = {end};
    ForwardBatch batch;
    batch.mode = rows == 1 ? ForwardMode::decode : ForwardMode::extend;
    batch.num_reqs = 1;
    batch.num_tokens = batch.max_q_len = rows;
    batch.page_size = kPage;
    batch.q_indptr = q_indptr;
    batch.kv_lens = kv_lens;
    batch.page_table = pages_;
    batch.page_table_stride = static_cast<int>(pages_.size());
    const DualChunkQueries dual = {q_succ.data(), q_inter.data(), width, c};
    AttentionCall call;
    call.num_q_heads = kHeads;
    call.num_kv_heads = kKvHeads;
    call.head_dim = call.v_head_dim = kDim;
    call.scale = 0.25f;
    call.q = q.data();
    call.q_token_stride = call.out_token_stride = width;
    call.k.data = k_pool_.data();
    call.k.format = KvFormat::f32;
    call.k.head_stride = kDim;
    call.k.token_stride = kKvHeads * kDim;
    call.k.page_stride = kPage * kKvHeads * kDim;
    call.v = call.k;
    call.v.data = v_pool_.data();
    call.out = out.data();
    call.dual_chunk = ordinary ? nullptr : &dual;
    EXPECT_TRUE(backend.init_forward_metadata(batch).ok());
    EXPECT_TRUE((rows == 1 ? backend.forward_decode(batch, call) : backend.forward_extend(batch, call)).ok());
    return out;
  }

  std::vector<double> truth(int p, int h) const {
    const double* q = &q_[(static_cast<size_t>(p) * kHeads + h) * kDim];
    const int kv_head = h / (kHeads / kKvHeads);
    double sum = 0;
    std::vector<double> out(kDim, 0);
    for (int t = 0; t <= p; ++t) {
      const size_t at = (static_cast<size_t>(t) * kKvHeads + kv_head) * kDim;
      const double weight = std::exp(0.25 * rotated_dot(q, &k_[at], chunks_.distance(p, t)));
      sum += weight;
      for (int d = 0; d < kDim; ++d) out[d] += weight * v_[at + d];
    }
    for (double& x : out) x /= sum;
    return out;
  }

  double error(const std::vector<float>& out, int begin, int end) const {
    double worst = 0;
    for (int p = begin; p < end; ++p) {
      for (int h = 0; h < kHeads; ++h) {
        const std::vector<double> want = truth(p, h);
        for (int d = 0; d < kDim; ++d) {
          const double got = out[((p - begin) * kHeads + h) * kDim + d];
          if (!(std::fabs(got - want[d]) <= worst)) worst = std::fabs(got - want[d]);
        }
      }
    }
    return worst;
  }

 private:
  Chunks chunks_;
  int kv_len_;
  std::vector<double> q_, k_, v_;
  std::vector<float> k_pool_, v_pool_;
  std::vector<int32_t> pages_;
};

TEST(DualChunk, DistancesOfTheMethod) {
  const Chunks c = {.chunk_size = 12, .local_size = 4};  // chunks of 8
  EXPECT_EQ(c.distance(7, 3), 4);
  EXPECT_EQ(c.distance(8, 7), 1);     // neighbours stay neighbours across a border
  EXPECT_EQ(c.distance(11, 2), 9);
  EXPECT_EQ(c.distance(15, 0), 12);   // never farther than chunk_size
  EXPECT_EQ(c.distance(15, 7), 5);    // true distance 8: folded
  EXPECT_EQ(c.distance(23, 7), 5);
  EXPECT_EQ(c.distance(100, 0), 12);
}

class DualChunkTiers : public testing::TestWithParam<int> {};

TEST_P(DualChunkTiers, MatchesTheDefinition) {
  const auto tier = static_cast<CpuTier>(GetParam());
  ThreadTeam team(2);
  const auto backend = create_for_tier({.team = &team}, tier);
  for (const Chunks chunks : {Chunks{12, 4}, Chunks{40, 7}, Chunks{96, 32}, Chunks{150, 22}, Chunks{20, 14}}) {
    const Sequence sequence(chunks, 300);
    const auto prefill = sequence.run(*backend, 0, 300);
    EXPECT_LE(sequence.error(prefill, 0, 300), 1e-5) << chunks.chunk_size;
    // The same bits in pieces and by decode.
    for (const int cut : {1, 33, 128, 299}) {
      const auto rest = sequence.run(*backend, cut, 300);
      EXPECT_TRUE(std::equal(rest.begin(), rest.end(), prefill.begin() + cut * kHeads * kDim)) << cut;
    }
    for (const int row : {0, 11, 64, 129, 299}) {
      const auto one = sequence.run(*backend, row, row + 1);
      EXPECT_TRUE(std::equal(one.begin(), one.end(), prefill.begin() + row * kHeads * kDim)) << row;
    }
  }
}

// Up to chunk_len tokens it is ordinary attention, to the bit.
TEST_P(DualChunkTiers, ShortSequencesAreOrdinary) {
  const auto tier = static_cast<CpuTier>(GetParam());
  ThreadTeam team(2);
  const auto backend = create_for_tier({.team = &team}, tier);
  const Sequence sequence({.chunk_size = 200, .local_size = 50}, 150);
  EXPECT_EQ(sequence.run(*backend, 0, 150), sequence.run(*backend, 0, 150, true));
  EXPECT_LE(sequence.error(sequence.run(*backend, 0, 150, true), 0, 150), 1e-5);
  // One token more, and the chunks matter.
  const Sequence longer({.chunk_size = 200, .local_size = 50}, 151);
  EXPECT_NE(longer.run(*backend, 150, 151), longer.run(*backend, 150, 151, true));
}

INSTANTIATE_TEST_SUITE_P(Tiers, DualChunkTiers,
                         testing::Range(0, static_cast<int>(cpu_info().tier) + 1));

}  // namespace
}  // namespace warpweave::dual_chunk_flash_attn
