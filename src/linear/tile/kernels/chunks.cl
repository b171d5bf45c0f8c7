// Prompts and drafts by blocks of BLOCK tokens (the chunk form; Yang et al. 2024). With the decay d_ij from token j to i, at
// most 1, and the change u_j that token j makes:
//   u_i = beta_i (v_i - S d_i0 k_i - sum_{j before i} d_ij (k_i . k_j) u_j)
//   o_i = S d_i0 q_i + sum_{j up to i} d_ij (q_i . k_j) u_j
//   S  <- S d_n0 + sum_j u_j (d_nj k_j)^T
// "Before" is along parents, so that a tree of drafts is blocks, too; those leave S as it is, and see the changes of all
// blocks. No inverse decay appears anywhere: k_i and q_i walk up the path and gather the decays that they pass.
//
// A work-group has TILE_V columns of a head's transposed state in local memory, a lane a column (on an OpenCL CPU 16
// columns at a time) for all that concerns the state; the walks have channels of k in their lanes and a warp per token.
// Grid: x = tiles of v, y = v head, z = request.

#if defined(WW_VECTOR_LANES)
#define COLUMN_BLOCK 2
#define S_ROW ROUND_UP(TILE_V, COLUMN_BLOCK * LANES)   // columns past the last are computed, and read by nobody
#define LANE_COLUMNS (S_ROW / LANES)
#else
#define COLUMN_BLOCK 1
#define S_ROW (TILE_V + 1)      // lanes that read a column meet no bank twice
#define LANE_COLUMNS 1
#endif
#define NODES 64
#define CHANNEL_BLOCK 8

// Local memory.
#define AT_KEYS (K_DIM * S_ROW)
#define AT_QUERIES (AT_KEYS + BLOCK * K_PAD)
#define AT_KEY_PAIRS (AT_QUERIES + BLOCK * K_PAD)
#define AT_QUERY_PAIRS (AT_KEY_PAIRS + BLOCK * NODES)
#define AT_CHANGES (AT_QUERY_PAIRS + BLOCK * NODES)
#define AT_OUTPUTS (AT_CHANGES + NODES * S_ROW)
#define AT_END_DECAY (AT_OUTPUTS + BLOCK * S_ROW)
#define LOCAL_BYTES CHUNK_LOCAL_BYTES   // 4 * (AT_END_DECAY + K_PAD), of an OpenCL CPU for any shape

typedef struct Work {
  const PRIVATE LinearTileArgs* a;
  Request request;
  int head, k_head;
  int first_v, columns;         // of this work-group
  int begin, count;             // tokens of the block
  int floor;                    // the first token whose change is not in S
  LOCAL float* s;               // [K_DIM][S_ROW]
  LOCAL float* keys;            // [BLOCK][K_PAD]: d_i0 k_i; then d_nj k_j
  LOCAL float* queries;         // [BLOCK][K_PAD]
  LOCAL float* key_pairs;       // [BLOCK][NODES]: beta_i d_ij k_i . k_j, from `floor` on
  LOCAL float* query_pairs;     // [BLOCK][NODES]
  LOCAL float* changes;         // [NODES][S_ROW]
  LOCAL float* outputs;         // [BLOCK][S_ROW]
  LOCAL float* end_decay;       // [K_PAD]: d_n0
} Work;

#define COLUMN_OF(j) (WARP * LANES + (j) * LANES)

// The state of a slot into local memory, transposed; -1: zeros.
INLINE void load_state(const PRIVATE Work* w, int slot) {
  const PRIVATE LinearTileArgs* a = w->a;
  for (int v = WARP; v < w->columns; v += WARPS) {
    const tile_stride from = state_index(a, slot, w->head, w->first_v + v);
    for (int d = 0; d < K_PAD; d += LANES) {
      if (!LANE_IN(d, K_DIM)) continue;
      const vf x = slot >= 0 ? load_values(a->state, a->state_format, from + d) : SPLAT(0.0f);
      store_local_column(w->s + d * S_ROW + v, S_ROW, x);
    }
  }
  BARRIER();
}
INLINE void store_state(const PRIVATE Work* w, int slot) {
  const PRIVATE LinearTileArgs* a = w->a;
  BARRIER();
  for (int v = WARP; v < w->columns; v += WARPS) {
    const tile_stride to = state_index(a, slot, w->head, w->first_v + v);
    for (int d = 0; d < K_PAD; d += LANES) {
      if (!LANE_IN(d, K_DIM)) continue;
      store_values(a->state, a->state_format, to + d, load_local_column(w->s + d * S_ROW + v, S_ROW));
    }
  }
}

// k_i and q_i of the block's token i up its path: pairs with every token there, and what meets S.
INLINE void walk(const PRIVATE Work* w, int i) {
  const PRIVATE LinearTileArgs* a = w->a;
  const int node = w->begin + i, first = w->request.first;
  const float beta = *row_of(a, a->row_beta, w->head, first + node, 1);
  vf key[MAX_K_VECS], query[MAX_K_VECS];
  vf qk = SPLAT(0.0f);
  UNROLL_ROWS for (int j = 0; j < K_VECS; ++j) {
    key[j] = LOAD_GLOBAL_LANES(row_of(a, a->row_k, w->k_head, first + node, K_PAD) + j * LANES);
    query[j] = LOAD_GLOBAL_LANES(row_of(a, a->row_q, w->k_head, first + node, K_PAD) + j * LANES);
    qk = FMA(query[j], key[j], qk);
  }
  const float own = sum_of_lanes(qk);
  if (IS_LEADER) w->query_pairs[i * NODES + node - w->floor] = own;
  for (int at = node;;) {
    const int passed = first + at;
    at = parent_of(a, first, at);
    const int ends = at < w->floor;
    GLOBAL const float* other = row_of(a, a->row_k, w->k_head, ends ? passed : first + at, K_PAD);
    vf with_key = SPLAT(0.0f), with_query = SPLAT(0.0f);
    UNROLL_ROWS for (int j = 0; j < K_VECS; ++j) {
      const vf decay = decay_lanes(a, w->head, passed, j * LANES), there = LOAD_GLOBAL_LANES(other + j * LANES);
      key[j] *= decay;
      query[j] *= decay;
      with_key = FMA(key[j], there, with_key);
      with_query = FMA(query[j], there, with_query);
    }
    if (ends) break;
    const float key_pair = beta * sum_of_lanes(with_key), query_pair = sum_of_lanes(with_query);
    if (IS_LEADER) {
      w->key_pairs[i * NODES + at - w->floor] = key_pair;
      w->query_pairs[i * NODES + at - w->floor] = query_pair;
    }
  }
  UNROLL_ROWS for (int j = 0; j < K_VECS; ++j) {
    STORE_LANES(w->keys + i * K_PAD + j * LANES, key[j]);
    STORE_LANES(w->queries + i * K_PAD + j * LANES, query[j]);
  }
}

INLINE void walk_all(const PRIVATE Work* w) {
  const PRIVATE LinearTileArgs* a = w->a;
  for (int i = THREAD; i < BLOCK * NODES; i += THREADS) w->key_pairs[i] = w->query_pairs[i] = 0.0f;
  // Rows past the last token are multiplied, too.
  for (int i = w->count * K_PAD + THREAD; i < BLOCK * K_PAD; i += THREADS) w->keys[i] = w->queries[i] = 0.0f;
  BARRIER();
  for (int i = WARP; i < w->count; i += WARPS) walk(w, i);
  BARRIER();
}

// `rows` (ROW_BLOCK of them) times the state, for COLUMN_BLOCK columns of a lane.
INLINE void times_state(const PRIVATE Work* w, LOCAL const float* rows, int column, PRIVATE vf (*acc)[COLUMN_BLOCK]) {
  const PRIVATE LinearTileArgs* a = w->a;
  UNROLL for (int i = 0; i < ROW_BLOCK; ++i) {
    UNROLL for (int n = 0; n < COLUMN_BLOCK; ++n) acc[i][n] = SPLAT(0.0f);
  }
  for (int d = 0; d < K_DIM; ++d) {
    vf state[COLUMN_BLOCK];
    UNROLL for (int n = 0; n < COLUMN_BLOCK; ++n) state[n] = LOAD_LANES(w->s + d * S_ROW + column + n * LANES);
    UNROLL for (int i = 0; i < ROW_BLOCK; ++i) {
      const vf factor = SPLAT(rows[i * K_PAD + d]);
      UNROLL for (int n = 0; n < COLUMN_BLOCK; ++n) acc[i][n] = FMA(factor, state[n], acc[i][n]);
    }
  }
}

// What the state alone gives of the block's changes and outputs.
INLINE void meet_state(const PRIVATE Work* w) {
  const PRIVATE LinearTileArgs* a = w->a;
  for (int j = 0; j < LANE_COLUMNS; j += COLUMN_BLOCK) {
    const int column = COLUMN_OF(j);
    for (int first = 0; first < w->count; first += ROW_BLOCK) {
      vf acc[ROW_BLOCK][COLUMN_BLOCK];
      times_state(w, w->keys + first * K_PAD, column, acc);
      for (int i = first; i < MIN_INT(first + ROW_BLOCK, w->count); ++i) {
        const int row = w->request.first + w->begin + i;
        const float beta = *row_of(a, a->row_beta, w->head, row, 1);
        GLOBAL const float* v = row_of(a, a->row_v, w->head, row, V_PAD) + w->first_v + column;
        LOCAL float* change = w->changes + (w->begin + i - w->floor) * S_ROW + column;
        UNROLL for (int n = 0; n < COLUMN_BLOCK; ++n) {
          const vf value = LANE_IN(column + n * LANES, w->columns) ? LOAD_GLOBAL_LANES(v + n * LANES) : SPLAT(0.0f);
          STORE_LANES(change + n * LANES, (value - acc[i - first][n]) * beta);
        }
      }
      times_state(w, w->queries + first * K_PAD, column, acc);
      for (int i = first; i < MIN_INT(first + ROW_BLOCK, w->count); ++i) {
        UNROLL for (int n = 0; n < COLUMN_BLOCK; ++n) STORE_LANES(w->outputs + i * S_ROW + column + n * LANES, acc[i - first][n]);
      }
    }
  }
}

// Changes in order, each less what those before it give; then the outputs.
INLINE void solve(const PRIVATE Work* w) {
  const PRIVATE LinearTileArgs* a = w->a;
  for (int i = 0; i < w->count; ++i) {
    const int own = w->begin + i - w->floor;
    const tile_stride out = output_index(a, w->head, w->request.first + w->begin + i) + w->first_v;
    for (int j = 0; j < LANE_COLUMNS; ++j) {
      const int column = COLUMN_OF(j);
      LOCAL float* changes = w->changes + column;
      vf change = LOAD_LANES(changes + own * S_ROW), o = LOAD_LANES(w->outputs + i * S_ROW + column);
      for (int t = 0; t < own; ++t) {
        const vf other = LOAD_LANES(changes + t * S_ROW);
        change = FMA(SPLAT(-w->key_pairs[i * NODES + t]), other, change);
        o = FMA(SPLAT(w->query_pairs[i * NODES + t]), other, o);
      }
      STORE_LANES(changes + own * S_ROW, change);
      o = FMA(SPLAT(w->query_pairs[i * NODES + own]), change, o);
      if (LANE_IN(column, w->columns)) store_values(output_array(a), output_format(a), out + column, o);
    }
  }
}

// The block's keys decayed to its end, and the decay of all of it.
INLINE void decay_to_end(const PRIVATE Work* w) {
  const PRIVATE LinearTileArgs* a = w->a;
  BARRIER();
  for (int d = WARP * LANES; d < K_PAD; d += WARPS * LANES) {
    vf since = SPLAT(1.0f);
    for (int i = w->count - 1; i >= 0; --i) {
      const int row = w->request.first + w->begin + i;
      STORE_LANES(w->keys + i * K_PAD + d, LOAD_GLOBAL_LANES(row_of(a, a->row_k, w->k_head, row, K_PAD) + d) * since);
      since *= decay_lanes(a, w->head, row, d);
    }
    STORE_LANES(w->end_decay + d, since);
  }
  BARRIER();
}

INLINE void update_state(const PRIVATE Work* w) {
  const PRIVATE LinearTileArgs* a = w->a;
  decay_to_end(w);
  for (int j = 0; j < LANE_COLUMNS; j += COLUMN_BLOCK) {
    const int column = COLUMN_OF(j);
    for (int d = 0; d < K_DIM; d += CHANNEL_BLOCK) {
      vf acc[CHANNEL_BLOCK][COLUMN_BLOCK];
      UNROLL for (int c = 0; c < CHANNEL_BLOCK; ++c) {
        UNROLL for (int n = 0; n < COLUMN_BLOCK; ++n) {
          acc[c][n] = LOAD_LANES(w->s + (d + c) * S_ROW + column + n * LANES) * w->end_decay[d + c];
        }
      }
      for (int i = 0; i < w->count; ++i) {
        vf change[COLUMN_BLOCK];
        UNROLL for (int n = 0; n < COLUMN_BLOCK; ++n) change[n] = LOAD_LANES(w->changes + i * S_ROW + column + n * LANES);
        UNROLL for (int c = 0; c < CHANNEL_BLOCK; ++c) {
          const vf key = SPLAT(w->keys[i * K_PAD + d + c]);
          UNROLL for (int n = 0; n < COLUMN_BLOCK; ++n) acc[c][n] = FMA(key, change[n], acc[c][n]);
        }
      }
      UNROLL for (int c = 0; c < CHANNEL_BLOCK; ++c) {
        UNROLL for (int n = 0; n < COLUMN_BLOCK; ++n) STORE_LANES(w->s + (d + c) * S_ROW + column + n * LANES, acc[c][n]);
      }
    }
  }
  BARRIER();
}

INLINE void verify_blocks(PRIVATE Work* w) {
  w->floor = 0;
  for (w->begin = 0; w->begin < w->request.tokens; w->begin += BLOCK) {
    w->count = MIN_INT(BLOCK, w->request.tokens - w->begin);
    walk_all(w);
    meet_state(w);
    solve(w);
    BARRIER();
  }
}

// A block ends where a checkpoint is taken, so that calls that end there have the same blocks.
INLINE void extend_blocks(PRIVATE Work* w) {
  const PRIVATE LinearTileArgs* a = w->a;
  int next = a->checkpoint_indptr ? ADDRESS(const int, a->checkpoint_indptr)[w->request.index] : 0;
  const int last = a->checkpoint_indptr ? ADDRESS(const int, a->checkpoint_indptr)[w->request.index + 1] : 0;
  for (w->begin = 0; w->begin < w->request.tokens; w->begin += w->count) {
    const int stop = next < last ? ADDRESS(const int, a->checkpoint_tokens)[next] : w->request.tokens;
    w->floor = w->begin;
    w->count = MIN_INT(BLOCK, stop - w->begin);
    walk_all(w);
    meet_state(w);
    solve(w);
    update_state(w);
    if (next < last && w->begin + w->count == stop) store_state(w, ADDRESS(const int, a->checkpoint_slots)[next++]);
  }
  store_state(w, w->request.slot);
}

KERNEL WORK_GROUP_SIZE void chunks(LinearTileArgs args) {
  DECLARE_LOCAL(base);
  const PRIVATE LinearTileArgs* a = &args;
  LOCAL float* memory = (LOCAL float*)base;
  Work w;
  w.a = a;
  w.request = get_request(a, TILE_Z);
  w.head = TILE_Y;
  w.k_head = TILE_Y / (a->v_heads / a->k_heads);
  w.first_v = TILE_X * TILE_V;
  w.columns = MIN_INT(TILE_V, V_DIM - w.first_v);
  if (w.request.slot < 0) {
    zero_outputs(a, &w.request, w.head, w.first_v, w.columns);
    return;
  }
  w.s = memory;
  w.keys = memory + AT_KEYS;
  w.queries = memory + AT_QUERIES;
  w.key_pairs = memory + AT_KEY_PAIRS;
  w.query_pairs = memory + AT_QUERY_PAIRS;
  w.changes = memory + AT_CHANGES;
  w.outputs = memory + AT_OUTPUTS;
  w.end_decay = memory + AT_END_DECAY;
  load_state(&w, w.request.from);
  if (a->mode == LINEAR_VERIFY) {
    verify_blocks(&w);
  } else {
    extend_blocks(&w);
  }
}
