// What an attention backend can do, as data. Each backend declares one constexpr Caps value in
// backends/<name>/caps.h; names without an implementation are declared in known_backends.cc.
//
// Selection, refusal texts, the printed matrix and the conformance case list all come from here;
// nothing else answers "is it supported". Sets are bit masks of the enums below. Devices are an
// exact list, never an ordering: a kernel written for sm_100 says nothing about sm_120.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "kv/kv_format.h"

namespace warpweave {

enum class AttentionKind : uint8_t { mha, mla, sparse, linear, mm };
enum class AttentionPhase : uint8_t { prefill, decode };
enum class DeviceArch : uint8_t {
  cpu_x86_64, cpu_other,
  sm_75, sm_80, sm_86, sm_89, sm_90, sm_100, sm_103, sm_120, sm_121,
  gfx90a, gfx942, gfx950,
  intel_xe, ascend_npu,
};
enum class ModelDType : uint8_t { f32, bf16, f16 };
enum class SpecSupport : uint8_t { none, chain, tree };  // ordered: tree runs chains too

inline constexpr int kNumDeviceArchs = static_cast<int>(DeviceArch::ascend_npu) + 1;

std::string_view arch_name(DeviceArch arch);
std::string_view kind_name(AttentionKind kind);

// A set of enum values.
template <typename E>
struct EnumSet {
  uint32_t bits = 0;
  constexpr EnumSet() = default;
  constexpr EnumSet(std::initializer_list<E> values) {
    for (E v : values) bits |= 1u << static_cast<int>(v);
  }
  constexpr bool has(E v) const { return bits >> static_cast<int>(v) & 1; }
};

inline constexpr EnumSet<DeviceArch> kCpuArchs = {DeviceArch::cpu_x86_64, DeviceArch::cpu_other};
inline constexpr EnumSet<DeviceArch> kBlackwellArchs = {DeviceArch::sm_100, DeviceArch::sm_103, DeviceArch::sm_120,
                                                        DeviceArch::sm_121};
inline constexpr EnumSet<DeviceArch> kAllArchs = [] {
  EnumSet<DeviceArch> all;
  all.bits = (1u << kNumDeviceArchs) - 1;
  return all;
}();
inline constexpr EnumSet<DeviceArch> kAllButBlackwell = [] {
  EnumSet<DeviceArch> others = kAllArchs;
  others.bits &= ~kBlackwellArchs.bits;
  return others;
}();

// A short list of exact values, or any value in [1, max].
struct IntChoice {
  bool any = false;
  int max = 0;                      // with `any`: the largest value, 0 for no limit
  std::array<int, 8> values{};      // without: the values, 0 ends the list
  static constexpr IntChoice any_up_to(int max = 0) { return {true, max, {}}; }
  static constexpr IntChoice of(std::initializer_list<int> list) {
    IntChoice choice;
    size_t n = 0;
    for (int v : list) choice.values[n++] = v;
    return choice;
  }
  constexpr bool accepts(int v) const {
    if (any) return v >= 1 && (max == 0 || v <= max);
    for (int x : values) {
      if (x != 0 && x == v) return true;
    }
    return false;
  }
};

// Prefill that multiplies the codes of fp8 K and V as they are, by fp8 MMA: q and the probabilities
// are rounded to e4m3, too. docs/attention.md has the error bound that conformance derives.
//  - q: in the model's type, then to e4m3 times a power of two per token and head, the smallest that
//    keeps the largest magnitude at or below 448;
//  - probabilities: to e4m3 times 2^p_scale_log2, where the running maximum of the row, which may be
//    behind by what 448 leaves room for, has probability 1; the sum is of unrounded ones;
//  - sums keep `sum_bits` leading bits of their largest term, of 32 products and the sum before at a time;
//    those over tokens end after `sum_tokens`, from a multiple of it on, and are added up in f32.
// Decode (in a mixed batch the requests of one query token), draft trees and --enable-deterministic-inference keep
// 16-bit arithmetic.
struct Fp8Mma {
  EnumSet<KvFormat> kv_formats{};      // empty: none
  IntChoice head_dims{};
  int page_multiple = 1;               // pages of a multiple of so many tokens
  int min_q_len = 1;                   // of the longest request of the batch
  int p_scale_log2 = 6;
  int sum_bits = 24;
  int sum_tokens = 0;                  // 0: all of a row's
  constexpr bool apply(KvFormat format, int head_dim, int page_size, int max_q_len) const {
    return kv_formats.has(format) && head_dims.accepts(head_dim) && page_size % page_multiple == 0 &&
           max_q_len >= min_q_len;
  }
};

// Which kernels a backend launches, by a name that every backend with the same ones gives; several, of which the faster
// for the batch runs, with ", " between them. The names of the flags are those that users know; these say what is
// behind them.
struct KernelNames {
  std::string_view prefill{};
  std::string_view decode{};
};

struct Caps {
  std::string_view name{};
  std::string_view summary{};          // one line for --help and the matrix
  bool selectable = true;              // false: the reference, which is only compared against
  EnumSet<AttentionKind> kinds{};
  EnumSet<AttentionPhase> phases{};
  EnumSet<DeviceArch> archs{};
  EnumSet<DeviceArch> prefill_archs{};  // where prefill runs on fewer devices; empty: on all archs
  EnumSet<DeviceArch> hybrid_archs = kAllButBlackwell;  // where it runs beside linear attention of other layers
  int min_cuda_version = 0;            // 12030: CUDA 12.3
  EnumSet<ModelDType> dtypes{};
  EnumSet<KvFormat> kv_formats{};
  EnumSet<KvFormat> decode_kv_formats{};  // where decode reads fewer of them; empty: all
  EnumSet<KvFormat> bf16_model_kv_formats{};  // of them, those that are read for bf16 models alone
  bool own_16_bit_kv = false;                 // of bf16 and f16 it reads the model's own type alone
  int fp4_layout = 0;                  // of pools of fp4_e2m1 whose scales lie in an order of its own; 0: in the pool's
  IntChoice head_dims{};               // of q/k and of v
  IntChoice page_sizes{};              // native; see expands_pages
  int preferred_page_size = 0;         // where users give none and all will do; 0: no preference
  bool expands_pages = false;          // runs other page sizes by expanding the table to slots
  SpecSupport spec = SpecSupport::none;
  SpecSupport spec_paged = SpecSupport::none;  // with page_size > 1
  bool sliding_window = false;
  bool sinks = false;
  bool softcap = false;
  bool custom_mask = false;
  bool chunked_prefix = false;         // queries that start after a cached prefix: prefix hits, later chunks
  bool mla_chunked_prefix = false;     // MLA: the prefix is expanded chunk by chunk and attended as MHA
  bool non_causal = false;             // ForwardBatch::causal == false
  bool right_window = false;           // with it AttentionCall::window_right
  bool dual_chunk = false;             // dual chunk attention (model/dual_chunk.h), and no other
  Fp8Mma fp8_mma{};
  bool graph_capture = false;
  bool deterministic = false;          // bitwise equal over batch, chunking, phase and repeats
  int deterministic_group = 0;         // for up to so many q heads a kv head; 0: any
  EnumSet<KvFormat> deterministic_kv{};  // with these formats; empty: with all
  bool deterministic_drafts = true;      // and where drafts are verified beside
  bool deterministic_trees = true;       // and those are trees, whose keys lie elsewhere than a text's
  constexpr bool deterministic_with(KvFormat format) const {
    return deterministic && (deterministic_kv.bits == 0 || deterministic_kv.has(format));
  }
  size_t workspace_bytes = 0;          // bound per thread, beside the plan, for max head dim
  KernelNames kernels{};

  constexpr bool reads(KvFormat format, AttentionPhase phase) const {
    const bool fewer = phase == AttentionPhase::decode && decode_kv_formats.bits != 0;
    return (fewer ? decode_kv_formats : kv_formats).has(format);
  }
};

}  // namespace warpweave
