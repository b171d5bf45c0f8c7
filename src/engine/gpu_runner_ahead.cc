// What the GPU does for chains without the host: it puts a draft model's guesses into the step that verifies them, and
// has a draft head read what became of them. So there is work for it while the host makes the next step.
#include <algorithm>

#include "engine/gpu_runner.h"

namespace warpweave {

// Of a step that runs as a graph, every request of which has a chain as long as the others'. Lossy thresholds ask for
// the guesses before the step is launched.
Result<bool> GpuRunner::draft_ahead(DeviceStep& step, Flight& flight) {
  const bool waits = flight.on_host || std::any_of(step.sample_rows.begin(), step.sample_rows.end(),
                                                   [](const SampleRow& row) { return !row.accept.lossless(); });
  const GraphShape graph_shape = waits || parts_.drafter->options().topk > 1 ? GraphShape{} : graph_shape_for(step);
  if (graph_shape.q_len == 1 || graph_shape.mask_words > 0) return false;
  WW_ASSIGN_OR_RETURN(const cudaGraphExec_t graph, graph_for(graph_shape, flight));
  if (graph == nullptr) return false;
  const StepShape shape = shape_of_graph(graph_shape);
  WW_RETURN_IF_ERROR(record_event(flight.draft_begin.get(), stream(), "a draft"));
  WW_RETURN_IF_ERROR(upload(&step, shape, flight, flight.batch));
  WW_ASSIGN_OR_RETURN(const bool drafted, parts_.drafter->draft_ahead(step.builder, step.draft_rows, step.proposals));
  if (!drafted) {  // the staging is filled anew
    WW_RETURN_IF_ERROR(wait_for_stream(stream(), "a step's arrays"));
    return false;
  }
  auto* const ids = reinterpret_cast<int32_t*>(arrays_.as<std::byte>() + shape.input_ids());
  WW_RETURN_IF_ERROR(parts_.draft_model->place_guesses(step.builder.batch().num_reqs, graph_shape.q_len, ids,
                                                       sampled_.as<int32_t>() + shape.tokens));
  return true;
}

// What was guessed, as it came back with what was sampled.
void GpuRunner::take_guesses(DeviceStep& step, const Flight& flight) {
  const int32_t* const ids = flight.sampled.as<int32_t>() + flight.batch.num_tokens;
  for (size_t row = 0; row < step.proposals.size(); ++row) {
    std::vector<int32_t>& tokens = step.proposals[row].tokens;
    const int32_t* const first = ids + step.builder.batch().q_indptr[row] + 1;
    std::copy_n(first, tokens.size(), tokens.begin());
  }
}

// The head's pass over the rows that the step verifies, behind it.
Status GpuRunner::follow_ahead(const DeviceStep& step, Flight& flight, const GraphShape& graph) {
  if (graph.q_len == 1 || graph.mask_words > 0 || !graph.keeps_hidden || flight.on_host ||
      !parts_.draft_model->follows(graph.requests, graph.q_len)) {
    return {};
  }
  const std::span<const int32_t> keep = parts_.drafter->observe_ahead(step.draft_rows);
  if (keep.empty()) return {};
  told_.assign(keep.size(), -1);
  if (walk_.uses_dice()) {
    const std::span<const int> thrown = walk_.throw_ahead(step);
    for (size_t row = 0; row < told_.size(); ++row) told_[row] = thrown[step.sample_slots[row]];
  }
  const StepShape shape = shape_of_graph(graph);
  const VerifiedChains chains = {.requests = graph.requests,
                                 .q_len = graph.q_len,
                                 .input_ids = device_array<int32_t>(arrays_, shape.input_ids()),
                                 .sampled = sampled_.as<int32_t>(),
                                 .positions = device_array<int32_t>(arrays_, shape.positions()),
                                 .kv_slots = device_array<int32_t>(arrays_, shape.kv_slots(parts_.draft_group)),
                                 .q_indptr = device_array<int32_t>(arrays_, shape.q_indptr()),
                                 .kv_lens = device_array<int32_t>(arrays_, shape.kv_lens())};
  WW_RETURN_IF_ERROR(parts_.draft_model->follow(chains, keep, told_));
  flight.follows_ahead = true;
  return record_event(flight.followed.get(), stream(), "a head's pass");
}

// Whether the GPU counted as many rows of each request as were accepted: not where one ended the text.
bool GpuRunner::follows_as_accepted(const DeviceStep& step, const Flight& flight) const {
  const int32_t* const sampled = flight.sampled.as<int32_t>();
  for (size_t row = 0; row < step.proposals.size(); ++row) {
    const Proposal& proposal = step.proposals[row];
    const int slot = step.sample_slots[row];
    const int32_t* const own = sampled + step.sample_rows[slot].logits_row;
    int nodes = std::max(told_[row], 1);
    while (told_[row] < 0 && nodes <= proposal.size() && own[nodes - 1] == proposal.token(nodes)) ++nodes;
    if (nodes != static_cast<int>(walk_.nodes(slot).size())) return false;
  }
  return true;
}

}  // namespace warpweave
