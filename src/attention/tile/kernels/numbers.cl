// Numbers: elements of KV pools to f32, and rows of the output to its format.

#define KV_F32 0
#define KV_BF16 1
#define KV_F16 2
#define KV_E4M3 3
#define KV_E5M2 4
#define KV_E2M1 5
#define KV_DS_MLA 6
#define KV_FP4_MLA 7

// Packed tokens of latent attention (kv/latent_token.h), whose elements are bytes: codes of 512 values, their scales,
// 64 bf16 values.
#if KV_FORMAT >= KV_DS_MLA
#define WW_PACKED_ROWS
#define PACKED_LATENT 512
#define PACKED_SCALES (KV_FORMAT == KV_DS_MLA ? 512 : 256)
#define PACKED_ROPE (KV_FORMAT == KV_DS_MLA ? 528 : 288)
#endif
#define CODES_E4M3 (KV_FORMAT == KV_E4M3 || KV_FORMAT == KV_DS_MLA)
#define CODES_E2M1 (KV_FORMAT == KV_E2M1 || KV_FORMAT == KV_FP4_MLA)

#if KV_FORMAT == KV_F32
#define KV_BITS 32
#elif KV_FORMAT == KV_BF16 || KV_FORMAT == KV_F16
#define KV_BITS 16
#elif KV_FORMAT == KV_E2M1
#define KV_BITS 4
#else
#define KV_BITS 8
#endif
// Of a code, which in packed tokens is not what strides count.
#define CODE_BITS (CODES_E2M1 ? 4 : KV_BITS)

#if KV_FORMAT == KV_BF16
#define CODE_TO_F32(x) bf16_to_f32_one(x)
#define CODES_TO_F32(x) bf16_to_f32_lanes(x)
#elif KV_FORMAT == KV_F16
#define CODE_TO_F32(x) f16_to_f32_one(x)
#define CODES_TO_F32(x) f16_to_f32_lanes(x)
#elif CODES_E4M3
#define CODE_TO_F32(x) e4m3_to_f32_one(x)
#define CODES_TO_F32(x) e4m3_to_f32_lanes(x)
#elif KV_FORMAT == KV_E5M2
#define CODE_TO_F32(x) e5m2_to_f32_one(x)
#define CODES_TO_F32(x) e5m2_to_f32_lanes(x)
#elif CODES_E2M1
#define CODE_TO_F32(x) e2m1_to_f32_one(x)
#define CODES_TO_F32(x) e2m1_to_f32_lanes(x)
#endif

#if defined(WW_PACKED_ROWS) || CODES_E2M1
#define WW_SCALED_CODES
// Where the scale of value `d` of the row at element `row` of a pool stands. Packed tokens may begin at any byte.
INLINE GLOBAL const u8* code_scale_at(tile_address pool, tile_address block_scales, tile_stride row, int d) {
#if defined(WW_PACKED_ROWS)
  return ADDRESS(const u8, pool) + row + PACKED_SCALES + (KV_FORMAT == KV_DS_MLA ? d / 128 * 4 : d / 16);
#else
  return ADDRESS(const u8, block_scales) + (row + d) / 16;
#endif
}
INLINE float code_scale(tile_address pool, tile_address block_scales, tile_stride row, int d) {
  GLOBAL const u8* at = code_scale_at(pool, block_scales, row, d);
#if KV_FORMAT == KV_DS_MLA
  return AS_F32((u32)at[0] | (u32)at[1] << 8 | (u32)at[2] << 16 | (u32)at[3] << 24);
#else
  return e4m3_to_f32_one((u32)*at << 24);
#endif
}
#endif

// Value `d` of the row at element `row` of a pool, its scale applied.
INLINE float pool_element(tile_address pool, tile_address block_scales, tile_stride row, int d) {
#if defined(WW_PACKED_ROWS)
  GLOBAL const u8* token = ADDRESS(const u8, pool) + row;
  if (d >= PACKED_LATENT) {
    GLOBAL const u8* value = token + PACKED_ROPE + (d - PACKED_LATENT) * 2;
    return bf16_to_f32_one((u32)value[0] << 16 | (u32)value[1] << 24);
  }
  const u32 code = CODE_BITS == 8 ? (u32)token[d] << 24 : (u32)token[d / 2] << (d & 1 ? 24 : 28);
  return CODE_TO_F32(code) * code_scale(pool, block_scales, row, d);
#elif KV_FORMAT == KV_F32
  return ADDRESS(const float, pool)[row + d];
#elif KV_BITS == 16
  return CODE_TO_F32((u32)ADDRESS(const u16, pool)[row + d] << 16);
#elif KV_BITS == 8
  return CODE_TO_F32((u32)ADDRESS(const u8, pool)[row + d] << 24);
#else
  const u32 pair = ADDRESS(const u8, pool)[(row + d) / 2];
  return CODE_TO_F32((row + d) & 1 ? pair << 24 : pair << 28) * code_scale(pool, block_scales, row, d);
#endif
}

// Elements d, and on an OpenCL CPU the 15 after it, of the output row that starts at `index`.
INLINE void store_item(tile_address out, tile_stride index, int d, vf x) {
#if defined(WW_VECTOR_LANES)
  GLOBAL float* to = ADDRESS(float, out) + index + d;
  if (d + LANES <= DV) {
    STORE_GLOBAL_LANES(to, x);
  } else {
    const PRIVATE float* values = (const PRIVATE float*)&x;
    for (int i = 0; d + i < DV; ++i) to[i] = values[i];
  }
#else
  if (d >= DV) return;
#if OUT_FORMAT == F32_VALUES
  ADDRESS(float, out)[index + d] = x;
#elif OUT_FORMAT == BF16_VALUES
  ADDRESS(u16, out)[index + d] = f32_to_bf16_one(x);
#else
  ADDRESS(u16, out)[index + d] = f32_to_f16_one(x);
#endif
#endif
}
