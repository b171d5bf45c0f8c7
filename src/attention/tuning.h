// Measured times of attention backends, as `warpweave tune` writes them and `--attention-backend auto`
// reads them. A table belongs to one device; points are per model shape, phase and batch bucket.
// Values; parsing errors are `data_loss` naming the file and the key.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "attention/caps.h"
#include "attention/latent_forms.h"
#include "attention/select.h"
#include "warpweave/status.h"

namespace warpweave {

struct TuningShape {
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  KvFormat kv_format = KvFormat::bf16;
  int v_head_dim = 0;      // of latent attention, whose V is the first part of K; 0: V is as K
  bool operator==(const TuningShape&) const = default;
};
// What tables name a model's attention by. `kv_format`: as selected (Resolved::kv_format).
TuningShape tuning_shape(const ModelFacts& model, KvFormat kv_format);

struct TuningPoint {
  TuningShape shape;
  AttentionPhase phase = AttentionPhase::decode;
  int batch_size = 1;
  int q_len = 1;           // rows per request
  int kv_len = 0;
  std::string backend;
  double time_us = 0;      // of one layer
  int page_size = 0;       // that it was measured with; 0: not said
};

class TuningTable {
 public:
  TuningTable() = default;
  TuningTable(std::string device, std::string date) : device_(std::move(device)), date_(std::move(date)) {}

  static Result<TuningTable> parse(std::string_view json);
  static Result<TuningTable> read(const std::string& path);
  std::string to_json() const;

  void add(TuningPoint point) { points_.push_back(std::move(point)); }
  const std::vector<TuningPoint>& points() const { return points_; }
  void add(LatentFormSet set) { latent_sets_.push_back(std::move(set)); }
  const std::vector<LatentFormSet>& latent_sets() const { return latent_sets_; }
  struct LatentForms {
    LatentFormTimes times;     // empty where none fit
    std::string measurements;  // "on NVIDIA H200, 2026-11-30, 16 and 32 heads, bf16 KV"
  };
  // Of this device and a shape. Where its heads were not measured, between those of fewer and of more heads; of fewer
  // than any, those of the fewest; of more, as much longer as there are more. bf16 and f16 take the same time.
  LatentForms latent_forms(const HardwareFacts& hardware, const LatentFormShape& shape) const;
  const std::string& device() const { return device_; }
  const std::string& date() const { return date_; }

  struct Ranked {
    std::string backend;
    double relative_time = 1;   // geometric mean over the buckets of time / best time
    std::string measurements;   // "b1 kv 4096: 120 us, b16 kv 4096: 1.9 ms"
  };
  // Backends measured in every bucket of this device, shape and phase, fastest first. Empty, with
  // `why_not` set, when nothing was measured for them.
  std::vector<Ranked> ranking(const HardwareFacts& hardware, const TuningShape& shape,
                              AttentionPhase phase, std::string& why_not) const;

 private:
  std::string device_;
  std::string date_;
  std::vector<TuningPoint> points_;
  std::vector<LatentFormSet> latent_sets_;
};

// The table that this program brings along for a device (tuned/), or null. It decides for
// --attention-backend auto without a tuning file; without `auto` it is only quoted.
const TuningTable* builtin_tuning(std::string_view device);

}  // namespace warpweave
