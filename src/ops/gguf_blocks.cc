#include "ops/gguf_blocks.h"

#include <cassert>
#include <cstring>

#include "base/float16.h"
#include "ops/kernels/quant_panel.h"

namespace warpweave {

template <typename Block>
Block read_block(const void* data, int64_t index) {
  Block block;
  std::memcpy(&block, static_cast<const char*>(data) + index * sizeof(Block), sizeof block);
  return block;
}
template BlockQ8_0 read_block<BlockQ8_0>(const void*, int64_t);
template BlockQ4_0 read_block<BlockQ4_0>(const void*, int64_t);
template BlockQ4_1 read_block<BlockQ4_1>(const void*, int64_t);
template BlockQ5_0 read_block<BlockQ5_0>(const void*, int64_t);
template BlockQ5_1 read_block<BlockQ5_1>(const void*, int64_t);
template BlockQ4K read_block<BlockQ4K>(const void*, int64_t);
template BlockQ5K read_block<BlockQ5K>(const void*, int64_t);
template BlockQ6K read_block<BlockQ6K>(const void*, int64_t);
template BlockIQ4NL read_block<BlockIQ4NL>(const void*, int64_t);
template BlockIQ4XS read_block<BlockIQ4XS>(const void*, int64_t);

namespace {

int nibble_of(const uint8_t* codes, int i, int half) {
  return i < half ? codes[i] & 15 : codes[i - half] >> 4;
}

template <typename Block>
int five_bits(const Block& block, int i) {
  return nibble_of(block.codes, i, 16) | (block.high[i / 8] >> (i % 8) & 1) << 4;
}

template <typename Block, typename Value>
void each_block(const void* data, int64_t n, float* out, Value value) {
  assert(n % Block::kElements == 0);
  for (int64_t b = 0; b < n / Block::kElements; ++b) {
    const Block block = read_block<Block>(data, b);
    for (int i = 0; i < Block::kElements; ++i) out[b * Block::kElements + i] = value(block, i);
  }
}

}  // namespace

int block_code(const BlockQ8_0& block, int i) { return block.codes[i]; }
int block_code(const BlockQ4_0& block, int i) { return nibble_of(block.codes, i, 16); }
int block_code(const BlockQ4_1& block, int i) { return nibble_of(block.codes, i, 16); }
int block_code(const BlockQ5_0& block, int i) { return five_bits(block, i); }
int block_code(const BlockQ5_1& block, int i) { return five_bits(block, i); }
int block_code(const BlockIQ4NL& block, int i) { return nibble_of(block.codes, i, 16); }
int block_code(const BlockIQ4XS& block, int i) { return nibble_of(block.codes + i / 32 * 16, i % 32, 16); }
int block_code(const BlockQ4K& block, int i) {
  return nibble_of(block.codes + i / 64 * 32, i % 64, 32);
}
int block_code(const BlockQ5K& block, int i) {
  return nibble_of(block.codes + i / 64 * 32, i % 64, 32) | (block.high[i % 32] >> (i / 32) & 1) << 4;
}
int block_code(const BlockQ6K& block, int i) {
  // Each half of 128 elements: four runs of 32 share 64 low bytes and 32 high bytes.
  const int half = i / 128, run = i % 128 / 32, l = i % 32;
  const uint8_t low = block.low[half * 64 + (run % 2) * 32 + l];
  const uint8_t high = block.high[half * 32 + l];
  return (run < 2 ? low & 15 : low >> 4) | (high >> (2 * run) & 3) << 4;
}

namespace {
void scale_min(const uint8_t* s, int g, int* scale, int* min) {
  if (g < 4) {
    *scale = s[g] & 63;
    *min = s[g + 4] & 63;
  } else {
    *scale = (s[g + 4] & 15) | (s[g - 4] >> 6) << 4;
    *min = (s[g + 4] >> 4) | (s[g] >> 6) << 4;
  }
}
template <typename Block>
float scaled_value(const Block& b, int i) {
  int scale, min;
  block_scale_min(b, i / 32, &scale, &min);
  return f16_to_f32(b.d) * scale * block_code(b, i) - f16_to_f32(b.dmin) * min;
}
}  // namespace

int block_scale(const BlockIQ4XS& block, int g) {
  return ((block.scales_low[g / 2] >> 4 * (g % 2) & 15) | (block.scales_high >> 2 * g & 3) << 4) - 32;
}
void block_scale_min(const BlockQ4K& block, int g, int* scale, int* min) { scale_min(block.scales, g, scale, min); }
void block_scale_min(const BlockQ5K& block, int g, int* scale, int* min) { scale_min(block.scales, g, scale, min); }

void q5_0_to_q8_0(const void* data, int64_t n, void* out) {
  assert(n % BlockQ5_0::kElements == 0);
  for (int64_t b = 0; b < n / BlockQ5_0::kElements; ++b) {
    const BlockQ5_0 from = read_block<BlockQ5_0>(data, b);
    BlockQ8_0 to;
    to.d = from.d;
    for (int i = 0; i < BlockQ5_0::kElements; ++i) to.codes[i] = static_cast<int8_t>(block_code(from, i) - 16);
    std::memcpy(static_cast<char*>(out) + b * sizeof to, &to, sizeof to);
  }
}

void dequantize_row_reference(DType dtype, const void* data, int64_t n, float* out) {
  switch (dtype) {
    case DType::q8_0:
      each_block<BlockQ8_0>(data, n, out, [](const BlockQ8_0& b, int i) {
        return f16_to_f32(b.d) * block_code(b, i);
      });
      break;
    case DType::q4_0:
      each_block<BlockQ4_0>(data, n, out, [](const BlockQ4_0& b, int i) {
        return f16_to_f32(b.d) * (block_code(b, i) - 8);
      });
      break;
    case DType::q4_1:
      each_block<BlockQ4_1>(data, n, out, [](const BlockQ4_1& b, int i) {
        return f16_to_f32(b.d) * block_code(b, i) + f16_to_f32(b.m);
      });
      break;
    case DType::q5_0:
      each_block<BlockQ5_0>(data, n, out, [](const BlockQ5_0& b, int i) {
        return f16_to_f32(b.d) * (block_code(b, i) - 16);
      });
      break;
    case DType::q5_1:
      each_block<BlockQ5_1>(data, n, out, [](const BlockQ5_1& b, int i) {
        return f16_to_f32(b.d) * block_code(b, i) + f16_to_f32(b.m);
      });
      break;
    case DType::q4_k:
      each_block<BlockQ4K>(data, n, out, scaled_value<BlockQ4K>);
      break;
    case DType::q5_k:
      each_block<BlockQ5K>(data, n, out, scaled_value<BlockQ5K>);
      break;
    case DType::q6_k:
      each_block<BlockQ6K>(data, n, out, [](const BlockQ6K& b, int i) {
        return f16_to_f32(b.d) * b.scales[i / 16] * (block_code(b, i) - 32);
      });
      break;
    case DType::iq4_nl:
      each_block<BlockIQ4NL>(data, n, out, [](const BlockIQ4NL& b, int i) {
        return f16_to_f32(b.d) * kIQ4Values[block_code(b, i)];
      });
      break;
    case DType::iq4_xs:
      each_block<BlockIQ4XS>(data, n, out, [](const BlockIQ4XS& b, int i) {
        return f16_to_f32(b.d) * block_scale(b, i / 32) * kIQ4Values[block_code(b, i)];
      });
      break;
    default:
      assert(false && "not a block format");
  }
}

}  // namespace warpweave
