// Greedy continuations of pieces of a text, with none and with each candidate in turn, so that a busy machine is unfair
// to all alike. Prompts are in the prefix cache before a round is timed: decoding is. With few prompts in each of many
// rounds, the median of the rounds' own ratios says what sums hide where other programs come and go.
//
// The server that is started first is faster than an equal one that comes later, by up to a tenth on some machines. So
// there are two without speculation, ratios are to the second, and how the first compares says what they are good for.
#include "cli/bench_speculation.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/mapped_file.h"
#include "cli/model_search.h"
#include "engine/engine_impl.h"
#include "model/config.h"
#include "model/draft_head.h"
#include "model/model_bundle.h"

namespace warpweave {
namespace {

using Ids = std::vector<int32_t>;

// What a candidate took for the prompts of one batch size.
struct Measured {
  double wall_s = 0, cpu_s = 0;
  std::vector<double> rounds_s;  // by the clock
  uint64_t tokens = 0;
  SpeculationCounts counts;
  StepTotals steps;            // of decode
  bool same_text = true;       // as without speculation
};

constexpr size_t kControl = 1;   // the second of the two without speculation, which come first

struct Candidate {
  std::string flags;           // "" for none
  ServedModel served;
  Measured measured;           // of the batch size at hand
  std::vector<Ids> answers;
};

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

Result<ModelConfig> config_in(const std::string& folder) {
  WW_ASSIGN_OR_RETURN(const std::string text, read_text_file(folder + "/config.json"));
  return parse_config_json(text);
}

// Shapes of drafts that are usual, for the algorithm that the folder's configuration asks for.
void add_draft_model(const std::string& folder, std::vector<std::string>& out) {
  const auto config = config_in(folder);
  const std::string architecture = config.ok() ? config->architecture : "";
  std::string algorithm = "STANDALONE";
  if (architecture == "LlamaForCausalLMEagle") algorithm = "EAGLE";
  if (architecture == "LlamaForCausalLMEagle3") algorithm = "EAGLE3";
  const std::string flags =
      fmt::format("--speculative-algorithm {} --speculative-draft-model-path {}", algorithm, folder);
  for (const int steps : {1, 2, 3, 4}) {
    out.push_back(fmt::format("{} --speculative-num-steps {} --speculative-eagle-topk 1", flags, steps));
  }
  out.push_back(flags + " --speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8");
  out.push_back(flags + " --speculative-num-steps 4 --speculative-eagle-topk 1 --speculative-adaptive");
}

// Whether the checkpoint has layers that predict further tokens. Configurations do not tell: some families' leave them
// unmentioned, and checkpoints are passed on without them.
bool has_nextn_weights(const std::string& model_path) {
  ModelBundleOptions options;
  options.skip_tokenizer = true;
  const Result<ModelBundle> bundle = open_model_bundle(model_path, options);
  return bundle.ok() && nextn_config(bundle->config, *bundle->weights).ok();
}

Result<Candidate> start_candidate(const SpeculationBench& bench, const std::string& model_path,
                                  const std::string& flags) {
  std::vector<std::string> argv;
  std::istringstream words(flags);
  for (std::string word; words >> word;) argv.push_back(word);
  WW_ASSIGN_OR_RETURN(ParsedFlags parsed, parse_flags(Command::serve, argv));
  ServerArgs& args = parsed.args;
  args.model_path = model_path;
  args.device = bench.device;
  args.dtype = bench.dtype;
  if (bench.threads > 0) args.threads = bench.threads;
  Candidate out;
  out.flags = flags;
  auto served = create_engine({.args = args, .model_path = model_path, .on_weights_progress = {}});
  if (!served.ok()) return served.status().with_context("candidate '" + flags + "'");
  out.served = std::move(served).value();
  return out;
}

// Continues all prompts, `batch` at a time.
class Round {
 public:
  Round(std::span<const Ids> prompts, int batch, int max_tokens)
      : prompts_(prompts), batch_(batch), max_tokens_(max_tokens) {}

  Status run(Engine& engine, std::vector<Ids>& answers) {
    answers.assign(prompts_.size(), {});
    for (size_t i = 0; i < prompts_.size() && may_go_on(); ++i) submit(engine, i, answers);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return running_ == 0; });
    return failure_;
  }

 private:
  // Waits for room; false after a failure.
  bool may_go_on() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return running_ < batch_; });
    if (failure_.ok()) ++running_;
    return failure_.ok();
  }

  void submit(Engine& engine, size_t i, std::vector<Ids>& answers) {
    GenerateRequest request;
    request.rid = std::to_string(i);
    request.input_ids = prompts_[i];
    request.sampling.temperature = 0;
    request.sampling.max_new_tokens = max_tokens_;
    request.sampling.ignore_eos = true;
    request.stream = false;
    const Status taken = engine.submit(std::move(request), [this, i, &answers](const OutputDelta& delta) {
      std::lock_guard lock(mutex_);
      answers[i].insert(answers[i].end(), delta.token_ids.begin(), delta.token_ids.end());
      if (!delta.finish) return;
      if (!delta.finish->error.ok()) failure_ = delta.finish->error;
      --running_;
      changed_.notify_all();
    });
    if (taken.ok()) return;
    std::lock_guard lock(mutex_);
    failure_ = taken;
    --running_;
  }

  const std::span<const Ids> prompts_;
  const int batch_, max_tokens_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int running_ = 0;            // mutex_ guards this, failure_ and the answers
  Status failure_;
};

Status time_round(std::span<const Ids> prompts, int batch, int max_tokens, Candidate& one) {
  std::vector<Ids> first;
  WW_RETURN_IF_ERROR(Round(prompts, batch, 1).run(*one.served.engine, first));
  const EngineStats before = one.served.engine->stats();
  const double cpu_begin = cpu_seconds();
  const auto begun = std::chrono::steady_clock::now();
  WW_RETURN_IF_ERROR(Round(prompts, batch, max_tokens).run(*one.served.engine, one.answers));
  Measured& out = one.measured;
  out.rounds_s.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
  out.wall_s += out.rounds_s.back();
  out.cpu_s += cpu_seconds() - cpu_begin;
  for (const Ids& answer : one.answers) out.tokens += answer.size();
  const EngineStats after = one.served.engine->stats();
  out.steps.steps += after.decode_steps.steps - before.decode_steps.steps;
  out.steps.device_ms += after.decode_steps.device_ms - before.decode_steps.device_ms;
  out.steps.draft_ms += after.decode_steps.draft_ms - before.decode_steps.draft_ms;
  if (!after.speculation) return {};
  out.counts.verify_steps += after.speculation->verify_steps - before.speculation->verify_steps;
  out.counts.draft_tokens += after.speculation->draft_tokens - before.speculation->draft_tokens;
  out.counts.accepted_tokens += after.speculation->accepted_tokens - before.speculation->accepted_tokens;
  return {};
}

// Pieces of the text at equal distances, other ones for each batch size and round: a trie would know the answers. With
// `repeats` each several times over, as edits and summaries have it.
Result<std::vector<Ids>> cut_prompts(const SpeculationBench& bench, int count, const Tokenizer& tokenizer) {
  WW_ASSIGN_OR_RETURN(const std::string text, read_text_file(bench.prompts));
  WW_ASSIGN_OR_RETURN(const Ids ids, tokenizer.encode(text, false));
  const auto length = static_cast<size_t>(std::max(1, bench.prompt_tokens / bench.repeats));
  if (ids.size() < length + static_cast<size_t>(count)) {
    return Status::invalid_argument(fmt::format("--prompts {} has {} tokens; {} prompts of {} need more", bench.prompts,
                                                ids.size(), count, length), "--prompts");
  }
  std::vector<Ids> prompts;
  for (int i = 0; i < count; ++i) {
    const auto begin = ids.begin() + static_cast<int64_t>(i * (ids.size() - length) / count);
    Ids& prompt = prompts.emplace_back();
    for (int k = 0; k < bench.repeats; ++k) prompt.insert(prompt.end(), begin, begin + static_cast<int64_t>(length));
  }
  return prompts;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Of the rounds' own ratios, in which both answered the same prompts one after the other.
double speed_up_by_round(const Measured& m, const Measured& none) {
  std::vector<double> ratios;
  for (size_t i = 0; i < m.rounds_s.size(); ++i) ratios.push_back(none.rounds_s[i] / m.rounds_s[i]);
  return median(std::move(ratios));
}

nlohmann::json describe(const Candidate& one, const Measured& none, int batch) {
  const Measured& m = one.measured;
  const double steps = std::max<double>(1, static_cast<double>(m.steps.steps));
  return {{"flags", one.flags}, {"batch", batch}, {"tokens_per_second", static_cast<double>(m.tokens) / m.wall_s},
          {"speed_up", none.wall_s / m.wall_s}, {"speed_up_by_round", speed_up_by_round(m, none)},
          {"speed_up_by_cpu", none.cpu_s / m.cpu_s}, {"rounds_s", m.rounds_s},
          {"accept_length", one.flags.empty() ? 1 : m.counts.accept_length()}, {"accept_rate", m.counts.accept_rate()},
          {"draft_ms", m.steps.draft_ms / steps}, {"verify_ms", (m.steps.device_ms - m.steps.draft_ms) / steps},
          {"same_text", m.same_text}};
}

bool faster(const Candidate& a, const Candidate& b) { return a.measured.wall_s < b.measured.wall_s; }

// One batch size: a table, and what it says. Guesses are suggested where they beat both servers that have none.
void report(const std::vector<Candidate>& all, int batch, nlohmann::json& rows) {
  std::printf("\nbatch %d\n%9s %9s %9s %7s %9s %6s %9s %10s  %s\n", batch, "tok/s", "speed-up", "by round", "by CPU",
              "tok/step", "kept", "draft ms", "verify ms", "flags");
  const Candidate* best = &*std::min_element(all.begin(), all.begin() + kControl + 1, faster);  // of those with none
  for (size_t i = 0; i < all.size(); ++i) {
    const Candidate& one = all[i];
    nlohmann::json row = describe(one, all[kControl].measured, batch);
    if (i == kControl) row["control"] = true;
    std::printf("%9.1f %9.2f %9.2f %7.2f %9.2f %5.0f%% %9.3f %10.3f  %s%s\n", row["tokens_per_second"].get<double>(),
                row["speed_up"].get<double>(), row["speed_up_by_round"].get<double>(),
                row["speed_up_by_cpu"].get<double>(), row["accept_length"].get<double>(),
                row["accept_rate"].get<double>() * 100, row["draft_ms"].get<double>(), row["verify_ms"].get<double>(),
                !one.flags.empty() ? one.flags.c_str() : i == kControl ? "none" : "none, the server started first",
                one.measured.same_text ? "" : "  (another text)");
    if (faster(one, *best)) best = &one;
    rows.push_back(std::move(row));
  }
  std::printf("suggested for batch %d: %s\n", batch, best->flags.empty() ? "no speculation" : best->flags.c_str());
}

// The first round of prompts is not timed: graphs are made in it, and --speculative-adaptive learns what guesses cost.
Status measure_batch(const SpeculationBench& bench, int batch, std::span<const Ids> prompts,
                     std::vector<Candidate>& all) {
  const size_t each = prompts.size() / (1 + bench.rounds);
  for (Candidate& one : all) {
    std::vector<Ids> answers;
    WW_RETURN_IF_ERROR(Round(prompts.first(each), batch, bench.max_tokens).run(*one.served.engine, answers));
    one.measured = {};
  }
  for (int round = 1; round <= bench.rounds; ++round) {
    for (size_t i = 0; i < all.size(); ++i) {  // each is the first of as many rounds as the others
      Candidate& one = all[(i + static_cast<size_t>(round)) % all.size()];
      WW_RETURN_IF_ERROR(time_round(prompts.subspan(round * each, each), batch, bench.max_tokens, one));
    }
    for (Candidate& one : all) one.measured.same_text &= one.answers == all[0].answers;
  }
  return {};
}

}  // namespace

std::vector<std::string> speculation_candidates(const SpeculationBench& bench, const std::string& model_path) {
  if (!bench.candidates.empty()) return bench.candidates;
  std::vector<std::string> out = {"--speculative-algorithm NGRAM",
                                  "--speculative-algorithm NGRAM --speculative-eagle-topk 1"};
  if (has_nextn_weights(model_path)) {
    for (const int steps : {1, 2, 3}) {
      out.push_back(
          fmt::format("--speculative-algorithm NEXTN --speculative-num-steps {} --speculative-eagle-topk 1", steps));
    }
  }
  for (const std::string& folder : bench.draft_models) add_draft_model(folder, out);
  return out;
}

void add_speculation_flags(CLI::App& app, SpeculationBench& bench) {
  app.add_option("--model-path,--model", bench.model_path, "Model folder, GGUF file or well-known id");
  app.add_option("--prompts", bench.prompts, "A text that prompts are cut from")->required();
  app.add_option("--draft-model-path", bench.draft_models, "Folders of EAGLE or EAGLE3 heads, or of small models")
      ->delimiter(',');
  app.add_option("--candidate", bench.candidates, "Flags of serve to time in place of the usual ones; may be repeated");
  app.add_option("--batch-size", bench.batch_sizes, "Requests at a time")->delimiter(',')->check(CLI::Range(1, 4096));
  app.add_option("--device", bench.device, "As for serve");
  app.add_option("--dtype", bench.dtype, "As for serve");
  app.add_option("--threads", bench.threads, "0: all")->check(CLI::Range(0, 4096));
  app.add_option("--num-prompts", bench.num_prompts, "In a round; at least as many as a batch")
      ->check(CLI::Range(1, 10000));
  app.add_option("--prompt-tokens", bench.prompt_tokens, "Of each prompt")->check(CLI::Range(1, 1 << 20));
  app.add_option("--repeats", bench.repeats, "A prompt holds one piece so many times")->check(CLI::Range(1, 64));
  app.add_option("--max-tokens", bench.max_tokens, "Of each answer")->check(CLI::Range(2, 1 << 20));
  app.add_option("--rounds", bench.rounds, "Of all candidates in turn, behind one that is not timed")
      ->check(CLI::Range(1, 1000));
  app.add_option("--json", bench.json, "A file for the figures");
}

Status run_speculation_bench(const SpeculationBench& bench) {
  WW_ASSIGN_OR_RETURN(const ModelSource source, find_model(bench.model_path));
  std::vector<Candidate> all;
  std::vector<std::string> flags_of_all = speculation_candidates(bench, source.path());
  flags_of_all.insert(flags_of_all.begin(), kControl + 1, "");
  for (const std::string& flags : flags_of_all) {
    WW_ASSIGN_OR_RETURN(all.emplace_back(), start_candidate(bench, source.path(), flags));
  }
  const EngineInfo& info = all[0].served.engine->info();
  std::printf("%s; prompts of %d tokens (%d repeats), %d more each, %d rounds\n", info.device.c_str(),
              bench.prompt_tokens, bench.repeats, bench.max_tokens, bench.rounds);
  int count = 0;
  for (const int batch : bench.batch_sizes) count += (1 + bench.rounds) * std::max(bench.num_prompts, batch);
  WW_ASSIGN_OR_RETURN(const std::vector<Ids> prompts, cut_prompts(bench, count, *all[0].served.tokenizer));
  nlohmann::json rows = nlohmann::json::array();
  size_t first = 0;
  for (const int batch : bench.batch_sizes) {
    const auto size = static_cast<size_t>(1 + bench.rounds) * std::max(bench.num_prompts, batch);
    WW_RETURN_IF_ERROR(measure_batch(bench, batch, std::span(prompts).subspan(first, size), all));
    first += size;
    report(all, batch, rows);
  }
  if (bench.json.empty()) return {};
  std::ofstream file(bench.json, std::ios::binary);
  const nlohmann::json out = {{"device", info.device}, {"model", bench.model_path}, {"rows", rows}};
  if ((file << out.dump(1) << "\n").flush()) return {};
  return Status::invalid_argument(fmt::format("--json {}: cannot be written", bench.json), "--json");
}

}  // namespace warpweave
