// wgmma on e4m3 (sm_90a): d[64 x N] (+)= a[64 x 32] * b[32 x N], float32 accumulation, issued by a
// warpgroup. Made by tools/generate_wgmma.py. Operand a is a K-major shared-memory descriptor (ss) or four
// registers (rs); b is a K-major descriptor, as fp8 has no other. `accumulate` 0: d = a*b.
#pragma once

#include "device/cuda/wgmma.h"

namespace warpweave::ptx {

// The upper half of the descriptor of a tile of 128-byte rows in the 128-byte swizzle, or of 64-byte
// rows in the 64-byte one; the lower half is wgmma_descriptor's.
template <int kRowBytes>
inline constexpr u32 kWgmmaRows = kRowBytes == 128 ? 0x40000040u : 0x80000020u;

template <int kColumns>
struct WgmmaE4m3;

template <>
struct WgmmaE4m3<64> {
  template <int kRowBytes>
  static WW_DEVICE void ss(float (&d)[32], u32 a, u32 b, int accumulate) {
    asm volatile(
        "{.reg .pred p; .reg .b64 da, db; setp.ne.b32 p, %34, 0; mov.b64 da, {%32, %35}; mov."
        "b64 db, {%33, %35}; wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {%0, %1, %2"
        ", %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20,"
        " %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, da, db, p, 1, 1;}"
        :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "r"(a), "r"(b), "r"(accumulate), "n"(kWgmmaRows<kRowBytes>));
  }
  template <int kRowBytes>
  static WW_DEVICE void rs(float (&d)[32], const u32 (&a)[4], u32 b, int accumulate) {
    asm volatile(
        "{.reg .pred p; .reg .b64 da, db; setp.ne.b32 p, %37, 0; mov.b64 db, {%36, %38}; wgmm"
        "a.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7, %8"
        ", %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25"
        ", %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, db, p, 1, 1;}"
        :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(accumulate), "n"(kWgmmaRows<kRowBytes>));
  }
};

template <>
struct WgmmaE4m3<128> {
  template <int kRowBytes>
  static WW_DEVICE void ss(float (&d)[64], u32 a, u32 b, int accumulate) {
    asm volatile(
        "{.reg .pred p; .reg .b64 da, db; setp.ne.b32 p, %66, 0; mov.b64 da, {%64, %67}; mov."
        "b64 db, {%65, %67}; wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {%0, %1, %"
        "2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20"
        ", %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %3"
        "7, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %"
        "54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, da, db, p, 1, 1;}"
        :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
        "+f"(d[63])
        : "r"(a), "r"(b), "r"(accumulate), "n"(kWgmmaRows<kRowBytes>));
  }
  template <int kRowBytes>
  static WW_DEVICE void rs(float (&d)[64], const u32 (&a)[4], u32 b, int accumulate) {
    asm volatile(
        "{.reg .pred p; .reg .b64 da, db; setp.ne.b32 p, %69, 0; mov.b64 db, {%68, %70}; wgmm"
        "a.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7, %"
        "8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %2"
        "5, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %"
        "42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "
        "%59, %60, %61, %62, %63}, {%64, %65, %66, %67}, db, p, 1, 1;}"
        :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
        "+f"(d[63])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(accumulate), "n"(kWgmmaRows<kRowBytes>));
  }
};

template <>
struct WgmmaE4m3<8> {
  template <int kRowBytes>
  static WW_DEVICE void ss(float (&d)[4], u32 a, u32 b, int accumulate) {
    asm volatile(
        "{.reg .pred p; .reg .b64 da, db; setp.ne.b32 p, %6, 0; mov.b64 da, {%4, %7}; mov.b64"
        " db, {%5, %7}; wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0, %1, %2, %3},"
        " da, db, p, 1, 1;}"
        :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a), "r"(b), "r"(accumulate), "n"(kWgmmaRows<kRowBytes>));
  }
};

template <>
struct WgmmaE4m3<16> {
  template <int kRowBytes>
  static WW_DEVICE void ss(float (&d)[8], u32 a, u32 b, int accumulate) {
    asm volatile(
        "{.reg .pred p; .reg .b64 da, db; setp.ne.b32 p, %10, 0; mov.b64 da, {%8, %11}; mov.b"
        "64 db, {%9, %11}; wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {%0, %1, %2, "
        "%3, %4, %5, %6, %7}, da, db, p, 1, 1;}"
        :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7])
        : "r"(a), "r"(b), "r"(accumulate), "n"(kWgmmaRows<kRowBytes>));
  }
};

template <>
struct WgmmaE4m3<24> {
  template <int kRowBytes>
  static WW_DEVICE void ss(float (&d)[12], u32 a, u32 b, int accumulate) {
    asm volatile(
        "{.reg .pred p; .reg .b64 da, db; setp.ne.b32 p, %14, 0; mov.b64 da, {%12, %15}; mov."
        "b64 db, {%13, %15}; wgmma.mma_async.sync.aligned.m64n24k32.f32.e4m3.e4m3 {%0, %1, %2"
        ", %3, %4, %5, %6, %7, %8, %9, %10, %11}, da, db, p, 1, 1;}"
        :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
        : "r"(a), "r"(b), "r"(accumulate), "n"(kWgmmaRows<kRowBytes>));
  }
};

template <>
struct WgmmaE4m3<32> {
  template <int kRowBytes>
  static WW_DEVICE void ss(float (&d)[16], u32 a, u32 b, int accumulate) {
    asm volatile(
        "{.reg .pred p; .reg .b64 da, db; setp.ne.b32 p, %18, 0; mov.b64 da, {%16, %19}; mov."
        "b64 db, {%17, %19}; wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {%0, %1, %2"
        ", %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, da, db, p, 1, 1;}"
        :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15])
        : "r"(a), "r"(b), "r"(accumulate), "n"(kWgmmaRows<kRowBytes>));
  }
};

template <>
struct WgmmaE4m3<48> {
  template <int kRowBytes>
  static WW_DEVICE void ss(float (&d)[24], u32 a, u32 b, int accumulate) {
    asm volatile(
        "{.reg .pred p; .reg .b64 da, db; setp.ne.b32 p, %26, 0; mov.b64 da, {%24, %27}; mov."
        "b64 db, {%25, %27}; wgmma.mma_async.sync.aligned.m64n48k32.f32.e4m3.e4m3 {%0, %1, %2"
        ", %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20,"
        " %21, %22, %23}, da, db, p, 1, 1;}"
        :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
        : "r"(a), "r"(b), "r"(accumulate), "n"(kWgmmaRows<kRowBytes>));
  }
};

template <>
struct WgmmaE4m3<56> {
  template <int kRowBytes>
  static WW_DEVICE void ss(float (&d)[28], u32 a, u32 b, int accumulate) {
    asm volatile(
        "{.reg .pred p; .reg .b64 da, db; setp.ne.b32 p, %30, 0; mov.b64 da, {%28, %31}; mov."
        "b64 db, {%29, %31}; wgmma.mma_async.sync.aligned.m64n56k32.f32.e4m3.e4m3 {%0, %1, %2"
        ", %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20,"
        " %21, %22, %23, %24, %25, %26, %27}, da, db, p, 1, 1;}"
        :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27])
        : "r"(a), "r"(b), "r"(accumulate), "n"(kWgmmaRows<kRowBytes>));
  }
};

template <>
struct WgmmaE4m3<96> {
  template <int kRowBytes>
  static WW_DEVICE void ss(float (&d)[48], u32 a, u32 b, int accumulate) {
    asm volatile(
        "{.reg .pred p; .reg .b64 da, db; setp.ne.b32 p, %50, 0; mov.b64 da, {%48, %51}; mov."
        "b64 db, {%49, %51}; wgmma.mma_async.sync.aligned.m64n96k32.f32.e4m3.e4m3 {%0, %1, %2"
        ", %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20,"
        " %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37"
        ", %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, da, db, p, 1, 1;}"
        :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
        : "r"(a), "r"(b), "r"(accumulate), "n"(kWgmmaRows<kRowBytes>));
  }
};

}  // namespace warpweave::ptx
