// Low-rank adapters beside the GEMMs of a model, on the host: y = x W^T + scale * (x A^T) B^T, where rows of one
// batch have different adapters, or none (LoRA, Hu et al. 2021; batches of many adapters: Punica, Chen et al. 2023).
//
// Rows are taken together by adapter, so that each A and B is read once a GEMM. What comes of them joins the model's
// own GEMM as its LinearAddend, before activations; rows without an adapter cost nothing. The bits of a row depend
// on that row and its adapter alone. Sums are f32.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/threads.h"
#include "ops/linear.h"
#include "ops/lora_site.h"

namespace warpweave {

// What one adapter adds to one GEMM.
struct LoraUpdate {
  struct Part {
    PackedLinear expand;     // B: [columns, rank]
    int64_t first_rank = 0;  // of `shrink`
    int64_t first_column = 0;  // of the GEMM, as LinearAddend counts them
    float scale = 1;
  };
  PackedLinear shrink;       // the parts' A, one below the other: [ranks, in_features]
  std::vector<Part> parts;   // empty: the GEMM is as it was
  int64_t columns = 0;       // that the parts cover together
};

// An adapter's matrices in the memory of a device, whose table of adapters has them at `slot`.
struct LoraOnDevice {
  virtual ~LoraOnDevice() = default;
  int slot = -1;
};

// An adapter that is loaded. Immutable.
struct LoraAdapter {
  std::string name;
  std::string path;          // where it was read from
  uint64_t id = 0;           // no other has it as long as the program runs
  int rank = 0;              // the largest of its parts
  size_t bytes = 0;          // held in memory for it
  std::vector<std::array<LoraUpdate, kLoraSites>> layers;  // empty where a device has them
  std::unique_ptr<const LoraOnDevice> on_device;  // null: `layers` are multiplied on the host

  const LoraUpdate& update(int layer, LoraSite site) const { return layers[layer][static_cast<int>(site)]; }
};

// One forward's rows and what their adapters make of them. Grows with the largest batch; one forward at a time.
class LoraRows {
 public:
  // `adapters`: of each request, null: none; empty: of no request. Request r has rows [q_indptr[r], q_indptr[r + 1]).
  // The adapters outlive the forward.
  void start(std::span<const LoraAdapter* const> adapters, std::span<const int32_t> q_indptr);
  // Only `rows`, which ascend, go on.
  void keep(std::span<const int32_t> rows);

  // What joins a GEMM of `input`, all rows that are left, that has `columns` columns; valid until the next call.
  LinearAddend addend(int layer, LoraSite site, const LinearInput& input, int64_t columns, ThreadTeam& team);

 private:
  struct Segment {
    const LoraUpdate* update;
    int64_t first;           // of the gathered rows
    int64_t rows;
  };
  void sort_rows();
  void take_segments(int layer, LoraSite site);
  void gather(const LinearInput& input, ThreadTeam& team);
  void shrink(int64_t in_features, ThreadTeam& team);
  void scale_rows(ThreadTeam& team);
  void expand(int64_t columns, ThreadTeam& team);

  std::vector<const LoraAdapter*> row_adapters_;  // by row; empty: no row has one
  std::vector<int32_t> by_adapter_;  // rows that have one, those of an adapter together
  // Of the GEMM that is computed:
  std::vector<Segment> segments_;
  std::vector<int32_t> gathered_;    // the rows behind the segments
  std::vector<int32_t> place_of_;    // by row: where it was gathered to, or -1
  std::vector<LinearTask> tasks_;
  int64_t middle_stride_ = 0;
  std::vector<float> input_, middle_, delta_;  // [gathered, in_features], [gathered, ranks], [gathered, columns]
};

}  // namespace warpweave
