// AVX-512 F/BW/DQ/VL: sixteen lanes, f32 arithmetic for every pool format.
#include "attention/backends/intel_amx/vec_avx512.h"

namespace warpweave::intel_amx {
namespace {

struct MacF32 {
  static Vec broadcast(const uint32_t* unit) {
    return Vec::set1(*reinterpret_cast<const float*>(unit));
  }
  static Vec mac(Vec a, Vec b, Vec c) { return Vec::fma(a, b, c); }
};

void softmax_f32(const SoftmaxArgs& args) { softmax<Vec>(args, nullptr); }

}  // namespace

const KernelSet kAvx512Kernels = {
    "avx512",
    false,
    1,
    pack_query_f32<Vec>,
    pack_k<Vec, LoadF32<Vec>>,
    pack_v<Vec, LoadF32<Vec>>,
    gemm<Vec, MacF32, 4>,
    softmax_f32,
    merge<Vec>,
    finish_row,
    no_thread_state,
    no_thread_state};

}  // namespace warpweave::intel_amx
