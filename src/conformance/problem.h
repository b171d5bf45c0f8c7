// The tensors of one case: queries, KV pools, shuffled page tables, and the batch that names them.
// Everything a backend must not read is NaN: free pages, the tails of last pages, gaps between rows
// (in fp4 pools, whose values cannot be, their block scales are); page-table entries past a request's
// last page point nowhere, and the mask bits of rows that do not exist are set.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
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
  size_t bytes() const { return bytes_; }

 private:
  char* data_;
  size_t bytes_;
};

struct Output {
  std::vector<float> out;  // [tokens, heads, v_head_dim], dense
  std::vector<float> lse;  // [tokens, heads]
  std::string error;       // not empty: the backend failed, or wrote where it must not
};

// A part of the problem to run: these query rows of these requests.
struct Slice {
  int request = 0;
  int q_begin = 0;   // rows [q_begin, q_end) of the request, which then sees q_end - q_len more tokens
  int q_end = 0;
};

// One forward in host memory: the batch and the call that a backend gets, with what they point to.
// A device's runner copies the arrays there, lets the backend write on the device, and copies back
// into `out` and `lse`. Move only: batch and call point into the vectors.
struct Forward {
  ForwardBatch batch;
  AttentionCall call;                    // its q, out and lse are the arrays below
  std::vector<int32_t> q_indptr, kv_lens, kv_slots, positions, page_table;
  std::vector<uint32_t> tree_mask;
  std::vector<float> q, q_succ, q_inter, out, lse;
  std::unique_ptr<DualChunkQueries> dual_chunk;  // of call; null in ordinary cases
  // What may be read of a pool; K and V are of different sizes where their head dims differ.
  struct PoolBytes {
    size_t data = 0, block_scales = 0;
  };
  PoolBytes k_bytes, v_bytes;

  Forward() = default;
  Forward(Forward&&) = default;
  Forward& operator=(Forward&&) = default;
};

// The calls of a case's problems without memory: sizes and strides are right, all pointers are null.
AttentionCall call_shape(const Case& c, KvFormat kv_format, int page_size);

class Problem {
 public:
  Problem(const Case& c, KvFormat kv_format, uint64_t seed, int page_size);

  // Every row of every head of the queries, all forms, as `round` leaves it; not the rows that decode beside prefill.
  void round_queries(void (*round)(std::span<float> row));

  // The whole case, or parts of it as one batch. Rows of the output stand in the order of `slices`.
  Output run(AttentionBackend& backend) const;
  Output run(AttentionBackend& backend, const std::vector<Slice>& slices, bool decode) const;

  // The same in two steps, for backends that do not read host memory.
  Forward prepare(const std::vector<Slice>& slices, bool decode) const;
  Output collect(const Forward& forward) const;

  std::vector<Slice> all() const;
  const Case& shape() const { return case_; }
  KvFormat kv_format() const { return kv_format_; }
  int page_size() const { return page_size_; }
  // Another number for every problem of the process, so that what was copied of one is not taken for another's.
  uint64_t id() const { return id_; }
  const float* query(int request, int row, int head) const;
  // The form of the query that meets the key at `kv`: under dual chunk attention they differ.
  const float* query_for(int request, int row, int head, int kv) const;
  const float* sinks() const { return case_.sinks ? sinks_.data() : nullptr; }
  float scale() const { return scale_; }
  // The values a backend reads for K or V of one token and head, rounded to the pool's format and
  // scaled back.
  void read_k(int request, int kv, int head, float* out) const;
  void read_v(int request, int kv, int head, float* out) const;
  // Whether query row `row` of a request sees its KV position `kv`.
  bool sees(int request, int row, int kv) const;
  // What the pool's format cost before attention began: the root mean square difference of all K and
  // V from the values before rounding, relative to the root mean square of those. 0 for f32.
  double quantisation_error() const { return quantisation_error_; }

 private:
  struct Pool {
    std::unique_ptr<SparseMemory> memory;
    std::unique_ptr<SparseMemory> block_scales;  // fp4 only
    std::vector<float> head_scales;              // fp8 and fp4 only
    KvPoolView view;
  };

  // A draft tree: which rows of its request a row sees, and how deep it stands below the prefix.
  struct DraftTree {
    std::vector<std::vector<bool>> sees;  // [q_len, q_len]
    std::vector<int> depth;               // [q_len]
  };

  struct Token {
    int request, kv;
  };

  // Sums over values: of squared rounding errors and of squares.
  struct Rounding {
    double error = 0, square = 0;
    void add(const Rounding& other) {
      error += other.error;
      square += other.square;
    }
  };

  void place_pages(uint64_t seed);
  Pool make_pool(int dim, uint64_t seed) const;
  void poison(Pool& pool) const;
  void fill(uint64_t seed);
  Rounding fill_pool(const Pool& pool, int dim, const std::vector<float>& values, Token token);
  void plant_trees(uint64_t seed);
  void make_query_forms(uint64_t seed);
  int position_of(int request, int row) const;
  void append_mask(int request, int row, std::vector<uint32_t>& mask) const;
  void fill_call(Forward& forward) const;
  const KvPoolView& v_view() const { return case_.latent ? k_.view : v_.view; }
  int64_t offset_of(const KvPoolView& view, int request, int kv, int head) const;

  Case case_;
  KvFormat kv_format_;
  int page_size_;
  float scale_;
  std::vector<float> sinks_;
  std::vector<std::vector<float>> queries_;        // per request [q_len, heads, head_dim + gap]
  std::vector<std::vector<float>> succ_queries_, inter_queries_;  // likewise; dual chunk cases only
  std::vector<int32_t> page_table_;
  int page_table_stride_ = 0;
  int num_pages_ = 0;
  Pool k_, v_;                                     // v_ without memory: latent attention, V is part of K
  std::vector<DraftTree> trees_;                   // per request, or empty
  int tree_mask_words_ = 0;
  double quantisation_error_ = 0;
  uint64_t id_ = 0;
};

}  // namespace warpweave::conformance
