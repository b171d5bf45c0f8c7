#include "attention/cuda/mla/mla_gather.h"

#include "attention/cuda/mla/mla_fp4.cuh"
#include "attention/cuda/mla/mla_run.cuh"

namespace warpweave::cuda {
namespace {

constexpr int kWarps = 8;

// 16 numbers of a token: 16 codes, or 32 bytes as they are, to 32 bytes.
template <class E, MlaFormat kFormat>
struct Piece {
  static WW_DEVICE void copy(const char* token, int piece, float tensor_scale, uint4* to) {
    if constexpr (kFormat == MlaFormat::same16) {
      const uint4* from = reinterpret_cast<const uint4*>(token) + piece * 2;
      to[0] = __ldg(from);
      to[1] = __ldg(from + 1);
    } else if (mla_is_packed(kFormat) && piece >= kMlaLatentDim / 16) {
      const uint4* from =
          reinterpret_cast<const uint4*>(token + mla_rope_at(kFormat)) + (piece - kMlaLatentDim / 16) * 2;
      to[0] = __ldg(from);
      to[1] = __ldg(from + 1);
    } else if constexpr (kFormat == MlaFormat::fp4) {
      const uint2 codes = __ldg(reinterpret_cast<const uint2*>(token) + piece);
      const u32 scale = __ldg(reinterpret_cast<const uint8_t*>(token) + kFp4MlaScaleAt + piece);
      const MlaFp4Factors by(ptx::F16::low(halves_of_e4m3<false>(scale)));
      u32 pairs[2][4];
      MlaFp4::widen(codes.x, by, pairs[0]);
      MlaFp4::widen(codes.y, by, pairs[1]);
      to[0] = make_uint4(pairs[0][0], pairs[0][1], pairs[0][2], pairs[0][3]);
      to[1] = make_uint4(pairs[1][0], pairs[1][1], pairs[1][2], pairs[1][3]);
    } else {
      float scale = tensor_scale;
      if constexpr (kFormat == MlaFormat::ds_mla) {
        scale = *reinterpret_cast<const float*>(token + kMlaLatentDim + piece / (kMlaScaleDim / 16) * 4);
      }
      const uint4 codes = __ldg(reinterpret_cast<const uint4*>(token) + piece);
      uint4 out[2];
      widen(codes.x, scale, out[0].x, out[0].y);
      widen(codes.y, scale, out[0].z, out[0].w);
      widen(codes.z, scale, out[1].x, out[1].y);
      widen(codes.w, scale, out[1].z, out[1].w);
      to[0] = out[0];
      to[1] = out[1];
    }
  }

  // Through float32, since a tensor's scale may be any number.
  static WW_DEVICE void widen(u32 codes, float scale, u32& low, u32& high) {
    using Widen = KvFragment<E, KvStorage::e4m3>;
    const float factor = scale * __uint_as_float((Widen::kWidenedScaleLog2 + 127) << 23);
    const u32 x = __byte_perm(codes, 0, 0x3120);
    const u32 a = Widen::widen_low(x), b = Widen::widen_high(x);
    low = E::pack(E::low(a) * factor, E::high(a) * factor);
    high = E::pack(E::low(b) * factor, E::high(b) * factor);
  }
};

// A warp a row.
template <class E, MlaFormat kFormat>
__global__ void __launch_bounds__(32 * kWarps) mla_gather(const __grid_constant__ MlaParams p, MlaGather gather) {
  const int row = blockIdx.x * kWarps + threadIdx.x / 32;
  if (row >= gather.indptr[p.num_requests]) return;
  int low = 0, high = p.num_requests - 1;  // the last request that begins at the row or before it
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (gather.indptr[middle] <= row) low = middle; else high = middle - 1;
  }
  const int index = row - gather.indptr[low];
  if (gather.counts != nullptr && index >= gather.counts[low]) return;
  const char* token = mla_token(p, split_page_row(p, low), gather.begins[low] + index);
  constexpr int kLatentPieces = kMlaLatentDim / 16;
  const bool apart = gather.rope != nullptr;
  uint4* to = reinterpret_cast<uint4*>(static_cast<char*>(gather.rows) +
                                       static_cast<int64_t>(row) * (apart ? kMlaLatentDim : kMlaDim) * 2);
  uint4* rope = to + kLatentPieces * 2;
  if (apart)
    rope = reinterpret_cast<uint4*>(static_cast<char*>(gather.rope) + static_cast<int64_t>(row) * kMlaRopeDim * 2);
  for (int piece = threadIdx.x % 32; piece < kMlaDim / 16; piece += 32) {
    uint4* const at = piece < kLatentPieces ? to + piece * 2 : rope + (piece - kLatentPieces) * 2;
    Piece<E, kFormat>::copy(token, piece, mla_kv_scale<kFormat>(p), at);
  }
}

using Kernel = void (*)(MlaParams, MlaGather);

template <class E>
Kernel kernel_of(MlaFormat format) {
  return format == MlaFormat::same16 ? mla_gather<E, MlaFormat::same16> : mla_gather<E, MlaFormat::e4m3>;
}

Kernel kernel_of(MlaElement element, MlaFormat format) {
  if (!mla_is_packed(format)) {
    return element == MlaElement::bf16 ? kernel_of<ptx::Bf16>(format) : kernel_of<ptx::F16>(format);
  }
  if (element == MlaElement::f16) return nullptr;
  return format == MlaFormat::ds_mla ? mla_gather<ptx::Bf16, MlaFormat::ds_mla>
                                     : mla_gather<ptx::Bf16, MlaFormat::fp4>;
}

}  // namespace

cudaError_t launch_mla_gather(MlaElement element, MlaFormat format, const MlaParams& p, const MlaGather& gather,
                              cudaStream_t stream) {
  const Kernel kernel = kernel_of(element, format);
  if (kernel == nullptr) return cudaErrorNotSupported;
  if (gather.max_tokens == 0) return cudaSuccess;
  const int ctas = (gather.max_tokens + kWarps - 1) / kWarps;
  kernel<<<ctas, 32 * kWarps, 0, stream>>>(p, gather);
  return cudaPeekAtLastError();
}

}  // namespace warpweave::cuda
