// Outputs of the recurrence: to where they are normed, or at once to their place.

INLINE tile_address output_array(const PRIVATE LinearTileArgs* a) { return a->row_out ? a->row_out : a->out; }
INLINE int output_format(const PRIVATE LinearTileArgs* a) { return a->row_out ? F32_VALUES : a->out_format; }
INLINE tile_stride output_index(const PRIVATE LinearTileArgs* a, int head, int row) {
  return a->row_out ? row_index(a, head, row, V_PAD) : row * a->out_token_stride + (tile_stride)head * V_DIM;
}

// Columns [begin, begin + count) of a padded request's outputs, which are zeros.
INLINE void zero_outputs(const PRIVATE LinearTileArgs* a, const PRIVATE Request* r, int head, int begin, int count) {
  if (a->mode == LINEAR_COMMIT) return;
  for (int i = 0; i < r->tokens; ++i) {
    const tile_stride row = (r->first + i) * a->out_token_stride + (tile_stride)head * V_DIM + begin;
    for (int v = THREAD; v < count; v += THREADS) store_value(a->out, a->out_format, row + v, 0.0f);
  }
}
