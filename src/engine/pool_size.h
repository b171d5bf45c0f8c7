// How many pages the KV pool has, and what they hold in tokens.
//
// By default all cache groups (kv/cache_layout.h) share the pages by need. --swa-full-tokens-ratio R splits them: if
// layers without a window get pages for T tokens, those with a sliding window get pages for R * T, as in SGLang.
// Pure. Errors name the flag.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "flags/server_args.h"
#include "sched/scheduler.h"

namespace warpweave {

// Whether the flag splits the pool of this model: it has layers of both kinds, in groups of their own.
bool splits_pool(const ServerArgs& args, const SchedulerConfig& scheduler);

// Refuses --max-total-tokens that fill no page.
Status check_pool_tokens(const ServerArgs& args, int page_size);

// Sets num_pages and window_pages: --max-total-tokens in every group without a window (without a split, in every
// group), or what `pool_bytes` hold at `page_bytes` a page, never more than all running requests could use. Where a
// split leaves few pages to windows, chunked_prefill_size comes down to what fits them.
Status size_pool(const ServerArgs& args, double pool_bytes, size_t page_bytes, SchedulerConfig& scheduler);

// Refuses --max-total-tokens whose pages take more than the `memory_bytes` that are available. The pool is only
// reserved at start, so that the process would be killed once requests fill it.
Status check_pool_fits(const ServerArgs& args, size_t page_bytes, int64_t memory_bytes,
                       const SchedulerConfig& scheduler);

struct PoolTokens {
  int64_t total = 0;       // that a group without a window holds, or with shared pages any one if all hold as many
  int64_t windows = 0;     // that one with a window holds, where the pool is split; 0: shared
  int64_t at_context = 0;  // of requests of context_len tokens, what left their windows included
};
PoolTokens pool_tokens(const SchedulerConfig& scheduler);

// What the flag does to this model's pool, in a line; empty where it was not given.
std::string pool_split_text(const ServerArgs& args, const SchedulerConfig& scheduler);

}  // namespace warpweave
