// What one core of this machine can do at most, measured: register-only multiply-adds and plain
// reads. Called by every thread at once; x86-64 with AVX-512 (bf16 where noted), else 0.
#pragma once

#include <stddef.h>
#include <stdint.h>

// Each runs `iterations` times 12 independent instructions and returns their multiply-adds.
int64_t run_f32_fma(int64_t iterations);
int64_t run_bf16_dot(int64_t iterations);  // needs AVX512_BF16
// Sums `bytes` (a multiple of 512) of memory.
float read_memory(const void* data, size_t bytes);
