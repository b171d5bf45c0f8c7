#include "cli/measure_latent.h"

namespace warpweave {
namespace {

constexpr int kCrowds[] = {1, 4, 16};
constexpr int kNewTokens[] = {16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048};
constexpr int kPrefixes[] = {0, 128, 1024, 4096, 16384, 32768};
constexpr int kMostStepTokens = 8192;
constexpr int64_t kMostPairs = int64_t{1} << 26;

}  // namespace

std::vector<LatentFormPoint> latent_points(int context_len) {
  std::vector<LatentFormPoint> points;
  for (const int requests : kCrowds) {
    for (const int new_tokens : kNewTokens) {
      for (const int prefix : kPrefixes) {
        const int64_t tokens = int64_t{requests} * new_tokens;
        if (new_tokens > context_len || prefix > context_len) continue;
        if (requests > 1 && (tokens > kMostStepTokens || tokens * prefix > kMostPairs)) continue;
        points.push_back({.requests = requests, .new_tokens = new_tokens, .prefix = prefix});
      }
    }
  }
  return points;
}

}  // namespace warpweave
