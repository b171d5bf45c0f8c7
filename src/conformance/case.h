// One conformance case, as written in cases/*.txt:
//   name reqs=Q:KV,Q:KVx3 heads=8/2 d=64 [dv=32] [page=16] [kv=f32,bf16,f16] [mode=extend|decode]
//        [window=N] [softcap=X] [sinks=1] [data=normal|descending|ascending|constant] [gap=N] [far=1]
// `Q:KVxN` repeats a request N times. gap: unused elements between tokens, heads and rows.
// far: pages lie more than 2^31 elements apart.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "kv/kv_format.h"

namespace warpweave::conformance {

enum class Data { normal, descending, ascending, constant };

struct Case {
  std::string name;
  struct Request { int q_len = 1, kv_len = 1; };
  std::vector<Request> requests;
  int q_heads = 1, kv_heads = 1;
  int head_dim = 64, v_head_dim = 64;
  int page_size = 16;
  std::vector<KvFormat> kv_formats;
  bool decode = false;
  int window = -1;
  float softcap = 0;
  bool sinks = false;
  Data data = Data::normal;
  int gap = 0;
  bool far = false;
};

// Test reports show a case by its name.
inline void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// Aborts with file and line on a mistake in the file: cases are part of the program.
std::vector<Case> read_cases(const std::string& path);

}  // namespace warpweave::conformance
