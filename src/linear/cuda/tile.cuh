// Tiles of 16-bit elements in shared memory, as TMA's 128-byte swizzle lays them out and wgmma reads them: blocks
// of 64 columns, each of 64 rows of 128 bytes, whose 16-byte pieces stand at piece ^ (row % 8). Their fragments for mma.sync,
// and MMAs of a fragment with a tile by mma.sync or by wgmma.
//
// An MMA's accumulator d[4 * n + i] is that of mma.m16n8k16 for columns 8 n ..; a thread has rows lane / 4 and + 8 of its
// warp's 16 and columns 2 (lane % 4), + 1. `a`: the left operand, four registers for every 16 columns of it.
#pragma once

#include "device/cuda/ptx.h"
#include "device/cuda/wgmma_rows.h"

namespace warpweave::linear {

inline constexpr int kBlockBytes = 64 * 128;  // 64 rows of 64 columns

WW_DEVICE ptx::u32 piece_offset(int row, int piece) {
  return static_cast<ptx::u32>(piece / 8 * kBlockBytes + row * 128 + ((piece % 8) ^ (row % 8)) * 16);
}

// 64 rows of `columns` elements; rows from `rows` on and columns past them, up to kColumns, become zeros. kThreads
// threads take part, from a multiple of that on; commits nothing.
template <int kColumns, int kThreads, int kUnroll = 8>
WW_DEVICE void copy_tile(ptx::u32 tile, const void* from, int64_t row_stride, int rows, int columns) {
  constexpr int kWhole = kColumns % 128 == 0 || kColumns <= 128 ? kColumns : 64;  // what rows of threads can be
  if constexpr (kWhole < kColumns) {
#pragma unroll
    for (int first = 0; first < kColumns; first += kWhole) {
      const auto* const block = static_cast<const unsigned short*>(from) + (first < columns ? first : 0);
      copy_tile<kWhole, kThreads, kUnroll>(tile + piece_offset(0, first / 8), block, row_stride, rows, columns - first);
    }
    return;
  }
  constexpr int kPieces = kColumns / 8, kRows = kThreads / kPieces;  // of a pass
  const int piece = threadIdx.x % kPieces;
  int row = threadIdx.x % kThreads / kPieces;
  const auto* const first = static_cast<const unsigned short*>(from);
  const unsigned short* at = first + row * row_stride + piece * 8;
  const bool there = piece * 8 < columns;
#pragma unroll kUnroll
  for (int pass = 0; pass < 64 / kRows; ++pass) {
    const bool copies = there && row < rows;
    ptx::cp_async_16(tile + piece_offset(row, piece), copies ? at : first, copies ? 16 : 0);
    row += kRows;
    at += kRows * row_stride;
  }
}

WW_DEVICE void store_shared_16(ptx::u32 smem, const ptx::u32 (&w)[4]) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(smem), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory");
#else
  for (int i = 0; i < 4; ++i) ptx::store_shared_4(smem + 4 * i, w[i]);
#endif
}

// Left operand: 16 rows from `row`, columns 16 step ..
WW_DEVICE void load_left(ptx::u32 (&r)[4], ptx::u32 tile, int row, int step) {
  const int lane = threadIdx.x % 32;
  ptx::ldmatrix_x4(r, tile + piece_offset(row + lane % 16, 2 * step + lane / 16));
}
// Right operand, the tile transposed: its rows from `row`, 16 of them, are columns of the result. r[0], r[1]: the first eight.
WW_DEVICE void load_right_rows(ptx::u32 (&r)[4], ptx::u32 tile, int row, int step) {
  const int lane = threadIdx.x % 32;
  ptx::ldmatrix_x4(r, tile + piece_offset(row + lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2));
}
// Right operand as the tile stands: its rows from `row` are summed over, its columns 16 n .. are columns of the result.
WW_DEVICE void load_right_columns(ptx::u32 (&r)[4], ptx::u32 tile, int row, int n) {
  const int lane = threadIdx.x % 32;
  ptx::ldmatrix_x4_trans(r, tile + piece_offset(row + lane % 16, 2 * n + lane / 16));
}
// Columns 16 n .. of the tile's rows from `row`, transposed, as an accumulator has them: r[0], r[1]: the tile's columns lane / 4
// and + 8 of rows 2 (lane % 4) and + 1; r[2], r[3]: of the rows 8 further on.
WW_DEVICE void load_transposed(ptx::u32 (&r)[4], ptx::u32 tile, int row, int n) {
  const int lane = threadIdx.x % 32;
  ptx::ldmatrix_x4_trans(r, tile + piece_offset(row + lane % 8 + lane / 16 * 8, 2 * n + lane / 8 % 2));
}

// MMAs by mma.sync; each is done when the call returns.
template <class Element>
struct WarpMma {
  static constexpr bool kAsync = false;
  static WW_DEVICE void begin() {}
  static WW_DEVICE void commit() {}
  template <int N>
  static WW_DEVICE void wait() {}
  template <int N>
  static WW_DEVICE void settle(float (&)[N]) {}
  template <int N>
  static WW_DEVICE void settle(ptx::u32 (&)[N][4]) {}

  // d[16 x 64] = a[16 x 16 kSteps] tile^T, the tile's rows being the columns of d; kAdds: added to d. Of the steps of 16 columns
  // of a those from kFirst to kEnd.
  template <bool kAdds, int kFirst, int kEnd, int kSteps>
  static WW_DEVICE void by_some_rows(float (&d)[32], const ptx::u32 (&a)[kSteps][4], ptx::u32 tile) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      if (!kAdds) d[i] = 0;
    }
#pragma unroll
    for (int step = kFirst; step < kEnd; ++step) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        ptx::u32 b[4];
        load_right_rows(b, tile, 16 * n, step);
        mma(d, 2 * n, a[step], b);
      }
    }
  }
  template <bool kAdds, int kSteps>
  static WW_DEVICE void by_rows(float (&d)[32], const ptx::u32 (&a)[kSteps][4], ptx::u32 tile) {
    by_some_rows<kAdds, 0, kSteps>(d, a, tile);
  }
  // d[16 x kColumns] += a[16 x 64] tile
  template <int kColumns>
  static WW_DEVICE void by_columns(float (&d)[kColumns / 2], const ptx::u32 (&a)[4][4], ptx::u32 tile) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int n = 0; n < kColumns / 16; ++n) {
        ptx::u32 b[4];
        load_right_columns(b, tile, 16 * step, n);
        mma(d, 2 * n, a[step], b);
      }
    }
  }

 private:
  template <int N>
  static WW_DEVICE void mma(float (&d)[N], int tile, const ptx::u32 (&a)[4], const ptx::u32 (&b)[4]) {
    Element::mma(*reinterpret_cast<float(*)[4]>(&d[4 * tile]), a, b[0], b[1]);
    Element::mma(*reinterpret_cast<float(*)[4]>(&d[4 * tile + 4]), a, b[2], b[3]);
  }
};

// MMAs by wgmma, of a warpgroup whose warps have 16 rows each: begin(), MMAs, commit(); done after wait().
template <class Element>
struct WarpgroupMma {
  static constexpr bool kAsync = true;
  static WW_DEVICE void begin() { ptx::wgmma_fence(); }
  static WW_DEVICE void commit() { ptx::wgmma_commit(); }
  template <int N>
  static WW_DEVICE void wait() { ptx::wgmma_wait<N>(); }
  // The compiler reads d only after the wait before, and has written it before the MMAs that follow.
  template <int N>
  static WW_DEVICE void settle(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
#if defined(__CUDA_ARCH__)
      asm volatile("" : "+f"(d[i])::"memory");
#endif
    }
  }

  template <int N>
  static WW_DEVICE void settle(ptx::u32 (&a)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
#if defined(__CUDA_ARCH__)
      asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3])::"memory");
#endif
    }
  }

  // `d` holds numbers before, even where nothing is added to them.
  template <bool kAdds, int kFirst, int kEnd, int kSteps>
  static WW_DEVICE void by_some_rows(float (&d)[32], const ptx::u32 (&a)[kSteps][4], ptx::u32 tile) {
    const ptx::u32 descriptor = ptx::wgmma_descriptor(tile, 0);
#pragma unroll
    for (int step = kFirst; step < kEnd; ++step) {
      ptx::WgmmaRows<Element, 64>::rk(d, a[step], ptx::wgmma_advance(descriptor, step / 4 * kBlockBytes + step % 4 * 32),
                                       kAdds || step > kFirst);
    }
  }
  template <bool kAdds, int kSteps>
  static WW_DEVICE void by_rows(float (&d)[32], const ptx::u32 (&a)[kSteps][4], ptx::u32 tile) {
    by_some_rows<kAdds, 0, kSteps>(d, a, tile);
  }
  template <int kColumns>
  static WW_DEVICE void by_columns(float (&d)[kColumns / 2], const ptx::u32 (&a)[4][4], ptx::u32 tile) {
    const ptx::u32 descriptor = ptx::wgmma_descriptor(tile, kBlockBytes);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      ptx::Wgmma<Element, kColumns>::pv(d, a[step], ptx::wgmma_advance(descriptor, step * 16 * 128), 1);
    }
  }
};

}  // namespace warpweave::linear
