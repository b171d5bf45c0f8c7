// Flash attention over pages, and split-KV with its merge; written on the tile operations of
// lanes.cl or mma.cl. Scores are in log2 units, so that exponentials are powers of two.
//
// KV is walked in blocks of TILE_N tokens at multiples of TILE_N, and with KV_CHUNK in chunks at
// multiples of KV_CHUNK, each from a fresh state, merged in order. A row's result then depends
// neither on the rows beside it nor on whether its chunks were computed by one work-group or by
// many and merged by merge_splits: the same additions happen in the same order.
// Online softmax: Milakov & Gimelshein 2018; tiling: Dao et al. 2022; split-KV: Flash-Decoding 2023.

// Scales, masks and exponentiates the scores of one block; updates each row's maximum and sum.
INLINE void softmax_block(const PRIVATE TileArgs* a, const PRIVATE Tile* tile, int block,
                          float scale, LOCAL char* base, PRIVATE vf (*s)[COLS], PRIVATE float* m,
                          PRIVATE float* l, PRIVATE float* alpha) {
  const int masked = block < tile->all_begin || block + TILE_N > tile->all_end;
  UNROLL_ROWS for (int r = 0; r < LIVE_ROWS(ROUND_UP(tile->rows, ROW_BLOCK)); ++r) {
    int first, last;
    row_span(a, tile, TILE_ROW(r), &first, &last);
    vf top = SPLAT(NEG_INF);
    UNROLL for (int j = 0; j < COLS; ++j) {
      vf x = s[r][j] * scale;
      if (a->softcap_log2 > 0) x = tanh_lanes(x) * a->softcap_log2;
      if (masked) {
        const vi col = COL_LANE(j) + (block + COL_BASE(j));
        if (a->tree_mask) {
          const u32 bits = tree_bits(a, tile, TILE_ROW(r), block + COL_BASE(j) - tile->prefix);
          const vi seen = (SPLAT_U(bits) >> TO_VU(COL_LANE(j)) & 1u) != SPLAT_U(0);
          x = (col < tile->prefix ? col >= first : col <= last && seen) ? x : SPLAT(NEG_INF);
        } else {
          x = (col >= first && col <= last) ? x : SPLAT(NEG_INF);
        }
      }
      s[r][j] = x;
      top = x > top ? x : top;
    }
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

// The state of the tile's rows after the blocks that cover tokens [begin, end).
INLINE void attend_range(const PRIVATE TileArgs* a, const PRIVATE Tile* tile, int begin, int end,
                         float scale, LOCAL char* base, PRIVATE float* m, PRIVATE float* l,
                         PRIVATE vf (*o)[OUT_COLS]) {
  clear_state(m, l, o);
  const int live = ROUND_UP(tile->rows, ROW_BLOCK);
  for (int block = begin / TILE_N * TILE_N; block < end; block += TILE_N) {
    BARRIER();
    stage_k(a, tile, begin, end, block, base);
    stage_v(a, tile, begin, end, block, base);
    BARRIER();
    prefetch_block(a, tile, block + TILE_N, end);
    vf s[ROWS][COLS];
    float alpha[ROWS];
    dot_scores(s, base, live);
    softmax_block(a, tile, block, scale, base, s, m, l, alpha);
    dot_values(o, s, alpha, base, live, MIN_INT(TILE_N, end - block));
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

// Grid: (tiles, KV heads, splits). One split: whole rows, from the first visible token to the output;
// later tiles see more tokens, so they start first. Several, of SPLIT_TOKENS tokens: the state of each
// to the partial arrays, for merge_splits; a split that the tile does not see writes nothing.
KERNEL WORK_GROUP_SIZE void attend(TileArgs args) {
  DECLARE_LOCAL(base);
  const PRIVATE TileArgs* a = &args;
  Tile tile;
  if (!find_tile(a, a->num_tiles - 1 - TILE_X, TILE_Y, &tile)) return;
  int begin = tile.kv_begin, end = tile.kv_end;
  if (a->partial_out) {
    begin = MAX_INT(begin, TILE_Z * SPLIT_TOKENS);
    end = MIN_INT(end, (TILE_Z + 1) * SPLIT_TOKENS);
    if (begin >= end) return;
  }
  stage_q(a, &tile, base);
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

// Grid: (tiles, KV heads). Merges the splits that a tile's rows see, in order.
KERNEL WORK_GROUP_SIZE void merge_splits(TileArgs args) {
  const PRIVATE TileArgs* a = &args;
  Tile tile;
  if (!find_tile(a, TILE_X, TILE_Y, &tile)) return;
  GLOBAL const float* partial_out = ADDRESS(const float, a->partial_out);
  GLOBAL const float* stats = ADDRESS(const float, a->partial_stats);
  const tile_stride split_stride = (tile_stride)a->num_tokens * a->num_q_heads;
  for (int row = 0; row < tile.rows; ++row) {
    const tile_stride token = tile.q_begin + token_row(a, &tile, row);
    const int head = query_head(a, &tile, row);
    float m = NEG_INF, l = 0;
    vf o[MERGE_COLS];
    UNROLL_ROWS for (int j = 0; j < MERGE_COLS; ++j) o[j] = SPLAT(0.0f);
    for (int split = tile.kv_begin / SPLIT_TOKENS; split * SPLIT_TOKENS < tile.kv_end; ++split) {
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
