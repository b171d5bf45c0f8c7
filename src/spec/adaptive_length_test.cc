// The planned lengths on made-up traffic: never 3 % slower than without guesses, and close to the best fixed length.
#include "spec/adaptive_length.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace warpweave {
namespace {

constexpr int kLongest = 6;

// A machine, and texts whose guesses come true as often as said.
struct Traffic {
  double plain_us = 1000, keep_us = 40, level_us = 50, guess_us = 60;
  double us_per_request = 20;         // of plain
  double wait_us = 40;                // of a step that does not overlap, for some request may guess
  double right = 0.6, right_later = -1;  // from half of each text on, if not negative
  int requests = 200, batch = 1, tokens = 128;
  double interrupted = 0;             // share of steps that take three times as long: a busy machine
  double slower = 0;                  // by up to so much is each step, for others use the caches, too
  int cold_steps = 0;                 // first ones that take three times as long
  double unsure_right = -1;           // if not negative: of every other step's guesses, and the draft model says so
};

class Server {
 public:
  // fixed: that many guesses always; -1: adaptive; 0: no speculation at all.
  Server(const Traffic& traffic, int fixed) : traffic_(traffic), fixed_(fixed) {}

  // Tokens a microsecond.
  double run() {
    double time = 0, all = 0;
    int left = traffic_.requests;
    std::vector<Text> running;
    while (left > 0 || !running.empty()) {
      while (left > 0 && static_cast<int>(running.size()) < traffic_.batch) {
        running.push_back({.state = length_.begin(static_cast<int>(running.size()) + 1)});
        --left;
      }
      time += step(running, all);
      std::erase_if(running, [&](const Text& text) { return text.tokens >= traffic_.tokens; });
    }
    return all / time;
  }

 private:
  struct Text {
    LengthState state;
    int tokens = 0, last = 0;  // all, and of the last step
  };

  double step(std::vector<Text>& running, double& all) {
    std::vector<LengthState*> states;
    for (Text& text : running) {
      if (traffic_.unsure_right >= 0) text.state.first = random_() % 2 == 0 ? traffic_.right : traffic_.unsure_right;
      states.push_back(&text.state);
    }
    if (fixed_ < 0) length_.wake(states);
    const bool waits = fixed_ > 0 || (fixed_ < 0 && std::any_of(states.begin(), states.end(), [](auto* state) {
                         return !state->asleep;
                       }));
    length_.plan(states, static_cast<int>(running.size()), kLongest);
    DraftedStep done = {.requests = static_cast<int>(running.size())};
    bool follows = fixed_ > 0;
    for (Text& text : running) {
      const int length = fixed_ < 0 ? text.state.length : fixed_;
      follows |= fixed_ < 0 && !text.state.asleep;
      const bool later = traffic_.right_later >= 0 && text.tokens * 2 > traffic_.tokens;
      std::bernoulli_distribution right(later ? traffic_.right_later
                                        : text.state.first >= 0 ? text.state.first : traffic_.right);
      int accepted = 0;
      while (accepted < length && right(random_)) ++accepted;
      length_.outcome(text.state, length, accepted);
      text.last = accepted + 1;
      text.tokens += accepted + 1;
      all += accepted + 1;
      done.guesses += length;
      done.levels = std::max(done.levels, length);
    }
    done.tokens =
        std::accumulate(running.begin(), running.end(), 0, [](int sum, const Text& text) { return sum + text.last; });
    done.follows = follows;
    done.draft_us = (follows ? traffic_.keep_us : 0) + done.levels * traffic_.level_us;
    done.step_us =
        traffic_.plain_us + traffic_.us_per_request * done.requests + done.guesses * traffic_.guess_us + done.draft_us;
    const double noise = std::normal_distribution<double>(1, 0.03)(random_);
    const bool interrupted = std::bernoulli_distribution(traffic_.interrupted)(random_);
    const double shared = 1 + std::uniform_real_distribution<double>(0, 1)(random_) * traffic_.slower;
    const double slowed = noise * shared * (interrupted ? 3 : 1) * (steps_++ < traffic_.cold_steps ? 3 : 1);
    done.step_us *= slowed;
    done.draft_us *= slowed;
    done.waited_us = waits ? traffic_.wait_us * slowed : 0;
    length_.measured(done);
    return done.step_us + done.waited_us;
  }

  const Traffic traffic_;
  const int fixed_;
  AdaptiveLength length_{{.max_length = kLongest}};
  std::mt19937 random_{11};
  int steps_ = 0;
};

double best_fixed(const Traffic& traffic) {
  double best = 0;
  for (int length = 0; length <= kLongest; ++length) best = std::max(best, Server(traffic, length).run());
  return best;
}

TEST(AdaptiveLength, NeverLosesThreePercent) {
  for (const double right : {0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0}) {
    for (const int batch : {1, 2, 7, 32}) {
      for (const double cost : {0.2, 1.0, 4.0, 12.0}) {  // times the usual one
        Traffic traffic;
        traffic.right = right;
        traffic.batch = batch;
        traffic.keep_us *= cost;
        traffic.level_us *= cost;
        traffic.guess_us *= cost;
        traffic.requests = 100 * batch;
        const double without = Server(traffic, 0).run();
        EXPECT_GT(Server(traffic, -1).run(), 0.97 * without)
            << "right " << right << " batch " << batch << " cost " << cost;
      }
    }
  }
}

// Also where other programs take the machine now and then, and where the first steps are slow.
TEST(AdaptiveLength, IsNotFooledByABusyMachine) {
  for (const double right : {0.2, 0.5, 0.7}) {
    for (const int batch : {1, 4, 16}) {
      for (const double cost : {1.0, 3.0, 6.0}) {
        Traffic traffic = {
            .right = right, .requests = 100 * batch, .batch = batch, .interrupted = 0.1, .cold_steps = 8};
        traffic.keep_us *= cost;
        traffic.level_us *= cost;
        traffic.guess_us *= cost;
        const double without = Server(traffic, 0).run();
        EXPECT_GT(Server(traffic, -1).run(), 0.96 * without)
            << "right " << right << " batch " << batch << " cost " << cost;
      }
    }
  }
}

// Steps of all lengths vary alike where other programs use the caches: that must not make guesses look dear.
TEST(AdaptiveLength, FindsWhatPaysWhereStepsVary) {
  for (const double slower : {0.3, 1.0}) {
    const Traffic traffic = {.plain_us = 300, .keep_us = 60, .level_us = 40, .guess_us = 15, .us_per_request = 0,
                             .wait_us = 30, .right = 0.68, .requests = 400, .slower = slower};
    EXPECT_GT(Server(traffic, -1).run(), 0.92 * best_fixed(traffic)) << slower;
    EXPECT_GT(best_fixed(traffic), 1.2 * Server(traffic, 0).run());
  }
}

TEST(AdaptiveLength, ComesCloseToTheBestFixedLength) {
  for (const double right : {0.3, 0.5, 0.7, 0.9}) {
    for (const double cost : {0.2, 1.0, 2.0}) {
      Traffic traffic;
      traffic.right = right;
      traffic.keep_us *= cost;
      traffic.level_us *= cost;
      traffic.guess_us *= cost;
      EXPECT_GT(Server(traffic, -1).run(), 0.92 * best_fixed(traffic)) << "right " << right << " cost " << cost;
    }
  }
}

// Texts whose second halves nobody guesses, and the other way round.
TEST(AdaptiveLength, FollowsTextsThatChange) {
  Traffic traffic = {.right = 0.9, .right_later = 0.0, .tokens = 600};
  const double falling = Server(traffic, -1).run();
  EXPECT_GT(falling, 0.97 * Server(traffic, 0).run());
  EXPECT_GT(falling, 0.92 * best_fixed(traffic));
  traffic.right_later = 0.5;
  EXPECT_GT(Server(traffic, -1).run(), 0.92 * best_fixed(traffic));
}

// Where the draft model knows when it is right, chains are long there and short elsewhere: no fixed length is as good.
// In a batch all wait for the longest chain.
TEST(AdaptiveLength, GoesByHowSureTheDraftModelIs) {
  for (const auto& [batch, gain] : {std::pair(1, 1.05), {4, 0.88}}) {
    Traffic traffic = {.right = 0.9, .batch = batch, .unsure_right = 0.1};
    traffic.level_us = 150;
    EXPECT_GT(Server(traffic, -1).run(), gain * best_fixed(traffic)) << batch;
    traffic.right = 0.2;
    EXPECT_GT(Server(traffic, -1).run(), 0.97 * Server(traffic, 0).run()) << batch;
  }
}

// Where all requests of a batch end at once, the next ones come to an empty server, where guesses pay; beside the others
// they do not, and are not tried anew by each.
TEST(AdaptiveLength, DoesNotTryAnewWithEachBurstOfRequests) {
  Traffic traffic = {.plain_us = 250, .level_us = 80, .guess_us = 70, .us_per_request = 30, .right = 0.5, .batch = 16};
  traffic.requests = 40 * traffic.batch;
  traffic.tokens = 64;
  EXPECT_GT(Server(traffic, -1).run(), 0.98 * Server(traffic, 0).run());
}

// Where none of those that were woken to try found that guesses pay, the next ones come later. (tale-llama on a CPU.)
TEST(AdaptiveLength, TriesSeldomWhereThatWasInVain) {
  const Traffic traffic = {.plain_us = 410, .keep_us = 63, .level_us = 40, .guess_us = 100, .us_per_request = 8,
                           .wait_us = 23, .right = 0.4, .requests = 800, .batch = 4};
  EXPECT_GT(Server(traffic, -1).run(), 0.995 * Server(traffic, 0).run());
}

// In one batch a request with right guesses guesses on beside one whose never are.
TEST(AdaptiveLength, IsOfEachRequest) {
  AdaptiveLength length({.max_length = 4});
  LengthState good = length.begin(2), bad = length.begin(2);
  LengthState* const both[] = {&good, &bad};
  for (int i = 0; i < 60; ++i) {
    length.plan(both, 2, 4);
    const int guesses = good.length + bad.length, levels = std::max(good.length, bad.length);
    length.measured({.requests = 2,
                     .guesses = guesses,
                     .levels = levels,
                     .tokens = 2 + good.length,
                     .follows = true,
                     .step_us = 1100.0 + 60 * guesses + 50 * levels,
                     .draft_us = 40.0 + 50 * levels});
    length.outcome(good, good.length, good.length);
    length.outcome(bad, bad.length, 0);
  }
  length.plan(both, 2, 4);
  EXPECT_EQ(good.length, 4);
  EXPECT_EQ(bad.length, 0);
  EXPECT_TRUE(bad.asleep);
  EXPECT_FALSE(good.asleep);
}

// The first pass of a head that has to be read from memory costs ten times what it does later.
TEST(AdaptiveLength, ForgetsAPassThatWasSlowOnce) {
  AdaptiveLength length({.max_length = 4, .knows_first = true});
  LengthState state = length.begin(1);
  LengthState* const states[] = {&state};
  int passes = 0;
  for (int step = 0; step < 400; ++step) {
    state.first = 0.8;
    length.wake(states);
    length.plan(states, 1, 4);
    DraftedStep done = {.requests = 1, .guesses = state.length, .levels = state.length, .tokens = 1 + state.length,
                        .follows = !state.asleep};
    done.draft_us = done.follows ? 60 : 0;
    for (int pass = 1; pass < state.length; ++pass) done.draft_us += passes++ == 0 ? 400 : 40;
    done.step_us = 300 + done.draft_us + 10 * state.length;
    length.outcome(state, state.length, state.length);
    length.measured(done);
  }
  EXPECT_GT(state.length, 1);
  EXPECT_GT(passes, 100);
}

// Steps of decode in which half of the guesses come true.
void decode(AdaptiveLength& length, const std::vector<LengthState*>& states, int steps, double guess_us) {
  const auto requests = static_cast<int>(states.size());
  for (int step = 0; step < steps; ++step) {
    length.wake(states);
    const bool follows = std::any_of(states.begin(), states.end(), [](auto* state) { return !state->asleep; });
    length.plan(states, requests, 4);
    DraftedStep done = {.requests = requests, .tokens = requests, .follows = follows};
    for (LengthState* state : states) {
      const int accepted = step % 2 == 0 ? state->length : 0;
      length.outcome(*state, state->length, accepted);
      done.guesses += state->length;
      done.levels = std::max(done.levels, state->length);
      done.tokens += accepted;
    }
    done.draft_us = follows ? 20 : 0;
    done.step_us = 500 + done.draft_us + guess_us * done.guesses;
    length.measured(done);
  }
}

// What sleeps because many decode guesses again when few do, and only what was shown the text.
TEST(AdaptiveLength, WakesWhereFewerDecode) {
  AdaptiveLength length({.max_length = 4, .knows_first = true});
  std::vector<LengthState> all;
  for (int i = 0; i < 16; ++i) all.push_back(length.begin(16));
  std::vector<LengthState*> states;
  for (LengthState& state : all) {
    state.first = 0.5;
    states.push_back(&state);
  }
  decode(length, states, 100, 400);
  for (const LengthState& state : all) EXPECT_TRUE(state.asleep);
  all[0].first = -1;
  decode(length, {&all[0]}, 8, 10);
  EXPECT_FALSE(all[0].asleep);
  EXPECT_EQ(all[0].length, 0) << "the draft model has not said anything yet";
  all[0].first = 0.5;
  decode(length, {&all[0]}, 60, 10);
  EXPECT_FALSE(all[0].asleep);
  EXPECT_GT(all[0].length, 0);
  decode(length, states, 100, 400);
  EXPECT_TRUE(all[0].asleep);
}

}  // namespace
}  // namespace warpweave
