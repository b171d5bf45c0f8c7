#include "linear/cuda/prompt_forms.h"

namespace warpweave::linear {
namespace {

// Microseconds (one H200, GDN of 128 x 128, 1 to 64 v heads). Of one launch: itself; a round, in which each block goes through a prompt; a
// chunk of it; a last one of fewer tokens besides, which TMA does not bring. Of two: themselves; a chunk's preparation for a head, on
// one multiprocessor, where heads share a k head and where not; a chunk of a scan by blocks of 64 columns of V, all at once, and of
// 128. What both in turn take besides.
constexpr double kOneLaunchUs = 3, kRoundUs = 5.2, kChunkUs = 2.85, kPartUs = 2.5;
constexpr double kTwoLaunchesUs = 11, kPrepareUs = 2.5, kPrepareAloneUs = 3.5, kHalfScanUs = 1.0, kScanUs = 1.7;
constexpr double kBothUs = 19;
// Heads are shared out only where that saves this much.
constexpr double kLeastGain = 1.03;

class Reckoning {
 public:
  Reckoning(const LinearParams& p, int multiprocessors)
      : requests_(p.batch.num_requests), multiprocessors_(multiprocessors), shared_k_(p.heads_per_k > 1),
        longest_((p.batch.max_q_tokens + kChunk - 1) / kChunk), part_us_(p.batch.max_q_tokens % kChunk == 0 ? 0 : kPartUs),
        chunks_(static_cast<double>(p.batch.num_tokens) / kChunk) {}

  double one_launch(int heads) const {
    return heads == 0 ? 0 : kOneLaunchUs + rounds(heads) * (kRoundUs + kChunkUs * longest_ + part_us_);
  }
  double two_launches(int heads) const {
    if (heads == 0) return 0;
    const bool halves = 2 * requests_ * heads <= multiprocessors_;
    const double prepare = chunks_ * heads * (shared_k_ ? kPrepareUs : kPrepareAloneUs) / multiprocessors_;
    return kTwoLaunchesUs + prepare + rounds(heads) * (kRoundUs + (halves ? kHalfScanUs : kScanUs) * longest_);
  }

 private:
  int rounds(int heads) const { return (requests_ * heads + multiprocessors_ - 1) / multiprocessors_; }

  const int requests_, multiprocessors_;
  const bool shared_k_;
  const int longest_;  // in chunks
  const double part_us_, chunks_;
};

}  // namespace

int heads_in_one_launch(const LinearParams& p, int multiprocessors) {
  const Reckoning us(p, multiprocessors);
  int best = us.one_launch(p.v_heads) < us.two_launches(p.v_heads) ? p.v_heads : 0;
  double least = (us.one_launch(best) + us.two_launches(p.v_heads - best)) / kLeastGain;
  for (int rounds = 1;; ++rounds) {
    const int heads = rounds * multiprocessors / p.batch.num_requests / p.heads_per_k * p.heads_per_k;
    if (heads >= p.v_heads) return best;
    const double both = us.one_launch(heads) + us.two_launches(p.v_heads - heads) + kBothUs;
    if (heads > 0 && both < least) least = both, best = heads;
  }
}

LinearParams heads_of(const LinearParams& p, int first, int count) {
  LinearParams part = p;
  const auto shift = [](LinearAttnRows& rows, int heads) {
    if (rows.data == nullptr) return;
    rows.data = static_cast<const std::byte*>(rows.data) + heads * rows.head_stride * (rows.dtype == DType::f32 ? 4 : 2);
  };
  part.v_heads = count, part.k_heads = count / p.heads_per_k;
  shift(part.q, first / p.heads_per_k), shift(part.k, first / p.heads_per_k);
  for (LinearAttnRows* rows : {&part.v, &part.g, &part.beta, &part.gates.a, &part.gates.b}) shift(*rows, first);
  if (p.gates.a_log != nullptr) part.gates.a_log += first;
  if (p.gates.dt_bias != nullptr) part.gates.dt_bias += first * p.decay_channels;
  part.state.data = static_cast<std::byte*>(p.state.data) + first * p.state.head_stride * (p.state.dtype == DType::f32 ? 4 : 2);
  part.out = static_cast<std::byte*>(p.out) + int64_t{first} * p.v_dim * (p.out_dtype == DType::f32 ? 4 : 2);
  return part;
}

}  // namespace warpweave::linear
