// One conformance case, as written in cases/*.txt:
//   name reqs=Q:KV,Q:KVx3 heads=8/2 d=64 [dv=32] [page=16] [kv=f32,bf16,f16,fp8_e4m3,...]
//        [mode=extend|decode] [window=N] [right=N] [softcap=X] [sinks=1] [causal=0] [tree=chain|full|random]
//        [dual=N] [latent=RANK+ROPE] [data=normal|descending|ascending|constant|biased] [shared=N] [scales=none]
//        [gap=N] [far=1] [in_order=N]
// `Q:KVxN` repeats a request N times. kv: without it, every format that can block the head dims.
// dual: dual chunk attention in chunks of N tokens. causal=0: every row sees all of its request, or with right=N up to
// N tokens after its own.
// latent: latent attention in place of d and dv: one KV head of RANK + ROPE values, the first RANK of which are V.
// tree: the query rows of a request are nodes of a draft tree; `full` sees all of them, later ones
// too. shared: the first N tokens of all requests are the same, and so are the full pages they fill.
// scales: fp8 and fp4 pools have random head scales; none: they have no head scales.
// gap: unused elements between tokens, heads and rows. far: pages lie more than 2^31 elements apart.
// in_order: pages lie one behind the other, but for two neighbours of every N, which are exchanged; else shuffled.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "kv/kv_format.h"

namespace warpweave::conformance {

enum class Data { normal, descending, ascending, constant, biased };  // biased: V around 2
enum class Tree { none, chain, full, random };

struct Case {
  std::string name;
  struct Request { int q_len = 1, kv_len = 1; };
  std::vector<Request> requests;
  int q_heads = 1, kv_heads = 1;
  int head_dim = 64, v_head_dim = 64;
  int page_size = 16;
  bool any_page = true;   // the line names no page size: a backend may run the case with its own
  std::vector<KvFormat> kv_formats;
  bool decode = false;
  int window = -1;
  int window_right = -1;
  float softcap = 0;
  bool sinks = false;
  bool causal = true;
  int dual_chunk_len = 0;  // 0: ordinary attention
  bool latent = false;
  Tree tree = Tree::none;
  Data data = Data::normal;
  int shared = 0;
  bool head_scales = true;
  int gap = 0;
  bool far = false;
  int in_order = 0;
};

// Test reports show a case by its name.
inline void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// The cases of a file's text. Aborts with `name` and line on a mistake: cases are part of the program.
std::vector<Case> parse_cases(const std::string& text, const std::string& name);
std::vector<Case> read_cases(const std::string& path);

// The files of cases/ inside the program: "mha.txt" and its text.
struct CaseFile {
  std::string name;
  std::string text;
};
const std::vector<CaseFile>& embedded_case_files();

}  // namespace warpweave::conformance
