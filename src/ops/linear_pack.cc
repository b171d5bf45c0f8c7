#include "ops/linear_pack.h"

#include <cassert>
#include <cstring>

#include "base/float16.h"
#include "ops/gguf_blocks.h"
#include "ops/kernels/quant_panel.h"

namespace warpweave {
namespace {

constexpr int64_t kBf16PaddedK = 32;  // one AMX tile row

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

template <typename T>
T* array_at(unsigned char* panel) { return reinterpret_cast<T*>(panel); }
template <typename T>
const T* array_at(const unsigned char* panel) { return reinterpret_cast<const T*>(panel); }

// Tensors in a file need not be aligned to their element.
template <typename T>
T element_at(const void* row, int64_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(row) + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void pack_plain(const void* row, int lane, int64_t k, T* panel) {
  for (int64_t i = 0; i < k; ++i) panel[i * kPanelCols + lane] = element_at<T>(row, i);
}

void pack_bf16(const void* row, int lane, int64_t k, uint16_t* panel) {
  for (int64_t i = 0; i < k; ++i) {
    panel[(i / 2 * kPanelCols + lane) * 2 + i % 2] = element_at<uint16_t>(row, i);
  }
}

// Code i's nibble (quant_panel.h).
uint8_t& nibble_byte(PanelWord* codes, int lane, int i) { return codes[i / 8][lane][i % 4]; }
int nibble_shift(int i) { return i % 8 / 4 * 4; }
uint8_t& top_byte(PanelWord* codes, int lane, int i) { return codes[i / 16][lane][i % 4]; }
int top_shift(int i) { return i % 16 / 4 * 2; }

template <typename Block>
void put_nibble_codes(const Block& block, int lane, PanelWord* codes) {
  for (int i = 0; i < Block::kElements; ++i) {
    nibble_byte(codes, lane, i) |= static_cast<uint8_t>((block_code(block, i) & 15) << nibble_shift(i));
  }
}

void put_block(const BlockQ8_0& block, int lane, PanelQ8_0& out) {
  out.d[lane] = block.d;
  for (int i = 0; i < 32; ++i) out.codes[i / 4][lane][i % 4] = static_cast<uint8_t>(block.codes[i] + 128);
}
void put_block(const BlockQ4_0& block, int lane, PanelQ4_0& out) {
  out.d[lane] = block.d;
  put_nibble_codes(block, lane, out.codes);
}
void put_block(const BlockQ4_1& block, int lane, PanelQ4_1& out) {
  out.d[lane] = block.d;
  out.m[lane] = block.m;
  put_nibble_codes(block, lane, out.codes);
}
template <typename Block, typename Panel>
void put_scales_and_mins(const Block& block, int lane, Panel& out) {
  out.d[lane] = block.d;
  out.dmin[lane] = block.dmin;
  for (int g = 0; g < 8; ++g) {
    int scale, min;
    block_scale_min(block, g, &scale, &min);
    out.scales[g][lane] = static_cast<uint8_t>(scale);
    out.mins[g][lane] = static_cast<uint8_t>(min);
  }
  put_nibble_codes(block, lane, out.codes);
}
void put_block(const BlockQ4K& block, int lane, PanelQ4K& out) { put_scales_and_mins(block, lane, out); }
void put_block(const BlockQ5K& block, int lane, PanelQ5K& out) {
  put_scales_and_mins(block, lane, out);
  for (int i = 0; i < 256; ++i) {
    out.high[i / 32][lane][i % 4] |= static_cast<uint8_t>(block_code(block, i) >> 4 << (i % 32 / 4));
  }
}
void put_block(const BlockQ6K& block, int lane, PanelQ6K& out) {
  out.d[lane] = block.d;
  for (int g = 0; g < 16; ++g) out.scales[g][lane] = block.scales[g];
  put_nibble_codes(block, lane, out.low);
  for (int i = 0; i < 256; ++i) {
    top_byte(out.high, lane, i) |= static_cast<uint8_t>(block_code(block, i) >> 4 << top_shift(i));
  }
}

void put_block(const BlockIQ4NL& block, int lane, PanelIQ4NL& out) {
  out.d[lane] = block.d;
  put_nibble_codes(block, lane, out.codes);
}
void put_block(const BlockIQ4XS& block, int lane, PanelIQ4XS& out) {
  out.d[lane] = block.d;
  for (int g = 0; g < 8; ++g) out.scales[g][lane] = static_cast<int8_t>(block_scale(block, g));
  put_nibble_codes(block, lane, out.codes);
}

template <typename Block, typename Panel>
void pack_blocks(const void* row, int lane, int64_t k, Panel* panel) {
  for (int64_t b = 0; b < k / Block::kElements; ++b) {
    put_block(read_block<Block>(row, b), lane, panel[b]);
  }
}

float code_value(const PanelQ8_0& p, int lane, int i) {
  return f16_to_f32(p.d[lane]) * (p.codes[i / 4][lane][i % 4] - 128);
}
int nibble(const PanelWord* codes, int lane, int i) { return codes[i / 8][lane][i % 4] >> nibble_shift(i) & 15; }
float code_value(const PanelQ4_0& p, int lane, int i) {
  return f16_to_f32(p.d[lane]) * (nibble(p.codes, lane, i) - 8);
}
float code_value(const PanelQ4_1& p, int lane, int i) {
  return f16_to_f32(p.d[lane]) * nibble(p.codes, lane, i) + f16_to_f32(p.m[lane]);
}
float code_value(const PanelQ4K& p, int lane, int i) {
  return f16_to_f32(p.d[lane]) * p.scales[i / 32][lane] * nibble(p.codes, lane, i) -
         f16_to_f32(p.dmin[lane]) * p.mins[i / 32][lane];
}
float code_value(const PanelQ5K& p, int lane, int i) {
  const int code = nibble(p.codes, lane, i) | (p.high[i / 32][lane][i % 4] >> (i % 32 / 4) & 1) << 4;
  return f16_to_f32(p.d[lane]) * p.scales[i / 32][lane] * code - f16_to_f32(p.dmin[lane]) * p.mins[i / 32][lane];
}
float code_value(const PanelQ6K& p, int lane, int i) {
  const int code = nibble(p.low, lane, i) | (p.high[i / 16][lane][i % 4] >> top_shift(i) & 3) << 4;
  return f16_to_f32(p.d[lane]) * p.scales[i / 16][lane] * (code - 32);
}

float code_value(const PanelIQ4NL& p, int lane, int i) {
  return f16_to_f32(p.d[lane]) * kIQ4Values[nibble(p.codes, lane, i)];
}
float code_value(const PanelIQ4XS& p, int lane, int i) {
  return f16_to_f32(p.d[lane]) * p.scales[i / 32][lane] * kIQ4Values[nibble(p.codes, lane, i)];
}

template <typename Panel>
void unpack_blocks(const unsigned char* panel, int lane, int64_t k, float* out) {
  for (int64_t i = 0; i < k; ++i) {
    out[i] = code_value(array_at<Panel>(panel)[i / Panel::kElements], lane,
                        static_cast<int>(i % Panel::kElements));
  }
}

template <typename Panel>
size_t blocks_bytes(int64_t k) { return k / Panel::kElements * sizeof(Panel); }

}  // namespace

size_t panel_offset_bytes(DType dtype, int64_t k) {
  switch (dtype) {
    case DType::f32: return k * kPanelCols * 4;
    case DType::f16:
    case DType::bf16: return k * kPanelCols * 2;
    case DType::q8_0: return blocks_bytes<PanelQ8_0>(k);
    case DType::q4_0: return blocks_bytes<PanelQ4_0>(k);
    case DType::q4_1: return blocks_bytes<PanelQ4_1>(k);
    case DType::q4_k: return blocks_bytes<PanelQ4K>(k);
    case DType::q5_k: return blocks_bytes<PanelQ5K>(k);
    case DType::q6_k: return blocks_bytes<PanelQ6K>(k);
    case DType::iq4_nl: return blocks_bytes<PanelIQ4NL>(k);
    case DType::iq4_xs: return blocks_bytes<PanelIQ4XS>(k);
    default: assert(false && "no packed form"); return 0;
  }
}

size_t panel_size_bytes(DType dtype, int64_t k) {
  return panel_offset_bytes(dtype, dtype == DType::bf16 ? round_up(k, kBf16PaddedK) : k);
}

void pack_panel(DType dtype, std::span<const void* const, kPanelCols> rows, int64_t k,
                unsigned char* panel) {
  for (int lane = 0; lane < kPanelCols; ++lane) {
    const void* row = rows[lane];
    if (!row) continue;
    switch (dtype) {
      case DType::f32:
        pack_plain(row, lane, k, array_at<float>(panel));
        break;
      case DType::f16:
        pack_plain(row, lane, k, array_at<uint16_t>(panel));
        break;
      case DType::bf16:
        pack_bf16(row, lane, k, array_at<uint16_t>(panel));
        break;
      case DType::q8_0: pack_blocks<BlockQ8_0>(row, lane, k, array_at<PanelQ8_0>(panel)); break;
      case DType::q4_0: pack_blocks<BlockQ4_0>(row, lane, k, array_at<PanelQ4_0>(panel)); break;
      case DType::q4_1: pack_blocks<BlockQ4_1>(row, lane, k, array_at<PanelQ4_1>(panel)); break;
      case DType::q4_k: pack_blocks<BlockQ4K>(row, lane, k, array_at<PanelQ4K>(panel)); break;
      case DType::q5_k: pack_blocks<BlockQ5K>(row, lane, k, array_at<PanelQ5K>(panel)); break;
      case DType::q6_k: pack_blocks<BlockQ6K>(row, lane, k, array_at<PanelQ6K>(panel)); break;
      case DType::iq4_nl: pack_blocks<BlockIQ4NL>(row, lane, k, array_at<PanelIQ4NL>(panel)); break;
      case DType::iq4_xs: pack_blocks<BlockIQ4XS>(row, lane, k, array_at<PanelIQ4XS>(panel)); break;
      default: assert(false && "no packed form");
    }
  }
}

void unpack_panel_row(DType dtype, const unsigned char* panel, int lane, int64_t k, float* out) {
  switch (dtype) {
    case DType::f32:
      for (int64_t i = 0; i < k; ++i) out[i] = array_at<float>(panel)[i * kPanelCols + lane];
      break;
    case DType::f16:
      for (int64_t i = 0; i < k; ++i) {
        out[i] = f16_to_f32(array_at<uint16_t>(panel)[i * kPanelCols + lane]);
      }
      break;
    case DType::bf16:
      for (int64_t i = 0; i < k; ++i) {
        out[i] = bf16_to_f32(array_at<uint16_t>(panel)[(i / 2 * kPanelCols + lane) * 2 + i % 2]);
      }
      break;
    case DType::q8_0: unpack_blocks<PanelQ8_0>(panel, lane, k, out); break;
    case DType::q4_0: unpack_blocks<PanelQ4_0>(panel, lane, k, out); break;
    case DType::q4_1: unpack_blocks<PanelQ4_1>(panel, lane, k, out); break;
    case DType::q4_k: unpack_blocks<PanelQ4K>(panel, lane, k, out); break;
    case DType::q5_k: unpack_blocks<PanelQ5K>(panel, lane, k, out); break;
    case DType::q6_k: unpack_blocks<PanelQ6K>(panel, lane, k, out); break;
    case DType::iq4_nl: unpack_blocks<PanelIQ4NL>(panel, lane, k, out); break;
    case DType::iq4_xs: unpack_blocks<PanelIQ4XS>(panel, lane, k, out); break;
    default: assert(false && "no packed form");
  }
}

}  // namespace warpweave
