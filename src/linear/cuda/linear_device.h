// What runs the kernels of linear attention: a GPU (cuda_device.cu), or host threads in tests. Each call enqueues.
#pragma once

#include "linear/cuda/linear_params.h"
#include "linear/cuda/rows.h"

namespace warpweave::linear {

// How chunk_scan is cut: 64 columns of V per group of four warps.
struct ScanShape {
  bool wgmma = false;
  int groups = 1;
};

class LinearDevice {
 public:
  virtual ~LinearDevice() = default;
  virtual int multiprocessors() const = 0;
  virtual bool has_wgmma() const = 0;
  // Prompts of this length may be computed in segments, however little that pays: for tests.
  virtual int least_segmented_tokens() const { return 0x7fffffff; }
  // Prompts of any length may be cut into pieces, the same.
  virtual bool cuts_all_in_pieces() const { return false; }

  virtual void decode(const LinearParams& p, void* stream) = 0;
  virtual void extend_exactly(const LinearParams& p, void* stream) = 0;  // token by token, in f32; without writes_state: of drafted nodes
  virtual void verify_few(const LinearParams& p, DType element, void* stream) = 0;  // where verify_few_takes()
  virtual void commit(const LinearParams& p, void* stream) = 0;
  virtual void make_rows(const RowsParams& p, void* stream) = 0;
  virtual void norm_rows(const RowsParams& p, void* stream) = 0;
  virtual void list_chunks(const LinearParams& p, void* stream) = 0;
  // `element`: bf16 or f16, of q, k, v and of what prepare leaves for scan.
  virtual void prepare(const LinearParams& p, DType element, void* stream) = 0;
  // Both in one launch, where fused_takes() and the scan is of WGMMA; bits are its own.
  virtual void prepare_and_scan(const LinearParams& p, DType element, void* stream) = 0;
  virtual void scan(const LinearParams& p, DType element, const ScanShape& shape, void* stream) = 0;
  // Of Pieces, by WGMMA: what each makes of a state, the states that they begin with, and their scans.
  virtual void piece_ends(const LinearParams& p, DType element, void* stream) = 0;
  virtual void join_pieces(const LinearParams& p, void* stream) = 0;
  virtual void piece_scan(const LinearParams& p, DType element, void* stream) = 0;
};

}  // namespace warpweave::linear
