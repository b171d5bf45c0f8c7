#include "attention/select_rules.h"

#include <fmt/format.h>

#include <algorithm>

namespace warpweave {
namespace {

constexpr EnumSet<DeviceArch> kBlackwellDatacentre = {DeviceArch::sm_100, DeviceArch::sm_103};
constexpr EnumSet<DeviceArch> kAmd = {DeviceArch::gfx90a, DeviceArch::gfx942, DeviceArch::gfx950};

std::string cuda_version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::optional<BrokenRule> check_device(const SelectionInput& input, const KnownBackend& backend,
                                       AttentionPhase phase) {
  const Caps& caps = *backend.caps;
  const HardwareFacts& hardware = *input.hardware;
  if (!caps.archs.has(hardware.arch)) {
    return BrokenRule{fmt::format("has no kernels for {}", arch_name(hardware.arch)), ""};
  }
  if (phase == AttentionPhase::prefill && caps.prefill_archs.bits != 0 &&
      !caps.prefill_archs.has(hardware.arch)) {
    return BrokenRule{fmt::format("runs only decode on {}", arch_name(hardware.arch)), ""};
  }
  if (hardware.cuda_version < caps.min_cuda_version) {
    return BrokenRule{fmt::format("needs CUDA {} or later; this is {}",
                                  cuda_version_text(caps.min_cuda_version),
                                  cuda_version_text(hardware.cuda_version)), ""};
  }
  if (!backend.built) {
    return BrokenRule{backend.written ? "is not built into this program"
                                      : fmt::format("is not written yet for {}", arch_name(hardware.arch)), ""};
  }
  if (backend.probe != nullptr) {
    if (const Status status = backend.probe(Probe::quick); !status.ok()) {
      return BrokenRule{"cannot run here: " + status.message(), ""};
    }
  }
  return std::nullopt;
}

std::optional<BrokenRule> check_model(const SelectionInput& input, const Caps& caps) {
  const ModelFacts& model = *input.model;
  const int v_dim = model.v_head_dim ? model.v_head_dim : model.head_dim;
  if (!caps.dtypes.has(model.dtype)) return BrokenRule{"does not take this model's dtype", "--dtype"};
  for (int dim : {model.head_dim, v_dim}) {
    if (!caps.head_dims.accepts(dim)) {
      return BrokenRule{fmt::format("does not take head dim {}", dim), ""};
    }
  }
  if (model.sliding_window && !caps.sliding_window) {
    return BrokenRule{"has no sliding window, which this model's layers use", ""};
  }
  if (model.sinks && !caps.sinks) return BrokenRule{"has no attention sinks, which this model uses", ""};
  if (model.softcap && !caps.softcap) {
    return BrokenRule{"has no logit softcap, which this model uses", ""};
  }
  if (model.non_causal && !caps.non_causal) {
    return BrokenRule{"attends causally only; this model has layers that attend both ways", ""};
  }
  if (model.right_window && !caps.right_window) {
    return BrokenRule{"has no window that ends behind the row, which this model's layers use", ""};
  }
  if (model.dual_chunk != caps.dual_chunk) {
    return BrokenRule{model.dual_chunk
                          ? "does not compute dual-chunk attention, which this model's config asks for"
                          : "needs a model with a dual-chunk attention config", ""};
  }
  const DeviceArch arch = input.hardware->arch;
  if (model.linear != LinearAttention::none && !caps.hybrid_archs.has(arch)) {
    return BrokenRule{
        fmt::format("does not run the full-attention layers of a hybrid linear model on {}", arch_name(arch)), ""};
  }
  return std::nullopt;
}

// Speculation needs the backend that drafts (decode) and the one that verifies.
std::optional<BrokenRule> check_speculation(const SelectionInput& input, const Caps& caps,
                                            AttentionPhase phase) {
  if (input.topk == 0) return std::nullopt;
  if (phase == AttentionPhase::prefill && input.verify_with_decode) return std::nullopt;
  if (caps.spec == SpecSupport::none) {
    return BrokenRule{"does not run speculative decoding", "--speculative-algorithm"};
  }
  if (input.topk > 1 && caps.spec == SpecSupport::chain) {
    return BrokenRule{fmt::format("verifies chains only (topk 1); topk is {}", input.topk),
                      "--speculative-eagle-topk"};
  }
  if (input.topk > 1 && !caps.custom_mask) {
    return BrokenRule{fmt::format("has no custom masks, which trees (topk {}) need", input.topk),
                      "--speculative-eagle-topk"};
  }
  const int page_size = input.page_size.value_or(1);
  if (page_size == 1) return std::nullopt;
  if (input.topk > 1 && caps.spec_paged != SpecSupport::tree) {
    return BrokenRule{fmt::format("verifies trees (topk {}) with page size 1 only; page size is {}",
                                  input.topk, page_size), "--page-size"};
  }
  if (caps.spec_paged == SpecSupport::none) {
    return BrokenRule{fmt::format("speculates with page size 1 only; page size is {}", page_size),
                      "--page-size"};
  }
  return std::nullopt;
}

}  // namespace

std::string_view phase_name(AttentionPhase phase) {
  return phase == AttentionPhase::prefill ? "prefill" : "decode";
}

bool is_unset(const std::string& backend_name) {
  return backend_name.empty() || backend_name == "auto";
}

const KnownBackend* find_entry(const SelectionInput& input, std::string_view name,
                               std::span<const KnownBackend> backends) {
  const KnownBackend* best = nullptr;
  int best_fit = -1;
  for (const KnownBackend& backend : backends) {
    if (backend.caps->name != name) continue;
    const int fit = 2 * backend.caps->kinds.has(input.model->kind) +
                    backend.caps->archs.has(input.hardware->arch);
    if (fit > best_fit) {
      best = &backend;
      best_fit = fit;
    }
  }
  return best;
}

std::string page_sizes_text(const Caps& caps) {
  if (caps.page_sizes.any) return "any";
  std::string text;
  for (int size : caps.page_sizes.values) {
    if (size != 0) text += fmt::format("{}{}", text.empty() ? "" : "/", size);
  }
  return text;
}

KvFormat model_kv_format(ModelDType dtype) {
  switch (dtype) {
    case ModelDType::f32: return KvFormat::f32;
    case ModelDType::f16: return KvFormat::f16;
    case ModelDType::bf16: break;
  }
  return KvFormat::bf16;
}

std::optional<BrokenRule> check_backend(const SelectionInput& input, const KnownBackend& backend,
                                        AttentionPhase phase) {
  const Caps& caps = *backend.caps;
  if (!caps.kinds.has(input.model->kind)) {
    return BrokenRule{fmt::format("has no {} kernels", kind_name(input.model->kind)), ""};
  }
  if (!caps.phases.has(phase)) return BrokenRule{fmt::format("does not run {}", phase_name(phase)), ""};
  if (auto broken = check_device(input, backend, phase)) return broken;
  if (auto broken = check_model(input, caps)) return broken;
  if (!caps.reads(input.kv_format, phase)) {
    return BrokenRule{fmt::format("does not read {} KV{}", kv_format_name(input.kv_format),
                                  caps.kv_formats.has(input.kv_format) ? " in decode" : ""),
                      "--kv-cache-dtype"};
  }
  if (caps.bf16_model_kv_formats.has(input.kv_format) && input.model->dtype != ModelDType::bf16) {
    return BrokenRule{
        fmt::format("reads {} KV, which holds bf16 values, for bf16 models alone", kv_format_name(input.kv_format)),
        "--kv-cache-dtype"};
  }
  if (caps.own_16_bit_kv && kv_format_bits(input.kv_format) == 16 &&
      input.kv_format != model_kv_format(input.model->dtype)) {
    return BrokenRule{
        fmt::format("reads 16-bit KV in the model's own type, and not {}", kv_format_name(input.kv_format)),
        "--kv-cache-dtype"};
  }
  if (input.page_size && !caps.page_sizes.accepts(*input.page_size) && !caps.expands_pages) {
    return BrokenRule{fmt::format("needs page size {}; --page-size is {}", page_sizes_text(caps),
                                  *input.page_size), "--page-size"};
  }
  if (phase == AttentionPhase::prefill && input.cached_prefixes && !caps.chunked_prefix) {
    return BrokenRule{"prefills whole prompts only, and not what follows a cached prefix; with "
                      "--disable-radix-cache --chunked-prefill-size -1 there is none", "--disable-radix-cache"};
  }
  if (auto broken = check_speculation(input, caps, phase)) return broken;
  if (input.deterministic && !caps.deterministic) {
    return BrokenRule{"does not claim bitwise determinism", "--enable-deterministic-inference"};
  }
  if (input.deterministic && !caps.deterministic_with(input.kv_format)) {
    return BrokenRule{fmt::format("does not claim bitwise determinism with {} KV", kv_format_name(input.kv_format)),
                      "--enable-deterministic-inference"};
  }
  if (input.deterministic && input.topk > 0 && !caps.deterministic_drafts) {
    return BrokenRule{
        "computes drafts in other tiles than single tokens, so it is bitwise deterministic only without speculation",
        "--enable-deterministic-inference"};
  }
  if (input.deterministic && input.topk > 1 && !caps.deterministic_trees) {
    return BrokenRule{
        "is bitwise deterministic with chains of drafts, and not with trees, whose keys lie elsewhere than a text's; "
        "give --speculative-eagle-topk 1",
        "--enable-deterministic-inference"};
  }
  const int group = input.model->num_kv_heads > 0 ? input.model->num_q_heads / input.model->num_kv_heads : 0;
  if (input.deterministic && caps.deterministic_group > 0 && group > caps.deterministic_group) {
    return BrokenRule{fmt::format("is bitwise deterministic for up to {} q heads a kv head; this model has {}",
                                  caps.deterministic_group, group), "--enable-deterministic-inference"};
  }
  return std::nullopt;
}

std::optional<BrokenRule> check_pair(const SelectionInput& input, const KnownBackend& prefill_backend,
                                     const KnownBackend& decode_backend) {
  const Caps &prefill = *prefill_backend.caps, &decode = *decode_backend.caps;
  if (input.kv_format == KvFormat::fp4_e2m1 && prefill.fp4_layout != 0 && decode.fp4_layout != 0 &&
      prefill.fp4_layout != decode.fp4_layout) {
    return BrokenRule{fmt::format("fp4_e2m1 KV with {} prefill needs another decode backend that reads fp4, and not {}",
                                  prefill.name, decode.name), "--decode-attention-backend"};
  }
  if (input.deterministic && prefill.name != decode.name) {
    return BrokenRule{fmt::format("{} and {} round differently, so prefill and decode cannot be "
                                  "bitwise equal", prefill.name, decode.name),
                      "--enable-deterministic-inference"};
  }
  return std::nullopt;
}

std::optional<int> common_page_size(const SelectionInput& input, const Caps& prefill,
                                    const Caps& decode) {
  auto runs = [](const Caps& caps, int size) {
    return caps.page_sizes.accepts(size) || caps.expands_pages;
  };
  if (input.page_size) {
    const int size = *input.page_size;
    return runs(prefill, size) && runs(decode, size) ? input.page_size : std::nullopt;
  }
  const SpecSupport needed = input.topk > 1    ? SpecSupport::tree
                             : input.topk == 1 ? SpecSupport::chain
                                               : SpecSupport::none;
  const bool prefill_speculates = input.topk > 0 && !input.verify_with_decode;
  // The names' own first, those of decode before those of prefill, which reads the pages less often.
  for (int size : {decode.preferred_page_size, prefill.preferred_page_size, 1, 64, 128, 32, 16, 256}) {
    if (size == 0) continue;
    if (size > 1 && (decode.spec_paged < needed || (prefill_speculates && prefill.spec_paged < needed))) {
      continue;
    }
    if (runs(prefill, size) && runs(decode, size)) return size;
  }
  return std::nullopt;
}

std::vector<std::string_view> preferred_backends(const SelectionInput& input) {
  const DeviceArch arch = input.hardware->arch;
  const bool mla = input.model->kind == AttentionKind::mla;
  if (input.model->kind == AttentionKind::sparse) return {"nsa"};
  if (input.model->dual_chunk) return {"dual_chunk_flash_attn"};
  if (kCpuArchs.has(arch)) return {"intel_amx", "torch_native"};
  if (kAmd.has(arch)) {
    // For hybrid linear models triton is the advised one on AMD.
    if (input.model->linear != LinearAttention::none) return {"triton", "aiter", "wave"};
    return {"aiter", "wave", "triton"};
  }
  if (arch == DeviceArch::intel_xe) return {"intel_xpu"};
  if (arch == DeviceArch::ascend_npu) return {"ascend"};
  // torch_native is slow, but right: where nothing faster runs.
  if (mla && arch == DeviceArch::sm_90) return {"fa3", "triton", "torch_native"};
  if (mla && kBlackwellDatacentre.has(arch)) return {"trtllm_mla", "triton", "torch_native"};
  if (mla) return {"triton", "torch_native"};
  if (arch == DeviceArch::sm_90) return {"fa3", "flashinfer", "triton", "torch_native"};
  if (kBlackwellDatacentre.has(arch)) return {"trtllm_mha", "flashinfer", "triton", "torch_native"};
  if (arch == DeviceArch::sm_75) return {"triton", "torch_native"};
  return {"flashinfer", "triton", "torch_native"};
}

}  // namespace warpweave
