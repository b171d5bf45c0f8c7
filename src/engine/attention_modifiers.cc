#include "engine/attention_modifiers.h"

#include "attention/mods/bounds.h"
#include "attention/mods/parse.h"

namespace warpweave {
namespace {

constexpr const char* kScoreFlag = "--flex-attention-score-mod";
constexpr const char* kMaskFlag = "--flex-attention-mask-mod";
constexpr const char* kParamsFlag = "--flex-attention-params";

Status of_flag(const char* flag, const Status& status) {
  return Status::invalid_argument(std::string(flag) + ": " + status.message(), flag);
}

}  // namespace

Result<mods::Modifiers> attention_modifiers(const ServerArgs& args, const Resolved& attention) {
  mods::Modifiers out;
  const std::string &score = args.flex_attention_score_mod, &mask = args.flex_attention_mask_mod;
  const auto parameters = mods::parse_parameters(args.flex_attention_params);
  if (!parameters.ok()) return of_flag(kParamsFlag, parameters.status());
  if (!score.empty()) {
    auto parsed = mods::parse_score_modifier(score, *parameters);
    if (!parsed.ok()) return of_flag(kScoreFlag, parsed.status());
    out.score = std::move(parsed).value();
  }
  if (!mask.empty()) {
    auto parsed = mods::parse_mask_modifier(mask, *parameters);
    if (!parsed.ok()) return of_flag(kMaskFlag, parsed.status());
    out.mask = std::move(parsed).value();
  }
  if (out.empty()) return out;
  const char* const flag = score.empty() ? kMaskFlag : kScoreFlag;
  if (attention.prefill != "flex_attention" || attention.decode != "flex_attention") {
    return Status::invalid_argument(
        std::string(flag) + " is for flex_attention, but prefill runs on " + attention.prefill +
            " and decode on " + attention.decode + "; give --attention-backend flex_attention",
        flag);
  }
  const bool whole_prompts = args.chunked_prefill_size == -1 && args.disable_radix_cache;
  if (!out.mask.empty() && !whole_prompts && !mods::never_sees_future(out.mask)) {
    return Status::invalid_argument(
        std::string(kMaskFlag) + " '" + mask.substr(0, 80) + "' may show a row later tokens, which an earlier "
        "chunk of its prompt or a shared prefix has not; write 'causal && ...', or give "
        "--chunked-prefill-size -1 --disable-radix-cache",
        kMaskFlag);
  }
  return out;
}

}  // namespace warpweave
