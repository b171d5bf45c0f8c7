// For tests and benchmarks of latent attention on a GPU: batches over paged pools in every format, with NaN in all
// memory that no token owns, and what attention over them is, in double precision.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <vector>

#include "attention/cuda/mla/mla_decode.h"
#include "device/cuda/memory.h"

namespace warpweave::cuda::testing {

inline constexpr MlaFormat kMlaFormats[] = {MlaFormat::same16, MlaFormat::e4m3, MlaFormat::ds_mla, MlaFormat::fp4};

struct MlaRequest {
  int q_len, kv_len;
};

struct MlaCase {
  std::vector<MlaRequest> requests;
  int num_heads = 16;
  int page_size = 64;
  MlaElement element = MlaElement::bf16;
  MlaFormat format = MlaFormat::same16;
  bool causal = true, tree = false;
  bool descending = false;  // scores fall by more than 100 from one KV tile to the next
  float query_factor = 1;   // a power of two that Q is multiplied by, and the scale of scores divided by
  unsigned seed = 1;

  std::string text() const;
};

// Mistakes that a kernel could make; `expected` with one is what it would give.
enum class MlaFault { none, rope_swapped, neighbours_scale, wrong_slice, merge_without_rescale, stale_tail };

struct MlaRows {
  std::vector<double> out;  // [rows][512]
  std::vector<double> lse;  // [rows]
};

class MlaProblem {
 public:
  explicit MlaProblem(const MlaCase& c);

  int num_rows() const { return q_indptr_.back() * case_.num_heads; }
  // On the device. Output and log-sum-exps are NaN until a launch.
  MlaParams params();
  MlaRows expected(MlaFault fault = MlaFault::none) const;
  MlaRows result() const;
  std::vector<uint32_t> result_bits() const;
  // The 576 numbers of a request's token, as a kernel is to see them.
  std::vector<double> latent(int request, int token_index) const {
    return token(slot_of(request, token_index), MlaFault::none);
  }
  float value_of(uint16_t bits) const;  // of the element type
  int64_t slot_of(int request, int token) const;  // in the pool

 private:
  void make_pages();
  void make_pool();
  void make_tree();
  uint16_t bits_of(float value) const;
  void store_token(int64_t slot, const std::vector<float>& values);
  // The 576 numbers as a kernel is to see them.
  std::vector<double> token(int64_t slot, MlaFault fault) const;
  void attend(int request, MlaFault fault, MlaRows& rows) const;
  bool sees(int request, int query, int token) const;

  MlaCase case_;
  std::vector<int32_t> q_indptr_, kv_lens_, table_;
  std::vector<uint32_t> tree_;
  int table_stride_ = 1, num_pages_ = 0;
  std::vector<uint16_t> q_;
  std::vector<uint8_t> pool_;
  float scale_, kv_scale_ = 1;
  std::vector<DeviceBuffer> memory_;
  DeviceBuffer out_, lse_;
};

// 1 - 2 x.y / (x.x + y.y)
double cosine_difference(const std::vector<double>& x, const std::vector<double>& y);

}  // namespace warpweave::cuda::testing
