// GDN and KDA on CPUs: what --linear-attn-backend cpu is, the default there.
//
// Tiers: AVX-512 with AMX's tiles for the products of prompts, AVX-512, AVX2 and portable, chosen at run time, the
// first only where WARPWEAVE_CPU_TIER names it. A request's bits do not depend on the batch or the number of threads;
// they do on how its prompt is cut into calls.
// Working memory is LinearAttnCall::workspace, a share per thread.
#pragma once

#include <memory>
#include <vector>

#include "base/threads.h"
#include "device/cpu/cpu_info.h"
#include "linear/dispatch.h"
#include "linear/linear_attn.h"

namespace warpweave {

struct LinearCpuKernels;
// What a tier's files provide (kernels.h).
const LinearCpuKernels& cpu_linear_kernels(CpuTier tier);
// The tiers that have kernels of their own, lowest first.
inline constexpr CpuTier kCpuLinearTiers[] = {CpuTier::scalar, CpuTier::avx2, CpuTier::avx512, CpuTier::amx_bf16};

// The fastest tier that this CPU has, or the one that is asked for.
CpuTier cpu_linear_tier();

// `team` is not owned and outlives the kernel; a tier that the CPU lacks must not be asked for.
std::unique_ptr<LinearAttnKernelBase> make_cpu_linear_attn(ThreadTeam& team, CpuTier tier = cpu_linear_tier());
// `kernels` is not owned either.
std::unique_ptr<LinearAttnKernelBase> make_cpu_linear_attn(ThreadTeam& team, const LinearCpuKernels& kernels);

// The name for a dispatcher. All names that run on CPUs: linear/host_backends.h.
std::vector<LinearAttnBackend> cpu_linear_attn_backends(ThreadTeam& team);

}  // namespace warpweave
