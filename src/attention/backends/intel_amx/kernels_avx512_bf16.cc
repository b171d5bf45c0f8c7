// AVX512-BF16: bf16, fp8 and fp4 pools multiplied as bf16, two multiplications per lane and instruction.
#include "attention/backends/intel_amx/few_rows.h"
#include "attention/backends/intel_amx/pairs_fp8.h"

namespace warpweave::intel_amx {
namespace {

struct MacPairs {
  static Vec broadcast(const uint32_t* unit) {
    return Vec::of(_mm512_set1_epi32(static_cast<int>(*unit)));
  }
  static Vec mac(Vec a, Vec b, Vec c) {
    return {_mm512_dpbf16_ps(c.v, (__m512bh)a.v, (__m512bh)b.v)};
  }
};

void few_rows_pairs(const FewRowsArgs& args) {
  switch (args.k.element) {
    case Element::fp8_e4m3: return few_rows_of<Vec, MacPairs, LoadFp8<Element::fp8_e4m3>>(args);
    case Element::fp8_e5m2: return few_rows_of<Vec, MacPairs, LoadFp8<Element::fp8_e5m2>>(args);
    case Element::fp4_e2m1: return few_rows_of<Vec, MacPairs, LoadFp4>(args);
    default: return few_rows_of<Vec, MacPairs, LoadBf16>(args);
  }
}

constexpr KernelSet make_kernels() {
  KernelSet set = pair_kernels("avx512_bf16");
  set.group_rows = 24;
  set.tile_rows = 240;
  set.row_padding = 1;
  set.attend = attend<Vec, MacPairs, 4, true>;
  set.few_rows = few_rows_pairs;
  set.enter = no_thread_state;
  set.leave = no_thread_state;
  return set;
}

}  // namespace

constinit const KernelSet kAvx512Bf16Kernels = make_kernels();

}  // namespace warpweave::intel_amx
