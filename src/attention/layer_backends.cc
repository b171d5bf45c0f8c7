// Kernels of the layers that --attention-backend does not choose for. Written are the linear ones on CPUs and on NVIDIA
// GPUs that models are served on (src/linear); the others stand here as the field's documentation claims them.
#include <vector>

#include "attention/base_caps.h"
#include "attention/registry.h"

namespace warpweave {
namespace {

using A = DeviceArch;
using K = AttentionKind;
using F = KvFormat;
using P = AttentionPhase;

constexpr EnumSet<A> kAmpereAndAda = {A::sm_80, A::sm_86, A::sm_89};
constexpr EnumSet<A> kServedCuda = {A::sm_80, A::sm_86, A::sm_89, A::sm_90};
constexpr EnumSet<A> kOtherCuda = {A::sm_75, A::sm_100, A::sm_103, A::sm_120, A::sm_121};
constexpr EnumSet<A> kOtherCudaAndAmd = {A::sm_75,  A::sm_100, A::sm_103, A::sm_120,
                                         A::sm_121, A::gfx90a, A::gfx942, A::gfx950};
constexpr EnumSet<A> kAllButHopper = {A::sm_75,  A::sm_80,  A::sm_86,  A::sm_89,
                                      A::sm_100, A::sm_103, A::sm_120, A::sm_121};
constexpr EnumSet<A> kCudaAndAmd = {A::sm_75,  A::sm_80,  A::sm_86,  A::sm_89,  A::sm_90,  A::sm_100,
                                    A::sm_103, A::sm_120, A::sm_121, A::gfx90a, A::gfx942, A::gfx950};
constexpr EnumSet<A> kAll = {A::cpu_x86_64, A::cpu_other, A::sm_75,  A::sm_80,  A::sm_86,  A::sm_89,
                             A::sm_90,      A::sm_100,    A::sm_103, A::sm_120, A::sm_121, A::gfx90a,
                             A::gfx942,     A::gfx950,    A::intel_xe, A::ascend_npu};
constexpr EnumSet<A> kHopperAndBlackwell = {A::sm_90, A::sm_100, A::sm_103};

struct LinearSupport {
  SpecSupport spec;  // of target verify
  KernelNames kernels = {};  // none: not written
};

// Linear layers keep a state instead of KV: formats, head dims and pages do not apply.
constexpr Caps linear(std::string_view name, std::string_view summary, EnumSet<P> phases, EnumSet<A> archs,
                      LinearSupport support) {
  Caps caps;
  const KernelNames& kernels = support.kernels;
  caps.name = name;
  caps.summary = summary;
  caps.kernels = kernels;
  caps.kinds = {K::linear};
  caps.phases = phases;
  caps.archs = archs;
  caps.dtypes = k16Bit;
  caps.spec = support.spec;
  // Of what is written: on every device a request's bits are those it has alone, and what GPUs run is captured.
  caps.deterministic = !kernels.decode.empty();
  caps.graph_capture = caps.deterministic && (archs.bits & kCpuArchs.bits) == 0;
  return caps;
}

// Steps, commits and, in f32, prompts run the same kernel under every name of a GPU.
constexpr KernelNames kTile = {"linear_tile", "linear_step"}, kWgmma = {"linear_wgmma", "linear_step"},
                      kOnCpu = {"linear_cpu", "linear_cpu"}, kPortable = {"linear_portable", "linear_portable"};

constexpr Caps vision(std::string_view name, std::string_view summary, EnumSet<A> archs) {
  Caps caps;
  caps.name = name;
  caps.summary = summary;
  caps.kinds = {K::mm};
  caps.phases = {P::prefill};
  caps.archs = archs;
  caps.dtypes = k16Bit;
  caps.non_causal = true;
  return caps;
}

constexpr Caps sparse(std::string_view name, EnumSet<A> archs, EnumSet<F> kv_formats, EnumSet<F> decode_formats) {
  Caps caps;
  caps.name = name;
  caps.summary = "a kernel of nsa";
  caps.kinds = {K::sparse};
  caps.phases = kBothPhases;
  caps.archs = archs;
  caps.dtypes = {ModelDType::bf16};
  caps.kv_formats = kv_formats;
  caps.decode_kv_formats = decode_formats;
  caps.head_dims = IntChoice::of({512, 576});
  caps.page_sizes = IntChoice::of({64});
  caps.chunked_prefix = true;
  return caps;
}

constexpr Caps kLayerCaps[] = {
    sparse("flashmla_sparse", kHopperAndBlackwell, {F::bf16, F::fp8_e4m3}, {F::bf16}),
    sparse("flashmla_kv", kHopperAndBlackwell, {F::fp8_e4m3}, {}),
    sparse("fa3", {A::sm_90}, {F::bf16}, {}),
    linear("triton", "GDN and KDA on NVIDIA GPUs: tiles by mma.sync", kBothPhases, kServedCuda,
           {SpecSupport::tree, kTile}),
    linear("triton", "GDN and KDA on NVIDIA and AMD GPUs", kBothPhases, kOtherCudaAndAmd, {SpecSupport::chain}),
    linear("triton", "GDN and KDA on NPUs", kBothPhases, {A::ascend_npu}, {SpecSupport::none}),
    linear("triton", "GDN and KDA on CPUs: portable tile source, through OpenCL", kBothPhases, kCpuArchs,
           {SpecSupport::tree, kPortable}),
    linear("cpu", "GDN and KDA on CPUs: AVX-512, AVX2, portable", kBothPhases, kCpuArchs, {SpecSupport::tree, kOnCpu}),
    linear("flashinfer", "GDN and KDA on Hopper, the kernels of cutedsl", kBothPhases, {A::sm_90},
           {SpecSupport::tree, kWgmma}),
    linear("flashinfer", "GDN and KDA on Ampere and Ada, the kernels of triton", kBothPhases, kAmpereAndAda,
           {SpecSupport::tree, kTile}),
    linear("flashinfer", "GDN and KDA on NVIDIA GPUs", kBothPhases, kOtherCuda, {SpecSupport::none}),
    linear("cutedsl", "GDN and KDA on Hopper: WGMMA", kBothPhases, {A::sm_90}, {SpecSupport::tree, kWgmma}),
    linear("cutedsl", "GDN and KDA, decode on NVIDIA GPUs", {P::decode}, kAllButHopper, {SpecSupport::none}),
    vision("sdpa", "the library's attention", kAll),
    vision("fa3", "Hopper", {A::sm_90}),
    vision("fa4", "Hopper and Blackwell", kHopperAndBlackwell),
    vision("triton_attn", "NVIDIA and AMD GPUs", kCudaAndAmd),
    vision("amx_attn", "CPUs", kCpuArchs),
    vision("xpu_attn", "Intel GPUs", {A::intel_xe}),
};

#if defined(WARPWEAVE_CUDA)
constexpr bool kHasCuda = true;
#else
constexpr bool kHasCuda = false;
#endif
#if defined(WARPWEAVE_OPENCL)
constexpr bool kHasOpenCl = true;
#else
constexpr bool kHasOpenCl = false;
#endif

bool is_written(const Caps& caps) { return !caps.kernels.decode.empty(); }
bool is_portable(const Caps& caps) { return caps.kernels.decode == kPortable.decode; }
bool is_built(const Caps& caps) {
  if (is_portable(caps)) return kHasOpenCl;
  return is_written(caps) && (kHasCuda || (caps.archs.bits & kCpuArchs.bits) != 0);
}

}  // namespace

std::span<const KnownBackend> known_layer_backends() {
  static const std::vector<KnownBackend> known = [] {
    std::vector<KnownBackend> list;
    for (const Caps& caps : kLayerCaps) list.push_back({&caps, is_built(caps), nullptr, is_written(caps)});
    return list;
  }();
  return known;
}

}  // namespace warpweave
