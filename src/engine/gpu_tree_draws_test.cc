// Chains and trees of guesses sampled by the GPU's kernel keep the target's distribution: chi-square over many draws.
// Rows of the wrong logits are found by the same test, and thresholds keep as many guesses as they say.
#include <gtest/gtest.h>

#include <vector>

#include "device/cuda/copy.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "engine/guess_draws.h"
#include "sample/cuda/gpu_sampler.h"

namespace warpweave {
namespace {

using namespace guess_draws;

constexpr int kDraws = 200'000;

class GpuDraws : public testing::Test {
 protected:
  void SetUp() override {
    if (!probe_cuda_device().ok()) GTEST_SKIP() << "no GPU";
    auto stream = create_stream();
    ASSERT_TRUE(stream.ok()) << stream.status().message();
    stream_ = std::move(*stream);
  }

  // [seed][node]: what the step that checks `plan` samples in each row, the root's token standing at `position` - 1.
  std::vector<int32_t> sample(const Plan& plan, int32_t last, uint64_t position) {
    const int nodes = plan.proposal.size() + 1;
    std::vector<float> logits;
    std::vector<int32_t> guesses;
    std::vector<gpu::SampleRowParams> of_node(nodes), rows;
    for (int node = 0; node < nodes; ++node) {
      const int32_t token = node == 0 ? last : plan.shown ? plan.shown(node) : plan.proposal.token(node);
      const std::vector<float> row_logits = logits_after(token);
      logits.insert(logits.end(), row_logits.begin(), row_logits.end());
      gpu::SampleRowParams& row = of_node[node];
      row.logits_row = node;
      row.temperature = 1;
      if (plan.accept.lossless()) continue;
      std::vector<int32_t> children;
      plan.proposal.children(node, children);
      row.guesses = static_cast<int32_t>(guesses.size());
      row.num_guesses = static_cast<int32_t>(children.size());
      row.accept_single = plan.accept.single;
      row.accept_acc = plan.accept.acc;
      guesses.insert(guesses.end(), children.begin(), children.end());
    }
    rows.reserve(size_t{kDraws} * nodes);
    for (uint64_t seed = 0; seed < kDraws; ++seed) {
      for (int node = 0; node < nodes; ++node) {
        gpu::SampleRowParams& row = rows.emplace_back(of_node[node]);
        row.draw = uniform_draw(seed, position + plan.proposal.depth(node));
        row.accept_draw = acceptance_draw(seed, position + plan.proposal.depth(node));
      }
    }
    guesses.push_back(0);
    return run(rows, guesses, logits);
  }

  Counts draw(const Plan& plan) {
    const std::vector<int32_t> checked = sample(plan, 0, 1);
    std::vector<std::vector<int32_t>> after(kVocab);  // a step without guesses, where the first token was none
    for (int32_t token = 0; token < kVocab; ++token) after[token] = sample({.proposal = {}}, token, 2);
    const int nodes = plan.proposal.size() + 1;
    Counts counts{};
    for (int seed = 0; seed < kDraws; ++seed) {
      const int32_t* const row = checked.data() + int64_t{seed} * nodes;
      const int32_t first = row[0];
      const int next = plan.proposal.child(0, first);
      ++counts.at(first).at(next > 0 ? row[next] : after[first][seed]);
    }
    return counts;
  }

 private:
  template <typename T>
  const T* upload(const std::vector<T>& values, DeviceBuffer& buffer) {
    auto made = DeviceBuffer::allocate(values.size() * sizeof(T), "the test");
    EXPECT_TRUE(made.ok()) << made.status().message();
    buffer = std::move(*made);
    EXPECT_TRUE(copy_async(buffer.as<void>(), values.data(), values.size() * sizeof(T), stream_.get(), "the test").ok());
    EXPECT_TRUE(wait_for_stream(stream_.get(), "the test").ok());
    return buffer.as<T>();
  }

  std::vector<int32_t> run(const std::vector<gpu::SampleRowParams>& rows, const std::vector<int32_t>& guesses,
                           const std::vector<float>& logits) {
    DeviceBuffer row_memory, guess_memory, logit_memory, out_memory;
    std::vector<int32_t> out(rows.size(), -7);
    gpu::SampleCall call;
    call.rows = upload(rows, row_memory);
    call.num_rows = static_cast<int>(rows.size());
    call.guesses = upload(guesses, guess_memory);
    call.logits = upload(logits, logit_memory);
    call.vocab_size = kVocab;
    call.out = const_cast<int32_t*>(upload(out, out_memory));
    gpu::sample_rows(call, stream_.get());
    EXPECT_TRUE(copy_async(out.data(), call.out, out.size() * sizeof(int32_t), stream_.get(), "the test").ok());
    EXPECT_TRUE(wait_for_stream(stream_.get(), "the test").ok());
    return out;
  }

  CudaStream stream_;
};

double chi_square(const Counts& counts) { return guess_draws::chi_square(counts, kDraws); }

TEST_F(GpuDraws, ChainsAndTreesKeepTheDistribution) {
  const Counts of_chain = draw({.proposal = chain()}), of_tree = draw({.proposal = tree()});
  EXPECT_LT(chi_square(of_chain), kOnceInAThousand);
  EXPECT_LT(chi_square(of_tree), kOnceInAThousand);
  const Counts of_none = draw({.proposal = {}});
  EXPECT_EQ(of_chain, of_none) << "not only the distribution, each draw is the same";
  EXPECT_EQ(of_tree, of_none);
}

TEST_F(GpuDraws, ADistributionThatIsNotTheTargetsIsFound) {
  const Proposal t = tree();
  EXPECT_GT(chi_square(draw({.proposal = t, .shown = [&](int node) { return t.token(node % t.size() + 1); }})),
            kOnceInAThousand);
  EXPECT_GT(chi_square(draw({.proposal = chain(), .shown = [](int) { return 0; }})), kOnceInAThousand);
}

// The first token of a tree with the guesses 2, 3 and 5 behind its root.
TEST_F(GpuDraws, AThresholdKeepsAnyGuessOfANodeThatMuchMoreOften) {
  const std::vector<double> p = probabilities_after(0);
  const double all = p[2] + p[3] + p[5];
  const float acc = static_cast<float>((1 + all) / 2);
  ASSERT_GT(all / acc, all + 0.02) << "else nothing is proven";
  const std::vector<int32_t> sampled = sample({.proposal = tree(), .accept = {.single = 1, .acc = acc}}, 0, 1);
  const int nodes = tree().size() + 1;
  double kept = 0;
  for (int seed = 0; seed < kDraws; ++seed) {
    const int32_t token = sampled[int64_t{seed} * nodes];
    kept += token == 2 || token == 3 || token == 5 ? 1.0 / kDraws : 0;
  }
  EXPECT_NEAR(kept, all / acc, 0.005);
}

}  // namespace
}  // namespace warpweave
