// Requests of a batch, their tokens, and what a token's convolution reads.

typedef struct Request {
  int index, first, tokens;
  int slot, from;   // where its state goes, and comes from (-1: zeros)
} Request;

INLINE int first_row(const PRIVATE LinearTileArgs* a, int request) {
  return a->q_indptr ? ADDRESS(const int, a->q_indptr)[request] : request;
}
INLINE Request get_request(const PRIVATE LinearTileArgs* a, int index) {
  Request r;
  r.index = index;
  r.first = first_row(a, index);
  r.tokens = first_row(a, index + 1) - r.first;
  r.slot = ADDRESS(const int, a->slots)[index];
  r.from = a->initial_slots ? ADDRESS(const int, a->initial_slots)[index] : r.slot;
  return r;
}
// The request of a row of the batch; 0: it is of none, or of a padded one.
INLINE int find_request(const PRIVATE LinearTileArgs* a, int row, PRIVATE Request* found) {
  if (a->num_requests == 0 || row < first_row(a, 0) || row >= first_row(a, a->num_requests)) return 0;
  int low = 0, high = a->num_requests;   // the last request that begins at or before the row
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (first_row(a, middle) <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  *found = get_request(a, low);
  return found->slot >= 0;
}

INLINE int parent_of(const PRIVATE LinearTileArgs* a, int first, int node) {
  return a->parents ? ADDRESS(const int, a->parents)[first + node] : node - 1;
}
// A node and those before it, as bits.
INLINE tile_address path_to(const PRIVATE LinearTileArgs* a, int first, int last) {
  tile_address path = 0;
  for (int node = last; node >= 0; node = parent_of(a, first, node)) path |= (tile_address)1 << node;
  return path;
}

// Lanes of channels from `channel` on, `age` tokens before node; node -1: the last one before the call.
INLINE vf conv_input(const PRIVATE LinearTileArgs* a, const PRIVATE Request* r, int node, int age, int channel) {
  while (age > 0 && node >= 0) {
    node = parent_of(a, r->first, node);
    --age;
  }
  if (node >= 0) return load_values(a->x.data, a->x.format, (r->first + node) * a->x.token_stride + channel);
  if (r->from < 0) return SPLAT(0.0f);
  const int window = a->conv_width - 1;
  return load_strided(a->conv_state, a->conv_state_format,
                      r->from * a->conv_slot_stride + (tile_stride)channel * window + (window - 1 - age), window);
}

// Where a head's row begins in an array of the workspace.
INLINE tile_stride row_index(const PRIVATE LinearTileArgs* a, int head, int row, int dim) {
  return ((tile_stride)head * a->num_tokens + row) * dim;
}
INLINE GLOBAL const float* row_of(const PRIVATE LinearTileArgs* a, tile_address rows, int head, int row, int dim) {
  return ADDRESS(const float, rows) + row_index(a, head, row, dim);
}

// Lanes of the decay exp(g) of a token, from channel d on.
INLINE vf decay_lanes(const PRIVATE LinearTileArgs* a, int head, int row, int d) {
  if (CHANNEL_DECAY) return LOAD_GLOBAL_LANES(row_of(a, a->row_decay, head, row, K_PAD) + d);
  return SPLAT(*row_of(a, a->row_decay, head, row, 1));
}
