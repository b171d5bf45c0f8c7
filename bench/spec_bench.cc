// What speculative decoding gains on a text: the same continuations with none and with each candidate, in turns, so that
// a busy machine is unfair to all alike. Prints acceptance, speed-up by the clock and by CPU time, and the best flags.
//   spec_bench --prompts TEXT [--algorithm EAGLE --draft-model models/tale-eagle] [...]
#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>

#include "base/log.h"
#include "base/mapped_file.h"
#include "engine/engine_impl.h"

namespace warpweave {
namespace {

using Ids = std::vector<int32_t>;

struct Bench {
  std::string model = "models/tale-llama", algorithm = "NGRAM", draft_model, prompts, device = "cpu", dtype = "auto";
  int threads = 1, num_prompts = 8, prompt_tokens = 96, repeats = 1, max_tokens = 128, concurrency = 1, rounds = 3;
  int steps = 0, topk = 0, draft_tokens = 0;
  double temperature = 0;
  bool deterministic = false;
};

struct Candidate {
  std::string flags;
  ServerArgs args;
  ServedModel served;
  double wall_s = 0, cpu_s = 0;
  uint64_t tokens = 0;
  std::vector<Ids> answers;
};

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Shape {
  int steps, topk, draft_tokens;
};

Candidate candidate(const Bench& bench, const std::string& algorithm, const Shape& shape) {
  Candidate out;
  out.args.model_path = bench.model;
  out.args.device = bench.device;
  out.args.dtype = bench.dtype;
  out.args.threads = bench.threads;
  out.args.enable_deterministic_inference = bench.deterministic;
  out.args.speculative_algorithm = algorithm;
  if (algorithm.empty()) {
    out.flags = "none";
    return out;
  }
  out.flags = "--speculative-algorithm " + algorithm;
  if (algorithm != "NGRAM") out.args.speculative_draft_model_path = bench.draft_model;
  const auto set = [&](std::optional<int>& member, const char* flag, int value) {
    if (value == 0) return;
    member = value;
    out.flags += fmt::format(" {} {}", flag, value);
  };
  set(out.args.speculative_num_steps, "--speculative-num-steps", shape.steps);
  set(out.args.speculative_eagle_topk, "--speculative-eagle-topk", shape.topk);
  set(out.args.speculative_num_draft_tokens, "--speculative-num-draft-tokens", shape.draft_tokens);
  return out;
}

// None, and the shape asked for, or those that are usual.
std::vector<Candidate> candidates(const Bench& bench) {
  std::vector<Candidate> out;
  out.push_back(candidate(bench, "", {}));
  std::vector<Shape> shapes = {{1, 1, 0}, {2, 1, 0}, {3, 1, 0}, {4, 1, 0}, {2, 3, 6}, {3, 4, 8}};
  if (bench.algorithm == "NGRAM") shapes = {{0, 0, 0}, {0, 1, 0}, {0, 1, 24}};
  if (bench.steps + bench.topk + bench.draft_tokens > 0) shapes = {{bench.steps, bench.topk, bench.draft_tokens}};
  for (const Shape& shape : shapes) out.push_back(candidate(bench, bench.algorithm, shape));
  return out;
}

// Continues all prompts, `concurrency` at a time. Prompts are in the prefix cache, so that decoding is timed.
Status run_round(std::span<const Ids> prompts, const Bench& bench, int max_tokens, Candidate& one) {
  std::mutex mutex;
  std::condition_variable changed;
  size_t running = 0, submitted = 0, finished = 0;
  Status failure;
  one.answers.assign(prompts.size(), {});
  const double cpu_begin = cpu_seconds();
  const auto begun = std::chrono::steady_clock::now();
  for (size_t i = 0; i < prompts.size(); ++i) {
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return running < static_cast<size_t>(bench.concurrency); });
      ++running;
    }
    GenerateRequest request;
    request.rid = std::to_string(i);
    request.input_ids = prompts[i];
    request.sampling.temperature = static_cast<float>(bench.temperature);
    request.sampling.seed = i;
    request.sampling.max_new_tokens = max_tokens;
    request.sampling.ignore_eos = true;
    request.stream = false;
    const Status taken = one.served.engine->submit(std::move(request), [&, i](const OutputDelta& delta) {
      std::lock_guard lock(mutex);
      one.answers[i].insert(one.answers[i].end(), delta.token_ids.begin(), delta.token_ids.end());
      if (!delta.finish) return;
      if (!delta.finish->error.ok()) failure = delta.finish->error;
      --running;
      ++finished;
      changed.notify_all();
    });
    if (!taken.ok()) {  // those before it still answer into this frame
      std::lock_guard lock(mutex);
      failure = taken;
      break;
    }
    ++submitted;
  }
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return finished == submitted; });
  if (max_tokens == 1) return failure;
  one.wall_s += std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  one.cpu_s += cpu_seconds() - cpu_begin;
  for (const Ids& answer : one.answers) one.tokens += answer.size();
  return failure;
}

// Pieces of the text at equal distances; with `repeats` each several times over, as edits and summaries have it.
Result<std::vector<Ids>> cut_prompts(const Bench& bench, const Tokenizer& tokenizer) {
  WW_ASSIGN_OR_RETURN(const std::string text, read_text_file(bench.prompts));
  WW_ASSIGN_OR_RETURN(const Ids ids, tokenizer.encode(text, false));
  const size_t length = bench.prompt_tokens / bench.repeats;
  const int count = bench.num_prompts * bench.rounds;  // each round has its own: a trie would know the answers
  if (ids.size() < length * count) {
    return Status::invalid_argument(fmt::format("--prompts {} has {} tokens, less than the prompts take", bench.prompts, ids.size()),
                                    "--prompts");
  }
  std::vector<Ids> prompts;
  for (int i = 0; i < count; ++i) {
    const auto begin = ids.begin() + static_cast<int64_t>(i * (ids.size() - length) / count);
    Ids& prompt = prompts.emplace_back();
    for (int k = 0; k < bench.repeats; ++k) prompt.insert(prompt.end(), begin, begin + static_cast<int64_t>(length));
  }
  return prompts;
}

void print(const std::vector<Candidate>& all) {
  const Candidate& none = all[0];
  std::printf("%8s %9s %9s %7s %9s %6s  %s\n", "tok/s", "CPU ms/t", "speed-up", "by CPU", "tok/step", "kept", "flags");
  const Candidate* best = &none;
  for (const Candidate& one : all) {
    const auto tokens = static_cast<double>(one.tokens);
    const SpeculationCounts counts = one.served.engine->stats().speculation.value_or(SpeculationCounts{.verify_steps = 1});
    std::printf("%8.1f %9.3f %9.2f %7.2f %9.2f %5.0f%%  %s%s\n", tokens / one.wall_s, one.cpu_s * 1000 / tokens,
                none.wall_s / one.wall_s, none.cpu_s / one.cpu_s, counts.accept_length(), counts.accept_rate() * 100,
                one.flags.c_str(), one.answers == none.answers ? "" : "  (another text)");
    if (one.cpu_s < best->cpu_s) best = &one;
  }
  std::printf("best by CPU time: %s\n", best->flags.c_str());
}

Status run(const Bench& bench) {
  std::vector<Candidate> all = candidates(bench);
  for (Candidate& one : all) {
    auto served = create_engine({.args = one.args, .model_path = bench.model, .on_weights_progress = {}});
    if (!served.ok()) return served.status().with_context(one.flags);
    one.served = std::move(served).value();
  }
  WW_ASSIGN_OR_RETURN(const std::vector<Ids> prompts, cut_prompts(bench, *all[0].served.tokenizer));
  for (int round = 0; round < bench.rounds; ++round) {
    const auto now = std::span(prompts).subspan(static_cast<size_t>(round) * bench.num_prompts, bench.num_prompts);
    for (Candidate& one : all) {
      WW_RETURN_IF_ERROR(run_round(now, bench, 1, one));
      WW_RETURN_IF_ERROR(run_round(now, bench, bench.max_tokens, one));
    }
  }
  std::printf("%d prompts of %d tokens (%d repeats), %d more each, %d at a time, %d rounds; %s\n", bench.num_prompts,
              bench.prompt_tokens, bench.repeats, bench.max_tokens, bench.concurrency, bench.rounds,
              all[0].served.engine->info().device.c_str());
  print(all);
  return {};
}

}  // namespace
}  // namespace warpweave

int main(int argc, char** argv) {
  warpweave::Bench bench;
  CLI::App app("What speculative decoding gains on a text", "spec_bench");
  app.add_option("--model", bench.model);
  app.add_option("--algorithm", bench.algorithm);
  app.add_option("--draft-model", bench.draft_model);
  app.add_option("--prompts", bench.prompts, "A text that prompts are cut from")->required();
  app.add_option("--device", bench.device);
  app.add_option("--dtype", bench.dtype);
  app.add_option("--threads", bench.threads);
  app.add_option("--num-prompts", bench.num_prompts)->check(CLI::Range(1, 10000));
  app.add_option("--prompt-tokens", bench.prompt_tokens)->check(CLI::Range(1, 1 << 20));
  app.add_option("--repeats", bench.repeats, "A prompt holds one piece so many times")->check(CLI::Range(1, 64));
  app.add_option("--max-tokens", bench.max_tokens)->check(CLI::Range(2, 1 << 20));
  app.add_option("--concurrency", bench.concurrency)->check(CLI::Range(1, 4096));
  app.add_option("--rounds", bench.rounds)->check(CLI::Range(1, 1000));
  app.add_option("--temperature", bench.temperature)->check(CLI::Range(0.0, 100.0));
  app.add_flag("--deterministic", bench.deterministic, "With --enable-deterministic-inference");
  app.add_option("--steps", bench.steps);
  app.add_option("--topk", bench.topk);
  app.add_option("--draft-tokens", bench.draft_tokens);
  CLI11_PARSE(app, argc, argv);
  if (const warpweave::Status status = warpweave::init_log("error"); !status.ok()) return 1;
  const warpweave::Status status = warpweave::run(bench);
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
