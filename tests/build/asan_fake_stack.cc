// A fault of GCC 12's address sanitizer, not of ours: not built. With detect_stack_use_after_return=1 a frame's variables lie
// in memory that the sanitizer's runtime lends, at a multiple of 64. GCC places them as in the real frame, which it aligns so
// that the frame's end is at a multiple of 64: these two arrays take 224 bytes, its start is 32 past one, and `lanes` at 32
// within it may be stored by an instruction that needs 64 (vmovdqa64). In lent memory that is 32 off: SIGSEGV. GCC's PR 110027.
//   g++ -O1 -mavx512f -fsanitize=address tests/build/asan_fake_stack.cc -o /tmp/fake_stack
//   ASAN_OPTIONS=detect_stack_use_after_return=1 /tmp/fake_stack    SEGV; with =0, or built by clang: prints 17
#include <stdio.h>
#include <string.h>

typedef float Lanes __attribute__((vector_size(64)));
typedef float LooseLanes __attribute__((vector_size(64), aligned(4), may_alias));

static inline float largest(Lanes v) {
  float lanes[16];
  memcpy(lanes, &v, sizeof v);
  for (int step = 8; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) lanes[i] = lanes[i] > lanes[i + step] ? lanes[i] : lanes[i + step];
  }
  return lanes[0];
}

static inline float sum(Lanes v) {
  float lanes[16];
  memcpy(lanes, &v, sizeof v);
  for (int step = 8; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) lanes[i] += lanes[i + step];
  }
  return lanes[0];
}

__attribute__((noinline)) float both(const float* p) {
  const Lanes v = *(const LooseLanes*)p;
  return largest(v) + sum(v * v);
}

int main() {
  const float x[16] = {1, 2, 3};
  printf("%g\n", both(x));
}
