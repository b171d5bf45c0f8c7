#include "sim.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <stdexcept>
#include <vector>

#include "batch/batch_builder.h"
#include "decisions.h"
#include "fake_model.h"
#include "fake_states.h"
#include "scenario.h"

namespace warpweave::sim {
namespace {

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

#define CHECK_SIM(condition, what) \
  do {                             \
    if (!(condition)) throw Failure(std::string(what) + " [" #condition "]"); \
  } while (0)

struct Live {
  bool accepted = false;
  bool answered = false;
  bool released = false;
  int outputs = 0;
  std::vector<uint8_t> logits_seen;  // by prompt position
};

// A step between schedule() and commit().
struct Pending {
  const Step* step = nullptr;
  int builder = 0;
  std::vector<Proposal> proposals;  // by row
};

class World {
 public:
  World(uint64_t seed, bool trace)
      : rng_(seed),
        scenario_(make_scenario(rng_)),
        trace_(trace),
        scheduler_(scenario_.config),
        num_groups_(static_cast<int>(scenario_.config.cache_groups.size())),
        blank_page_(scenario_.config.num_pages),
        kv_(scenario_.config.num_pages + 1, scenario_.config.page_size),
        builders_{BatchBuilder({scenario_.config.page_size, num_groups_, blank_page_}),
                  BatchBuilder({scenario_.config.page_size, num_groups_, blank_page_})},
        states_(scenario_.config.state_slots),
        live_(scenario_.clients.size()) {}

  Outcome run() {
    try {
      CHECK_SIM(Scheduler::validate(scenario_.config).ok(), "a valid configuration is refused");
      while (next_client_ < scenario_.clients.size() || !scheduler_.idle()) iterate();
      check_idle();
    } catch (const Failure& failure) {
      outcome_.error = failure.what();
    }
    const SchedulerStats stats = scheduler_.stats();
    outcome_.retractions = static_cast<int64_t>(stats.retracted_reqs_total);
    if (!states_.empty() && scenario_.config.state_cut_tokens > 1 && outcome_.retractions > 0 && outcome_.error.empty()) {
      outcome_.error = "generated tokens are computed again";
    }
    outcome_.cached_tokens = static_cast<int64_t>(stats.cached_tokens_total);
    outcome_.evicted_tokens = static_cast<int64_t>(stats.evicted_tokens_total);
    outcome_.decisions = decisions_.value();
    return outcome_;
  }

 private:
  const Client& client(RequestId id) const { return scenario_.clients[id - 1]; }
  Live& live(RequestId id) { return live_[id - 1]; }

  // One turn of an engine's loop.
  void iterate() {
    CHECK_SIM(++iterations_ < kMaxIterations, "a request starves: too many iterations");
    while (next_client_ < scenario_.clients.size() && rng_.chance(scenario_.arrival_percent)) {
      arrive();
    }
    if (rng_.chance(scenario_.abort_percent)) end_random_request();
    if (scenario_.flush_percent > 0 && rng_.chance(scenario_.flush_percent)) flush();

    const Step& step = scheduler_.schedule();
    check_after_call();
    const bool scheduled = !step.empty();
    if (scheduled) launch(step);
    const size_t keep = scheduled ? scenario_.config.overlap_depth : 0;
    if (scenario_.device_error_per_mille > 0 &&
        rng_.between(1, 1000) <= scenario_.device_error_per_mille) {
      fail_device();
    }
    while (pending_.size() > keep) {
      // The outside may act while a step runs.
      if (rng_.chance(scenario_.abort_percent)) end_random_request();
      commit_oldest();
    }
    if (!scheduled && !committed_ && scheduler_.stats().queued_reqs > 0) {
      // Nothing ran, nothing in flight: only an empty system may do that.
      CHECK_SIM(scheduler_.stats().running_reqs == 0 && idle_turn_after_change_++ < 1,
                "deadlock: requests wait and nothing runs");
    }
    committed_ = false;
    collect_released();
  }

  void arrive() {
    const Client& next = scenario_.clients[next_client_++];
    const SchedulerConfig& config = scenario_.config;
    const int prompt = static_cast<int>(next.spec.input_ids.size());
    const int total = prompt + next.spec.max_new_tokens;
    const int slots = std::max(prompt, total - 1);
    const bool possible = prompt > 0 && total <= config.context_len && fits_pool(slots);
    const bool queue_full = config.max_queued_requests >= 0 &&
                            scheduler_.stats().queued_reqs >= config.max_queued_requests;
    ScheduledRequestSpec spec = next.spec;
    spec.user = &live(spec.id);
    const Status status = scheduler_.add(std::move(spec));
    log("add", next.spec.id, status.ok() ? prompt : -1, next.spec.max_new_tokens);
    const StatusCode expected = !possible    ? StatusCode::invalid_argument
                                : queue_full ? StatusCode::resource_exhausted
                                             : StatusCode::ok;
    CHECK_SIM(status.code() == expected, "add() answers wrongly: " + status.message());
    CHECK_SIM(status.ok() || !status.message().empty(), "a refusal without a reason");
    Live& state = live(next.spec.id);
    state.accepted = status.ok();
    state.logits_seen.assign(next.spec.input_ids.size(), 0);
    outcome_.requests += status.ok();
    outcome_.rejected += !status.ok();
    check_after_call();
  }

  // A client disconnects, or the output side found a stop string.
  void end_random_request() {
    if (next_client_ == 0) return;
    const RequestId id = rng_.between(1, static_cast<int>(next_client_));
    Live& state = live(id);
    log("finish", id, 0, 0);
    const bool was_live = scheduler_.finish(id);
    CHECK_SIM(was_live == (state.accepted && !state.answered), "finish() answers wrongly");
    if (was_live) {
      state.answered = true;
      ++outcome_.aborted;
    }
    check_after_call();
  }

  void flush() {
    const bool busy = scheduler_.stats().running_reqs > 0 || scheduler_.uncommitted_steps() > 0;
    CHECK_SIM(scheduler_.flush_cache() == !busy, "flush_cache() answers wrongly");
    check_after_call();
    if (!busy) CHECK_SIM(scheduler_.pool().num_used() == 0, "a flushed cache holds pages");
  }

  void fail_device() {
    log("device error", 0, 0, 0);
    for (const RequestId id : scheduler_.fail_uncommitted()) {
      CHECK_SIM(!live(id).answered, "answered twice");
      live(id).answered = true;
    }
    pending_.clear();
    committed_ = true;
    check_after_call();
  }

  void launch(const Step& step) {
    ++outcome_.steps;
    outcome_.copies += static_cast<int64_t>(step.copies.size());
    check_size(step);
    check_cuts(step);
    decisions_.add(step);
    decisions_.add(scheduler_.stats());
    CHECK_SIM(static_cast<int>(step.rows.size()) <= scenario_.config.max_running_requests,
              "too many rows");
    next_builder_ ^= 1;
    Pending& pending = pending_.emplace_back(Pending{&step, next_builder_, {}});
    int proposed = 0;
    for (const StepRow& row : step.rows) {
      pending.proposals.push_back(propose(row));
      proposed += pending.proposals.back().size();
    }
    const ForwardBatch& batch = builders_[next_builder_].build(step, pending.proposals);
    CHECK_SIM(batch.num_tokens == step.num_tokens + proposed, "token count");
    if (trace_) print_step(step);
    check_ownership();
  }

  // Up to as many tokens as the row has room for, each right by dice: a chain, or a tree.
  Proposal propose(const StepRow& row) {
    Proposal out;
    const Client& of = client(row.id);
    const int count = row.max_proposals > 0 ? rng_.between(0, row.max_proposals) : 0;
    const bool tree = rng_.chance(50);
    for (int node = 1; node <= count; ++node) {
      const int parent = tree ? rng_.between(0, node - 1) : node - 1;
      const size_t position = row.start + (parent > 0 ? out.depth(parent) : 0) + 1;
      const bool right = position < of.sequence.size() && rng_.chance(scenario_.right_proposal_percent);
      out.tokens.push_back(right ? of.sequence[position] : rng_.between(0, scenario_.vocab_size - 1));
      if (tree) out.parents.push_back(parent);
    }
    return out;
  }

  void check_size(const Step& step) {
    const SchedulerConfig& config = scenario_.config;
    int prefill_rows = 0, prefill_tokens = 0, most_tokens = step.num_tokens;
    for (const StepRow& row : step.rows) {
      most_tokens += row.max_proposals;
      prefill_rows += row.prefill;
      if (row.prefill) prefill_tokens += row.num_tokens;
    }
    CHECK_SIM(most_tokens <= Scheduler::max_tokens_per_step(config), "step too large");
    CHECK_SIM(config.chunked_prefill_size < 0 || prefill_tokens <= config.chunked_prefill_size,
              "chunk too large");
    CHECK_SIM(prefill_rows <= 1 || prefill_tokens <= config.max_prefill_tokens,
              "more than max_prefill_tokens");
  }

  // Prompts are cut, and leave checkpoints, where they may be, and what is generated leaves none.
  void check_cuts(const Step& step) {
    const int cut = scenario_.config.state_cut_tokens;
    if (states_.empty() || cut == 1) return;
    const auto reads = [&](int32_t slot) {
      return std::any_of(step.state_loads.begin(), step.state_loads.end(),
                         [&](const StateCopy& copy) { return copy.from == slot; });
    };
    for (const StepRow& row : step.rows) {
      CHECK_SIM(!row.prefill || row.start % cut == 0, "a prompt is cut elsewhere");
      CHECK_SIM(!reads(row.state_slot), "a checkpoint of generated tokens");
      for (int i = 0; i < row.num_checkpoints; ++i) {
        const int tokens = step.state_checkpoints[row.first_checkpoint + i].num_tokens;
        CHECK_SIM((row.start + tokens) % cut == 0, "a checkpoint elsewhere");
      }
      for (const StateCopy& copy : step.state_saves) {
        CHECK_SIM(copy.from != row.state_slot || (row.prefill && (row.start + row.num_tokens) % cut == 0),
                  "a checkpoint elsewhere");
      }
    }
  }

  // What one request needs at most: whole tables, or windows and the rows of all steps under way.
  bool fits_pool(int slots) const {
    const SchedulerConfig& config = scenario_.config;
    const auto pages_for = [&](int tokens) { return (tokens + config.page_size - 1) / config.page_size; };
    int full = 0, windows = 0;
    for (const CacheGroupRule& group : config.cache_groups) {
      int most = pages_for(slots);
      if (group.windowed() && config.chunked_prefill_size > 0) {
        const int rows = config.chunked_prefill_size * (config.overlap_depth + 1);
        most = std::min(most, pages_for(group.window_left + rows) + 1);
      }
      (group.windowed() ? windows : full) += most;
    }
    if (config.window_pages == 0) return full + windows <= config.num_pages;
    return windows <= config.window_pages && full <= config.num_pages - config.window_pages;
  }

  // No page that an uncommitted step writes for one request is seen by another.
  void check_ownership() {
    for (int group = 0; group < num_groups_; ++group) check_ownership(group);
  }

  void check_ownership(int group) {
    writer_.assign(scenario_.config.num_pages, kNoRequest);
    for (const Pending& pending : pending_) {
      const ForwardBatch& batch = builders_[pending.builder].batch();
      for (int r = 0; r < batch.num_reqs; ++r) {
        const RequestId id = pending.step->rows[r].id;
        for (int i = batch.q_indptr[r]; i < batch.q_indptr[r + 1]; ++i) {
          const int32_t page = builders_[pending.builder].kv_slots(group)[i] / batch.page_size;
          CHECK_SIM(page >= 0 && page < scenario_.config.num_pages, "a token is written nowhere");
          CHECK_SIM(writer_[page] == kNoRequest || writer_[page] == id, "two writers of a page");
          writer_[page] = id;
        }
      }
    }
    for (const Pending& pending : pending_) {
      const ForwardBatch& batch = builders_[pending.builder].batch();
      for (int r = 0; r < batch.num_reqs; ++r) {
        const RequestId id = pending.step->rows[r].id;
        const int pages = (batch.kv_lens[r] + batch.page_size - 1) / batch.page_size;
        const CacheGroupRule& rule = scenario_.config.cache_groups[group];
        for (int i = rule.first_seen(batch.positions[batch.q_indptr[r]]) / batch.page_size; i < pages; ++i) {
          const int32_t page = builders_[pending.builder].pages_of(r, group)[i];
          if (page == blank_page_) continue;
          const RequestId writer = writer_[page];
          CHECK_SIM(writer == kNoRequest || writer == id, "a page is written by another request");
        }
      }
    }
  }

  void commit_oldest() {
    const Pending pending = pending_.front();
    execute(pending);
    for (const StepRow& row : pending.step->rows) {
      outcome_.wasted_rows += live(row.id).answered;
      if (!live(row.id).answered) note_logits(row);
    }
    const auto& events = scheduler_.commit(*pending.step, sampled_, sampled_begin_);
    pending_.erase(pending_.begin());
    committed_ = true;
    idle_turn_after_change_ = 0;
    for (const StepEvent& event : events) {
      decisions_.add(event);
      check_event(event);
    }
    check_after_call();
  }

  // The device: copies, then K/V writes, then every row reads all it may see.
  void execute(const Pending& pending) {
    BatchBuilder& builder = builders_[pending.builder];
    for (const PageCopy& copy : pending.step->copies) {
      kv_.copy(copy.src_page, copy.dst_page, copy.num_tokens);
    }
    if (scenario_.config.max_proposals == 0) builder.patch_futures(sampled_);
    const ForwardBatch& batch = builder.batch();
    states_.copy(pending.step->state_loads);
    accepted_.assign(pending.step->num_samples, {});
    sampled_.clear();
    sampled_begin_.assign(1, 0);
    for (int i = 0, r = 0; i < batch.num_tokens; ++i) {
      while (i >= batch.q_indptr[r + 1]) ++r;
      const Client& of = client(pending.step->rows[r].id);
      const bool proposed = i - batch.q_indptr[r] >= pending.step->rows[r].num_tokens;
      CHECK_SIM(proposed || batch.input_ids[i] == of.sequence[batch.positions[i]], "wrong input token");
      for (int group = 0; group < num_groups_; ++group) {
        kv_.write(builder.kv_slots(group)[i], {batch.input_ids[i], batch.positions[i], of.salt, group});
      }
    }
    for (int r = 0; r < batch.num_reqs; ++r) {
      const StepRow& row = pending.step->rows[r];
      const Client& of = client(row.id);
      for (int group = 0; group < num_groups_; ++group) check_visible(builder, r, group, of);
      uint64_t hash = of.salt;
      for (int position = 0; position < row.start + row.num_tokens; ++position) {
        hash = extend_hash(hash, of.sequence[position]);
      }
      CHECK_SIM(states_.empty() || states_.read_rows(batch, r, of.sequence, of.salt), "a state of something else");
      if (row.sample_slot < 0) continue;
      const int32_t logits_row = builder.sample_rows()[row.sample_slot];
      CHECK_SIM(batch.logits_rows[logits_row] == batch.q_indptr[r] + row.num_tokens - 1, "wrong logits row");
      verify(pending, r, hash);
    }
    states_.copy(pending.step->state_saves);
    for (const std::vector<int32_t>& tokens : accepted_) {
      sampled_.insert(sampled_.end(), tokens.begin(), tokens.end());
      sampled_begin_.push_back(static_cast<int>(sampled_.size()));
    }
  }

  // Follows the proposals that are right, and moves their K/V to where one token after the other would have put it.
  void verify(const Pending& pending, int r, uint64_t hash) {
    const StepRow& row = pending.step->rows[r];
    const Proposal& proposal = pending.proposals[r];
    const BatchBuilder& builder = builders_[pending.builder];
    const int first = builder.batch().q_indptr[r] + row.num_tokens - 1;
    for (int node = 0, depth = 0; node >= 0; ++depth) {
      for (int group = 0; group < num_groups_ && depth > 0; ++group) {
        const auto slots = builder.kv_slots(group);
        kv_.write(slots[first + depth], kv_.read(slots[first + node]));
      }
      const int32_t token = next_token(hash, scenario_.vocab_size);
      accepted_[row.sample_slot].push_back(token);
      hash = extend_hash(hash, token);
      node = proposal.child(node, token);
    }
    outcome_.accepted += static_cast<int64_t>(accepted_[row.sample_slot].size()) - 1;
  }

  // What the rows of a request see in a group is there; what they do not see is blank, or still the request's.
  void check_visible(const BatchBuilder& builder, int r, int group, const Client& of) {
    const ForwardBatch& batch = builder.batch();
    const CacheGroupRule& rule = scenario_.config.cache_groups[group];
    const int first_seen = rule.first_seen(batch.positions[batch.q_indptr[r]]);
    const int32_t* pages = builder.pages_of(r, group);
    const int committed = batch.positions[batch.q_indptr[r]];  // what follows are the rows' own tokens
    for (int position = 0; position < batch.kv_lens[r]; ++position) {
      if (position > committed && batch.mode == ForwardMode::target_verify) break;
      const bool blank = pages[position / batch.page_size] == blank_page_;
      CHECK_SIM(!blank || position < first_seen, "a token that is seen has left the cache");
      if (blank) continue;
      const FakeKv::Slot& slot = kv_.read(pages, position);
      // Given back since the step was built; nobody writes it before the step has run.
      if (position < first_seen && slot == FakeKv::Slot{}) continue;
      CHECK_SIM(slot.position == position && slot.salt == of.salt && slot.group == group, "a slot of somebody else");
      CHECK_SIM(slot.token == of.sequence[position], "another token than alone");
    }
  }

  void note_logits(const StepRow& row) {
    Live& state = live(row.id);
    for (int i = row.start + row.num_tokens - row.num_logits; i < row.start + row.num_tokens; ++i) {
      if (i < static_cast<int>(state.logits_seen.size())) ++state.logits_seen[i];
    }
  }

  void check_event(const StepEvent& event) {
    const Client& of = client(event.id);
    Live& state = live(event.id);
    log(event.finish == StepEvent::Finish::none ? "token" : "last", event.id, event.token,
        event.retractions);
    CHECK_SIM(event.user == &state, "wrong user pointer");
    CHECK_SIM(state.accepted && !state.answered, "an event after the answer");
    if (event.has_token) {
      CHECK_SIM(event.token == of.sequence[of.spec.input_ids.size() + state.outputs],
                "another token than alone");
      ++state.outputs;
      ++outcome_.tokens;
    }
    const bool last = state.outputs == of.output_len;
    CHECK_SIM(last == (event.finish != StepEvent::Finish::none), "ends at the wrong token");
    if (!last) return;
    CHECK_SIM((event.finish == StepEvent::Finish::stop) == of.stops, "wrong finish reason");
    state.answered = true;
    const int start = of.spec.logprob_start_len;
    for (int i = std::max(start - 1, 0); start >= 0 && i < static_cast<int>(state.logits_seen.size());
         ++i) {
      CHECK_SIM(state.logits_seen[i] == 1, "prompt logits not delivered exactly once");
    }
  }

  void check_after_call() {
    const PagePool& pool = scheduler_.pool();
    for (int32_t page = 0; page < pool.num_pages(); ++page) {
      if (pool.refs(page) == 0) kv_.poison(page);
    }
    for (int32_t slot = 0; slot < states_.size(); ++slot) {
      if (scheduler_.states()->refs(slot) == 0) states_.forget(slot);
    }
    const Status status = scheduler_.audit();
    CHECK_SIM(status.ok(), status.message());
  }

  void collect_released() {
    for (void* user : scheduler_.take_released()) {
      Live& state = *static_cast<Live*>(user);
      CHECK_SIM(state.answered && !state.released, "released early or twice");
      state.released = true;
    }
  }

  void check_idle() {
    while (!pending_.empty()) commit_oldest();
    collect_released();
    for (const Live& state : live_) {
      CHECK_SIM(state.answered == state.accepted && state.released == state.accepted,
                "not answered and released exactly once");
    }
    const RadixTree& tree = scheduler_.tree();
    CHECK_SIM(tree.locked_pages() == 0 && scheduler_.stats().used_tokens == 0, "leak at idle");
    CHECK_SIM(scheduler_.pool().num_used() == tree.evictable_pages() + scheduler_.pool().num_spare(), "leak at idle");
    CHECK_SIM(states_.empty() || scheduler_.states()->num_requests() == 0, "a state is lost");
    CHECK_SIM(scheduler_.flush_cache() && scheduler_.pool().num_used() == 0, "flush leaves pages");
    CHECK_SIM(states_.empty() || scheduler_.states()->num_free() == scheduler_.states()->num_slots(),
              "flush leaves states");
    check_after_call();
  }

  void log(const char* what, RequestId id, int a, int b) const {
    if (trace_) std::printf("  %s request %d: %d %d\n", what, static_cast<int>(id), a, b);
  }

  void print_step(const Step& step) const {
    std::printf("step %d, %d tokens, free %d, evictable %d pages\n",
                static_cast<int>(step.number), step.num_tokens, scheduler_.pool().num_free(),
                scheduler_.tree().evictable_pages());
    for (const PageCopy& copy : step.copies) {
      std::printf("  copy %d tokens of page %d to %d\n", copy.num_tokens, copy.src_page,
                  copy.dst_page);
    }
    for (const StepRow& row : step.rows) {
      std::printf("  row: request %d %s [%d, %d) pages", static_cast<int>(row.id),
                  row.prefill ? "prefill" : "decode", row.start, row.start + row.num_tokens);
      for (int i = 0; i < row.num_pages * num_groups_; ++i) std::printf(" %d", row.pages[i]);
      std::printf("\n");
    }
  }

  static constexpr int kMaxIterations = 20000;

  Rng rng_;
  const Scenario scenario_;
  const bool trace_;
  Scheduler scheduler_;
  const int num_groups_;
  const int32_t blank_page_;
  FakeKv kv_;
  std::array<BatchBuilder, 2> builders_;
  int next_builder_ = 0;
  std::vector<Pending> pending_;
  std::vector<std::vector<int32_t>> accepted_;  // of the step that ran last, by sample slot
  std::vector<int32_t> sampled_;                // the same in one list
  std::vector<int> sampled_begin_;
  FakeStates states_;
  std::vector<Live> live_;
  std::vector<RequestId> writer_;
  size_t next_client_ = 0;
  int iterations_ = 0;
  bool committed_ = false;
  int idle_turn_after_change_ = 0;
  Decisions decisions_;
  Outcome outcome_;
};

}  // namespace

Outcome run_schedule(uint64_t seed, bool trace) { return World(seed, trace).run(); }

}  // namespace warpweave::sim
