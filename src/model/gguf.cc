#include "model/gguf.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

namespace warpweave {
namespace {

constexpr uint64_t kMaxTensors = 1 << 20, kMaxMetadata = 1 << 16, kMaxArray = 1 << 24;
constexpr uint64_t kMaxKeyBytes = 65535;

enum class GgufType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

std::optional<DType> tensor_dtype(uint32_t ggml_type) {
  switch (ggml_type) {
    case 0: return DType::f32;
    case 1: return DType::f16;
    case 2: return DType::q4_0;
    case 3: return DType::q4_1;
    case 6: return DType::q5_0;
    case 7: return DType::q5_1;
    case 8: return DType::q8_0;
    case 12: return DType::q4_k;
    case 13: return DType::q5_k;
    case 14: return DType::q6_k;
    case 20: return DType::iq4_nl;
    case 23: return DType::iq4_xs;
    case 30: return DType::bf16;
    default: return std::nullopt;
  }
}

// As quantizers call a type that is not read here, for messages.
std::string type_text(uint32_t ggml_type) {
  constexpr std::pair<uint32_t, std::string_view> kNames[] = {
      {9, "Q8_1"},   {10, "Q2_K"},  {11, "Q3_K"},  {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"},
      {19, "IQ1_S"}, {21, "IQ3_S"}, {22, "IQ2_S"}, {24, "I8"},    {25, "I16"},     {26, "I32"},    {27, "I64"},
      {28, "F64"},   {29, "IQ1_M"}, {34, "TQ1_0"}, {35, "TQ2_0"}, {39, "MXFP4"}};
  for (const auto& [type, name] : kNames) {
    if (type == ggml_type) return "type " + std::string(name);
  }
  return "GGML type " + std::to_string(ggml_type);
}

// Reads little-endian values; after the first failure everything reads as zero and failed() holds.
class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : bytes_(bytes) {}

  bool failed() const { return failed_; }
  size_t position() const { return position_; }
  size_t left() const { return bytes_.size() - position_; }
  void fail() { failed_ = true; }

  template <typename T>
  T number() {
    T value{};
    if (failed_ || left() < sizeof value) {
      failed_ = true;
      return T{};
    }
    std::memcpy(&value, bytes_.data() + position_, sizeof value);
    position_ += sizeof value;
    return value;
  }

  std::string string(uint64_t max_bytes) {
    const auto size = number<uint64_t>();
    if (failed_ || size > left() || size > max_bytes) {
      failed_ = true;
      return {};
    }
    std::string out(bytes_.substr(position_, size));
    position_ += size;
    return out;
  }

 private:
  std::string_view bytes_;
  size_t position_ = 0;
  bool failed_ = false;
};

bool is_float(GgufType type) { return type == GgufType::f32 || type == GgufType::f64; }

int64_t read_integer(Cursor& in, GgufType type) {
  switch (type) {
    case GgufType::u8: return in.number<uint8_t>();
    case GgufType::i8: return in.number<int8_t>();
    case GgufType::u16: return in.number<uint16_t>();
    case GgufType::i16: return in.number<int16_t>();
    case GgufType::u32: return in.number<uint32_t>();
    case GgufType::i32: return in.number<int32_t>();
    case GgufType::boolean: return in.number<uint8_t>() != 0;
    case GgufType::i64: return in.number<int64_t>();
    case GgufType::u64: {
      const auto value = in.number<uint64_t>();
      if (value > INT64_MAX) in.fail();
      return static_cast<int64_t>(value);
    }
    default: in.fail(); return 0;
  }
}

double read_float(Cursor& in, GgufType type) {
  return type == GgufType::f32 ? in.number<float>() : in.number<double>();
}

GgufValue read_array(Cursor& in) {
  const auto type = static_cast<GgufType>(in.number<uint32_t>());
  const auto count = in.number<uint64_t>();
  // Every element takes at least a byte, so a lying count is caught before memory is taken.
  if (in.failed() || count > kMaxArray || count > in.left()) {
    in.fail();
    return int64_t{0};
  }
  if (type == GgufType::string) {
    std::vector<std::string> out;
    for (uint64_t i = 0; i < count && !in.failed(); ++i) out.push_back(in.string(in.left()));
    return out;
  }
  if (is_float(type)) {
    std::vector<double> out;
    for (uint64_t i = 0; i < count && !in.failed(); ++i) out.push_back(read_float(in, type));
    return out;
  }
  std::vector<int64_t> out;
  for (uint64_t i = 0; i < count && !in.failed(); ++i) out.push_back(read_integer(in, type));
  return out;
}

GgufValue read_value(Cursor& in) {
  const auto type = static_cast<GgufType>(in.number<uint32_t>());
  if (type == GgufType::string) return in.string(in.left());
  if (type == GgufType::array) return read_array(in);
  if (is_float(type)) return read_float(in, type);
  if (type == GgufType::boolean) return in.number<uint8_t>() != 0;
  return read_integer(in, type);
}

struct TensorEntry {
  std::string name;
  TensorView view;
  uint64_t offset = 0;
};

Status read_tensor_entry(Cursor& in, TensorEntry& out) {
  out.name = in.string(kMaxKeyBytes);
  const auto rank = in.number<uint32_t>();
  if (in.failed()) return Status::data_loss("the tensor list is cut");
  if (rank < 1 || rank > kMaxTensorRank) return Status::data_loss("tensor " + out.name + " has a rank outside 1 to 4");
  out.view.rank = static_cast<int>(rank);
  uint64_t elements = 1;
  for (uint32_t i = 0; i < rank; ++i) {
    const auto dim = in.number<uint64_t>();
    if (dim == 0 || dim > INT64_MAX || __builtin_mul_overflow(elements, dim, &elements) || elements > INT64_MAX / 8) {
      return Status::data_loss("tensor " + out.name + " has an impossible shape");
    }
    out.view.shape[rank - 1 - i] = static_cast<int64_t>(dim);
  }
  const auto type = in.number<uint32_t>();
  out.offset = in.number<uint64_t>();
  if (in.failed()) return Status::data_loss("the tensor list is cut");
  const std::optional<DType> dtype = tensor_dtype(type);
  if (!dtype) {
    return Status::unsupported("tensor " + out.name + " has the " + type_text(type) +
                               "; supported are F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K Q6_K IQ4_NL IQ4_XS");
  }
  out.view.dtype = *dtype;
  if (out.view.shape[rank - 1] % dtype_info(*dtype).block_elements != 0) {
    return Status::data_loss("tensor " + out.name + " has rows that are no whole blocks");
  }
  return {};
}

// Puts the views on the data section, inside the file and without overlap.
Status place_tensors(std::vector<TensorEntry>& entries, std::string_view data, uint64_t alignment) {
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  uint64_t previous_end = 0;
  for (TensorEntry& entry : entries) {
    const uint64_t bytes = entry.view.size_bytes();
    if (entry.offset % alignment != 0 || entry.offset > data.size() || bytes > data.size() - entry.offset) {
      return Status::data_loss("tensor " + entry.name + " lies outside the file; the file may be cut");
    }
    if (entry.offset < previous_end) return Status::data_loss("tensor " + entry.name + " overlaps another");
    previous_end = entry.offset + bytes;
    entry.view.data = data.data() + entry.offset;
  }
  return {};
}

Result<GgufContents> parse(std::string_view bytes) {
  Cursor in(bytes);
  constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
  if (in.number<uint32_t>() != kMagic) return Status::data_loss("not a GGUF file");
  const auto version = in.number<uint32_t>();
  if (version != 2 && version != 3) {
    return Status::unsupported("GGUF version " + std::to_string(version) + "; supported are 2 and 3");
  }
  const auto num_tensors = in.number<uint64_t>(), num_metadata = in.number<uint64_t>();
  if (in.failed() || num_tensors > kMaxTensors || num_metadata > kMaxMetadata) {
    return Status::data_loss("the header's counts are impossible");
  }
  GgufContents out;
  for (uint64_t i = 0; i < num_metadata; ++i) {
    std::string key = in.string(kMaxKeyBytes);
    GgufValue value = read_value(in);
    if (in.failed()) return Status::data_loss("the metadata is broken at entry " + std::to_string(i));
    out.metadata.insert_or_assign(std::move(key), std::move(value));
  }
  std::vector<TensorEntry> entries;
  for (uint64_t i = 0; i < num_tensors; ++i) WW_RETURN_IF_ERROR(read_tensor_entry(in, entries.emplace_back()));
  const int64_t* declared = out.get<int64_t>("general.alignment");
  const uint64_t alignment = declared ? static_cast<uint64_t>(*declared) : 32;
  if (alignment == 0 || alignment > (1 << 20) || (alignment & (alignment - 1)) != 0) {
    return Status::data_loss("general.alignment must be a power of two up to 1048576");
  }
  const size_t start = (in.position() + alignment - 1) / alignment * alignment;
  if (start > bytes.size() && num_tensors > 0) return Status::data_loss("the file ends before its tensors");
  WW_RETURN_IF_ERROR(place_tensors(entries, bytes.substr(std::min(start, bytes.size())), alignment));
  for (TensorEntry& entry : entries) {
    if (!out.tensors.emplace(entry.name, entry.view).second) {
      return Status::data_loss("tensor " + entry.name + " is there twice");
    }
  }
  return out;
}

}  // namespace

Result<GgufContents> parse_gguf(std::string_view bytes, const std::string& name) {
  auto parsed = parse(bytes);
  if (!parsed.ok()) return parsed.status().with_context(name);
  return parsed;
}

}  // namespace warpweave
