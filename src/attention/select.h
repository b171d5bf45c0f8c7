// Which attention backend runs each phase: a pure function of hardware, model and flags, called
// before any weight is read. It returns the resolved configuration with its reasons and every
// candidate it refused with the rule that refused it; or a Status whose `field` is the flag, and
// whose message ends in configurations that work ("works: --attention-backend X").
// Hardware is described as facts, so every rule is testable without owning the device.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/caps.h"
#include "attention/registry.h"
#include "warpweave/status.h"

namespace warpweave {

class TuningTable;

struct HardwareFacts {
  std::string name;                            // "NVIDIA H200", "AMD EPYC (avx512_bf16)"
  DeviceArch arch = DeviceArch::cpu_x86_64;
  int cuda_version = 0;                        // 12030 for 12.3; 0 without CUDA
};

// The machine this program runs on, when it serves on the CPU.
HardwareFacts cpu_hardware_facts();
// The NVIDIA architecture of a compute capability (90: 9.0); nullopt for one that is not known here.
std::optional<DeviceArch> arch_of_compute_capability(int compute_capability);
// Described hardware for `--hardware NAME`: "h200", "rtx5090", "mi300x", "xeon", ...; some have several
// names ("intel-gpu", "intel_xpu", "intel-xpu"). `not_found`, with the names there are, for another.
Result<HardwareFacts> named_hardware(std::string_view name);
std::vector<std::string> named_hardware_list();

enum class LinearAttention : uint8_t { none, gdn, kda };

struct ModelFacts {
  std::string architecture;                    // "LlamaForCausalLM": texts, and speculation defaults
  AttentionKind kind = AttentionKind::mha;     // mha, mla, or sparse (DeepSeek sparse attention)
  ModelDType dtype = ModelDType::bf16;
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int v_head_dim = 0;                          // 0: equal to head_dim
  bool sliding_window = false;                 // any layer
  int window_tokens = 0;                       // that the narrowest one sees, its own among them; 0: not known
  bool softcap = false;
  bool sinks = false;
  bool non_causal = false;                     // layers that attend both ways
  bool right_window = false;                   // some of them in a window that ends behind the row
  bool dual_chunk = false;                     // a dual-chunk attention config
  LinearAttention linear = LinearAttention::none;  // hybrid model: its other layers
  bool vision = false;                         // has a vision tower
};

// Empty string / nullopt: the flag was not given.
struct AttentionFlags {
  std::string attention_backend;
  std::string prefill_attention_backend;
  std::string decode_attention_backend;
  std::string nsa_prefill_backend;
  std::string nsa_decode_backend;
  std::string linear_attn_backend;
  std::string linear_attn_prefill_backend;
  std::string linear_attn_decode_backend;
  std::string mm_attention_backend;
  std::optional<int> page_size;
  std::string kv_cache_dtype = "auto";
  std::string speculative_algorithm;
  std::optional<int> speculative_num_steps;
  std::optional<int> speculative_eagle_topk;
  std::optional<int> speculative_num_draft_tokens;
  std::string speculative_attention_mode = "prefill";
  bool enable_deterministic_inference = false;
  bool disable_cuda_graph = false;
  bool cached_prefixes = true;                 // false: --disable-radix-cache, and prompts are never split
  const TuningTable* tuning = nullptr;         // measurements that `auto` decides by; not owned
};

struct RefusedCandidate {
  std::string name;
  std::string rule;
};

struct Speculation {
  std::string algorithm;                       // empty: none
  int num_steps = 0;
  int topk = 0;                                // branches per step; 1: a chain
  int num_draft_tokens = 0;                    // verified at once, the last accepted one among them
};

// Sub-backends of the two phases; empty where the model has no such layers.
struct PhasePair {
  std::string prefill;
  std::string decode;
};

struct Resolved {
  std::string prefill;                 // backend names
  std::string decode;
  const Caps* prefill_caps = nullptr;  // of those very kernels; live as long as the program
  const Caps* decode_caps = nullptr;
  std::string target_verify;           // empty without speculation
  Speculation speculation;
  PhasePair nsa;                       // sparse attention
  PhasePair linear;                    // GDN or KDA layers of a hybrid model
  std::string linear_verify;           // empty without speculation
  std::string mm;                      // the vision tower; empty without one
  int page_size = 1;
  bool page_table_expanded = false;    // a chosen backend runs this page size slot by slot
  KvFormat kv_format = KvFormat::bf16;
  bool deterministic = false;          // equal bits whatever the batch
  bool decode_graphs = false;
  bool prefill_graphs = false;
  std::vector<std::string> reasons;    // "requested -> resolved, because ...", one line each
  std::vector<RefusedCandidate> refused;
};

// What the caller asks of a configuration beside the rules: a failing one is never proposed.
using AcceptFn = std::function<bool(const Resolved&)>;

// `backends`: what may be chosen; explain on described hardware passes all that is written.
Result<Resolved> select_attention(const HardwareFacts& hardware, const ModelFacts& model,
                                  const AttentionFlags& flags,
                                  std::span<const KnownBackend> backends = known_backends(),
                                  const AcceptFn& accepts = {});

// For the log and `warpweave explain`: one line per phase, reason and refused candidate.
std::vector<std::string> explain_lines(const Resolved& resolved);

// DeepSeek sparse attention, flashmla_auto: which kernel a forward takes.
std::string_view nsa_auto_choice(int64_t total_kv_tokens, int64_t total_q_tokens);

}  // namespace warpweave
