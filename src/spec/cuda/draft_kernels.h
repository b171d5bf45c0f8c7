// What a draft model's passes do on a GPU besides the model: the likeliest tokens of rows of logits, the rows that a
// draft head begins with, the hidden states that it keeps, and the levels of trees. Everything enqueues on `stream` (a
// cudaStream_t), allocates nothing, and leaves launch errors with the runtime. A row's bits do not depend on the other
// rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cuda/choice_gemm.h"
#include "ops/cuda/gpu_ops.h"
#include "spec/draft_tree.h"
#include "warpweave/tensor.h"

namespace warpweave::gpu {

inline constexpr int kTopBlocks = 512, kMostTopParts = 32;
// Blocks that share a row of so many.
constexpr int top_parts(int rows) { return std::clamp(kTopBlocks / rows, 1, kMostTopParts); }

// top_choices() (spec/draft_tree.h) of every row; entries past a smaller vocabulary are token 0, impossible.
struct TopChoicesCall {
  const float* logits = nullptr;          // [rows, vocab_size]
  int rows = 0;
  int vocab_size = 0;
  const int32_t* tokens = nullptr;        // [vocab_size] what the columns are, or null: themselves
  int topk = 1;
  DraftChoice* out = nullptr;             // [rows, topk]
  TopPart* parts = nullptr;               // room for kTopBlocks of them, used with topk 1; null: a block has a row
};
void top_choices(const TopChoicesCall& call, void* stream);

// The likeliest token of every row by what stands in its parts.
struct TopOfPartsCall {
  const TopPart* found = nullptr;  // [rows, parts]
  int rows = 0;
  int parts = 0;
  const int32_t* tokens = nullptr;  // as TopChoicesCall's
  DraftChoice* out = nullptr;       // [rows]
};
void top_of_parts(const TopOfPartsCall& call, void* stream);

// out[i] = [scale * table[id(i)] | features[feature_rows[i]]], each half through its RMS norm where that has a weight;
// id(i) is ids[i], or the token of choices[-1 - ids[i]] where that is negative.
struct DraftInputsCall {
  const void* table = nullptr;            // [vocab, cols] of `dtype`
  float scale = 1;
  DType dtype = DType::bf16;
  const int32_t* ids = nullptr;           // [rows]
  const DraftChoice* choices = nullptr;
  const void* features = nullptr;         // [.., cols] of `dtype`; null: the right halves are left alone
  const int32_t* feature_rows = nullptr;  // [rows]
  int64_t rows = 0;
  int64_t cols = 0;                       // a multiple of 8
  const float* embedding_norm = nullptr;  // [cols], or null: no norm
  const float* feature_norm = nullptr;    // [cols], or null
  float norm_weight_offset = 0;
  float norm_eps = 1e-6f;
  void* out = nullptr;                    // [rows, 2 * cols] of `dtype`
};
void draft_inputs(const DraftInputsCall& call, void* stream);

// out[i] = kept[keep[i]] = x[i] + its partial sums.
struct KeepRowsCall {
  const void* x = nullptr;                // [rows, cols]
  DType x_dtype = DType::f32;             // f32, or `dtype`
  PartialSums partials = {};
  int64_t rows = 0;
  int64_t cols = 0;                       // a multiple of 8
  DType dtype = DType::bf16;
  void* out = nullptr;                    // [rows, cols] of `dtype`, or null: not wanted
  void* kept = nullptr;                   // [.., cols] of `dtype`
  const int32_t* keep = nullptr;          // [rows]
};
void keep_rows(const KeepRowsCall& call, void* stream);

inline constexpr int kMostTreeBranches = 16;

struct TreeNode {
  int32_t token = 0;
  int32_t parent = -1;   // its place among the request's nodes; -1: the last known token
  float score = 0;       // as DraftTree::Node's
  int32_t feature = 0;   // the kept hidden state of what it follows
};
// The nodes of a level of trees that all have `topk` branches, chosen among the choices of the pass before, and what
// the pass over all nodes up to them reads.
struct TreeLevelCall {
  int requests = 0;
  int topk = 1;                             // up to kMostTreeBranches
  int level = 1;                            // of these nodes
  const DraftChoice* first = nullptr;       // of level 1: [requests, topk] themselves, the likeliest first
  const int32_t* first_features = nullptr;  // [requests]; null: nothing is kept
  const DraftChoice* choices = nullptr;     // of later ones: [requests, topk, topk] of the pass before
  const int32_t* kept = nullptr;            // [requests, topk] where that pass kept its states, or null
  const int32_t* kv_lens = nullptr;         // [requests]; 0: padding
  int32_t padding_feature = 0;
  TreeNode* nodes = nullptr;                // [requests, max_nodes] of all levels so far
  int max_nodes = 0;
  int32_t* ids = nullptr;                   // out: [requests, topk * level]
  int32_t* features = nullptr;              // likewise, or null
  uint32_t* mask = nullptr;                 // likewise, [.., mask_words]: a node sees itself and what it follows
  int mask_words = 1;
};
void tree_level(const TreeLevelCall& call, void* stream);

// The guesses of chains, from where passes of a draft model chose them to the rows that verify them.
struct PlaceGuessesCall {
  int requests = 0;
  int q_len = 2;                       // rows of each: its last known token, then q_len - 1 guesses
  const int32_t* first_ids = nullptr;  // [requests] the first guesses, as DraftInputsCall::ids
  const DraftChoice* choices = nullptr;
  const DraftChoice* later = nullptr;  // [q_len - 2, later_stride] the other guesses
  int later_stride = 0;
  int32_t* ids = nullptr;              // out: [requests, q_len] but the first row of each
  int32_t* copy = nullptr;             // out: likewise
};
void place_guesses(const PlaceGuessesCall& call, void* stream);

// What a head reads of a step that verified chains: a guess is right where it is what was sampled before it.
struct FollowChainsCall {
  int requests = 0;
  int q_len = 2;
  const int32_t* ids = nullptr;        // [requests, q_len] the rows that were verified
  const int32_t* sampled = nullptr;    // [requests, q_len]
  const int32_t* accepted = nullptr;   // [requests] so many rows count in any case; negative: as many as are right
  int32_t* next_ids = nullptr;         // out: [requests, q_len] the token after each row that counts; others: 0
  int32_t* last_rows = nullptr;        // out: [requests] the last row that counts
};
void follow_chains(const FollowChainsCall& call, void* stream);

}  // namespace warpweave::gpu
