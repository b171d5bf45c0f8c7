#include "linear/dispatch.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace warpweave {
namespace {

struct Wanted {
  LinearAttnKind kind;
  DType state_dtype;
  std::string_view call;  // "extend", "decode", "target verify"
  std::string_view flag;
  bool trees = false;
};

// The first thing that the kernels lack; empty when they run the call.
std::string lacks(const LinearAttnKernelCaps& caps, const Wanted& wanted) {
  if (!(wanted.kind == LinearAttnKind::kda ? caps.kda : caps.gdn)) {
    return fmt::format("run no {} layers", linear_attn_kind_name(wanted.kind));
  }
  if (wanted.call == "extend" && !caps.extend) return "have no extend";
  if (wanted.call == "decode" && !caps.decode) return "have no decode";
  if (wanted.call == "target verify") {
    if (wanted.trees && !caps.verify_tree) return "verify no trees";
    if (!caps.verify_chain && !caps.verify_tree) return "verify no drafts";
  }
  if (wanted.state_dtype == DType::bf16 && !caps.bf16_state) return "have no bf16 state";
  return {};
}

Result<const LinearAttnBackend*> choose(const std::string& name, const Wanted& wanted,
                                        std::span<const LinearAttnBackend> backends,
                                        std::vector<std::string>& reasons) {
  std::string broken = "is not built into this program", others;
  for (const LinearAttnBackend& backend : backends) {
    std::string missing = lacks(*backend.caps, wanted);
    if (missing.empty() && backend.name == name && backend.probe != nullptr) {
      if (const Status status = backend.probe(); !status.ok()) missing = "cannot run here: " + status.message();
    }
    if (missing.empty() && backend.name == name) {
      reasons.push_back(fmt::format("{} {}: {} -> kernels {}", linear_attn_kind_name(wanted.kind), wanted.call, name,
                                    backend.caps->name));
      return &backend;
    }
    if (backend.name == name) broken = fmt::format("cannot: its kernels ({}) {}", backend.caps->name, missing);
    if (missing.empty()) others += fmt::format("{}{}", others.empty() ? "" : ", ", backend.name);
  }
  return Status::unsupported(
      fmt::format("{} {} for {} of {} layers {}; these run it: {}", wanted.flag, name, wanted.call,
                  linear_attn_kind_name(wanted.kind), broken, others.empty() ? "none" : others),
      std::string(wanted.flag));
}

}  // namespace

Result<LinearAttnChoice> choose_linear_attn(LinearAttnKind kind, const LinearAttnNames& names, DType state_dtype,
                                            std::span<const LinearAttnBackend> backends) {
  LinearAttnChoice choice;
  Wanted wanted{kind, state_dtype, "extend", "--linear-attn-prefill-backend"};
  WW_ASSIGN_OR_RETURN(choice.extend, choose(names.prefill, wanted, backends, choice.reasons));
  wanted.call = "decode";
  wanted.flag = "--linear-attn-decode-backend";
  WW_ASSIGN_OR_RETURN(choice.decode, choose(names.decode, wanted, backends, choice.reasons));
  if (names.verify.empty()) return choice;
  wanted.call = "target verify";
  wanted.flag = "--linear-attn-backend";
  wanted.trees = names.verify_trees;
  WW_ASSIGN_OR_RETURN(choice.verify, choose(names.verify, wanted, backends, choice.reasons));
  return choice;
}

Result<LinearAttnDispatcher> LinearAttnDispatcher::create(LinearAttnKind kind, const LinearAttnNames& names,
                                                          DType state_dtype,
                                                          std::span<const LinearAttnBackend> backends) {
  WW_ASSIGN_OR_RETURN(LinearAttnChoice choice, choose_linear_attn(kind, names, state_dtype, backends));
  LinearAttnDispatcher dispatcher;
  std::map<const LinearAttnKernelCaps*, std::shared_ptr<LinearAttnKernelBase>> made;
  const auto make = [&made](const LinearAttnBackend& backend) {
    std::shared_ptr<LinearAttnKernelBase>& kernel = made[backend.caps];
    if (kernel == nullptr) kernel = backend.create();
    return kernel;
  };
  dispatcher.extend_ = make(*choice.extend);
  dispatcher.decode_ = make(*choice.decode);
  if (choice.verify != nullptr) dispatcher.verify_ = make(*choice.verify);
  dispatcher.reasons_ = std::move(choice.reasons);
  return dispatcher;
}

Status LinearAttnDispatcher::prepare(const LinearAttnShape& shape) {
  for (auto* kernel : {decode_.get(), extend_.get(), verify_.get()}) {
    if (kernel != nullptr) WW_RETURN_IF_ERROR(kernel->prepare(shape));
  }
  return {};
}

Status LinearAttnDispatcher::take_failure() {
  Status first;
  for (auto* kernel : {decode_.get(), extend_.get(), verify_.get()}) {
    if (kernel == nullptr) continue;
    Status failure = kernel->take_failure();
    if (first.ok()) first = std::move(failure);
  }
  return first;
}

size_t LinearAttnDispatcher::workspace_bytes(const LinearAttnShape& shape, const LinearAttnLimits& limits) const {
  size_t bytes = 0;
  for (const auto* kernel : {decode_.get(), extend_.get(), verify_.get()}) {
    if (kernel != nullptr) bytes = std::max(bytes, kernel->workspace_bytes(shape, limits));
  }
  return bytes;
}

}  // namespace warpweave
