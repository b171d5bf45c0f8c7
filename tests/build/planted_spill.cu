// 64 sums that live through a loop: compiled for few registers, ptxas has to spill.
extern "C" __global__ void planted_spill(const float* in, float* out, int count) {
  float sums[64] = {};
  for (int i = 0; i < count; ++i) {
#pragma unroll
    for (int j = 0; j < 64; ++j) sums[j] += in[i * 64 + j] * in[i + j];
  }
#pragma unroll
  for (int j = 0; j < 64; ++j) out[threadIdx.x * 64 + j] = sums[j];
}
