// The two matrix multiplications of lanes.cl on Intel's matrix units (cl_intel_subgroup_matrix_multiply_accumulate):
// 8 rows x 16 lanes, 16 terms an instruction, bf16 or, where the pool holds f16, f16 operands, f32
// sums. The instruction's result has a column per lane and a row per vector element, as lanes.cl has
// it; its first operand has a term per lane, which is how a row's probabilities lie in the lanes.
//
// Local memory: q 16-bit [TILE_M][DK_PAD], then pairs of 16-bit terms in a word: k [DK_PAD/2][TILE_N],
// paired along the head dim, and v [TILE_N/2][DV_PAD], paired along the tokens.
#if defined(WW_INTEL_MATRIX)

#define LOCAL_Q(base) ((LOCAL u16*)(base))
#define LOCAL_K(base) ((LOCAL u32*)(LOCAL_Q(base) + TILE_M * DK_PAD))
#define LOCAL_V(base) (LOCAL_K(base) + TILE_N / 2 * DK_PAD)
#define LOCAL_REDUCE(base) ((LOCAL float*)(LOCAL_V(base) + TILE_N / 2 * DV_PAD))
#define LOCAL_BYTES (2 * (TILE_M + TILE_N) * DK_PAD + 2 * TILE_N * DV_PAD + 32 * THREADS)

#if KV_FORMAT == KV_F16
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define TO_TERM(x) as_ushort((half)(x))
#define TERM_TO_F32(x) f16_to_f32_one((u32)(x) << 16)
#define INTEL_MAD intel_sub_group_f16_f16_matrix_mad_k16
#else
#define TO_TERM(x) f32_to_bf16_one(x)
#define TERM_TO_F32(x) bf16_to_f32_one((u32)(x) << 16)
#define INTEL_MAD intel_sub_group_bf16_bf16_matrix_mad_k16
#endif

#if defined(WW_EMULATE_MATRIX)
#define UNROLL_TILES _Pragma("nounroll")   // each copy of the emulation costs seconds to compile
// What the instruction computes, through local memory: for tests on devices without it.
INLINE float8 matrix_mad(short8 a, int8 b, float8 acc, LOCAL float* scratch) {
  LOCAL float* rows = scratch + WARP * 8 * LANES;
  BARRIER();
  UNROLL_TILES for (int i = 0; i < 8; ++i) {
    rows[i * LANES + LANE_IDS] = TERM_TO_F32(((PRIVATE u16*)&a)[i]);
  }
  BARRIER();
  UNROLL_TILES for (int i = 0; i < 8; ++i) {
    UNROLL_TILES for (int k = 0; k < 16; ++k) {
      const u32 pair = ((PRIVATE u32*)&b)[k / 2];
      const float term = TERM_TO_F32(k % 2 ? pair >> 16 : pair & 0xffffu);
      ((PRIVATE float*)&acc)[i] = FMA(rows[i * LANES + k], term, ((PRIVATE float*)&acc)[i]);
    }
  }
  return acc;
}
#define MATRIX_MAD(a, b, acc, base) matrix_mad(a, b, acc, LOCAL_REDUCE(base))
#else
#define UNROLL_TILES UNROLL
#define MATRIX_MAD(a, b, acc, base) INTEL_MAD(a, b, acc)
#endif

INLINE int8 load_pairs(LOCAL const u32* pairs, int stride) {
  return (int8)(pairs[0], pairs[stride], pairs[2 * stride], pairs[3 * stride], pairs[4 * stride],
                pairs[5 * stride], pairs[6 * stride], pairs[7 * stride]);
}

INLINE void dot_scores(PRIVATE float (*s)[COLS], LOCAL char* base, int stage, int rows) {
  LOCAL const u16* q = LOCAL_Q(base) + TILE_ROW(0) * DK_PAD + LANE_IDS;
  UNROLL_TILES for (int j = 0; j < COLS; ++j) {
    LOCAL const u32* k = LOCAL_K(base) + j * LANES + LANE_IDS;
    UNROLL_TILES for (int r = 0; r < ROWS; r += 8) {
      float8 acc = (float8)(0.0f);
      for (int d = 0; d < DK_PAD; d += 16) {
        short8 a;
        UNROLL for (int i = 0; i < 8; ++i) ((PRIVATE u16*)&a)[i] = q[(r + i) * DK_PAD + d];
        acc = MATRIX_MAD(a, load_pairs(k + d / 2 * TILE_N, TILE_N), acc, base);
      }
      UNROLL for (int i = 0; i < 8; ++i) s[r + i][j] = ((PRIVATE float*)&acc)[i];
    }
  }
}

INLINE void dot_values(PRIVATE float (*o)[OUT_COLS], PRIVATE float (*s)[COLS],
                       PRIVATE const float* alpha, LOCAL char* base, int stage, int rows,
                       int tokens) {
  UNROLL_TILES for (int r = 0; r < ROWS; r += 8) {
    UNROLL_TILES for (int j = 0; j < OUT_COLS; ++j) {
      LOCAL const u32* v = LOCAL_V(base) + j * LANES + LANE_IDS;
      float8 acc;
      UNROLL for (int i = 0; i < 8; ++i) ((PRIVATE float*)&acc)[i] = o[r + i][j] * alpha[r + i];
      UNROLL_TILES for (int c = 0; c < COLS; ++c) {
        short8 a;
        UNROLL for (int i = 0; i < 8; ++i) ((PRIVATE u16*)&a)[i] = TO_TERM(s[r + i][c]);
        acc = MATRIX_MAD(a, load_pairs(v + c * 8 * DV_PAD, DV_PAD), acc, base);
      }
      UNROLL for (int i = 0; i < 8; ++i) o[r + i][j] = ((PRIVATE float*)&acc)[i];
    }
  }
}

INLINE void stage_q(const PRIVATE TileArgs* a, const PRIVATE Tile* tile, int form, LOCAL char* base) {
  const tile_address queries = query_array(a, form);
  for (int i = THREAD; i < TILE_M * DK_PAD; i += THREADS) {
    const int row = i / DK_PAD, d = i % DK_PAD;
    const float value = row < tile->rows && d < DK
                            ? query_element(queries, query_index(a, tile, form, row) + d)
                            : 0.0f;
    LOCAL_Q(base)[i] = TO_TERM(value);
  }
}

INLINE void stage_k(const PRIVATE TileArgs* a, const PRIVATE Tile* tile, int begin, int end,
                    int block, LOCAL char* base) {
  LOCAL u16* terms = (LOCAL u16*)LOCAL_K(base);
  for (int i = THREAD; i < TILE_N * DK_PAD; i += THREADS) {
    const int t = i / DK_PAD, d = i % DK_PAD, kv = block + t;
    const float value =
        kv >= begin && kv < end && d < DK
            ? pool_element(a->k, a->k_block_scales, key_index(a, tile, kv), d)
            : 0.0f;
    terms[(d / 2 * TILE_N + t) * 2 + d % 2] = TO_TERM(value);
  }
}

INLINE void stage_v(const PRIVATE TileArgs* a, const PRIVATE Tile* tile, int begin, int end,
                    int block, LOCAL char* base) {
  LOCAL u16* terms = (LOCAL u16*)LOCAL_V(base);
  for (int i = THREAD; i < TILE_N * DV_PAD; i += THREADS) {
    const int t = i / DV_PAD, d = i % DV_PAD, kv = block + t;
    const float value =
        kv >= begin && kv < end && d < DV
            ? pool_element(a->v, a->v_block_scales, value_index(a, tile, kv), d)
            : 0.0f;
    terms[(t / 2 * DV_PAD + d) * 2 + t % 2] = TO_TERM(value);
  }
}

#endif
