// Tile operations on NVIDIA tensor cores, sm_80 and later: mma.sync m16n8k16 with f32 sums. Operands
// are bf16, or f16 where the pool (or, beside fp8 and fp4, the query) holds f16; fp8 and fp4 codes, block scales applied, are exact in
// both. COLUMN_WARPS warps own 16 rows; a lane holds two of them, g and g + 8 with g = lane / 4, and of each
// n8 tile the columns 2 * (lane % 4) and the next. Scores stay in registers and are, in the layout
// they are born with, the A operand of the MMA with the values.
// Where the sums of wide values do not fit one warp's registers there are several COLUMN_WARPS: each makes the scores
// of a part of the block's tokens, which all then read from local memory, and owns a part of the output's columns.
//
// Local memory, 16-bit: q [TILE_M][K_STRIDE], then STAGES blocks, each k [TILE_N][K_STRIDE] and
// v [TILE_N][V_STRIDE]; rows are padded by 16 bytes, so that the 8 rows of an ldmatrix lie in different
// banks. With WW_LATENT a value is the first part of its key, and v is k. Behind them, twice, where the rows of a block's
// tokens begin in the pools; then, with several COLUMN_WARPS, f32 scores [TILE_M][SHARED_SCORES].
// With two stages the next block is on its way while one is computed, at one barrier a block; fp8 and fp4 codes
// wait in registers instead (WW_CARRIED).
// Layouts: PTX ISA, "Matrix fragments for mma.m16n8k16".

#define DK_PAD ROUND_UP(DK, 16 * COLUMN_WARPS)
#define DV_PAD ROUND_UP(DV, 16 * COLUMN_WARPS)
#define K_STRIDE (DK_PAD + 8)
#if defined(WW_LATENT)
#define V_STRIDE K_STRIDE
#define BLOCK_VALUES (TILE_N * K_STRIDE)
#else
#define V_STRIDE (DV_PAD + 8)
#define BLOCK_VALUES (TILE_N * (K_STRIDE + V_STRIDE))
#endif
#define WW_PIPELINED   // its own open_blocks and take_block
#define WARP_TILE_ROWS 16
#define ROWS 2
#define COLS (TILE_N / 4)
#define OUT_COLS (DV_PAD / COLUMN_WARPS / 4)
#define LANE (THREAD % 32)
#define ROW_WARP (WARP / COLUMN_WARPS)      // which 16 rows
#define COLUMN_PART (WARP % COLUMN_WARPS)
#define FIRST_OUT_COL (COLUMN_PART * (DV_PAD / COLUMN_WARPS))

#define TILE_ROW(r) (ROW_WARP * 16 + (r)*8 + LANE / 4)
#define COL_BASE(j) ((j) / 2 * 8)
#define COL_LANE(j) (LANE % 4 * 2 + (j) % 2)
#define OUT_COL(j) (FIRST_OUT_COL + (j) / 2 * 8 + LANE % 4 * 2 + (j) % 2)
#define LIVE_ROWS(rows) ROWS
#define ROW_LEADER (LANE % 4 == 0 && COLUMN_PART == 0)

#define LOCAL_Q(base) ((u16*)(base))
#define LOCAL_K(base, stage) \
  (LOCAL_Q(base) + TILE_M * K_STRIDE + (stage)*BLOCK_VALUES)
#if defined(WW_LATENT)
#define LOCAL_V(base, stage) LOCAL_K(base, stage)
#else
#define LOCAL_V(base, stage) (LOCAL_K(base, stage) + TILE_N * K_STRIDE)
#endif
#define LOCAL_ROWS(base, stage) ((TokenRows*)LOCAL_K(base, STAGES) + (stage)*TILE_N)
#define SHARED_SCORES (TILE_N + 8)   // a row's; lanes that store side by side meet different banks
#define LOCAL_SCORES(base) ((float*)LOCAL_ROWS(base, 2))
#define LOCAL_END(base) ((char*)(LOCAL_SCORES(base) + (COLUMN_WARPS > 1 ? TILE_M * SHARED_SCORES : 0)))

// Elements where a token's rows begin in the pools of K and V; -1: it is not there, and is 0.
typedef struct TokenRows {
  tile_stride k, v;
} TokenRows;

#if KV_FORMAT == KV_F32
#error "f32 pools have no tensor-core form: use lanes.cl"
#elif KV_FORMAT == KV_F16 || (Q_FORMAT == F16_VALUES && KV_BITS < 16)
#define MMA_TYPE "f16"
#define MMA_VALUES F16_VALUES
#define PACK_INSTRUCTION "cvt.rn.f16x2.f32 %0, %1, %2;"
#else
#define MMA_TYPE "bf16"
#define MMA_VALUES BF16_VALUES
#define PACK_INSTRUCTION "cvt.rn.bf16x2.f32 %0, %1, %2;"
#endif

INLINE u32 pack_pair(float low, float high) {
  u32 pair;
  asm(PACK_INSTRUCTION : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

INLINE float quad_max(float x) {
  float other = SHUFFLE_XOR(x, 1);
  x = x > other ? x : other;
  other = SHUFFLE_XOR(x, 2);
  return x > other ? x : other;
}
INLINE float quad_sum(float x) {
  x += SHUFFLE_XOR(x, 1);
  return x + SHUFFLE_XOR(x, 2);
}
#define ROW_MAX(x, base) quad_max(x)
#define ROW_SUM(x, base) quad_sum(x)

INLINE u32 shared_address(const u16* p) { return (u32)__cvta_generic_to_shared(p); }

// Four 8 x 8 matrices of 16-bit values; lane l gives the address of row l % 8 of matrix l / 8.
INLINE void load_matrices(u32 (&m)[4], const u16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(shared_address(row)));
}
INLINE void load_matrices_transposed(u32 (&m)[4], const u16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(shared_address(row)));
}

// The n8 tile whose columns are j and j + 1 of the lane's two rows: c += a b.
INLINE void multiply_add(float& c0, float& c1, float& c2, float& c3, const u32 (&a)[4], u32 b0,
                         u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." MMA_TYPE "." MMA_TYPE
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The scores of SCORE_TOKENS tokens of the block, from `first` on: an even number of n8 tiles.
#define SCORE_TOKENS (TILE_N / COLUMN_WARPS)
INLINE void dot_tokens(float (*s)[SCORE_TOKENS / 4], int first, char* base, int stage) {
  UNROLL for (int j = 0; j < SCORE_TOKENS / 4; ++j) s[0][j] = s[1][j] = 0.0f;
  const u16* q = LOCAL_Q(base) + (ROW_WARP * 16 + LANE % 16) * K_STRIDE + LANE / 16 * 8;
  const u16* k = LOCAL_K(base, stage) + (first + LANE / 16 * 8 + LANE % 8) * K_STRIDE + LANE / 8 % 2 * 8;
  UNROLL for (int d = 0; d < DK_PAD; d += 16) {
    u32 a[4];
    load_matrices(a, q + d);
    UNROLL for (int n = 0; n < SCORE_TOKENS; n += 16) {
      u32 b[4];
      load_matrices(b, k + n * K_STRIDE + d);
      const int j = n / 4;
      multiply_add(s[0][j], s[0][j + 1], s[1][j], s[1][j + 1], a, b[0], b[1]);
      multiply_add(s[0][j + 2], s[0][j + 3], s[1][j + 2], s[1][j + 3], a, b[2], b[3]);
    }
  }
}

#if COLUMN_WARPS == 1
INLINE void dot_scores(float (*s)[COLS], char* base, int stage, int rows) { dot_tokens(s, 0, base, stage); }
#else
// Between the warps that share rows.
INLINE void row_barrier() {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + ROW_WARP), "n"(32 * COLUMN_WARPS) : "memory");
}

// Read before the next block's barrier, written after it.
INLINE void dot_scores(float (*s)[COLS], char* base, int stage, int rows) {
  float own[ROWS][SCORE_TOKENS / 4];
  dot_tokens(own, COLUMN_PART * SCORE_TOKENS, base, stage);
  float* shared = LOCAL_SCORES(base) + TILE_ROW(0) * SHARED_SCORES + LANE % 4 * 2;
  UNROLL for (int r = 0; r < ROWS; ++r) {
    UNROLL for (int j = 0; j < SCORE_TOKENS / 4; j += 2) {
      *(float2*)(shared + r * 8 * SHARED_SCORES + COLUMN_PART * SCORE_TOKENS + COL_BASE(j)) =
          make_float2(own[r][j], own[r][j + 1]);
    }
  }
  row_barrier();
  UNROLL for (int r = 0; r < ROWS; ++r) {
    UNROLL for (int j = 0; j < COLS; j += 2) {
      const float2 pair = *(const float2*)(shared + r * 8 * SHARED_SCORES + COL_BASE(j));
      s[r][j] = pair.x;
      s[r][j + 1] = pair.y;
    }
  }
}
#endif

INLINE void dot_values(float (*o)[OUT_COLS], float (*s)[COLS], const float* alpha, char* base,
                       int stage, int rows, int tokens) {
  // Most blocks raise no row's maximum.
  if (__any_sync(0xffffffffu, alpha[0] != 1.0f || alpha[1] != 1.0f)) {
    UNROLL for (int r = 0; r < ROWS; ++r) {
      UNROLL for (int j = 0; j < OUT_COLS; ++j) o[r][j] *= alpha[r];
    }
  }
  const u16* v = LOCAL_V(base, stage) + LANE % 16 * V_STRIDE + FIRST_OUT_COL + LANE / 16 * 8;
  UNROLL for (int t = 0; t < TILE_N; t += 16) {
    const int i = t / 4;
    const u32 a[4] = {pack_pair(s[0][i], s[0][i + 1]), pack_pair(s[1][i], s[1][i + 1]),
                      pack_pair(s[0][i + 2], s[0][i + 3]), pack_pair(s[1][i + 2], s[1][i + 3])};
    UNROLL for (int n = 0; n < DV_PAD / COLUMN_WARPS; n += 16) {
      u32 b[4];
      load_matrices_transposed(b, v + t * V_STRIDE + n);
      const int j = n / 4;
      multiply_add(o[0][j], o[0][j + 1], o[1][j], o[1][j + 1], a, b[0], b[1]);
      multiply_add(o[0][j + 2], o[0][j + 3], o[1][j + 2], o[1][j + 3], a, b[2], b[3]);
    }
  }
}

#if KV_BITS < 16

// An 8- or 4-bit code, moved into the fields of a 16-bit number, is its value times a power of two; one
// multiplication, exact for subnormals too, puts that right. WIDEN: sign, exponent and mantissa of a code
// that stands in the top bits of each half of a word.
#if MMA_VALUES == BF16_VALUES
#define FMA_PAIRS "fma.rn.bf16x2 %0, %1, %2, %3;"
#else
#define FMA_PAIRS "fma.rn.f16x2 %0, %1, %2, %3;"
#endif
#if CODES_E4M3 && MMA_VALUES == BF16_VALUES
#define WIDEN(x) (((x) & 0x80008000u) | ((x) >> 4 & 0x07f007f0u))
#define WIDEN_FACTOR 0x7b807b80u   // 2^120
#elif CODES_E4M3
#define WIDEN(x) (((x) & 0x80008000u) | ((x) >> 1 & 0x3f803f80u))
#define WIDEN_FACTOR 0x5c005c00u   // 2^8
#elif KV_FORMAT == KV_E5M2 && MMA_VALUES == BF16_VALUES
#define WIDEN(x) (((x) & 0x80008000u) | ((x) >> 3 & 0x0fe00fe0u))
#define WIDEN_FACTOR 0x77807780u   // 2^112
#elif KV_FORMAT == KV_E5M2
#define WIDEN(x) ((x) & 0xff00ff00u)
#define WIDEN_FACTOR 0x3c003c00u   // 1
#elif MMA_VALUES == BF16_VALUES
#define WIDEN(x) (((x) & 0x80008000u) | ((x) >> 6 & 0x01c001c0u))
#define WIDEN_FACTOR 0x7e807e80u   // 2^126
#else
#define WIDEN(x) (((x) & 0x80008000u) | ((x) >> 3 & 0x0e000e00u))
#define WIDEN_FACTOR 0x74007400u   // 2^14
#endif

INLINE u32 multiply_pairs(u32 a, u32 b) {
  u32 product;
  asm(FMA_PAIRS : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
  return product;
}

#endif

// Codes of eight values of a row, and for fp4 that of their scale, as they were loaded. Of packed tokens: the scale, too,
// or all four words of 16-bit values.
typedef struct Codes {
  uint2 bits;
  u32 scale;
#if defined(WW_PACKED_ROWS)
  u32 last;
#endif
} Codes;

// From value `d`, a multiple of 8, of the row at element `row` of a pool, which is a multiple of 8, too.
INLINE Codes load_codes(tile_address pool, tile_address block_scales, tile_stride row, int d) {
  const tile_stride index = row + d;
  Codes codes = {};
#if defined(WW_PACKED_ROWS)
  const u8* token = ADDRESS(const u8, pool) + row;
  if (d >= PACKED_LATENT) {
    const uint4 values = *(const uint4*)(token + PACKED_ROPE + (d - PACKED_LATENT) * 2);
    codes.bits = make_uint2(values.x, values.y);
    codes.scale = values.z;
    codes.last = values.w;
  } else if (KV_FORMAT == KV_DS_MLA) {
    codes.bits = *(const uint2*)(token + d);
    codes.scale = *(const u32*)(token + PACKED_SCALES + d / 128 * 4);
  } else {
    codes.bits.x = *(const u32*)(token + d / 2);
    codes.scale = token[PACKED_SCALES + d / 16];
  }
#elif KV_BITS == 8
  codes.bits = *(const uint2*)(ADDRESS(const u8, pool) + index);
#elif KV_BITS == 4
  codes.bits.x = *(const u32*)(ADDRESS(const u8, pool) + index / 2);
  codes.scale = ADDRESS(const u8, block_scales)[index / 16];
#endif
  return codes;
}

// As operands. `d`: the first one's place in the row.
INLINE uint4 widen_codes(Codes codes, int d) {
#if defined(WW_PACKED_ROWS)
  if (d >= PACKED_LATENT) return make_uint4(codes.bits.x, codes.bits.y, codes.scale, codes.last);
#endif
#if CODES_E4M3 || KV_FORMAT == KV_E5M2
#if defined(WW_PACKED_ROWS)
  const u32 factor = multiply_pairs(pack_pair(AS_F32(codes.scale), AS_F32(codes.scale)), WIDEN_FACTOR);
#else
  const u32 factor = WIDEN_FACTOR;
#endif
#if CODES_E4M3
  const u32 special = ((codes.bits.x & 0x7f7f7f7fu) + 0x01010101u | (codes.bits.y & 0x7f7f7f7fu) + 0x01010101u);
#else
  const u32 special = ((codes.bits.x & 0x7c7c7c7cu) + 0x04040404u | (codes.bits.y & 0x7c7c7c7cu) + 0x04040404u);
#endif
  if (special & 0x80808080u) {   // NaN, infinite
    float x[8];
    UNROLL for (int e = 0; e < 8; ++e) {
      x[e] = CODE_TO_F32((e < 4 ? codes.bits.x : codes.bits.y) << (24 - e % 4 * 8));
    }
    return make_uint4(pack_pair(x[0], x[1]), pack_pair(x[2], x[3]), pack_pair(x[4], x[5]), pack_pair(x[6], x[7]));
  }
#define WIDEN_TWO(word, select) multiply_pairs(WIDEN(__byte_perm(word, 0, select)), factor)
  return make_uint4(WIDEN_TWO(codes.bits.x, 0x1404), WIDEN_TWO(codes.bits.x, 0x3424),
                    WIDEN_TWO(codes.bits.y, 0x1404), WIDEN_TWO(codes.bits.y, 0x3424));
#elif CODES_E2M1
  const float block_scale = e4m3_to_f32_one(codes.scale << 24);
  const u32 word = codes.bits.x, scale = pack_pair(block_scale, block_scale);
  const u32 pairs[4] = {(word << 12 & 0xf000u) | (word << 24 & 0xf0000000u), (word << 4 & 0xf000u) | (word << 16 & 0xf0000000u),
                        (word >> 4 & 0xf000u) | (word << 8 & 0xf0000000u), (word >> 12 & 0xf000u) | (word & 0xf0000000u)};
  u32 values[4];
  UNROLL for (int i = 0; i < 4; ++i) {
    values[i] = multiply_pairs(multiply_pairs(WIDEN(pairs[i]), WIDEN_FACTOR), scale);
  }
  return make_uint4(values[0], values[1], values[2], values[3]);
#else
  return make_uint4(0, 0, 0, 0);
#endif
}

// Eight values of a row from d on as operands, zeros past `dim`, one by one: rows of any alignment. Packed tokens
// begin at 16 bytes.
INLINE uint4 row_piece(tile_address pool, tile_address block_scales, tile_stride row, int d, int dim) {
#if defined(WW_PACKED_ROWS)
  return d < dim ? widen_codes(load_codes(pool, block_scales, row, d), d) : make_uint4(0, 0, 0, 0);
#endif
  float x[8];
  UNROLL for (int e = 0; e < 8; ++e) {
    x[e] = d + e < dim ? pool_element(pool, block_scales, row, d + e) : 0.0f;
  }
  return make_uint4(pack_pair(x[0], x[1]), pack_pair(x[2], x[3]), pack_pair(x[4], x[5]),
                    pack_pair(x[6], x[7]));
}

// Eight values of a query from d on, zeros past DK.
INLINE uint4 query_piece(tile_address queries, tile_stride index, int d) {
#if defined(WW_ALIGNED_ROWS) && Q_FORMAT == MMA_VALUES
  if (d + 8 <= DK) return *(const uint4*)(ADDRESS(const u16, queries) + index + d);
#endif
  float x[8];
  UNROLL for (int e = 0; e < 8; ++e) x[e] = d + e < DK ? query_element(queries, index + d + e) : 0.0f;
  return make_uint4(pack_pair(x[0], x[1]), pack_pair(x[2], x[3]), pack_pair(x[4], x[5]),
                    pack_pair(x[6], x[7]));
}

// A form of the warp's query rows to local memory, zeros past the tile's last row. Warps that share rows bring
// some each; a barrier stands before the first block's scores.
INLINE void stage_q(const TileArgs* a, const Tile* tile, int form, char* base) {
  const tile_address queries = query_array(a, form);
  for (int r = COLUMN_PART * 4 + LANE / 8; r < 16; r += 4 * COLUMN_WARPS) {
    const int row = ROW_WARP * 16 + r, live = row < tile->rows;
    const tile_stride index = live ? query_index(a, tile, form, row) : 0;
    UNROLL for (int d = LANE % 8 * 8; d < DK_PAD; d += 64) {
      uint4 piece = make_uint4(0, 0, 0, 0);
      if (live) piece = query_piece(queries, index, d);
      *(uint4*)(LOCAL_Q(base) + row * K_STRIDE + d) = piece;
    }
  }
  WARP_BARRIER();
}

// With WW_ALIGNED_ROWS the host vouches that every row starts on a multiple of eight elements and 16 bytes
// (8 of fp8, 4 of fp4).
#if defined(WW_ALIGNED_ROWS) && KV_BITS == 16
// Past the registers.
INLINE void copy_piece(u16* to, tile_address pool, tile_stride row, int d) {
  const u16* from = ADDRESS(const u16, pool) + (row < 0 ? 0 : row + d);
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
               "l"(from), "r"(row < 0 ? 0 : 16)
               : "memory");
}
#endif

#define PIECES(pad) ((pad) / 8)
#define THREAD_PIECES(pad) ((TILE_N * PIECES(pad) + THREADS - 1) / THREADS)

// Codes wait in registers from one block to the next, while that is computed, where there is room for them.
#if defined(WW_LATENT)
#define BLOCK_PIECES THREAD_PIECES(DK_PAD)
#else
#define BLOCK_PIECES (THREAD_PIECES(DK_PAD) + THREAD_PIECES(DV_PAD))
#endif
#if defined(WW_ALIGNED_ROWS) && KV_BITS < 16 && BLOCK_PIECES <= 16
#define WW_CARRIED
#endif

typedef struct BlockCarry {
#if defined(WW_CARRIED)
  Codes k[THREAD_PIECES(DK_PAD)];
#if !defined(WW_LATENT)
  Codes v[THREAD_PIECES(DV_PAD)];
#endif
  int slot;   // of LOCAL_ROWS: the rows of the next block
#else
  int unused;
#endif
} BlockCarry;

#if defined(WW_ALIGNED_ROWS) && KV_BITS < 16

// A thread's pieces `first`, `first` + THREADS and so on of a block's rows in one pool. `second`: V's, not K's.
template <int kCount>
INLINE void load_pieces(const TileArgs* a, const TokenRows* rows, int second, int first, Codes (&codes)[kCount]) {
  const int dim = second ? DV : DK, pieces = second ? PIECES(DV_PAD) : PIECES(DK_PAD);
  UNROLL for (int n = 0; n < kCount; ++n) {
    const int i = first + n * THREADS, t = i / pieces, d = i % pieces * 8;
    codes[n] = {};
    if (i >= TILE_N * pieces) continue;
    const tile_stride row = second ? rows[t].v : rows[t].k;
    if (row >= 0 && d < dim) {
      codes[n] = second ? load_codes(a->v, a->v_block_scales, row, d) : load_codes(a->k, a->k_block_scales, row, d);
    }
  }
}

template <int kCount>
INLINE void store_pieces(const Codes (&codes)[kCount], int second, int first, u16* to) {
  const int pieces = second ? PIECES(DV_PAD) : PIECES(DK_PAD), stride = second ? V_STRIDE : K_STRIDE;
  UNROLL for (int n = 0; n < kCount; ++n) {
    const int i = first + n * THREADS, d = i % pieces * 8;
    if (i < TILE_N * pieces) *(uint4*)(to + i / pieces * stride + d) = widen_codes(codes[n], d);
  }
}

#endif

// One pool's rows of a block, which find_rows has found.
INLINE void stage_pool(const TileArgs* a, const TokenRows* rows, int second, u16* to) {
  const int pieces = second ? PIECES(DV_PAD) : PIECES(DK_PAD);
#if defined(WW_ALIGNED_ROWS) && KV_BITS < 16
  for (int first = THREAD; first < TILE_N * pieces; first += THREADS * 8) {
    Codes codes[8];
    load_pieces(a, rows, second, first, codes);
    store_pieces(codes, second, first, to);
  }
#else
  const tile_address pool = second ? a->v : a->k;
  const int dim = second ? DV : DK, stride = second ? V_STRIDE : K_STRIDE;
  // Enough loads in flight for a warp that is alone, without code of a thousand lines.
  _Pragma("unroll 8") for (int i = THREAD; i < TILE_N * pieces; i += THREADS) {
    const int t = i / pieces, d = i % pieces * 8;
    const tile_stride row = second ? rows[t].v : rows[t].k;
    u16* piece = to + t * stride + d;
#if defined(WW_ALIGNED_ROWS)
    if (d < dim) copy_piece(piece, pool, row, d);
    else *(uint4*)piece = make_uint4(0, 0, 0, 0);
#else
    const tile_address block_scales = second ? a->v_block_scales : a->k_block_scales;
    *(uint4*)piece = row < 0 ? make_uint4(0, 0, 0, 0) : row_piece(pool, block_scales, row, d, dim);
#endif
  }
#endif
}

INLINE void stage_block(const TileArgs* a, int stage, char* base) {
  stage_pool(a, LOCAL_ROWS(base, stage), 0, LOCAL_K(base, stage));
#if !defined(WW_LATENT)
  stage_pool(a, LOCAL_ROWS(base, stage), 1, LOCAL_V(base, stage));
#endif
}

#if defined(WW_CARRIED)
INLINE void load_carry(const TileArgs* a, const TokenRows* rows, BlockCarry* carry) {
  load_pieces(a, rows, 0, THREAD, carry->k);
#if !defined(WW_LATENT)
  load_pieces(a, rows, 1, THREAD, carry->v);
#endif
}
INLINE void store_carry(const BlockCarry* carry, int stage, char* base) {
  store_pieces(carry->k, 0, THREAD, LOCAL_K(base, stage));
#if !defined(WW_LATENT)
  store_pieces(carry->v, 1, THREAD, LOCAL_V(base, stage));
#endif
}
#endif

INLINE void find_rows(const TileArgs* a, const Tile* tile, int begin, int end, int block, int stage,
                      char* base) {
  for (int t = THREAD; t < TILE_N; t += THREADS) {
    const int kv = block + t;
    TokenRows rows = {-1, -1};
    if (kv >= begin && kv < end) {
      rows.k = key_index(a, tile, kv);
      rows.v = value_index(a, tile, kv);
    }
    LOCAL_ROWS(base, stage)[t] = rows;
  }
}

INLINE void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

INLINE void open_blocks(const TileArgs* a, const Tile* tile, int begin, int end, int block, int next,
                        char* base, BlockCarry* carry) {
  BARRIER();
  find_rows(a, tile, begin, end, block, 0, base);
#if defined(WW_CARRIED)
  BARRIER();
  load_carry(a, LOCAL_ROWS(base, 0), carry);
  find_rows(a, tile, begin, end, next, 1, base);
  carry->slot = 1;
#elif STAGES == 2
  BARRIER();
  stage_block(a, 0, base);
  find_rows(a, tile, begin, end, next, 1, base);
#endif
}

// Makes a block present in local memory; `next` and `after_next` are those that follow.
INLINE void take_block(const TileArgs* a, const Tile* tile, int begin, int end, int block, int next,
                       int after_next, int stage, char* base, BlockCarry* carry) {
#if defined(WW_CARRIED)
  BARRIER();
  store_carry(carry, stage, base);
  if (next < end) {
    load_carry(a, LOCAL_ROWS(base, carry->slot), carry);
    carry->slot ^= 1;
    find_rows(a, tile, begin, end, after_next, carry->slot, base);
  }
  BARRIER();
#elif STAGES == 2
  wait_for_copies();
  BARRIER();
  if (next >= end) return;
  stage_block(a, stage ^ 1, base);
  find_rows(a, tile, begin, end, after_next, stage, base);
#else
  BARRIER();
  stage_block(a, 0, base);
  wait_for_copies();
  BARRIER();
  find_rows(a, tile, begin, end, next, 0, base);
#endif
}

INLINE void store_row(const float* o, float factor, tile_address out, tile_stride index) {
  UNROLL for (int j = 0; j < OUT_COLS; ++j) store_item(out, index, OUT_COL(j), o[j] * factor);
}
INLINE void store_row_f32(const float* o, float* to) {
  UNROLL for (int j = 0; j < OUT_COLS; ++j) {
    if (OUT_COL(j) < PARTIAL_STRIDE) to[OUT_COL(j)] = o[j];
  }
}
