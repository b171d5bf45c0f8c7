// warpweave bench, and of it attention: time and rate of each backend over a grid of shapes. warpweave tune: the
// same for one model's shape, kept as the file that --attention-backend auto decides by.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <ctime>
#include <fstream>

#include "attention/select.h"
#include "attention/tuning.h"
#include "base/log.h"
#include "cli/bench_speculation.h"
#include "cli/commands.h"
#include "cli/measure_attention.h"
#include "cli/measure_latent.h"
#include "cli/model_facts.h"
#include "device/cpu/cpu_info.h"
#include "engine/latent_plan.h"
#include "engine/start_device.h"

namespace warpweave {
namespace {

struct BenchFlags {
  std::string backend, phase, kv_format = "bf16", model_path, dtype = "auto", output, device = "cpu";
  int q_heads = 32, kv_heads = 8, head_dim = 128, page_size = 64, threads = 0;
  std::vector<int> batch_sizes = {1, 16}, kv_lens = {512, 4096}, q_lens = {512, 2048}, prefill_batch_sizes = {1};
  double max_seconds = 1.0;
  bool json = false;
};

// A backend that selection accepts for this model here, created for `page_size`.
struct Candidate {
  std::string name;
  int page_size = 1;    // --page-size, or one that the backend takes
  KvFormat kv_format = KvFormat::bf16;  // as selected: a name may mean another format for latent attention
  std::unique_ptr<AttentionBackend> backend;
};

std::vector<Candidate> candidates(const ModelFacts& model, const BenchFlags& flags,
                                  const HardwareFacts& hardware, ThreadTeam& team) {
  std::vector<Candidate> list;
  for (const KnownBackend& known : known_backends()) {
    const std::string name(known.caps->name);
    if (!known.built || (!flags.backend.empty() && name != flags.backend)) continue;
    AttentionFlags asked;
    asked.attention_backend = name;
    asked.kv_cache_dtype = flags.kv_format;
    asked.page_size = flags.page_size;
    auto resolved = select_attention(hardware, model, asked);
    if (!resolved.ok()) {
      asked.page_size.reset();
      resolved = select_attention(hardware, model, asked);
    }
    if (!resolved.ok() || resolved->prefill_caps != known.caps) continue;
    auto backend = create_backend(*known.caps, {&team, 1 << 20, resolved->page_size});
    if (backend.ok()) list.push_back({name, resolved->page_size, resolved->kv_format, std::move(*backend)});
  }
  return list;
}

// Of --backend: what selection says against it here.
Status why_not(const ModelFacts& model, const BenchFlags& flags, const HardwareFacts& hardware) {
  AttentionFlags asked;
  asked.attention_backend = flags.backend;
  asked.kv_cache_dtype = flags.kv_format;
  return select_attention(hardware, model, asked).status();
}

std::vector<AttentionPoint> grid(const BenchFlags& flags) {
  std::vector<AttentionPoint> points;
  for (int q_len : flags.q_lens) {
    if (flags.phase == "decode") break;
    for (int batch_size : flags.prefill_batch_sizes)
      points.push_back({AttentionPhase::prefill, batch_size, q_len, q_len});
  }
  for (int batch_size : flags.batch_sizes) {
    if (flags.phase == "prefill") break;
    for (int kv_len : flags.kv_lens) {
      points.push_back({AttentionPhase::decode, batch_size, 1, kv_len});
    }
  }
  return points;
}

void print_point(const std::string& backend, const AttentionPoint& point, const TuningShape& shape,
                 double us, const MachineLimits& limits) {
  const bool decode = point.phase == AttentionPhase::decode;
  const double rate = (decode ? point.kv_bytes(shape) : point.flops(shape)) / us / 1e3;
  const double limit = decode ? limits.read_gb_per_s : limits.gflop_per_s;
  const std::string share = limit > 0 ? fmt::format("{:5.1f} %", 100 * rate / limit) : "-";
  std::printf("%-24s %-24s %12.1f us %9.2f %-8s %s\n", point.text().c_str(), backend.c_str(), us, rate,
              decode ? "GB/s" : "GFLOP/s", share.c_str());
}

ModelFacts facts_of(const BenchFlags& flags, KvFormat format) {
  ModelFacts model;
  model.architecture = "bench";
  model.dtype = format == KvFormat::f32 ? ModelDType::f32 : format == KvFormat::f16 ? ModelDType::f16
                                                                                    : ModelDType::bf16;
  model.num_q_heads = flags.q_heads;
  model.num_kv_heads = flags.kv_heads;
  model.head_dim = flags.head_dim;
  return model;
}

struct Device {
  HardwareFacts facts;
  bool gpu = false;
};

Result<Device> device_of(const BenchFlags& flags) {
  WW_ASSIGN_OR_RETURN(const std::optional<GpuChoice> gpu, resolve_device(flags.device));
  return gpu ? Device{gpu->facts, true} : Device{cpu_hardware_facts(), false};
}

// Measures every candidate at every point; `each` sees what was measured, and of which shape.
template <typename Each>
Status measure_all(const ModelFacts& model, const BenchFlags& flags, const Device& device, ThreadTeam& team,
                   Each each) {
  std::vector<Candidate> list = candidates(model, flags, device.facts, team);
  if (list.empty()) {
    if (!flags.backend.empty()) WW_RETURN_IF_ERROR(why_not(model, flags, device.facts));
    return Status::unsupported("no backend of this program runs this shape here; see: warpweave explain",
                               "--backend");
  }
  for (const AttentionPoint& point : grid(flags)) {
    for (Candidate& candidate : list) {
      const MeasureOptions options = {candidate.page_size, 15, flags.max_seconds};
      const TuningShape shape = tuning_shape(model, candidate.kv_format);
      WW_ASSIGN_OR_RETURN(const double us,
                          device.gpu ? measure_attention_on_gpu(*candidate.backend, shape, point, options)
                                     : measure_attention(*candidate.backend, shape, point, options));
      each(candidate, shape, point, us);
    }
  }
  return {};
}

// Of --kv-cache-dtype, for a model of `dtype`.
Result<KvFormat> kv_format_asked(const std::string& name, ModelDType dtype) {
  if (name == "auto") {
    return dtype == ModelDType::f32 ? KvFormat::f32 : dtype == ModelDType::f16 ? KvFormat::f16 : KvFormat::bf16;
  }
  if (const std::optional<KvFormat> format = parse_kv_format(name)) return *format;
  return Status::invalid_argument(fmt::format("--kv-cache-dtype {}: known: auto, f32, bf16, f16, "
                                              "fp8_e4m3, fp8_e5m2, fp4_e2m1, fp8_ds_mla, fp4_mla", name),
                                  "--kv-cache-dtype");
}

int threads_of(const BenchFlags& flags) { return flags.threads > 0 ? flags.threads : cpu_info().cpus; }

void add_common_flags(CLI::App& app, BenchFlags& flags) {
  app.add_option("--backend", flags.backend, "Only this backend");
  app.add_option("--kv-cache-dtype", flags.kv_format, "KV format");
  app.add_option("--page-size", flags.page_size, "Tokens per page")->check(CLI::Range(1, 4096));
  app.add_option("--device", flags.device, "What is measured: cpu, cuda, or auto: the GPU where there is one")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app.add_option("--threads", flags.threads, "Compute threads; 0: all")->check(CLI::Range(0, 1024));
  app.add_option("--batch-size", flags.batch_sizes, "Batch sizes of decode")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096));
  app.add_option("--kv-len", flags.kv_lens, "Lengths of decode")->delimiter(',')->check(CLI::Range(1, 1 << 20));
  app.add_option("--q-len", flags.q_lens, "Lengths of prefill")->delimiter(',')->check(CLI::Range(1, 1 << 20));
  app.add_option("--prefill-batch-size", flags.prefill_batch_sizes, "Batch sizes of prefill")
      ->delimiter(',')->check(CLI::Range(1, 4096));
  app.add_option("--seconds", flags.max_seconds, "Time per point")->check(CLI::Range(0.0, 60.0));
}

int run_bench(const BenchFlags& flags) {
  const Result<KvFormat> format = kv_format_asked(flags.kv_format, ModelDType::bf16);
  if (!format.ok()) return fail(format.status(), kExitUsage);
  if (flags.q_heads % flags.kv_heads != 0) {
    return fail(Status::invalid_argument(fmt::format("--kv-heads {} does not divide --q-heads {}",
                                                     flags.kv_heads, flags.q_heads)),
                kExitUsage);
  }
  const Result<Device> device = device_of(flags);
  if (!device.ok()) return fail(device.status(), kExitUsage);
  ThreadTeam team(threads_of(flags), true);
  const MachineLimits limits = device->gpu ? MachineLimits() : measure_machine(team);
  std::printf("%s, %d threads; %d/%d heads, head dim %d, %s KV, page %d\n",
              device->facts.name.c_str(), team.size(), flags.q_heads, flags.kv_heads,
              flags.head_dim, flags.kv_format.c_str(), flags.page_size);
  if (limits.gflop_per_s > 0) {
    std::printf("measured limits: read %.2f GB/s, %s %.1f GFLOP/s\n", limits.read_gb_per_s,
                limits.instruction.c_str(), limits.gflop_per_s);
  }
  const Status status = measure_all(
      facts_of(flags, *format), flags, *device, team,
      [&](const Candidate& candidate, const TuningShape& shape, const AttentionPoint& point, double us) {
        print_point(candidate.name, point, shape, us, limits);
      });
  return status.ok() ? 0 : fail(status, kExitFailed);
}

// Both forms of prompts, where the model's attention is latent and the device computes both.
Status tune_latent_forms(const ModelConfig& config, const ModelFacts& model, const BenchFlags& flags,
                         const Device& device, TuningTable& table) {
  AttentionFlags asked;
  asked.attention_backend = flags.backend;
  asked.kv_cache_dtype = flags.kv_format;
  asked.page_size = flags.page_size;
  WW_ASSIGN_OR_RETURN(const Resolved attention, select_attention(device.facts, model, asked));
  const LatentFormShape shape = latent_form_shape(config, attention.kv_format);
  LatentFormSet set = {.shape = shape, .date = table.date(), .points = {}};
  const std::vector<LatentFormPoint> points = latent_points(config.max_position_embeddings);
  std::vector<LatentStep> steps;
  for (const LatentFormPoint& p : points) steps.push_back(LatentStep(p.requests, {p.new_tokens, p.prefix}));
  const LatentMeasurement measurement = {.config = config,
                                         .attention = attention,
                                         .dtype = model.dtype == ModelDType::f16 ? DType::f16 : DType::bf16};
  WW_RETURN_IF_ERROR(measure_latent_steps(measurement, steps, [&](size_t i, const LatentFormTimes::Pair& pair) {
    LatentFormPoint point = points[i];
    point.absorbed_us = pair.absorbed_us;
    point.expanded_us = pair.expanded_us;
    std::fprintf(stderr, "prompts %-3d q %-6d prefix %-6d absorbed %10.1f us   expanded %10.1f us\n", point.requests,
                 point.new_tokens, point.prefix, point.absorbed_us, point.expanded_us);
    set.points.push_back(point);
  }));
  if (!set.points.empty()) table.add(std::move(set));
  return {};
}

int run_tune(const BenchFlags& flags) {
  ServerArgs args;
  args.model_path = flags.model_path;
  args.dtype = flags.dtype;
  const Result<ModelDescription> description = describe_model(args);
  if (!description.ok()) return fail(description.status(), kExitFailed);
  const Result<ModelFacts>& model = description->facts;
  if (!model.ok()) return fail(model.status(), kExitFailed);
  if (const auto format = kv_format_asked(flags.kv_format, model->dtype); !format.ok())
    return fail(format.status(), kExitUsage);
  const Result<Device> device = device_of(flags);
  if (!device.ok()) return fail(device.status(), kExitUsage);
  TuningTable table(device->facts.name,
                    fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr))));
  ThreadTeam team(threads_of(flags), true);
  const Status status = measure_all(
      *model, flags, *device, team,
      [&](const Candidate& candidate, const TuningShape& shape, const AttentionPoint& point, double us) {
        std::fprintf(stderr, "%-24s %-24s %12.1f us\n", point.text().c_str(), candidate.name.c_str(), us);
        table.add({shape, point.phase, point.batch_size, point.q_len, point.kv_len, candidate.name, us,
                   candidate.page_size});
      });
  if (!status.ok()) return fail(status, kExitFailed);
  if (device->gpu && description->config.ok() && description->config->latent && model->dtype != ModelDType::f32) {
    const Status forms = tune_latent_forms(*description->config, *model, flags, *device, table);
    if (!forms.ok()) return fail(forms, kExitFailed);
  }
  std::ofstream file(flags.output, std::ios::binary);
  if (!(file << table.to_json()).flush()) {
    return fail(Status::invalid_argument(fmt::format("--output {}: cannot be written", flags.output)),
                kExitFailed);
  }
  size_t measurements = table.points().size();
  for (const LatentFormSet& set : table.latent_sets()) measurements += set.points.size();
  std::printf(
      "%s: %zu measurements; use it with: warpweave serve --attention-backend auto "
      "--attention-tuning-file %s\n",
      flags.output.c_str(), measurements, flags.output.c_str());
  return 0;
}

}  // namespace

int bench_command(std::span<const std::string> argv) {
  BenchFlags flags;
  CLI::App app("Measures on this machine's CPU or GPU.", "warpweave bench");
  CLI::App* attention = app.add_subcommand("attention",
                                           "The attention backends: microseconds of one layer, GB/s of KV read "
                                           "(decode) or GFLOP/s (prefill), and the share of the measured limit");
  SpeculationBench speculation;
  CLI::App* spec = app.add_subcommand("spec",
                                      "Speculative decoding of a model on a text: acceptance, cost of drafts and "
                                      "checks, speed-up, and the flags to use");
  add_speculation_flags(*spec, speculation);
  app.require_subcommand(1);
  add_common_flags(*attention, flags);
  attention->add_option("--phase", flags.phase, "Only prefill or decode")->check(CLI::IsMember({"prefill", "decode"}));
  attention->add_option("--q-heads", flags.q_heads, "Query heads")->check(CLI::Range(1, 1024));
  attention->add_option("--kv-heads", flags.kv_heads, "KV heads")->check(CLI::Range(1, 1024));
  attention->add_option("--head-dim", flags.head_dim, "Head dim")->check(CLI::Range(16, 512));
  if (const auto exit_code = parse_command(app, argv)) return *exit_code;
  if (Status status = init_log("warning"); !status.ok()) return fail(status, kExitFailed);
  if (!spec->parsed()) return run_bench(flags);
  const Status status = run_speculation_bench(speculation);
  return status.ok() ? 0 : fail(status, kExitFailed);
}

int tune_command(std::span<const std::string> argv) {
  BenchFlags flags;
  flags.kv_format = "auto";
  flags.output = "tuning.json";
  flags.batch_sizes = {1, 8, 32};
  flags.kv_lens = {256, 2048};
  flags.q_lens = {128, 512};
  flags.max_seconds = 0.3;
  CLI::App app("Measures the attention backends for one model on this machine's CPU or GPU and writes what "
               "--attention-backend auto decides by. Run it on an idle machine.",
               "warpweave tune");
  app.add_option("--model-path,--model", flags.model_path, "Model folder, GGUF file or well-known id");
  app.add_option("--dtype", flags.dtype, "As for serve");
  app.add_option("--output", flags.output, "The tuning file");
  add_common_flags(app, flags);
  if (const auto exit_code = parse_command(app, argv)) return *exit_code;
  if (Status status = init_log("warning"); !status.ok()) return fail(status, kExitFailed);
  return run_tune(flags);
}

}  // namespace warpweave
