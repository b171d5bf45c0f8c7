// Which form of latent attention a step's prompts take, and in what pieces. Pure numbers.
//
// Absorbed, a row meets the cached tokens themselves: (rank + rope) + rank multiplications a token and head, and
// nothing else. Expanded, K and V of every head are made anew from the cached tokens: (nope + rope) + v_dim a token and
// head, and rank * (nope + v_dim) for each token once, which also has to be read, written and read again. So long
// prompts expand, a few rows behind a long prefix do not. Where a tuning table has times of both forms
// (attention/latent_forms.h), these decide; else the multiplications, counted, with what moving a prefix takes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "attention/latent_forms.h"

namespace warpweave {

// by_cost: the cheaper one; the others for measurements, where it fits.
enum class LatentForm { by_cost, absorbed, expanded };

struct LatentPrefillShape {
  int num_heads = 16, rank = 0, nope_dim = 0, rope_dim = 0, v_dim = 0;
  int page_tokens = 128;        // every request's tokens begin with a page
  int64_t capacity_rows = 0;    // of expanded tokens at a time
  LatentForm form = LatentForm::by_cost;
  bool expands_prefixes = true;               // false: a step with a prompt behind a cached prefix is absorbed
  const LatentFormTimes* measured = nullptr;  // null or empty: nothing was
};

// The dims that there are kernels for.
constexpr bool has_expanded_kernels(const LatentPrefillShape& shape) {
  return shape.rank == 512 && shape.rope_dim == 64 && shape.nope_dim == 128 && shape.v_dim == 128;
}

struct LatentPrefillPlan {
  bool expands = false;         // requests of more than one new token do; those of one never
  int64_t fresh_rows = 0;       // their new tokens, in whole pages
  int chunk_tokens = 0;         // of each request's prefix at a time
  int num_chunks = 0;           // that cover the longest prefix
  int64_t chunk_rows = 0;       // of a chunk, in whole pages, at most
  int max_chunk_tokens = 0;     // of a request, in any chunk or among the new ones
  int64_t singles_begin = 0;    // the rows of requests of one new token, and perhaps others between them
  int64_t singles_end = 0;
};

LatentPrefillPlan plan_latent_prefill(const LatentPrefillShape& shape, std::span<const int32_t> q_indptr,
                                      std::span<const int32_t> kv_lens);

// From how many new tokens of each on `requests` alike expand, each behind `prefix` cached ones; nullopt: up to `most`
// they do not.
std::optional<int> first_expanded(const LatentPrefillShape& shape, int requests, int prefix, int most);

}  // namespace warpweave
