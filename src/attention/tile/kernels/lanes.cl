// Tile operations by plain multiply-add, one column per lane. Scores: a lane is a KV token. Output:
// a lane is an element of the head dim. All rows of a warp's tile are in every lane.
//
// Local memory: q f32 [TILE_M][DK_PAD], k f32 [DK_PAD][TILE_N] (transposed), v f32 [TILE_N][DV_PAD],
// and, where lanes are threads, the probabilities p f32 [TILE_M][TILE_N] and a reduction scratch.

#if defined(WW_INTEL_MATRIX)
#define DK_PAD ROUND_UP(DK, 16)
#else
#define DK_PAD DK
#endif
#define DV_PAD ROUND_UP(DV, LANES)
#define WARP_ROWS (TILE_M / WARPS)   // rows of one warp
#define WARP_TILE_ROWS WARP_ROWS
#define ROWS WARP_ROWS               // rows a lane holds
#define COLS (TILE_N / LANES)        // scores per row a lane holds
#define OUT_COLS (DV_PAD / LANES)    // outputs per row a lane holds

#define TILE_ROW(r) (WARP * WARP_ROWS + (r))
#define COL_BASE(j) ((j)*LANES)      // column j of a lane is COL_BASE(j) + COL_LANE(j)
#define COL_LANE(j) LANE_IDS
#define OUT_COL_BASE(j) ((j)*LANES)
#define ROW_LEADER (THREAD % LANES == 0)   // one lane per row

#define STAGES 1                     // blocks in local memory

#define Q_FLOATS (TILE_M * DK_PAD)
#define K_FLOATS (TILE_N * DK_PAD)
#define V_FLOATS (TILE_N * DV_PAD)
#if defined(WW_VECTOR_LANES)
#define P_FLOATS 0
#else
#define P_FLOATS (TILE_M * TILE_N + THREADS)
#endif

#if !defined(WW_INTEL_MATRIX)
#define LOCAL_BYTES (4 * (Q_FLOATS + K_FLOATS + V_FLOATS + P_FLOATS))
#define LOCAL_Q(base) ((LOCAL float*)(base))
#define LOCAL_K(base) (LOCAL_Q(base) + Q_FLOATS)
#define LOCAL_V(base) (LOCAL_K(base) + K_FLOATS)
#define LOCAL_P(base) (LOCAL_V(base) + V_FLOATS)
#define LOCAL_REDUCE(base) (LOCAL_P(base) + TILE_M * TILE_N)
#define LOCAL_END(base) ((LOCAL char*)(LOCAL_REDUCE(base) + THREADS))
#endif

// Register blocks: ROW_BLOCK rows by two columns of lanes; OUT_COLS may be odd.
#define SCORE_BLOCK (COLS % 2 == 0 ? 2 : 1)
#define OUT_BLOCK (OUT_COLS % 2 == 0 ? 2 : 1)

#if defined(WW_VECTOR_LANES)
// Rows past the tile's last are left out at run time: registers hold a block, not the tile.
#define LIVE_ROWS(rows) (rows)
INLINE float max_over_lanes(vf x) {
  const float8 a = x.lo > x.hi ? x.lo : x.hi;
  const float4 b = a.lo > a.hi ? a.lo : a.hi;
  const float2 c = b.lo > b.hi ? b.lo : b.hi;
  return c.x > c.y ? c.x : c.y;
}
INLINE float sum_over_lanes(vf x) {
  const float8 a = x.lo + x.hi;
  const float4 b = a.lo + a.hi;
  const float2 c = b.lo + b.hi;
  return c.x + c.y;
}
#define ROW_MAX(x, base) max_over_lanes(x)
#define ROW_SUM(x, base) sum_over_lanes(x)
#else
#define LIVE_ROWS(rows) ROWS
#if defined(SHUFFLE_XOR)
INLINE float max_over_lanes(float x) {
  UNROLL for (int mask = LANES / 2; mask > 0; mask /= 2) {
    const float other = SHUFFLE_XOR(x, mask);
    x = x > other ? x : other;
  }
  return x;
}
INLINE float sum_over_lanes(float x) {
  UNROLL for (int mask = LANES / 2; mask > 0; mask /= 2) x += SHUFFLE_XOR(x, mask);
  return x;
}
#define ROW_MAX(x, base) max_over_lanes(x)
#define ROW_SUM(x, base) sum_over_lanes(x)
#else
// Without shuffles: a tree in local memory. Every warp comes here equally often.
INLINE float reduce_over_lanes(float x, LOCAL float* scratch, int take_max) {
  for (int mask = LANES / 2; mask > 0; mask /= 2) {
    BARRIER();
    scratch[THREAD] = x;
    BARRIER();
    const float other = scratch[THREAD ^ mask];
    x = take_max ? (x > other ? x : other) : x + other;
  }
  return x;
}
#define ROW_MAX(x, base) reduce_over_lanes((x), LOCAL_REDUCE(base), 1)
#define ROW_SUM(x, base) reduce_over_lanes((x), LOCAL_REDUCE(base), 0)
#endif
#endif

#if !defined(WW_INTEL_MATRIX)

// s = q k^T for the warp's rows.
INLINE void dot_scores(PRIVATE vf (*s)[COLS], LOCAL char* base, int stage, int rows) {
  LOCAL const float* q = LOCAL_Q(base) + TILE_ROW(0) * DK_PAD;
  LOCAL const float* k = LOCAL_K(base);
  UNROLL_ROWS for (int j = 0; j < COLS; j += SCORE_BLOCK) {
    UNROLL_ROWS for (int r = 0; r < LIVE_ROWS(rows); r += ROW_BLOCK) {
      vf acc[ROW_BLOCK][SCORE_BLOCK];
      UNROLL for (int i = 0; i < ROW_BLOCK; ++i) {
        UNROLL for (int n = 0; n < SCORE_BLOCK; ++n) acc[i][n] = SPLAT(0.0f);
      }
      LOCAL const float* q_rows = q + r * DK_PAD;
      LOCAL const float* k_cols = k + j * LANES;
      for (int d = 0; d < DK_PAD; ++d) {
        vf key[SCORE_BLOCK];
        UNROLL for (int n = 0; n < SCORE_BLOCK; ++n) {
          key[n] = LOAD_LANES(k_cols + d * TILE_N + n * LANES);
        }
        UNROLL for (int i = 0; i < ROW_BLOCK; ++i) {
          const vf query = SPLAT(q_rows[i * DK_PAD + d]);
          UNROLL for (int n = 0; n < SCORE_BLOCK; ++n) acc[i][n] = FMA(query, key[n], acc[i][n]);
        }
      }
      UNROLL for (int i = 0; i < ROW_BLOCK; ++i) {
        UNROLL for (int n = 0; n < SCORE_BLOCK; ++n) s[r + i][j + n] = acc[i][n];
      }
    }
  }
}

// o = o * alpha[row] + s v, over the first `tokens` tokens of the block.
INLINE void dot_values(PRIVATE vf (*o)[OUT_COLS], PRIVATE vf (*s)[COLS], PRIVATE const float* alpha,
                       LOCAL char* base, int stage, int rows, int tokens) {
  LOCAL const float* v = LOCAL_V(base);
#if defined(WW_VECTOR_LANES)
  const PRIVATE float* p = (const PRIVATE float*)s;
#else
  LOCAL float* p = LOCAL_P(base) + TILE_ROW(0) * TILE_N;
  UNROLL for (int r = 0; r < ROWS; ++r) {
    UNROLL for (int j = 0; j < COLS; ++j) STORE_LANES(p + r * TILE_N + j * LANES, s[r][j]);
  }
  BARRIER();
#endif
  UNROLL_ROWS for (int j = 0; j < OUT_COLS; j += OUT_BLOCK) {
    UNROLL_ROWS for (int r = 0; r < LIVE_ROWS(rows); r += ROW_BLOCK) {
      vf acc[ROW_BLOCK][OUT_BLOCK];
      UNROLL for (int i = 0; i < ROW_BLOCK; ++i) {
        UNROLL for (int n = 0; n < OUT_BLOCK; ++n) acc[i][n] = o[r + i][j + n] * alpha[r + i];
      }
      for (int t = 0; t < tokens; ++t) {
        vf value[OUT_BLOCK];
        UNROLL for (int n = 0; n < OUT_BLOCK; ++n) {
          value[n] = LOAD_LANES(v + t * DV_PAD + (j + n) * LANES);
        }
        UNROLL for (int i = 0; i < ROW_BLOCK; ++i) {
          const vf weight = SPLAT(p[(r + i) * TILE_N + t]);
          UNROLL for (int n = 0; n < OUT_BLOCK; ++n) acc[i][n] = FMA(weight, value[n], acc[i][n]);
        }
      }
      UNROLL for (int i = 0; i < ROW_BLOCK; ++i) {
        UNROLL for (int n = 0; n < OUT_BLOCK; ++n) o[r + i][j + n] = acc[i][n];
      }
    }
  }
}

// A form of the warp's query rows to local memory, zeros past the tile's last row.
INLINE void stage_q(const PRIVATE TileArgs* a, const PRIVATE Tile* tile, int form, LOCAL char* base) {
  LOCAL float* q = LOCAL_Q(base);
  const tile_address queries = query_array(a, form);
  for (int r = 0; r < MIN_INT(WARP_ROWS, ROUND_UP(tile->rows, ROW_BLOCK)); ++r) {
    const int row = TILE_ROW(r), live = row < tile->rows;
    const tile_stride index = live ? query_index(a, tile, form, row) : 0;
    for (int d = WARP_ITEM; d < DK_PAD; d += WARP_ITEM_STEP) {
      q[row * DK_PAD + d] = live ? query_element(queries, index + d) : 0.0f;
    }
  }
#if defined(WW_DUAL_CHUNK)
  WARP_BARRIER();   // else the first block's barriers follow
#endif
}

#endif  // !WW_INTEL_MATRIX

#if defined(WW_VECTOR_LANES)

// 16 x 16 words: word w of token t to lane t of vector w. Four rounds of interleaving.
#define ZIP_LO(a, b)                                                                           \
  (vu)((a).s0, (b).s0, (a).s1, (b).s1, (a).s2, (b).s2, (a).s3, (b).s3, (a).s4, (b).s4, (a).s5, \
       (b).s5, (a).s6, (b).s6, (a).s7, (b).s7)
#define ZIP_HI(a, b)                                                                           \
  (vu)((a).s8, (b).s8, (a).s9, (b).s9, (a).sa, (b).sa, (a).sb, (b).sb, (a).sc, (b).sc, (a).sd, \
       (b).sd, (a).se, (b).se, (a).sf, (b).sf)
INLINE void zip_round(PRIVATE const vu* from, PRIVATE vu* to) {
  UNROLL for (int i = 0; i < 8; ++i) {
    to[2 * i] = ZIP_LO(from[i], from[i + 8]);
    to[2 * i + 1] = ZIP_HI(from[i], from[i + 8]);
  }
}
INLINE void transpose_words(PRIVATE vu* w) {
  vu t[16];
  zip_round(w, t);
  zip_round(t, w);
  zip_round(w, t);
  zip_round(t, w);
}

#if defined(WW_PACKED_ROWS)
#define CODED_VALUES PACKED_LATENT
#else
#define CODED_VALUES DK
#endif
#define WORD_VALUES (32 / CODE_BITS)                     // values in a 32-bit word
#define ROW_QUADS (CODED_VALUES * CODE_BITS / 128)       // whole 16-byte pieces of a K row's codes
#define VECTOR_VALUES (ROW_QUADS * 4 * WORD_VALUES)      // values of a row read by vectors

#define LOAD_QUAD(from) as_uint4(vload16(0, from))

// Up to four of a row's 16-byte pieces, `count` of which are left; missing ones are 0.
INLINE vu load_words(GLOBAL const u8* from, int count) {
  vu words = (vu)(0);
  words.s0123 = LOAD_QUAD(from);
  if (count > 1) words.s4567 = LOAD_QUAD(from + 16);
  if (count > 2) words.s89ab = LOAD_QUAD(from + 32);
  if (count > 3) words.scdef = LOAD_QUAD(from + 48);
  return words;
}
// Pieces [first, first + 4) of `count` of 16 rows, transposed; `at`: of the rows' piece 0, in bytes, or below 0.
INLINE void load_transposed(tile_address pool, PRIVATE const tile_stride* at, int first, int count, PRIVATE vu* words) {
  UNROLL for (int t = 0; t < 16; ++t) {
    words[t] = at[t] < 0 ? (vu)(0) : load_words(ADDRESS(const u8, pool) + at[t] + first * 16, count - first);
  }
  transpose_words(words);
}

// Value e of each lane's word.
INLINE vf word_value(vu word, int e) {
#if KV_BITS == 32
  return AS_VF(word);
#else
  return CODES_TO_F32(word << (u32)(32 - CODE_BITS - e * CODE_BITS));
#endif
}

#if defined(WW_SCALED_CODES)
// Of value `d` of 16 tokens' keys.
INLINE vf key_scales(const PRIVATE TileArgs* a, PRIVATE const tile_stride* index, int d) {
#if CODES_E2M1
  u8 codes[16];
  UNROLL for (int t = 0; t < 16; ++t) {
    codes[t] = index[t] < 0 ? 0 : *code_scale_at(a->k, a->k_block_scales, index[t], d);
  }
  return e4m3_to_f32_lanes(convert_uint16(vload16(0, codes)) << 24);
#else
  float scales[16];
  UNROLL for (int t = 0; t < 16; ++t) {
    scales[t] = index[t] < 0 ? 0.0f : code_scale(a->k, a->k_block_scales, index[t], d);
  }
  return vload16(0, scales);
#endif
}
#endif

#if defined(WW_PACKED_ROWS)
// The 16-bit values behind the codes.
INLINE void stage_packed_rope(const PRIVATE TileArgs* a, PRIVATE const tile_stride* index, LOCAL float* k) {
  tile_stride at[16];
  UNROLL for (int t = 0; t < 16; ++t) at[t] = index[t] < 0 ? -1 : index[t] + PACKED_ROPE;
  UNROLL_ROWS for (int d = PACKED_LATENT; d < DK; d += 32) {
    vu words[16];
    load_transposed(a->k, at, (d - PACKED_LATENT) / 8, (DK - PACKED_LATENT) / 8, words);
    UNROLL_ROWS for (int w = 0; w < 16; ++w) {
      STORE_LANES(k + (d + w * 2) * TILE_N, bf16_to_f32_lanes(words[w] << 16));
      STORE_LANES(k + (d + w * 2 + 1) * TILE_N, bf16_to_f32_lanes(words[w]));
    }
  }
}
#endif

// Keys of 16 tokens from `first`, transposed. index[t] < 0: token t is not there, and is 0.
INLINE void stage_keys(const PRIVATE TileArgs* a, PRIVATE const tile_stride* index,
                       LOCAL float* k) {
  tile_stride at[16];
  UNROLL for (int t = 0; t < 16; ++t) at[t] = index[t] < 0 ? -1 : index[t] * KV_BITS / 8;
  UNROLL_ROWS for (int quad = 0; quad < ROW_QUADS; quad += 4) {
    vu words[16];
    load_transposed(a->k, at, quad, ROW_QUADS, words);
#if KV_FORMAT == KV_DS_MLA
    const vf scale = key_scales(a, index, quad * 4 * WORD_VALUES);   // one for all 64 values
#endif
    UNROLL_ROWS for (int w = 0; w < 16; ++w) {
      const int d = (quad * 4 + w) * WORD_VALUES;
      if (d >= VECTOR_VALUES) break;
#if CODES_E2M1
      const vf scale = key_scales(a, index, d);
#endif
      UNROLL for (int e = 0; e < WORD_VALUES; ++e) {
        vf value = word_value(words[w], e);
#if defined(WW_SCALED_CODES)
        value *= scale;
#endif
        STORE_LANES(k + (d + e) * TILE_N, value);
      }
    }
  }
#if defined(WW_PACKED_ROWS)
  stage_packed_rope(a, index, k);
#else
  for (int d = VECTOR_VALUES; d < DK; ++d) {
    for (int t = 0; t < 16; ++t) {
      k[d * TILE_N + t] =
          index[t] < 0 ? 0.0f : pool_element(a->k, a->k_block_scales, index[t], d);
    }
  }
#endif
}

#if defined(WW_PACKED_ROWS)
#define ROW_BYTES(values) (PACKED_ROPE + 2 * (DK - PACKED_LATENT))
#else
#define ROW_BYTES(values) ((values) * KV_BITS / 8)
#endif

// Asks for the rows of the tokens that the next block will stage, while this one is computed.
INLINE void prefetch_row(tile_address pool, tile_stride index, int values) {
#if __has_builtin(__builtin_prefetch)
  const tile_address row = pool + (tile_address)(index * KV_BITS / 8);
  for (int byte = 0; byte < ROW_BYTES(values); byte += 64) {
    __builtin_prefetch((const PRIVATE void*)(row + byte), 0, 2);
  }
#endif
}
INLINE void prefetch_block(const PRIVATE TileArgs* a, const PRIVATE Tile* tile, int block, int end) {
  for (int kv = block; kv < MIN_INT(end, block + TILE_N); ++kv) {
    prefetch_row(a->k, key_index(a, tile, kv), DK);
    prefetch_row(a->v, value_index(a, tile, kv), DV);
  }
}

// One token's value row, zeros past DV.
INLINE void stage_value(const PRIVATE TileArgs* a, tile_stride index, LOCAL float* v) {
  UNROLL for (int d = 0; d + 16 <= DV; d += 16) {
#if KV_BITS == 32
    const vf value = LOAD_GLOBAL_LANES(ADDRESS(const float, a->v) + index + d);
#elif KV_BITS == 16
    const ushort16 codes = vload16(0, ADDRESS(const u16, a->v) + index + d);
    const vf value = CODES_TO_F32(convert_uint16(codes) << 16);
#else
#if CODE_BITS == 8
    const uchar16 codes = vload16(0, ADDRESS(const u8, a->v) + index + d);
#else
    const uchar8 pairs = vload8(0, ADDRESS(const u8, a->v) + index * KV_BITS / 8 + d / 2);
    uchar16 codes;
    codes.even = pairs << (uchar)4;
    codes.odd = pairs;
#endif
    vf value = CODES_TO_F32(convert_uint16(codes) << 24);
#if defined(WW_SCALED_CODES)
    value *= code_scale(a->v, a->v_block_scales, index, d);
#endif
#endif
    STORE_LANES(v + d, value);
  }
  for (int d = DV / 16 * 16; d < DV_PAD; ++d) {
    v[d] = d < DV ? pool_element(a->v, a->v_block_scales, index, d) : 0.0f;
  }
}

INLINE void stage_k(const PRIVATE TileArgs* a, const PRIVATE Tile* tile, int begin, int end,
                    int block, LOCAL char* base) {
  UNROLL_ROWS for (int first = 0; first < TILE_N; first += 16) {
    tile_stride index[16];
    for (int t = 0; t < 16; ++t) {
      const int kv = block + first + t;
      index[t] = kv >= begin && kv < end ? key_index(a, tile, kv) : -1;
    }
    stage_keys(a, index, LOCAL_K(base) + first);
  }
}

INLINE void stage_v(const PRIVATE TileArgs* a, const PRIVATE Tile* tile, int begin, int end,
                    int block, LOCAL char* base) {
  for (int t = 0; t < TILE_N && block + t < end; ++t) {
    LOCAL float* row = LOCAL_V(base) + t * DV_PAD;
    if (block + t >= begin) {
      stage_value(a, value_index(a, tile, block + t), row);
    } else {
      for (int d = 0; d < DV_PAD; d += 16) STORE_LANES(row + d, SPLAT(0.0f));
    }
  }
}

#else

// Threads of many warps cover the latency of memory between them.
#define prefetch_block(a, tile, block, end)

#if !defined(WW_INTEL_MATRIX)

INLINE void stage_k(const PRIVATE TileArgs* a, const PRIVATE Tile* tile, int begin, int end,
                    int block, LOCAL char* base) {
  for (int i = THREAD; i < TILE_N * DK_PAD; i += THREADS) {
    const int t = i / DK_PAD, d = i % DK_PAD, kv = block + t;
    LOCAL_K(base)[d * TILE_N + t] =
        kv >= begin && kv < end
            ? pool_element(a->k, a->k_block_scales, key_index(a, tile, kv), d)
            : 0.0f;
  }
}

INLINE void stage_v(const PRIVATE TileArgs* a, const PRIVATE Tile* tile, int begin, int end,
                    int block, LOCAL char* base) {
  for (int i = THREAD; i < TILE_N * DV_PAD; i += THREADS) {
    const int t = i / DV_PAD, d = i % DV_PAD, kv = block + t;
    LOCAL_V(base)[t * DV_PAD + d] =
        kv >= begin && kv < end && d < DV
            ? pool_element(a->v, a->v_block_scales, value_index(a, tile, kv), d)
            : 0.0f;
  }
}

#endif
#endif

// A row of o times `factor` to element `index` on of the output, or to f32 memory that has room for
// PARTIAL_STRIDE elements.
INLINE void store_row(PRIVATE const vf* o, float factor, tile_address out, tile_stride index) {
  UNROLL_ROWS for (int j = 0; j < OUT_COLS; ++j) {
    store_item(out, index, OUT_COL_BASE(j) + ITEM_LANE, o[j] * factor);
  }
}
INLINE void store_row_f32(PRIVATE const vf* o, GLOBAL float* to) {
  UNROLL for (int j = 0; j < OUT_COLS; ++j) STORE_GLOBAL_LANES(to + OUT_COL_BASE(j), o[j]);
}
