#include "attention/select.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "attention/select_rules.h"

namespace warpweave {
namespace {

struct KvName { std::string_view name; KvFormat format; };
constexpr KvName kKvNames[] = {
    {"bf16", KvFormat::bf16},         {"bfloat16", KvFormat::bf16},
    {"f16", KvFormat::f16},           {"half", KvFormat::f16},
    {"float16", KvFormat::f16},       {"f32", KvFormat::f32},
    {"float32", KvFormat::f32},       {"fp8_e4m3", KvFormat::fp8_e4m3},
    {"fp8_e5m2", KvFormat::fp8_e5m2}, {"fp4_e2m1", KvFormat::fp4_e2m1}};

KvFormat model_kv_format(ModelDType dtype) {
  switch (dtype) {
    case ModelDType::f32: return KvFormat::f32;
    case ModelDType::f16: return KvFormat::f16;
    case ModelDType::bf16: break;
  }
  return KvFormat::bf16;
}

// One selection: collects reasons on the way.
class Selection {
 public:
  Selection(const HardwareFacts& hardware, const ModelFacts& model, const AttentionFlags& flags,
            std::span<const KnownBackend> backends)
      : hardware_(hardware), model_(model), flags_(flags), backends_(backends) {
    input_.hardware = &hardware_;
    input_.model = &model_;
  }

  Result<Resolved> run();

 private:
  struct Named { std::string name, flag; };  // a backend the user named, and by which flag

  Status read_flags();
  Status read_speculation();
  Named named_for(AttentionPhase phase) const;
  Result<const KnownBackend*> find_named(const Named& named, AttentionPhase phase);
  Result<const KnownBackend*> find_default(AttentionPhase phase, const KnownBackend* other);
  Status resolve_page_size(const Caps& prefill, const Caps& decode);
  void resolve_graphs(const Caps& prefill, const Caps& decode);
  void list_others();

  const HardwareFacts& hardware_;
  const ModelFacts& model_;
  const AttentionFlags& flags_;
  std::span<const KnownBackend> backends_;
  SelectionInput input_;
  Resolved resolved_;
};

bool is_unset(const std::string& name) { return name.empty() || name == "auto"; }

Status Selection::read_speculation() {
  const std::string& algorithm = flags_.speculative_algorithm;
  if (flags_.speculative_attention_mode != "prefill" &&
      flags_.speculative_attention_mode != "decode") {
    return Status::invalid_argument(
        fmt::format("--speculative-attention-mode is \"{}\"; it must be prefill or decode",
                    flags_.speculative_attention_mode),
        "--speculative-attention-mode");
  }
  if (algorithm.empty()) {
    if (flags_.speculative_eagle_topk || flags_.speculative_num_steps ||
        flags_.speculative_num_draft_tokens) {
      return Status::invalid_argument(
          "--speculative-num-steps, --speculative-eagle-topk and --speculative-num-draft-tokens need "
          "--speculative-algorithm",
          "--speculative-algorithm");
    }
    return {};
  }
  static constexpr std::array<std::string_view, 5> kAlgorithms = {"EAGLE", "EAGLE3", "NEXTN",
                                                                  "STANDALONE", "NGRAM"};
  if (std::find(kAlgorithms.begin(), kAlgorithms.end(), algorithm) == kAlgorithms.end()) {
    return Status::invalid_argument(
        fmt::format("--speculative-algorithm is \"{}\"; known: EAGLE, EAGLE3, NEXTN, STANDALONE, "
                    "NGRAM", algorithm),
        "--speculative-algorithm");
  }
  const bool wide = model_.architecture.starts_with("Llama") || model_.architecture.starts_with("Grok");
  const int default_topk = algorithm == "NGRAM" ? 10 : wide ? 4 : 1;
  input_.topk = flags_.speculative_eagle_topk.value_or(default_topk);
  if (input_.topk < 1) {
    return Status::invalid_argument(
        fmt::format("--speculative-eagle-topk is {}; it must be at least 1", input_.topk),
        "--speculative-eagle-topk");
  }
  input_.verify_with_decode = flags_.speculative_attention_mode == "decode";
  resolved_.reasons.push_back(fmt::format("speculation: {} with topk {}{}", algorithm, input_.topk,
                                          flags_.speculative_eagle_topk ? "" : " (its default here)"));
  return {};
}

Status Selection::read_flags() {
  WW_RETURN_IF_ERROR(read_speculation());
  if (flags_.page_size && *flags_.page_size < 1) {
    return Status::invalid_argument(
        fmt::format("--page-size is {}; it must be at least 1", *flags_.page_size), "--page-size");
  }
  input_.page_size = flags_.page_size;
  input_.deterministic = flags_.enable_deterministic_inference;
  input_.kv_format = model_kv_format(model_.dtype);
  if (flags_.kv_cache_dtype == "auto" || flags_.kv_cache_dtype.empty()) {
    resolved_.reasons.push_back(fmt::format("kv-cache-dtype: auto -> {}, the model's dtype",
                                            kv_format_name(input_.kv_format)));
  } else {
    const auto* found = std::find_if(std::begin(kKvNames), std::end(kKvNames),
                                     [&](const KvName& k) { return k.name == flags_.kv_cache_dtype; });
    if (found == std::end(kKvNames)) {
      return Status::invalid_argument(
          fmt::format("--kv-cache-dtype is \"{}\"; known: auto, bf16, f16, f32, fp8_e4m3, fp8_e5m2, "
                      "fp4_e2m1", flags_.kv_cache_dtype),
          "--kv-cache-dtype");
    }
    input_.kv_format = found->format;
  }
  resolved_.kv_format = input_.kv_format;
  return {};
}

Selection::Named Selection::named_for(AttentionPhase phase) const {
  const bool prefill = phase == AttentionPhase::prefill;
  const std::string& own = prefill ? flags_.prefill_attention_backend : flags_.decode_attention_backend;
  if (!is_unset(own)) {
    return {own, prefill ? "--prefill-attention-backend" : "--decode-attention-backend"};
  }
  if (!is_unset(flags_.attention_backend)) return {flags_.attention_backend, "--attention-backend"};
  return {};
}

std::string_view phase_label(AttentionPhase phase) {
  return phase == AttentionPhase::prefill ? "prefill" : "decode";
}

Result<const KnownBackend*> Selection::find_named(const Named& named, AttentionPhase phase) {
  const KnownBackend* found = nullptr;
  for (const KnownBackend& backend : backends_) {
    if (backend.caps->name != named.name) continue;
    if (found == nullptr || backend.caps->kinds.has(model_.kind)) found = &backend;
  }
  if (found == nullptr) {
    return Status::invalid_argument(
        fmt::format("{} is \"{}\", which is no attention backend; did you mean {}?", named.flag,
                    named.name, nearest_backend_name(named.name)),
        named.flag);
  }
  if (auto broken = check_backend(input_, *found, phase)) {
    const std::string text = fmt::format("{} {} cannot run {} on {}: it {}", named.flag, named.name,
                                         phase_label(phase), hardware_.name, broken->text);
    const std::string& flag = broken->flag.empty() ? named.flag : broken->flag;
    return Status::unsupported(text, flag);
  }
  resolved_.reasons.push_back(
      fmt::format("{}: {} -> {}, as asked", phase_label(phase), named.flag, named.name));
  return found;
}

// `other`: the backend already chosen for the other phase, which a default must be able to join.
Result<const KnownBackend*> Selection::find_default(AttentionPhase phase, const KnownBackend* other) {
  std::string refusals;
  for (std::string_view name : preferred_backends(input_)) {
    for (const KnownBackend& backend : backends_) {
      if (backend.caps->name != name || !backend.caps->kinds.has(model_.kind)) continue;
      auto broken = check_backend(input_, backend, phase);
      const Caps& partner = other ? *other->caps : *backend.caps;
      if (!broken) {
        const bool prefill = phase == AttentionPhase::prefill;
        const Caps& first = prefill ? *backend.caps : partner;
        const Caps& second = prefill ? partner : *backend.caps;
        broken = check_pair(input_, first, second);
        if (!broken && !common_page_size(input_, first, second)) {
          broken = BrokenRule{fmt::format("has no page size in common with {}", partner.name), ""};
        }
      }
      if (broken) {
        refusals += fmt::format("{}{} {}", refusals.empty() ? "" : "; ", name, broken->text);
        continue;
      }
      resolved_.reasons.push_back(fmt::format(
          "{}: unset -> {}, because it is the first choice for {} on {} that passes every rule{}",
          phase_label(phase), name, kind_name(model_.kind), arch_name(hardware_.arch),
          refusals.empty() ? "" : " (" + refusals + ")"));
      return &backend;
    }
  }
  return Status::unsupported(
      fmt::format("no attention backend can run {} of this model on {}: {}", phase_label(phase),
                  hardware_.name, refusals.empty() ? "none is known for it" : refusals),
      "--attention-backend");
}

Status Selection::resolve_page_size(const Caps& prefill, const Caps& decode) {
  const std::optional<int> size = common_page_size(input_, prefill, decode);
  if (!size) {
    return Status::unsupported(
        fmt::format("prefill backend {} (page size {}) and decode backend {} (page size {}) share no "
                    "page size", prefill.name, page_sizes_text(prefill), decode.name,
                    page_sizes_text(decode)),
        "--decode-attention-backend");
  }
  resolved_.page_size = *size;
  if (flags_.page_size) {
    resolved_.reasons.push_back(fmt::format("page-size: {}, as asked", *size));
  } else if (*size == 1) {
    resolved_.reasons.push_back("page-size: unset -> 1, the default");
  } else {
    resolved_.reasons.push_back(fmt::format("page-size: unset -> {}, because {} takes {} and {} takes {}",
                                            *size, prefill.name, page_sizes_text(prefill), decode.name,
                                            page_sizes_text(decode)));
  }
  for (const Caps* caps : {&prefill, &decode}) {
    if (caps->page_sizes.accepts(*size)) continue;
    resolved_.page_table_expanded = true;
    std::string reason = fmt::format(
        "{} has no native page size {}: its page table is expanded to token slots", caps->name, *size);
    if (resolved_.reasons.back() != reason) resolved_.reasons.push_back(std::move(reason));
  }
  return {};
}

void Selection::resolve_graphs(const Caps& prefill, const Caps& decode) {
  if (flags_.disable_cuda_graph) {
    resolved_.reasons.push_back("graphs: off, --disable-cuda-graph");
    return;
  }
  resolved_.decode_graphs = decode.graph_capture;
  resolved_.prefill_graphs = prefill.graph_capture && input_.topk > 0 && !input_.verify_with_decode;
  if (!decode.graph_capture) {
    resolved_.reasons.push_back(fmt::format("graphs: off, {} does not capture them", decode.name));
  }
}

void Selection::list_others() {
  std::string usable;
  for (const KnownBackend& backend : backends_) {
    const std::string_view name = backend.caps->name;
    if (name == resolved_.prefill && name == resolved_.decode) continue;
    const bool kind_elsewhere =
        !backend.caps->kinds.has(model_.kind) &&
        std::any_of(backends_.begin(), backends_.end(), [&](const KnownBackend& other) {
          return other.caps->name == name && other.caps->kinds.has(model_.kind);
        });
    if (kind_elsewhere) continue;  // the other entry of this name speaks for it
    auto broken = check_backend(input_, backend, AttentionPhase::prefill);
    if (!broken) broken = check_backend(input_, backend, AttentionPhase::decode);
    if (broken) {
      const bool listed = std::any_of(resolved_.refused.begin(), resolved_.refused.end(),
                                      [&](const RefusedCandidate& r) { return r.name == name; });
      if (!listed) resolved_.refused.push_back({std::string(name), broken->text});
    } else {
      usable += fmt::format("{}{}", usable.empty() ? "" : ", ", name);
    }
  }
  if (!usable.empty()) resolved_.reasons.push_back("also possible here: " + usable);
}

Result<Resolved> Selection::run() {
  WW_RETURN_IF_ERROR(read_flags());
  const Named prefill_name = named_for(AttentionPhase::prefill);
  const Named decode_name = named_for(AttentionPhase::decode);
  const KnownBackend* prefill = nullptr;
  const KnownBackend* decode = nullptr;
  if (!prefill_name.name.empty()) {
    WW_ASSIGN_OR_RETURN(prefill, find_named(prefill_name, AttentionPhase::prefill));
  }
  if (!decode_name.name.empty()) {
    WW_ASSIGN_OR_RETURN(decode, find_named(decode_name, AttentionPhase::decode));
  }
  if (prefill == nullptr) {
    WW_ASSIGN_OR_RETURN(prefill, find_default(AttentionPhase::prefill, decode));
  }
  if (decode == nullptr) {
    WW_ASSIGN_OR_RETURN(decode, find_default(AttentionPhase::decode, prefill));
  }
  if (auto broken = check_pair(input_, *prefill->caps, *decode->caps)) {
    return Status::unsupported(broken->text, broken->flag);
  }
  resolved_.prefill = prefill->caps->name;
  resolved_.decode = decode->caps->name;
  WW_RETURN_IF_ERROR(resolve_page_size(*prefill->caps, *decode->caps));
  if (resolved_.prefill != resolved_.decode) {
    resolved_.reasons.push_back(fmt::format("hybrid: prefill by {}, decode by {}, one KV pool",
                                            resolved_.prefill, resolved_.decode));
  }
  if (input_.topk > 0) {
    resolved_.target_verify = input_.verify_with_decode ? resolved_.decode : resolved_.prefill;
    resolved_.reasons.push_back(fmt::format("target verify: {}, --speculative-attention-mode {}",
                                            resolved_.target_verify, flags_.speculative_attention_mode));
  }
  resolve_graphs(*prefill->caps, *decode->caps);
  list_others();
  return std::move(resolved_);
}

// The attention flags as the user would write them.
std::string flags_text(const AttentionFlags& flags) {
  std::string text;
  auto add = [&text](std::string_view flag, const std::string& value) {
    if (!value.empty()) text += fmt::format("{}{} {}", text.empty() ? "" : " ", flag, value);
  };
  auto add_int = [&add](std::string_view flag, const std::optional<int>& value) {
    if (value) add(flag, std::to_string(*value));
  };
  add("--attention-backend", flags.attention_backend);
  add("--prefill-attention-backend", flags.prefill_attention_backend);
  add("--decode-attention-backend", flags.decode_attention_backend);
  add_int("--page-size", flags.page_size);
  if (flags.kv_cache_dtype != "auto") add("--kv-cache-dtype", flags.kv_cache_dtype);
  add("--speculative-algorithm", flags.speculative_algorithm);
  add_int("--speculative-num-steps", flags.speculative_num_steps);
  add_int("--speculative-eagle-topk", flags.speculative_eagle_topk);
  add_int("--speculative-num-draft-tokens", flags.speculative_num_draft_tokens);
  if (flags.speculative_attention_mode != "prefill") {
    add("--speculative-attention-mode", flags.speculative_attention_mode);
  }
  if (flags.enable_deterministic_inference) {
    text += fmt::format("{}--enable-deterministic-inference", text.empty() ? "" : " ");
  }
  return text.empty() ? "no attention flags" : text;
}

void clear_backends(AttentionFlags& flags) {
  flags.attention_backend.clear();
  flags.prefill_attention_backend.clear();
  flags.decode_attention_backend.clear();
}

// Flags near the given ones, nearest first: one thing changed, then everything.
std::vector<AttentionFlags> nearby_flags(const AttentionFlags& flags,
                                         std::span<const KnownBackend> backends) {
  std::vector<AttentionFlags> list;
  auto with = [&](auto change) {
    AttentionFlags changed = flags;
    change(changed);
    list.push_back(std::move(changed));
  };
  auto no_speculation = [](AttentionFlags& f) {
    f.speculative_algorithm.clear();
    f.speculative_num_steps.reset();
    f.speculative_eagle_topk.reset();
    f.speculative_num_draft_tokens.reset();
  };
  if (flags.page_size) with([](AttentionFlags& f) { f.page_size.reset(); });
  if (flags.kv_cache_dtype != "auto") with([](AttentionFlags& f) { f.kv_cache_dtype = "auto"; });
  if (!flags.speculative_algorithm.empty()) {
    with([](AttentionFlags& f) { f.speculative_eagle_topk = 1; });
  }
  for (const KnownBackend& backend : backends) {
    if (!backend.built) continue;
    with([&](AttentionFlags& f) {
      clear_backends(f);
      f.attention_backend = backend.caps->name;
    });
  }
  with([&](AttentionFlags& f) { no_speculation(f); });
  with([](AttentionFlags& f) { f.speculative_attention_mode = "prefill"; });
  with([](AttentionFlags& f) { f.enable_deterministic_inference = false; });
  with([](AttentionFlags& f) { clear_backends(f); });
  with([](AttentionFlags& f) { clear_backends(f); f.page_size.reset(); f.kv_cache_dtype = "auto"; });
  list.push_back({});
  return list;
}

}  // namespace

Result<Resolved> select_attention(const HardwareFacts& hardware, const ModelFacts& model,
                                  const AttentionFlags& flags,
                                  std::span<const KnownBackend> backends) {
  Result<Resolved> result = Selection(hardware, model, flags, backends).run();
  if (result.ok()) return result;
  constexpr size_t kMaxSuggestions = 3;
  std::vector<std::string> works;
  for (const AttentionFlags& nearby : nearby_flags(flags, backends)) {
    if (works.size() == kMaxSuggestions) break;
    if (!Selection(hardware, model, nearby, backends).run().ok()) continue;
    std::string text = flags_text(nearby);
    if (std::find(works.begin(), works.end(), text) == works.end()) works.push_back(std::move(text));
  }
  const Status& status = result.status();
  std::string message = status.message();
  if (works.empty()) {
    message += "; no configuration of this model works on this hardware";
  } else {
    for (size_t i = 0; i < works.size(); ++i) {
      message += (i == 0 ? "; works: " : " | ") + works[i];
    }
  }
  return Status(status.code(), std::move(message), status.field());
}

std::vector<std::string> explain_lines(const Resolved& resolved) {
  std::vector<std::string> lines;
  lines.push_back("prefill attention: " + resolved.prefill);
  lines.push_back("decode attention: " + resolved.decode);
  if (!resolved.target_verify.empty()) lines.push_back("target verify: " + resolved.target_verify);
  lines.push_back(fmt::format("page size: {}", resolved.page_size));
  lines.push_back(fmt::format("KV format: {}", kv_format_name(resolved.kv_format)));
  for (const std::string& reason : resolved.reasons) lines.push_back("because " + reason);
  for (const RefusedCandidate& refused : resolved.refused) {
    lines.push_back(fmt::format("refused {}: {}", refused.name, refused.rule));
  }
  return lines;
}

}  // namespace warpweave
