#include "capi/plan_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

namespace warpweave::capi {
namespace {

constexpr int kMaxRequests = 1 << 20;
constexpr int64_t kMaxTableEntries = int64_t{1} << 30;

Status invalid(const char* field, std::string_view text) {
  return Status::invalid_argument(fmt::format("ww_batch.{}: {}", field, text), field);
}

bool accepts(const BatchRules& rules, int page_size) {
  return rules.prefill->page_sizes.accepts(page_size) &&
         rules.decode->page_sizes.accepts(page_size);
}

bool runs(const BatchRules& rules, int page_size) {
  auto one = [page_size](const Caps& caps) {
    return caps.page_sizes.accepts(page_size) || caps.expands_pages;
  };
  return one(*rules.prefill) && one(*rules.decode);
}

// The largest page size that divides `step`: a native one, else one by expansion. 0: there is none.
int contiguous_page_size(const BatchRules& rules, int64_t step) {
  constexpr int64_t kMaxPageSize = 1 << 20;
  int native = 0, expanded = 0;
  auto consider = [&](int64_t divisor) {
    if (divisor > kMaxPageSize) return;
    const int size = static_cast<int>(divisor);
    if (accepts(rules, size)) native = std::max(native, size);
    if (runs(rules, size)) expanded = std::max(expanded, size);
  };
  for (int64_t divisor = 1; divisor * divisor <= step; ++divisor) {
    if (step % divisor != 0) continue;
    consider(divisor);
    consider(step / divisor);
  }
  return native > 0 ? native : expanded;
}

// Indices from 0 that do not fall.
Status check_indptr(const int32_t* indptr, int count, const char* field, bool from_zero) {
  if (indptr == nullptr) return invalid(field, "is NULL");
  if (from_zero ? indptr[0] != 0 : indptr[0] < 0) {
    return invalid(field, fmt::format("starts at {}, must start at 0{}", indptr[0],
                                      from_zero ? "" : " or later"));
  }
  for (int i = 0; i < count; ++i) {
    if (indptr[i + 1] < indptr[i]) {
      return invalid(field,
                     fmt::format("falls from {} to {} at request {}", indptr[i], indptr[i + 1], i));
    }
  }
  return {};
}

}  // namespace

Status PlanBatch::set(const ww_batch& batch, const BatchRules& rules) {
  batch_ = {};
  needed_extent_ = 0;
  tree_mask_.clear();
  if (batch.num_requests < 0 || batch.num_requests > kMaxRequests) {
    return invalid("num_requests",
                   fmt::format("is {}, must be 0 to {}", batch.num_requests, kMaxRequests));
  }
  WW_RETURN_IF_ERROR(check_indptr(batch.q_indptr, batch.num_requests, "q_indptr", true));
  user_q_indptr_.assign(batch.q_indptr, batch.q_indptr + batch.num_requests + 1);
  const int ways = (batch.page_table != nullptr) + (batch.page_indptr != nullptr) +
                   (batch.kv_indptr != nullptr);
  if (ways != 1) {
    return invalid("page_table",
                   fmt::format("exactly one of page_table, page_indptr and kv_indptr says where "
                               "the tokens stand, {} are given",
                               ways));
  }
  WW_RETURN_IF_ERROR(read_kv_lens(batch));
  WW_RETURN_IF_ERROR(batch.kv_indptr != nullptr ? read_contiguous(batch, rules)
                                                : read_pages(batch, rules));
  if (rules.tree_mask) WW_RETURN_IF_ERROR(read_tree_mask(batch));
  if (!rules.tree_mask && batch.tree_mask != nullptr) {
    return invalid("tree_mask", "is given, but the plan was made with use_tree_mask = 0");
  }
  split_requests(rules.causal);
  finish(rules);
  return {};
}

Status PlanBatch::read_kv_lens(const ww_batch& batch) {
  user_kv_lens_.clear();
  if (batch.kv_indptr != nullptr) {
    WW_RETURN_IF_ERROR(check_indptr(batch.kv_indptr, batch.num_requests, "kv_indptr", false));
  } else if (batch.kv_lens == nullptr && batch.num_requests > 0) {
    return invalid("kv_lens", "is NULL");
  }
  for (int r = 0; r < batch.num_requests; ++r) {
    const int room = batch.kv_indptr != nullptr ? batch.kv_indptr[r + 1] - batch.kv_indptr[r]
                                                : std::numeric_limits<int>::max();
    const int len = batch.kv_lens != nullptr ? batch.kv_lens[r] : room;
    if (len < 0 || len > room) {
      return invalid("kv_lens",
                     fmt::format("request {} sees {} tokens{}", r, len,
                                 len < 0 ? ", must be at least 0"
                                         : fmt::format(", kv_indptr gives it {}", room)));
    }
    user_kv_lens_.push_back(len);
  }
  return {};
}

Status PlanBatch::read_page_size(const ww_batch& batch, const BatchRules& rules) {
  constexpr int kMaxPageSize = 1 << 24;
  const int size = batch.page_size != 0 ? batch.page_size : rules.page_size;
  if (size < 1 || size > kMaxPageSize || (rules.page_size != 0 && size != rules.page_size)) {
    return invalid(
        "page_size",
        fmt::format("is {} under a plan made with {}; one of them must be 1 to {}, the other "
                    "0 or equal",
                    batch.page_size, rules.page_size, kMaxPageSize));
  }
  if (!runs(rules, size)) {
    return Status::unsupported(
        fmt::format("ww_batch.page_size: {} does not run page size {}", rules.prefill->name, size),
        "page_size");
  }
  page_size_ = kv_page_size_ = size;
  return {};
}

Status PlanBatch::read_pages(const ww_batch& batch, const BatchRules& rules) {
  WW_RETURN_IF_ERROR(read_page_size(batch, rules));
  const bool csr = batch.page_indptr != nullptr;
  if (csr) {
    WW_RETURN_IF_ERROR(check_indptr(batch.page_indptr, batch.num_requests, "page_indptr", true));
    if (batch.page_indices == nullptr && batch.page_indptr[batch.num_requests] > 0) {
      return invalid("page_indices", "is NULL");
    }
  }
  auto pages_of = [&](int len) { return (int64_t{len} + page_size_ - 1) / page_size_; };
  user_stride_ = 1;
  for (int len : user_kv_lens_) user_stride_ = std::max(user_stride_, pages_of(len));
  if (rules.max_pages_per_request > 0) {
    if (user_stride_ > rules.max_pages_per_request) {
      return invalid("kv_lens",
                     fmt::format("a request has {} pages, the plan was made with "
                                 "max_pages_per_request {}",
                                 user_stride_, rules.max_pages_per_request));
    }
    user_stride_ = rules.max_pages_per_request;
  }
  if (user_stride_ * std::max(1, batch.num_requests) > kMaxTableEntries) {
    return invalid("kv_lens",
                   fmt::format("{} requests with up to {} pages are more than a table holds",
                               batch.num_requests, user_stride_));
  }
  user_pages_.assign(user_stride_ * batch.num_requests, 0);
  for (int r = 0; r < batch.num_requests; ++r) {
    const int64_t pages = pages_of(user_kv_lens_[r]);
    const int64_t room =
        csr ? batch.page_indptr[r + 1] - batch.page_indptr[r] : batch.page_table_stride;
    if (pages > room) {
      return invalid(csr ? "page_indptr" : "page_table_stride",
                     fmt::format("request {} sees {} tokens, {} pages of {}, but has {} page ids",
                                 r, user_kv_lens_[r], pages, page_size_, room));
    }
    const int32_t* ids = csr ? batch.page_indices + batch.page_indptr[r]
                             : batch.page_table + r * batch.page_table_stride;
    for (int64_t p = 0; p < pages; ++p) {
      if (ids[p] < 0) {
        return invalid(
            csr ? "page_indices" : "page_table",
            fmt::format("page {} of request {} is {}, must be at least 0", p, r, ids[p]));
      }
      user_pages_[r * user_stride_ + p] = ids[p];
      needed_extent_ = std::max<int64_t>(needed_extent_, int64_t{ids[p]} + 1);
    }
  }
  return {};
}

Status PlanBatch::read_contiguous(const ww_batch& batch, const BatchRules& rules) {
  if (rules.page_size != 0) {
    return invalid("kv_indptr",
                   fmt::format("is given, but the plan was made with page_size {}; use 0 for "
                               "tokens without pages",
                               rules.page_size));
  }
  if (rules.max_pages_per_request > 0) {
    return invalid("kv_indptr", "a plan with max_pages_per_request needs pages");
  }
  int64_t step = 0;  // of which every start is a multiple
  int longest = 1;
  for (int r = 0; r < batch.num_requests; ++r) {
    if (user_kv_lens_[r] == 0) continue;
    step = std::gcd(step, int64_t{batch.kv_indptr[r]});
    longest = std::max(longest, user_kv_lens_[r]);
    needed_extent_ =
        std::max<int64_t>(needed_extent_, int64_t{batch.kv_indptr[r]} + user_kv_lens_[r]);
  }
  kv_page_size_ = 0;
  // All start at 0: one page may hold the longest.
  page_size_ = contiguous_page_size(rules, step == 0 ? longest : step);
  if (page_size_ == 0) {
    return Status::unsupported(
        fmt::format(
            "{} takes no page size that fits tokens without pages which start at multiples of {}; "
            "use intel_amx or torch_native",
            rules.prefill->name, step),
        "kv_indptr");
  }
  user_stride_ = (int64_t{longest} + page_size_ - 1) / page_size_;
  if (user_stride_ * std::max(1, batch.num_requests) > kMaxTableEntries) {
    return invalid("kv_indptr", "the batch is more than a table holds");
  }
  user_pages_.assign(user_stride_ * batch.num_requests, 0);
  for (int r = 0; r < batch.num_requests; ++r) {
    for (int64_t p = 0; p * page_size_ < user_kv_lens_[r]; ++p) {
      user_pages_[r * user_stride_ + p] = static_cast<int32_t>(batch.kv_indptr[r] / page_size_ + p);
    }
  }
  return {};
}

Status PlanBatch::read_tree_mask(const ww_batch& batch) {
  if (batch.tree_mask == nullptr) {
    return invalid("tree_mask", "is NULL, but the plan was made with use_tree_mask = 1");
  }
  int longest = 0;
  for (int r = 0; r < batch.num_requests; ++r) {
    const int q_len = user_q_indptr_[r + 1] - user_q_indptr_[r];
    longest = std::max(longest, q_len);
    if (q_len > user_kv_lens_[r]) {
      return invalid("q_indptr",
                     fmt::format("request {} has a tree of {} rows but {} tokens, which include "
                                 "the tree's",
                                 r, q_len, user_kv_lens_[r]));
    }
  }
  const int words = (longest + 31) / 32;
  if (batch.tree_mask_words < words) {
    return invalid("tree_mask_words",
                   fmt::format("is {}, the longest tree has {} rows and needs {}",
                               batch.tree_mask_words, longest, words));
  }
  const int64_t count = int64_t{user_q_indptr_.back()} * batch.tree_mask_words;
  tree_mask_.assign(batch.tree_mask, batch.tree_mask + count);
  tree_mask_words_ = batch.tree_mask_words;
  for (int r = 0; r < batch.num_requests; ++r) {
    for (int i = user_q_indptr_[r]; i < user_q_indptr_[r + 1]; ++i) {
      const int row = i - user_q_indptr_[r];
      const uint32_t word = tree_mask_[int64_t{i} * batch.tree_mask_words + row / 32];
      if ((word >> (row % 32) & 1) == 0) {
        return invalid("tree_mask",
                       fmt::format("row {} of request {} does not see itself", row, r));
      }
    }
  }
  return {};
}

// Of a row of a tree: as deep as it has rows above it, which are those it sees.
int32_t PlanBatch::position_of(int row, int prefix, int index) const {
  if (tree_mask_.empty()) return std::max(0, prefix + index);
  int seen = 0;
  for (int w = 0; w < tree_mask_words_; ++w) {
    seen += std::popcount(tree_mask_[int64_t{row} * tree_mask_words_ + w]);
  }
  return prefix + seen - 1;
}

void PlanBatch::add_request(int request, int rows, int kv_len) {
  const int first = q_indptr_.back();
  q_indptr_.push_back(first + rows);
  kv_lens_.push_back(kv_len);
  page_table_.insert(page_table_.end(), user_pages_.begin() + request * user_stride_,
                     user_pages_.begin() + (request + 1) * user_stride_);
  for (int i = 0; i < rows; ++i) {
    positions_.push_back(position_of(first + i, kv_len - rows, i));
    kv_slots_.push_back(kv_len == 0 ? -1 : 0);
  }
}

void PlanBatch::split_requests(bool causal) {
  q_indptr_.assign(1, 0);
  for (std::vector<int32_t>* list : {&kv_lens_, &positions_, &kv_slots_, &page_table_})
    list->clear();
  for (size_t r = 0; r < user_kv_lens_.size(); ++r) {
    const int q_len = user_q_indptr_[r + 1] - user_q_indptr_[r], kv_len = user_kv_lens_[r];
    const int blind = causal && kv_len > 0 ? std::max(0, q_len - kv_len) : 0;
    if (blind > 0) add_request(static_cast<int>(r), blind, 0);
    add_request(static_cast<int>(r), q_len - blind, kv_len);
  }
}

void PlanBatch::finish(const BatchRules& rules) {
  batch_.num_reqs = static_cast<int>(kv_lens_.size());
  batch_.num_tokens = q_indptr_.back();
  batch_.page_size = page_size_;
  batch_.causal = rules.causal;
  bool decode = true;
  for (int r = 0; r < batch_.num_reqs; ++r) {
    const int q_len = q_indptr_[r + 1] - q_indptr_[r];
    decode &= q_len == 1;
    batch_.max_q_len = std::max(batch_.max_q_len, q_len);
    batch_.max_kv_len = std::max(batch_.max_kv_len, kv_lens_[r]);
  }
  batch_.mode = rules.tree_mask ? ForwardMode::target_verify
                : decode        ? ForwardMode::decode
                                : ForwardMode::extend;
  batch_.positions = positions_;
  batch_.kv_slots = kv_slots_;
  batch_.q_indptr = q_indptr_;
  batch_.kv_lens = kv_lens_;
  batch_.page_table = page_table_;
  batch_.page_table_stride = static_cast<int>(user_stride_);
  if (rules.tree_mask) {
    batch_.tree_mask = tree_mask_;
    batch_.tree_mask_words = tree_mask_words_;
  }
}

}  // namespace warpweave::capi
