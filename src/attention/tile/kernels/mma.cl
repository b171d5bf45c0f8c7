// Tile operations on NVIDIA tensor cores, sm_80 and later: mma.sync m16n8k16 with f32 sums. Operands
// are bf16, or f16 where the pool (or, beside fp8 and fp4, the query) holds f16; fp8 and fp4 codes, block scales applied, are exact in
// both. A warp owns 16 rows; a lane holds two of them, g and g + 8 with g = lane / 4, and of each
// n8 tile the columns 2 * (lane % 4) and the next. Scores stay in registers and are, in the layout
// they are born with, the first operand of the product with the values.
//
// Local memory, 16-bit: q [TILE_M][K_STRIDE], then STAGES blocks, each k [TILE_N][K_STRIDE] and
// v [TILE_N][V_STRIDE]; rows are padded by 16 bytes, so that the 8 rows of an ldmatrix lie in different
// banks. Behind them, for each stage, where the rows of its tokens begin in the pools.
// With two stages the next block is on its way while one is computed, at one barrier a block.
// Layouts: PTX ISA, "Matrix fragments for mma.m16n8k16".

#define DK_PAD ROUND_UP(DK, 16)
#define DV_PAD ROUND_UP(DV, 16)
#define K_STRIDE (DK_PAD + 8)
#define V_STRIDE (DV_PAD + 8)
#define WW_PIPELINED   // its own open_blocks and take_block
#define WARP_TILE_ROWS 16
#define ROWS 2
#define COLS (TILE_N / 4)
#define OUT_COLS (DV_PAD / 4)
#define LANE (THREAD % 32)

#define TILE_ROW(r) (WARP * 16 + (r)*8 + LANE / 4)
#define COL_BASE(j) ((j) / 2 * 8)
#define COL_LANE(j) (LANE % 4 * 2 + (j) % 2)
#define OUT_COL(j) ((j) / 2 * 8 + LANE % 4 * 2 + (j) % 2)
#define LIVE_ROWS(rows) ROWS
#define ROW_LEADER (LANE % 4 == 0)

#define LOCAL_Q(base) ((u16*)(base))
#define LOCAL_K(base, stage) \
  (LOCAL_Q(base) + TILE_M * K_STRIDE + (stage)*TILE_N * (K_STRIDE + V_STRIDE))
#define LOCAL_V(base, stage) (LOCAL_K(base, stage) + TILE_N * K_STRIDE)
#define LOCAL_ROWS(base, stage) ((TokenRows*)LOCAL_K(base, STAGES) + (stage)*TILE_N)
#define LOCAL_END(base) ((char*)LOCAL_ROWS(base, STAGES))

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

INLINE void dot_scores(float (*s)[COLS], char* base, int stage, int rows) {
  UNROLL for (int j = 0; j < COLS; ++j) s[0][j] = s[1][j] = 0.0f;
  const u16* q = LOCAL_Q(base) + (WARP * 16 + LANE % 16) * K_STRIDE + LANE / 16 * 8;
  const u16* k = LOCAL_K(base, stage) + (LANE / 16 * 8 + LANE % 8) * K_STRIDE + LANE / 8 % 2 * 8;
  UNROLL for (int d = 0; d < DK_PAD; d += 16) {
    u32 a[4];
    load_matrices(a, q + d);
    UNROLL for (int n = 0; n < TILE_N; n += 16) {
      u32 b[4];
      load_matrices(b, k + n * K_STRIDE + d);
      const int j = n / 4;
      multiply_add(s[0][j], s[0][j + 1], s[1][j], s[1][j + 1], a, b[0], b[1]);
      multiply_add(s[0][j + 2], s[0][j + 3], s[1][j + 2], s[1][j + 3], a, b[2], b[3]);
    }
  }
}

INLINE void dot_values(float (*o)[OUT_COLS], float (*s)[COLS], const float* alpha, char* base,
                       int stage, int rows, int tokens) {
  // Most blocks raise no row's maximum.
  if (__any_sync(0xffffffffu, alpha[0] != 1.0f || alpha[1] != 1.0f)) {
    UNROLL for (int r = 0; r < ROWS; ++r) {
      UNROLL for (int j = 0; j < OUT_COLS; ++j) o[r][j] *= alpha[r];
    }
  }
  const u16* v = LOCAL_V(base, stage) + LANE % 16 * V_STRIDE + LANE / 16 * 8;
  UNROLL for (int t = 0; t < TILE_N; t += 16) {
    const int i = t / 4;
    const u32 a[4] = {pack_pair(s[0][i], s[0][i + 1]), pack_pair(s[1][i], s[1][i + 1]),
                      pack_pair(s[0][i + 2], s[0][i + 3]), pack_pair(s[1][i + 2], s[1][i + 3])};
    UNROLL for (int n = 0; n < DV_PAD; n += 16) {
      u32 b[4];
      load_matrices_transposed(b, v + t * V_STRIDE + n);
      const int j = n / 4;
      multiply_add(o[0][j], o[0][j + 1], o[1][j], o[1][j + 1], a, b[0], b[1]);
      multiply_add(o[0][j + 2], o[0][j + 3], o[1][j + 2], o[1][j + 3], a, b[2], b[3]);
    }
  }
}

// Eight values from element `index` of a pool, which is a multiple of 8, as operands.
INLINE uint4 load_eight(tile_address pool, tile_address block_scales, tile_stride index) {
#if KV_BITS == 16
  return *(const uint4*)(ADDRESS(const u16, pool) + index);
#else
#if KV_BITS == 8
  const uint2 codes = *(const uint2*)(ADDRESS(const u8, pool) + index);
  const float scale = 1.0f;
#else
  const uint2 codes = make_uint2(*(const u32*)(ADDRESS(const u8, pool) + index / 2), 0);
  const float scale = block_scale(block_scales, index);
#endif
  float x[8];
  UNROLL for (int e = 0; e < 8; ++e) {
    const u32 word = e * KV_BITS < 32 ? codes.x : codes.y;
    x[e] = CODE_TO_F32(word << (32 - KV_BITS - e * KV_BITS % 32)) * scale;
  }
  return make_uint4(pack_pair(x[0], x[1]), pack_pair(x[2], x[3]), pack_pair(x[4], x[5]),
                    pack_pair(x[6], x[7]));
#endif
}

// One row piece of eight values at d, zeros past `dim`. With WW_ALIGNED_ROWS the host vouches that
// every row starts on a multiple of eight elements and 16 bytes (8 of fp8, 4 of fp4).
INLINE uint4 row_piece(tile_address pool, tile_address block_scales, tile_stride row, int d,
                       int dim) {
#if defined(WW_ALIGNED_ROWS)
  if (d + 8 <= dim) return load_eight(pool, block_scales, row + d);
#endif
  float x[8];
  UNROLL for (int e = 0; e < 8; ++e) {
    x[e] = d + e < dim ? pool_element(pool, block_scales, row + d + e) : 0.0f;
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

// A form of the warp's query rows to local memory, zeros past the tile's last row.
INLINE void stage_q(const TileArgs* a, const Tile* tile, int form, char* base) {
  const tile_address queries = query_array(a, form);
  for (int r = LANE / 8; r < 16; r += 4) {
    const int row = WARP * 16 + r, live = row < tile->rows;
    const tile_stride index = live ? query_index(a, tile, form, row) : 0;
    UNROLL for (int d = LANE % 8 * 8; d < DK_PAD; d += 64) {
      uint4 piece = make_uint4(0, 0, 0, 0);
      if (live) piece = query_piece(queries, index, d);
      *(uint4*)(LOCAL_Q(base) + row * K_STRIDE + d) = piece;
    }
  }
  WARP_BARRIER();
}

// Eight values of a row to local memory; rows of the operands' own type without passing a register.
INLINE void stage_piece(u16* to, tile_address pool, tile_address block_scales, tile_stride row, int d,
                        int dim) {
#if defined(WW_ALIGNED_ROWS) && KV_BITS == 16
  if (d + 8 <= dim) {
    const u16* from = ADDRESS(const u16, pool) + (row < 0 ? 0 : row + d);
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(row < 0 ? 0 : 16)
                 : "memory");
    return;
  }
#endif
  uint4 piece = make_uint4(0, 0, 0, 0);
  if (row >= 0) piece = row_piece(pool, block_scales, row, d, dim);
  *(uint4*)to = piece;
}

#define ROW_PIECES(pad) ((pad) / 8)
// Enough loads in flight for a warp that is alone, without code of a thousand lines.
#define UNROLL_PIECES _Pragma("unroll 8")

// The rows of a block that find_rows has found.
INLINE void stage_block(const TileArgs* a, int stage, char* base) {
  const TokenRows* rows = LOCAL_ROWS(base, stage);
  UNROLL_PIECES for (int i = THREAD; i < TILE_N * ROW_PIECES(DK_PAD); i += THREADS) {
    const int t = i / ROW_PIECES(DK_PAD), d = i % ROW_PIECES(DK_PAD) * 8;
    stage_piece(LOCAL_K(base, stage) + t * K_STRIDE + d, a->k, a->k_block_scales, rows[t].k, d, DK);
  }
  UNROLL_PIECES for (int i = THREAD; i < TILE_N * ROW_PIECES(DV_PAD); i += THREADS) {
    const int t = i / ROW_PIECES(DV_PAD), d = i % ROW_PIECES(DV_PAD) * 8;
    stage_piece(LOCAL_V(base, stage) + t * V_STRIDE + d, a->v, a->v_block_scales, rows[t].v, d, DV);
  }
}

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
                        char* base) {
  BARRIER();
  find_rows(a, tile, begin, end, block, 0, base);
#if STAGES == 2
  BARRIER();
  stage_block(a, 0, base);
  find_rows(a, tile, begin, end, next, 1, base);
#endif
}

// Makes a block present in local memory; `next` and `after_next` are those that follow.
INLINE void take_block(const TileArgs* a, const Tile* tile, int begin, int end, int block, int next,
                       int after_next, int stage, char* base) {
#if STAGES == 2
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
