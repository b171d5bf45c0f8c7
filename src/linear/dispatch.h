// Which kernels run the three calls of a model's linear layers: decode, extend and target verify, each chosen apart.
//
// Names are those of --linear-attn-backend; attention/select_layers.h has resolved them by hardware and model, with
// reasons. Here they become kernels: several names may stand for one family, which is then made once. The GDN and the
// KDA dispatcher are two values of one class; a model has one of them.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "linear/linear_attn.h"

namespace warpweave {

// A name, and how the family behind it is made; entries with the same `caps` share their kernels.
struct LinearAttnBackend {
  std::string_view name;
  const LinearAttnKernelCaps* caps = nullptr;
  std::function<std::unique_ptr<LinearAttnKernelBase>()> create;
  Status (*probe)() = nullptr;  // what this machine lacks to run it, in words; null: nothing
};

// As resolved; `verify` is empty without speculation.
struct LinearAttnNames {
  std::string prefill;
  std::string decode;
  std::string verify;
  bool verify_trees = false;
};

// What runs each call, before anything is made. Pure.
struct LinearAttnChoice {
  const LinearAttnBackend* extend = nullptr;
  const LinearAttnBackend* decode = nullptr;
  const LinearAttnBackend* verify = nullptr;  // null without speculation
  std::vector<std::string> reasons;           // "GDN extend: triton -> kernels cpu", one line each
};

// `unsupported` with the flag as field where no such backend is among them, or its kernels lack the call, the kind or
// the state type; the text lists those that would do.
Result<LinearAttnChoice> choose_linear_attn(LinearAttnKind kind, const LinearAttnNames& names, DType state_dtype,
                                            std::span<const LinearAttnBackend> backends);

class LinearAttnDispatcher {
 public:
  static Result<LinearAttnDispatcher> create(LinearAttnKind kind, const LinearAttnNames& names, DType state_dtype,
                                             std::span<const LinearAttnBackend> backends);

  // Compiles what the calls of this shape need, where kernels are compiled at run time; why that fails.
  Status prepare(const LinearAttnShape& shape);

  // Enough for every call that it dispatches.
  size_t workspace_bytes(const LinearAttnShape& shape, const LinearAttnLimits& limits) const;

  void decode(const LinearAttnCall& call) { decode_->decode(call); }
  void extend(const LinearAttnCall& call) { extend_->extend(call); }
  // Only where names.verify was given.
  void target_verify(const LinearAttnCall& call) { verify_->target_verify(call); }
  void commit(const LinearAttnCall& call) { verify_->commit(call); }
  // The first failure of these calls since it was last asked, as of each kernel.
  Status take_failure();

  const std::vector<std::string>& reasons() const { return reasons_; }

 private:
  std::shared_ptr<LinearAttnKernelBase> decode_, extend_, verify_;
  std::vector<std::string> reasons_;
};

}  // namespace warpweave
