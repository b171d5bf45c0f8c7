#include "attention/select.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "attention/select_layers.h"
#include "attention/select_rules.h"
#include "attention/select_speculation.h"
#include "attention/select_suggest.h"
#include "attention/tuning.h"
#include "kv/latent_token.h"

namespace warpweave {
namespace {

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
  Status read_kv_format();
  Named named_for(AttentionPhase phase) const;
  Result<const KnownBackend*> find_named(const Named& named, AttentionPhase phase);
  std::optional<BrokenRule> check_with(const KnownBackend& backend, AttentionPhase phase,
                                       const KnownBackend* other) const;
  Result<const KnownBackend*> find_default(AttentionPhase phase, const KnownBackend* other);
  const KnownBackend* find_measured(AttentionPhase phase, const KnownBackend* other);
  bool asks_for_measurement(AttentionPhase phase) const;
  std::vector<TuningTable::Ranked> preferred_among_equals(std::vector<TuningTable::Ranked> ranked) const;
  void quote_measurements(const TuningTable& table, AttentionPhase phase);
  Status resolve_phases(const KnownBackend*& prefill, const KnownBackend*& decode);
  Status resolve_page_size(const Caps& prefill, const Caps& decode);
  void resolve_graphs(const Caps& prefill, const Caps& decode);
  void explain_fp8_mma(const Caps& prefill);
  void list_others();

  const HardwareFacts& hardware_;
  const ModelFacts& model_;
  const AttentionFlags& flags_;
  std::span<const KnownBackend> backends_;
  SelectionInput input_;
  Resolved resolved_;
};

Status Selection::read_kv_format() {
  input_.kv_format = model_kv_format(model_.dtype);
  if (flags_.kv_cache_dtype == "auto" || flags_.kv_cache_dtype.empty()) {
    std::string_view why = "the model's dtype";
    if (model_.kind == AttentionKind::sparse && (hardware_.arch == DeviceArch::sm_100 ||
                                                 hardware_.arch == DeviceArch::sm_103)) {
      input_.kv_format = KvFormat::fp8_e4m3;
      why = "the default of sparse attention on this device";
    }
    resolved_.reasons.push_back(fmt::format("kv-cache-dtype: auto -> {}, {}",
                                            kv_format_name(input_.kv_format), why));
  } else {
    const std::optional<KvFormat> named = parse_kv_format(flags_.kv_cache_dtype);
    if (!named) {
      return Status::invalid_argument(
          fmt::format("--kv-cache-dtype is \"{}\"; known: auto, bf16, f16, f32, fp8_e4m3, fp8_e5m2, "
                      "fp4_e2m1, fp8_ds_mla, fp4_mla", flags_.kv_cache_dtype),
          "--kv-cache-dtype");
    }
    input_.kv_format = *named;
  }
  const int v_dim = model_.v_head_dim ? model_.v_head_dim : model_.head_dim;
  if (input_.kv_format == KvFormat::fp4_e2m1 &&
      (model_.head_dim % kFp4BlockElements != 0 || v_dim % kFp4BlockElements != 0)) {
    return Status::unsupported(
        fmt::format("--kv-cache-dtype fp4_e2m1 stores blocks of {} elements; this model's head dim is {}",
                    kFp4BlockElements, model_.head_dim),
        "--kv-cache-dtype");
  }
  if (input_.kv_format == KvFormat::fp4_e2m1 && model_.kind == AttentionKind::mla) {
    input_.kv_format = KvFormat::fp4_mla;
    resolved_.reasons.push_back("kv-cache-dtype: fp4_e2m1 -> fp4_mla, its form for latent attention");
  }
  const bool latent =
      model_.kind == AttentionKind::mla && model_.head_dim == kPackedTokenDim && v_dim == kPackedLatentDim;
  if (kv_format_is_packed(input_.kv_format) && !latent) {
    return Status::unsupported(
        fmt::format(
            "--kv-cache-dtype {} packs tokens of latent attention with {} + {} values, which this model has not; "
            "use fp8_e4m3 or auto",
            kv_format_name(input_.kv_format), kPackedLatentDim, kPackedRopeDim),
        "--kv-cache-dtype");
  }
  resolved_.kv_format = input_.kv_format;
  return {};
}

Status Selection::read_flags() {
  WW_ASSIGN_OR_RETURN(resolved_.speculation,
                      resolve_speculation(flags_, model_, hardware_.arch, resolved_.reasons));
  input_.topk = resolved_.speculation.topk;
  input_.verify_with_decode = input_.topk > 0 && flags_.speculative_attention_mode == "decode";
  if (flags_.page_size && *flags_.page_size < 1) {
    return Status::invalid_argument(
        fmt::format("--page-size is {}; it must be at least 1", *flags_.page_size), "--page-size");
  }
  input_.page_size = flags_.page_size;
  input_.cached_prefixes = flags_.cached_prefixes;
  input_.deterministic = resolved_.deterministic = flags_.enable_deterministic_inference;
  return read_kv_format();
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

Result<const KnownBackend*> Selection::find_named(const Named& named, AttentionPhase phase) {
  const KnownBackend* found = find_entry(input_, named.name, backends_);
  if (found == nullptr) {
    return Status::invalid_argument(
        fmt::format("{} is \"{}\", which is no attention backend; did you mean {}?", named.flag,
                    named.name, nearest_backend_name(named.name)),
        named.flag);
  }
  if (auto broken = check_backend(input_, *found, phase)) {
    const std::string text = fmt::format("{} {} cannot run {} on {}: it {}", named.flag, named.name,
                                         phase_name(phase), hardware_.name, broken->text);
    const std::string& flag = broken->flag.empty() ? named.flag : broken->flag;
    return Status::unsupported(text, flag);
  }
  if (found->probe != nullptr) {
    if (const Status status = found->probe(Probe::thorough); !status.ok()) {
      return Status::unsupported(fmt::format("{} {} cannot run here: {}", named.flag, named.name,
                                             status.message()), named.flag);
    }
  }
  resolved_.reasons.push_back(
      fmt::format("{}: {} -> {}, as asked", phase_name(phase), named.flag, named.name));
  return found;
}

// The rules of this phase, and those of the pair. `other`: the backend already chosen for the other
// phase; null while that is open, when the candidate must be able to join itself.
std::optional<BrokenRule> Selection::check_with(const KnownBackend& backend, AttentionPhase phase,
                                                const KnownBackend* other) const {
  if (auto broken = check_backend(input_, backend, phase)) return broken;
  const KnownBackend& partner = other ? *other : backend;
  const bool prefill = phase == AttentionPhase::prefill;
  const KnownBackend& first = prefill ? backend : partner;
  const KnownBackend& second = prefill ? partner : backend;
  if (auto broken = check_pair(input_, first, second)) return broken;
  if (common_page_size(input_, *first.caps, *second.caps)) return std::nullopt;
  return BrokenRule{fmt::format("has no page size in common with {}", partner.caps->name), ""};
}

// Whether the user wrote "auto" for the phase.
bool Selection::asks_for_measurement(AttentionPhase phase) const {
  const bool prefill = phase == AttentionPhase::prefill;
  const std::string& own = prefill ? flags_.prefill_attention_backend : flags_.decode_attention_backend;
  return own == "auto" || (own.empty() && flags_.attention_backend == "auto");
}

// Backends as fast as the first, but for what varies from run to run, in the order of the rules.
std::vector<TuningTable::Ranked> Selection::preferred_among_equals(std::vector<TuningTable::Ranked> ranked) const {
  constexpr double kEqual = 1.03;
  const std::vector<std::string_view> order = preferred_backends(input_);
  const auto place = [&](const TuningTable::Ranked& r) {
    return std::find(order.begin(), order.end(), r.backend) - order.begin();
  };
  const auto slower = std::find_if(ranked.begin(), ranked.end(), [&](const TuningTable::Ranked& r) {
    return r.relative_time > ranked.front().relative_time * kEqual;
  });
  std::stable_sort(ranked.begin(), slower, [&](const auto& a, const auto& b) { return place(a) < place(b); });
  return ranked;
}

// How the backends measured for this shape compare, as a reason.
void Selection::quote_measurements(const TuningTable& table, AttentionPhase phase) {
  std::string why_not, text;
  for (const TuningTable::Ranked& ranked :
       table.ranking(hardware_, tuning_shape(model_, input_.kv_format), phase, why_not)) {
    text += fmt::format("{}{} {:.2f}", text.empty() ? "" : ", ", ranked.backend, ranked.relative_time);
  }
  if (text.empty()) return;
  resolved_.reasons.push_back(fmt::format("{}: measured on {}, {}, as multiples of the best time: {}",
                                          phase_name(phase), table.device(), table.date(), text));
}

// The fastest by the tuning file, if --attention-backend auto has one that measured this.
const KnownBackend* Selection::find_measured(AttentionPhase phase, const KnownBackend* other) {
  const TuningTable* table = flags_.tuning;
  if (table == nullptr && asks_for_measurement(phase)) table = builtin_tuning(hardware_.name);
  if (table == nullptr) return nullptr;
  std::string why_not;
  for (const TuningTable::Ranked& ranked :
       preferred_among_equals(table->ranking(hardware_, tuning_shape(model_, input_.kv_format), phase, why_not))) {
    const KnownBackend* backend = find_entry(input_, ranked.backend, backends_);
    if (backend == nullptr) continue;
    if (const auto broken = check_with(*backend, phase, other)) {
      why_not = fmt::format("{} {}", ranked.backend, broken->text);
      continue;
    }
    resolved_.reasons.push_back(fmt::format(
        "{}: auto -> {}, the fastest measured {} ({})", phase_name(phase), ranked.backend,
        flags_.tuning != nullptr ? "here" : "on " + table->device() + ", " + table->date(), ranked.measurements));
    quote_measurements(*table, phase);
    return backend;
  }
  resolved_.reasons.push_back(fmt::format("{}: auto decides by rule, not by measurement: {}",
                                          phase_name(phase), why_not));
  return nullptr;
}

Result<const KnownBackend*> Selection::find_default(AttentionPhase phase,
                                                    const KnownBackend* other) {
  if (const KnownBackend* measured = find_measured(phase, other)) return measured;
  std::string refusals;
  for (std::string_view name : preferred_backends(input_)) {
    const KnownBackend* backend = find_entry(input_, name, backends_);
    if (backend == nullptr || !backend->caps->kinds.has(model_.kind)) continue;
    if (const auto broken = check_with(*backend, phase, other)) {
      refusals += fmt::format("{}{} {}", refusals.empty() ? "" : "; ", name, broken->text);
      continue;
    }
    resolved_.reasons.push_back(fmt::format(
        "{}: unset -> {}, because it is the first choice for {} on {} that passes every rule{}",
        phase_name(phase), name, kind_name(model_.kind), arch_name(hardware_.arch),
        refusals.empty() ? "" : " (" + refusals + ")"));
    if (const TuningTable* table = builtin_tuning(hardware_.name)) quote_measurements(*table, phase);
    return backend;
  }
  return Status::unsupported(
      fmt::format("no attention backend can run {} of this model on {}: {}", phase_name(phase),
                  hardware_.name, refusals.empty() ? "none is known for it" : refusals),
      "--attention-backend");
}

Status Selection::resolve_page_size(const Caps& prefill, const Caps& decode) {
  const std::optional<int> size = common_page_size(input_, prefill, decode);
  SelectionInput without_speculation = input_;
  without_speculation.topk = 0;
  if (!size && common_page_size(without_speculation, prefill, decode)) {
    return Status::unsupported(
        fmt::format("prefill backend {} (page size {}) and decode backend {} (page size {}) share no "
                    "page size at which both run topk {}", prefill.name, page_sizes_text(prefill),
                    decode.name, page_sizes_text(decode), input_.topk),
        "--speculative-eagle-topk");
  }
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
    std::string why = fmt::format("{} takes {}", prefill.name, page_sizes_text(prefill));
    const Caps& own = decode.preferred_page_size == *size ? decode : prefill;
    if (own.preferred_page_size == *size) why = fmt::format("that is {}'s default; {}", own.name, why);
    if (&prefill != &decode) {
      why += fmt::format(" and {} takes {}", decode.name, page_sizes_text(decode));
    }
    resolved_.reasons.push_back(fmt::format("page-size: unset -> {}, because {}", *size, why));
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

// Each name once: the entry that fits this model and device best speaks for it.
void Selection::list_others() {
  std::string usable;
  for (const KnownBackend& backend : backends_) {
    const std::string_view name = backend.caps->name;
    if (name == resolved_.prefill && name == resolved_.decode) continue;
    if (find_entry(input_, name, backends_) != &backend) continue;
    auto broken = check_backend(input_, backend, AttentionPhase::prefill);
    if (!broken) broken = check_backend(input_, backend, AttentionPhase::decode);
    if (broken) {
      resolved_.refused.push_back({std::string(name), broken->text});
    } else {
      usable += fmt::format("{}{}", usable.empty() ? "" : ", ", name);
    }
  }
  if (!usable.empty()) resolved_.reasons.push_back("also possible here: " + usable);
}

Status Selection::resolve_phases(const KnownBackend*& prefill, const KnownBackend*& decode) {
  const Named prefill_name = named_for(AttentionPhase::prefill);
  const Named decode_name = named_for(AttentionPhase::decode);
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
  if (auto broken = check_pair(input_, *prefill, *decode)) {
    return Status::unsupported(broken->text, broken->flag);
  }
  resolved_.prefill_caps = prefill->caps;
  resolved_.decode_caps = decode->caps;
  resolved_.prefill = prefill->caps->name;
  resolved_.decode = decode->caps->name;
  return {};
}

// Whether prefill rounds more than KV, and how to keep it from that.
void Selection::explain_fp8_mma(const Caps& prefill) {
  const Fp8Mma& fp8 = prefill.fp8_mma;
  if (!fp8.kv_formats.has(input_.kv_format)) return;
  const bool ever = fp8.apply(input_.kv_format, model_.head_dim, resolved_.page_size, std::numeric_limits<int>::max());
  const std::string name = fmt::format("prefill: {} on {} KV", prefill.name, kv_format_name(input_.kv_format));
  if (input_.deterministic || !ever) {
    resolved_.reasons.push_back(
        fmt::format("{}: 16-bit arithmetic, {}", name,
                    input_.deterministic
                        ? "--enable-deterministic-inference"
                        : fmt::format("fp8 arithmetic needs pages of a multiple of {} tokens and a head dim of its own",
                                      fp8.page_multiple)));
    return;
  }
  resolved_.reasons.push_back(fmt::format(
      "{}: fp8 arithmetic (queries and probabilities are rounded to e4m3) where a request of the batch has {} new "
      "tokens or more; decode, drafts and --enable-deterministic-inference: 16-bit",
      name, fp8.min_q_len));
}

Result<Resolved> Selection::run() {
  WW_RETURN_IF_ERROR(read_flags());
  const KnownBackend* prefill = nullptr;
  const KnownBackend* decode = nullptr;
  WW_RETURN_IF_ERROR(resolve_phases(prefill, decode));
  WW_RETURN_IF_ERROR(resolve_page_size(*prefill->caps, *decode->caps));
  if (resolved_.prefill != resolved_.decode) {
    resolved_.reasons.push_back(fmt::format("hybrid: prefill by {}, decode by {}, one KV pool",
                                            resolved_.prefill, resolved_.decode));
  }
  explain_fp8_mma(*prefill->caps);
  if (input_.topk > 0) {
    resolved_.target_verify = input_.verify_with_decode ? resolved_.decode : resolved_.prefill;
    resolved_.reasons.push_back(fmt::format("target verify: {}, --speculative-attention-mode {}",
                                            resolved_.target_verify, flags_.speculative_attention_mode));
  }
  resolve_graphs(*prefill->caps, *decode->caps);
  WW_RETURN_IF_ERROR(resolve_sparse_layers(input_, flags_, resolved_));
  WW_RETURN_IF_ERROR(resolve_linear_layers(input_, flags_, resolved_));
  WW_RETURN_IF_ERROR(resolve_vision_tower(input_, flags_, resolved_));
  list_others();
  return std::move(resolved_);
}

}  // namespace

Result<Resolved> select_attention(const HardwareFacts& hardware, const ModelFacts& model,
                                  const AttentionFlags& flags,
                                  std::span<const KnownBackend> backends, const AcceptFn& accepts) {
  Result<Resolved> result = Selection(hardware, model, flags, backends).run();
  if (result.ok()) return result;
  constexpr size_t kMaxSuggestions = 3;
  std::vector<std::string> works;
  SelectionInput input;
  input.hardware = &hardware;
  input.model = &model;
  for (const AttentionFlags& nearby : nearby_flags(flags, preferred_backends(input), backends)) {
    if (works.size() == kMaxSuggestions) break;
    const Result<Resolved> found = Selection(hardware, model, nearby, backends).run();
    if (!found.ok() || (accepts && !accepts(*found))) continue;
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
  if (!resolved.nsa.prefill.empty()) {
    lines.push_back("sparse prefill: " + resolved.nsa.prefill);
    lines.push_back("sparse decode: " + resolved.nsa.decode);
  }
  if (!resolved.linear.prefill.empty()) {
    lines.push_back("linear attention prefill: " + resolved.linear.prefill);
    lines.push_back("linear attention decode: " + resolved.linear.decode);
  }
  if (!resolved.mm.empty()) lines.push_back("vision attention: " + resolved.mm);
  lines.push_back(fmt::format("page size: {}", resolved.page_size));
  lines.push_back(fmt::format("KV format: {}", kv_format_name(resolved.kv_format)));
  for (const std::string& reason : resolved.reasons) lines.push_back("because " + reason);
  for (const RefusedCandidate& refused : resolved.refused) {
    lines.push_back(fmt::format("refused {}: {}", refused.name, refused.rule));
  }
  return lines;
}

}  // namespace warpweave
