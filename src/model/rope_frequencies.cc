#include "model/rope_frequencies.h"

#include <algorithm>
#include <cmath>

namespace warpweave {
namespace {

constexpr double kTwoPi = 6.283185307179586;

// Long wavelengths are stretched, short ones kept, those between blended.
void scale_llama3(const RopeConfig& rope, std::vector<double>& inv_freq) {
  const double low_wavelength = rope.original_max_positions / rope.low_freq_factor;
  const double high_wavelength = rope.original_max_positions / rope.high_freq_factor;
  for (double& f : inv_freq) {
    const double wavelength = kTwoPi / f;
    if (wavelength > low_wavelength) {
      f /= rope.factor;
    } else if (wavelength >= high_wavelength) {
      const double blend = (rope.original_max_positions / wavelength - rope.low_freq_factor) /
                           (rope.high_freq_factor - rope.low_freq_factor);
      f = (1 - blend) * f / rope.factor + blend * f;
    }
  }
}

double yarn_mscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

double scale_yarn(const RopeConfig& rope, int rotary_dim, int max_positions, std::vector<double>& inv_freq) {
  const double original = rope.original_max_positions > 0 ? rope.original_max_positions : max_positions;
  // The dimension whose wavelength fits `rotations` times into the original context.
  const auto dim_of = [&](double rotations) {
    return rotary_dim * std::log(original / (rotations * kTwoPi)) / (2 * std::log(rope.theta));
  };
  double low = dim_of(rope.beta_fast), high = dim_of(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, rotary_dim - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    inv_freq[i] = inv_freq[i] / rope.factor * ramp + inv_freq[i] * (1 - ramp);
  }
  if (rope.attention_factor) return *rope.attention_factor;
  if (rope.mscale && rope.mscale_all_dim && *rope.mscale_all_dim != 0) {
    return yarn_mscale(rope.factor, *rope.mscale) / yarn_mscale(rope.factor, *rope.mscale_all_dim);
  }
  return yarn_mscale(rope.factor, 1.0);
}

// One set of factors for all positions of a served context: a sequence that grows past the original length
// would otherwise find its earlier keys rotated by the other set.
double scale_longrope(const RopeConfig& rope, int max_positions, int served_positions, std::vector<double>& inv_freq) {
  const bool is_long = served_positions > rope.original_max_positions;
  const std::vector<float>& factors = is_long ? rope.long_factors : rope.short_factors;
  for (size_t i = 0; i < std::min(inv_freq.size(), factors.size()); ++i) inv_freq[i] /= factors[i];
  if (const std::optional<double>& mscale = is_long ? rope.long_mscale : rope.short_mscale) return *mscale;
  if (rope.attention_factor) return *rope.attention_factor;
  const double stretched = static_cast<double>(max_positions) / rope.original_max_positions;
  return stretched <= 1 ? 1.0 : std::sqrt(1 + std::log(stretched) / std::log(rope.original_max_positions));
}

// The base that a served context asks for ("NTK-aware" scaling); one for all positions, as above.
double dynamic_theta(const RopeConfig& rope, int rotary_dim, int served_positions) {
  const double exponent = rotary_dim / (rotary_dim - 2.0);
  if (rope.alpha > 0) return rope.theta * std::pow(rope.alpha, exponent);
  const double stretched = static_cast<double>(served_positions) / rope.original_max_positions;
  return stretched <= 1 ? rope.theta : rope.theta * std::pow(rope.factor * stretched - (rope.factor - 1), exponent);
}

}  // namespace

RopeFrequencies rope_frequencies(const RopeConfig& rope, int head_dim, int max_positions, int served_positions) {
  const int rotary_dim = static_cast<int>(head_dim * rope.partial_rotary_factor) / 2 * 2;
  RopeFrequencies out;
  const bool dynamic = rope.type == RopeConfig::Type::dynamic;
  const double theta = dynamic ? dynamic_theta(rope, rotary_dim, served_positions) : rope.theta;
  for (int i = 0; i < rotary_dim / 2; ++i) out.inv_freq.push_back(std::pow(theta, -2.0 * i / rotary_dim));
  switch (rope.type) {
    case RopeConfig::Type::none:
    case RopeConfig::Type::plain:
    case RopeConfig::Type::dynamic: break;
    case RopeConfig::Type::linear:
      for (double& f : out.inv_freq) f /= rope.factor;
      break;
    case RopeConfig::Type::llama3: scale_llama3(rope, out.inv_freq); break;
    case RopeConfig::Type::yarn:
      out.attention_factor = scale_yarn(rope, rotary_dim, max_positions, out.inv_freq);
      break;
    case RopeConfig::Type::longrope:
      out.attention_factor = scale_longrope(rope, max_positions, served_positions, out.inv_freq);
      break;
  }
  const size_t divided = std::min(out.inv_freq.size(), rope.frequency_divisors.size());
  for (size_t i = 0; i < divided; ++i) out.inv_freq[i] /= rope.frequency_divisors[i];
  return out;
}

}  // namespace warpweave
