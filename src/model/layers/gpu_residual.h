// The residual stream of a forward on a GPU: rows of f32 that every branch reads through a norm and adds to.
//
// A GEMM that ends a branch adds to the rows itself, or leaves partial sums that the next norm adds; a GEMM that
// begins one norms its rows itself where its kernel can. The norms of few rows ask for the next GEMM's weights
// ahead. Everything enqueues on the batch's stream and may be captured; one forward at a time.
#pragma once

#include <cstdint>
#include <optional>

#include "model/decoder_spec.h"
#include "model/layers/gpu_workspace.h"
#include "model/layers/on_gpu.h"
#include "ops/cuda/experts.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/lora.h"

namespace warpweave {

// Prefill GEMMs run over a multiple of this many rows, so that few shapes exist for which
// algorithms must be chosen; the rows past the end are scratch.
inline constexpr int64_t kGemmRows = 64;
inline int64_t round_up_rows(int64_t rows) { return (rows + kGemmRows - 1) / kGemmRows * kGemmRows; }

class GpuResidual {
 public:
  // `gemm` outlives this.
  GpuResidual(int64_t hidden_size, const NormSpec& norm, DType dtype, gpu::GpuGemm& gemm)
      : hidden_size_(hidden_size), norm_(norm), dtype_(dtype), gemm_(gemm) {}

  struct Limits {
    int64_t tokens = 0;             // rows of a forward, and those that keep() leaves: of round_up_rows()
    int64_t kept_rows = 0;
    int64_t widest_gemm = 0;     // columns of a GEMM that may leave partial sums
    bool branch_norms = false;      // add() may have an out_norm
    bool exact_copies = false;      // normed() may have an exact copy
    bool parallel = false;          // fork() may be called
    // begin() may be called, and who reads the rows behind the last layer adds no experts' sums.
    bool draft_head = false;
    bool fp8_blocks = false;        // some weights are in 8 bits with scales of blocks
    const gpu::LoraModel* adapters = nullptr;  // outlives this; null: none are served
    int max_adapters = 0;           // of the rows of a forward
  };
  void reserve(const Limits& limits, GpuWorkspace& workspace);

  // The rows of a forward, whose values the caller sets, or begin() has left.
  void start(const ForwardBatch& batch);
  // Has the next start() begin with `rows` rows linear(input).
  Status begin(const gpu::GpuLinear& linear, const void* input, int64_t rows, gpu::Stream stream);

  int64_t rows() const { return rows_; }
  // How many rows a GEMM may run over, padding included.
  int64_t gemm_rows() const;
  int64_t hidden_size() const { return hidden_size_; }
  const NormSpec& norm_spec() const { return norm_; }
  DType dtype() const { return dtype_; }        // of activations other than the stream
  float* first_rows() { return x_[0]; }         // where start() begins: [tokens, hidden]
  float* data() { return x_[current_]; }        // [rows, hidden]; without the sums that are outstanding
  const gpu::PartialSums& outstanding() const { return pending_; }  // but for experts'
  bool has_partials() const { return pending_.data != nullptr || experts_.results != nullptr; }
  void* h() { return h_; }                      // [rows, hidden] of the last normed()
  const float* h_f32() const { return h_f32_; }
  void* stream() const { return stream_; }
  gpu::GpuGemm& gemm() { return gemm_; }

  // What a small kernel of a step with few rows prefetches for the GEMM that follows it.
  gpu::WeightPrefetch ahead(const gpu::GpuLinear& next) const;
  // As ResidualStream's: until join() branches read the rows as they are now.
  void fork();
  void join() { forked_ = false; }
  // h = the normed rows, or the rows as they are where the norm has no weight.
  void normed(const GpuRowNorm& norm, const gpu::WeightPrefetch& prefetch, bool exact_copy = false);
  // A GEMM of the normed rows, in place of call.x. `place`: which GEMM of the layers it is, where adapters may
  // change it: what they make of the rows then joins it.
  Status run_normed(const GpuRowNorm& norm, gpu::GemmCall call, std::optional<LoraPlace> place = std::nullopt);
  // For a mixer that reads other rows, too: as run_normed() where none were brought, or else a GEMM of [those | the
  // normed rows].
  Status run_normed_beside(const GpuRowNorm& norm, gpu::GemmCall call, std::optional<LoraPlace> place = std::nullopt);
  // Until the next call: [tokens, 2 * hidden] of dtype(), whose left halves hold those rows, normed; null: none. The
  // right halves are written here. Outlives the forward.
  void bring_beside(void* rows) { beside_ = rows; }
  // out = scale * the rows as they are now, with the sums that are outstanding.
  void keep_rows_of_layer(void* out, int64_t out_stride, float scale);
  // Has the GEMM leave partial sums, if it can. Valid until the next call.
  gpu::PartialSums leave_partials(gpu::GemmCall& call);
  // x += linear(input), through the branch's own norm where out_norm is not empty. `place` as above.
  Status add(const gpu::GpuLinear& linear, const void* input, const GpuVector& out_norm,
             std::optional<LoraPlace> place = std::nullopt);
  // x += the sums of a layer's experts; the next norm adds them where it can.
  void add_experts(const gpu::ExpertSums& sums);
  // Whether rows have adapters: no norm is fused with a GEMM then.
  bool adapting() const { return lora_tiles_.count > 0; }
  // Whether the GEMM's kernel adds what adapters make of its input before anything that is fused with it.
  bool joins_adapters(const gpu::GemmCall& call, LoraPlace place) const;
  // Keeps only batch.logits_rows. False: these are all rows, in their places, and nothing was done.
  bool keep(const ForwardBatch& batch);

 private:
  gpu::RowCodes codes_for(const GpuRowNorm& norm, const gpu::GemmCall& call) const;
  void normed_codes(const GpuRowNorm& norm, const gpu::RowCodes& to);
  Status run_adapted(const gpu::GemmCall& call, std::optional<LoraPlace> place);
  void settle_experts();
  bool norms_add_sums() const;
  float* branch_input() const { return forked_ ? held_[current_] : x_[current_]; }

  int64_t hidden_size_;
  NormSpec norm_;
  DType dtype_;
  gpu::GpuGemm& gemm_;

  // Twice, so that rows can be picked from one into the other.
  float* x_[2] = {};                // [tokens, hidden]
  float* held_[2] = {};             // the same, since fork()
  int current_ = 0;
  void* h_ = nullptr;               // [tokens, hidden]
  float* h_f32_ = nullptr;
  float* branch_ = nullptr;         // [tokens, hidden]
  float* partials_ = nullptr;       // sums that the next kernel adds up, of one GEMM at a time
  gpu::PartialSums pending_;        // of x, which the next norm adds
  gpu::PartialSums begun_;          // what is outstanding at the next start()
  gpu::ExpertSums experts_;         // of x, which the next norm adds
  const gpu::LoraModel* adapters_ = nullptr;
  float* lora_sums_ = nullptr;      // of one GEMM at a time
  float* lora_addend_ = nullptr;    // [places, widest of the GEMMs that adapters change]
  bool fp8_blocks_ = false;
  bool parallel_ = false;
  bool draft_head_ = false;
  bool forked_ = false;
  void* beside_ = nullptr;

  int64_t rows_ = 0;
  void* stream_ = nullptr;
  bool decoding_ = false;           // this forward is a decode step
  LoraTileArray lora_tiles_;        // of the rows that are left
};

}  // namespace warpweave
