// What the recurrent layers of a model share in one forward on the host: who reads and writes which state, and the
// memory of the rows that the layers' first GEMMs leave. Grows with the largest batch; one forward at a time.
#pragma once

#include <span>
#include <vector>

#include "linear/linear_attn.h"
#include "model/layers/on_host.h"

namespace warpweave {

class RecurrentRows {
 public:
  // Once for each forward, before its first layer. `batch` outlives its forward and a commit after it; there are
  // `layers` recurrent layers with rows of `row_width` values.
  void start(const ForwardBatch& batch, int64_t row_width, int layers);
  // Once after a forward of ForwardMode::target_verify, before its layers' commit(). Accepted: [requests] the last node
  // of each, as a row of its own. `accepted` outlives them.
  void start_commit(std::span<const int32_t> accepted);

  const LinearAttnBatch& batch() const { return batch_; }
  LinearAttnPhase phase() const { return phase_; }
  // [rows, row_width] of the layer that is so many recurrent layers behind the first one. Those of a forward that is to
  // be committed stay until then.
  float* of_layer(int state_layer) { return rows_.data() + (keeps_rows_ ? state_layer * layer_rows_ : 0); }

 private:
  LinearAttnBatch batch_;
  LinearAttnPhase phase_ = LinearAttnPhase::extend;
  std::vector<int32_t> initial_slots_;  // [requests] -1: from nothing
  std::vector<float> rows_;
  int64_t layer_rows_ = 0;              // values of one layer
  bool keeps_rows_ = false;
};

// A mixer with a state.
class RecurrentMixer : public Mixer {
 public:
  // After RecurrentRows::start_commit(): the states that the forward left as they were go on along the accepted nodes.
  virtual Status commit(HostRecurrent& recurrent, ThreadTeam& team) = 0;
};

}  // namespace warpweave
