#include "ops/cuda/lora.cuh"

#include <cuda_runtime.h>

#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/lora_join.cuh"
#include "ops/cuda/types.cuh"

namespace warpweave::gpu {
namespace {

// With so many rows tiles alone fill the GPU.
constexpr int64_t kRowsOfSlicesApart = 256;

int slices_of(int64_t in_features) { return static_cast<int>((in_features + kLoraSlice - 1) / kLoraSlice); }
int slices_apart(int64_t in_features, int64_t rows) { return rows <= kRowsOfSlicesApart ? slices_of(in_features) : 1; }

int max_ranks(const LoraModel& model, const LoraSiteShape& shape) { return padded_lora_rank(model.max_rank) * shape.num_parts; }

int column_blocks(const LoraSiteShape& shape) {
  int64_t out = 0;
  for (int part = 0; part < shape.num_parts; ++part) out += (shape.columns[part] + kLoraColumns - 1) / kLoraColumns;
  return static_cast<int>(out);
}

LoraArgs args_of(const LoraCall& call) {
  const LoraSiteShape& shape = call.model->shape(call.place);
  LoraArgs args = {};
  args.sites = call.model->site(call.place);
  args.slot_stride = static_cast<int64_t>(call.model->layers.size()) * kLoraSites;
  args.tiles = call.tiles;
  args.num_tiles = call.num_tiles;
  args.in_features = shape.in_features;
  args.slices = slices_apart(shape.in_features, call.rows);
  args.max_ranks = max_ranks(*call.model, shape);
  args.rank_blocks = call.dtype == DType::f32 ? 1 : (args.max_ranks + kLoraRanks - 1) / kLoraRanks;
  args.sums = call.sums;
  args.shape = shape;
  return args;
}

// f32: a warp a sum, a thread a column; slices as the others'.
__global__ void __launch_bounds__(kLoraThreads) plain_lora_shrink(const __grid_constant__ LoraArgs args) {
  start_successor();
  wait_for_predecessor();
  const int tile = static_cast<int>(blockIdx.x), slot = args.tiles[tile].slot;
  if (slot < 0) return;
  const LoraSiteWeights& weights = args.weights(slot);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int i = warp; i < kLoraTileRows * weights.ranks; i += kLoraWarps) {
    const int place = i / weights.ranks, rank = i % weights.ranks, row = args.tiles[tile].rows[place];
    if (row < 0) continue;
    const float* const x = static_cast<const float*>(args.x) + row * args.in_features;
    const float* const a = static_cast<const float*>(weights.shrink) + rank * args.in_features;
    float total = 0;
    for (int64_t begin = int64_t{blockIdx.y} * kLoraSlice; begin < args.in_features; begin += int64_t{args.slices} * kLoraSlice) {
      float sum = 0;
      for (int64_t k = begin + lane; k < min(begin + kLoraSlice, args.in_features); k += 32) sum += x[k] * a[k];
      total += warp_sum(sum);
    }
    if (lane == 0) args.sums_of(static_cast<int>(blockIdx.y), tile, place)[rank] = total;
  }
}

__global__ void __launch_bounds__(kLoraThreads) plain_lora_expand(const __grid_constant__ LoraArgs args) {
  start_successor();
  wait_for_predecessor();
  const int tile = static_cast<int>(blockIdx.x), slot = args.tiles[tile].slot;
  if (slot < 0) return;
  const LoraSiteWeights& weights = args.weights(slot);
  const auto [part, first] = lora_columns(args.shape, static_cast<int>(blockIdx.y));
  if (weights.expand[part] == nullptr) return;
  const int rank = weights.rank[part];
  const int64_t end = min(first + kLoraColumns, args.shape.columns[part]);
  for (int64_t column = first + threadIdx.x; column < end; column += kLoraThreads) {
    const float* const b = static_cast<const float*>(weights.expand[part]) + column * rank;
    for (int place = 0; place < kLoraTileRows; ++place) {
      const int row = args.tiles[tile].rows[place];
      if (row < 0) break;
      float delta = 0;
      for (int k = 0; k < rank; ++k) {
        float sum = 0;
        for (int slice = 0; slice < args.slices; ++slice) sum += args.sums_of(slice, tile, place)[weights.first_rank[part] + k];
        delta += weights.scale[part] * sum * b[k];
      }
      static_cast<float*>(args.y)[row * args.y_stride + args.shape.first_column[part] + column] += delta;
    }
  }
}

template <class E, int kMostRank>
auto expand_of(DType result) {
  return result == DType::f32 ? lora_expand_kernel<E, float, kMostRank> : lora_expand_kernel<E, uint16_t, kMostRank>;
}
template <class E>
auto expand_of(DType result, int max_rank) {
  return max_rank <= kLoraFewRanks ? expand_of<E, kLoraFewRanks>(result) : expand_of<E, kLoraMostRanks>(result);
}

void launch(const LoraArgs& args, int blocks, void (*kernel)(LoraArgs), Stream stream) {
  if (args.num_tiles == 0 || args.shape.num_parts == 0) return;
  const dim3 grid(static_cast<unsigned>(args.num_tiles), static_cast<unsigned>(blocks));
  launch_dependent({grid, kLoraThreads, 0, static_cast<cudaStream_t>(stream)}, kernel, args);
}

}  // namespace

int64_t LoraModel::widest() const {
  int64_t out = 0;
  for (const auto& layer : layers) {
    for (const LoraSiteShape& shape : layer) out = std::max(out, shape.all_columns());
  }
  return out;
}

int64_t lora_sums_size(const LoraModel& model, int64_t rows, int adapters) {
  int64_t out = 0;
  for (const auto& layer : model.layers) {
    for (const LoraSiteShape& shape : layer) {
      const auto of = [&](int64_t some) {
        const int64_t tiles = max_lora_tiles(static_cast<int>(some), adapters);
        return tiles * kLoraTileRows * slices_apart(shape.in_features, some) * max_ranks(model, shape);
      };
      out = std::max({out, of(std::min(rows, kRowsOfSlicesApart)), of(rows)});
    }
  }
  return out;
}

void lora_shrink(const LoraCall& call, const void* x, Stream stream) {
  LoraArgs args = args_of(call);
  args.x = x;
  auto* const kernel = call.dtype == DType::f32    ? plain_lora_shrink
                       : call.dtype == DType::bf16 ? lora_shrink_kernel<ptx::Bf16>
                                                   : lora_shrink_kernel<ptx::F16>;
  launch(args, args.slices * args.rank_blocks, kernel, stream);
}

LoraJoin lora_join(const LoraCall& call, const void* x) {
  LoraJoin out = {};
  out.lora = args_of(call);
  out.lora.x = x;
  const int64_t depth = out.lora.in_features, slice = (depth + kJoinSlices - 1) / kJoinSlices;
  out.slice_depth = static_cast<int>((slice + kLoraSlice - 1) / kLoraSlice * kLoraSlice);
  out.lora.slices = static_cast<int>((depth + out.slice_depth - 1) / out.slice_depth);
  out.places = call.places;
  out.counters = call.model->counters;
  out.rows = static_cast<int>(call.rows);
  out.workers = out.lora.num_tiles * ((out.lora.max_ranks + kJoinRanks - 1) / kJoinRanks) * out.lora.slices;
  return out;
}

void lora_expand(const LoraCall& call, const LoraResult& y, Stream stream) {
  LoraArgs args = args_of(call);
  args.y = y.data;
  args.y_stride = y.row_stride;
  args.by_place = y.by_place;
  auto* const kernel = call.dtype == DType::f32    ? plain_lora_expand
                       : call.dtype == DType::bf16 ? expand_of<ptx::Bf16>(y.dtype, call.model->max_rank)
                                                   : expand_of<ptx::F16>(y.dtype, call.model->max_rank);
  launch(args, column_blocks(args.shape), kernel, stream);
}

}  // namespace warpweave::gpu
