#include "engine/pool_size.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"

namespace warpweave {
namespace {

struct Groups {
  int64_t full = 0, windows = 0;
};

Groups groups_of(const SchedulerConfig& scheduler) {
  Groups out;
  for (const CacheGroupRule& group : scheduler.cache_groups) ++(group.windowed() ? out.windows : out.full);
  return out;
}

Status too_small(int page_size) {
  const std::string page = std::to_string(page_size);
  return Status::invalid_argument("the KV pool would have no page of " + page + " tokens; give --max-total-tokens " +
                                      page + " or more, or raise --mem-fraction-static",
                                  "--max-total-tokens");
}

// With a split, windows must hold those of one request, beside the chunks that are computed at once.
Status fit_chunk_to_windows(double ratio, SchedulerConfig& scheduler) {
  const int64_t pages = scheduler.window_pages / groups_of(scheduler).windows, page_size = scheduler.page_size;
  if (scheduler.chunked_prefill_size < 0 || pages * page_size >= scheduler.context_len) return {};
  int window = 0;
  for (const CacheGroupRule& group : scheduler.cache_groups) window = std::max(window, group.window_left);
  // See peak_group_pages().
  const int64_t rows = ((pages - 1) * page_size - window) / (scheduler.overlap_depth + 1);
  if (rows < 1) {
    return Status::invalid_argument(
        fmt::format("--swa-full-tokens-ratio {} leaves {} tokens to layers with a sliding window of {}, which hold no "
                    "window and the tokens that are computed beside it; raise it, or give the pool more memory",
                    ratio, pages * page_size, window + 1),
        "--swa-full-tokens-ratio");
  }
  if (rows >= scheduler.chunked_prefill_size) return {};
  LOG_INFO(
      "prompts are cut into chunks of {} tokens, not {}: --swa-full-tokens-ratio {} leaves {} tokens to layers with "
      "a sliding window",
      rows, scheduler.chunked_prefill_size, ratio, pages * page_size);
  scheduler.chunked_prefill_size = static_cast<int>(rows);
  return {};
}

// Pages of one group without a window, and of one with.
Status split_pages(double ratio, int64_t full_pages, SchedulerConfig& scheduler) {
  const Groups groups = groups_of(scheduler);
  if (full_pages < 1) return too_small(scheduler.page_size);
  const auto window_pages = static_cast<int64_t>(ratio * static_cast<double>(full_pages));
  if (window_pages < 1) {
    return Status::invalid_argument(
        fmt::format("--swa-full-tokens-ratio {} of {} tokens leaves layers with a sliding window no page of {} tokens; "
                    "raise it, or give the pool more memory", ratio, full_pages * scheduler.page_size,
                    scheduler.page_size), "--swa-full-tokens-ratio");
  }
  const int64_t pages = groups.full * full_pages + groups.windows * window_pages;
  if (pages > INT32_MAX / scheduler.page_size) return Status::invalid_argument(
      "the KV pool would have more than 2147483647 tokens; lower --max-total-tokens", "--max-total-tokens");
  scheduler.num_pages = static_cast<int>(pages);
  scheduler.window_pages = static_cast<int>(groups.windows * window_pages);
  return fit_chunk_to_windows(ratio, scheduler);
}

}  // namespace

bool splits_pool(const ServerArgs& args, const SchedulerConfig& scheduler) {
  const Groups groups = groups_of(scheduler);
  return args.swa_full_tokens_ratio && groups.full > 0 && groups.windows > 0;
}

Status check_pool_tokens(const ServerArgs& args, int page_size) {
  return args.max_total_tokens && *args.max_total_tokens < page_size ? too_small(page_size) : Status();
}

Status size_pool(const ServerArgs& args, double pool_bytes, size_t page_bytes, SchedulerConfig& scheduler) {
  const Groups groups = groups_of(scheduler);
  const double fitting = pool_bytes / static_cast<double>(page_bytes);
  const int64_t context_pages = (scheduler.context_len + scheduler.page_size - 1) / scheduler.page_size;
  if (splits_pool(args, scheduler)) {
    const double ratio = *args.swa_full_tokens_ratio;
    const double of_full = fitting / (static_cast<double>(groups.full) + ratio * static_cast<double>(groups.windows));
    return split_pages(ratio, args.max_total_tokens ? *args.max_total_tokens / scheduler.page_size
                                                    : std::min(scheduler.max_running_requests * context_pages,
                                                               static_cast<int64_t>(of_full)), scheduler);
  }
  const int64_t useful = scheduler.max_running_requests *
                         peak_request_pages(scheduler, scheduler.context_len, /*prefilling=*/true).total();
  const int64_t pages = args.max_total_tokens
                            ? *args.max_total_tokens / scheduler.page_size * (groups.full + groups.windows)
                            : std::min(useful, static_cast<int64_t>(fitting));
  if (pages < groups.full + groups.windows) return too_small(scheduler.page_size);
  if (pages > INT32_MAX / scheduler.page_size) return Status::invalid_argument(
      "the KV pool would have more than 2147483647 tokens; lower --max-total-tokens", "--max-total-tokens");
  scheduler.num_pages = static_cast<int>(pages);
  return {};
}

Status check_pool_fits(const ServerArgs& args, size_t page_bytes, int64_t memory_bytes,
                       const SchedulerConfig& scheduler) {
  const double pool_bytes = static_cast<double>(scheduler.num_pages) * static_cast<double>(page_bytes);
  if (!args.max_total_tokens || pool_bytes <= static_cast<double>(memory_bytes)) return {};
  const auto most = static_cast<int64_t>(static_cast<double>(*args.max_total_tokens) *
                                         (static_cast<double>(memory_bytes) / pool_bytes));
  return Status::invalid_argument(
      fmt::format("--max-total-tokens {}: the KV pool would take {:.1f} GB, and {:.1f} GB of memory are available; "
                  "give at most {}, or leave it out",
                  *args.max_total_tokens, pool_bytes / 1e9, static_cast<double>(memory_bytes) / 1e9, most),
      "--max-total-tokens");
}

PoolTokens pool_tokens(const SchedulerConfig& scheduler) {
  const Groups groups = groups_of(scheduler);
  const PageCount peak = peak_request_pages(scheduler, scheduler.context_len, /*prefilling=*/false);
  PoolTokens out;
  int64_t requests = 0;
  if (scheduler.window_pages > 0) {
    const int64_t full_pages = scheduler.num_pages - scheduler.window_pages;
    out.total = full_pages / groups.full * scheduler.page_size;
    out.windows = scheduler.window_pages / groups.windows * scheduler.page_size;
    requests = std::min(full_pages / peak.full, scheduler.window_pages / peak.windows);
    out.at_context = requests > 0 ? requests * scheduler.context_len : out.total;
    return out;
  }
  out.total = int64_t{scheduler.num_pages} * scheduler.page_size / (groups.full + groups.windows);
  out.at_context = std::max(out.total, scheduler.num_pages / peak.total() * scheduler.context_len);
  return out;
}

std::string pool_split_text(const ServerArgs& args, const SchedulerConfig& scheduler) {
  if (!args.swa_full_tokens_ratio) return {};
  const std::string flag = fmt::format("--swa-full-tokens-ratio {}", *args.swa_full_tokens_ratio);
  if (splits_pool(args, scheduler)) {
    return flag +
           ": layers with a sliding window have a part of their own, of so many tokens for each of the other layers'";
  }
  return flag +
         (args.disable_hybrid_swa_memory
              ? " splits nothing: --disable-hybrid-swa-memory keeps all layers in one pool"
              : " splits nothing: this model has no layers with a sliding window beside others that keep all tokens");
}

}  // namespace warpweave
