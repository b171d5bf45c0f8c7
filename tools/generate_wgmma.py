#!/usr/bin/env python3
"""Writes src/device/cuda/wgmma_*bf16.h, wgmma_*f16.h, wgmma_rows.h, wgmma_fp8.h and wgmma_fp8_wide.h: one wrapper per wgmma shape and operand form in use."""
SHAPES = (56, 64, 80, 96, 128, 192, 256)
SHAPES_ROWS = (64,)
SHAPES_WIDE = (8, 16, 24, 32, 48, 112, 144, 160, 176, 208, 224, 240)  # both operands from shared memory only
SHAPES_FP8 = (64, 128)
SHAPES_FP8_SS = (8, 16, 24, 32, 48, 56, 96)  # both operands from shared memory only
SHAPES_FP8_WIDE = (144, 160, 176, 192)  # the same
UPPER = "0x40000040"  # rows in groups of 8 stand 1024 bytes apart; 128-byte swizzle

HEAD = """// wgmma (wgmma.h) on {element}. Made by tools/generate_wgmma.py.
#pragma once

#include "device/cuda/wgmma_descriptor.h"

namespace warpweave::ptx {{
"""


HEAD_WIDE = """// More widths of wgmma (wgmma.h) on {element}, both operands from shared memory. Made by tools/generate_wgmma.py.
#pragma once

#include "device/cuda/wgmma_descriptor.h"

namespace warpweave::ptx {{
"""


HEAD_ROWS = """// wgmma (wgmma.h) with a in registers and b K-major. Made by tools/generate_wgmma.py.
#pragma once

#include "device/cuda/wgmma.h"

namespace warpweave::ptx {

template <class Element, int kColumns>
struct WgmmaRows;
"""


HEAD_FP8 = """// wgmma on e4m3 (sm_90a): d[64 x N] (+)= a[64 x 32] * b[32 x N], float32 accumulation, issued by a
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
"""


HEAD_FP8_WIDE = """// More widths of wgmma on e4m3 (wgmma_fp8.h), both operands from shared memory. Made by tools/generate_wgmma.py.
#pragma once

#include "device/cuda/wgmma_fp8.h"

namespace warpweave::ptx {
"""


def registers(first, count):
    return ", ".join(f"%{first + i}" for i in range(count))


def outputs(count):
    return ", ".join(f'"+f"(d[{i}])' for i in range(count))


def wrap(text, width=100):
    lines, line = [], "        "
    for word in text.split(" "):
        if len(line) + len(word) + 1 > width:
            lines.append(line.rstrip())
            line = "        "
        line += word + " "
    lines.append(line.rstrip())
    return "\n".join(lines)


def function(head, body, pred, count, inputs):
    text = "{.reg .pred p; .reg .b64 da, db; setp.ne.b32 p, %" + str(pred) + ", 0; " + body + "}"
    parts = [text[i:i + 84] for i in range(0, len(text), 84)]
    quoted = "\n".join(f'        "{part}"' for part in parts)
    return f"{head}\n    asm volatile(\n{quoted}\n        :\n{wrap(outputs(count))}\n        : {inputs});\n  }}"


def asm(element, n, form):
    count = n // 2
    kind = {"Bf16": "bf16", "F16": "f16"}[element]
    op = f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{kind}.{kind} "
    d = "{" + registers(0, count) + "}"
    if form == "qk":
        body = (f"mov.b64 da, {{%{count}, {UPPER}}}; mov.b64 db, {{%{count + 1}, {UPPER}}}; "
                f"{op}{d}, da, db, p, 1, 1, 0, 0;")
        pred, inputs = count + 2, '"r"(a), "r"(b), "r"(accumulate)'
        head = f"  static WW_DEVICE void qk(float (&d)[{count}], u32 a, u32 b, int accumulate) {{"
    else:
        a = "{" + registers(count, 4) + "}"
        transposed = 1 if form == "pv" else 0
        body = f"mov.b64 db, {{%{count + 4}, {UPPER}}}; {op}{d}, {a}, db, p, 1, 1, {transposed};"
        pred = count + 5
        inputs = '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(accumulate)'
        head = f"  static WW_DEVICE void {form}(float (&d)[{count}], const u32 (&a)[4], u32 b, int accumulate) {{"
    return function(head, body, pred, count, inputs)


def asm_fp8(n, form):
    count = n // 2
    op = f"wgmma.mma_async.sync.aligned.m64n{n}k32.f32.e4m3.e4m3 "
    d = "{" + registers(0, count) + "}"
    if form == "ss":
        body = f"mov.b64 da, {{%{count}, %{count + 3}}}; mov.b64 db, {{%{count + 1}, %{count + 3}}}; {op}{d}, da, db, p, 1, 1;"
        pred, inputs = count + 2, '"r"(a), "r"(b), "r"(accumulate), "n"(kWgmmaRows<kRowBytes>)'
        head = (f"  template <int kRowBytes>\n  static WW_DEVICE void ss(float (&d)[{count}], u32 a, u32 b, int accumulate) {{")
    else:
        a = "{" + registers(count, 4) + "}"
        body = f"mov.b64 db, {{%{count + 4}, %{count + 6}}}; {op}{d}, {a}, db, p, 1, 1;"
        pred = count + 5
        inputs = '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(accumulate), "n"(kWgmmaRows<kRowBytes>)'
        head = f"  template <int kRowBytes>\n  static WW_DEVICE void rs(float (&d)[{count}], const u32 (&a)[4], u32 b, int accumulate) {{"
    return function(head, body, pred, count, inputs)


def write(path, parts):
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(parts + ["}  // namespace warpweave::ptx"]) + "\n")


def main():
    for element in ("Bf16", "F16"):
        for width, head, shapes, forms in (("", HEAD, SHAPES, ("qk", "pv")), ("wide_", HEAD_WIDE, SHAPES_WIDE, ("qk",))):
            out = [head.format(element=element.lower())]
            for n in shapes:
                out.append(f"template <>\nstruct Wgmma<{element}, {n}> {{")
                out += [asm(element, n, form) for form in forms]
                out.append("};\n")
            write(f"src/device/cuda/wgmma_{width}{element.lower()}.h", out)
    out = [HEAD_ROWS]
    for element in ("Bf16", "F16"):
        for n in SHAPES_ROWS:
            out.append(f"template <>\nstruct WgmmaRows<{element}, {n}> {{")
            out.append(asm(element, n, "rk"))
            out.append("};\n")
    write("src/device/cuda/wgmma_rows.h", out)
    out = [HEAD_FP8]
    for n in SHAPES_FP8:
        out.append(f"template <>\nstruct WgmmaE4m3<{n}> {{")
        out.append(asm_fp8(n, "ss"))
        out.append(asm_fp8(n, "rs"))
        out.append("};\n")
    for n in SHAPES_FP8_SS:
        out.append(f"template <>\nstruct WgmmaE4m3<{n}> {{")
        out.append(asm_fp8(n, "ss"))
        out.append("};\n")
    write("src/device/cuda/wgmma_fp8.h", out)
    out = [HEAD_FP8_WIDE]
    for n in SHAPES_FP8_WIDE:
        out.append(f"template <>\nstruct WgmmaE4m3<{n}> {{")
        out.append(asm_fp8(n, "ss"))
        out.append("};\n")
    write("src/device/cuda/wgmma_fp8_wide.h", out)


if __name__ == "__main__":
    main()
