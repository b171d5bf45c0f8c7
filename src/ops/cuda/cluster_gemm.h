// y = x * W^T on the GPU for 17 to 256 rows whose sums nobody adds up behind it (sm_90): first GEMMs of attention and of linear
// attention, routers, and with many rows what is added to the residual stream.
//
// Where tiles are fewer than the SMs, the CTAs of a cluster share a tile's depth and send each other their sums. A row's bits
// do not depend on the other rows of a call, but on the number of rows by the plan.
#pragma once

#include <vector>

#include "ops/cuda/gpu_ops.h"

namespace warpweave::gpu {

struct GemmCall;

inline constexpr int kClusterGemmRows = 256;

// How a GEMM is cut.
struct ClusterPlan {
  int tile = 128;      // weight rows of a CTA: 64 or 128
  int rows = 64;       // of x and y, of a CTA: 64 or 128
  int splits = 1;      // CTAs that share a tile's depth, a cluster: 1, 2 or 4; with 128 of both 1
  bool operator==(const ClusterPlan&) const = default;
};

// Whether cluster_gemm computes this call.
bool cluster_gemm_takes(const GemmCall& call);

// Whether it should: from times of models with 2048 columns of hidden rows, on an H200.
bool cluster_gemm_pays(const GemmCall& call);
// The same of a call whose result is added to what stands there, in place of partial sums that a norm would add.
bool cluster_gemm_pays_added(const GemmCall& call);

ClusterPlan cluster_plan(const GemmCall& call);

// Every plan there is for this call.
std::vector<ClusterPlan> all_cluster_plans(const GemmCall& call);

void cluster_gemm(const GemmCall& call, const ClusterPlan& plan, Stream stream);

}  // namespace warpweave::gpu
