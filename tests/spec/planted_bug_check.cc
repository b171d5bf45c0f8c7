// What speculation must keep, checked in a few seconds: the texts of all kinds of requests, and how many guesses are
// right.
//
//   planted_bug_check [--expect-failure]     succeeds when all is kept; or, for planted bugs, when something is not
//
// In float32 texts are equal to the last token. Drafts of a model that is the target itself are all right, and those of
// models/tale-eagle as often as measured on sound code: a bug in what drafts read makes them wrong, never the text.
#include <cstdio>
#include <string>
#include <vector>

#include "ask_tale.h"

namespace {

using namespace warpweave;
using namespace warpweave::speculation;

struct Setting {
  const char* algorithm;
  const char* draft_model;
  int topk;
  int page_size;
  double least_accepted;  // tokens a step
};
// Three steps each; measured on sound code: 1.912, 1.934, 2.854, 2.947, 1.701, 2.062. Requests that end, and grammars,
// cost some.
constexpr Setting kSettings[] = {{"EAGLE", "models/tale-eagle", 1, 16, 1.88},
                                 {"EAGLE", "models/tale-eagle", 4, 16, 1.90},
                                 {"STANDALONE", "models/tale-llama", 1, 16, 2.80},
                                 {"STANDALONE", "models/tale-llama", 4, 1, 2.89},
                                 {"STANDALONE", "models/tale-draft", 1, 16, 1.68},
                                 {"NGRAM", "", 4, 1, 1.0}};

ServerArgs args_of(const Setting* setting) {
  ServerArgs args;
  args.threads = 1;
  args.dtype = "float32";
  args.max_total_tokens = 4096;
  args.chunked_prefill_size = 32;
  if (setting == nullptr) return args;
  args.page_size = setting->page_size;
  args.speculative_algorithm = setting->algorithm;
  args.speculative_eagle_topk = setting->topk;
  args.speculative_draft_model_path = setting->draft_model;
  if (args.speculative_draft_model_path.empty()) return args;
  args.speculative_num_steps = 3;
  if (setting->topk > 1) args.speculative_num_draft_tokens = 13;
  return args;
}

bool same(const std::vector<Answer>& got, const std::vector<Answer>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (got[i].ids != expected[i].ids || got[i].text != expected[i].text || !got[i].finish.error.ok()) return false;
  }
  return true;
}

// Whether all is kept; says what is not.
bool keeps(const Setting& setting, const std::vector<GenerateRequest>& asked, const std::vector<Answer>& expected) {
  ServedModel served = serve(args_of(&setting));
  bool right = true;
  for (const char* cache : {"cold", "warm"}) {
    if (same(ask(served, asked), expected)) continue;
    std::printf("%s topk %d: other texts, %s cache\n", setting.algorithm, setting.topk, cache);
    right = false;
  }
  const double accepted = served.engine->stats().speculation->accept_length();
  std::printf("%s %s topk %d: %.3f tokens a step\n", setting.algorithm, setting.draft_model, setting.topk, accepted);
  return right && accepted >= setting.least_accepted;
}

}  // namespace

int main(int argc, char** argv) {
  const bool expects_failure = argc > 1 && std::string(argv[1]) == "--expect-failure";
  ServedModel plain = serve(args_of(nullptr));
  const std::vector<GenerateRequest> asked = questions(plain);
  const std::vector<Answer> expected = ask(plain, asked);
  bool right = true;
  for (const Setting& setting : kSettings) {
    right &= keeps(setting, asked, expected);
    if (!right && expects_failure) break;
  }
  return right == expects_failure ? 1 : 0;
}
