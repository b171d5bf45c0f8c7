// Planted kernel bugs: a simple recurrent kernel in as many wrong variants as there are ways to be wrong. The suite
// must catch every one of them; it is thereby tested itself.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "linear/linear_attn.h"

namespace warpweave::testing_linear {

#define WW_LINEAR_MUTATIONS(X) \
  X(none) /* the same code without a bug: must pass */ \
  /* States and slots */ \
  X(state_of_another_request) X(initial_slot_ignored) X(fresh_request_reads_slot) X(state_transposed) \
  X(head_stride_assumed) X(slot_stride_assumed) X(empty_request_not_carried) X(state_not_written) \
  X(state_in_bf16) X(checkpoint_late) X(checkpoint_early) X(checkpoint_of_end) X(checkpoint_missing) \
  /* The recurrence */ \
  X(decay_twice) X(decay_dropped) X(decay_after_update) X(decay_of_next_token) X(decay_base_2) \
  X(decay_of_first_channel) X(decay_of_k_head) X(decay_lost_at_chunk) X(token_lost_at_chunk) \
  X(token_twice_at_chunk) X(inverse_decays_in_chunk) X(beta_dropped) X(beta_on_value_only) \
  X(beta_of_k_head) X(prediction_before_decay) X(prediction_missing) X(output_before_update) \
  X(scale_dropped) X(scale_of_v_dim) X(head_map_modulo) X(q_stride_assumed) X(out_stride_assumed) \
  X(first_token_skipped) X(last_token_twice) X(padded_row_left) X(padded_row_computed) X(q_not_normalized) \
  X(k_not_normalized) X(norm_over_all_heads) X(l2norm_forced) \
  /* Convolution */ \
  X(conv_shifted) X(conv_reversed) X(conv_without_silu) X(conv_bias_dropped) X(conv_state_not_written) \
  X(conv_state_shifted) X(conv_state_of_call_only) X(conv_state_reversed) X(conv_fresh_reads_slot) \
  X(conv_of_row_before) X(conv_checkpoint_of_end) \
  X(conv_weight_of_token_before) X(conv_bias_beside_token_weight) \
  /* Gates and norm */ \
  X(softplus_as_relu) X(dt_bias_dropped) X(dt_bias_of_first_head) X(a_log_not_exponentiated) \
  X(beta_without_sigmoid) X(gate_before_norm) X(gate_swapped) X(norm_weight_dropped) X(norm_by_sum) \
  /* Trees */ \
  X(tree_as_chain) X(tree_parent_off_by_one) X(tree_from_first_root) X(verify_writes_state) \
  X(commit_everything) X(commit_one_less) X(commit_by_index) X(commit_without_conv) X(conv_ignores_tree)

#define WW_ENUM(name) name,
enum class Mutation { WW_LINEAR_MUTATIONS(WW_ENUM) };
#undef WW_ENUM

std::vector<Mutation> all_mutations();
std::string_view mutation_name(Mutation mutation);
std::unique_ptr<LinearAttnKernelBase> make_mutant(Mutation mutation);

}  // namespace warpweave::testing_linear
