// Speculative decoding on a GPU beside none, in one process, with weights that are made up.
//
//   speculation_bench MODEL_SHAPE EAGLE_SHAPE [serving|accepted|ngram|trees|adaptive|draft|host|verify|all|eagleN|ngramN|verifyN|keptN] [flags of `serve`]
//
// Guesses are right by dice, whatever the model says, so that 3 tokens come of a step on average: every pass of the
// draft model and of the target is run as it is, only which guesses are kept is drawn. One line of JSON a row:
//   none      tokens a second without speculation, by batch
//   EAGLE     the same with chains of a head of one layer, and the ratio
//   accepted  EAGLE and the ratio by how many tokens come of a step, behind short prompts (not in `all`)
//   trees     EAGLE with trees of 4 branches and 8 tokens that are checked
//   adaptive  chains of up to 3 with --speculative-adaptive, right too seldom to pay, and often enough, beside none, by turns
//   free      the same with guesses that cost nothing, as NGRAM's almost do
//   NGRAM     the same with NGRAM's own look-ups, in texts that repeat themselves (`ngram`)
//   draft     what a pass of the head takes: steps with long chains less those with short ones
//   host      what the host takes between steps with drafts, and for how long the GPU waits for it
//   verify    16 and 64 nodes of a tree at 8192 tokens of context, beside a decode step there
// and, to trace or to compare flags, alone: eagle32 and ngram32, those chains at batch 32, verify64, a tree of 64 nodes,
// and kept32, chains at batch 32 with real weights and no dice, behind made-up prompts: for the tokens a step.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/log.h"
#include "engine/engine_impl.h"
#include "spec/ngram_proposer.h"

using namespace warpweave;
using Clock = std::chrono::steady_clock;

namespace {

constexpr double kAccepted = 3.0;  // tokens a step
constexpr int kSteps = 3;
constexpr int kTreeSteps = 5, kTreeBranches = 4, kTreeTokens = 8;  // what is resolved for Llama
constexpr double kSeldomAccepted = 1.2;
constexpr int kShortPrompt = 96;
constexpr int kPrompt = 1024, kNewTokens = 384;
constexpr int kSettlingTokens = 12;  // of a request: prompts' last step is over then
constexpr int kFirstToken = 8;
constexpr int kWords = 256;  // of a text that repeats itself
constexpr int kVerifyNodes[] = {16, 64}, kVerifyContext = 8192;

enum class Prompts : uint8_t { drawn,
                               repeating };

struct Setup {
  ServerArgs args;
  Prompts prompts = Prompts::drawn;
  std::string token_map;  // --speculative-token-map, for EAGLE
  Proposer* proposer = nullptr;
  int max_proposals = 0;
};

// From a few tokens behind the start of the last request to start to the end of the first to end.
struct Measured {
  double tokens_per_s = 0, step_ms = 0, tokens_a_step = 0;
  double gpu_ms = 0;  // of the target's forward
  double draft_ms = 0;  // the draft model's part of a step
  double guesses_a_step = 0;  // of a request
  double host_ms = 0;   // from a step's end, as the host knows it, until the next one is launched
};

// What a window begins and ends with.
struct Mark {
  Clock::time_point at;
  int64_t tokens = 0;
  StepTotals steps;
  SpeculationCounts guessed;
};

double gpu_ms_of(const StepTotals& totals) { return totals.device_ms - totals.draft_ms; }

StepTotals all_steps(const EngineStats& stats) {
  StepTotals out = stats.decode_steps;
  out.steps += stats.mixed_steps.steps;
  out.device_ms += stats.mixed_steps.device_ms;
  out.draft_ms += stats.mixed_steps.draft_ms;
  out.host_ms += stats.mixed_steps.host_ms;
  return out;
}

class Load {
 public:
  Load(Engine& engine, int batch, int prompt_tokens, Prompts prompts) : engine_(engine), batch_(batch) {
    std::mt19937 random(7);
    for (int i = 0; i < batch; ++i) {
      GenerateRequest request;
      request.rid = "r" + std::to_string(i);
      for (int k = 0; k < prompt_tokens; ++k) {
        const auto drawn = prompts == Prompts::drawn ? random() % (engine.info().vocab_size - 16) : (i + k) % kWords;
        request.input_ids.push_back(static_cast<int32_t>(drawn) + kFirstToken);
      }
      request.sampling.temperature = 0;
      request.sampling.max_new_tokens = kNewTokens;
      request.sampling.ignore_eos = true;
      request.stream = true;
      const Status status = engine.submit(std::move(request), [this, first = true](const OutputDelta& delta) mutable {
        const std::lock_guard lock(mutex_);
        started_ += std::exchange(first, false);
        tokens_ += static_cast<int64_t>(delta.token_ids.size());
        finished_ += delta.finish.has_value();
        changed_.notify_all();
      });
      if (!status.ok()) fail(status);
    }
  }

  Measured run() {
    mark([&] { return started_ == batch_; });
    const int64_t settled = tokens_now() + int64_t{kSettlingTokens} * batch_;
    const Mark begin = mark([&] { return tokens_ >= settled || finished_ > 0; });
    if (begin.tokens < settled) fail(Status::internal("a request ended before all had settled: nothing is measured"));
    const Mark end = mark([&] { return finished_ > 0; });
    mark([&] { return finished_ == batch_; });
    const double s = std::chrono::duration<double>(end.at - begin.at).count();
    const auto steps = static_cast<double>(end.steps.steps - begin.steps.steps);
    const auto tokens = static_cast<double>(end.tokens - begin.tokens);
    const auto rows = static_cast<double>(end.guessed.verify_steps - begin.guessed.verify_steps);
    const auto guesses = static_cast<double>(end.guessed.draft_tokens - begin.guessed.draft_tokens);
    return {.tokens_per_s = tokens / s,
            .step_ms = s * 1e3 / steps,
            .tokens_a_step = tokens / steps / batch_,
            .gpu_ms = (gpu_ms_of(end.steps) - gpu_ms_of(begin.steps)) / steps,
            .draft_ms = (end.steps.draft_ms - begin.steps.draft_ms) / steps,
            .guesses_a_step = rows > 0 ? guesses / rows : 0,
            .host_ms = (end.steps.host_ms - begin.steps.host_ms) / steps};
  }

  static void fail(const Status& status) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    std::exit(1);
  }

 private:
  int64_t tokens_now() {
    const std::lock_guard lock(mutex_);
    return tokens_;
  }

  template <typename When>
  Mark mark(When&& when) {
    Mark out;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, when);
      out.at = Clock::now();
      out.tokens = tokens_;
    }
    const EngineStats stats = engine_.stats();
    out.steps = all_steps(stats);
    out.guessed = stats.speculation.value_or(SpeculationCounts());
    return out;
  }

  Engine& engine_;
  const int batch_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int started_ = 0, finished_ = 0;
  int64_t tokens_ = 0;
};

// By batch, each the better of two.
std::map<int, Measured> measure(const Setup& setup, const std::vector<int>& batches, int prompt_tokens = kPrompt) {
  auto served = create_engine({.args = setup.args, .model_path = setup.args.model_path, .on_weights_progress = {},
                               .proposer = setup.proposer, .max_proposals = setup.max_proposals});
  if (!served.ok()) Load::fail(served.status());
  Load(*served->engine, 1, prompt_tokens, setup.prompts).run();
  std::map<int, Measured> out;
  for (const int batch : batches) {
    for (int i = 0; i < 2; ++i) {
      const Measured measured = Load(*served->engine, batch, prompt_tokens, setup.prompts).run();
      if (measured.tokens_per_s > out[batch].tokens_per_s) out[batch] = measured;
    }
  }
  return out;
}

// The share of right guesses at which chains of so many bring `accepted` tokens a step.
double share_for(double accepted, int steps) {
  double low = 0, high = 1;
  for (int i = 0; i < 50; ++i) {
    const double middle = (low + high) / 2;
    double tokens = 0;
    for (int k = 0; k <= steps; ++k) tokens += std::pow(middle, k);
    (tokens < accepted ? low : high) = middle;
  }
  return low;
}

// The same guesses always: a chain, or a tree in which every node has two children.
class SameGuesses : public Proposer {
 public:
  explicit SameGuesses(bool tree) : tree_(tree) {}
  void propose(const ProposalCall& call, Proposal& out) override {
    for (int node = 1; node <= call.max_tokens; ++node) {
      out.tokens.push_back(100 + node);
      if (tree_) out.parents.push_back((node - 1) / 2);
    }
  }

 private:
  const bool tree_;
};

// NGRAM's chains. What the made-up model chooses counts as one of the prompts' words, so that it is found in the text.
class FoundGuesses : public Proposer {
 public:
  FoundGuesses() : ngram_(chains()) {}
  void propose(const ProposalCall& call, Proposal& out) override {
    std::vector<int32_t>& said = said_[call.request];
    while (said.size() < call.output_ids.size()) {
      said.push_back((call.output_ids[said.size()] - kFirstToken + kWords) % kWords + kFirstToken);
    }
    ProposalCall in_words = call;
    in_words.output_ids = said;
    ngram_.propose(in_words, out);
  }
  void forget(uint64_t request) override {
    said_.erase(request);
    ngram_.forget(request);
  }
  void forget_all() override {
    said_.clear();
    ngram_.forget_all();
  }

 private:
  static NgramOptions chains() {
    NgramOptions out;
    out.max_breadth = 1;
    return out;
  }

  std::unordered_map<uint64_t, std::vector<int32_t>> said_;
  NgramProposer ngram_;
};

void print(const std::string& row, int batch, const Measured& of, double ratio) {
  fmt::print(
      "{{\"row\": \"{}, batch {}\", \"tokens_per_s\": {:.1f}, \"ratio\": {:.2f}, \"tokens_a_step\": {:.2f}, "
      "\"guesses_a_step\": {:.2f}, \"step_ms\": {:.3f}, \"draft_ms\": {:.3f}, \"host_ms\": {:.3f}, "
      "\"target_gpu_ms\": {:.3f}}}\n",
      row, batch, of.tokens_per_s, ratio, of.tokens_a_step, of.guesses_a_step, of.step_ms, of.draft_ms, of.host_ms,
      of.gpu_ms);
  std::fflush(stdout);
}

Setup eagle(const Setup& plain, const std::string& head, int steps, double accepted) {
  Setup out = plain;
  out.args.speculative_algorithm = "EAGLE";
  out.args.speculative_draft_model_path = head;
  out.args.speculative_eagle_topk = 1;
  out.args.speculative_num_steps = steps;
  out.args.speculative_token_map = plain.token_map;
  out.args.acceptance_dice = share_for(accepted, steps);
  return out;
}

void ngram(const Setup& plain, const std::vector<int>& batches) {
  FoundGuesses found;
  Setup setup = plain;
  setup.prompts = Prompts::repeating;
  setup.proposer = &found;
  setup.max_proposals = kSteps;
  setup.args.acceptance_dice = share_for(kAccepted, kSteps);
  for (const auto& [batch, of] : measure(setup, batches)) print(fmt::format("NGRAM, {} guesses", kSteps), batch, of, 1);
}

void serving(const Setup& plain, const std::string& head, const std::vector<int>& batches) {
  const std::map<int, Measured> none = measure(plain, batches);
  for (const auto& [batch, of] : none) print("none", batch, of, 1);
  for (const auto& [batch, of] : measure(eagle(plain, head, kSteps, kAccepted), batches)) {
    print(fmt::format("EAGLE, {} steps", kSteps), batch, of, of.tokens_per_s / none.at(batch).tokens_per_s);
  }
  SameGuesses chain(false);
  Setup free = plain;
  free.proposer = &chain;
  free.max_proposals = kSteps;
  free.args.acceptance_dice = share_for(kAccepted, kSteps);
  for (const auto& [batch, of] : measure(free, batches)) {
    print(fmt::format("free, {} guesses", kSteps), batch, of, of.tokens_per_s / none.at(batch).tokens_per_s);
  }
}

// Rows for tools/plot_speculation.py.
void by_acceptance(const Setup& plain, const std::string& head) {
  const std::vector<int> batches = {1, 32, 128};
  const std::map<int, Measured> none = measure(plain, batches, kShortPrompt);
  for (const double accepted : {1.5, 2.0, 2.5, 3.0, 3.5}) {
    for (const auto& [batch, of] : measure(eagle(plain, head, kSteps, accepted), batches, kShortPrompt)) {
      fmt::print(
          "{{\"flags\": \"--speculative-algorithm EAGLE --speculative-num-steps {}\", \"batch\": {}, \"accept_length\": {:.3f}, "
          "\"speed_up\": {:.3f}}}\n",
          kSteps, batch, of.tokens_a_step, of.tokens_per_s / none.at(batch).tokens_per_s);
      std::fflush(stdout);
    }
  }
}

// What the host takes between steps, and how long the GPU has nothing to do for it.
void host(const Setup& plain, const std::string& head) {
  for (const auto& [batch, of] : measure(eagle(plain, head, kSteps, kAccepted), {1, 64})) {
    fmt::print(
        "{{\"row\": \"host, batch {}\", \"host_us\": {:.0f}, \"gpu_idle_us\": {:.0f}, \"step_ms\": {:.3f}, "
        "\"draft_ms\": {:.3f}, \"target_gpu_ms\": {:.3f}}}\n",
        batch, of.host_ms * 1e3, (of.step_ms - of.draft_ms - of.gpu_ms) * 1e3, of.step_ms, of.draft_ms, of.gpu_ms);
    std::fflush(stdout);
  }
}

void trees(const Setup& plain, const std::string& head) {
  Setup setup = eagle(plain, head, kTreeSteps, kAccepted);
  setup.args.speculative_eagle_topk = kTreeBranches;
  setup.args.speculative_num_draft_tokens = kTreeTokens;
  for (const auto& [batch, of] : measure(setup, {1, 32})) {
    fmt::print("{{\"row\": \"trees, batch {}\", \"tokens_per_s\": {:.1f}, \"tokens_a_step\": {:.2f}, "
               "\"step_ms\": {:.3f}, \"target_gpu_ms\": {:.3f}}}\n",
               batch, of.tokens_per_s, of.tokens_a_step, of.step_ms, of.gpu_ms);
    std::fflush(stdout);
  }
}

// Two rounds of each, for the first one is where it learns.
void adaptive(const Setup& plain, const std::string& head) {
  const std::vector<int> batches = {1, 4, 32};
  for (const double accepted : {kSeldomAccepted, kAccepted}) {
    Setup setup = eagle(plain, head, kSteps, accepted);
    setup.args.speculative_adaptive = true;
    const std::map<int, Measured> none = measure(plain, batches, kShortPrompt);
    for (const auto& [batch, of] : measure(setup, batches, kShortPrompt)) {
      print(fmt::format("adaptive, {} tokens a step by {} guesses", accepted, kSteps), batch, of,
            of.tokens_per_s / none.at(batch).tokens_per_s);
    }
  }
}

void draft_pass(const Setup& plain, const std::string& head) {
  constexpr int kShort = 2, kLong = 10;
  const std::vector<int> batches = {1, 64};
  const auto brief = measure(eagle(plain, head, kShort, 1), batches), longer = measure(eagle(plain, head, kLong, 1), batches);
  for (const int batch : batches) {
    const Measured &a = brief.at(batch), &b = longer.at(batch);
    const double ms = (b.step_ms - a.step_ms - (b.gpu_ms - a.gpu_ms)) / (kLong - kShort);
    fmt::print("{{\"row\": \"draft pass, batch {}\", \"ms\": {:.3f}, \"step_ms\": [{:.3f}, {:.3f}], \"target_gpu_ms\": [{:.3f}, {:.3f}]}}\n",
               batch, ms, a.step_ms, b.step_ms, a.gpu_ms, b.gpu_ms);
    std::fflush(stdout);
  }
}

Measured verify_of(const Setup& plain, int nodes) {
  SameGuesses tree(true);
  Setup setup = plain;
  setup.proposer = &tree;
  setup.max_proposals = nodes - 1;
  setup.args.acceptance_dice = 0;
  return measure(setup, {1}, kVerifyContext).at(1);
}

// `what` is a row's name and a number.
void alone(const Setup& plain, const std::string& head, const std::string& what) {
  const auto number = [&](std::string_view name) {
    return what.starts_with(name) ? std::atoi(what.c_str() + name.size()) : 0;
  };
  if (const int batch = number("eagle"); batch > 0) {
    print("EAGLE alone", batch, measure(eagle(plain, head, kSteps, kAccepted), {batch}).at(batch), 1);
  }
  if (const int batch = number("ngram"); batch > 0) ngram(plain, {batch});
  if (const int batch = number("kept"); batch > 0) {
    Setup real = eagle(plain, head, kSteps, kAccepted);
    real.args.load_format = "auto";
    real.args.acceptance_dice.reset();
    print("kept", batch, measure(real, {batch}, kShortPrompt).at(batch), 1);
  }
  if (const int nodes = number("verify"); nodes > 0) print("verify alone", nodes, verify_of(plain, nodes), 1);
}

void verify(const Setup& plain) {
  const Measured decode = measure(plain, {1}, kVerifyContext).at(1);
  for (const int nodes : kVerifyNodes) {
    const Measured of = verify_of(plain, nodes);
    fmt::print("{{\"row\": \"verify of {} nodes at {} tokens, batch 1\", \"gpu_ms\": {:.3f}, \"decode_gpu_ms\": {:.3f}, "
               "\"ratio\": {:.3f}, \"step_ms\": {:.3f}, \"decode_step_ms\": {:.3f}}}\n",
               nodes, kVerifyContext, of.gpu_ms, decode.gpu_ms, of.gpu_ms / decode.gpu_ms, of.step_ms, decode.step_ms);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: speculation_bench MODEL_SHAPE EAGLE_SHAPE [serving|accepted|ngram|trees|adaptive|draft|host|verify|all|eagleN|ngramN|verifyN|keptN] [flags of `serve`]\n");
    return 2;
  }
  const std::string what = argc > 3 ? argv[3] : "all";
  const std::vector<std::string> words(argv + std::min(argc, 4), argv + argc);
  auto flags = parse_flags(Command::serve, words);
  if (!flags.ok() || !init_log("warning").ok()) {
    std::fprintf(stderr, "%s\n", flags.status().message().c_str());
    return 2;
  }
  Setup plain;
  plain.args = flags->args;
  plain.token_map = std::exchange(plain.args.speculative_token_map, {});
  plain.args.model_path = argv[1];
  plain.args.load_format = "dummy";
  plain.args.skip_tokenizer_init = true;
  plain.args.device = "cuda";
  plain.args.disable_radix_cache = true;
  if (!plain.args.context_length) plain.args.context_length = 2 * kVerifyContext;
  if (what == "serving" || what == "all") serving(plain, argv[2], {1, 32, 128});
  if (what == "accepted") by_acceptance(plain, argv[2]);
  if (what == "ngram" || what == "all") ngram(plain, {1, 32, 128});
  if (what == "trees" || what == "all") trees(plain, argv[2]);
  if (what == "adaptive" || what == "all") adaptive(plain, argv[2]);
  if (what == "draft" || what == "all") draft_pass(plain, argv[2]);
  if (what == "host" || what == "all") host(plain, argv[2]);
  if (what == "verify" || what == "all") verify(plain);
  alone(plain, argv[2], what);
  return 0;
}
