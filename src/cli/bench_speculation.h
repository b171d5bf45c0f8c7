// warpweave bench spec: what speculative decoding gains on a text with a model, by algorithm, flags and batch size.
#pragma once

#include <string>
#include <vector>

#include "warpweave/status.h"

namespace CLI {
class App;
}

namespace warpweave {

struct SpeculationBench {
  std::string model_path, prompts, device = "auto", dtype = "auto", json;
  std::vector<std::string> draft_models;   // folders: EAGLE and EAGLE3 heads, or models of their own
  std::vector<std::string> candidates;     // flags of serve, a string each; empty: the usual ones
  std::vector<int> batch_sizes = {1};
  int threads = 0;                         // 0: all
  int num_prompts = 8, prompt_tokens = 96, repeats = 1, max_tokens = 128, rounds = 3;
};

void add_speculation_flags(CLI::App& app, SpeculationBench& bench);

// The flags of serve that are timed with a model, a folder or file: the candidates given, or the usual ones of each
// algorithm that it and the draft models can serve.
std::vector<std::string> speculation_candidates(const SpeculationBench& bench, const std::string& model_path);

// Prints a table for each batch size and the flags that were fastest; with `json` writes what the table says.
// `invalid_argument` where the text is too short; errors of the engine name the candidate's flags.
Status run_speculation_bench(const SpeculationBench& bench);

}  // namespace warpweave
