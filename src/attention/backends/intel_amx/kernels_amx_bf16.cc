// AMX: the two GEMMs in 16 x 16 tiles of TDPBF16PS, everything else as AVX512-BF16.
// Tiles 0-3 accumulate, 4-5 hold rows (a), 6-7 columns (b). All tiles are full 16 x 64 bytes: row
// buffers are padded to row_padding, tokens to kTokenPadding and head dims to kHeadDimPadding.
//
// Up to 16 rows work block after block. 32 rows are pipelined: while the vector unit computes the
// softmax of block b, the tile unit multiplies block b - 1's probabilities and block b + 1's scores.
#include "attention/backends/intel_amx/pairs_fp8.h"
#include "device/cpu/amx_tile_config.h"

namespace warpweave::intel_amx {
namespace {

constexpr AmxTileConfig kTileConfig = {.row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                       .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

void load_tile_config() { _tile_loadconfig(&kTileConfig); }

void release_tiles() { _tile_release(); }

void scale_rows(const AttendArgs& args, const float* factors) {
  for (int row = 0; row < args.rows; ++row) {
    if (factors[row] == 1) continue;
    const Vec factor = Vec::set1(factors[row]);
    float* o = args.state.o + row * args.v_dim;
    for (int i = 0; i < args.v_dim; i += 16) Vec::store(o + i, Vec::load(o + i) * factor);
  }
}

// c (+)= a * b for kTiles * 16 rows, in steps of 32 columns by 32 terms of k, so that softmax can run between them.
template <int kTiles>
struct SteppedGemm {
  const uint32_t* a;
  int lda;
  const uint32_t* b;
  int ldb;
  float* c;
  int ldc;
  int depth;   // units
  bool add;
  int steps;   // left
  int k = 0;

  void begin() const {
    if (!add) {
      _tile_zero(0);
      _tile_zero(1);
      if constexpr (kTiles == 2) {
        _tile_zero(2);
        _tile_zero(3);
      }
      return;
    }
    _tile_loadd(0, c, ldc * 4);
    _tile_loadd(1, c + 16, ldc * 4);
    if constexpr (kTiles == 2) {
      _tile_loadd(2, c + 16 * ldc, ldc * 4);
      _tile_loadd(3, c + 16 * ldc + 16, ldc * 4);
    }
  }
  void end() const {
    _tile_stored(0, c, ldc * 4);
    _tile_stored(1, c + 16, ldc * 4);
    if constexpr (kTiles == 2) {
      _tile_stored(2, c + 16 * ldc, ldc * 4);
      _tile_stored(3, c + 16 * ldc + 16, ldc * 4);
    }
  }
  void step() {
    if (k == 0) begin();
    const uint32_t* rows = a + k;
    const uint32_t* columns = b + k * ldb;
    _tile_loadd(6, columns, ldb * 4);
    _tile_loadd(4, rows, lda * 4);
    _tile_loadd(7, columns + 16, ldb * 4);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kTiles == 2) _tile_loadd(5, rows + 16 * lda, lda * 4);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kTiles == 2) {
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    k += 16;
    if (k == depth) {
      end();
      k = 0;
      b += 32;
      c += 32;
    }
    --steps;
  }
  void finish() {
    while (steps > 0) step();
  }
};

// The scratch of block b: two blocks are under way at a time.
struct Slot {
  float* s;
  uint32_t* p;
  float* rescale;
};

Slot slot_of(const AttendArgs& args, int block) {
  const int rows = 32 * (block & 1);
  return {args.s + rows * kBlockTokens, args.p + rows * (kBlockTokens / 2), args.rescale + rows};
}

template <int kTiles>
SteppedGemm<kTiles> scores_of(const AttendArgs& args, int block) {
  const int cols = padded_tokens(args.blocks[block].count);
  const uint32_t* k = args.k + static_cast<int64_t>(block) * args.depth * kBlockTokens;
  return {args.q, args.depth, k, kBlockTokens, slot_of(args, block).s, kBlockTokens, args.depth, false,
          cols / 32 * (args.depth / 16)};
}

template <int kTiles>
SteppedGemm<kTiles> values_of(const AttendArgs& args, int block) {
  const int cols = padded_tokens(args.blocks[block].count);
  const uint32_t* v = args.v + static_cast<int64_t>(block) * args.v_block;
  return {slot_of(args, block).p, kBlockTokens / 2, v, args.v_dim, args.state.o, args.v_dim, cols / 2,
          true, args.v_dim / 32 * (cols / 32)};
}

SoftmaxArgs softmax_of(const AttendArgs& args, int block) {
  const Slot slot = slot_of(args, block);
  return softmax_args(args, args.blocks[block], slot.s, slot.p, slot.rescale);
}

void attend_16_rows(const AttendArgs& args) {
  for (int b = 0; b < args.num_blocks; ++b) {
    prefetch_step(*args.prefetch);
    scores_of<1>(args, b).finish();
    if (softmax_rows<Vec, true>(softmax_of(args, b), 0, args.rows)) {
      scale_rows(args, slot_of(args, b).rescale);
    }
    values_of<1>(args, b).finish();
  }
}

void attend_32_rows(const AttendArgs& args) {
  constexpr int kRowsPerTurn = 2;
  scores_of<2>(args, 0).finish();
  SteppedGemm<2> values{};  // of the block before, once it is scaled
  for (int b = 0; b < args.num_blocks; ++b) {
    prefetch_step(*args.prefetch);
    SteppedGemm<2> scores{};
    if (b + 1 < args.num_blocks) scores = scores_of<2>(args, b + 1);
    const int steps = values.steps + scores.steps, turns = (args.rows + kRowsPerTurn - 1) / kRowsPerTurn;
    const SoftmaxArgs softmax = softmax_of(args, b);
    bool rescale = false;
    for (int turn = 0, done = 0; turn < turns; ++turn) {
      for (; done * turns < (turn + 1) * steps; ++done) {
        if (values.steps > 0) {
          values.step();
        } else {
          scores.step();
        }
      }
      const int row = turn * kRowsPerTurn, end = row + kRowsPerTurn;
      rescale |= softmax_rows<Vec, true>(softmax, row, end < args.rows ? end : args.rows);
    }
    if (rescale) scale_rows(args, softmax.rescale);
    values = values_of<2>(args, b);
  }
  values.finish();
}

void attend_tiles(const AttendArgs& args) {
  if (args.rows <= 16) {
    attend_16_rows(args);
  } else {
    attend_32_rows(args);
  }
}

constexpr KernelSet make_kernels() {
  KernelSet set = pair_kernels("amx_bf16");
  set.group_rows = 32;
  set.tile_rows = 256;
  set.row_padding = 16;
  set.attend = attend_tiles;
  set.enter = load_tile_config;
  set.leave = release_tiles;
  return set;
}

}  // namespace

constinit const KernelSet kAmxBf16Kernels = make_kernels();

}  // namespace warpweave::intel_amx
