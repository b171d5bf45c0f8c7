#include "attention/tile/tile_spec.h"

#include <fmt/format.h>

#include <algorithm>

#include "attention/tile/kernel_text.h"

namespace warpweave::tile {
namespace {

constexpr int kMmaRows = 16;  // of one warp
constexpr int kDpasRows = 8;  // of one sub-group
constexpr int kListedBlocks = 1 << 14;  // of modifiers.cl; a million tokens

int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

int values_code(DType dtype) { return dtype == DType::bf16 ? 1 : dtype == DType::f16 ? 2 : 0; }

int power_of_two_up_to(int value, int limit) {
  int power = 1;
  while (power < value && power < limit) power *= 2;
  return power;
}

// A CPU runs a whole tile in one work-item. Blocks of 8 rows by 32 columns fill 32 AVX-512
// registers half; without AVX-512 a 16-lane vector takes two registers of 16.
TileSpec vector_tile(int rows, const TileDevice& device) {
  TileSpec spec;
  spec.row_block = power_of_two_up_to(rows, device.native_float_width >= 16 ? 8 : 2);
  spec.tile_m = std::min(64, round_up(rows, spec.row_block));
  spec.kv_chunk = spec.split_tokens;
  return spec;
}

TileSpec thread_tile(int rows, const TileDevice& device) {
  TileSpec spec;
  spec.lane_count = device.intel_shuffle ? 16 : 32;
  spec.warps = 4;
  spec.tile_n = 32;
  spec.intel_shuffle = device.intel_shuffle;
  spec.row_block = power_of_two_up_to((rows + spec.warps - 1) / spec.warps, 4);
  spec.tile_m = spec.row_block * spec.warps;
  return spec;
}

TileSpec dpas_tile(int rows, const TileDevice& device) {
  TileSpec spec;
  spec.lane_count = 16;
  spec.warps = rows <= kDpasRows ? 1 : 4;
  spec.tile_m = spec.warps * kDpasRows;
  spec.tile_n = 32;
  spec.row_block = kDpasRows;
  spec.intel_shuffle = device.intel_shuffle;
  spec.emulate_matrix = device.emulate_matrix;
  return spec;
}

// Values of a row in local memory, padded by 16 bytes against bank conflicts.
size_t mma_row(int dim, const TileSpec& spec) { return round_up(dim, 16 * spec.column_warps) + 8; }

// Of a block's rows K and V, 16-bit.
size_t mma_stage_bytes(const TileSpec& spec) {
  const size_t k_row = mma_row(spec.shape.head_dim, spec), v_row = mma_row(spec.shape.v_head_dim, spec);
  return spec.tile_n * 2 * (k_row + (spec.shape.latent ? 0 : v_row));
}

// Sums of 16 rows by more columns do not fit a warp's registers: warps share them. Matrix units have no f32 operands.
constexpr int kWarpColumns = 256;
constexpr int kMaxColumnWarps = 2;
constexpr int kMaxMmaHeadDim = 576;

bool runs_on_mma(const TileShape& shape) {
  // Forms of dual chunk attention are staged by warps of their own.
  const int most_values = shape.dual_chunk ? kWarpColumns : kMaxColumnWarps * kWarpColumns;
  return shape.kv_format != KvFormat::f32 && shape.q_dtype != DType::f32 && shape.head_dim <= kMaxMmaHeadDim &&
         shape.v_head_dim <= most_values;
}

void set_row_warps(int row_warps, TileSpec& spec) {
  spec.warps = row_warps * spec.column_warps;
  spec.tile_m = row_warps * kMmaRows;
}

// Tokens of a block. Dual chunk attention holds a block's scores twice. A warp that is alone waits for memory most of
// the time: with small blocks many of them fit an SM, above all where they wait for each load.
int mma_tile_n(const TileSpec& spec) {
  const bool small = spec.warps == spec.column_warps, coded = kv_format_bits(spec.shape.kv_format) < 16;
  if (small) return spec.column_warps > 1 || !coded ? 32 : 16;  // 16 for each warp that makes scores
  return spec.shape.dual_chunk ? 32 : 64;
}

// Work-groups of many rows read K and V less often; of few, do not compute rows that are not there.
TileSpec mma_tile(const TileShape& shape, int rows, const TileDevice& device) {
  TileSpec spec;
  spec.shape = shape;
  spec.lanes = LaneKind::mma;
  spec.lane_count = 32;
  spec.column_warps = shape.v_head_dim > kWarpColumns ? kMaxColumnWarps : 1;
  // Eight warps with all their sums in registers are what an SM has registers for.
  int row_warps = rows <= kMmaRows ? 1 : rows <= 4 * kMmaRows || spec.column_warps > 1 ? 4 : 8;
  set_row_warps(row_warps, spec);
  spec.row_block = 1;
  spec.tile_n = mma_tile_n(spec);
  // The codes of fp8 and fp4 wait in registers.
  spec.stages = kv_format_bits(shape.kv_format) == 16 ? 2 : 1;
  while (local_bytes(spec) > device.local_memory_bytes && (spec.stages == 2 || spec.tile_n == 64)) {
    if (spec.tile_n == 64) {
      spec.tile_n = 32;
    } else {
      spec.stages = 1;
    }
  }
  while (local_bytes(spec) > device.local_memory_bytes && row_warps > 1) {
    row_warps /= 2;
    set_row_warps(row_warps, spec);
  }
  return spec;
}

}  // namespace

size_t local_bytes(const TileSpec& spec) {
  const TileShape& shape = spec.shape;
  // Two bits a block, behind the list's origin.
  const size_t list_bytes = shape.mask_modifier ? 16 + kListedBlocks / 4 : 0;
  if (spec.lanes == LaneKind::mma) {
    const size_t row_places_bytes = 2 * spec.tile_n * 16;
    const size_t scores_bytes = spec.column_warps > 1 ? sizeof(float) * spec.tile_m * (spec.tile_n + 8) : 0;
    return 2 * spec.tile_m * mma_row(shape.head_dim, spec) + spec.stages * mma_stage_bytes(spec) +
           row_places_bytes + scores_bytes + list_bytes;
  }
  const size_t dv = round_up(shape.v_head_dim, spec.lane_count);
  if (spec.lanes == LaneKind::dpas) {
    const size_t dk = round_up(shape.head_dim, 16);
    return 2 * ((spec.tile_m + spec.tile_n) * dk + spec.tile_n * dv) + 32 * spec.work_items();
  }
  size_t floats = static_cast<size_t>(spec.tile_m + spec.tile_n) * shape.head_dim + spec.tile_n * dv;
  if (spec.lanes == LaneKind::threads) floats += spec.tile_m * spec.tile_n + spec.work_items();
  return 4 * floats + list_bytes;
}

Result<TileSpec> choose_tile(const TileShape& shape, int rows, const TileDevice& device) {
  LaneKind lanes = device.lanes;
  if (lanes == LaneKind::dpas && shape.kv_format == KvFormat::f32) lanes = LaneKind::threads;
  if (lanes == LaneKind::mma && !runs_on_mma(shape)) lanes = LaneKind::threads;
  TileSpec spec = lanes == LaneKind::vector    ? vector_tile(rows, device)
                  : lanes == LaneKind::threads ? thread_tile(rows, device)
                  : lanes == LaneKind::dpas    ? dpas_tile(rows, device)
                                               : mma_tile(shape, rows, device);
  spec.shape = shape;
  spec.lanes = lanes;
  if (device.even_splits) spec.split_tokens = 0;
  // The block of tokens is made smaller for the shape alone, so that prefill and decode share it.
  const size_t k_and_v = 4 * static_cast<size_t>(shape.head_dim + shape.v_head_dim);
  const bool plain = lanes == LaneKind::vector || lanes == LaneKind::threads;
  while (plain && spec.tile_n > spec.lane_count &&
         spec.tile_n * k_and_v > device.local_memory_bytes / 2) {
    spec.tile_n /= 2;
  }
  const int smallest = spec.row_block * spec.warps;
  while (plain && local_bytes(spec) > device.local_memory_bytes &&
         spec.tile_m % (2 * smallest) == 0) {
    spec.tile_m /= 2;
  }
  if (local_bytes(spec) > device.local_memory_bytes) {
    return Status::invalid_argument(fmt::format(
        "head dims {} and {} need {} bytes of local memory in the smallest tile; the device has {}",
        shape.head_dim, shape.v_head_dim, local_bytes(spec), device.local_memory_bytes));
  }
  return spec;
}

std::vector<std::string> tile_defines(const TileSpec& spec) {
  const TileShape& shape = spec.shape;
  std::vector<std::string> defines = {
      fmt::format("DK={}", shape.head_dim),
      fmt::format("DV={}", shape.v_head_dim),
      fmt::format("KV_FORMAT={}", static_cast<int>(shape.kv_format)),
      fmt::format("Q_FORMAT={}", values_code(shape.q_dtype)),
      fmt::format("OUT_FORMAT={}", values_code(shape.out_dtype)),
      fmt::format("TILE_M={}", spec.tile_m),
      fmt::format("TILE_N={}", spec.tile_n),
      fmt::format("ROW_BLOCK={}", spec.row_block),
      fmt::format("KV_CHUNK={}", spec.kv_chunk),
      fmt::format("SPLIT_TOKENS={}", spec.split_tokens),
  };
  if (spec.lanes == LaneKind::vector) {
    defines.push_back("WW_VECTOR_LANES");
  } else {
    defines.push_back(fmt::format("LANES={}", spec.lane_count));
    defines.push_back(fmt::format("WARPS={}", spec.warps));
  }
  if (spec.lanes == LaneKind::mma) {
    defines.push_back(fmt::format("STAGES={}", spec.stages));
    defines.push_back(fmt::format("COLUMN_WARPS={}", spec.column_warps));
  }
  if (shape.latent) defines.push_back("WW_LATENT");
  if (shape.mask_modifier) defines.push_back(fmt::format("LISTED_BLOCKS={}", kListedBlocks));
  if (shape.dual_chunk) defines.push_back("WW_DUAL_CHUNK");
  if (spec.lanes == LaneKind::dpas) defines.push_back("WW_INTEL_MATRIX");
  if (spec.emulate_matrix) defines.push_back("WW_EMULATE_MATRIX");
  if (spec.aligned_rows) defines.push_back("WW_ALIGNED_ROWS");
  if (spec.intel_shuffle) defines.push_back("WW_INTEL_SHUFFLE");
  return defines;
}

std::string tile_source(LaneKind lanes, std::string_view modifiers) {
  std::string text;
  for (std::string_view part : {kTileArgsText, kDialectText, kValuesText, kNumbersText, kRowsText}) text += part;
  if (lanes == LaneKind::mma) {
    text += kMmaText;
  } else {
    text += kLanesText;
    if (lanes == LaneKind::dpas) text += kDpasText;
  }
  if (!modifiers.empty()) (text += modifiers) += kModifiersText;
  return text += kAttendText;
}

}  // namespace warpweave::tile
