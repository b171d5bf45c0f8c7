#include "kv/cache_layout.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>

namespace warpweave {
namespace {

// Part of the memory that windows must save to be worth a page table more a group.
constexpr double kWorthwhile = 0.05;

// Layers by window, those that see everything first.
using Classes = std::map<int, std::vector<int>>;

Classes classes_of(const CacheLayoutRequest& request) {
  Classes classes;
  for (int layer = 0; layer < static_cast<int>(request.window_left.size()); ++layer) {
    const int window = request.window_left[layer];
    classes[window < 0 || window + 1 >= request.context_len ? -1 : window].push_back(layer);
  }
  return classes;
}

int groups_for(const std::vector<int>& layers, int unit) {
  return (static_cast<int>(layers.size()) + unit - 1) / unit;
}

// Layers times tokens that the longest request holds, where pages hold `unit` layers; -1: too many groups.
int64_t cost(const Classes& classes, int unit, const CacheLayoutRequest& request) {
  int64_t cost = 0;
  int groups = 0;
  for (const auto& [window, layers] : classes) {
    const int64_t kept = window < 0 ? request.context_len
                                    : std::min<int64_t>(request.context_len, int64_t{window} + 2 * request.page_size);
    groups += groups_for(layers, unit);
    cost += int64_t{groups_for(layers, unit)} * unit * kept;
  }
  return groups > kMaxCacheGroups ? -1 : cost;
}

}  // namespace

bool CacheLayout::windowed() const {
  return std::any_of(groups.begin(), groups.end(), [](const CacheGroupRule& group) { return group.windowed(); });
}

CacheLayout single_cache_group(int num_layers, const std::vector<bool>& without_kv) {
  CacheLayout out;
  out.groups.resize(1);
  for (int layer = 0; layer < num_layers; ++layer) {
    const bool keeps = without_kv.empty() || !without_kv[layer];
    out.places.push_back({0, keeps ? out.layers_per_page++ : -1});
  }
  return out;
}

CacheLayout plan_cache_layout(const CacheLayoutRequest& request) {
  const int num_layers = static_cast<int>(request.window_left.size());
  const Classes classes = classes_of(request);
  int best_unit = 0;
  int64_t best_cost = std::numeric_limits<int64_t>::max();
  for (int unit = num_layers; unit >= 1; --unit) {  // of equal costs, the fewest groups
    const int64_t this_cost = cost(classes, unit, request);
    if (this_cost < 0 || this_cost >= best_cost) continue;
    best_cost = this_cost;
    best_unit = unit;
  }
  const double all = static_cast<double>(num_layers) * request.context_len;
  if (best_unit == 0 || static_cast<double>(best_cost) > (1 - kWorthwhile) * all) return single_cache_group(num_layers);
  CacheLayout out;
  out.layers_per_page = best_unit;
  out.places.resize(num_layers);
  for (const auto& [window, layers] : classes) {
    for (size_t i = 0; i < layers.size(); ++i) {
      if (i % best_unit == 0) out.groups.push_back({window});
      out.places[layers[i]] = {out.num_groups() - 1, static_cast<int>(i) % best_unit};
    }
  }
  return out;
}

}  // namespace warpweave
