// Values: the 16-bit formats of activations and the formats that caches are stored in to f32 and back, 2^x, for one value
// and for a value per lane. Exact for every finite code; NaN codes give NaN, f16 and e5m2 infinities stay infinite.

// Each takes a code in the top bits of a word; lower bits may hold anything. An arithmetic shift puts
// sign and magnitude into the f32's fields, off by a power of two in the exponent; the multiplication
// puts that right, subnormals too.
#define DEFINE_NUMBERS(SUFFIX, F, U, AS_F, AS_U, TO_I, TO_U)                                  \
  INLINE F bf16_to_f32##SUFFIX(U top) { return AS_F(top & 0xffff0000u); }                     \
  INLINE F f16_to_f32##SUFFIX(U top) {                                                        \
    const U bits = TO_U(TO_I(top) >> 3) & 0x8fffe000u;                                        \
    const U scaled = AS_U(AS_F(bits) * (F)(5.192296858534828e33f));                           \
    const U special = scaled | 0x7f800000u;                                                   \
    return AS_F((bits & 0x0f800000u) == (U)0x0f800000u ? special : scaled);                   \
  }                                                                                           \
  INLINE F e4m3_to_f32##SUFFIX(U top) {                                                       \
    const U bits = TO_U(TO_I(top) >> 4) & 0x87f00000u;                                        \
    const F scaled = AS_F(bits) * (F)(1.329227995784916e36f);                                 \
    return (bits & 0x07f00000u) == (U)0x07f00000u ? AS_F((U)0x7fc00000u) : scaled;            \
  }                                                                                           \
  INLINE F e5m2_to_f32##SUFFIX(U top) { return f16_to_f32##SUFFIX(top & 0xff000000u); }       \
  INLINE F e2m1_to_f32##SUFFIX(U top) {                                                       \
    return AS_F(TO_U(TO_I(top) >> 6) & 0x81c00000u) * (F)(8.507059173023462e37f);             \
  }

#define INT_OF_U32(x) ((int)(x))
#define U32_OF_INT(x) ((u32)(x))
DEFINE_NUMBERS(_one, float, u32, AS_F32, AS_U32, INT_OF_U32, U32_OF_INT)
#if defined(WW_VECTOR_LANES)
DEFINE_NUMBERS(_lanes, vf, vu, AS_VF, AS_VU, AS_VI, AS_VU)
#endif

#if defined(WW_VECTOR_LANES)
// 2^x for x <= 0 (-inf gives 0), relative error below 2^-22: x = n + f with |f| <= 1/2, a
// polynomial for 2^f, n into the exponent. Adding 1.5 * 2^23 rounds x to n in the low bits.
INLINE vf exp2_lanes(vf x) {
  const vf clamped = x < SPLAT(-126.0f) ? SPLAT(-126.0f) : x;
  const vf shifted = clamped + 12582912.0f;
  const vf f = clamped - (shifted - 12582912.0f);
  vf p = SPLAT(1.5403530e-4f);
  p = FMA(p, f, SPLAT(1.3333558e-3f));
  p = FMA(p, f, SPLAT(9.6181291e-3f));
  p = FMA(p, f, SPLAT(5.5504109e-2f));
  p = FMA(p, f, SPLAT(2.4022651e-1f));
  p = FMA(p, f, SPLAT(6.9314718e-1f));
  p = FMA(p, f, SPLAT(1.0f));
  const vf power = AS_VF((AS_VU(shifted) << 23) + 0x3f800000u);
  return x < SPLAT(-126.0f) ? SPLAT(0.0f) : p * power;
}
#define EXP2(x) FIRST_LANE(exp2_lanes(SPLAT(x)))
#elif defined(__CUDACC__) || defined(__CUDACC_RTC__)
INLINE float exp2_lanes(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#define EXP2(x) exp2_lanes(x)
#elif defined(__OPENCL_C_VERSION__)
INLINE float exp2_lanes(float x) { return exp2(x); }
#define EXP2(x) exp2_lanes(x)
#else
INLINE float exp2_lanes(float x) { return __builtin_exp2f(x); }
#define EXP2(x) exp2_lanes(x)
#endif

// tanh: near 0 its series, elsewhere from 2^-|2x log2(e)|; relative error below 2^-21.
INLINE vf tanh_lanes(vf x) {
  const vf magnitude = x < SPLAT(0.0f) ? -x : x;
  const vf t = exp2_lanes(magnitude * -2.8853900817779268f);
  const vf far = (SPLAT(1.0f) - t) / (SPLAT(1.0f) + t);
  const vf square = magnitude * magnitude;
  vf p = SPLAT(2.1869488e-2f);
  p = FMA(p, square, SPLAT(-5.3968254e-2f));
  p = FMA(p, square, SPLAT(1.3333333e-1f));
  p = FMA(p, square, SPLAT(-3.3333333e-1f));
  const vf near = FMA(p * square, magnitude, magnitude);
  const vf result = magnitude < SPLAT(0.25f) ? near : far;
  return x < SPLAT(0.0f) ? -result : result;
}

#define F32_VALUES 0
#define BF16_VALUES 1
#define F16_VALUES 2

INLINE u16 f32_to_bf16_one(float x) {
  const u32 bits = AS_U32(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (u16)(bits >> 16 | 0x40u);
  return (u16)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
INLINE u16 f32_to_f16_one(float x) {
  u16 bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
#elif defined(__OPENCL_C_VERSION__)
INLINE u16 f32_to_f16_one(float x) {
  u16 bits;
  vstore_half_rte(x, 0, (PRIVATE half*)&bits);
  return bits;
}
#else
INLINE u16 f32_to_f16_one(float x) { return __builtin_bit_cast(u16, (_Float16)x); }
#endif
