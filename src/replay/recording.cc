#include "replay/recording.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/json_file.h"
#include "base/mapped_file.h"
#include "kv/latent_token.h"

namespace warpweave {
namespace {

using nlohmann::json;

constexpr char kMagic[8] = {'W', 'W', 'B', 'A', 'T', 'C', 'H', 0};
constexpr uint32_t kVersion = 1;
constexpr size_t kPrefixBytes = sizeof(kMagic) + 2 * sizeof(uint32_t);
constexpr size_t kMaxHeaderBytes = 1 << 20;
constexpr int kMaxLayers = 1024;
constexpr int64_t kMaxSide = 1 << 24;  // any dimension

Status broken(const std::string& text) { return Status::data_loss("recording: " + text); }

// Every array of a recording, in the order of the file. `Visit` takes (vector&, element count).
struct LayerSizes {
  uint64_t rows, q, out, k, v, k_blocks, v_blocks;
};

LayerSizes sizes_of(const Recording& r, const RecordedLayer& layer) {
  const AttentionCall& c = layer.call;
  const uint64_t heads = static_cast<uint64_t>(r.num_tokens()) * c.num_q_heads;
  const uint64_t slots = static_cast<uint64_t>(r.num_pages) * r.page_size * c.num_kv_heads;
  const uint64_t bits = kv_format_bits(layer.kv_format);
  const bool fp4 = layer.kv_format == KvFormat::fp4_e2m1;
  const uint64_t k_dim = kv_stored_dim(layer.kv_format, c.head_dim),
                 v_dim = kv_stored_dim(layer.kv_format, c.v_head_dim);
  return {heads,
          heads * c.head_dim,
          heads * c.v_head_dim,
          slots * k_dim * bits / 8,
          layer.latent ? 0 : slots * v_dim * bits / 8,
          fp4 ? slots * c.head_dim / kFp4BlockElements : 0,
          fp4 ? slots * c.v_head_dim / kFp4BlockElements : 0};
}

template <typename R, typename Visit>
void visit_arrays(R& r, Visit visit) {
  const uint64_t tokens = static_cast<uint64_t>(r.num_tokens());
  visit(r.positions, tokens);
  visit(r.kv_slots, tokens);
  visit(r.page_table, static_cast<uint64_t>(r.num_reqs()) * r.page_table_stride);
  visit(r.tree_mask, tokens * r.tree_mask_words);
  for (auto& layer : r.layers) {
    const LayerSizes sizes = sizes_of(r, layer);
    visit(layer.q, sizes.q);
    visit(layer.k, sizes.k);
    visit(layer.v, sizes.v);
    visit(layer.k_blocks, sizes.k_blocks);
    visit(layer.v_blocks, sizes.v_blocks);
    visit(layer.out, sizes.out);
  }
}

json header_of(const Recording& r) {
  json layers = json::array();
  for (const RecordedLayer& layer : r.layers) {
    const AttentionCall& c = layer.call;
    layers.push_back({{"layer", c.layer},           {"decode", layer.decode},
                      {"num_q_heads", c.num_q_heads}, {"num_kv_heads", c.num_kv_heads},
                      {"head_dim", c.head_dim},     {"v_head_dim", c.v_head_dim},
                      {"scale", c.scale},           {"window_left", c.window_left},
                      {"window_right", c.window_right},
                      {"logit_softcap", c.logit_softcap},
                      {"kv_format", std::string(kv_format_name(layer.kv_format))},
                      {"sinks", layer.sinks},       {"k_scales", layer.k_scales},
                      {"v_scales", layer.v_scales}});
    layers.back()["latent"] = layer.latent;
  }
  return {{"program", r.program},       {"backend", r.backend},
          {"forward", r.forward},       {"mode", static_cast<int>(r.mode)},
          {"page_size", r.page_size},   {"num_pages", r.num_pages},
          {"page_table_stride", r.page_table_stride},
          {"causal", r.causal},         {"tree_mask_words", r.tree_mask_words},
          {"q_indptr", r.q_indptr},     {"kv_lens", r.kv_lens},
          {"layers", layers}};
}

// Reads fields of one JSON object; the first wrong one is remembered.
class Fields {
 public:
  explicit Fields(const json& object) : object_(object) {
    if (!object.is_object()) fail("header", "is not an object");
  }

  const Status& status() const { return status_; }
  void fail(const char* name, const std::string& text) {
    if (status_.ok()) status_ = broken(fmt::format("{} {}", name, text));
  }
  const json* find(const char* name) {
    if (!status_.ok()) return nullptr;
    const auto found = object_.find(name);
    if (found == object_.end()) return fail(name, "is missing"), nullptr;
    return &*found;
  }
  template <typename T>
  void integer(const char* name, T& out, int64_t min, int64_t max) {
    const json* value = find(name);
    if (value == nullptr) return;
    if (!value->is_number_integer()) return fail(name, "is not an integer");
    const bool large =
        value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
    if (large || value->get<int64_t>() < min || value->get<int64_t>() > max) {
      return fail(name, fmt::format("is {}, must be {} to {}", value->dump(), min, max));
    }
    out = static_cast<T>(value->get<int64_t>());
  }
  void number(const char* name, float& out) {
    const json* value = find(name);
    if (value == nullptr) return;
    if (!value->is_number() || !std::isfinite(value->get<float>()))
      return fail(name, "is not a finite number");
    out = value->get<float>();
  }
  void boolean(const char* name, bool& out) {
    const json* value = find(name);
    if (value == nullptr) return;
    if (!value->is_boolean()) return fail(name, "is not true or false");
    out = value->get<bool>();
  }
  void text(const char* name, std::string& out) {
    const json* value = find(name);
    if (value == nullptr) return;
    if (!value->is_string() || value->get_ref<const std::string&>().size() > 256) {
      return fail(name, "is not a short string");
    }
    out = value->get<std::string>();
  }
  void integers(const char* name, std::vector<int32_t>& out) {
    const json* value = find(name);
    if (value == nullptr) return;
    if (!value->is_array()) return fail(name, "is not an array");
    for (const json& item : *value) {
      if (!item.is_number_integer() || item.get<int64_t>() < 0 || item.get<int64_t>() > kMaxSide) {
        return fail(name, "holds something else than integers from 0");
      }
      out.push_back(item.get<int32_t>());
    }
  }
  // Empty, or `count` of them.
  void numbers(const char* name, std::vector<float>& out, int count) {
    const json* value = find(name);
    if (value == nullptr) return;
    if (!value->is_array() || (!value->empty() && value->size() != static_cast<size_t>(count))) {
      return fail(name, fmt::format("is not an array of 0 or {} numbers", count));
    }
    for (const json& item : *value) {
      if (!item.is_number()) return fail(name, "holds something else than numbers");
      out.push_back(item.get<float>());
    }
  }

 private:
  const json& object_;
  Status status_;
};

Status read_layer(const json& header, RecordedLayer& layer) {
  Fields fields(header);
  AttentionCall& c = layer.call;
  std::string format;
  fields.integer("layer", c.layer, 0, kMaxLayers * 16);
  fields.boolean("decode", layer.decode);
  fields.integer("num_kv_heads", c.num_kv_heads, 1, 1 << 16);
  fields.integer("num_q_heads", c.num_q_heads, 1, 1 << 16);
  fields.integer("head_dim", c.head_dim, 1, 1 << 14);
  fields.integer("v_head_dim", c.v_head_dim, 1, 1 << 14);
  fields.number("scale", c.scale);
  fields.integer("window_left", c.window_left, -1, kMaxSide);
  // Recordings of before have none.
  if (header.contains("window_right")) fields.integer("window_right", c.window_right, -1, kMaxSide);
  if (header.contains("latent")) fields.boolean("latent", layer.latent);
  fields.number("logit_softcap", c.logit_softcap);
  fields.text("kv_format", format);
  WW_RETURN_IF_ERROR(fields.status());
  if (c.num_q_heads % c.num_kv_heads != 0)
    return broken("num_q_heads is no multiple of num_kv_heads");
  const std::optional<KvFormat> parsed = parse_kv_format(format);
  if (!parsed) return broken("kv_format is not known");
  layer.kv_format = *parsed;
  if (*parsed == KvFormat::fp4_e2m1 &&
      (c.head_dim % kFp4BlockElements || c.v_head_dim % kFp4BlockElements)) {
    return broken("head_dim is no multiple of 16 under fp4_e2m1");
  }
  if (kv_format_is_packed(*parsed) &&
      (c.num_kv_heads != 1 || c.head_dim != kPackedTokenDim || c.v_head_dim != kPackedLatentDim)) {
    return broken("kv_format is one of latent attention of 512 + 64 values, and the dims are others");
  }
  const bool fits = c.num_kv_heads == 1 && c.v_head_dim <= c.head_dim && *parsed != KvFormat::fp4_e2m1;
  if (layer.latent ? !fits : kv_format_is_packed(*parsed)) {
    return broken(layer.latent ? "latent is true, and the heads, dims or kv_format are not of latent attention"
                               : "kv_format is one of latent attention, and latent is not true; record it again");
  }
  fields.numbers("sinks", layer.sinks, c.num_q_heads);
  fields.numbers("k_scales", layer.k_scales, c.num_kv_heads);
  fields.numbers("v_scales", layer.v_scales, c.num_kv_heads);
  WW_RETURN_IF_ERROR(fields.status());
  if ((!layer.k_scales.empty() || !layer.v_scales.empty()) && !kv_format_is_scaled(*parsed)) {
    return broken("k_scales stand beside a format without scales");
  }
  c.q_token_stride = int64_t{c.num_q_heads} * c.head_dim;
  c.out_token_stride = int64_t{c.num_q_heads} * c.v_head_dim;
  return {};
}

Status read_header(const json& header, Recording& r) {
  Fields fields(header);
  int mode = 0;
  fields.text("program", r.program);
  fields.text("backend", r.backend);
  fields.integer("forward", r.forward, 1, INT64_MAX);
  fields.integer("mode", mode, 0, static_cast<int>(ForwardMode::draft_extend));
  fields.integer("page_size", r.page_size, 1, kMaxSide);
  fields.integer("num_pages", r.num_pages, 0, kMaxSide);
  fields.integer("page_table_stride", r.page_table_stride, 0, kMaxSide);
  fields.boolean("causal", r.causal);
  fields.integer("tree_mask_words", r.tree_mask_words, 0, kMaxSide);
  fields.integers("q_indptr", r.q_indptr);
  fields.integers("kv_lens", r.kv_lens);
  const json* layers = fields.find("layers");
  WW_RETURN_IF_ERROR(fields.status());
  r.mode = static_cast<ForwardMode>(mode);
  if (int64_t{r.num_pages} * r.page_size > kMaxSide)
    return broken("num_pages of page_size are more than a file holds");
  if (r.q_indptr.size() != r.kv_lens.size() + 1 || r.q_indptr[0] != 0 ||
      !std::is_sorted(r.q_indptr.begin(), r.q_indptr.end())) {
    return broken("q_indptr does not rise from 0 over the requests");
  }
  if (!layers->is_array() || layers->size() > kMaxLayers)
    return broken("layers is not an array of layers");
  for (const json& layer : *layers) WW_RETURN_IF_ERROR(read_layer(layer, r.layers.emplace_back()));
  return {};
}

// What a backend relies on.
Status check_batch_arrays(const Recording& r) {
  for (int i = 0; i < r.num_reqs(); ++i) {
    const int q_len = r.q_indptr[i + 1] - r.q_indptr[i], kv_len = r.kv_lens[i];
    if (r.causal && kv_len > 0 && q_len > kv_len)
      return broken(fmt::format("request {} has more rows than tokens", i));
    const int64_t pages = (int64_t{kv_len} + r.page_size - 1) / r.page_size;
    if (pages > r.page_table_stride) return broken(fmt::format("request {} has too few pages", i));
    for (int64_t p = 0; p < pages; ++p) {
      const int32_t page = r.page_table[static_cast<size_t>(i) * r.page_table_stride + p];
      if (page < 0 || page >= r.num_pages)
        return broken(fmt::format("request {} has a page that is not there", i));
    }
    if (r.tree_mask_words != 0 && (q_len > kv_len || r.tree_mask_words < (q_len + 31) / 32)) {
      return broken(fmt::format("request {} has too small a tree mask", i));
    }
  }
  return {};
}

}  // namespace

ForwardBatch Recording::batch() const {
  ForwardBatch batch;
  batch.mode = mode;
  batch.num_reqs = num_reqs();
  batch.num_tokens = num_tokens();
  for (int r = 0; r < num_reqs(); ++r) {
    batch.max_q_len = std::max(batch.max_q_len, q_indptr[r + 1] - q_indptr[r]);
    batch.max_kv_len = std::max(batch.max_kv_len, kv_lens[r]);
  }
  batch.page_size = page_size;
  batch.positions = positions;
  batch.kv_slots = kv_slots;
  batch.q_indptr = q_indptr;
  batch.kv_lens = kv_lens;
  batch.page_table = page_table;
  batch.page_table_stride = page_table_stride;
  batch.tree_mask = tree_mask;
  batch.tree_mask_words = tree_mask_words;
  batch.causal = causal;
  return batch;
}

AttentionCall Recording::call(const RecordedLayer& layer, float* out, float* lse) const {
  AttentionCall call = layer.call;
  auto pool = [&](const std::vector<uint8_t>& data, const std::vector<uint8_t>& blocks,
                  const std::vector<float>& scales, int head_dim) {
    const int dim = kv_stored_dim(layer.kv_format, head_dim);
    KvPoolView view;
    view.data = data.data();
    view.format = layer.kv_format;
    view.head_stride = dim;
    view.token_stride = int64_t{call.num_kv_heads} * dim;
    view.page_stride = page_size * view.token_stride;
    view.block_scales = blocks.empty() ? nullptr : blocks.data();
    view.head_scales = scales.empty() ? nullptr : scales.data();
    return view;
  };
  call.k = pool(layer.k, layer.k_blocks, layer.k_scales, call.head_dim);
  call.v = layer.latent ? call.k : pool(layer.v, layer.v_blocks, layer.v_scales, call.v_head_dim);
  call.sinks = layer.sinks.empty() ? nullptr : layer.sinks.data();
  call.q = layer.q.data();
  call.out = out;
  call.lse = lse;
  return call;
}

uint64_t recording_bytes(const Recording& recording) {
  uint64_t bytes = kPrefixBytes + kMaxHeaderBytes;
  visit_arrays(recording,
               [&](const auto& array, uint64_t count) { bytes += count * sizeof(array[0]); });
  return bytes;
}

Status write_recording(const Recording& recording, const std::string& path) {
  const std::string header = header_of(recording).dump();
  if (header.size() > kMaxHeaderBytes) {
    return Status::resource_exhausted(
        fmt::format("{}: {} requests are too many to record", path, recording.num_reqs()));
  }
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  const uint32_t prefix[2] = {kVersion, static_cast<uint32_t>(header.size())};
  file.write(kMagic, sizeof(kMagic));
  file.write(reinterpret_cast<const char*>(prefix), sizeof(prefix));
  file.write(header.data(), static_cast<std::streamsize>(header.size()));
  visit_arrays(recording, [&](const auto& array, uint64_t) {
    file.write(reinterpret_cast<const char*>(array.data()),
               static_cast<std::streamsize>(array.size() * sizeof(array[0])));
  });
  file.close();
  if (file) return {};
  // A part of a recording is none. What is no file, such as /dev/full, stays.
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) std::filesystem::remove(path, ignored);
  return Status::resource_exhausted(path +
                                    ": cannot be written; a folder with room that this user may write to is needed");
}

Result<Recording> parse_recording(std::string_view bytes) {
  if (bytes.size() < kPrefixBytes || std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0) {
    return broken("the file does not begin as one; write it with --dump-batch");
  }
  uint32_t prefix[2];
  std::memcpy(prefix, bytes.data() + sizeof(kMagic), sizeof(prefix));
  if (prefix[0] != kVersion) {
    return Status::unsupported(
        fmt::format("recording: has version {}, this program reads {}", prefix[0], kVersion));
  }
  if (prefix[1] > kMaxHeaderBytes || prefix[1] > bytes.size() - kPrefixBytes)
    return broken("the header is cut");
  WW_ASSIGN_OR_RETURN(const json header, read_json<json>(bytes.substr(kPrefixBytes, prefix[1]),
                                                          {"recording: the header", StatusCode::data_loss}));
  Recording recording;
  WW_RETURN_IF_ERROR(read_header(header, recording));

  std::string_view rest = bytes.substr(kPrefixBytes + prefix[1]);
  __int128 wanted = 0;
  visit_arrays(recording, [&](auto& array, uint64_t count) {
    wanted += static_cast<__int128>(count) * sizeof(array[0]);
  });
  if (wanted != static_cast<__int128>(rest.size()) || rest.size() > kMaxRecordingBytes) {
    return broken(fmt::format("the arrays take {} bytes, the header says otherwise", rest.size()));
  }
  visit_arrays(recording, [&](auto& array, uint64_t count) {
    array.resize(count);
    const size_t size = count * sizeof(array[0]);
    if (size > 0) std::memcpy(array.data(), rest.data(), size);
    rest.remove_prefix(size);
  });
  WW_RETURN_IF_ERROR(check_batch_arrays(recording));
  return recording;
}

Result<Recording> read_recording(const std::string& path) {
  WW_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  Result<Recording> recording = parse_recording(file.text());
  WW_RETURN_IF_ERROR(file.intact());  // before its contents are blamed
  if (!recording.ok()) return recording.status().with_context(path);
  return recording;
}

}  // namespace warpweave
