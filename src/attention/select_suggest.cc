#include "attention/select_suggest.h"

#include <fmt/format.h>

#include <functional>

namespace warpweave {
namespace {

void clear_backends(AttentionFlags& flags) {
  flags.attention_backend.clear();
  flags.prefill_attention_backend.clear();
  flags.decode_attention_backend.clear();
}

void clear_speculation(AttentionFlags& flags) {
  flags.speculative_algorithm.clear();
  flags.speculative_num_steps.reset();
  flags.speculative_eagle_topk.reset();
  flags.speculative_num_draft_tokens.reset();
  flags.speculative_attention_mode = "prefill";
}

}  // namespace

std::string flags_text(const AttentionFlags& flags) {
  std::string text;
  auto add = [&text](std::string_view flag, const std::string& value) {
    text += fmt::format("{}{} {}", text.empty() ? "" : " ", flag, value);
  };
  for (const AttentionTextFlag& f : kAttentionTextFlags) {
    const std::string& value = flags.*f.member;
    if (!value.empty() && value != f.default_value) add(f.flag, value);
  }
  for (const AttentionIntFlag& f : kAttentionIntFlags) {
    if (flags.*f.member) add(f.flag, std::to_string(*(flags.*f.member)));
  }
  if (flags.enable_deterministic_inference) {
    text += fmt::format("{}--enable-deterministic-inference", text.empty() ? "" : " ");
  }
  return text.empty() ? "no attention flags" : text;
}

std::vector<AttentionFlags> nearby_flags(const AttentionFlags& flags,
                                         std::span<const std::string_view> preferred,
                                         std::span<const KnownBackend> backends) {
  std::vector<AttentionFlags> list;
  auto with = [&](const std::function<void(AttentionFlags&)>& change) {
    AttentionFlags changed = flags;
    change(changed);
    list.push_back(std::move(changed));
  };
  // One flag at its default, but for the backends themselves.
  for (const AttentionIntFlag& f : kAttentionIntFlags) {
    if (flags.*f.member) with([&](AttentionFlags& a) { (a.*f.member).reset(); });
  }
  for (const AttentionTextFlag& f : kAttentionTextFlags) {
    if (f.member == &AttentionFlags::attention_backend ||
        f.member == &AttentionFlags::speculative_algorithm || flags.*f.member == f.default_value) {
      continue;
    }
    with([&](AttentionFlags& a) { a.*f.member = f.default_value; });
  }
  if (!flags.speculative_algorithm.empty()) {
    with([](AttentionFlags& a) {
      a.speculative_eagle_topk = 1;
      a.speculative_num_draft_tokens.reset();
    });
  }
  auto with_backend = [&](std::string_view name) {
    with([&](AttentionFlags& a) {
      clear_backends(a);
      a.attention_backend = name;
    });
  };
  for (std::string_view name : preferred) with_backend(name);
  for (const KnownBackend& backend : backends) {
    if (backend.built) with_backend(backend.caps->name);
  }
  with(clear_speculation);
  with([](AttentionFlags& a) { a.enable_deterministic_inference = false; });
  with(clear_backends);
  with([](AttentionFlags& a) { clear_backends(a); a.page_size.reset(); });
  with([](AttentionFlags& a) { clear_backends(a); a.kv_cache_dtype = "auto"; });
  with([](AttentionFlags& a) { clear_backends(a); clear_speculation(a); });
  with([](AttentionFlags& a) { clear_backends(a); a.page_size.reset(); a.kv_cache_dtype = "auto"; });
  list.push_back({});
  return list;
}

}  // namespace warpweave
