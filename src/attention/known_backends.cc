// The names users may write. What is written in src/attention/backends has its own Caps, built into this
// program or not; the rest is declared below from the field's documentation: the floor that an
// implementation must reach.
#include <algorithm>
#include <deque>
#include <mutex>
#include <vector>

#include "attention/base_caps.h"
#include "attention/registry.h"
#include "flags/nearest_name.h"

namespace warpweave {
namespace {

using A = DeviceArch;
using K = AttentionKind;
using F = KvFormat;

constexpr EnumSet<A> kAmpereUp = {A::sm_80,  A::sm_86,  A::sm_89,  A::sm_90,
                                  A::sm_100, A::sm_103, A::sm_120, A::sm_121};
constexpr EnumSet<A> kAmd = {A::gfx90a, A::gfx942, A::gfx950};
constexpr EnumSet<A> kTileDevices = {A::sm_75,  A::sm_80,  A::sm_86,  A::sm_89,
                                     A::sm_90,  A::sm_100, A::sm_103, A::sm_120,
                                     A::sm_121, A::gfx90a, A::gfx942, A::gfx950};
constexpr EnumSet<F> k16BitKv = {F::bf16, F::f16};
constexpr EnumSet<F> kFp8Kv = {F::bf16, F::f16, F::fp8_e4m3, F::fp8_e5m2};
constexpr EnumSet<F> kFp8Fp4Kv = {F::bf16, F::f16, F::fp8_e4m3, F::fp8_e5m2, F::fp4_e2m1};
constexpr EnumSet<F> kFp4Kv = {F::bf16, F::f16, F::fp4_e2m1};
// Of latent rows.
constexpr EnumSet<F> kFp8Fp4Rows = {F::bf16, F::f16, F::fp8_e4m3, F::fp8_e5m2, F::fp4_mla};
constexpr EnumSet<F> kFp4Rows = {F::bf16, F::f16, F::fp4_mla};
constexpr IntChoice kAnyPage = IntChoice::any_up_to();
constexpr IntChoice kMlaDims = IntChoice::of({512, 576});

// clang-format off
constexpr Caps kDeclared[] = {
    {.name = "flashinfer", .summary = "plan/run over ragged page tables, sm_80 and up",
     .kinds = {K::mha}, .phases = kBothPhases, .archs = kAmpereUp, .dtypes = k16Bit,
     .kv_formats = kFp8Kv, .head_dims = IntChoice::of({64, 128, 256}), .page_sizes = kAnyPage,
     .spec = SpecSupport::tree, .spec_paged = SpecSupport::tree, .sliding_window = true,
     .softcap = true, .custom_mask = true, .chunked_prefix = true, .graph_capture = true,
     .deterministic = true},
    {.name = "fa3", .summary = "Hopper: TMA and WGMMA, split-KV decode",
     .kinds = {K::mha}, .phases = kBothPhases, .archs = {A::sm_90}, .min_cuda_version = 12030,
     .dtypes = k16Bit, .kv_formats = {F::bf16, F::f16, F::fp8_e4m3},
     .head_dims = IntChoice::of({64, 96, 128, 192, 256}), .page_sizes = kAnyPage,
     .spec = SpecSupport::tree, .spec_paged = SpecSupport::chain,
     .sliding_window = true, .sinks = true, .softcap = true, .custom_mask = true,
     .chunked_prefix = true, .graph_capture = true, .deterministic = true},
    {.name = "fa4", .summary = "polynomial exp2 and lazy rescale, sm_90 and sm_100, page 128",
     .kinds = {K::mha}, .phases = kBothPhases, .archs = {A::sm_90, A::sm_100, A::sm_103}, .hybrid_archs = kAllArchs,
     .dtypes = k16Bit, .kv_formats = kFp4Kv, .decode_kv_formats = k16BitKv, .fp4_layout = 1,
     .head_dims = IntChoice::of({64, 96, 128}),
     .page_sizes = IntChoice::of({128}), .sliding_window = true, .sinks = true, .softcap = true,
     .chunked_prefix = true, .graph_capture = true, .deterministic = true},
    {.name = "triton", .summary = "the portable tile kernels, on every GPU",
     .kinds = {K::mha}, .phases = kBothPhases, .archs = kTileDevices, .hybrid_archs = kAllArchs, .dtypes = k16Bit,
     .kv_formats = kFp8Fp4Kv, .head_dims = IntChoice::any_up_to(512),
     .page_sizes = IntChoice::of({1}), .expands_pages = true, .spec = SpecSupport::tree,
     .spec_paged = SpecSupport::chain, .sliding_window = true, .sinks = true, .softcap = true,
     .custom_mask = true, .chunked_prefix = true, .graph_capture = true, .deterministic = true},
    {.name = "torch_native", .summary = "per-sequence attention over gathered K and V",
     .kinds = {K::mha}, .phases = kBothPhases,
     .archs = {A::cpu_x86_64, A::cpu_other, A::sm_75, A::sm_80, A::sm_86, A::sm_89, A::sm_90,
               A::sm_100, A::sm_103, A::sm_120, A::sm_121, A::gfx90a, A::gfx942, A::gfx950},
     .dtypes = k16Bit, .kv_formats = kFp8Fp4Kv, .head_dims = IntChoice::any_up_to(512),
     .page_sizes = IntChoice::of({1}), .expands_pages = true, .chunked_prefix = true},
    {.name = "flex_attention", .summary = "user score and mask modifiers, block-sparse",
     .kinds = {K::mha}, .phases = kBothPhases, .archs = kAmpereUp, .dtypes = k16Bit,
     .kv_formats = kFp4Kv, .head_dims = IntChoice::any_up_to(256),
     .page_sizes = IntChoice::of({1}), .expands_pages = true, .custom_mask = true,
     .chunked_prefix = true},
    {.name = "trtllm_mha", .summary = "swap-AB decode; prefill too on Blackwell",
     .kinds = {K::mha}, .phases = kBothPhases,
     .archs = {A::sm_90, A::sm_100, A::sm_103, A::sm_120},
     .prefill_archs = {A::sm_100, A::sm_103, A::sm_120}, .hybrid_archs = kAllArchs, .dtypes = k16Bit,
     .kv_formats = kFp8Fp4Kv, .fp4_layout = 2, .head_dims = IntChoice::of({64, 128, 256}),
     .page_sizes = IntChoice::of({16, 32, 64, 128}), .spec = SpecSupport::chain,
     .spec_paged = SpecSupport::chain, .sliding_window = true, .sinks = true,
     .chunked_prefix = true, .graph_capture = true},
    {.name = "dual_chunk_flash_attn", .summary = "dual chunk attention of Qwen2.5-1M",
     .kinds = {K::mha}, .phases = kBothPhases, .archs = {A::sm_80, A::sm_89, A::sm_90},
     .dtypes = k16Bit, .kv_formats = k16BitKv, .head_dims = IntChoice::of({128}),
     .page_sizes = kAnyPage, .chunked_prefix = true, .dual_chunk = true},
    {.name = "aiter", .summary = "ROCm kernels (MFMA)",
     .kinds = {K::mha}, .phases = kBothPhases, .archs = {A::gfx942, A::gfx950},
     .dtypes = k16Bit, .kv_formats = kFp8Kv, .head_dims = IntChoice::any_up_to(256),
     .page_sizes = kAnyPage, .spec = SpecSupport::tree, .spec_paged = SpecSupport::tree,
     .sliding_window = true, .softcap = true, .custom_mask = true, .chunked_prefix = true,
     .graph_capture = true},
    {.name = "wave", .summary = "ROCm kernels, the smaller set",
     .kinds = {K::mha}, .phases = kBothPhases, .archs = kAmd, .dtypes = k16Bit,
     .kv_formats = k16BitKv, .head_dims = IntChoice::of({64, 128}), .page_sizes = kAnyPage,
     .chunked_prefix = true, .graph_capture = true},
    {.name = "ascend", .summary = "Ascend NPU, page 128",
     .kinds = {K::mha}, .phases = kBothPhases, .archs = {A::ascend_npu},
     .dtypes = k16Bit, .kv_formats = k16BitKv, .head_dims = IntChoice::any_up_to(256),
     .page_sizes = IntChoice::of({128}), .spec = SpecSupport::chain,
     .spec_paged = SpecSupport::chain, .sliding_window = true, .chunked_prefix = true,
     .graph_capture = true},
    {.name = "intel_xpu", .summary = "Intel GPU: OpenCL subgroups",
     .kinds = {K::mha}, .phases = kBothPhases, .archs = {A::intel_xe}, .dtypes = k16Bit,
     .kv_formats = k16BitKv, .head_dims = IntChoice::of({64, 96, 128, 192, 256}),
     .page_sizes = IntChoice::of({32, 64, 128}), .sliding_window = true, .chunked_prefix = true},
    {.name = "intel_amx", .summary = "CPU kernels, the tier chosen at run time",
     .kinds = {K::mha}, .phases = kBothPhases, .archs = {A::cpu_x86_64},
     .dtypes = k16Bit, .kv_formats = k16BitKv, .head_dims = IntChoice::any_up_to(256),
     .page_sizes = IntChoice::of({1}), .expands_pages = true, .chunked_prefix = true},
    // MLA: the same names where a backend has MLA kernels, with their own limits.
    {.name = "flashinfer", .summary = "MLA over ragged page tables, page 1",
     .kinds = {K::mla}, .phases = kBothPhases, .archs = kAmpereUp, .dtypes = k16Bit,
     .kv_formats = kFp4Rows, .head_dims = kMlaDims, .page_sizes = IntChoice::of({1}),
     .spec = SpecSupport::chain, .chunked_prefix = true, .mla_chunked_prefix = true, .graph_capture = true},
    {.name = "flashmla", .summary = "MLA, page 64",
     .kinds = {K::mla}, .phases = kBothPhases, .archs = {A::sm_90, A::sm_100}, .dtypes = k16Bit,
     .kv_formats = kFp8Fp4Rows, .head_dims = kMlaDims, .page_sizes = IntChoice::of({64}),
     .spec = SpecSupport::chain, .spec_paged = SpecSupport::chain, .chunked_prefix = true, .mla_chunked_prefix = true,
     .graph_capture = true},
    {.name = "cutlass_mla", .summary = "MLA on Blackwell, page 128",
     .kinds = {K::mla}, .phases = kBothPhases, .archs = {A::sm_100, A::sm_103}, .dtypes = k16Bit,
     .kv_formats = kFp8Fp4Rows, .head_dims = kMlaDims, .page_sizes = IntChoice::of({128}),
     .spec = SpecSupport::chain, .spec_paged = SpecSupport::chain, .chunked_prefix = true, .mla_chunked_prefix = true,
     .graph_capture = true},
    {.name = "trtllm_mla", .summary = "MLA on Blackwell, pages 32 and 64",
     .kinds = {K::mla}, .phases = kBothPhases, .archs = {A::sm_100, A::sm_103}, .dtypes = k16Bit,
     .kv_formats = kFp8Fp4Rows, .head_dims = kMlaDims, .page_sizes = IntChoice::of({32, 64}),
     .spec = SpecSupport::chain, .spec_paged = SpecSupport::chain, .chunked_prefix = true, .mla_chunked_prefix = true,
     .graph_capture = true},
    {.name = "fa3", .summary = "MLA on Hopper",
     .kinds = {K::mla}, .phases = kBothPhases, .archs = {A::sm_90}, .min_cuda_version = 12030,
     .dtypes = k16Bit, .kv_formats = k16BitKv, .head_dims = kMlaDims,
     .page_sizes = IntChoice::of({1}), .expands_pages = true, .spec = SpecSupport::tree,
     .spec_paged = SpecSupport::chain, .custom_mask = true, .chunked_prefix = true, .mla_chunked_prefix = true,
     .graph_capture = true, .deterministic = true},
    {.name = "triton", .summary = "MLA by portable tile kernels",
     .kinds = {K::mla}, .phases = kBothPhases, .archs = kTileDevices, .hybrid_archs = kAllArchs, .dtypes = k16Bit,
     .kv_formats = k16BitKv, .head_dims = kMlaDims, .page_sizes = IntChoice::of({1}),
     .expands_pages = true, .spec = SpecSupport::tree, .spec_paged = SpecSupport::chain,
     .custom_mask = true, .chunked_prefix = true, .graph_capture = true, .deterministic = true},
    {.name = "fa4", .summary = "MLA, page 1",
     .kinds = {K::mla}, .phases = kBothPhases, .archs = {A::sm_100, A::sm_103}, .hybrid_archs = kAllArchs,
     .dtypes = k16Bit, .kv_formats = kFp4Rows, .head_dims = kMlaDims, .page_sizes = IntChoice::of({1}),
     .chunked_prefix = true, .mla_chunked_prefix = true, .graph_capture = true},
    {.name = "aiter", .summary = "MLA on ROCm",
     .kinds = {K::mla}, .phases = kBothPhases, .archs = {A::gfx942, A::gfx950}, .dtypes = k16Bit,
     .kv_formats = k16BitKv, .head_dims = kMlaDims, .page_sizes = IntChoice::of({1}), .expands_pages = true,
     .chunked_prefix = true, .graph_capture = true},
    {.name = "ascend", .summary = "MLA on Ascend NPU, page 128",
     .kinds = {K::mla}, .phases = kBothPhases, .archs = {A::ascend_npu}, .dtypes = k16Bit,
     .kv_formats = k16BitKv, .head_dims = kMlaDims, .page_sizes = IntChoice::of({128}),
     .chunked_prefix = true, .graph_capture = true},
    {.name = "nsa", .summary = "DeepSeek sparse attention (DSA), top-k 2048, page 64",
     .kinds = {K::sparse}, .phases = kBothPhases, .archs = {A::sm_90, A::sm_100, A::sm_103},
     .dtypes = {ModelDType::bf16}, .kv_formats = {F::bf16, F::fp8_e4m3}, .head_dims = kMlaDims,
     .page_sizes = IntChoice::of({64}), .spec = SpecSupport::chain,
     .spec_paged = SpecSupport::chain, .chunked_prefix = true, .graph_capture = true},
};
// clang-format on

const BackendRegistration* find_built(const Caps* caps) {
  for (const BackendRegistration& built : built_backends()) {
    if (built.caps == caps) return &built;
  }
  return nullptr;
}

// Those of the source tree, and what plug-ins brought.
std::vector<KnownBackend> existing_backends() {
  std::vector<KnownBackend> list;
  for (const Caps* caps : written_backends()) {
    const BackendRegistration* built = find_built(caps);
    list.push_back({caps, built != nullptr, built != nullptr ? built->probe : nullptr, true});
  }
  for (const BackendRegistration& built : built_backends()) {
    const bool listed = std::any_of(list.begin(), list.end(),
                                    [&](const KnownBackend& entry) { return entry.caps == built.caps; });
    if (!listed && built.caps->selectable) list.push_back({built.caps, true, built.probe, true});
  }
  return list;
}

std::vector<KnownBackend> list_known_backends() {
  static std::deque<Caps> narrowed;  // declared Caps of the devices for which nothing is written
  std::vector<KnownBackend> existing = existing_backends(), known;
  for (const Caps& declared : kDeclared) {
    EnumSet<A> missing = declared.archs;
    std::erase_if(existing, [&](const KnownBackend& entry) {
      if (entry.caps->name != declared.name || !(entry.caps->kinds.bits & declared.kinds.bits)) return false;
      missing.bits &= ~entry.caps->archs.bits;
      known.push_back(entry);
      return true;
    });
    if (missing.bits == declared.archs.bits) {
      known.push_back({&declared, false});
    } else if (missing.bits != 0) {
      narrowed.push_back(declared);
      narrowed.back().archs = missing;
      known.push_back({&narrowed.back(), false});
    }
  }
  known.insert(known.end(), existing.begin(), existing.end());
  return known;
}

}  // namespace

std::span<const KnownBackend> known_backends() {
  static std::mutex mutex;
  static std::vector<KnownBackend> known;
  static size_t built_count = 0;
  const std::lock_guard lock(mutex);
  if (known.empty() || built_count != built_backends().size()) {
    known = list_known_backends();
    built_count = built_backends().size();
  }
  return known;
}

std::span<const Caps> declared_backends() { return kDeclared; }

std::vector<KnownBackend> known_backends_as_built() {
  std::vector<KnownBackend> all(known_backends().begin(), known_backends().end());
  for (KnownBackend& backend : all) {
    backend.built = backend.written;
    backend.probe = nullptr;
  }
  return all;
}

std::vector<KnownBackend> known_backends_as_written() {
  std::vector<KnownBackend> all = known_backends_as_built();
  for (KnownBackend& backend : all) backend.built = true;
  return all;
}

std::string_view nearest_backend_name(std::string_view name) {
  name = name.substr(0, 64);  // a bound on the work: no name is longer
  std::string_view best = kDeclared[0].name;
  for (const KnownBackend& backend : known_backends()) {
    if (edit_distance(name, backend.caps->name) < edit_distance(name, best)) {
      best = backend.caps->name;
    }
  }
  return best;
}

}  // namespace warpweave
