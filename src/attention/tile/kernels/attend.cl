// Flash attention over pages, and split-KV with its merge; written on the tile operations of
// lanes.cl or mma.cl. Scores are in log2 units, so that exponentials are powers of two.
//
// KV is walked in blocks of TILE_N tokens at multiples of TILE_N, and with KV_CHUNK in chunks at
// multiples of KV_CHUNK, each from a fresh state, merged in order. With splits at fixed places a row's
// result then depends neither on the rows beside it nor on whether its chunks were computed by one
// work-group or by many and merged by merge_splits: the same additions happen in the same order.
// Online softmax: Milakov & Gimelshein 2018; tiling: Dao et al. 2022; split-KV: Flash-Decoding 2023.

#if !defined(WW_PIPELINED)
// What a set of tile operations keeps from one block to the next.
typedef struct BlockCarry {
  int unused;
} BlockCarry;

INLINE void open_blocks(const PRIVATE TileArgs* a, const PRIVATE Tile* tile, int begin, int end, int block,
                        int next, LOCAL char* base, PRIVATE BlockCarry* carry) {}

// Puts a block into local memory; `next` is the one after it.
INLINE void take_block(const PRIVATE TileArgs* a, const PRIVATE Tile* tile, int begin, int end, int block,
                       int next, int after_next, int stage, LOCAL char* base, PRIVATE BlockCarry* carry) {
  BARRIER();
  stage_k(a, tile, begin, end, block, base);
  stage_v(a, tile, begin, end, block, base);
  BARRIER();
  prefetch_block(a, tile, next, end);
}
#endif

// Blocks that a modifier's mask hides altogether are left out; without one all are listed.
#if !defined(MASK_MOD)
#define listed_block(block, end, base) (block)
#endif

// Where the block's scores are masked element by element.
INLINE int is_masked(const PRIVATE Tile* tile, int block, LOCAL char* base) {
  const int cut = block < tile->all_begin || block + TILE_N > tile->all_end;
#if defined(MASK_MOD)
  return cut || !is_full(tile, block, base);
#else
  return cut;
#endif
}

// Hides what a row does not see of the block.
INLINE void mask_row(const PRIVATE TileArgs* a, const PRIVATE Tile* tile, int block, int row,
                     PRIVATE vf* s) {
  int first, last;
  row_span(a, tile, row, &first, &last);
#if defined(MASK_MOD)
  const ModCell cell = mod_cell(a, tile, row);
#endif
  UNROLL for (int j = 0; j < COLS; ++j) {
    const vi col = COL_LANE(j) + (block + COL_BASE(j));
#if defined(MASK_MOD)
    const vi shown = col >= first && col <= last && mask_mod(cell, col);
#else
    const vi shown = col >= first && col <= last;
#endif
    if (a->tree_mask) {
      const u32 bits = tree_bits(a, tile, row, block + COL_BASE(j) - tile->prefix);
      const vi seen = (SPLAT_U(bits) >> TO_VU(COL_LANE(j)) & 1u) != SPLAT_U(0);
#if defined(MASK_MOD)
      s[j] = (col < tile->prefix ? shown : col <= last && seen) ? s[j] : SPLAT(NEG_INF);
#else
      s[j] = (col < tile->prefix ? col >= first : col <= last && seen) ? s[j] : SPLAT(NEG_INF);
#endif
    } else {
      s[j] = shown ? s[j] : SPLAT(NEG_INF);
    }
  }
}

// Scales, masks and exponentiates the scores of one block; updates each row's maximum and sum.
INLINE void softmax_block(const PRIVATE TileArgs* a, const PRIVATE Tile* tile, int block,
                          float scale, LOCAL char* base, PRIVATE vf (*s)[COLS], PRIVATE float* m,
                          PRIVATE float* l, PRIVATE float* alpha) {
  const int masked = is_masked(tile, block, base);
  UNROLL_ROWS for (int r = 0; r < LIVE_ROWS(ROUND_UP(tile->rows, ROW_BLOCK)); ++r) {
    UNROLL for (int j = 0; j < COLS; ++j) s[r][j] = s[r][j] * scale;
    if (a->softcap_log2 > 0) {
      UNROLL for (int j = 0; j < COLS; ++j) s[r][j] = tanh_lanes(s[r][j]) * a->softcap_log2;
    }
#if defined(SCORE_MOD)
    const ModCell cell = mod_cell(a, tile, TILE_ROW(r));
    UNROLL for (int j = 0; j < COLS; ++j) {
      const int col = token_position(a, tile, COL_LANE(j) + (block + COL_BASE(j)));
      s[r][j] = score_mod(cell, col, s[r][j] * LN_2) * LOG2_E;
    }
#endif
    if (masked) mask_row(a, tile, block, TILE_ROW(r), s[r]);
    vf top = SPLAT(NEG_INF);
    UNROLL for (int j = 0; j < COLS; ++j) top = s[r][j] > top ? s[r][j] : top;
    const float block_top = ROW_MAX(top, base);
    const float new_m = block_top > m[r] ? block_top : m[r];
    const float origin = new_m == NEG_INF ? 0.0f : new_m;
    alpha[r] = new_m == m[r] ? 1.0f : EXP2(m[r] - origin);
    vf sum = SPLAT(0.0f);
    UNROLL for (int j = 0; j < COLS; ++j) {
      s[r][j] = exp2_lanes(s[r][j] - origin);
      sum = sum + s[r][j];
    }
    l[r] = FMA(l[r], alpha[r], ROW_SUM(sum, base));
    m[r] = new_m;
  }
}

INLINE void clear_state(PRIVATE float* m, PRIVATE float* l, PRIVATE vf (*o)[OUT_COLS]) {
  UNROLL_ROWS for (int r = 0; r < ROWS; ++r) {
    m[r] = NEG_INF;
    l[r] = 0;
    UNROLL_ROWS for (int j = 0; j < OUT_COLS; ++j) o[r][j] = SPLAT(0.0f);
  }
}

#if defined(WW_DUAL_CHUNK)
// Where the chunk begins that the row stands in.
INLINE int chunk_begin(const PRIVATE TileArgs* a, const PRIVATE Tile* tile, int row) {
  const int position = tile->prefix + token_row(a, tile, row);
  return position - position % a->chunk_len;
}
// Which form of a query whose chunk begins at `own` meets the key of token `kv`.
INLINE int form_for(const PRIVATE TileArgs* a, int own, int kv) {
  return kv >= own ? FORM_OWN : kv >= own - a->chunk_len ? FORM_SUCC : FORM_INTER;
}

// Scores under dual chunk attention. The forms that the warp's rows need for this block are staged in
// turn: away from chunk borders that is one, the one that stands there already.
INLINE void dual_scores(const PRIVATE TileArgs* a, const PRIVATE Tile* tile, int block, int stage,
                        LOCAL char* base, PRIVATE int* staged, PRIVATE vf (*s)[COLS], int live) {
  const int top_row = TILE_ROW(0) - TILE_ROW(0) % WARP_TILE_ROWS;
  const int least = form_for(a, chunk_begin(a, tile, top_row), block + TILE_N - 1);
  const int most = form_for(a, chunk_begin(a, tile, top_row + WARP_TILE_ROWS - 1), block);
  for (int form = least; form <= most; ++form) {
    if (form != *staged) {
      WARP_BARRIER();
      stage_q(a, tile, form, base);
      *staged = form;
    }
    vf of_form[ROWS][COLS];
    dot_scores(of_form, base, stage, live);
    UNROLL for (int r = 0; r < ROWS; ++r) {
      const int own = form == least ? 0 : chunk_begin(a, tile, TILE_ROW(r));
      UNROLL for (int j = 0; j < COLS; ++j) {
        const int kv = block + COL_BASE(j) + COL_LANE(j);
        s[r][j] = form == least || form_for(a, own, kv) == form ? of_form[r][j] : s[r][j];
      }
    }
  }
}
#endif

#if defined(WW_DUAL_CHUNK) && KV_CHUNK
#error "a chunk's state would not know which form of the queries is staged"
#endif

// The state of the tile's rows after the blocks that cover tokens [begin, end).
INLINE void attend_range(const PRIVATE TileArgs* a, const PRIVATE Tile* tile, int begin, int end,
                         float scale, LOCAL char* base, PRIVATE float* m, PRIVATE float* l,
                         PRIVATE vf (*o)[OUT_COLS]) {
  clear_state(m, l, o);
  const int live = ROUND_UP(tile->rows, ROW_BLOCK);
#if defined(MASK_MOD)
  list_blocks(a, tile, begin, end, base);
#endif
  int block = listed_block(begin / TILE_N * TILE_N, end, base);
  int next = listed_block(block + TILE_N, end, base);
#if defined(WW_DUAL_CHUNK)
  int staged = FORM_OWN;
#endif
  BlockCarry carry;
  open_blocks(a, tile, begin, end, block, next, base, &carry);
  for (int stage = 0; block < end; stage ^= STAGES - 1) {
    const int after_next = listed_block(next + TILE_N, end, base);
    take_block(a, tile, begin, end, block, next, after_next, stage, base, &carry);
    vf s[ROWS][COLS];
    float alpha[ROWS];
#if defined(WW_DUAL_CHUNK)
    dual_scores(a, tile, block, stage, base, &staged, s, live);
#else
    dot_scores(s, base, stage, live);
#endif
    softmax_block(a, tile, block, scale, base, s, m, l, alpha);
    dot_values(o, s, alpha, base, stage, live, MIN_INT(TILE_N, end - block));
    block = next;
    next = after_next;
  }
}

// Adds a chunk's state (m_chunk, l_chunk) to a row's; the outputs are to be scaled by the two factors.
INLINE void merge_stats(PRIVATE float* m, PRIVATE float* l, float m_chunk, float l_chunk,
                        PRIVATE float* keep, PRIVATE float* add) {
  const float top = m_chunk > *m ? m_chunk : *m;
  const float origin = top == NEG_INF ? 0.0f : top;
  *keep = *m == top ? 1.0f : EXP2(*m - origin);
  *add = m_chunk == top ? 1.0f : EXP2(m_chunk - origin);
  *l = FMA(l_chunk, *add, *l * *keep);
  *m = top;
}

// The factor that turns a row's sum of values into its output; writes its LSE where `leader`.
INLINE float finish_row(const PRIVATE TileArgs* a, const PRIVATE Tile* tile, int row, float m,
                        float l, int leader) {
  const int head = query_head(a, tile, row);
  float factor = 0, lse = NEG_INF;
  if (l > 0) {
    float keep = 1;
    if (a->sinks) {
      const float sink = ADDRESS(const float, a->sinks)[head] * LOG2_E;
      float add;
      merge_stats(&m, &l, sink, 1.0f, &keep, &add);
    }
    factor = keep / l;
    lse = (m + LOG2(l)) * LN_2;
    if (a->v_head_scales) factor *= ADDRESS(const float, a->v_head_scales)[tile->kv_head];
  }
  if (a->lse && leader) {
    ADDRESS(float, a->lse)[(tile_stride)(tile->q_begin + token_row(a, tile, row)) * a->num_q_heads +
                           head] = lse;
  }
  return factor;
}

INLINE float score_scale(const PRIVATE TileArgs* a, int kv_head) {
  const float scale = a->scale_log2;
  return a->k_head_scales ? scale * ADDRESS(const float, a->k_head_scales)[kv_head] : scale;
}

// The state of the tile's rows after tokens [begin, end), chunk by chunk.
INLINE void attend_chunks(const PRIVATE TileArgs* a, const PRIVATE Tile* tile, int begin, int end,
                          LOCAL char* base, PRIVATE float* m, PRIVATE float* l,
                          PRIVATE vf (*o)[OUT_COLS]) {
  const float scale = score_scale(a, tile->kv_head);
#if KV_CHUNK
  clear_state(m, l, o);
  while (begin < end) {
    const int chunk_end = MIN_INT(end, (begin / KV_CHUNK + 1) * KV_CHUNK);
    float m_chunk[ROWS], l_chunk[ROWS];
    vf o_chunk[ROWS][OUT_COLS];
    attend_range(a, tile, begin, chunk_end, scale, base, m_chunk, l_chunk, o_chunk);
    UNROLL_ROWS for (int r = 0; r < LIVE_ROWS(tile->rows); ++r) {
      float keep, add;
      merge_stats(&m[r], &l[r], m_chunk[r], l_chunk[r], &keep, &add);
      UNROLL_ROWS for (int j = 0; j < OUT_COLS; ++j) {
        o[r][j] = FMA(o_chunk[r][j], SPLAT(add), o[r][j] * keep);
      }
    }
    begin = chunk_end;
  }
#else
  attend_range(a, tile, begin, end, scale, base, m, l, o);
#endif
}

// Splits have SPLIT_TOKENS tokens at fixed places, or, where that is 0, as many as let the grid's splits
// cover what the tile sees. The tile's are [first_split, end_split).
INLINE int split_blocks(const PRIVATE TileArgs* a, const PRIVATE Tile* tile) {
#if SPLIT_TOKENS
  return SPLIT_TOKENS / TILE_N;
#else
  const int blocks = ROUND_UP(tile->kv_end, TILE_N) / TILE_N - tile->kv_begin / TILE_N;
  return MAX_INT(1, (blocks + a->splits - 1) / a->splits);
#endif
}
INLINE int split_origin(const PRIVATE Tile* tile) {
#if SPLIT_TOKENS
  return 0;
#else
  return tile->kv_begin / TILE_N;   // in blocks
#endif
}
INLINE int split_begin(const PRIVATE TileArgs* a, const PRIVATE Tile* tile, int split) {
  return (split_origin(tile) + split * split_blocks(a, tile)) * TILE_N;
}
INLINE int first_split(const PRIVATE TileArgs* a, const PRIVATE Tile* tile) {
  return (tile->kv_begin / TILE_N - split_origin(tile)) / split_blocks(a, tile);
}
INLINE int end_split(const PRIVATE TileArgs* a, const PRIVATE Tile* tile) {
  const int blocks = ROUND_UP(tile->kv_end, TILE_N) / TILE_N - split_origin(tile);
  return (blocks + split_blocks(a, tile) - 1) / split_blocks(a, tile);
}

// Grid: (tiles, KV heads, splits). One split: whole rows, from the first visible token to the output;
// later tiles see more tokens, so they start first. Several: the state of each to the partial arrays,
// for merge_splits; a split that the tile does not see writes nothing.
KERNEL WORK_GROUP_SIZE void attend(TileArgs args) {
  DECLARE_LOCAL(base);
  const PRIVATE TileArgs* a = &args;
  Tile tile;
  if (!find_tile(a, a->num_tiles - 1 - TILE_X, TILE_Y, &tile)) return;
  int begin = tile.kv_begin, end = tile.kv_end;
  if (a->partial_out) {
    begin = MAX_INT(begin, split_begin(a, &tile, TILE_Z));
    end = MIN_INT(end, split_begin(a, &tile, TILE_Z + 1));
    if (begin >= end) return;
  }
  stage_q(a, &tile, FORM_OWN, base);
  float m[ROWS], l[ROWS];
  vf o[ROWS][OUT_COLS];
  attend_chunks(a, &tile, begin, end, base, m, l, o);
  UNROLL_ROWS for (int r = 0; r < LIVE_ROWS(tile.rows); ++r) {
    const int row = TILE_ROW(r);
    if (row >= tile.rows) continue;
    const tile_stride token = tile.q_begin + token_row(a, &tile, row);
    const int head = query_head(a, &tile, row);
    if (a->partial_out) {
      const tile_stride index = (TILE_Z * (tile_stride)a->num_tokens + token) * a->num_q_heads + head;
      store_row_f32(o[r], ADDRESS(float, a->partial_out) + index * PARTIAL_STRIDE);
      if (ROW_LEADER) {
        ADDRESS(float, a->partial_stats)[index * 2] = m[r];
        ADDRESS(float, a->partial_stats)[index * 2 + 1] = l[r];
      }
    } else {
      const float factor = finish_row(a, &tile, row, m[r], l[r], ROW_LEADER);
      store_row(o[r], factor, a->out, token * a->out_token_stride + head * DV);
    }
  }
}

#if defined(WW_VECTOR_LANES)
#define MERGE_COLS (PARTIAL_STRIDE / LANES)
#define MERGE_DIM(j) ((j)*LANES)
#else
#define MERGE_COLS (ROUND_UP(PARTIAL_STRIDE, THREADS) / THREADS)
#define MERGE_DIM(j) ((j)*THREADS + THREAD)
#endif

// Grid: (tiles, KV heads, at will: rows are dealt out over it). Merges the splits that a tile's rows
// see, in order.
KERNEL WORK_GROUP_SIZE void merge_splits(TileArgs args) {
  const PRIVATE TileArgs* a = &args;
  Tile tile;
  if (!find_tile(a, TILE_X, TILE_Y, &tile)) return;
  GLOBAL const float* partial_out = ADDRESS(const float, a->partial_out);
  GLOBAL const float* stats = ADDRESS(const float, a->partial_stats);
  const tile_stride split_stride = (tile_stride)a->num_tokens * a->num_q_heads;
  for (int row = TILE_Z; row < tile.rows; row += GRID_Z) {
    const tile_stride token = tile.q_begin + token_row(a, &tile, row);
    const int head = query_head(a, &tile, row);
    float m = NEG_INF, l = 0;
    vf o[MERGE_COLS];
    UNROLL_ROWS for (int j = 0; j < MERGE_COLS; ++j) o[j] = SPLAT(0.0f);
    const int end = end_split(a, &tile);
    UNROLL_SPLITS for (int split = first_split(a, &tile); split < end; ++split) {
      const tile_stride at = split * split_stride + token * a->num_q_heads + head;
      float keep, add;
      merge_stats(&m, &l, stats[at * 2], stats[at * 2 + 1], &keep, &add);
      UNROLL_ROWS for (int j = 0; j < MERGE_COLS; ++j) {
        if (MERGE_DIM(j) >= PARTIAL_STRIDE) break;
        o[j] = FMA(LOAD_ITEM(partial_out + at * PARTIAL_STRIDE + MERGE_DIM(j)), SPLAT(add),
                   o[j] * keep);
      }
    }
    const float factor = finish_row(a, &tile, row, m, l, THREAD == 0);
    const tile_stride index = token * a->out_token_stride + head * DV;
    UNROLL_ROWS for (int j = 0; j < MERGE_COLS; ++j) {
      store_item(a->out, index, MERGE_DIM(j), o[j] * factor);
    }
  }
}
