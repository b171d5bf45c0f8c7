// Both forms of latent prompts (model/layers/latent_prefill_plan.h), timed, and which one the program takes.
//
//   latent_forms_bench drawn FILE|- DIR HEADS[,HEADS] FORMAT[,FORMAT] SEED STEPS
//     So many steps for each number of heads and KV format, drawn: 1 to 16 prompts, half of the steps of prompts alike, of
//     8 to 2048 new tokens behind none or 64 to 32,768 cached ones. A line a step; then how many take a form that is more
//     than 3 % slower than the other one, by the tuning file or, with -, by the program's own table.
//   latent_forms_bench steps FILE|- DIR HEADS[,HEADS] FORMAT[,FORMAT] CACHED+NEW[,CACHED+NEW] ...
//     The same of these steps.
//   latent_forms_bench table DIR HEADS[,HEADS] FORMAT[,FORMAT]
//     What `warpweave tune` measures, as entries of latent_forms for src/attention/tuned.
//
// DIR: a model with latent attention (deepseek-v2-lite-shape), whose heads are replaced by so many.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "attention/tuning.h"
#include "base/log.h"
#include "cli/measure_latent.h"
#include "cli/model_facts.h"
#include "engine/latent_plan.h"
#include "engine/start_device.h"
#include "model/layers/latent_prefill_plan.h"

using namespace warpweave;

namespace {

template <typename T>
T taken(Result<T> result) {
  if (result.ok()) return std::move(*result);
  std::fprintf(stderr, "%s\n", result.status().message().c_str());
  std::exit(1);
}
void check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream in(list);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

// A model of so many heads, its cache in `format`.
struct Model {
  ModelConfig config;
  Resolved attention;
  HardwareFacts hardware;
  LatentFormShape shape;
};
Model model_of(const std::string& path, int heads, const std::string& format) {
  ServerArgs args;
  args.model_path = path;
  const ModelDescription description = taken(describe_model(args));
  ModelFacts facts = taken(description.facts);
  Model model = {.config = taken(description.config), .attention = {}, .hardware = {}, .shape = {}};
  model.config.num_q_heads = facts.num_q_heads = heads;
  model.hardware = taken(resolve_device("cuda"))->facts;
  AttentionFlags flags;
  flags.kv_cache_dtype = format;
  model.attention = taken(select_attention(model.hardware, facts, flags));
  model.shape = latent_form_shape(model.config, model.attention.kv_format);
  return model;
}

int drawn_by_log(std::mt19937& dice, int from, int to) {
  return static_cast<int>(std::lround(std::exp(std::uniform_real_distribution(std::log(from), std::log(to))(dice))));
}
LatentPrompt drawn_prompt(std::mt19937& dice) {
  const int prefix = dice() % 3 == 0 ? 0 : drawn_by_log(dice, 64, 32768);
  return {.new_tokens = drawn_by_log(dice, 8, 2048), .prefix = prefix};
}
LatentStep drawn_step(std::mt19937& dice) {
  constexpr int64_t kMostTokens = 8192, kMostPairs = int64_t{1} << 27;
  for (;;) {
    const int prompts = drawn_by_log(dice, 1, 16);
    LatentStep step(prompts, drawn_prompt(dice));
    if (dice() % 2 == 0) {
      for (LatentPrompt& prompt : step) prompt = drawn_prompt(dice);
    }
    int64_t tokens = 0, pairs = 0;
    for (const LatentPrompt& prompt : step) {
      tokens += prompt.new_tokens;
      pairs += int64_t{prompt.new_tokens} * prompt.prefix;
    }
    if (tokens <= kMostTokens && pairs <= kMostPairs) return step;
  }
}

bool expands(const Model& model, const LatentFormTimes& times, const LatentStep& step) {
  const LatentPrefillShape shape = {.num_heads = model.shape.num_heads,
                                    .rank = model.shape.kv_rank,
                                    .nope_dim = model.shape.nope_dim,
                                    .rope_dim = model.shape.rope_dim,
                                    .v_dim = model.shape.v_dim,
                                    .capacity_rows = 24576,
                                    .measured = &times};
  std::vector<int32_t> q_indptr = {0}, kv_lens;
  for (const LatentPrompt& prompt : step) {
    q_indptr.push_back(q_indptr.back() + prompt.new_tokens);
    kv_lens.push_back(prompt.prefix + prompt.new_tokens);
  }
  return plan_latent_prefill(shape, q_indptr, kv_lens).expands;
}

std::string text_of(const LatentStep& step) {
  std::string text;
  for (const LatentPrompt& prompt : step)
    text += fmt::format("{}{}+{}", text.empty() ? "" : ",", prompt.prefix, prompt.new_tokens);
  return text;
}

struct Tally {
  int steps = 0, slower = 0;
  double worst = 1, all_us = 0, best_us = 0;
};

std::vector<LatentStep> drawn_steps(std::mt19937& dice, int count) {
  std::vector<LatentStep> steps;
  for (int i = 0; i < count; ++i) steps.push_back(drawn_step(dice));
  return steps;
}

LatentStep step_from(const std::string& text) {
  LatentStep step;
  for (const std::string& prompt : split(text)) {
    const size_t plus = prompt.find('+');
    step.push_back({.new_tokens = std::stoi(prompt.substr(plus + 1)), .prefix = std::stoi(prompt.substr(0, plus))});
  }
  return step;
}

void run_steps(const Model& model, const TuningTable& table, const std::vector<LatentStep>& steps, Tally& tally) {
  const LatentFormTimes times = table.latent_forms(model.hardware, model.shape).times;
  const LatentMeasurement asked = {.config = model.config, .attention = model.attention};
  check(measure_latent_steps(asked, steps, [&](size_t i, const LatentFormTimes::Pair& pair) {
    const bool expanded = expands(model, times, steps[i]);
    const double took = expanded ? pair.expanded_us : pair.absorbed_us;
    const double best = std::min(pair.expanded_us, pair.absorbed_us);
    ++tally.steps;
    tally.slower += took > 1.03 * best;
    tally.worst = std::max(tally.worst, took / best);
    tally.all_us += took;
    tally.best_us += best;
    std::printf("%d %s %.1f %.1f %s%s %s\n", model.shape.num_heads,
                std::string(kv_format_name(model.shape.kv_format)).c_str(), pair.absorbed_us, pair.expanded_us,
                expanded ? "expanded" : "absorbed", took > 1.03 * best ? "!" : "", text_of(steps[i]).c_str());
  }));
}

void print_table(const Model& model) {
  const std::vector<LatentFormPoint> points = latent_points(model.config.max_position_embeddings);
  std::vector<LatentStep> steps;
  for (const LatentFormPoint& p : points) steps.push_back(LatentStep(p.requests, {p.new_tokens, p.prefix}));
  const LatentFormShape& s = model.shape;
  std::printf("{\"num_heads\": %d, \"kv_rank\": %d, \"nope_dim\": %d, \"rope_dim\": %d, \"v_dim\": %d, ", s.num_heads,
              s.kv_rank, s.nope_dim, s.rope_dim, s.v_dim);
  std::printf("\"kv_format\": \"%s\", \"date\": \"%s\", \"points\": [", std::string(kv_format_name(s.kv_format)).c_str(),
              fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr))).c_str());
  const LatentMeasurement asked = {.config = model.config, .attention = model.attention};
  check(measure_latent_steps(asked, steps, [&](size_t i, const LatentFormTimes::Pair& pair) {
    const LatentFormPoint& p = points[i];
    const bool row = i == 0 || points[i - 1].new_tokens != p.new_tokens;  // of the file
    std::printf("%s%s[%d, %d, %d, %.1f, %.1f]", i == 0 ? "" : ",", row ? "\n" : " ", p.requests, p.new_tokens, p.prefix,
                pair.absorbed_us, pair.expanded_us);
  }));
  std::printf("]}\n");
}

int usage() {
  std::fprintf(stderr,
               "latent_forms_bench drawn FILE|- DIR HEADS FORMATS SEED STEPS, steps FILE|- DIR HEADS FORMATS "
               "CACHED+NEW,... ..., or table DIR HEADS FORMATS\n");
  return 2;
}

// Hands the models of all these heads and formats to `each`.
template <typename Each>
void for_models(const std::string& path, const std::string& heads, const std::string& formats, Each&& each) {
  for (const std::string& format : split(formats)) {
    for (const std::string& number : split(heads)) each(model_of(path, std::stoi(number), format));
  }
}

}  // namespace

int main(int argc, char** argv) {
  check(init_log("warning"));
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  const std::vector<std::string> args(argv + 1, argv + argc);
  if (args.size() == 4 && args[0] == "table") {
    for_models(args[1], args[2], args[3], print_table);
    return 0;
  }
  const bool drawn = args.size() == 7 && args[0] == "drawn";
  if (!drawn && !(args.size() > 5 && args[0] == "steps")) return usage();
  std::optional<TuningTable> file;
  if (args[1] != "-") file = taken(TuningTable::read(args[1]));
  std::mt19937 dice(drawn ? std::stoul(args[5]) : 0);
  std::vector<LatentStep> given;
  for (size_t i = 5; !drawn && i < args.size(); ++i) given.push_back(step_from(args[i]));
  Tally tally;
  for_models(args[2], args[3], args[4], [&](const Model& model) {
    const TuningTable* const own = builtin_tuning(model.hardware.name);
    const TuningTable none;
    const std::vector<LatentStep> steps = drawn ? drawn_steps(dice, std::stoi(args[6])) : given;
    run_steps(model, file ? *file : own != nullptr ? *own
                                                   : none,
              steps, tally);
  });
  std::printf("%d steps, %d of them more than 3 %% slower than the other form, at most %.1f %%; all together %.2f %%\n",
              tally.steps, tally.slower, 100 * (tally.worst - 1), 100 * (tally.all_us / tally.best_us - 1));
  return 0;
}
