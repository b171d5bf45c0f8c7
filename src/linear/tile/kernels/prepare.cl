// Before and after the recurrence: convolution, norms and gates of every token into the workspace's rows; the
// convolution's state; the norm of the outputs.
//
// prepare: x = PREPARE_ROWS rows of the batch, y = q heads, k heads, v heads (a v head has its gates).
// conv_windows: x = lanes of channels, y = request; after prepare, which reads the windows that it writes over.
// norm_outputs: x = PREPARE_ROWS rows, y = v head.

#define PREPARE_ROWS 16

typedef struct Part {
  LinearTileRows plain;     // without a convolution
  tile_address to;
  int head, dim, pad;
  int channel;              // of the convolution
  int by_token;             // its weights are of each token
} Part;

INLINE Part get_part(const PRIVATE LinearTileArgs* a, int index) {
  Part p;
  const int is_q = index < a->k_heads, is_k = !is_q && index < 2 * a->k_heads;
  p.plain = is_q ? a->q : is_k ? a->k : a->v;
  p.to = is_q ? a->row_q : is_k ? a->row_k : a->row_v;
  p.head = is_q ? index : is_k ? index - a->k_heads : index - 2 * a->k_heads;
  p.dim = is_q || is_k ? K_DIM : V_DIM;
  p.pad = is_q || is_k ? K_PAD : V_PAD;
  p.channel = is_q || is_k ? index * K_DIM : 2 * a->k_heads * K_DIM + p.head * V_DIM;
  p.by_token = !is_q && !is_k && a->v_weight.data != 0;
  return p;
}

// Lanes of one token after its convolution.
INLINE vf convolve(const PRIVATE LinearTileArgs* a, const PRIVATE Request* r, int row, const PRIVATE Part* p, int d,
                   PRIVATE const vf* taps) {
  const int width = a->conv_width, channel = p->channel + d;
  const int v_channel = 2 * a->k_heads * K_DIM;
  vf sum = SPLAT(0.0f);
  if (!p->by_token && a->conv_bias) sum = load_values(a->conv_bias, F32_VALUES, channel);
  for (int j = 0; j < width; ++j) {
    vf tap = taps[j];
    if (p->by_token) {
      tap = load_strided(a->v_weight.data, a->v_weight.format,
                         row * a->v_weight.token_stride + (channel - v_channel) * width + j, width);
    }
    sum = FMA(tap, conv_input(a, r, row - r->first, width - 1 - j, channel), sum);
  }
  return a->conv_silu ? sum * sigmoid_lanes(sum) : sum;
}

// Lanes d of every row of the group.
INLINE void prepare_lanes(const PRIVATE LinearTileArgs* a, const PRIVATE Part* p, int d) {
  vf taps[MAX_WINDOW + 1];
  const int live = LANE_IN(d, p->dim);
  for (int j = 0; j < a->conv_width && live && !p->by_token; ++j) {
    taps[j] = load_strided(a->conv_weight, F32_VALUES, (tile_stride)(p->channel + d) * a->conv_width + j, a->conv_width);
  }
  for (int i = 0; i < PREPARE_ROWS; ++i) {
    const int row = TILE_X * PREPARE_ROWS + i;
    Request r;
    if (row >= a->num_tokens || !find_request(a, row, &r)) continue;
    vf value = SPLAT(0.0f);
    if (live && a->conv_width > 0) {
      value = convolve(a, &r, row, p, d, taps);
    } else if (live) {
      value = load_values(p->plain.data, p->plain.format,
                          row * p->plain.token_stride + p->head * p->plain.head_stride + d);
    }
    STORE_GLOBAL_LANES(ADDRESS(float, p->to) + row_index(a, p->head, row, p->pad) + d, value);
  }
}

// A row of q or k times `factor`, and over its length where the call says so.
INLINE void norm_row(const PRIVATE LinearTileArgs* a, GLOBAL float* row, float factor) {
  if (a->l2norm) {
    vf squares = SPLAT(0.0f);
    for (int d = 0; d < K_PAD; d += LANES) {
      const vf x = LOAD_GLOBAL_LANES(row + d);
      squares = FMA(x, x, squares);
    }
    factor /= SQRT(sum_of_lanes(squares) + a->l2norm_eps);
  }
  for (int d = 0; d < K_PAD; d += LANES) STORE_GLOBAL_LANES(row + d, LOAD_GLOBAL_LANES(row + d) * factor);
}

// exp(g) of raw gates or of g.
INLINE vf decay_of(const PRIVATE LinearTileArgs* a, int head, vf x, vf bias) {
  if (!a->has_gates) return exp_lanes(x);
  const float log_slope = ADDRESS(const float, a->a_log)[head];
  // exp() of lanes takes what is at most 0.
  const vf slope = log_slope <= 0 ? exp_lanes(SPLAT(log_slope)) : SPLAT(1.0f) / exp_lanes(SPLAT(-log_slope));
  return exp_lanes(-slope * softplus_lanes(x + bias));
}

INLINE void prepare_channel_decays(const PRIVATE LinearTileArgs* a, int head, int row, tile_stride from) {
  for (int d = 0; d < K_PAD; d += LANES) {
    vf x = SPLAT(0.0f), bias = SPLAT(0.0f);
    if (LANE_IN(d, K_DIM)) {
      x = load_values(a->decay.data, a->decay.format, from + d);
      if (a->dt_bias) bias = load_values(a->dt_bias, F32_VALUES, (tile_stride)head * K_DIM + d);
    }
    STORE_GLOBAL_LANES(ADDRESS(float, a->row_decay) + row_index(a, head, row, K_PAD) + d, decay_of(a, head, x, bias));
  }
}

INLINE void prepare_gates(const PRIVATE LinearTileArgs* a, int head, int row) {
  const tile_stride from = row * a->decay.token_stride + head * a->decay.head_stride;
  if (CHANNEL_DECAY) {
    prepare_channel_decays(a, head, row, from);
  } else {
    const vf x = SPLAT(load_value(a->decay.data, a->decay.format, from));
    const vf bias = SPLAT(a->dt_bias ? ADDRESS(const float, a->dt_bias)[head] : 0.0f);
    const vf decay = decay_of(a, head, x, bias);
    if (IS_LEADER) ADDRESS(float, a->row_decay)[row_index(a, head, row, 1)] = FIRST_LANE(decay);
  }
  const vf raw = SPLAT(load_value(a->beta.data, a->beta.format, row * a->beta.token_stride + head * a->beta.head_stride));
  const vf beta = a->has_gates ? sigmoid_lanes(raw) : raw;
  if (IS_LEADER) ADDRESS(float, a->row_beta)[row_index(a, head, row, 1)] = FIRST_LANE(beta);
}

KERNEL WORK_GROUP_SIZE void prepare(LinearTileArgs args) {
  const PRIVATE LinearTileArgs* a = &args;
  const Part p = get_part(a, TILE_Y);
  for (int d = WARP * LANES; d < p.pad; d += WARPS * LANES) prepare_lanes(a, &p, d);
  BARRIER();
  for (int i = 0; i < PREPARE_ROWS; ++i) {
    const int row = TILE_X * PREPARE_ROWS + i;
    Request r;
    if (i % WARPS != WARP || row >= a->num_tokens || !find_request(a, row, &r)) continue;
    if (TILE_Y < 2 * a->k_heads) {
      norm_row(a, ADDRESS(float, p.to) + row_index(a, p.head, row, K_PAD), TILE_Y < a->k_heads ? a->scale : 1.0f);
    } else {
      prepare_gates(a, p.head, row);
    }
  }
}

// The window after node (-1: before the call) into `slot`.
INLINE void store_window(const PRIVATE LinearTileArgs* a, PRIVATE const vf* rows, int channel, int slot) {
  const int window = a->conv_width - 1;
  for (int i = 0; i < window; ++i) {
    store_strided(a->conv_state, a->conv_state_format, slot * a->conv_slot_stride + (tile_stride)channel * window + i, window,
                  rows[i]);
  }
}
INLINE void load_window(const PRIVATE LinearTileArgs* a, const PRIVATE Request* r, int node, int channel, PRIVATE vf* rows) {
  const int window = a->conv_width - 1;
  for (int i = 0; i < window; ++i) rows[i] = conv_input(a, r, node, window - 1 - i, channel);
}

KERNEL WORK_GROUP_SIZE void conv_windows(LinearTileArgs args) {
  const PRIVATE LinearTileArgs* a = &args;
  const Request r = get_request(a, TILE_Y);
  const int channel = (TILE_X * WARPS + WARP) * LANES;
  if (r.slot < 0 || !LANE_IN(channel, 2 * a->k_heads * K_DIM + a->v_heads * V_DIM)) return;
  vf rows[MAX_WINDOW];
  if (a->checkpoint_indptr && a->mode == LINEAR_EXTEND) {
    GLOBAL const int* indptr = ADDRESS(const int, a->checkpoint_indptr);
    for (int i = indptr[r.index]; i < indptr[r.index + 1]; ++i) {
      load_window(a, &r, ADDRESS(const int, a->checkpoint_tokens)[i] - 1, channel, rows);
      store_window(a, rows, channel, ADDRESS(const int, a->checkpoint_slots)[i]);
    }
  }
  load_window(a, &r, a->mode == LINEAR_COMMIT ? ADDRESS(const int, a->accepted)[r.index] : r.tokens - 1, channel, rows);
  store_window(a, rows, channel, r.slot);
}

KERNEL WORK_GROUP_SIZE void norm_outputs(LinearTileArgs args) {
  const PRIVATE LinearTileArgs* a = &args;
  const int head = TILE_Y;
  for (int i = WARP; i < PREPARE_ROWS; i += WARPS) {
    const int row = TILE_X * PREPARE_ROWS + i;
    Request r;
    if (row >= a->num_tokens || !find_request(a, row, &r)) continue;
    GLOBAL const float* o = row_of(a, a->row_out, head, row, V_PAD);
    vf squares = SPLAT(0.0f);
    for (int d = 0; d < V_PAD; d += LANES) {
      const vf x = LANE_IN(d, V_DIM) ? LOAD_GLOBAL_LANES(o + d) : SPLAT(0.0f);
      squares = FMA(x, x, squares);
    }
    const float factor = 1.0f / SQRT(sum_of_lanes(squares) / V_DIM + a->norm_eps);
    for (int d = 0; d < V_PAD; d += LANES) {
      if (!LANE_IN(d, V_DIM)) continue;
      vf x = LOAD_GLOBAL_LANES(o + d) * factor * load_values(a->norm_weight, F32_VALUES, d);
      if (a->z.data) {
        const vf z = load_values(a->z.data, a->z.format, row * a->z.token_stride + head * a->z.head_stride + d);
        x *= a->norm_sigmoid ? sigmoid_lanes(z) : z * sigmoid_lanes(z);
      }
      store_values(a->out, a->out_format, row * a->out_token_stride + (tile_stride)head * V_DIM + d, x);
    }
  }
}
