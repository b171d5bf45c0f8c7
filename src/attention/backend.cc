#include "attention/backend.h"

#include <fmt/format.h>

namespace warpweave {
namespace {

Status no_graphs(const Caps& caps) {
  return Status::unsupported(
      fmt::format("attention backend {} does not capture graphs; run it without", caps.name),
      "--disable-cuda-graph");
}

}  // namespace

Status AttentionBackend::reserve(const ForwardBatch&, const AttentionCall&) { return {}; }
Status AttentionBackend::compile(const AttentionCall&, int) { return {}; }

Status AttentionBackend::init_cuda_graph_state(const GraphLimits&) { return no_graphs(caps()); }
Status AttentionBackend::plan_together(std::span<const ForwardBatch* const>) { return {}; }

Status AttentionBackend::init_forward_metadata_capture_cuda_graph(const ForwardBatch&) {
  return no_graphs(caps());
}
Status AttentionBackend::init_forward_metadata_replay_cuda_graph(const ForwardBatch&) {
  return no_graphs(caps());
}

}  // namespace warpweave
