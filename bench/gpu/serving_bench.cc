// Serving without HTTP on a GPU: decode steps, prefill, time to first token, and closed-loop load.
//
//   serving_bench ROWS --model-path DIR --load-format dummy --skip-tokenizer-init [--moe-routing uniform] [flags of `serve`]
//
// --moe-routing uniform: experts are drawn, after the router has run. Made-up weights route as they like.
//
// ROWS is a list of: start, decode, prefill, ttft, load4, load16, load32, load64, load256 (so many requests at a time, of
// 512 to 1536 tokens), long16 (of 6000 to 16000); or all, of whose loads load64 and load256. One line of JSON a row.
// lora, which all leaves out: decode steps and prefill with 8 random adapters of rank 16, each of as many requests, beside
// none, by turns; lora64 alone is the decode step of that batch.
// schemas and edited, which all leaves out too: 64 and 8 requests at once at temperature 1, as they are and, by turns,
// under JSON schemas that are met for the first time, over a made-up vocabulary of the model's size (schemas), or with
// penalties, biases, and the log-probabilities of 5 tokens (edited).
// shared, which all leaves out as well: 64 requests at once of 8192 tokens and 128 of their own, 128 new ones each: first each with
// 8192 of its own, then all with the same, which one request before them has left in the prefix cache.
// -: rows are read from the input, a line each; so two builds can take turns (serving_by_turns.py). Steps are shorter ones.
// decode64 alone is the decode step of that batch, so are decode1, decode8 and decode256.
// profileN marks one decode step of batch N, and profile0 a prefill of 8192 tokens, for a profiler that
// waits for the program's mark (ncu --profile-from-start off).
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include <cuda_profiler_api.h>

#include "base/log.h"
#include "engine/engine_impl.h"
#include "grammar/compiler.h"
#include "lora/testing/random_adapter.h"
#include "model/model_bundle.h"

using namespace warpweave;
using Clock = std::chrono::steady_clock;

namespace {

double seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(q * static_cast<double>(values.size())))];
}

double median(const std::vector<double>& values) { return quantile(values, 0.5); }

struct Job {
  int prompt_tokens = 0;
  int new_tokens = 0;
};

struct Outcome {
  double first_token_s = 0;         // until every request has its first token
  double total_s = 0;
  std::vector<double> intervals_ms; // between tokens of the last request to start, all running
  std::vector<double> token_gaps_ms;  // between tokens, of all requests
  std::vector<double> ttft_s;
  std::vector<double> gaps_us;      // the GPU's idle time between steps
  int64_t output_tokens = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0;
};

class Runner {
 public:
  explicit Runner(Engine& engine) : engine_(engine) {}

  int profile_from_token = 0;  // 0: never
  std::vector<std::shared_ptr<const LoraAdapter>> adapters;  // of the requests, in turn; empty: of none
  std::function<void(GenerateRequest&, int)> finish_request;  // what else it asks for, by number; empty: nothing
  std::vector<int32_t> prefix;  // of every prompt, before its own tokens

  // At most `concurrency` jobs at a time, in their order.
  Outcome run(const std::vector<Job>& jobs, int concurrency) {
    State state;
    const auto start = Clock::now();
    size_t next = 0;
    std::unique_lock lock(state.mutex);
    while (state.finished < static_cast<int>(jobs.size())) {
      while (next < jobs.size() && static_cast<int>(next) - state.finished < concurrency) {
        lock.unlock();
        submit(jobs[next++], static_cast<int>(jobs.size()), start, state);
        lock.lock();
      }
      state.changed.wait_for(lock, std::chrono::milliseconds(20));
      lock.unlock();
      state.outcome.gaps_us.push_back(engine_.stats().step_overhead_us);
      lock.lock();
    }
    state.outcome.total_s = seconds(start, Clock::now());
    return std::move(state.outcome);
  }

  std::vector<int32_t> random_tokens(int count) {
    std::vector<int32_t> out(count);
    for (int32_t& token : out) token = static_cast<int32_t>(random_() % (engine_.info().vocab_size - 16) + 8);
    return out;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    int started = 0, finished = 0;
    Outcome outcome;
  };

  void submit(const Job& job, int all, Clock::time_point start, State& state) {
    GenerateRequest request;
    request.rid = "r" + std::to_string(++number_);
    request.input_ids = prefix;
    for (int32_t token : random_tokens(job.prompt_tokens)) request.input_ids.push_back(token);
    if (!adapters.empty()) request.adapter = adapters[number_ % adapters.size()];
    request.sampling.temperature = 0;
    request.sampling.max_new_tokens = job.new_tokens;
    request.sampling.ignore_eos = true;
    if (finish_request) finish_request(request, number_);
    const auto submitted = Clock::now();
    const Status status = engine_.submit(
        std::move(request), [&state, start, submitted, all, first = true, watched = false, last = submitted,
                             profiled = profile_from_token, tokens = 0](
                                const OutputDelta& delta) mutable {
          const auto now = Clock::now();
          std::lock_guard lock(state.mutex);
          if (first) {
            first = false;
            state.outcome.ttft_s.push_back(seconds(submitted, now));
            if (++state.started == all) {
              state.outcome.first_token_s = seconds(start, now);
              watched = true;
            }
          } else {
            const double gap_ms = seconds(last, now) * 1e3;
            state.outcome.token_gaps_ms.push_back(gap_ms);
            if (watched && state.finished == 0) state.outcome.intervals_ms.push_back(gap_ms);
          }
          last = now;
          if (watched && profiled > 0) {
            ++tokens;
            if (tokens == profiled) cudaProfilerStart();
            if (tokens == profiled + 1) cudaProfilerStop();
          }
          state.outcome.output_tokens += static_cast<int64_t>(delta.token_ids.size());
          if (delta.finish) {
            state.outcome.prompt_tokens += delta.prompt_tokens;
            state.outcome.cached_tokens += delta.cached_tokens;
            ++state.finished;
            state.changed.notify_one();
          }
        });
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.message().c_str());
      std::exit(1);
    }
  }

  Engine& engine_;
  std::mt19937 random_{7};
  int number_ = 0;
};

void print(const std::string& row, const std::string& values) {
  fmt::print("{{\"row\": \"{}\", {}}}\n", row, values);
  std::fflush(stdout);
}

// The profiler runs from one token of the last request to the next.
void profile(Runner& runner, int batch) {
  if (batch == 0) {
    cudaProfilerStart();
    runner.run({{8192, 1}}, 1);
    cudaProfilerStop();
    return;
  }
  runner.profile_from_token = 4;
  runner.run(std::vector<Job>(batch, {1024, 128}), batch);  // the first still runs when the last begins
  runner.profile_from_token = 0;
}

constexpr int kBatches[] = {1, 8, 64, 256};

// How much a row measures; less where rows take turns with another build's.
struct Lengths {
  int decode_tokens = 256, prefill_runs = 5, ttft_runs = 9;
};

// `only`: a batch, or 0 for all.
void decode(Runner& runner, const Lengths& lengths, int max_batch, int only) {
  for (int batch : kBatches) {
    if (batch > max_batch) break;
    if (only != 0 && batch != only) continue;
    const Outcome outcome = runner.run(std::vector<Job>(batch, {1024, lengths.decode_tokens}), batch);
    const std::vector<double>& intervals = outcome.intervals_ms;
    const double mean_ms = std::accumulate(intervals.begin(), intervals.end(), 0.0) / std::max<size_t>(intervals.size(), 1);
    print(fmt::format("decode step, batch {}", batch),
          fmt::format("\"median_ms\": {:.3f}, \"mean_ms\": {:.3f}, \"gpu_gap_us\": {:.1f}", median(outcome.intervals_ms),
                      mean_ms, median(outcome.gaps_us)));
  }
}

void prefill(Runner& runner, const Lengths& lengths) {
  for (const auto& [count, length] : {std::pair{1, 8192}, {16, 1024}}) {
    std::vector<double> rates;
    for (int i = 0; i < lengths.prefill_runs; ++i) {
      rates.push_back(count * length / runner.run(std::vector<Job>(count, {length, 1}), count).total_s);
    }
    print(fmt::format("prefill {}x{}", count, length), fmt::format("\"tokens_per_s\": {:.0f}", median(rates)));
  }
}

void ttft(Runner& runner, const Lengths& lengths) {
  std::vector<double> times;
  for (int i = 0; i < lengths.ttft_runs; ++i) times.push_back(runner.run({{1024, 4}}, 1).ttft_s[0] * 1e3);
  print("time to first token, 1024 tokens, idle", fmt::format("\"median_ms\": {:.2f}", median(times)));
}

void shared(Engine& engine, Runner& runner) {
  constexpr int kRequests = 64, kShared = 8192, kOwn = 128, kNew = 128;
  const auto show = [](const std::string& row, const Outcome& outcome) {
    print(row, fmt::format("\"median_ttft_ms\": {:.1f}, \"p99_ttft_ms\": {:.1f}, \"cached_share\": {:.4f}, \"output_tokens_per_s\": {:.0f}",
                           median(outcome.ttft_s) * 1e3, quantile(outcome.ttft_s, 0.99) * 1e3,
                           static_cast<double>(outcome.cached_tokens) / static_cast<double>(outcome.prompt_tokens),
                           static_cast<double>(outcome.output_tokens) / outcome.total_s));
  };
  const std::string row = fmt::format("{} requests of {} and {} tokens", kRequests, kShared, kOwn);
  show(row + ", none shared", runner.run(std::vector<Job>(kRequests, {kShared + kOwn, kNew}), kRequests));
  while (!engine.flush_cache()) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the last request may just be leaving
  runner.prefix = runner.random_tokens(kShared);
  show("one such request, cold", runner.run({{kOwn, 1}}, 1));
  show("one such request, its prefix cached", runner.run({{kOwn, 1}}, 1));
  show(row + ", shared", runner.run(std::vector<Job>(kRequests, {kOwn, kNew}), kRequests));
  runner.prefix = {};
}

constexpr int kLoraAdapters = 8, kLoraRank = 16, kLoraTurns = 3;

// So many random adapters of the model, loaded.
std::vector<std::shared_ptr<const LoraAdapter>> load_adapters(const ServerArgs& args, ServedModel& served) {
  std::vector<std::shared_ptr<const LoraAdapter>> out;
  const auto bundle = open_model_bundle(args.model_path, {.load_format = "dummy", .tokenizer_path = {}, .skip_tokenizer = true});
  const auto targets = lora_targets(bundle->config);
  for (int i = 0; i < kLoraAdapters; ++i) {
    const std::string name = "adapter-" + std::to_string(i);
    write_random_adapter(args.lora_root + "/" + name, *targets, {.rank = kLoraRank, .deviation = 0.01f, .seed = static_cast<unsigned>(i)});
    const auto loaded = served.adapters->load_from_root(name, name);
    std::filesystem::remove_all(args.lora_root + "/" + name);
    if (!loaded.ok()) {
      std::fprintf(stderr, "%s\n", loaded.status().message().c_str());
      std::exit(1);
    }
    out.push_back(loaded->weights);
  }
  return out;
}

// `only`: a batch, or 0 for all and prefill.
void lora(Runner& runner, const ServerArgs& args, ServedModel& served, int only) {
  const auto adapters = load_adapters(args, served);
  const auto compare = [&](const std::string& row, const std::vector<Job>& jobs, auto&& value_of) {
    std::vector<double> with, without;
    for (int turn = 0; turn < kLoraTurns; ++turn) {
      runner.adapters = {};
      without.push_back(value_of(runner.run(jobs, static_cast<int>(jobs.size()))));
      runner.adapters = adapters;
      with.push_back(value_of(runner.run(jobs, static_cast<int>(jobs.size()))));
    }
    print(row, fmt::format("\"none\": {:.3f}, \"adapters\": {:.3f}, \"ratio\": {:.3f}", median(without), median(with),
                           median(with) / median(without)));
  };
  for (const int batch : {1, 8, 64}) {
    if (only != 0 && batch != only) continue;
    compare(fmt::format("decode step with {} adapters, batch {}, ms", kLoraAdapters, batch), std::vector<Job>(batch, {1024, 128}),
            [](const Outcome& outcome) { return median(outcome.intervals_ms); });
  }
  if (only != 0) return;
  compare(fmt::format("prefill 16x1024 with {} adapters, s", kLoraAdapters), std::vector<Job>(16, {1024, 1}),
          [](const Outcome& outcome) { return outcome.total_s; });
}

// So many tokens as a tokenizer might have: bytes, and words with and without what stands around them.
std::shared_ptr<const grammar::Vocabulary> made_up_vocabulary(int size) {
  constexpr const char* kAround[][2] = {{" ", ""}, {"", ""}, {" ", ""}, {"", "("}, {"\"", ""},
                                        {"", "\""}, {"_", ""}, {"", "\":"}, {"\n", ""}};
  std::mt19937 random(1);
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  while (static_cast<int>(tokens.size()) < size - 1) {
    const auto& [before, behind] = kAround[random() % std::size(kAround)];
    std::string word = before;
    for (unsigned length = 2 + random() % 9; length > 0; --length) word += static_cast<char>('a' + random() % 26);
    tokens.push_back(word + behind);
  }
  tokens.emplace_back();
  return std::make_shared<const grammar::Vocabulary>(std::move(tokens), std::vector<int32_t>{size - 1});
}

// Texts long enough that no answer ends early; `kind` makes schemas that share nothing.
std::string schema_text(int kind) {
  return fmt::format(R"({{"type": "object", "additionalProperties": false, "required": ["title", "text"], )"
                     R"("properties": {{"title": {{"enum": ["tale {0}", "story {0}"]}}, )"
                     R"("text": {{"type": "string", "minLength": {1}}}}}}})",
                     kind, 2000 + kind);
}

// What requests ask for beside their tokens; `ask` is told the request's number.
struct Wish {
  const char* name;
  std::function<void(GenerateRequest&, int)> ask;
};

// Every wish in every turn, the first beside which the others are told.
void by_turns(Runner& runner, const std::vector<Wish>& wishes, const Job& job, int turns) {
  for (const int batch : {64, 8}) {
    std::vector<std::vector<double>> rates(wishes.size());
    for (int turn = -1; turn < turns; ++turn) {  // the first warms up
      for (size_t i = 0; i < wishes.size(); ++i) {
        runner.finish_request = [&](GenerateRequest& request, int number) {
          request.sampling.temperature = 1;
          if (wishes[i].ask) wishes[i].ask(request, number);
        };
        const Outcome outcome = runner.run(std::vector<Job>(batch, job), batch);
        if (turn >= 0) rates[i].push_back(static_cast<double>(outcome.output_tokens) / outcome.total_s);
      }
    }
    std::string values;
    for (size_t i = 0; i < wishes.size(); ++i) {
      values += fmt::format("{}\"{}\": {{\"tokens_per_s\": {:.0f}, \"ratio\": {:.3f}}}", i > 0 ? ", " : "",
                            wishes[i].name, median(rates[i]), median(rates[i]) / median(rates[0]));
    }
    print(fmt::format("{} requests at once of {} tokens", batch, job.new_tokens), values);
  }
  runner.finish_request = {};
}

void schemas(Runner& runner, int vocab_size) {
  constexpr int kRequestsASchema = 8;
  const auto vocabulary = made_up_vocabulary(vocab_size);
  grammar::GrammarCompiler compiler({.make_vocabulary = [&] { return vocabulary; }});
  int asked = 0;
  const auto with_schema = [&](GenerateRequest& request, int) {
    const std::string text = schema_text(asked++ / kRequestsASchema);
    const auto compiled = compiler.compile({grammar::GrammarSpec::Kind::json_schema, text});
    if (!compiled.ok()) std::exit((std::fprintf(stderr, "%s\n", compiled.status().message().c_str()), 1));
    request.sampling.grammar = *compiled;
  };
  by_turns(runner, {{"free", {}}, {"schemas", with_schema}}, {.prompt_tokens = 64, .new_tokens = 128}, 5);
}

void edited(Runner& runner, int vocab_size) {
  const auto with_penalties = [](GenerateRequest& request, int) {
    request.sampling.repetition_penalty = 1.1f;
    request.sampling.frequency_penalty = 0.5f;
  };
  const auto with_biases = [&](GenerateRequest& request, int number) {
    for (int i = 0; i < 100; ++i) {
      request.sampling.logit_bias.emplace_back((number * 131 + i * 977) % vocab_size, 2.0f);
    }
  };
  const auto with_logprobs = [](GenerateRequest& request, int) {
    request.return_logprob = true;
    request.top_logprobs_num = 5;
  };
  by_turns(runner, {{"free", {}}, {"penalties", with_penalties}, {"biases", with_biases}, {"logprobs", with_logprobs}},
           {.prompt_tokens = 64, .new_tokens = 64}, 2);
}

struct Load {
  const char* name;
  int requests, concurrency;
  int least_prompt = 512, most_prompt = 1536;
};
constexpr Load kLoads[] = {{"load4", 100, 4},   {"load16", 200, 16},   {"load32", 200, 32},
                           {"load64", 200, 64}, {"load256", 600, 256}, {"long16", 24, 16, 6000, 16000}};
constexpr std::string_view kLoadsOfAll = "load64, load256";

// What the steps of one kind were, from the engine's totals before and after.
void print_steps(const std::string& row, const char* kind, const StepTotals& before, const StepTotals& after) {
  const uint64_t steps = after.steps - before.steps;
  if (steps == 0) return;
  const auto mean = [&](double total) { return total / static_cast<double>(steps); };
  print(row + ", " + kind,
        fmt::format("\"steps\": {}, \"requests\": {:.1f}, \"tokens\": {:.1f}, \"gpu_ms\": {:.3f}, \"host_ms\": {:.3f}, "
                    "\"gpu_s\": {:.2f}",
                    steps, mean(static_cast<double>(after.requests - before.requests)),
                    mean(static_cast<double>(after.tokens - before.tokens)), mean(after.device_ms - before.device_ms),
                    mean(after.host_ms - before.host_ms), (after.device_ms - before.device_ms) / 1e3));
}

void load(Engine& engine, Runner& runner, const Load& of) {
  std::mt19937 random(11);
  std::vector<Job> jobs;
  const int prompts = of.most_prompt - of.least_prompt + 1;
  for (int i = 0; i < of.requests; ++i) {
    jobs.push_back({of.least_prompt + static_cast<int>(random() % prompts), 128 + static_cast<int>(random() % 257)});
  }
  const EngineStats before = engine.stats();
  const Outcome outcome = runner.run(jobs, of.concurrency);
  const EngineStats after = engine.stats();
  const bool usual = of.most_prompt == Load{}.most_prompt;
  const std::string row = fmt::format("{} requests{}, concurrency {}", of.requests,
                                      usual ? "" : fmt::format(" of {} to {}", of.least_prompt, of.most_prompt), of.concurrency);
  print(row, fmt::format("\"output_tokens_per_s\": {:.0f}, \"median_ttft_ms\": {:.1f}, \"p99_ttft_ms\": {:.1f}, "
                         "\"token_gap_ms\": {{\"median\": {:.2f}, \"p95\": {:.2f}, \"p99\": {:.2f}}}",
                         static_cast<double>(outcome.output_tokens) / outcome.total_s, median(outcome.ttft_s) * 1e3,
                         quantile(outcome.ttft_s, 0.99) * 1e3, median(outcome.token_gaps_ms),
                         quantile(outcome.token_gaps_ms, 0.95), quantile(outcome.token_gaps_ms, 0.99)));
  print_steps(row, "decode", before.decode_steps, after.decode_steps);
  print_steps(row, "mixed", before.mixed_steps, after.mixed_steps);
  print_steps(row, "prefill", before.prefill_steps, after.prefill_steps);
}

// Takes "--moe-routing uniform" out of the words.
bool take_dice(std::vector<std::string>& words) {
  const auto at = std::ranges::find(words, "--moe-routing");
  if (at == words.end()) return false;
  if (at + 1 == words.end() || *(at + 1) != "uniform") {
    std::fprintf(stderr, "--moe-routing takes: uniform\n");
    std::exit(2);
  }
  words.erase(at, at + 2);
  return true;
}

// The rows of steps, prefill and first tokens among `rows`.
void steps(const std::string& rows, Runner& runner, const Lengths& lengths, int max_batch) {
  const auto wants = [&](const char* row) { return rows == "all" || rows.find(row) != std::string::npos; };
  const auto* const alone = std::find_if(std::begin(kBatches), std::end(kBatches),
                                         [&](int batch) { return rows == fmt::format("decode{}", batch); });
  if (wants("decode")) decode(runner, lengths, max_batch, alone == std::end(kBatches) ? 0 : *alone);
  if (wants("prefill")) prefill(runner, lengths);
  if (wants("ttft")) ttft(runner, lengths);
}

// The loads among `rows`.
void loads(const std::string& rows, Engine& engine, Runner& runner) {
  const std::string_view wanted = rows == "all" ? kLoadsOfAll : std::string_view(rows);
  for (const Load& of : kLoads) {
    if (wanted.find(of.name) != std::string_view::npos) load(engine, runner, of);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto started = Clock::now();
  const std::string rows = argc > 1 ? argv[1] : "all";
  std::vector<std::string> words(argv + std::min(argc, 2), argv + argc);
  const bool dice = take_dice(words);
  auto flags = parse_flags(Command::serve, words);
  if (!flags.ok() || !init_log(flags->args.log_level).ok()) {
    std::fprintf(stderr, "%s\n", flags.status().message().c_str());
    return 2;
  }
  flags->args.routing_dice = dice;
  const bool with_adapters = rows == "lora" || rows == "lora64";
  if (with_adapters) flags->args.lora_root = std::filesystem::temp_directory_path() / "serving_bench_adapters";
  auto served = create_engine({.args = flags->args, .model_path = flags->args.model_path, .on_weights_progress = {}});
  if (!served.ok()) {
    std::fprintf(stderr, "%s\n", served.status().message().c_str());
    return 1;
  }
  Engine& engine = *served->engine;
  const EngineInfo& info = engine.info();
  print("start", fmt::format("\"device\": \"{}\", \"prefill\": \"{}\", \"decode\": \"{}\", \"page_size\": {}, "
                             "\"weights_gb\": {:.2f}, \"pool_tokens\": {}, \"ready_s\": {:.2f}",
                             info.device, info.prefill_attention_backend, info.decode_attention_backend,
                             info.page_size, info.weight_bytes / 1e9, info.max_total_tokens,
                             seconds(started, Clock::now())));
  Runner runner(engine);
  runner.run({{1024, 8}}, 1);
  for (int batch : {0, 1, 8, 64, 256}) {
    if (rows == fmt::format("profile{}", batch)) profile(runner, batch);
  }
  steps(rows, runner, {}, info.max_running_requests);
  for (std::string line; rows == "-" && std::getline(std::cin, line);) {
    const int decode_tokens = line == "decode256" ? 256 : 128;  // the first still runs when the last begins
    steps(line, runner, {.decode_tokens = decode_tokens, .prefill_runs = 2, .ttft_runs = 3}, info.max_running_requests);
    loads(line, engine, runner);
    print("done", "\"of\": \"" + line + "\"");
  }
  if (rows.find("shared") != std::string::npos) shared(engine, runner);
  if (with_adapters) lora(runner, flags->args, *served, rows == "lora" ? 0 : 64);
  if (rows == "schemas") schemas(runner, info.vocab_size);
  if (rows == "edited") edited(runner, info.vocab_size);
  loads(rows, engine, runner);
  return 0;
}
