#include "capi/context.h"

#include <fmt/format.h>

#include <algorithm>

namespace warpweave::capi {
namespace {

constexpr size_t kAlignmentBytes = 64;

}  // namespace

Status Workspace::reserve(size_t bytes) {
  if (fixed_bytes_ > 0 && bytes > fixed_bytes_) {
    return Status::resource_exhausted(
        fmt::format("workspace: this batch needs {} bytes, the workspace has {}; create a larger "
                    "one, or one of 0 "
                    "bytes, which grows",
                    bytes, fixed_bytes_));
  }
  if (bytes <= bytes_ && memory_ != nullptr) return {};
  const size_t wanted = std::max(bytes, fixed_bytes_);
  const size_t rounded =
      (std::max<size_t>(wanted, 1) + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
  memory_.reset();
  bytes_ = 0;
  memory_.reset(static_cast<char*>(std::aligned_alloc(kAlignmentBytes, rounded)));
  if (memory_ == nullptr) {
    return Status::resource_exhausted(fmt::format("workspace: no memory for {} bytes", rounded));
  }
  bytes_ = rounded;
  return {};
}

}  // namespace warpweave::capi
