// Score and mask modifiers (attention/mods), CUDA only. The text before this is generated from the
// expressions: struct ModCell and ModBox, score_mod, mask_mod, and mask_coverage, which says of a box
// of cells whether the mask hides all of them (0), some (1) or none (2).
//
// With a mask each work-group first lists the blocks of its tokens, one block a thread, as two bits in
// local memory: blocks that all rows are hidden from are never read, and where the mask shows all of
// a block it is not evaluated. Blocks past LISTED_BLOCKS are not listed: they are computed, masked.

INLINE ModCell mod_cell(const TileArgs* a, const Tile* tile, int row) {
  ModCell cell;
  const int i = token_row(a, tile, row);
  cell.q_idx = a->tree_mask ? ADDRESS(const int, a->positions)[tile->q_begin + i] : tile->prefix + i;
  cell.request = tile->request;
  cell.head = query_head(a, tile, MIN_INT(row, tile->rows - 1));
  cell.q_len = tile->q_len;
  cell.kv_len = tile->kv_len;
  cell.num_heads = a->num_q_heads;
  return cell;
}

// A node of a draft tree has the position of its depth.
INLINE int token_position(const TileArgs* a, const Tile* tile, int kv) {
  if (!a->tree_mask || kv < tile->prefix || kv >= tile->kv_len) return kv;
  return ADDRESS(const int, a->positions)[tile->q_begin + kv - tile->prefix];
}

#if defined(MASK_MOD)

#define LOCAL_ORIGIN(base) ((int*)LOCAL_END(base))
#define LOCAL_SHOWN(base) ((u32*)LOCAL_END(base) + 4)
#define LOCAL_FULL(base) (LOCAL_SHOWN(base) + LISTED_BLOCKS / 32)

// The cells of all rows of the tile, but for the tokens.
INLINE ModBox mod_box(const TileArgs* a, const Tile* tile) {
  ModBox box;
  box.q_low = tile->prefix + token_row(a, tile, 0);
  box.q_high = tile->prefix + token_row(a, tile, tile->rows - 1);
  if (a->tree_mask) {
    box.q_low = 0x7fffffff;
    box.q_high = 0;
    for (int i = token_row(a, tile, 0); i <= token_row(a, tile, tile->rows - 1); ++i) {
      const int position = ADDRESS(const int, a->positions)[tile->q_begin + i];
      box.q_low = MIN_INT(box.q_low, position);
      box.q_high = MAX_INT(box.q_high, position);
    }
  }
  box.head_low = tile->kv_head * a->group;
  box.head_high = box.head_low + a->group - 1;
  box.request = tile->request;
  box.q_len = tile->q_len;
  box.kv_len = tile->kv_len;
  box.num_heads = a->num_q_heads;
  return box;
}

INLINE void list_blocks(const TileArgs* a, const Tile* tile, int begin, int end, char* base) {
  const int origin = begin / TILE_N, count = ROUND_UP(end, TILE_N) / TILE_N - origin;
  ModBox box = mod_box(a, tile);
  BARRIER();
  if (THREAD == 0) LOCAL_ORIGIN(base)[0] = origin;
  for (int word = WARP; word * 32 < MIN_INT(count, LISTED_BLOCKS); word += WARPS) {
    const int n = word * 32 + THREAD % 32;
    box.kv_low = (origin + n) * TILE_N;
    box.kv_high = MIN_INT(box.kv_low + TILE_N, tile->kv_len) - 1;
    int coverage = n < count ? mask_coverage(box) : 0;
    // The tree's own tokens are shown by its mask.
    if (a->tree_mask && n < count && box.kv_high >= tile->prefix) coverage = 1;
    const u32 shown = __ballot_sync(0xffffffffu, coverage > 0);
    const u32 full = __ballot_sync(0xffffffffu, coverage == 2);
    if (THREAD % 32 == 0) {
      LOCAL_SHOWN(base)[word] = shown;
      LOCAL_FULL(base)[word] = full;
    }
  }
  BARRIER();
}

// The first block from `block` on that is not hidden; from `end` on where there is none.
INLINE int listed_block(int block, int end, const char* base) {
  const int origin = LOCAL_ORIGIN(base)[0], count = ROUND_UP(end, TILE_N) / TILE_N - origin;
  int n = block / TILE_N - origin;
  while (n < MIN_INT(count, LISTED_BLOCKS)) {
    const u32 shown = LOCAL_SHOWN(base)[n / 32] >> (n % 32);
    if (shown) {
      n += __ffs((int)shown) - 1;
      break;
    }
    n = (n / 32 + 1) * 32;
  }
  return (origin + n) * TILE_N;
}

INLINE int is_full(const Tile* tile, int block, const char* base) {
  const int n = block / TILE_N - LOCAL_ORIGIN(base)[0];
  return n < LISTED_BLOCKS && (LOCAL_FULL(base)[n / 32] >> (n % 32) & 1);
}

#endif
