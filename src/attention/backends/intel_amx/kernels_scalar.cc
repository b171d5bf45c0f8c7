// The tier every machine has: four lanes of the compiler's own vectors, no instruction-set flags.
#include "attention/backends/intel_amx/kernels_generic.h"

#include "base/float16.h"

namespace warpweave::intel_amx {
namespace {

typedef float Float4 __attribute__((vector_size(16)));
typedef int32_t Int4 __attribute__((vector_size(16)));

struct Vec {
  static constexpr int kWidth = 4;
  Float4 v;

  static Vec load(const float* p) {
    Vec r;
    memcpy(&r.v, p, 16);
    return r;
  }
  static void store(float* p, Vec a) { memcpy(p, &a.v, 16); }
  static Vec set1(float x) { return {Float4{x, x, x, x}}; }
  static Vec zero() { return set1(0); }
  friend Vec operator+(Vec a, Vec b) { return {a.v + b.v}; }
  friend Vec operator-(Vec a, Vec b) { return {a.v - b.v}; }
  friend Vec operator*(Vec a, Vec b) { return {a.v * b.v}; }
  friend Vec operator/(Vec a, Vec b) { return {a.v / b.v}; }
  static Vec fma(Vec a, Vec b, Vec c) { return {a.v * b.v + c.v}; }
  static Vec max(Vec a, Vec b) { return {a.v > b.v ? a.v : b.v}; }
  static Vec abs(Vec a) { return {(Float4)((Int4)a.v & 0x7fffffff)}; }
  static Vec copysign(Vec a, Vec sign) {
    return {(Float4)(((Int4)a.v & 0x7fffffff) | ((Int4)sign.v & (int32_t)0x80000000))};
  }
  static Vec select_less(Vec a, Vec b, Vec yes, Vec no) { return {a.v < b.v ? yes.v : no.v}; }
  static float first(Vec a) { return a.v[0]; }
  static float reduce_max(Vec a) {
    const float x = a.v[0] > a.v[1] ? a.v[0] : a.v[1], y = a.v[2] > a.v[3] ? a.v[2] : a.v[3];
    return x > y ? x : y;
  }
  static float reduce_add(Vec a) { return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]); }

  // 2^n * poly(r), x = n ln 2 + r; exactly 0 below the range of normal numbers.
  static Vec exp(Vec x) {
    const Vec clamped = max(x, set1(-87.33f));
    const Float4 shifted = clamped.v * 1.44269504f + 12582912.0f;  // rounds: 1.5 * 2^23
    const Float4 n = shifted - 12582912.0f;
    const Float4 r = (clamped.v - n * 0.693359375f) - n * -2.12194440e-4f;
    Float4 p = r * (1.0f / 720) + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const Int4 power = (__builtin_convertvector(n, Int4) + 127) << 23;
    return {x.v < -87.33f ? Float4{} : p * (Float4)power};
  }

  static Vec load_as(Element element, const char* src) {
    if (element == Element::f32) return load(reinterpret_cast<const float*>(src));
    uint16_t bits[4];
    memcpy(bits, src, 8);
    Vec r;
    for (int i = 0; i < 4; ++i) {
      r.v[i] = element == Element::bf16 ? bf16_to_f32(bits[i]) : f16_to_f32(bits[i]);
    }
    return r;
  }
  static void transpose(Vec* rows) {
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < i; ++j) {
        const float kept = rows[i].v[j];
        rows[i].v[j] = rows[j].v[i];
        rows[j].v[i] = kept;
      }
    }
  }
};

struct MacF32 {
  static Vec broadcast(const uint32_t* unit) {
    float x;
    memcpy(&x, unit, 4);
    return Vec::set1(x);
  }
  static Vec mac(Vec a, Vec b, Vec c) { return Vec::fma(a, b, c); }
};

void softmax_f32(const SoftmaxArgs& args) { softmax<Vec>(args, nullptr); }

}  // namespace

const KernelSet kScalarKernels = {
    "scalar",
    false,
    1,
    pack_query_f32<Vec>,
    pack_k<Vec, LoadF32<Vec>>,
    pack_v<Vec, LoadF32<Vec>>,
    gemm<Vec, MacF32, 2>,
    softmax_f32,
    merge<Vec>,
    finish_row,
    no_thread_state,
    no_thread_state};

}  // namespace warpweave::intel_amx
