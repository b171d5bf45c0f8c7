// What experts_bench is asked for. A word or a number that it does not take ends the program with its name.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "ops/cuda/experts.h"

namespace warpweave::gpu {

struct ExpertOptions {
  bool fp8 = false, parts = false, dense = false, tiles = false;
  double bytes_per_us = 0;  // that this GPU reads
  double tflops = 0;        // of a dense GEMM of the weights' format
};

struct ExpertArguments {
  ExpertOptions options;
  std::string_view mode;  // none: fixed shapes
  std::vector<int64_t> numbers;
};

[[noreturn]] inline void refuse(std::string_view error) {
  fmt::print(stderr, "experts_bench: {}\n", error);
  std::exit(2);
}

inline int64_t number_of(std::string_view text) {
  constexpr int64_t kMost = int64_t{1} << 32;
  int64_t out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || end != text.data() + text.size() || out < 0 || out >= kMost) {
    refuse(fmt::format("'{}' is no whole number from 0 to 2^32 - 1", text));
  }
  return out;
}

inline void check_numbers(std::string_view mode, const std::vector<int64_t>& numbers) {
  const auto positive = [](int64_t number) { return number > 0; };
  const size_t sizes = mode == "random" ? std::min<size_t>(numbers.size(), 1) : numbers.size();  // a seed may be 0
  if (!std::all_of(numbers.begin(), numbers.begin() + static_cast<int64_t>(sizes), positive)) {
    refuse(fmt::format("a number of {} is 0", mode));
  }
  if (mode == "random" && numbers.size() > 2) refuse("random takes N and SEED, no more");
  if (mode == "shape" && numbers.size() < 5) refuse("shape takes EXPERTS K HIDDEN FFN and one number of rows or more");
  if (mode == "shape" && numbers[0] > kMaxGpuExperts) refuse(fmt::format("shape: EXPERTS is above {}", kMaxGpuExperts));
  if (mode == "shape" && numbers[1] > std::min<int64_t>(numbers[0], kMaxGpuExpertsPerToken)) {
    refuse(fmt::format("shape: K is above EXPERTS or above {}", kMaxGpuExpertsPerToken));
  }
}

inline ExpertArguments arguments_of(int argc, char** argv) {
  ExpertArguments out;
  for (int at = 1; at < argc; ++at) {
    const std::string_view word = argv[at];
    const bool names_mode = word == "random" || word == "shape" || word == "skew";
    if (!out.mode.empty())
      out.numbers.push_back(number_of(word));
    else if (word == "fp8")
      out.options.fp8 = true;
    else if (word == "parts")
      out.options.parts = true;
    else if (word == "dense")
      out.options.dense = true;
    else if (word == "tiles")
      out.options.tiles = true;
    else if (names_mode)
      out.mode = word;
    else
      refuse(fmt::format("unknown argument '{}'; there are fp8, parts, dense, tiles, random, shape and skew", word));
  }
  check_numbers(out.mode, out.numbers);
  return out;
}

}  // namespace warpweave::gpu
