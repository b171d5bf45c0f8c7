#include "attention/select_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "flags/nearest_name.h"

namespace warpweave {
namespace {

using A = DeviceArch;
using Archs = EnumSet<A>;

constexpr Archs kBlackwellDatacentre = {A::sm_100, A::sm_103};

// The entry of this name for this device; null: it has none.
const Caps* find_kernel(AttentionKind kind, std::string_view name, A arch) {
  for (const KnownBackend& backend : known_layer_backends()) {
    const Caps& caps = *backend.caps;
    if (caps.kinds.has(kind) && caps.name == name && caps.archs.has(arch)) return &caps;
  }
  return nullptr;
}

constexpr std::array<std::string_view, 4> kNsaNames = {"flashmla_sparse", "flashmla_kv",
                                                       "flashmla_auto", "fa3"};
constexpr std::array<std::string_view, 4> kLinearNames = {"triton", "cutedsl", "flashinfer", "cpu"};
constexpr std::array<std::string_view, 6> kMmNames = {"sdpa", "fa3",      "fa4",
                                                      "triton_attn", "amx_attn", "xpu_attn"};

Status unknown_name(std::string_view flag, const std::string& name,
                    std::span<const std::string_view> known) {
  std::string_view near = nearest_name(name, known);
  return Status::invalid_argument(
      fmt::format("{} is \"{}\"; known: {}; did you mean {}?", flag, name, fmt::join(known, ", "),
                  near.empty() ? known[0] : near),
      std::string(flag));
}

Status no_such_layers(std::string_view flag, const std::string& name, std::string_view layers) {
  return Status::unsupported(fmt::format("{} {}: this model has no {}", flag, name, layers),
                             std::string(flag));
}

bool knows(std::span<const std::string_view> names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string formats_text(EnumSet<KvFormat> formats) {
  std::string text;
  for (KvFormat format : {KvFormat::bf16, KvFormat::f16, KvFormat::fp8_e4m3, KvFormat::fp8_e5m2}) {
    if (formats.has(format)) text += fmt::format("{}{}", text.empty() ? "" : " or ", kv_format_name(format));
  }
  return text;
}

// Why a sparse kernel cannot run the phase; empty when it can.
std::string broken_nsa_rule(const SelectionInput& input, std::string_view name,
                            AttentionPhase phase) {
  if (name == "flashmla_auto") return {};
  const Caps* caps = find_kernel(AttentionKind::sparse, name, input.hardware->arch);
  if (caps == nullptr) return fmt::format("has no kernels for {}", arch_name(input.hardware->arch));
  if (caps->reads(input.kv_format, phase)) return {};
  const bool decode_only = caps->kv_formats.has(input.kv_format);
  return fmt::format("reads {} KV only{}", formats_text(decode_only ? caps->decode_kv_formats : caps->kv_formats),
                     decode_only ? " in decode" : "");
}

Result<std::string> resolve_nsa(const SelectionInput& input, const std::string& given,
                                AttentionPhase phase, std::vector<std::string>& reasons) {
  const bool prefill = phase == AttentionPhase::prefill;
  const bool fp8 = input.kv_format == KvFormat::fp8_e4m3;
  const std::string flag = fmt::format("--nsa-{}-backend", phase_name(phase));
  std::string name = given;
  if (is_unset(given)) {
    name = fp8 ? (prefill ? "flashmla_auto" : "flashmla_kv")
               : (prefill || input.hardware->arch != A::sm_90 ? "flashmla_sparse" : "fa3");
  } else if (!knows(kNsaNames, given)) {
    return unknown_name(flag, given, kNsaNames);
  }
  if (const std::string broken = broken_nsa_rule(input, name, phase); !broken.empty()) {
    return Status::unsupported(fmt::format("{} {} cannot run {} on {} with {} KV: it {}", flag, name,
                                           phase_name(phase), input.hardware->name,
                                           kv_format_name(input.kv_format), broken),
                               flag);
  }
  std::string reason = fmt::format("{}: {} -> {}", flag.substr(2), is_unset(given) ? "unset" : given,
                                   name);
  if (is_unset(given)) {
    reason += fmt::format(", because the KV pool is {} on {}", kv_format_name(input.kv_format),
                          arch_name(input.hardware->arch));
  }
  if (name == "flashmla_auto") {
    reason += "; per forward: total_kv_tokens < 512 * total_q_tokens runs flashmla_sparse, else "
              "flashmla_kv";
  }
  reasons.push_back(std::move(reason));
  return name;
}

std::string_view linear_name(LinearAttention kind) {
  return kind == LinearAttention::kda ? "KDA" : "GDN";
}

// What one of these names could do of a phase on this device, for the text of a refusal.
std::string linear_names_that_run(const SelectionInput& input, AttentionPhase phase) {
  std::string text;
  for (std::string_view name : kLinearNames) {
    const Caps* caps = find_kernel(AttentionKind::linear, name, input.hardware->arch);
    if (caps == nullptr || !caps->phases.has(phase)) continue;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", name);
  }
  return text.empty() ? "none" : text;
}

// The field's default, but for prompts on Hopper, where WGMMA takes them faster (docs/gpu.md), and for CPUs, which have
// kernels of their own.
std::string_view default_linear_backend(DeviceArch arch, AttentionPhase phase) {
  if (kCpuArchs.has(arch)) return "cpu";
  return arch == A::sm_90 && phase == AttentionPhase::prefill ? "cutedsl" : "triton";
}

Result<std::string> resolve_linear(const SelectionInput& input, const AttentionFlags& flags,
                                   AttentionPhase phase, std::vector<std::string>& reasons) {
  const bool prefill = phase == AttentionPhase::prefill;
  const std::string& own =
      prefill ? flags.linear_attn_prefill_backend : flags.linear_attn_decode_backend;
  const bool inherited = own.empty();
  const std::string& asked = inherited ? flags.linear_attn_backend : own;
  const std::string flag = inherited ? "--linear-attn-backend"
                                     : fmt::format("--linear-attn-{}-backend", phase_name(phase));
  const std::string name = asked.empty() ? std::string(default_linear_backend(input.hardware->arch, phase)) : asked;
  if (!knows(kLinearNames, name)) return unknown_name(flag, name, kLinearNames);
  const Caps* caps = find_kernel(AttentionKind::linear, name, input.hardware->arch);
  if (caps == nullptr || !caps->phases.has(phase)) {
    return Status::unsupported(
        fmt::format("{} {} cannot run {} of the {} layers on {}: it has no such kernel for {}; these have: {}", flag,
                    name, phase_name(phase), linear_name(input.model->linear), input.hardware->name,
                    arch_name(input.hardware->arch), linear_names_that_run(input, phase)),
        flag);
  }
  const std::string_view kernels = prefill ? caps->kernels.prefill : caps->kernels.decode;
  reasons.push_back(fmt::format("linear attention, {}: {} -> {}{}{}{}", phase_name(phase),
                                asked.empty() ? "unset" : flag, name,
                                asked.empty() ? ", the default" : ", as asked",
                                kernels.empty() ? "" : "; its kernels: ", kernels));
  return name;
}

std::string_view spec_name(SpecSupport spec) { return spec == SpecSupport::tree ? "trees" : "chains"; }

// The kernels that verify drafts: those of decode if they can, else those of prefill, else any.
Status resolve_linear_verify(const SelectionInput& input, Resolved& resolved) {
  const SpecSupport needed = resolved.speculation.topk > 1 ? SpecSupport::tree : SpecSupport::chain;
  const std::string& decode = resolved.linear.decode;
  std::vector<std::string_view> candidates = {decode, resolved.linear.prefill};
  candidates.insert(candidates.end(), kLinearNames.begin(), kLinearNames.end());
  for (std::string_view name : candidates) {
    const Caps* caps = find_kernel(AttentionKind::linear, name, input.hardware->arch);
    if (caps == nullptr || caps->spec < needed) continue;
    resolved.linear_verify = name;
    resolved.reasons.push_back(fmt::format(
        "linear attention, target verify: {}{}", name,
        name == decode ? ", as decode"
                       : fmt::format(", because {} has no verify kernel for {}", decode, spec_name(needed))));
    return {};
  }
  return Status::unsupported(fmt::format("--speculative-algorithm {}: no kernel verifies drafts in {} layers on {} ({} "
                                         "with --speculative-eagle-topk {})",
                                         resolved.speculation.algorithm, linear_name(input.model->linear),
                                         arch_name(input.hardware->arch), spec_name(needed), resolved.speculation.topk),
                             "--speculative-algorithm");
}

std::string_view default_mm_backend(DeviceArch arch) {
  if (arch == A::sm_90) return "fa3";
  if (kBlackwellDatacentre.has(arch)) return "fa4";
  if (kCpuArchs.has(arch)) return "amx_attn";
  if (arch == A::intel_xe) return "xpu_attn";
  return arch == A::ascend_npu ? "sdpa" : "triton_attn";
}

}  // namespace

std::span<const std::string_view> nsa_backend_names() { return kNsaNames; }
std::span<const std::string_view> linear_backend_names() { return kLinearNames; }
std::span<const std::string_view> mm_backend_names() { return kMmNames; }

std::string_view nsa_auto_choice(int64_t total_kv_tokens, int64_t total_q_tokens) {
  return total_kv_tokens < total_q_tokens * 512 ? "flashmla_sparse" : "flashmla_kv";
}

Status resolve_sparse_layers(const SelectionInput& input, const AttentionFlags& flags,
                             Resolved& resolved) {
  if (input.model->kind != AttentionKind::sparse) {
    if (!is_unset(flags.nsa_prefill_backend)) {
      return no_such_layers("--nsa-prefill-backend", flags.nsa_prefill_backend, "sparse attention");
    }
    if (!is_unset(flags.nsa_decode_backend)) {
      return no_such_layers("--nsa-decode-backend", flags.nsa_decode_backend, "sparse attention");
    }
    return {};
  }
  WW_ASSIGN_OR_RETURN(resolved.nsa.prefill,
                      resolve_nsa(input, flags.nsa_prefill_backend, AttentionPhase::prefill,
                                  resolved.reasons));
  WW_ASSIGN_OR_RETURN(resolved.nsa.decode, resolve_nsa(input, flags.nsa_decode_backend,
                                                       AttentionPhase::decode, resolved.reasons));
  return {};
}

Status resolve_linear_layers(const SelectionInput& input, const AttentionFlags& flags,
                             Resolved& resolved) {
  if (input.model->linear == LinearAttention::none) {
    struct Given { std::string_view flag; const std::string& name; };
    for (const Given& given : {Given{"--linear-attn-backend", flags.linear_attn_backend},
                               {"--linear-attn-prefill-backend", flags.linear_attn_prefill_backend},
                               {"--linear-attn-decode-backend", flags.linear_attn_decode_backend}}) {
      if (!given.name.empty()) return no_such_layers(given.flag, given.name, "linear attention layers");
    }
    return {};
  }
  WW_ASSIGN_OR_RETURN(resolved.linear.prefill,
                      resolve_linear(input, flags, AttentionPhase::prefill, resolved.reasons));
  WW_ASSIGN_OR_RETURN(resolved.linear.decode,
                      resolve_linear(input, flags, AttentionPhase::decode, resolved.reasons));
  return resolved.speculation.algorithm.empty() ? Status() : resolve_linear_verify(input, resolved);
}

Status resolve_vision_tower(const SelectionInput& input, const AttentionFlags& flags,
                            Resolved& resolved) {
  const std::string& given = flags.mm_attention_backend;
  const std::string flag = "--mm-attention-backend";
  if (!input.model->vision) {
    return is_unset(given) ? Status() : no_such_layers(flag, given, "vision tower");
  }
  resolved.mm = is_unset(given) ? default_mm_backend(input.hardware->arch) : given;
  if (!knows(kMmNames, resolved.mm)) return unknown_name(flag, given, kMmNames);
  if (find_kernel(AttentionKind::mm, resolved.mm, input.hardware->arch) == nullptr) {
    return Status::unsupported(fmt::format("{} {} cannot run on {}: it has no kernels for {}", flag,
                                           given, input.hardware->name,
                                           arch_name(input.hardware->arch)),
                               flag);
  }
  resolved.reasons.push_back(fmt::format("mm-attention-backend: {} -> {}{}",
                                         is_unset(given) ? "unset" : given, resolved.mm,
                                         is_unset(given) ? fmt::format(", the first choice on {}",
                                                                       arch_name(input.hardware->arch))
                                                         : ", as asked"));
  return {};
}

}  // namespace warpweave
