// The residual stream of a forward on the host: rows of f32 that every branch reads through a norm and adds to.
// Grows with the largest batch; otherwise no allocation. One forward at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/threads.h"
#include "model/decoder_spec.h"
#include "model/layers/on_host.h"
#include "ops/linear.h"
#include "ops/lora.h"

namespace warpweave {

class ResidualStream {
 public:
  ResidualStream(int hidden_size, const NormSpec& norm) : hidden_size_(hidden_size), norm_(norm) {}

  // Room for `rows`, whose values the caller sets; the threads that compute until the next start.
  void start(int64_t rows, ThreadTeam& team);
  // The threads of what follows a forward (its logits).
  void use(ThreadTeam& team) { team_ = &team; }

  int64_t rows() const { return rows_; }
  int64_t hidden_size() const { return hidden_size_; }
  const NormSpec& norm_spec() const { return norm_; }
  float* data() { return x_.data(); }           // [rows, hidden]
  ThreadTeam& team() { return *team_; }

  // Until join() normed() reads the rows as they are now, whatever is added to them.
  void fork();
  void join() { forked_ = false; }
  // The normed rows as `next` wants them, until the next call; as they are where the norm has no weight.
  LinearInput normed(const RowNorm& norm, const PackedLinear& next) { return normed(norm, next, 0, rows_); }
  LinearInput normed(const RowNorm& norm, const PackedLinear& next, int64_t first_row, int64_t rows);
  // For a mixer that reads other rows, too: [rows, 2 * hidden], those normed and then this stream's; as normed() where
  // none were brought.
  LinearInput normed_beside(const RowNorm& norm, const PackedLinear& next);
  // Until the next forward: rows [rows, hidden] and the norm that they are read through; null: none. Both outlive it.
  void bring_beside(const float* rows, const RowNorm& norm) {
    beside_ = rows;
    beside_norm_ = &norm;
  }
  // All rows normed: [rows, hidden].
  void normed_into(const RowNorm& norm, float* out);
  // The same of the rows [first, first + count) to `out`, [count, hidden] of f32 or bf16.
  struct Rows {
    int64_t first;
    int64_t count;
  };
  void norm_to(const RowNorm& norm, Rows rows, void* out, DType out_dtype);
  // The adapters of the rows; a forward starts them behind start().
  LoraRows& adapters() { return adapters_; }
  // What they add to a GEMM of `input` with `columns` columns.
  LinearAddend adapted(LoraPlace place, const LinearInput& input, int64_t columns) {
    return adapters_.addend(place.layer, place.site, input, columns, *team_);
  }
  // x += linear(input) with what adapters add, through the branch's own norm where out_norm is not empty.
  void add(const PackedLinear& linear, const LinearInput& input, const std::vector<float>& out_norm,
           const LinearAddend& adapted = {});
  // x = norm(x), where the norm has a weight.
  void renorm(const RowNorm& norm);
  // Only `rows`, which ascend, go on.
  void keep(std::span<const int32_t> rows);

 private:
  void f32_to_bf16_rows(const float* x, int64_t rows, uint16_t* out);
  const float* branch_input() const { return (forked_ ? held_ : x_).data(); }

  int64_t hidden_size_;
  NormSpec norm_;
  ThreadTeam* team_ = nullptr;
  int64_t rows_ = 0;
  std::vector<float> x_;            // [rows, hidden]
  std::vector<float> h_;            // normed rows, f32 or bf16
  std::vector<float> branch_;       // [rows, hidden]; with branch norms only
  std::vector<float> held_;         // [rows, hidden] since fork()
  bool forked_ = false;
  const float* beside_ = nullptr;
  const RowNorm* beside_norm_ = nullptr;
  std::vector<float> both_;         // [rows, 2 * hidden]
  LoraRows adapters_;
};

// Moves `rows`, which ascend, to the front of `values`, whose rows have `cols` elements.
void keep_rows(float* values, int64_t cols, std::span<const int32_t> rows);

}  // namespace warpweave
