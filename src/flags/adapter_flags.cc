// The flags of adapters (LoRA): a part of the table.
#include "flags/flag_table.h"

namespace warpweave {
namespace {

constexpr RefusedValue kLoraBackends[] = {
    {"ascend", "needs an Ascend NPU"},
    {"csgmv", "needs the Triton compiler, which is not built in"},
    {"flashinfer", "needs FlashInfer's kernels, which are not built in"},
    {"torch_native", "needs PyTorch, which is not built in"},
    {"triton", "needs the Triton compiler, which is not built in"},
};

}  // namespace

std::vector<FlagSpec> adapter_flags() {
  using A = ServerArgs;
  constexpr FlagGroup kGroup = FlagGroup::adapters;
  return {
      {.names = {"--enable-lora"},
       .group = kGroup,
       .target = &A::enable_lora,
       .help = "Requests may name adapters, which are loaded at start or by request; --lora-paths and --lora-root mean "
               "it, too"},
      {.names = {"--lora-paths", "--lora-modules"},
       .group = kGroup,
       .target = &A::lora_paths,
       .value_name = "NAME=FOLDER ...",
       .help = "Adapters to load at start, as PEFT saves them; a folder without a name is called as it is written",
       .default_text = "none",
       .many = true},
      {.names = {"--lora-root"},
       .group = kGroup,
       .target = &A::lora_root,
       .value_name = "FOLDER",
       .help = "Where /load_lora_adapter may read from; other folders are refused",
       .default_text = "none: it loads nothing"},
      {.names = {"--max-lora-rank"},
       .group = kGroup,
       .target = &A::max_lora_rank,
       .value_name = "RANK",
       .help = "Largest rank of an adapter",
       .min = 1,
       .max = 512},
      {.names = {"--max-loras-per-batch", "--max-loras"},
       .group = kGroup,
       .target = &A::max_loras_per_batch,
       .value_name = "N",
       .help = "Adapters of requests that run together; requests for more of them wait",
       .min = 1,
       .max = 1024},
      {.names = {"--max-loaded-loras"},
       .group = kGroup,
       .target = &A::max_loaded_loras,
       .value_name = "N",
       .help = "Adapters in memory, those included that are unloaded while requests use them",
       .min = 1,
       .max = 4096},
      {.names = {"--lora-target-modules"},
       .group = kGroup,
       .target = &A::lora_target_modules,
       .value_name = "MODULE ...",
       .help = "Modules that adapters may change, as in q_proj v_proj; all: every one that the model has here",
       .default_text = "all",
       .many = true},
      {.names = {"--lora-backend"},
       .group = kGroup,
       .target = &A::lora_backend,
       .value_name = "NAME",
       .help = "What multiplies adapters; auto takes this program's own kernels, the only ones here",
       .choices = {"auto", "warpweave"},
       .refused = kLoraBackends},
  };
}

}  // namespace warpweave
