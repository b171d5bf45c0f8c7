// Lanes of linear attention: values of any format to f32 and back, sums over lanes, and where lanes end.
//
// K_DIM, V_DIM, TILE_V and CHANNEL_DECAY (KDA) are constants where lanes are threads, so that a head's rows stand in
// registers; an OpenCL CPU, whose rows are in memory, has one program for all shapes and takes them from its argument.
// Dims are multiples of 16: vectors have whole lanes, threads may have some past a row's end.

#if !defined(K_DIM)
#define K_DIM (a->k_dim)
#define V_DIM (a->v_dim)
#define TILE_V (a->tile_v)
#define CHANNEL_DECAY (a->channel_decay)
#define MAX_K_VECS (256 / LANES)
#else
#define MAX_K_VECS K_VECS
#endif

#define K_PAD ROUND_UP(K_DIM, LANES)
#define V_PAD ROUND_UP(V_DIM, LANES)
#define K_VECS (K_PAD / LANES)
#define MAX_WINDOW 7            // rows of a convolution's state
#define LOG2_E 1.4426950408889634f
#define LOG2_E_REST 1.9259629911266175e-8f
#define LN_2 0.6931471805599453f

INLINE float load_value(tile_address data, int format, tile_stride index) {
  if (format == F32_VALUES) return ADDRESS(const float, data)[index];
  const u32 code = (u32)ADDRESS(const u16, data)[index] << 16;
  return format == BF16_VALUES ? bf16_to_f32_one(code) : f16_to_f32_one(code);
}
INLINE void store_value(tile_address data, int format, tile_stride index, float x) {
  if (format == F32_VALUES) {
    ADDRESS(float, data)[index] = x;
  } else {
    ADDRESS(u16, data)[index] = format == BF16_VALUES ? f32_to_bf16_one(x) : f32_to_f16_one(x);
  }
}

#if defined(WW_VECTOR_LANES)
#define LANE_IN(first, count) ((first) < (count))
#define IS_LEADER 1
INLINE vf load_values(tile_address data, int format, tile_stride index) {
  if (format == F32_VALUES) return LOAD_GLOBAL_LANES(ADDRESS(const float, data) + index);
  const vu codes = convert_uint16(vload16(0, ADDRESS(const u16, data) + index)) << 16;
  return format == BF16_VALUES ? bf16_to_f32_lanes(codes) : f16_to_f32_lanes(codes);
}
INLINE vf load_strided(tile_address data, int format, tile_stride index, int stride) {
  float values[LANES];
  for (int i = 0; i < LANES; ++i) values[i] = load_value(data, format, index + i * stride);
  return vload16(0, values);
}
INLINE vu bf16_codes(vf x) {
  const vu bits = AS_VU(x);
  const vu rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  return (bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40u : rounded;
}
INLINE void store_values(tile_address data, int format, tile_stride index, vf x) {
  if (format == F32_VALUES) {
    STORE_GLOBAL_LANES(ADDRESS(float, data) + index, x);
  } else if (format == BF16_VALUES) {
    vstore16(convert_ushort16(bf16_codes(x)), 0, ADDRESS(u16, data) + index);
  } else {
    vstore_half16_rte(x, 0, ADDRESS(half, data) + index);
  }
}
INLINE void store_strided(tile_address data, int format, tile_stride index, int stride, vf x) {
  float values[LANES];
  vstore16(x, 0, values);
  for (int i = 0; i < LANES; ++i) store_value(data, format, index + i * stride, values[i]);
}
// Columns of local memory, `stride` apart.
INLINE vf load_local_column(LOCAL const float* from, int stride) {
  float values[LANES];
  for (int i = 0; i < LANES; ++i) values[i] = from[i * stride];
  return vload16(0, values);
}
INLINE void store_local_column(LOCAL float* to, int stride, vf x) {
  float values[LANES];
  vstore16(x, 0, values);
  for (int i = 0; i < LANES; ++i) to[i * stride] = values[i];
}
INLINE vf round_to_bf16(vf x) { return AS_VF(bf16_codes(x) << 16); }
INLINE float sum_of_lanes(vf x) {
  const float8 a = x.lo + x.hi;
  const float4 b = a.lo + a.hi;
  const float2 c = b.lo + b.hi;
  return c.x + c.y;
}
#else
#define LANE_IN(first, count) ((first) + LANE_IDS < (count))
#define IS_LEADER (LANE_IDS == 0)
INLINE vf load_values(tile_address data, int format, tile_stride index) {
  return load_value(data, format, index + LANE_IDS);
}
INLINE vf load_strided(tile_address data, int format, tile_stride index, int stride) {
  return load_value(data, format, index + LANE_IDS * stride);
}
INLINE void store_values(tile_address data, int format, tile_stride index, vf x) {
  store_value(data, format, index + LANE_IDS, x);
}
INLINE void store_strided(tile_address data, int format, tile_stride index, int stride, vf x) {
  store_value(data, format, index + LANE_IDS * stride, x);
}
INLINE vf load_local_column(LOCAL const float* from, int stride) { return from[LANE_IDS * stride]; }
INLINE void store_local_column(LOCAL float* to, int stride, vf x) { to[LANE_IDS * stride] = x; }
INLINE vf round_to_bf16(vf x) { return AS_F32((u32)f32_to_bf16_one(x) << 16); }
INLINE float sum_of_lanes(float x) {
  UNROLL for (int mask = LANES / 2; mask > 0; mask /= 2) x += SHUFFLE_XOR(x, mask);
  return x;
}
#endif

// exp(x), x <= 0, as 2^(x log2 e) with what the product loses.
INLINE vf exp_lanes(vf x) {
  const vf power = x * LOG2_E;
  const vf rest = FMA(x, SPLAT(LOG2_E), -power) + x * LOG2_E_REST;
  const vf y = exp2_lanes(power);
  return FMA(y, rest * LN_2, y);
}
INLINE vf magnitude_lanes(vf x) { return x < SPLAT(0.0f) ? -x : x; }
INLINE vf sigmoid_lanes(vf x) {
  const vf t = exp_lanes(-magnitude_lanes(x));
  return (x < SPLAT(0.0f) ? t : SPLAT(1.0f)) / (SPLAT(1.0f) + t);
}
// log(1 + exp(x)). The logarithm of what 1 + t rounds to, corrected for it (Kahan).
INLINE vf softplus_lanes(vf x) {
  const vf t = exp_lanes(-magnitude_lanes(x)), u = SPLAT(1.0f) + t;
  const vf added = u - SPLAT(1.0f);
  const vf divisor = added == SPLAT(0.0f) ? SPLAT(1.0f) : added;
  const vf logarithm = added == SPLAT(0.0f) ? t : LOG2(u) * LN_2 * (t / divisor);
  return (x < SPLAT(0.0f) ? SPLAT(0.0f) : x) + logarithm;
}
