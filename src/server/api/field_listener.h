// For tests: hears every field that a FieldReader of this thread asks for, so that a walk of all fields needs no list
// of its own that could fall behind.
#pragma once

#include <set>
#include <string>

namespace warpweave::server {

class FieldListener {
 public:
  FieldListener();
  ~FieldListener();
  FieldListener(const FieldListener&) = delete;
  FieldListener& operator=(const FieldListener&) = delete;

  std::set<std::string> paths;  // "sampling_params.top_p"
};

}  // namespace warpweave::server
