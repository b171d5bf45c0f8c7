#include "attention/cuda/split_work.h"

namespace warpweave::cuda {
namespace {

constexpr size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

size_t arrivals_bytes(int num_workers) { return size_t{2} * num_workers * sizeof(int32_t); }

size_t max_sum_bytes(int num_workers, int tile_rows) { return size_t{2} * num_workers * tile_rows * 2 * sizeof(float); }

}  // namespace

size_t split_workspace_bytes(int num_workers, int tile_rows, int value_dim) {
  return aligned(num_workers * sizeof(DecodeWorker)) + aligned(num_workers * sizeof(SplitCut)) +
         aligned(arrivals_bytes(num_workers)) +
         aligned(max_sum_bytes(num_workers, tile_rows)) +
         size_t{2} * num_workers * tile_rows * value_dim * sizeof(float);
}

SplitWork split_work_of(void* workspace, int num_workers, int tile_rows) {
  char* at = static_cast<char*>(workspace);
  SplitWork work;
  work.workers = reinterpret_cast<const DecodeWorker*>(at);
  at += aligned(num_workers * sizeof(DecodeWorker));
  work.cuts = reinterpret_cast<SplitCut*>(at);
  at += aligned(num_workers * sizeof(SplitCut));
  work.arrivals = reinterpret_cast<int32_t*>(at);
  at += aligned(arrivals_bytes(num_workers));
  work.partial_max_sum = reinterpret_cast<float*>(at);
  at += aligned(max_sum_bytes(num_workers, tile_rows));
  work.partial_out = reinterpret_cast<float*>(at);
  work.num_workers = num_workers;
  work.tile_rows = tile_rows;
  return work;
}

}  // namespace warpweave::cuda
