#include "warpweave/tensor.h"

namespace warpweave {

const DTypeInfo& dtype_info(DType dtype) {
  static constexpr DTypeInfo kInfo[] = {
      {"f32", 1, 4},      {"f16", 1, 2},       {"bf16", 1, 2},      {"fp8_e4m3", 1, 1},
      {"fp8_e5m2", 1, 1}, {"i8", 1, 1},        {"u8", 1, 1},        {"i32", 1, 4},
      {"i64", 1, 8},      {"q8_0", 32, 34},    {"q4_0", 32, 18},    {"q4_1", 32, 20},
      {"q4_k", 256, 144}, {"q5_k", 256, 176}, {"q6_k", 256, 210},
      {"iq4_nl", 32, 18}, {"iq4_xs", 256, 136}, {"q5_0", 32, 22},   {"q5_1", 32, 24},
  };
  return kInfo[static_cast<int>(dtype)];
}

std::optional<DType> parse_dtype(std::string_view name) {
  if (name == "bfloat16") return DType::bf16;
  if (name == "half" || name == "float16") return DType::f16;
  if (name == "float" || name == "float32") return DType::f32;
  for (int i = 0; i <= static_cast<int>(DType::q5_1); ++i) {
    if (dtype_info(static_cast<DType>(i)).name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

}  // namespace warpweave
