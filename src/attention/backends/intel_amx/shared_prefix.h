// Which requests of a batch begin with the same pages: a system prompt, or the prompt of a beam.
//
// One level: requests are grouped by their first page; a group shares what all of its members have
// in common with its first one, in whole chunks. Costs a hash look-up per request and a comparison of
// the page ids that are shared. Does not allocate once grown.
#pragma once

#include <cstdint>
#include <vector>

#include "batch/forward_batch.h"

namespace warpweave::intel_amx {

class SharedPrefixes {
 public:
  struct Group {
    int32_t first;    // index into members()
    int32_t count;    // requests, at least 2
    int32_t chunks;   // shared by all of them, at least 1
  };

  // Requests with 1..max_rows query rows take part.
  void find(const ForwardBatch& batch, int max_rows, int chunk_tokens);

  const std::vector<Group>& groups() const { return groups_; }
  const std::vector<int32_t>& members() const { return members_; }  // requests, group by group
  int chunks_of(int request) const { return chunks_[request]; }     // 0: in no group

 private:
  void link_by_first_page(const ForwardBatch& batch, int max_rows, int chunk_tokens);
  void add_group(const ForwardBatch& batch, int leader, int chunk_tokens);

  std::vector<Group> groups_;
  std::vector<int32_t> members_;
  std::vector<int32_t> chunks_;  // per request
  std::vector<int32_t> table_;   // hash of the first page -> last request seen with it, or -1
  std::vector<int32_t> next_;    // the next request with the same first page, or -1
  std::vector<int32_t> leaders_;
};

}  // namespace warpweave::intel_amx
