// Rows: which query rows a work-group owns, where their data lie, and which tokens they see.
//
// A request's query rows are packed with the group of query heads of a KV head: packed row p is token
// row p / group of query head kv_head * group + p % group. A tile is TILE_M packed rows of one request
// and KV head.

#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f

typedef struct Tile {
  int request, kv_head;
  int q_begin, q_len, kv_len;   // first token row, token rows and visible tokens of the request
  int row_begin, rows;          // packed rows [row_begin, row_begin + rows) of the request
  int prefix;                   // tokens before the request's first query row
  int kv_begin, kv_end;         // the tokens that some row of the tile sees lie in this range
  int all_begin, all_end;       // every row sees all tokens of this range
} Tile;

INLINE int token_row(const PRIVATE TileArgs* a, const PRIVATE Tile* tile, int row) {
  return (tile->row_begin + MIN_INT(row, tile->rows - 1)) / a->group;
}
INLINE int query_head(const PRIVATE TileArgs* a, const PRIVATE Tile* tile, int row) {
  return tile->kv_head * a->group + (tile->row_begin + row) % a->group;
}

// A row sees tokens [first, last]; under a tree mask those from `prefix` on as the mask says.
INLINE void row_span(const PRIVATE TileArgs* a, const PRIVATE Tile* tile, int row,
                     PRIVATE int* first, PRIVATE int* last) {
  const int i = token_row(a, tile, row);
  int position = tile->prefix + i;
#if defined(MASK_MOD)
  *last = tile->kv_len - 1;   // a mask of the user's stands in the place of the causal one
#else
  *last = a->causal && !a->tree_mask ? position : tile->kv_len - 1;
#endif
  if (a->window_right >= 0 && !a->causal && !a->tree_mask) *last = MIN_INT(*last, position + a->window_right);
  if (a->tree_mask) position = ADDRESS(const int, a->positions)[tile->q_begin + i];
  *first = a->window_left < 0 ? 0 : MAX_INT(0, position - a->window_left);
}

INLINE void find_tile_range(const PRIVATE TileArgs* a, PRIVATE Tile* tile) {
  tile->kv_begin = tile->kv_len;
  tile->kv_end = 0;
  tile->all_begin = 0;
  tile->all_end = a->tree_mask ? tile->prefix : tile->kv_len;
  const int tree_begin = MAX_INT(tile->prefix, 0);   // a graph's padding has rows, and no tokens
  const int step = a->tree_mask || tile->rows == 1 ? a->group : tile->rows - 1;
  for (int row = 0; row < tile->rows; row += step) {
    int first, last;
    row_span(a, tile, row, &first, &last);
    tile->kv_begin = MIN_INT(tile->kv_begin, a->tree_mask ? MIN_INT(first, tree_begin) : first);
    tile->kv_end = MAX_INT(tile->kv_end, last + 1);
    tile->all_begin = MAX_INT(tile->all_begin, first);
    tile->all_end = MIN_INT(tile->all_end, last + 1);
  }
}

// The tile of this work-group; 0 where there is none. With ragged requests, request r may own tiles
// from q_indptr[r] * group / TILE_M + r on, which leaves room for the remainder of each.
INLINE int find_tile(const PRIVATE TileArgs* a, int index, int kv_head, PRIVATE Tile* tile) {
  GLOBAL const int* q_indptr = ADDRESS(const int, a->q_indptr);
  int request = 0, part = 0;
  if (a->tiles_per_request > 0) {
    request = index / a->tiles_per_request;
    part = index % a->tiles_per_request;
  } else {
    int low = 0, high = a->num_reqs;   // the last request whose first tile is not after `index`
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if ((int)((tile_stride)q_indptr[middle] * a->group / TILE_M) + middle <= index) {
        low = middle;
      } else {
        high = middle;
      }
    }
    request = low;
    part = index - ((int)((tile_stride)q_indptr[low] * a->group / TILE_M) + low);
  }
  if (request >= a->num_reqs) return 0;
  tile->request = request;
  tile->kv_head = kv_head;
  tile->q_begin = q_indptr[request];
  tile->q_len = q_indptr[request + 1] - tile->q_begin;
  tile->kv_len = ADDRESS(const int, a->kv_lens)[request];
  tile->prefix = tile->kv_len - tile->q_len;
  tile->row_begin = part * TILE_M;
  tile->rows = MIN_INT(TILE_M, tile->q_len * a->group - tile->row_begin);
  if (tile->rows <= 0) return 0;
  find_tile_range(a, tile);
  return 1;
}

INLINE int page_number(const PRIVATE TileArgs* a, int kv) {
  return a->page_shift >= 0 ? kv >> a->page_shift : kv / a->page_size;
}
INLINE tile_stride page_of(const PRIVATE TileArgs* a, const PRIVATE Tile* tile, int number) {
  return ADDRESS(const int, a->page_table)[(tile_stride)tile->request * a->page_table_stride + number];
}
INLINE tile_stride key_index(const PRIVATE TileArgs* a, const PRIVATE Tile* tile, int kv) {
  const int number = page_number(a, kv);
  return page_of(a, tile, number) * a->k_page_stride +
         (kv - number * a->page_size) * a->k_token_stride + tile->kv_head * a->k_head_stride;
}
INLINE tile_stride value_index(const PRIVATE TileArgs* a, const PRIVATE Tile* tile, int kv) {
  const int number = page_number(a, kv);
  return page_of(a, tile, number) * a->v_page_stride +
         (kv - number * a->page_size) * a->v_token_stride + tile->kv_head * a->v_head_stride;
}

// Forms of a query under dual chunk attention; without it there is one.
#define FORM_OWN 0
#define FORM_SUCC 1
#define FORM_INTER 2

// Where the row's query begins in the array of its form, and that array.
INLINE tile_stride query_index(const PRIVATE TileArgs* a, const PRIVATE Tile* tile, int form, int row) {
#if defined(WW_DUAL_CHUNK)
  const tile_stride stride = form == FORM_OWN ? a->q_token_stride : a->q_form_token_stride;
#else
  const tile_stride stride = a->q_token_stride;
#endif
  return (tile->q_begin + token_row(a, tile, row)) * stride + query_head(a, tile, row) * DK;
}
INLINE tile_address query_array(const PRIVATE TileArgs* a, int form) {
#if defined(WW_DUAL_CHUNK)
  return form == FORM_OWN ? a->q : form == FORM_SUCC ? a->q_succ : a->q_inter;
#else
  return a->q;
#endif
}
INLINE float query_element(tile_address queries, tile_stride index) {
#if Q_FORMAT == F32_VALUES
  return ADDRESS(const float, queries)[index];
#elif Q_FORMAT == BF16_VALUES
  return bf16_to_f32_one((u32)ADDRESS(const u16, queries)[index] << 16);
#else
  return f16_to_f32_one((u32)ADDRESS(const u16, queries)[index] << 16);
#endif
}

// 32 bits of a tree-mask row from bit `first` on, which may be negative or past the row's words.
INLINE u32 tree_bits(const PRIVATE TileArgs* a, const PRIVATE Tile* tile, int row, int first) {
  GLOBAL const u32* words =
      ADDRESS(const u32, a->tree_mask) +
      (tile_stride)(tile->q_begin + token_row(a, tile, row)) * a->tree_mask_words;
  const int word = first >> 5, shift = first & 31;
  const u32 low = word >= 0 && word < a->tree_mask_words ? words[word] : 0u;
  const u32 high = word + 1 >= 0 && word + 1 < a->tree_mask_words ? words[word + 1] : 0u;
  return shift == 0 ? low : low >> shift | high << (32 - shift);
}
