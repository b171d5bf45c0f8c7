// Draft trees with BackendContext::deterministic.
#include <algorithm>

#include "attention/cuda/paged_backend.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/stream.h"

namespace warpweave::cuda {
namespace {

constexpr int64_t kMaxTreeTableBytes = int64_t{64} << 20;

}  // namespace

// Every node is a request of its own (tree_requests.h): its keys stand where decode would have them, and the kernel is
// decode's. As many nodes at a time as their page tables have room for.
Status PagedCudaBackend::run_fixed_tree(const ForwardBatch& batch, const KernelShape& shape, const AttentionParams& p) {
  const TreeKey key = {p.page_table, static_cast<int>(p.page_stride / p.token_stride)};
  if (p.page_stride % p.token_stride != 0) return Status::internal("attention: pages are no whole number of tokens");
  const auto stream = static_cast<cudaStream_t>(batch.device.stream);
  int stride = p.page_table_stride * p.page_size;
  if (!batch.kv_lens.empty()) stride = std::max(1, *std::max_element(batch.kv_lens.begin(), batch.kv_lens.end()));
  const int most = static_cast<int>(kMaxTreeTableBytes / (static_cast<int64_t>(stride) * sizeof(int32_t)));
  const int at_once = std::clamp(most, 1, p.num_tokens);
  const size_t bytes = tree_requests_bytes(at_once, stride);
  if (tree_requests_.size_bytes() < bytes) {
    WW_RETURN_IF_ERROR(wait_for_stream(stream, "attention of trees"));
    WW_ASSIGN_OR_RETURN(tree_requests_, DeviceBuffer::allocate(bytes + bytes / 2, "page tables of trees"));
  }
  TreeRequests nodes = tree_requests_of(tree_requests_.as<void>(), at_once, stride);
  nodes.page_places = key.page_places;
  for (int first = 0; first < p.num_tokens; first += at_once) {
    const int count = std::min(at_once, p.num_tokens - first);
    if (!(tree_key_ == key)) {
      WW_CUDA_RETURN_IF_ERROR(launch_tree_requests(p, nodes, first, count, stream), "page tables of trees");
      for (FixedPlan& plan : fixed_extend_plans_) plan.made = false;
      tree_key_ = count == p.num_tokens ? key : TreeKey{};  // for the other layers
    }
    WW_RETURN_IF_ERROR(run_fixed(batch, shape, over_tree_requests(p, nodes, count), {1, false}));
  }
  return {};
}

}  // namespace warpweave::cuda
