// What the kernels of latent attention can do, whoever's name they run under; the names differ in the choice of kernels and
// in the page size that users know them with.
#pragma once

#include "attention/caps.h"

namespace warpweave::cuda {

struct MlaName {
  std::string_view name;
  std::string_view summary;
  std::string_view kernels;  // of decode, verification and short extends
  int preferred_page_size = 0;  // where users give none; 0: none
  int min_cuda_version = 0;
};

constexpr Caps mla_caps(const MlaName& of) {
  Caps caps;
  caps.name = of.name;
  caps.summary = of.summary;
  caps.kinds = {AttentionKind::mla};
  caps.phases = {AttentionPhase::prefill, AttentionPhase::decode};
  caps.archs = {DeviceArch::sm_90};
  caps.min_cuda_version = of.min_cuda_version;
  caps.dtypes = {ModelDType::bf16, ModelDType::f16};
  caps.kv_formats = {KvFormat::bf16, KvFormat::f16, KvFormat::fp8_e4m3};
  caps.head_dims = IntChoice::of({512, 576});
  caps.page_sizes = {.any = true, .values = {of.preferred_page_size}};
  caps.spec = caps.spec_paged = SpecSupport::tree;
  caps.custom_mask = true;
  caps.chunked_prefix = caps.mla_chunked_prefix = true;
  caps.graph_capture = true;
  caps.workspace_bytes = 36 << 20;
  caps.kernels = {.prefill = "sm90_latent_extend", .decode = of.kernels};
  return caps;
}

inline constexpr std::string_view kMlaWgmma = "sm90_mla", kMlaMma = "sm80_mla", kMlaFaster = "sm90_mla or sm80_mla";

}  // namespace warpweave::cuda
