#include <simdjson.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "base/json_file.h"
#include "base/mapped_file.h"
#include "model/weight_source.h"

namespace warpweave {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kMaxHeaderBytes = 100 << 20;  // the format's own limit

std::optional<DType> safetensors_dtype(std::string_view name) {
  if (name == "F32") return DType::f32;
  if (name == "F16") return DType::f16;
  if (name == "BF16") return DType::bf16;
  if (name == "F8_E4M3") return DType::fp8_e4m3;
  if (name == "F8_E5M2") return DType::fp8_e5m2;
  if (name == "I8") return DType::i8;
  if (name == "U8" || name == "BOOL") return DType::u8;
  if (name == "I32") return DType::i32;
  if (name == "I64") return DType::i64;
  return std::nullopt;
}

// The shape in `dims` of elements of view.dtype; its bytes, or why it is not read.
Result<uint64_t> parse_shape(simdjson::dom::array dims, TensorView& view) {
  uint64_t bytes = dtype_info(view.dtype).block_bytes;
  bool fits = true;
  for (simdjson::dom::element dim_element : dims) {
    uint64_t dim = 0;
    if (dim_element.get(dim) || dim > INT64_MAX || __builtin_mul_overflow(bytes, dim, &bytes)) {
      return Status::data_loss("has an impossible shape");
    }
    fits = fits && view.rank < kMaxTensorRank;
    if (fits) view.shape[view.rank++] = static_cast<int64_t>(dim);
  }
  if (!fits) return Status::unsupported("has more than " + std::to_string(kMaxTensorRank) + " dimensions");
  return bytes;
}

TensorView bytes_view(std::string_view bytes) {
  TensorView view;
  view.data = bytes.data();
  view.dtype = DType::u8;
  view.rank = 1;
  view.shape[0] = static_cast<int64_t>(bytes.size());
  return view;
}

// One entry of the header: {"dtype": "BF16", "shape": [..], "data_offsets": [begin, end]}.
Status parse_entry(simdjson::dom::object entry, std::string_view data, NamedTensor& out) {
  std::string_view dtype_name;
  simdjson::dom::array shape, offsets;
  if (entry["dtype"].get(dtype_name) || entry["shape"].get(shape) || entry["data_offsets"].get(offsets)) {
    return Status::data_loss("needs dtype, shape and data_offsets");
  }
  uint64_t begin = 0, end = 0;
  if (offsets.size() != 2 || offsets.at(0).get(begin) || offsets.at(1).get(end) || begin > end ||
      end > data.size()) {
    return Status::data_loss("has data_offsets outside the file; the file may be cut");
  }
  out.view = bytes_view(data.substr(begin, end - begin));
  const std::optional<DType> dtype = safetensors_dtype(dtype_name);
  if (!dtype) {
    out.readable = Status::unsupported("has the dtype " + std::string(dtype_name.substr(0, 20)));
    return {};
  }
  TensorView view;
  view.dtype = *dtype;
  view.data = out.view.data;
  const Result<uint64_t> bytes = parse_shape(shape, view);
  if (bytes.status().code() == StatusCode::unsupported) {
    out.readable = bytes.status();
    return {};
  }
  WW_RETURN_IF_ERROR(bytes.status());
  if (end - begin != *bytes) {
    return Status::data_loss("has " + std::to_string(end - begin) + " bytes where its shape needs " +
                             std::to_string(*bytes));
  }
  out.view = view;
  return {};
}

Status check_no_overlap(std::vector<NamedTensor> tensors) {
  std::erase_if(tensors, [](const NamedTensor& t) { return t.view.size_bytes() == 0; });
  std::sort(tensors.begin(), tensors.end(),
            [](const NamedTensor& a, const NamedTensor& b) { return a.view.data < b.view.data; });
  for (size_t i = 1; i < tensors.size(); ++i) {
    const auto* previous_end = static_cast<const char*>(tensors[i - 1].view.data) + tensors[i - 1].view.size_bytes();
    if (previous_end > tensors[i].view.data) {
      return Status::data_loss("tensors " + tensors[i - 1].name + " and " + tensors[i].name + " overlap");
    }
  }
  return {};
}

struct StoredTensor {
  explicit StoredTensor(const NamedTensor& tensor) : view(tensor.view), readable(tensor.readable) {}

  TensorView view;
  Status readable;
  mutable std::atomic<bool> read = false;
};

class SafetensorsSource : public WeightSource {
 public:
  Status add_file(const std::string& path) {
    WW_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
    const std::string name = fs::path(path).filename();
    auto parsed = parse_safetensors(file.text(), name);
    WW_RETURN_IF_ERROR(file.intact());  // before its contents are blamed
    WW_ASSIGN_OR_RETURN(std::vector<NamedTensor> tensors, std::move(parsed));
    for (NamedTensor& tensor : tensors) {
      const auto [at, added] = tensors_.try_emplace(tensor.name, tensor);
      if (!added) {
        return Status::data_loss(name + ": tensor " + at->first + " is in two files", name);
      }
    }
    searched_ += (searched_.empty() ? "" : ", ") + name;
    files_.push_back(std::move(file));
    return {};
  }

  bool has(std::string_view name) const override { return tensors_.find(name) != tensors_.end(); }
  DType dtype(std::string_view name) const override {
    const auto it = tensors_.find(name);
    return it == tensors_.end() ? DType::f32 : it->second.view.dtype;
  }
  Result<TensorView> find(std::string_view name, std::span<const int64_t> shape) const override {
    const auto it = tensors_.find(name);
    if (it == tensors_.end()) {
      return Status::data_loss("tensor " + std::string(name) + " is not in " + searched_, std::string(name));
    }
    WW_RETURN_IF_ERROR(it->second.readable);
    WW_RETURN_IF_ERROR(check_shape(name, it->second.view, shape));
    it->second.read = true;
    return it->second.view;
  }
  void release(const TensorView& view) const override {
    MappedFile::release_pages(view.data, view.size_bytes());
  }
  std::vector<std::string> unread() const override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) {
      if (!tensor.read) names.push_back(name);
    }
    return names;
  }
  Status intact() const override {
    for (const MappedFile& file : files_) WW_RETURN_IF_ERROR(file.intact());
    return {};
  }
  Status seal() const override {
    for (const MappedFile& file : files_) WW_RETURN_IF_ERROR(file.seal());
    return {};
  }

 private:
  std::vector<MappedFile> files_;
  std::map<std::string, StoredTensor, std::less<>> tensors_;
  std::string searched_;
};

// The shards named by the index, each checked to be a plain file name in the folder.
Result<std::set<std::string>> shards_of_index(const std::string& index_path) {
  WW_ASSIGN_OR_RETURN(const std::string text, read_text_file(index_path, kMaxHeaderBytes));
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  simdjson::dom::object map;
  WW_RETURN_IF_ERROR(read_json_tape(parser, text, {index_path, StatusCode::data_loss, index_path}, root));
  if (root["weight_map"].get(map)) {
    return Status::data_loss(index_path + ": no weight_map object", index_path);
  }
  std::set<std::string> shards;
  for (auto [tensor, file] : map) {
    std::string_view name;
    if (file.get(name) || name.empty() || name.find('/') != name.npos || name.find('\0') != name.npos) {
      return Status::data_loss(index_path + ": weight_map must name files of the same folder", index_path);
    }
    shards.emplace(name);
  }
  return shards;
}

}  // namespace

Status check_shape(std::string_view name, const TensorView& view, std::span<const int64_t> shape) {
  if (std::equal(shape.begin(), shape.end(), view.shape.begin(), view.shape.begin() + view.rank)) return {};
  const auto text = [](std::span<const int64_t> dims) {
    std::string out = "[";
    for (size_t i = 0; i < dims.size(); ++i) out += (i ? ", " : "") + std::to_string(dims[i]);
    return out + "]";
  };
  return Status::data_loss("tensor " + std::string(name) + " has the shape " +
                           text({view.shape.data(), static_cast<size_t>(view.rank)}) +
                           ", the configuration needs " + text(shape), std::string(name));
}

Result<std::vector<NamedTensor>> parse_safetensors(std::string_view file, const std::string& file_name) {
  uint64_t header_bytes = 0;
  if (file.size() < sizeof header_bytes) {
    return Status::data_loss(file_name + ": too short for a safetensors file", file_name);
  }
  std::memcpy(&header_bytes, file.data(), sizeof header_bytes);
  if (header_bytes > kMaxHeaderBytes || header_bytes > file.size() - sizeof header_bytes) {
    return Status::data_loss(file_name + ": the header says it has " + std::to_string(header_bytes) +
                             " bytes, the file has " + std::to_string(file.size()) +
                             "; it is cut, or no safetensors file", file_name);
  }
  const std::string_view header = file.substr(sizeof header_bytes, header_bytes);
  const std::string_view data = file.substr(sizeof header_bytes + header_bytes);
  simdjson::dom::parser parser;
  simdjson::dom::element parsed;
  simdjson::dom::object root;
  WW_RETURN_IF_ERROR(read_json_tape(parser, header, {file_name + ": the header", StatusCode::data_loss, file_name},
                                     parsed));
  if (parsed.get(root)) {
    return Status::data_loss(file_name + ": the header is not a JSON object", file_name);
  }
  std::vector<NamedTensor> tensors;
  for (auto [key, value] : root) {
    if (key == "__metadata__") continue;
    simdjson::dom::object entry;
    if (value.get(entry)) return Status::data_loss(file_name + ": header entries must be objects", file_name);
    const std::string where = file_name + ": tensor " + std::string(key.substr(0, 200));
    NamedTensor& tensor = tensors.emplace_back(NamedTensor{.name = std::string(key), .view = {}});
    if (Status parsed_entry = parse_entry(entry, data, tensor); !parsed_entry.ok()) {
      return parsed_entry.with_context(where);
    }
    if (!tensor.readable.ok()) tensor.readable = tensor.readable.with_context(where);
  }
  if (Status overlap = check_no_overlap(tensors); !overlap.ok()) return overlap.with_context(file_name);
  return tensors;
}

Result<std::shared_ptr<WeightSource>> open_safetensors(const std::string& folder) {
  auto source = std::make_shared<SafetensorsSource>();
  const std::string single = folder + "/model.safetensors";
  const std::string index = single + ".index.json";
  std::set<std::string> files;
  if (path_exists(index)) {
    WW_ASSIGN_OR_RETURN(files, shards_of_index(index));
  } else if (path_exists(single)) {
    files.insert("model.safetensors");
  } else {
    for (const char* pickled : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
      if (!path_exists(folder + "/" + pickled)) continue;
      return Status::unsupported(folder + ": only " + pickled + ", whose weights are Python objects and are not read; "
                                 "save the model as safetensors: save_pretrained() of transformers does", folder);
    }
    return Status::not_found(folder + ": no model.safetensors, no model.safetensors.index.json and no .gguf file; "
                             "give a model folder, or --load-format dummy for random weights", folder);
  }
  for (const std::string& file : files) {
    Status added = source->add_file(folder + "/" + file);
    if (added.code() == StatusCode::not_found) {
      return Status::data_loss(folder + ": shard " + file + " is missing", file);
    }
    WW_RETURN_IF_ERROR(added);
  }
  return std::shared_ptr<WeightSource>(std::move(source));
}

}  // namespace warpweave
