// The tensors of one case: queries, KV pools, shuffled page tables, and the batch that names them.
// Everything a backend must not read is NaN: free pages, the tails of last pages, gaps between rows;
// page-table entries past a request's last page point nowhere.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention/backend.h"
#include "case.h"

namespace warpweave::conformance {

// Anonymous memory that costs only what is touched, so that pages can lie far apart.
class SparseMemory {
 public:
  explicit SparseMemory(size_t bytes);
  ~SparseMemory();
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  char* data() const { return data_; }

 private:
  char* data_;
  size_t bytes_;
};

struct Output {
  std::vector<float> out;  // [tokens, heads, v_head_dim], dense
  std::vector<float> lse;  // [tokens, heads]
};

// A part of the problem to run: these query rows of these requests.
struct Slice {
  int request = 0;
  int q_begin = 0;   // rows [q_begin, q_end) of the request, which then sees q_end - q_len more tokens
  int q_end = 0;
};

class Problem {
 public:
  Problem(const Case& c, KvFormat kv_format, uint64_t seed, int page_size);

  // The whole case, or parts of it as one batch. Rows of the output stand in the order of `slices`.
  Output run(AttentionBackend& backend) const;
  Output run(AttentionBackend& backend, const std::vector<Slice>& slices, bool decode) const;

  std::vector<Slice> all() const;
  const Case& shape() const { return case_; }
  KvFormat kv_format() const { return kv_format_; }
  const float* query(int request, int row, int head) const;
  const float* sinks() const { return case_.sinks ? sinks_.data() : nullptr; }
  float scale() const { return scale_; }
  // The value a backend reads for K or V (already rounded to the pool's format).
  float k_value(int request, int kv, int head, int i) const;
  float v_value(int request, int kv, int head, int i) const;

 private:
  struct Pool {
    std::unique_ptr<SparseMemory> memory;
    KvPoolView view;
  };

  void place_pages(uint64_t seed);
  Pool make_pool(int dim) const;
  void fill(uint64_t seed);
  int64_t offset_of(const KvPoolView& view, int request, int kv, int head) const;

  Case case_;
  KvFormat kv_format_;
  int page_size_;
  float scale_;
  std::vector<float> sinks_;
  std::vector<std::vector<float>> queries_;        // per request [q_len, heads, head_dim + gap]
  std::vector<int32_t> page_table_;
  int page_table_stride_ = 0;
  int num_pages_ = 0;
  Pool k_, v_;
};

}  // namespace warpweave::conformance
