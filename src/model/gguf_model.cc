#include "model/gguf_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>

#include "base/mapped_file.h"
#include "model/gguf.h"
#include "model/gguf_arch.h"
#include "model/gguf_config.h"
#include "ops/elementwise.h"
#include "ops/gguf_blocks.h"

namespace warpweave {
namespace {

class GgufSource : public WeightSource {
 public:
  static constexpr std::string_view kExperts = ".experts.";
  static constexpr std::string_view kDecay = ".A_log";  // files hold -exp of it
  static constexpr std::string_view kDeltaNet = ".linear_attn.", kDeltaNorm = ".linear_attn.norm.weight",
                                    kDeltaOut = ".out_proj.weight";

  GgufSource(MappedFile file, GgufContents contents, const GgufArch& arch, const ModelConfig& config)
      : file_(std::move(file)), contents_(std::move(contents)), arch_(arch),
        num_q_heads_(config.num_q_heads), num_kv_heads_(config.num_kv_heads), linear_(config.linear) {}

  bool has(std::string_view name) const override { return lookup(name).data != nullptr; }
  bool may_lack_biases() const override { return true; }
  DType dtype(std::string_view name) const override {
    if (name.ends_with(kDecay) || takes_columns_apart(name)) return DType::f32;
    return stored_dtype(lookup(name).dtype);
  }

  Result<TensorView> find(std::string_view name, std::span<const int64_t> shape) const override {
    WW_ASSIGN_OR_RETURN(TensorView view, stored(name, shape));
    if (arch_.permuted_qk && name.find("self_attn.q_proj") != name.npos) view = unpermuted(view, num_q_heads_);
    if (arch_.permuted_qk && name.find("self_attn.k_proj") != name.npos) view = unpermuted(view, num_kv_heads_);
    const bool plus_one = arch_.norms_plus_one && name.find("norm") != name.npos && !name.ends_with(kDeltaNorm);
    if (plus_one && view.dtype == DType::f32) {
      return changed(view, [](float value) { return value - 1; });
    }
    if (arch_.tiled_v_heads && name.find(kDeltaNet) != name.npos) view = with_v_heads_by_k_head(name, view);
    if (name.ends_with(kDecay)) return changed(view, [](float value) { return std::log(-value); });
    return stored_dtype(view.dtype) == view.dtype ? view : repacked(view);
  }

  Result<TensorView> look(std::string_view name, std::span<const int64_t> shape) const override {
    WW_ASSIGN_OR_RETURN(TensorView view, stored(name, shape));
    view.dtype = dtype(name);
    return view;
  }

  void release(const TensorView& view) const override {
    std::lock_guard lock(mutex_);
    if (std::erase_if(owned_, [&](const auto& buffer) { return buffer.get() == view.data; }) == 0) {
      MappedFile::release_pages(view.data, view.size_bytes());
    }
  }
  std::vector<std::string> unread() const override {
    std::vector<std::string> names;
    std::lock_guard lock(mutex_);
    for (const auto& [name, view] : contents_.tensors) {
      const auto first = read_.lower_bound(view.data);  // of the tensor, or of one expert's slice of it
      const void* const end = static_cast<const std::byte*>(view.data) + view.size_bytes();
      if (first == read_.end() || *first >= end) names.push_back(name);
    }
    return names;
  }
  Status intact() const override { return file_.intact(); }
  Status seal() const override { return file_.seal(); }

 private:
  TensorView lookup(std::string_view name) const {
    // mlp.experts.<e>.gate_proj.weight is one slice of blk.N.ffn_gate_exps.weight.
    const size_t experts = name.find(kExperts);
    if (experts != name.npos) return expert_slice(name, experts);
    const auto it = contents_.tensors.find(gguf_name(name, arch_));
    if (it == contents_.tensors.end()) return {};
    TensorView view = it->second;
    if (name.ends_with(".shared_expert_gate.weight") && view.rank == 1) {  // of one row, which files leave out
      view.rank = 2;
      view.shape = {1, view.shape[0]};
    }
    if (name.ends_with(".conv.conv.weight") && view.rank == 2) {  // [channels, 1, width] without what is 1
      view.rank = 3;
      view.shape = {view.shape[0], 1, view.shape[1]};
    }
    if (name.ends_with("conv1d.weight") && view.rank >= 2) {  // likewise, with more or fewer dims of 1
      const int64_t width = view.shape[view.rank - 1];
      view.shape = {view.elements() / std::max<int64_t>(width, 1), 1, width};
      view.rank = 3;
    }
    if (name.ends_with(kDecay)) {
      view.shape = {1, 1, view.elements(), 1};
      view.rank = 4;
      if (arch_.delta_net) view.shape = {view.elements()}, view.rank = 1;
    }
    return view;
  }

  TensorView expert_slice(std::string_view name, size_t experts) const {
    const std::string_view rest = name.substr(experts + kExperts.size());
    const size_t dot = rest.find('.');
    const int64_t expert = std::strtol(std::string(rest.substr(0, dot)).c_str(), nullptr, 10);
    std::string stacked =
        gguf_name(std::string(name.substr(0, experts)) + "." + std::string(rest.substr(dot + 1)), arch_);
    const size_t kind = stacked.rfind('.');
    if (kind == stacked.npos) return {};
    stacked.insert(kind, "_exps");
    const auto it = contents_.tensors.find(stacked);
    if (it == contents_.tensors.end() || it->second.rank != 3 || expert >= it->second.shape[0]) return {};
    TensorView view = it->second;
    view.rank = 2;
    view.shape = {it->second.shape[1], it->second.shape[2]};
    view.data = static_cast<const std::byte*>(it->second.data) + expert * view.size_bytes();
    return view;
  }

  // As the file has it, counted as read.
  Result<TensorView> stored(std::string_view name, std::span<const int64_t> shape) const {
    const TensorView view = lookup(name);
    if (view.data == nullptr) return Status::data_loss("tensor " + std::string(name) + " is not in the GGUF file");
    WW_RETURN_IF_ERROR(check_shape(name, view, shape));
    std::lock_guard lock(mutex_);
    read_.insert(view.data);
    return view;
  }

  std::byte* own(size_t bytes) const {
    std::lock_guard lock(mutex_);
    owned_.push_back(std::make_unique<std::byte[]>(bytes));
    return owned_.back().get();
  }

  // llama.cpp stores a head's rows as (0, d/2, 1, d/2 + 1, ...); we want halves in order.
  TensorView unpermuted(const TensorView& view, int heads) const {
    const int64_t rows = view.shape[0], head_rows = rows / heads, half = head_rows / 2;
    const size_t row_bytes = view.size_bytes() / rows;
    std::byte* out = own(view.size_bytes());
    const auto* in = static_cast<const std::byte*>(view.data);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t head = r / head_rows, i = r % head_rows;
      const int64_t from = head * head_rows + (i < half ? 2 * i : 2 * (i - half) + 1);
      std::memcpy(out + r * row_bytes, in + from * row_bytes, row_bytes);
    }
    TensorView result = view;
    result.data = out;
    return result;
  }

  // Of a gated delta net's tensor: v heads by their k head, as its kernels take them.
  TensorView with_v_heads_by_k_head(std::string_view name, const TensorView& view) const {
    if (!linear_ || linear_->v_heads == linear_->k_heads || name.ends_with(kDeltaNorm)) return view;
    if (name.ends_with(kDeltaOut)) return with_columns_by_k_head(name, view);
    const bool has_qk = name.find("in_proj_qkv") != name.npos || name.ends_with("conv1d.weight");
    const bool is_v = has_qk || name.find("in_proj_z") != name.npos;
    const int64_t first = has_qk ? int64_t{2} * linear_->k_heads * linear_->k_dim : 0, rows = is_v ? linear_->v_dim : 1;
    const size_t row_bytes = view.size_bytes() / (first + linear_->v_heads * rows);
    return with_blocks_by_k_head(view, {.lines = 1, .head = first * row_bytes, .block = rows * row_bytes});
  }
  // Where formats have blocks across heads, in F32.
  TensorView with_columns_by_k_head(std::string_view name, const TensorView& view) const {
    const TensorView from = takes_columns_apart(name) ? changed(view, [](float value) { return value; }) : view;
    const auto lines = static_cast<size_t>(from.shape[0]);
    const size_t block = from.size_bytes() / lines / linear_->v_heads;
    return with_blocks_by_k_head(from, {.lines = lines, .head = 0, .block = block});
  }
  bool takes_columns_apart(std::string_view name) const {
    if (!arch_.tiled_v_heads || !linear_ || linear_->v_heads == linear_->k_heads) return false;
    return name.ends_with(kDeltaOut) && linear_->v_dim % dtype_info(lookup(name).dtype).block_elements != 0;
  }

  // In each line, behind `head` bytes, a block for each v head.
  struct HeadBlocks {
    size_t lines, head, block;
  };
  TensorView with_blocks_by_k_head(const TensorView& view, const HeadBlocks& of) const {
    const size_t k_heads = linear_->k_heads, of_each = linear_->v_heads / linear_->k_heads;
    std::byte* out = own(view.size_bytes());
    const auto* in = static_cast<const std::byte*>(view.data);
    for (size_t line = 0; line < of.lines; ++line) {
      std::memcpy(out, in, of.head);
      for (size_t h = 0; h < k_heads * of_each; ++h) {
        const size_t from = h % of_each * k_heads + h / of_each;
        std::memcpy(out + of.head + h * of.block, in + of.head + from * of.block, of.block);
      }
      in += of.head + k_heads * of_each * of.block;
      out += of.head + k_heads * of_each * of.block;
    }
    TensorView result = view;
    result.data = out - view.size_bytes();
    release(view);
    return result;
  }

  // In F32.
  template <typename Change>
  TensorView changed(const TensorView& view, Change change) const {
    std::vector<float> values(view.elements());
    dequantize_row(view.dtype, view.data, view.elements(), values.data());
    for (float& value : values) value = change(value);
    return owned_floats(view, values);
  }
  TensorView owned_floats(const TensorView& view, const std::vector<float>& values) const {
    TensorView result = view;
    result.dtype = DType::f32;
    std::byte* out = own(result.size_bytes());
    std::memcpy(out, values.data(), result.size_bytes());
    result.data = out;
    return result;
  }

  // Two formats have no kernels of their own: what llama.cpp's quantizer falls back to where a row is no multiple of
  // 256.
  static DType stored_dtype(DType dtype) {
    return dtype == DType::q5_0 ? DType::q8_0 : dtype == DType::q5_1 ? DType::f32 : dtype;
  }
  TensorView repacked(const TensorView& view) const {
    TensorView result = view;
    if (view.dtype == DType::q5_0) {
      result.dtype = DType::q8_0;
      std::byte* out = own(result.size_bytes());
      q5_0_to_q8_0(view.data, view.elements(), out);
      result.data = out;
    } else {
      result = changed(view, [](float value) { return value; });
    }
    release(view);
    return result;
  }

  MappedFile file_;
  GgufContents contents_;
  const GgufArch arch_;
  const int num_q_heads_;
  const int num_kv_heads_;
  const std::optional<LinearAttnConfig> linear_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<std::byte[]>> owned_;
  mutable std::set<const void*> read_;  // where in the file what was found stands
};

std::optional<int32_t> optional_id(const GgufContents& file, const char* key) {
  const int64_t* id = file.get<int64_t>(key);
  if (id == nullptr || *id < 0 || *id > INT32_MAX) return std::nullopt;
  return static_cast<int32_t>(*id);
}

std::optional<bool> optional_bool(const GgufContents& file, const char* key) {
  const bool* value = file.get<bool>(key);
  return value != nullptr ? std::optional(*value) : std::nullopt;
}

GgufTokenizerFields read_tokenizer(const GgufContents& file) {
  GgufTokenizerFields out;
  const auto copy = [&](const char* key, auto& to) {
    if (const auto* value = file.get<std::decay_t<decltype(to)>>(key)) to = *value;
  };
  copy("tokenizer.ggml.model", out.model);
  copy("tokenizer.ggml.pre", out.pre);
  copy("tokenizer.ggml.tokens", out.tokens);
  copy("tokenizer.ggml.merges", out.merges);
  if (const auto* scores = file.get<std::vector<double>>("tokenizer.ggml.scores")) {
    out.scores.assign(scores->begin(), scores->end());
  }
  if (const auto* types = file.get<std::vector<int64_t>>("tokenizer.ggml.token_type")) {
    out.token_types.assign(types->begin(), types->end());
  }
  out.bos_token_id = optional_id(file, "tokenizer.ggml.bos_token_id");
  out.eos_token_id = optional_id(file, "tokenizer.ggml.eos_token_id");
  out.unknown_token_id = optional_id(file, "tokenizer.ggml.unknown_token_id");
  out.padding_token_id = optional_id(file, "tokenizer.ggml.padding_token_id");
  out.add_bos_token = optional_bool(file, "tokenizer.ggml.add_bos_token");
  out.add_eos_token = optional_bool(file, "tokenizer.ggml.add_eos_token");
  out.add_space_prefix = optional_bool(file, "tokenizer.ggml.add_space_prefix");
  return out;
}

}  // namespace

Result<GgufModel> load_gguf_model(const std::string& path) {
  WW_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  const std::string name = std::filesystem::path(path).filename();
  auto parsed = parse_gguf(file.text(), name);
  WW_RETURN_IF_ERROR(file.intact());  // before its contents are blamed
  WW_ASSIGN_OR_RETURN(GgufContents contents, std::move(parsed));
  if (const int64_t* parts = contents.get<int64_t>("split.count"); parts != nullptr && *parts > 1) {
    return Status::unsupported(name + ": is one of the " + std::to_string(*parts) +
                               " parts of a split model, which are not read; llama.cpp's llama-gguf-split --merge "
                               "makes one file of them");
  }
  const std::string* arch_name = contents.get<std::string>("general.architecture");
  auto arch = find_gguf_arch(arch_name != nullptr ? *arch_name : "");
  if (!arch.ok()) return arch.status().with_context(name);
  GgufModel out;
  auto config = read_gguf_config(contents, *arch);
  if (!config.ok()) return config.status().with_context(name);
  out.config = std::move(config).value();
  out.tokenizer = read_tokenizer(contents);
  if (const auto* text = contents.get<std::string>("tokenizer.chat_template")) out.chat_template = *text;
  out.weights = std::make_shared<GgufSource>(std::move(file), std::move(contents), *arch, out.config);
  return out;
}

}  // namespace warpweave
