// The tier every machine has: four lanes of the compiler's own vectors, no instruction-set flags.
#include "attention/backends/intel_amx/kernels_generic.h"

#include "base/float16.h"
#include "base/float8.h"

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
  static bool any_greater(Vec a, Vec b) {
    return a.v[0] > b.v[0] || a.v[1] > b.v[1] || a.v[2] > b.v[2] || a.v[3] > b.v[3];
  }
  static float reduce_max(Vec a) {
    const float x = a.v[0] > a.v[1] ? a.v[0] : a.v[1], y = a.v[2] > a.v[3] ? a.v[2] : a.v[3];
    return x > y ? x : y;
  }
  static float reduce_add(Vec a) { return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]); }

  static Vec fraction(Vec x) { return {x.v - floor(max(x, set1(kLowest)).v)}; }
  // p * 2^floor(x), and an exact 0 below the range of normal numbers.
  static Vec scale_floor(Vec p, Vec x) {
    const Float4 n = floor(max(x, set1(kLowest)).v);
    const Int4 power = (__builtin_convertvector(n, Int4) + 127) << 23;
    return {x.v < kLowest ? Float4{} : p.v * (Float4)power};
  }
  static Vec keep_bits(uint32_t bits, Vec yes, Vec no) {
    const Int4 lanes = {1, 2, 4, 8};
    const int32_t b = static_cast<int32_t>(bits);
    return {(Int4{b, b, b, b} & lanes) == lanes ? yes.v : no.v};
  }

  template <Element E>
  static Vec load_as(const char* src, const uint8_t* scales) {
    if constexpr (E == Element::f32) return load(reinterpret_cast<const float*>(src));
    Vec r = zero();
    const float scale = E == Element::fp4_e2m1 ? e4m3_to_f32(*scales) : 1;
    for (int i = 0; i < 4; ++i) r.v[i] = decode<E>(src, i) * scale;
    return r;
  }
  [[gnu::always_inline]] static void transpose(Vec* rows) {
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < i; ++j) {
        const float kept = rows[i].v[j];
        rows[i].v[j] = rows[j].v[i];
        rows[j].v[i] = kept;
      }
    }
  }

 private:
  static constexpr float kLowest = -126;

  // Adding 1.5 * 2^23 rounds; where that went up, one less.
  static Float4 floor(Float4 x) {
    const Float4 rounded = (x + 12582912.0f) - 12582912.0f;
    return rounded > x ? rounded - 1.0f : rounded;
  }

  template <Element E>
  static float decode(const char* src, int i) {
    const uint8_t* bytes = reinterpret_cast<const uint8_t*>(src);
    if constexpr (E == Element::fp4_e2m1) return e2m1_to_f32(bytes[i / 2] >> i % 2 * 4);
    if constexpr (E == Element::fp8_e4m3) return kE4m3Table.values[bytes[i]];
    if constexpr (E == Element::fp8_e5m2) return kE5m2Table.values[bytes[i]];
    uint16_t bits;
    memcpy(&bits, src + 2 * i, 2);
    return E == Element::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
  }
};

}  // namespace

constinit const KernelSet kScalarKernels = f32_kernels<Vec, 2>("scalar");

}  // namespace warpweave::intel_amx
