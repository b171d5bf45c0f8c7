// Element types and the non-owning tensor view used at module borders.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace warpweave {

// Plain types first, then GGUF block formats (a block is `block_elements` values along the last dim).
enum class DType : uint8_t {
  f32, f16, bf16, fp8_e4m3, fp8_e5m2, i8, u8, i32, i64,
  q8_0, q4_0, q4_1, q4_k, q5_k, q6_k, iq4_nl, iq4_xs, q5_0, q5_1,
};

struct DTypeInfo {
  std::string_view name;   // "bf16", "q4_1", ...
  int block_elements;      // 1 for plain types
  int block_bytes;         // bytes of one block (of one element for plain types)
};

const DTypeInfo& dtype_info(DType dtype);
inline bool is_quantized(DType dtype) { return dtype_info(dtype).block_elements > 1; }
// Of so many elements, whole blocks.
inline int64_t bytes_of_elements(DType dtype, int64_t elements) {
  const DTypeInfo& info = dtype_info(dtype);
  return elements / info.block_elements * info.block_bytes;
}
// Accepts both short and long names: "bf16"/"bfloat16", "f16"/"half"/"float16", "f32"/"float32".
std::optional<DType> parse_dtype(std::string_view name);

inline constexpr int kMaxTensorRank = 4;

// A contiguous row-major tensor in memory owned by somebody else; the last dim varies fastest.
struct TensorView {
  const void* data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  std::array<int64_t, kMaxTensorRank> shape{};

  int64_t elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }
  size_t size_bytes() const { return static_cast<size_t>(bytes_of_elements(dtype, elements())); }
};

}  // namespace warpweave
