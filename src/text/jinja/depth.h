// Bounds the recursion of the interpreter, nested macros included, well within a 2 MiB stack.
#pragma once

#include <string>

#include "text/jinja/value.h"

namespace warpweave::jinja {

inline constexpr int kMaxRecursion = 700;

class Depth {
 public:
  explicit Depth(int& depth) : depth_(depth) {
    if (depth_ >= kMaxRecursion) {
      throw Error("the template recurses deeper than " + std::to_string(kMaxRecursion) +
                  " levels; a macro may be calling itself without end");
    }
    ++depth_;
  }
  ~Depth() { --depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;

 private:
  int& depth_;
};

}  // namespace warpweave::jinja
