#include "replay/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "attention/registry.h"

namespace warpweave {
namespace {

AttentionKind kind_of(const RecordedLayer& layer) { return layer.latent ? AttentionKind::mla : AttentionKind::mha; }

// What a layer asks for and the Caps lack; empty when they claim it all.
std::string unclaimed(const Caps& caps, const Recording& r, const RecordedLayer& layer) {
  const AttentionCall& c = layer.call;
  if (!caps.kinds.has(kind_of(layer))) return layer.latent ? "latent attention" : "attention with heads of K and V";
  if (!caps.kv_formats.has(layer.kv_format))
    return fmt::format("KV format {}", kv_format_name(layer.kv_format));
  for (const int dim : {c.head_dim, c.v_head_dim}) {
    if (!caps.head_dims.accepts(dim)) return fmt::format("head dim {}", dim);
  }
  if (!caps.page_sizes.accepts(r.page_size) && !caps.expands_pages)
    return fmt::format("page size {}", r.page_size);
  if (c.window_left >= 0 && !caps.sliding_window) return "sliding windows";
  if (!layer.sinks.empty() && !caps.sinks) return "sinks";
  if (c.logit_softcap > 0 && !caps.softcap) return "logit softcap";
  if (!r.tree_mask.empty() && !caps.custom_mask) return "tree masks";
  if (!r.causal && !caps.non_causal) return "attention both ways";
  if (!r.causal && c.window_right >= 0 && !caps.right_window) return "windows that end behind the row";
  return "";
}

// Layers with heads of K and V and latent ones have kernels of their own under one name.
Result<std::unique_ptr<AttentionBackend>> create_for(const Recording& recording, const std::string& name,
                                                     const BackendContext& context) {
  const AttentionKind kind = recording.layers.empty() ? AttentionKind::mha : kind_of(recording.layers[0]);
  for (const BackendRegistration& backend : built_backends()) {
    const Caps& caps = *backend.caps;
    const bool here = (caps.archs.bits & kCpuArchs.bits) != 0;
    if (here && caps.name == name && caps.kinds.has(kind)) return create_backend(caps, context);
  }
  return create_backend(name, context);
}

class Runner {
 public:
  static Result<Runner> create(const Recording& recording, const std::string& name,
                               ThreadTeam& team) {
    Runner runner(recording, name);
    if (name == kAgainstRecorded) return runner;
    WW_ASSIGN_OR_RETURN(runner.backend_, create_for(recording, name,
                                                    {.team = &team,
                                                     .max_context_len = runner.batch_.max_kv_len,
                                                     .page_size = recording.page_size}));
    for (const RecordedLayer& layer : recording.layers) {
      const std::string lacks = unclaimed(runner.backend_->caps(), recording, layer);
      if (lacks.empty()) continue;
      return Status::unsupported(
          fmt::format("{} does not run layer {} of this recording: it does not claim {}", name,
                      layer.call.layer, lacks),
          "--backend");
    }
    const Status status = runner.backend_->init_forward_metadata(runner.batch_);
    if (!status.ok()) return status.with_context(name);
    return runner;
  }

  Result<std::vector<float>> run(const RecordedLayer& layer) {
    if (backend_ == nullptr) return layer.out;
    // What a backend fails to write must not pass for a value.
    std::vector<float> out(layer.out.size(), std::numeric_limits<float>::quiet_NaN());
    const AttentionCall call = recording_.call(layer, out.data(), nullptr);
    const Status ran = layer.decode ? backend_->forward_decode(batch_, call) : backend_->forward_extend(batch_, call);
    if (!ran.ok()) return ran.with_context("layer " + std::to_string(layer.call.layer));
    return out;
  }

 private:
  Runner(const Recording& recording, const std::string& name)
      : recording_(recording), batch_(recording.batch()) {}

  const Recording& recording_;
  ForwardBatch batch_;
  std::unique_ptr<AttentionBackend> backend_;
};

double default_tolerance(KvFormat format, const std::vector<float>& expected) {
  float top = 1e-3f;
  for (float value : expected) {
    if (std::isfinite(value)) top = std::max(top, std::fabs(value));
  }
  return top * (format == KvFormat::f32 ? 1e-4 : format == KvFormat::f16 ? 4e-3 : 1.6e-2);
}

LayerDifference compare(const Recording& r, const RecordedLayer& layer,
                        const std::vector<float>& values, const std::vector<float>& expected,
                        double tolerance) {
  const int heads = layer.call.num_q_heads, dim = layer.call.v_head_dim;
  LayerDifference result;
  result.layer = layer.call.layer;
  result.tolerance = tolerance;
  result.by_head.assign(heads, 0);
  for (int request = 0; request < r.num_reqs(); ++request) {
    for (int token = r.q_indptr[request]; token < r.q_indptr[request + 1]; ++token) {
      if (r.kv_slots[token] < 0) continue;  // padding: nobody reads it
      for (int64_t i = 0; i < int64_t{heads} * dim; ++i) {
        const int64_t at = int64_t{token} * heads * dim + i;
        double difference = std::fabs(static_cast<double>(values[at]) - expected[at]);
        if (std::isnan(difference)) difference = std::numeric_limits<double>::infinity();
        const int head = static_cast<int>(i / dim), row = token - r.q_indptr[request];
        const int q_len = r.q_indptr[request + 1] - r.q_indptr[request];
        const DifferenceAt here = {request,
                                   row,
                                   r.kv_lens[request] - q_len + row,
                                   head,
                                   static_cast<int>(i % dim),
                                   difference,
                                   values[at],
                                   expected[at]};
        result.by_head[head] = std::max(result.by_head[head], difference);
        if (difference > result.largest.difference) result.largest = here;
        if (difference > tolerance && !result.first) result.first = here;
      }
    }
  }
  return result;
}

}  // namespace

Result<std::vector<LayerDifference>> replay(const Recording& recording,
                                            const ReplayOptions& options, ThreadTeam& team) {
  WW_ASSIGN_OR_RETURN(Runner judged, Runner::create(recording, options.backend, team));
  WW_ASSIGN_OR_RETURN(Runner truth, Runner::create(recording, options.against, team));
  std::vector<LayerDifference> differences;
  for (const RecordedLayer& layer : recording.layers) {
    if (options.layer && layer.call.layer != *options.layer) continue;
    WW_ASSIGN_OR_RETURN(const std::vector<float> expected, truth.run(layer));
    WW_ASSIGN_OR_RETURN(const std::vector<float> got, judged.run(layer));
    const double tolerance =
        options.tolerance.value_or(default_tolerance(layer.kv_format, expected));
    differences.push_back(compare(recording, layer, got, expected, tolerance));
  }
  if (differences.empty()) {
    return Status::not_found(options.layer
                                 ? fmt::format("the recording has no layer {}", *options.layer)
                                 : "the recording has no layers",
                             "--layer");
  }
  return differences;
}

}  // namespace warpweave
