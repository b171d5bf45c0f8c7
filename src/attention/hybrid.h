// Two backends behind one interface, dispatched by forward mode: decode and idle go to the decode
// child; target_verify (and draft_extend) to the child named by --speculative-attention-mode; every
// other mode to the prefill child. Both read the same KV pool. Same threading as a backend.
#pragma once

#include <memory>

#include "attention/backend.h"

namespace warpweave {

class HybridAttnBackend : public AttentionBackend {
 public:
  // `verify_with_decode`: --speculative-attention-mode decode.
  HybridAttnBackend(std::unique_ptr<AttentionBackend> prefill,
                    std::unique_ptr<AttentionBackend> decode, bool verify_with_decode = false);
  bool verifies_with_decode() const { return verify_with_decode_; }

  const Caps& caps() const override { return caps_; }  // what both children can do
  const Caps& caps_of(ForwardMode mode) const { return child_for(mode).caps(); }  // of the one that runs it
  Status init_forward_metadata(const ForwardBatch& batch) override;
  Status reserve(const ForwardBatch& batch, const AttentionCall& shape) override;
  // That of the child which decodes, or of the one which prefills.
  Status compile(const AttentionCall& shape, int max_q_len) override;
  Status forward_extend(const ForwardBatch& batch, const AttentionCall& call) override;
  Status forward_decode(const ForwardBatch& batch, const AttentionCall& call) override;
  Status init_cuda_graph_state(const GraphLimits& limits) override;
  Status init_forward_metadata_capture_cuda_graph(const ForwardBatch& batch) override;
  Status init_forward_metadata_replay_cuda_graph(const ForwardBatch& batch) override;
  Status plan_together(std::span<const ForwardBatch* const> batches) override {
    return decode_->plan_together(batches);
  }
  bool captures_verification() const override {
    return (verify_with_decode_ ? *decode_ : *prefill_).captures_verification();
  }

 private:
  AttentionBackend& child_for(ForwardMode mode) const;

  std::unique_ptr<AttentionBackend> prefill_;
  std::unique_ptr<AttentionBackend> decode_;
  bool verify_with_decode_;
  Caps caps_;
};

struct Resolved;
// The backend(s) a selection names: one, or a hybrid pair, of which the one that the selection names verifies.
Result<std::unique_ptr<AttentionBackend>> create_resolved_backend(const Resolved& resolved,
                                                                  const BackendContext& context);

}  // namespace warpweave
