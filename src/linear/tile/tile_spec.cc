#include "linear/tile/tile_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "attention/tile/kernel_text.h"
#include "linear/tile/kernel_text.h"

namespace warpweave::linear_tile {
namespace {

using tile::LaneKind;

constexpr int kNodes = 64;          // of chunks.cl
constexpr int kVectorColumns = 32;  // there, a block of columns of an OpenCL CPU

// A CPU has all columns of a head in one work-group as long as they fit.
void choose_vector_tile(const tile::TileDevice& device, TileSpec& spec) {
  const bool wide = device.native_float_width >= 16;
  spec.step_rows = wide ? 8 : 4;
  spec.row_block = wide ? 8 : 2;
  const TileSpec largest = {.shape = {.k_dim = kLinearAttnMaxHeadDim}, .tile_v = kLinearAttnMaxHeadDim};
  spec.declared_local_bytes = std::min(chunk_local_bytes(largest), device.local_memory_bytes);
  for (spec.tile_v = spec.shape.v_dim; spec.tile_v > kVectorColumns; spec.tile_v -= spec.lane_count) {
    if (chunk_local_bytes(spec) <= device.local_memory_bytes) return;
  }
}

void choose_thread_tile(const tile::TileDevice& device, TileSpec& spec) {
  spec.lane_count = 32;
  for (spec.warps = 2; spec.warps >= 1; --spec.warps) {
    spec.tile_v = spec.warps * spec.lane_count;
    for (spec.block = 16; spec.block >= 4; spec.block /= 2) {
      spec.row_block = spec.block < 8 ? spec.block : 8;
      if (chunk_local_bytes(spec) <= device.local_memory_bytes) return;
    }
  }
  spec.warps = 1;
  spec.block = spec.row_block = 4;
}

}  // namespace

Result<TileSpec> choose_tile(const LinearAttnShape& shape, const tile::TileDevice& device) {
  TileSpec spec;
  spec.shape = shape;
  spec.lanes = device.lanes == LaneKind::vector ? LaneKind::vector : LaneKind::threads;
  if (spec.lanes == LaneKind::vector) {
    choose_vector_tile(device, spec);
  } else {
    choose_thread_tile(device, spec);
  }
  if (chunk_local_bytes(spec) <= device.local_memory_bytes) return spec;
  return Status::invalid_argument(fmt::format(
      "head dims {} and {} of linear attention need {} bytes of local memory in the smallest tile; the device has {}",
      shape.k_dim, shape.v_dim, chunk_local_bytes(spec), device.local_memory_bytes));
}

size_t chunk_local_bytes(const TileSpec& spec) {
  const size_t k_pad = spec.padded(spec.shape.k_dim), block = spec.block;
  const size_t state_row = spec.lanes == LaneKind::vector
                               ? (spec.tile_v + kVectorColumns - 1) / kVectorColumns * kVectorColumns
                               : spec.tile_v + 1;
  return sizeof(float) * ((spec.shape.k_dim + kNodes + block) * state_row +
                          2 * block * (k_pad + kNodes) + k_pad);
}

std::vector<std::string> tile_defines(const TileSpec& spec) {
  std::vector<std::string> defines = {
      fmt::format("STEP_ROWS={}", spec.step_rows),
      fmt::format("BLOCK={}", spec.block),
      fmt::format("ROW_BLOCK={}", spec.row_block),
  };
  if (spec.lanes == LaneKind::vector) {
    defines.push_back("WW_VECTOR_LANES");
    defines.push_back(fmt::format("CHUNK_LOCAL_BYTES={}", spec.declared_local_bytes));
    return defines;
  }
  for (const auto& [name, value] : {std::pair{"K_DIM", spec.shape.k_dim},
                                    {"V_DIM", spec.shape.v_dim},
                                    {"TILE_V", spec.tile_v},
                                    {"CHANNEL_DECAY", spec.shape.kind == LinearAttnKind::kda ? 1 : 0},
                                    {"CHUNK_LOCAL_BYTES", static_cast<int>(chunk_local_bytes(spec))},
                                    {"LANES", spec.lane_count},
                                    {"WARPS", spec.warps}}) {
    defines.push_back(fmt::format("{}={}", name, value));
  }
  return defines;
}

std::string tile_source() {
  std::string text;
  for (std::string_view part : {tile::kTileArgsText, tile::kDialectText, tile::kValuesText, kArgsText, kLanesText,
                                kRequestsText, kPrepareText, kOutputsText, kStepsText, kChunksText}) {
    text += part;
  }
  return text;
}

}  // namespace warpweave::linear_tile
