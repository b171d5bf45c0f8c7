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

#define WORD_VALUES (32 / KV_BITS)                       // values in a 32-bit word
#define ROW_QUADS (DK * KV_BITS / 128)                   // whole 16-byte pieces of a K row
#define VECTOR_VALUES (ROW_QUADS * 4 * WORD_VALUES)      // values of a row read by vectors

#if KV_BITS == 32
#define LOAD_QUAD(pool, index) as_uint4(vload4(0, ADDRESS(const float, pool) + (index)))
#elif KV_BITS == 16
#define LOAD_QUAD(pool, index) as_uint4(vload8(0, ADDRESS(const u16, pool) + (index)))
#elif KV_BITS == 8
#define LOAD_QUAD(pool, index) as_uint4(vload16(0, ADDRESS(const u8, pool) + (index)))
#else
#define LOAD_QUAD(pool, index) as_uint4(vload16(0, ADDRESS(const u8, pool) + (index) / 2))
#endif

// Up to four quads from quad `quad` of a row; missing ones are 0.
INLINE vu load_words(tile_address pool, tile_stride index, int quad) {
  const tile_stride at = index + quad * 4 * WORD_VALUES;
  vu words = (vu)(0);
  words.s0123 = LOAD_QUAD(pool, at);
  if (quad + 1 < ROW_QUADS) words.s4567 = LOAD_QUAD(pool, at + 4 * WORD_VALUES);
  if (quad + 2 < ROW_QUADS) words.s89ab = LOAD_QUAD(pool, at + 8 * WORD_VALUES);
  if (quad + 3 < ROW_QUADS) words.scdef = LOAD_QUAD(pool, at + 12 * WORD_VALUES);
  return words;
}

// Value e of each lane's word.
INLINE vf word_value(vu word, int e) {
#if KV_BITS == 32
  return AS_VF(word);
#else
  return CODES_TO_F32(word << (u32)(32 - KV_BITS - e * KV_BITS));
#endif
}

// Keys of 16 tokens from `first`, transposed. index[t] < 0: token t is not there, and is 0.
INLINE void stage_keys(const PRIVATE TileArgs* a, PRIVATE const tile_stride* index,
                       LOCAL float* k) {
  UNROLL_ROWS for (int quad = 0; quad < ROW_QUADS; quad += 4) {
    vu words[16];
    UNROLL for (int t = 0; t < 16; ++t) {
      words[t] = index[t] < 0 ? (vu)(0) : load_words(a->k, index[t], quad);
    }
    transpose_words(words);
    UNROLL_ROWS for (int w = 0; w < 16; ++w) {
      const int d = (quad * 4 + w) * WORD_VALUES;
      if (d >= VECTOR_VALUES) break;
#if KV_FORMAT == KV_E2M1
      u8 codes[16];
      UNROLL for (int t = 0; t < 16; ++t) {
        codes[t] = index[t] < 0 ? 0 : ADDRESS(const u8, a->k_block_scales)[(index[t] + d) / 16];
      }
      const vf scale = e4m3_to_f32_lanes(convert_uint16(vload16(0, codes)) << 24);
#endif
      UNROLL for (int e = 0; e < WORD_VALUES; ++e) {
        vf value = word_value(words[w], e);
#if KV_FORMAT == KV_E2M1
        value *= scale;
#endif
        STORE_LANES(k + (d + e) * TILE_N, value);
      }
    }
  }
  for (int d = VECTOR_VALUES; d < DK; ++d) {
    for (int t = 0; t < 16; ++t) {
      k[d * TILE_N + t] =
          index[t] < 0 ? 0.0f : pool_element(a->k, a->k_block_scales, index[t] + d);
    }
  }
}

// Asks for the rows of the tokens that the next block will stage, while this one is computed.
INLINE void prefetch_row(tile_address pool, tile_stride index, int values) {
#if __has_builtin(__builtin_prefetch)
  const tile_address row = pool + (tile_address)(index * KV_BITS / 8);
  for (int byte = 0; byte < values * KV_BITS / 8; byte += 64) {
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
#elif KV_BITS == 8
    const uchar16 codes = vload16(0, ADDRESS(const u8, a->v) + index + d);
    const vf value = CODES_TO_F32(convert_uint16(codes) << 24);
#else
    const uchar8 pairs = vload8(0, ADDRESS(const u8, a->v) + (index + d) / 2);
    uchar16 codes;
    codes.even = pairs << (uchar)4;
    codes.odd = pairs;
    const vf value =
        CODES_TO_F32(convert_uint16(codes) << 24) * block_scale(a->v_block_scales, index + d);
#endif
    STORE_LANES(v + d, value);
  }
  for (int d = DV / 16 * 16; d < DV_PAD; ++d) {
    v[d] = d < DV ? pool_element(a->v, a->v_block_scales, index + d) : 0.0f;
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
            ? pool_element(a->k, a->k_block_scales, key_index(a, tile, kv) + d)
            : 0.0f;
  }
}

INLINE void stage_v(const PRIVATE TileArgs* a, const PRIVATE Tile* tile, int begin, int end,
                    int block, LOCAL char* base) {
  for (int i = THREAD; i < TILE_N * DV_PAD; i += THREADS) {
    const int t = i / DV_PAD, d = i % DV_PAD, kv = block + t;
    LOCAL_V(base)[t * DV_PAD + d] =
        kv >= begin && kv < end && d < DV
            ? pool_element(a->v, a->v_block_scales, value_index(a, tile, kv) + d)
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
