// The likeliest column of each row of y = x * W^T on the GPU, for weights in e4m3 with scales of rows, as those of a
// draft model's head, and 17 to 64 rows of inputs rounded to e4m3 (sm_90). y is not written: each part of it leaves what
// a row has there, and whoever wants the choice puts the parts together. The values are stream_gemm's, bit for bit.
#pragma once

#include <cstdint>

#include "ops/cuda/gpu_ops.h"

namespace warpweave::gpu {

struct GemmCall;

// What counts in place of a value that is no number, or less.
inline constexpr float kLeastChoice = -1e30f;

// Of some columns of a row: the likeliest (top_seen.cuh), and the log of the sum of their exponentials.
struct TopPart {
  unsigned long long key = 0;  // 0: no columns
  float log_sum = 0;
};

inline constexpr int kChoiceGemmRows = 64;

// Of the calls that stream_gemm takes, x in e4m3.
bool choice_gemm_takes(const GemmCall& call);

// Parts of a row.
int choice_gemm_parts();

// parts [rows, choice_gemm_parts()]; y of the call is not used.
void choice_gemm(const GemmCall& call, TopPart* parts, Stream stream);

}  // namespace warpweave::gpu
