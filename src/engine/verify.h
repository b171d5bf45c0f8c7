// From the logits of a step's rows to its tokens: each request's own choice, followed through the proposals as far as
// they agree with it.
//
// A token is drawn at its position as without proposals, from logits of the same tokens before it, so the text does
// not change, unless SampleRow::accept is lossy. Not thread-safe.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "engine/device_runner.h"
#include "sample/sampler.h"
#include "spec/drafter.h"

namespace warpweave {

// The walk of each sample slot through its proposal.
class VerifyWalk {
 public:
  // Begins at node 0 of every slot.
  void start(const DeviceStep& step);
  // Leaves the slots that begin at one of these rows of logits, so that a step is walked block by block.
  void enter(int first_row, int rows);

  // The slots that are not through, and the logits row at which each stands.
  std::span<const int> slots() const { return active_; }
  int logits_row(int slot) const { return paths_[slot].first_logits_row + paths_[slot].node; }
  // What is guessed to follow there.
  void guesses(int slot, std::vector<int32_t>& out) const { paths_[slot].proposal->children(paths_[slot].node, out); }
  int depth(int slot) const { return static_cast<int>(paths_[slot].tokens.size()); }

  // Accepted so far, node 0 first.
  std::span<const int> nodes(int slot) const {
    return std::span(nodes_).subspan(slot * stride_, paths_[slot].num_nodes);
  }

  // The choice at each slot of slots(), in their order. Those whose proposals go on with it stay.
  void advance(std::span<SampledRow> sampled);

  // For benchmarks, where weights are made up: from now on a node's first guess is right with this probability, and is
  // what was sampled then.
  void use_dice(double right) { dice_ = right; }
  bool uses_dice() const { return dice_.has_value(); }

  // With dice: throws them now for the step that is started next, whose proposals are chains. By its sample slots: how
  // many nodes will be accepted.
  std::span<const int> throw_ahead(const DeviceStep& step);

  // Fills in the step's tokens when all are through.
  void finish(DeviceStep& step);

  // All of these for a step whose rows are neither edited nor scored: the choices at all its nodes, by row of logits.
  // The states learn their tokens; the step gets ids alone.
  void take(DeviceStep& step, std::span<const int32_t> choices);

  // Calls move(from_slot, to_slot) for each accepted node whose K/V is not where one token after the other would have
  // put it: slots of every group's pool, in an order in which nothing is overwritten that is still to be moved.
  template <typename Move>
  void each_move(const BatchBuilder& builder, Move&& move) const {
    for (size_t slot = 0; slot < paths_.size(); ++slot) {
      const std::span<const int> accepted = nodes(static_cast<int>(slot));
      for (size_t depth = 1; depth < accepted.size(); ++depth) {
        const int first_row = paths_[slot].first_row;
        const int from_row = first_row + accepted[depth], to_row = first_row + static_cast<int>(depth);
        if (from_row == to_row) continue;
        for (int group = 0; group < builder.num_groups(); ++group) {
          const std::span<const int32_t> slots = builder.kv_slots(group);
          move(slots[from_row], slots[to_row]);
        }
      }
    }
  }

 private:
  struct Path {
    const Proposal* proposal = nullptr;
    SamplerState* state = nullptr;
    int first_logits_row = 0;        // of node 0
    int first_row = 0;               // of node 0, in the batch
    int node = 0;
    int num_nodes = 0;               // accepted
    std::vector<SampledRow> tokens;  // not of take()
  };
  bool falls_right() { return uniform_draw(0, throws_++) < *dice_; }
  void begin(const DeviceStep& step);
  void accept(int slot, int node);
  bool go_on(int slot, int32_t& token);
  int thrown(int slot, int32_t& token);

  std::vector<Path> paths_;          // by sample slot
  std::vector<int> nodes_;           // [slots, stride_] accepted, node 0 first
  size_t stride_ = 1;
  std::vector<int> active_;
  std::optional<double> dice_;
  std::vector<int> thrown_;          // by sample slot, of throw_ahead(); empty: nothing was
  uint64_t throws_ = 0;
};

// What became of each row of a step that is done, for the draft model. `out` points into both.
void observed_rows(const DeviceStep& step, const VerifyWalk& walk, std::vector<ObservedRow>& out);

// Samples on the host from logits that hold all rows of the walk's slots, beginning with row `first_row` of the step.
void sample_walk(const DeviceStep& step, const SampleLogits& logits, int first_row, Sampler& sampler,
                 VerifyWalk& walk);

// All of a step, from logits that hold all its rows.
void sample_and_verify(DeviceStep& step, const SampleLogits& logits, Sampler& sampler, VerifyWalk& walk);

}  // namespace warpweave
