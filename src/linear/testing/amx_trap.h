// Runs code compiled for AMX's tiles of bf16 on CPUs that lack them: their instructions raise SIGILL there, and a
// handler does in C++ what each would have done. So the code itself is tested: its encodings, and that no compiler moved
// a store past a tile's load. x86-64 Linux; some microseconds an instruction.
#pragma once

#include <signal.h>

#include <cstdint>

namespace warpweave::testing_linear {

// One at a time. What else raises SIGILL ends the process, and so does a use of tiles that a CPU would refuse.
class AmxTrap {
 public:
  AmxTrap();
  ~AmxTrap();
  AmxTrap(const AmxTrap&) = delete;

  static uint64_t instructions();  // done so far, by all threads

 private:
  struct sigaction before_;
};

}  // namespace warpweave::testing_linear
