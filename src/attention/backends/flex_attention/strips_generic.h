// The operations of strips.h over lanes.h; include after defining WW_LANES.
#pragma once

#include "attention/backends/flex_attention/strips.h"
#include "attention/cpu_tiles/lanes.h"

namespace warpweave::flex_attention {
namespace {

using mods::Op;
using mods::ValueType;

inline Ints take(const StripOperand& from, int row, int column) {
  const int32_t* data =
      static_cast<const int32_t*>(from.data) + static_cast<int64_t>(row) * from.row_stride;
  return from.per_column ? load_ints(data + column) : spread_int(*data);
}

template <typename F>
void each(const StripArgs& x, F f) {
  for (int row = 0; row < x.rows; ++row) {
    int32_t* out = static_cast<int32_t*>(x.out) + static_cast<int64_t>(row) * kStripColumns;
    for (int c = 0; c < kStripColumns; c += kLanes) store_ints(out + c, (Ints)f(row, c));
  }
}
template <typename F>
void map_ints(const StripArgs& x, F f) {
  each(x, [&](int row, int c) { return (Ints)f(take(x.a, row, c), take(x.b, row, c)); });
}
template <typename F>
void map_floats(const StripArgs& x, F f) {
  each(x, [&](int row, int c) { return (Ints)f((Floats)take(x.a, row, c), (Floats)take(x.b, row, c)); });
}
template <typename F>
void map_float(const StripArgs& x, F f) {
  each(x, [&](int row, int c) { return (Ints)f((Floats)take(x.a, row, c)); });
}

inline int32_t floor_divide(int64_t a, int64_t b) {
  if (b == 0) return 0;
  const int64_t quotient = a / b;
  return static_cast<int32_t>(quotient - (a % b != 0 && (a < 0) != (b < 0)));
}

inline void divide_ints(const StripArgs& x, bool remainder) {
  each(x, [&](int row, int c) {
    const Ints a = take(x.a, row, c), b = take(x.b, row, c);
    const int32_t divisor = b[0];
    if (!x.b.per_column && divisor > 0 && (divisor & (divisor - 1)) == 0) {
      return remainder ? a & (divisor - 1) : a >> __builtin_ctz(static_cast<uint32_t>(divisor));
    }
    Ints out = {};
    for (int i = 0; i < kLanes; ++i) {
      const int64_t quotient = floor_divide(a[i], b[i]);
      out[i] = !remainder ? static_cast<int32_t>(quotient)
               : b[i] == 0 ? 0 : static_cast<int32_t>(a[i] - quotient * b[i]);
    }
    return out;
  });
}

// Cephes' logf: fraction in [sqrt(1/2), sqrt(2)), then a polynomial.
inline Floats log_lanes(Floats x) {
  const Ints bits = (Ints)x;
  Ints exponent = (bits >> 23) - 126;
  Floats m = (Floats)((bits & 0x007fffff) | 0x3f000000);
  const Ints low = m < 0.707106781f;
  exponent += low;
  m = low ? m + m - 1.0f : m - 1.0f;
  const Floats e = __builtin_convertvector(exponent, Floats), z = m * m;
  Floats p = m * 7.0376836292e-2f - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  Floats y = p * m * z - e * 2.12194440e-4f - z * 0.5f;
  y = m + y + e * 0.693359375f;
  y = x == 0.0f ? spread(kNegativeInfinity) : y;
  y = x < 0.0f ? spread(__builtin_nanf("")) : y;
  const Ints beyond = (bits & 0x7fffffff) >= 0x7f800000;
  return beyond ? (x < 0.0f ? spread(__builtin_nanf("")) : x) : y;
}

inline void compute_ints(const StripArgs& x) {
  switch (x.op) {
    case Op::add: return map_ints(x, [](Ints a, Ints b) { return (Units)a + (Units)b; });
    case Op::sub: return map_ints(x, [](Ints a, Ints b) { return (Units)a - (Units)b; });
    case Op::mul: return map_ints(x, [](Ints a, Ints b) { return (Units)a * (Units)b; });
    case Op::div: return divide_ints(x, false);
    case Op::modulo: return divide_ints(x, true);
    case Op::negate: return map_ints(x, [](Ints a, Ints) { return -(Units)a; });
    case Op::absolute:
      return map_ints(x, [](Ints a, Ints) { return pick_ints(a < 0, (Ints)(-(Units)a), a); });
    case Op::minimum: return map_ints(x, [](Ints a, Ints b) { return pick_ints(a < b, a, b); });
    default: return map_ints(x, [](Ints a, Ints b) { return pick_ints(a > b, a, b); });
  }
}

inline void compute_floats(const StripArgs& x) {
  switch (x.op) {
    case Op::add: return map_floats(x, [](Floats a, Floats b) { return a + b; });
    case Op::sub: return map_floats(x, [](Floats a, Floats b) { return a - b; });
    case Op::mul: return map_floats(x, [](Floats a, Floats b) { return a * b; });
    case Op::div: return map_floats(x, [](Floats a, Floats b) { return a / b; });
    case Op::negate: return map_float(x, [](Floats a) { return -a; });
    case Op::absolute: return map_float(x, [](Floats a) { return magnitude(a); });
    case Op::minimum: return map_floats(x, [](Floats a, Floats b) { return pick(b < a, b, a); });
    case Op::maximum: return map_floats(x, [](Floats a, Floats b) { return pick(a < b, b, a); });
    case Op::exp: return map_float(x, [](Floats a) { return exp_lanes(a); });
    case Op::log: return map_float(x, [](Floats a) { return log_lanes(a); });
    case Op::tanh: return map_float(x, [](Floats a) { return tanh_lanes(a); });
    default:
      return map_float(x, [](Floats a) {
        Floats out = {};
        for (int i = 0; i < kLanes; ++i) out[i] = __builtin_sqrtf(a[i]);
        return out;
      });
  }
}

inline void compute_comparison(const StripArgs& x) {
  if (x.operand == ValueType::real) {
    switch (x.op) {
      case Op::less: return map_floats(x, [](Floats a, Floats b) { return a < b; });
      case Op::less_equal: return map_floats(x, [](Floats a, Floats b) { return a <= b; });
      case Op::equal: return map_floats(x, [](Floats a, Floats b) { return a == b; });
      default: return map_floats(x, [](Floats a, Floats b) { return a != b; });
    }
  }
  switch (x.op) {
    case Op::less: return map_ints(x, [](Ints a, Ints b) { return a < b; });
    case Op::less_equal: return map_ints(x, [](Ints a, Ints b) { return a <= b; });
    case Op::equal: return map_ints(x, [](Ints a, Ints b) { return a == b; });
    default: return map_ints(x, [](Ints a, Ints b) { return a != b; });
  }
}

void compute(const StripArgs& x) {
  switch (x.op) {
    case Op::to_integer: return map_ints(x, [](Ints a, Ints) { return a & 1; });
    case Op::to_real:
      return map_ints(x, [](Ints a, Ints) { return __builtin_convertvector(a, Floats); });
    case Op::less:
    case Op::less_equal:
    case Op::equal:
    case Op::not_equal: return compute_comparison(x);
    case Op::logical_and: return map_ints(x, [](Ints a, Ints b) { return a & b; });
    case Op::logical_or: return map_ints(x, [](Ints a, Ints b) { return a | b; });
    case Op::logical_not: return map_ints(x, [](Ints a, Ints) { return ~a; });
    case Op::select:
      return each(x, [&](int row, int c) {
        return pick_ints(take(x.a, row, c) != 0, take(x.b, row, c), take(x.c, row, c));
      });
    default: break;
  }
  return x.type == ValueType::real ? compute_floats(x) : compute_ints(x);
}

void copy(StripOperand from, int rows, float* scores) {
  for (int row = 0; row < rows; ++row) {
    float* s = scores + static_cast<int64_t>(row) * kStripColumns;
    for (int c = 0; c < kStripColumns; c += kLanes) store_ints(s + c, take(from, row, c));
  }
}

void hide(float* scores, int rows, StripOperand mask, int end) {
  Ints lane = {};
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  for (int row = 0; row < rows; ++row) {
    float* s = scores + static_cast<int64_t>(row) * kStripColumns;
    for (int c = 0; c < end; c += kLanes) {
      const Ints keep = (take(mask, row, c) != 0) | (lane + c >= end);
      store(s + c, pick(keep, load(s + c), spread(kNegativeInfinity)));
    }
  }
}

bool any(StripOperand mask, int rows, int first, int end) {
  for (int row = 0; row < rows; ++row) {
    const int32_t* data =
        static_cast<const int32_t*>(mask.data) + static_cast<int64_t>(row) * mask.row_stride;
    int32_t seen = 0;
    for (int c = first; c < end; ++c) seen |= data[mask.per_column ? c : 0];
    if (seen != 0) return true;
  }
  return false;
}

}  // namespace
}  // namespace warpweave::flex_attention
