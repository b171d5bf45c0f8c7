// AVX512-BF16: bf16 pools multiplied as they are, two products per lane and instruction.
#include "attention/backends/intel_amx/pack_bf16.h"

namespace warpweave::intel_amx {
namespace {

struct MacPairs {
  static Vec broadcast(const uint32_t* unit) {
    return {_mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(*unit)))};
  }
  static Vec mac(Vec a, Vec b, Vec c) {
    return {_mm512_dpbf16_ps(c.v, (__m512bh)a.v, (__m512bh)b.v)};
  }
};

}  // namespace

const KernelSet kAvx512Bf16Kernels = {
    "avx512_bf16",
    true,
    1,
    pack_query_pairs,
    pack_k<Vec, LoadPairs>,
    pack_v<Vec, LoadPairs>,
    gemm<Vec, MacPairs, 4>,
    softmax_pairs,
    merge<Vec>,
    finish_row,
    no_thread_state,
    no_thread_state};

}  // namespace warpweave::intel_amx
