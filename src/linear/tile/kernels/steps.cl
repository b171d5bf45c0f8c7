// The recurrence token by token: decode, commit, and drafts that must have the bits of decode.
//
// A lane has channels of k, a warp STEP_ROWS rows of the state at a time, all in registers; a work-group
// STEP_TILE rows. Grid: x = tiles of v, y = v head, z = request.

#define STEP_TILE 16            // divides V_DIM
#define STEP_BLOCKS (STEP_TILE / (STEP_ROWS * WARPS))

typedef struct StepRows {
  int head, k_head;
  int v;                        // first row
} StepRows;

INLINE tile_stride state_index(const PRIVATE LinearTileArgs* a, int slot, int head, int v) {
  return slot * a->state_slot_stride + head * a->state_head_stride + (tile_stride)v * K_DIM;
}

INLINE void load_rows(const PRIVATE LinearTileArgs* a, int slot, const PRIVATE StepRows* at, PRIVATE vf (*s)[MAX_K_VECS]) {
  UNROLL for (int i = 0; i < STEP_ROWS; ++i) {
    UNROLL_ROWS for (int j = 0; j < K_VECS; ++j) {
      s[i][j] = SPLAT(0.0f);
      if (slot >= 0 && LANE_IN(j * LANES, K_DIM)) {
        s[i][j] = load_values(a->state, a->state_format, state_index(a, slot, at->head, at->v + i) + j * LANES);
      }
    }
  }
}
INLINE void store_rows(const PRIVATE LinearTileArgs* a, int slot, const PRIVATE StepRows* at, PRIVATE vf (*s)[MAX_K_VECS]) {
  UNROLL for (int i = 0; i < STEP_ROWS; ++i) {
    UNROLL_ROWS for (int j = 0; j < K_VECS; ++j) {
      if (!LANE_IN(j * LANES, K_DIM)) continue;
      store_values(a->state, a->state_format, state_index(a, slot, at->head, at->v + i) + j * LANES, s[i][j]);
    }
  }
}
// As if they had been stored and loaded: what decode does after each token.
INLINE void round_rows(const PRIVATE LinearTileArgs* a, PRIVATE vf (*s)[MAX_K_VECS]) {
  if (a->state_format != BF16_VALUES) return;
  UNROLL for (int i = 0; i < STEP_ROWS; ++i) {
    UNROLL_ROWS for (int j = 0; j < K_VECS; ++j) s[i][j] = round_to_bf16(s[i][j]);
  }
}

// One token into the rows; its outputs go out unless the mode has none.
INLINE void take_token(const PRIVATE LinearTileArgs* a, int row, const PRIVATE StepRows* at, PRIVATE vf (*s)[MAX_K_VECS]) {
  GLOBAL const float* q = row_of(a, a->row_q, at->k_head, row, K_PAD);
  GLOBAL const float* k = row_of(a, a->row_k, at->k_head, row, K_PAD);
  GLOBAL const float* v = row_of(a, a->row_v, at->head, row, V_PAD) + at->v;
  const float beta = *row_of(a, a->row_beta, at->head, row, 1);
  vf with_k[STEP_ROWS], with_q[STEP_ROWS];
  float change[STEP_ROWS];
  UNROLL for (int i = 0; i < STEP_ROWS; ++i) with_k[i] = with_q[i] = SPLAT(0.0f);
  UNROLL_ROWS for (int j = 0; j < K_VECS; ++j) {
    const vf key = LOAD_GLOBAL_LANES(k + j * LANES), decay = decay_lanes(a, at->head, row, j * LANES);
    UNROLL for (int i = 0; i < STEP_ROWS; ++i) {
      s[i][j] *= decay;
      with_k[i] = FMA(s[i][j], key, with_k[i]);
    }
  }
  UNROLL for (int i = 0; i < STEP_ROWS; ++i) change[i] = beta * (v[i] - sum_of_lanes(with_k[i]));
  UNROLL_ROWS for (int j = 0; j < K_VECS; ++j) {
    const vf key = LOAD_GLOBAL_LANES(k + j * LANES), query = LOAD_GLOBAL_LANES(q + j * LANES);
    UNROLL for (int i = 0; i < STEP_ROWS; ++i) {
      s[i][j] = FMA(SPLAT(change[i]), key, s[i][j]);
      with_q[i] = FMA(s[i][j], query, with_q[i]);
    }
  }
  if (a->mode == LINEAR_COMMIT) return;
  const tile_stride out = output_index(a, at->head, row) + at->v;
  UNROLL for (int i = 0; i < STEP_ROWS; ++i) {
    const float value = sum_of_lanes(with_q[i]);
    if (IS_LEADER) store_value(output_array(a), output_format(a), out + i, value);
  }
}

// The nodes of a path, each with the rounding of a state that was stored after the one before.
INLINE void step_along(const PRIVATE LinearTileArgs* a, const PRIVATE Request* r, tile_address path,
                       const PRIVATE StepRows* at, PRIVATE vf (*s)[MAX_K_VECS]) {
  for (int node = 0; node < r->tokens; ++node) {
    if (!(path >> node & 1)) continue;
    take_token(a, r->first + node, at, s);
    round_rows(a, s);
  }
}

// Path by path: a node of several paths is computed again for each, to the same bits.
INLINE void step_paths(const PRIVATE LinearTileArgs* a, const PRIVATE Request* r, const PRIVATE StepRows* at,
                       PRIVATE vf (*s)[MAX_K_VECS]) {
  tile_address followed = 0;   // nodes that others follow: no path ends there
  for (int node = 0; node < r->tokens; ++node) {
    const int parent = parent_of(a, r->first, node);
    if (parent >= 0) followed |= (tile_address)1 << parent;
  }
  for (int leaf = 0; leaf < r->tokens; ++leaf) {
    if (followed >> leaf & 1) continue;
    load_rows(a, r->from, at, s);
    step_along(a, r, path_to(a, r->first, leaf), at, s);
  }
}

KERNEL WORK_GROUP_SIZE void steps(LinearTileArgs args) {
  const PRIVATE LinearTileArgs* a = &args;
  const Request r = get_request(a, TILE_Z);
  if (r.slot < 0) {
    zero_outputs(a, &r, TILE_Y, TILE_X * STEP_TILE, STEP_TILE);
    return;
  }
  StepRows at;
  at.head = TILE_Y;
  at.k_head = TILE_Y / (a->v_heads / a->k_heads);
  for (int block = 0; block < STEP_BLOCKS; ++block) {
    vf s[STEP_ROWS][MAX_K_VECS];
    at.v = TILE_X * STEP_TILE + (block * WARPS + WARP) * STEP_ROWS;
    if (a->mode == LINEAR_VERIFY) {
      step_paths(a, &r, &at, s);
      continue;
    }
    load_rows(a, r.from, &at, s);
    if (a->mode == LINEAR_COMMIT) {
      step_along(a, &r, path_to(a, r.first, ADDRESS(const int, a->accepted)[r.index]), &at, s);
    } else {
      for (int i = 0; i < r.tokens; ++i) take_token(a, r.first + i, &at, s);
    }
    store_rows(a, r.slot, &at, s);
  }
}
