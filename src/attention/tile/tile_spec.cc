#include "attention/tile/tile_spec.h"

#include <fmt/format.h>

#include <algorithm>

#include "attention/tile/kernel_text.h"

namespace warpweave::tile {
namespace {

constexpr int kVectorLanes = 16;
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

// Of a block's rows K and V, 16-bit, padded by 16 bytes against bank conflicts.
size_t mma_stage_bytes(const TileSpec& spec) {
  const size_t k_row = round_up(spec.shape.head_dim, 16) + 8, v_row = round_up(spec.shape.v_head_dim, 16) + 8;
  return spec.tile_n * 2 * (k_row + v_row);
}

// Work-groups of many rows read K and V less often; of few, do not compute rows that are not there.
TileSpec mma_tile(const TileShape& shape, int rows, const TileDevice& device) {
  TileSpec spec;
  spec.shape = shape;
  spec.lanes = LaneKind::mma;
  spec.lane_count = 32;
  spec.warps = rows <= kMmaRows ? 1 : rows <= 4 * kMmaRows ? 4 : 8;
  spec.tile_m = spec.warps * kMmaRows;
  spec.row_block = 1;
  // Dual chunk attention holds a block's scores twice. A warp that is alone waits for memory most of the
  // time: with small blocks many of them fit an SM, above all where they wait for each load.
  spec.tile_n = spec.warps == 1 ? (kv_format_bits(shape.kv_format) == 16 ? 32 : 16) : shape.dual_chunk ? 32 : 64;
  // The codes of fp8 and fp4 wait in registers.
  spec.stages = kv_format_bits(shape.kv_format) == 16 ? 2 : 1;
  while (local_bytes(spec) > device.local_memory_bytes && (spec.stages == 2 || spec.tile_n == 64)) {
    if (spec.tile_n == 64) {
      spec.tile_n = 32;
    } else {
      spec.stages = 1;
    }
  }
  while (local_bytes(spec) > device.local_memory_bytes && spec.warps > 1) {
    spec.warps /= 2;
    spec.tile_m /= 2;
  }
  return spec;
}

// Sums of 16 rows by a wider head do not fit a warp's registers, and matrix units have no f32 operands.
constexpr int kMaxMmaHeadDim = 256;

bool runs_on_mma(const TileShape& shape) {
  return shape.kv_format != KvFormat::f32 && shape.q_dtype != DType::f32 &&
         std::max(shape.head_dim, shape.v_head_dim) <= kMaxMmaHeadDim;
}

}  // namespace

size_t local_bytes(const TileSpec& spec) {
  const TileShape& shape = spec.shape;
  // Two bits a block, behind the list's origin.
  const size_t list_bytes = shape.mask_modifier ? 16 + kListedBlocks / 4 : 0;
  if (spec.lanes == LaneKind::mma) {
    const size_t row_places_bytes = 2 * spec.tile_n * 16;
    return 2 * spec.tile_m * (round_up(shape.head_dim, 16) + 8) + spec.stages * mma_stage_bytes(spec) +
           row_places_bytes + list_bytes;
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
  if (spec.lanes == LaneKind::mma) defines.push_back(fmt::format("STAGES={}", spec.stages));
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
  for (std::string_view part : {kTileArgsText, kDialectText, kNumbersText, kRowsText}) text += part;
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
