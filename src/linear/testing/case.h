// What the suite asks of every linear attention kernel, as data, and the tensors made from it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "linear/reference.h"

namespace warpweave::testing_linear {

enum class Decay : uint8_t {
  ordinary,   // g in [-2, -0.01]
  near_one,   // [-1e-4, 0], 0 itself among them: nothing is forgotten
  near_zero,  // [-60, -5]: products of a chunk's inverse decays overflow
  mixed,      // all of these, and -200
};
enum class Start : uint8_t {
  own_slot,   // initial_slots is null
  fresh,      // every request from zeros, over a slot full of NaN
  elsewhere,  // from zeros, from its own slot or from a slot that others read, too
};
enum class Tree : uint8_t { chain, random, star };

struct LinearAttnCase {
  std::string name;
  LinearAttnPhase phase = LinearAttnPhase::extend;  // target_verify: commits a random path afterwards
  LinearAttnShape shape{LinearAttnKind::gdn, 2, 4, 64, 64};
  std::vector<int> lengths;      // tokens per request; -n: a padded one with n rows
  Decay decay = Decay::ordinary;
  Start start = Start::own_slot;
  Tree tree = Tree::chain;
  bool conv = false;
  bool conv_bias = false;
  int conv_width = 4;
  bool v_weight = false;         // LinearAttnConv::v_weight
  bool gates = false;
  bool norm = false;
  LinearAttnNormGate norm_gate = LinearAttnNormGate::silu;
  bool l2norm = true;            // false: keys come with length 1
  bool alike_keys = false;       // nearly the same key for every token
  bool checkpoints = false;
  bool same_bits_drafted = false;  // of the call: as deterministic mode asks
  bool whole_chunks = false;     // LinearAttnBatch::checkpoints_end_chunks
  bool strided = false;          // gaps everywhere
  bool exact = false;            // LinearAttnCall::exact
  bool any_form = false;         // LinearAttnCall::any_form
  DType activation = DType::f32;
  DType out = DType::f32;
  DType state = DType::f32;      // of both states
  uint64_t seed = 1;
};

// Every case; names are unique.
std::vector<LinearAttnCase> linear_attn_cases();

// Whole layers with chains of drafts, for run_drafted_and_decoded().
std::vector<LinearAttnCase> chains_cases(LinearAttnKind kind);

// Decode of f32 states of 64 and 128 channels, with a norm and without.
std::vector<LinearAttnCase> decode_cases(LinearAttnKind kind);

// Prompts with checkpoints at and off the edges of chunks, for run_in_pieces().
LinearAttnCase checkpoints_case(LinearAttnKind kind);

// The tensors of a case. What no kernel may read is NaN, what none may write holds a pattern.
class LinearAttnProblem {
 public:
  explicit LinearAttnProblem(const LinearAttnCase& c);
  LinearAttnProblem(const LinearAttnProblem&) = delete;

  // Without a workspace. Points into this object.
  const LinearAttnCall& call() const { return call_; }
  int num_slots() const { return num_slots_; }
  int64_t out_bytes() const { return static_cast<int64_t>(out_.size()); }
  int64_t state_bytes() const { return static_cast<int64_t>(state_.size()); }
  int64_t conv_state_bytes() const { return static_cast<int64_t>(conv_state_.size()); }

  // What stands in memory now, widened.
  double out_at(int64_t token, int64_t at) const;                // at: of [v_heads, v_dim]
  std::vector<double> recurrent(int slot) const;
  std::vector<double> conv_state(int slot) const;

  // The first tensor whose bits differ from those of another problem of the same case; empty: none.
  std::string difference(const LinearAttnProblem& other) const;

  // Bytes outside of the slots in `written` (and outputs of requests) that differ from when it was made; empty, or
  // what was overwritten.
  std::string overwritten(const std::map<int, LinearAttnSlotState>& written, bool out_too) const;

 private:
  void make_batch();
  void make_starts();
  void make_checkpoints();
  void make_tree();
  void make_inputs();
  void make_states();
  LinearAttnRows add_rows(int heads, int dim, DType dtype, const std::vector<float>& values);
  std::vector<float> randoms(size_t count, double scale);
  std::vector<float> keys(int heads);
  std::vector<float> log_decays();
  double uniform();
  double normal();

  const LinearAttnCase case_;
  uint64_t random_state_;
  LinearAttnCall call_;
  LinearAttnBatch batch_;
  LinearAttnConv conv_;
  LinearAttnGates gates_;
  LinearAttnNorm norm_;
  int num_slots_ = 0;
  int64_t tokens_ = 0;
  std::vector<int32_t> indptr_, slots_, initial_, checkpoint_indptr_, checkpoint_tokens_, checkpoint_slots_, parents_,
      accepted_;
  std::vector<std::vector<std::byte>> inputs_;
  std::vector<std::byte> out_, state_, conv_state_, out_before_, state_before_, conv_state_before_;
};

}  // namespace warpweave::testing_linear
