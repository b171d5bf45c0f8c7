// Planted kernel bugs: a simple backend in as many wrong variants as there are ways to be wrong. The
// conformance suite must catch every one of them; it is thereby tested itself. Compiled for tests only.
#pragma once

#include <span>
#include <string_view>

#include "conformance/variant.h"

namespace warpweave::conformance {

enum class Mutation {
  none,                     // the same code without a bug: must pass
  page_off_by_one,          // the first token of a page is looked up in the page before
  page_table_contiguous,    // pages are taken to lie in order
  page_offset_dropped,      // every token of a page is its first one
  mask_sees_next,           // a row sees one token too many
  mask_hides_itself,        // and one too few
  mask_from_start,          // a prefix is ignored: rows count from 0
  stale_tail,               // the last block is read to its end
  missing_rescale,          // a new maximum does not rescale what was summed
  no_maximum,               // exp without subtracting the maximum
  wrong_scale,              // 1/sqrt(64) for every head dim
  int32_overflow,           // offsets in 32 bits
  wrong_head_map,           // h % kv_heads instead of h / group
  token_stride_assumed,     // tokens are taken to stand without gaps
  q_stride_assumed,         // query rows too
  out_stride_assumed,       // output rows too
  v_dim_assumed,            // V is taken to be as wide as K
  window_off_by_one,        // sees one token more on the left
  window_off_by_minus_one,  // and one less
  window_ignored,
  right_window_ignored,     // rows that attend both ways see all tokens after their own
  right_window_off_by_one,  // or one too many
  window_of_tree_rows,      // the window counts from the row, not from the node's depth
  sink_missing,
  sink_of_first_head,
  sink_with_value,     // the sink's weight is not kept out of the average
  softcap_after_mask,  // caps the sum of the block, after its maximum was taken
  softcap_ignored,
  tree_bit_off_by_one,
  tree_first_word_only,
  tree_mask_ignored,  // plain causal
  tree_mask_transposed,
  tree_prefix_hidden,  // a tree row sees its tree only
  lse_base_2,
  lse_without_sink,
  lse_not_written,
  empty_request_skipped,  // rows that see nothing are left as they are
  head_scale_ignored,
  head_scale_of_first_head,
  block_scale_ignored,
  nibbles_swapped,  // the odd fp4 value first
  fp8_formats_swapped,
  bf16_sum,  // the output is summed in bf16
  last_token_twice,
  neighbour_request,       // every request reads the first one's pages
  latent_value_slice,      // latent attention: V is taken from the end of the row
  latent_rope_first,       // and its queries to be [rope | latent]
  latent_rope_swapped,     // or the halves of their rope part to stand the other way round
  merge_without_rescale,   // two halves of the tokens are added up as if their maxima were equal
  batch_dependent_blocks,  // sums in an order that depends on the batch: not deterministic
  tree_by_blocks,          // or on where a tree's node stands, in deterministic mode, too
  phase_dependent_blocks,  // or on the phase
  // Of fp8 arithmetic only:
  query_scale_of_neighbour,  // of the row before
  probability_saturated,     // scaled past e4m3's largest value
  value_order_of_registers,  // V's tokens in order, while threads hold P's in another
  short_sum_of_all_tokens,   // a sum of few bits is not ended after Fp8Mma::sum_tokens
};

std::string_view mutation_name(Mutation mutation);
std::vector<Variant> mutant_variants();
// The same code with fp8 arithmetic (Caps::fp8_mma) on fp8_e4m3 KV, sums of 14 bits.
std::vector<Variant> fp8_mutant_variants();

}  // namespace warpweave::conformance
