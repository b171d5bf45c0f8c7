// The rules that refuse a backend for one phase, apart from the order in which candidates are tried.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attention/select.h"

namespace warpweave {

// Flags after their own defaults are resolved: what the rules look at.
struct SelectionInput {
  const HardwareFacts* hardware = nullptr;
  const ModelFacts* model = nullptr;
  KvFormat kv_format = KvFormat::bf16;
  std::optional<int> page_size;    // as given by the user
  int topk = 0;                    // 0: no speculation, 1: a chain, more: a tree
  bool verify_with_decode = false;
  bool deterministic = false;
  bool cached_prefixes = true;     // prompts may be continued: prefix cache, chunks
};

// A rule that was broken, and the flag that could be changed to keep it.
struct BrokenRule {
  std::string text;
  std::string flag;
};

// In which K and V keep the model's own type.
KvFormat model_kv_format(ModelDType dtype);

// Why `backend` cannot run `phase`; nullopt when it can.
std::optional<BrokenRule> check_backend(const SelectionInput& input, const KnownBackend& backend,
                                        AttentionPhase phase);

// Rules about the two phases together.
std::optional<BrokenRule> check_pair(const SelectionInput& input, const KnownBackend& prefill,
                                     const KnownBackend& decode);

// The page size for both; `std::nullopt` when no size suits both.
std::optional<int> common_page_size(const SelectionInput& input, const Caps& prefill,
                                    const Caps& decode);

// Names to try, best first, when no flag names a backend.
std::vector<std::string_view> preferred_backends(const SelectionInput& input);

// Of the entries of this name the one that fits the model's kind and the device best; null for an
// unknown name.
const KnownBackend* find_entry(const SelectionInput& input, std::string_view name,
                               std::span<const KnownBackend> backends);

std::string page_sizes_text(const Caps& caps);
std::string_view phase_name(AttentionPhase phase);
bool is_unset(const std::string& backend_name);  // "" or "auto"

}  // namespace warpweave
