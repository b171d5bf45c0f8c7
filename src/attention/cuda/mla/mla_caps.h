// What the kernels of latent attention can do, whatever the name they run under; the names differ in the choice of
// kernels and in the page size that users know them with.
#pragma once

#include "attention/base_caps.h"

namespace warpweave::cuda {

// Which kernels a name stands for: those of WGMMA, of mma.sync, or the faster for each batch.
enum class MlaChoice { wgmma, mma, faster };

// Of decode, verification and short extends; and of prompts, which are long where their own K and V cost less than the
// latent rows (model/layers/latent_prefill_plan.h).
struct MlaKernelNames {
  std::string_view rows, prompts;
};
constexpr MlaKernelNames mla_kernel_names(MlaChoice choice) {
  switch (choice) {
    case MlaChoice::wgmma: return {"sm90_mla", "sm90_mla, sm90_latent_extend"};
    case MlaChoice::mma: return {"sm80_mla", "sm80_mla, sm90_latent_extend"};
    case MlaChoice::faster: break;
  }
  return {"sm90_mla, sm80_mla", "sm90_mla, sm80_mla, sm90_latent_extend"};
}

struct MlaName {
  std::string_view name;
  std::string_view summary;
  MlaChoice choice = MlaChoice::faster;
  int preferred_page_size = 0;  // where users give none; 0: none
  int min_cuda_version = 0;
};

constexpr Caps mla_caps(const MlaName& of) {
  Caps caps;
  caps.name = of.name;
  caps.summary = of.summary;
  caps.kinds = {AttentionKind::mla};
  caps.phases = kBothPhases;
  caps.archs = {DeviceArch::sm_90};
  caps.min_cuda_version = of.min_cuda_version;
  caps.dtypes = k16Bit;
  caps.kv_formats = {KvFormat::bf16, KvFormat::f16, KvFormat::fp8_e4m3, KvFormat::fp8_ds_mla,
                     KvFormat::fp4_mla};
  caps.own_16_bit_kv = true;
  caps.bf16_model_kv_formats = kPackedKvFormats;  // the rotated part is multiplied as it lies there
  caps.head_dims = IntChoice::of({512, 576});
  caps.page_sizes = IntChoice::any_up_to();
  caps.preferred_page_size = of.preferred_page_size;
  caps.spec = caps.spec_paged = SpecSupport::tree;
  caps.custom_mask = true;
  caps.chunked_prefix = caps.mla_chunked_prefix = true;
  caps.graph_capture = true;
  caps.deterministic = true;
  caps.deterministic_drafts = false;  // they share tiles, and single tokens do not (mla_backend.h)
  caps.workspace_bytes = 36 << 20;
  const MlaKernelNames kernels = mla_kernel_names(of.choice);
  caps.kernels = {.prefill = kernels.prompts, .decode = kernels.rows};
  return caps;
}

}  // namespace warpweave::cuda
