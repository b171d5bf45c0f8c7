// What speculation must keep of the states of recurrent layers, checked in a second: texts of steps that accept some of
// what was proposed, and of prompts that go on from checkpoints which such steps left.
//
//   state_bug_check [--expect-failure]     succeeds when all is kept; or, for planted bugs, when something is not
#include <cstdio>
#include <string>
#include <vector>

#include "base/log.h"
#include "engine/testing/dice_proposer.h"
#include "engine/testing/serving_device.h"

namespace {

using namespace warpweave;

constexpr int kProposals = 5;

ServedModel serve(Proposer* proposer) {
  ServerArgs args;
  serve_on_test_device(args);
  args.model_path = "tests/golden/families/qwen3-next";
  args.skip_tokenizer_init = true;
  args.threads = 1;
  args.max_total_tokens = 2048;
  args.max_running_requests = 8;
  args.max_mamba_cache_size = 64;
  args.mamba_track_interval = 16;
  args.disable_radix_cache = proposer == nullptr;
  auto served = create_engine({.args = args, .model_path = args.model_path, .on_weights_progress = {},
                               .proposer = proposer, .max_proposals = proposer == nullptr ? 0 : kProposals});
  if (!served.ok()) std::fprintf(stderr, "%s\n", served.status().message().c_str());
  return served.ok() ? std::move(served).value() : ServedModel();
}

bool keeps(bool trees, ServedModel& plain) {
  std::vector<Ids> prompts, turns;
  for (int i = 0; i < 5; ++i) prompts.push_back(some_ids(7 + 5 * i, i));
  const auto expected = ask(plain, prompts, 40);
  DiceProposer proposer;
  proposer.trees = trees;
  for (size_t i = 0; i < prompts.size(); ++i) {
    proposer.known[prompts[i]] = expected[i].ids;
    turns.push_back(joined(joined(prompts[i], expected[i].ids), some_ids(2, 40 + static_cast<int>(i))));
  }
  ServedModel served = serve(&proposer);
  const bool same = ask(served, prompts, 40) == expected;
  const auto answers = ask(served, turns, 12);
  const bool goes_on = answers == ask(plain, turns, 12);
  bool cached = true;  // else no checkpoint was tried
  for (size_t i = 0; i < turns.size(); ++i)
    cached &= answers[i].cached_tokens > static_cast<int>(prompts[i].size()) + 20;
  std::printf("%s: texts %s, next turns %s, %s\n", trees ? "trees" : "chains", same ? "are kept" : "CHANGED",
              goes_on ? "too" : "CHANGED", cached ? "from checkpoints" : "WITHOUT CHECKPOINTS");
  return same && goes_on && cached && proposer.proposed > 100;
}

}  // namespace

int main(int argc, char** argv) {
  const bool expects_failure = argc > 1 && std::string(argv[1]) == "--expect-failure";
  if (!init_log("error").ok()) return 2;
  ServedModel plain = serve(nullptr);
  if (plain.engine == nullptr) return 2;
  const bool right = keeps(false, plain) && keeps(true, plain);
  return right == expects_failure ? 1 : 0;
}
