// What a tile program is specialised for, how that is told to the compiler, and how a configuration
// is chosen for a shape and a device. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "kv/kv_format.h"
#include "warpweave/status.h"
#include "warpweave/tensor.h"

namespace warpweave::tile {

// How rows and columns of a tile lie over the device's lanes: kernels/dialect.cl.
enum class LaneKind {
  vector,   // an OpenCL CPU: a work-group is one work-item, a lane an element of a float16
  threads,  // a lane is a thread; multiply-add
  mma,      // a lane is a thread of a CUDA warp; mma.sync, sm_80 and later
  dpas,     // a lane is a work-item of a sub-group of 16; Intel's matrix units
};

// The shape of the attention, as the kernels see it.
struct TileShape {
  int head_dim = 0;
  int v_head_dim = 0;
  KvFormat kv_format = KvFormat::bf16;
  DType q_dtype = DType::f32;           // f32, bf16 or f16
  DType out_dtype = DType::f32;
  bool dual_chunk = false;              // queries come in three forms: DualChunkQueries
  bool mask_modifier = false;           // hidden blocks are left out: kernels/modifiers.cl
  bool latent = false;                  // a token's value is the first part of its key

  bool operator==(const TileShape&) const = default;
};

struct TileSpec {
  TileShape shape;
  LaneKind lanes = LaneKind::vector;
  int lane_count = 16;                  // 16 for vector; threads of a warp or sub-group otherwise
  int warps = 1;
  int column_warps = 1;                 // mma: of them, so many share each 16 rows; divides warps
  int tile_m = 64;                      // packed query rows of a work-group
  int tile_n = 64;                      // tokens of a KV block
  int row_block = 8;                    // rows kept in registers at a time; divides tile_m / warps
  int kv_chunk = 0;                     // tokens after which a fresh state starts; 0: never
  int split_tokens = 512;               // tokens of one split; 0: TileArgs::splits share the tokens
  int stages = 1;                       // mma: blocks in local memory, the one computed and the next
  bool intel_shuffle = false;
  bool emulate_matrix = false;
  bool aligned_rows = false;            // mma: as rows_are_aligned (tile_call.h) says of the call

  int work_items() const { return lanes == LaneKind::vector ? 1 : warps * lane_count; }
};

struct TileDevice {
  LaneKind lanes = LaneKind::vector;
  int native_float_width = 16;          // of a CPU's vector registers
  size_t local_memory_bytes = 0;        // per work-group
  bool intel_shuffle = false;
  bool emulate_matrix = false;          // dpas on a device without matrix units, for tests
  bool even_splits = false;             // splits as long as needed, not of a fixed length
};

// `rows`: packed query rows (query heads of a KV head x tokens) that a request brings; a decode
// batch brings its group size, larger batches any large number.
// `invalid_argument` for a shape whose smallest tile does not fit the device's local memory.
Result<TileSpec> choose_tile(const TileShape& shape, int rows, const TileDevice& device);

// Local (shared) memory of one work-group; what kernels/lanes.cl and mma.cl lay out.
size_t local_bytes(const TileSpec& spec);

// "TILE_M=64", ... for -D options.
std::vector<std::string> tile_defines(const TileSpec& spec);

// The kernel text for these lanes, all files in order, ready for any of the compilers. `modifiers`: text
// made from flex_attention's expressions, see kernels/modifiers.cl.
std::string tile_source(LaneKind lanes, std::string_view modifiers = {});

}  // namespace warpweave::tile
