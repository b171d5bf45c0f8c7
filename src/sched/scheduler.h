// Scheduler: which request computes which tokens in the next step, and on which pages.
//
// Pure: no device, clock, thread or socket; the same calls give the same steps. One thread calls
// it (the engine's). A request goes
//     waiting -> prefilling (in chunks) -> running -> finished
// and from prefilling or running back to waiting when the pool is full (retraction: it keeps its
// tokens and computes their K/V again later). The engine's loop, without and with overlap:
//     step = schedule(); run(step); events = commit(step, sampled)
//     next = schedule(); events = commit(step, sampled); run(next); ...
// With overlap_depth 1, schedule() may be called while one step is not committed yet. A request
// that sampled in that step goes on in the next one, with the token still unknown: its row says
// future_slot. If commit() then finds it finished, the row it already has in the next step is
// wasted: commit() ignores it, and the request's pages stay its own until that step is committed,
// so no page changes hands while an uncommitted step may write it.
// Steps run in order: K/V written and copies made by a step are seen by the next one.
//
// Order of admission: a prefill goes before decoding (with enable_mixed_chunk decode rows ride
// along). Within the queue:
//   fcfs      by arrival
//   lpm       longest cached prefix first, among the kScanWindow oldest; nobody is overtaken more
//             than kLpmMaxOvertakes times
//   priority  larger first, by arrival within one priority; a low priority waits for as long as
//             higher ones keep coming (that is what it asks for)
// Retracted requests go first (under priority: first within their priority). The first request in
// that order that does not fit stops admission, so large requests are not starved by small ones.
// A request whose adapter would be one more than max_adapters is passed over until all requests of another have ended;
// the oldest one at most kLpmMaxOvertakes times.
// A request whose uncached prompt begins like one that is being prefilled now (at least
// kInBatchShareMinTokens tokens) waits for that one and then shares its pages.
//
// Cache groups (kv/cache_layout.h): a request has a page table a group, all of one length. A windowed group's page
// goes back to the pool when the step that last saw it is committed; until the prompt is cached, such pages linger
// (they are spare: taken when pages are wanted), so that a prefix can be hit in its middle. Windowed groups take the
// pages of a prompt chunk by chunk. Should the last pages go to requests that wait for one another, the newest
// prefill is retracted. Groups share all pages by need, or with window_pages those with a window have these alone:
// then a request must find its pages in both parts, and waits or is retracted when either is full.
//
// States (kv/state_pool.h): with state_slots a request has a slot with the state of its recurrent layers. It begins at
// zero, or as a copy of the checkpoint at which its cached prefix ends. Checkpoints are taken at ends of prompts, where
// cached prefixes part, and every state_interval tokens: a prefill row lists those that its kernels leave on their way,
// and one at its end is copied off behind the step. A decode row with room for proposals may pass such a place, so the
// state before it is copied where one was passed since the last checkpoint. Slots are taken with the step, and the
// cache knows a checkpoint when the step is committed. Where slots are short, those that prompts only passed give way
// first, then for ends of prompts and for where prefixes part the one used longest ago, then its own earliest.
//
// Proposals (batch/proposal.h): with max_proposals a decode row has room for tokens that are proposed to follow its
// own; the step computes all of them, and commit() takes as many tokens as were found right, and one more. How many
// is known only then, so such a request sits out the steps in between. What was rejected is written over.
//
// Errors: add() refuses what can never run; nothing that is admitted fails later for want of pages.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "kv/cache_layout.h"
#include "kv/page_pool.h"
#include "kv/radix_tree.h"
#include "kv/state_pool.h"
#include "sched/new_token_ratio.h"
#include "warpweave/status.h"

namespace warpweave {

struct LoraAdapter;

using RequestId = uint64_t;
inline constexpr RequestId kNoRequest = 0;

// Queue entries looked at per step (all policies).
inline constexpr int kScanWindow = 128;
inline constexpr int kLpmMaxOvertakes = 128;
inline constexpr int kInBatchShareMinTokens = 32;
// A waiting request is held back for at most this many others that prefill its prefix.
inline constexpr int kInBatchShareMaxWaits = 4;
// Admission reserves pages for at most this many future tokens of one request.
inline constexpr int kReservedNewTokensCap = 4096;
// With enable_mixed_chunk, a step that also decodes holds at most this many tokens (or four times its
// decode rows, or the chunk if that is less): GEMMs are as fast with more, and a long step would
// keep those who decode waiting.
inline constexpr int kMixedStepTokens = 2048;
// With mixed_chunk_rows a step that decodes takes only a piece of the waiting prompt tokens: what its decode rows
// leave of mixed_chunk_rows or, if that is more, the waiting tokens divided by (mixed_chunk_rows / decode rows), a
// divisor of at most kMixedSpreadSteps. Up to mixed_chunk_rows a step's time goes into reading weights, so a few
// decode rows leave room for others at little cost; with as many decode rows there is none left, and prompts are not
// spread. A first token then takes a few more steps, but each is shorter. The number of rows is a multiple of
// kMixedRowTile (or of mixed_chunk_rows if that is less), for a GEMM of fewer rows takes as long.
inline constexpr double kMixedSpreadSteps = 4;
// Each piece reads the K/V of all tokens before it, so it has at least one token for this many of them.
inline constexpr int kMixedSeenPerToken = 32;
inline constexpr int kMixedRowTile = 128;
// A retraction frees pages for this many more steps of the requests that stay.
inline constexpr int kRetractHeadroomSteps = 20;

enum class SchedulePolicy { fcfs, lpm, priority };

struct SchedulerConfig {
  int page_size = 1;               // tokens
  int num_pages = 0;
  int window_pages = 0;            // pages only for groups with a window, which then get no others; 0: all are shared
  int context_len = 0;             // tokens, prompt and output
  int max_running_requests = 64;
  int max_queued_requests = -1;    // -1: no bound
  int chunked_prefill_size = -1;   // tokens of prefill per step; -1: prompts are not cut
  int max_prefill_tokens = 16384;  // per step; one longer prompt still goes alone
  bool enable_mixed_chunk = false; // decode rows ride along with prefill chunks
  int mixed_chunk_rows = 0;        // rows from which the device's GEMMs are no longer bound by reading
                                   // weights; 0: steps that decode take as much prefill as they may
  SchedulePolicy schedule_policy = SchedulePolicy::fcfs;
  double schedule_conservativeness = 1.0;
  bool disable_radix_cache = false;
  PrefixMatchMode prefix_match = PrefixMatchMode::token;
  int overlap_depth = 0;           // 0 or 1
  bool log_page_events = false;    // fill Step::page_events
  std::vector<CacheGroupRule> cache_groups = {CacheGroupRule{}};  // 1 to kMaxCacheGroups
  int max_proposals = 0;           // tokens proposed to follow a decode row's own, at most; 0: none
  int max_step_proposals = INT32_MAX;  // of all rows of a step; the caller keeps to it
  int state_slots = 0;             // of requests, max_running_requests or more, and of checkpoints; 0: no states
  int state_request_slots = 0;     // how many of them checkpoints may not take
  int state_interval = 256;        // tokens from checkpoint to checkpoint
  // Prompts are cut, and leave checkpoints, at multiples of so many tokens: for kernels whose bits depend on where a
  // prompt was cut, but not there. Above 1 generated tokens leave no checkpoints, and all pages that they may take are
  // kept for them, so that none is computed again as part of a prompt.
  // state_interval is a multiple, a chunk of prefill no shorter.
  int state_cut_tokens = 1;
  bool state_checkpoints_within_rows = true;  // false: kernels leave none on their way, so prefill rows end at them
  std::vector<int32_t> eos_token_ids;
  int max_adapters = 8;            // different adapters of running requests, at most
};

// Pages that a request of so many tokens holds at once, from its prefill on or while it decodes: of a group, and of
// all groups.
int64_t peak_group_pages(const SchedulerConfig& config, const CacheGroupRule& group, int64_t tokens, bool prefilling);
PageCount peak_request_pages(const SchedulerConfig& config, int64_t tokens, bool prefilling);

struct ScheduledRequestSpec {
  RequestId id = kNoRequest;       // unique among the live requests, not kNoRequest
  void* user = nullptr;            // handed back in rows, events and take_released()
  std::vector<int32_t> input_ids;  // not empty
  int max_new_tokens = 128;        // 0: prefill only
  int min_new_tokens = 0;          // stop tokens do not end it before
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids;
  int priority = 0;
  std::string cache_salt;
  const LoraAdapter* adapter = nullptr;  // of its rows, null: none; outlives the request's last step
  int logprob_start_len = -1;      // first prompt position that needs a logprob; -1: none
  int states_from = -1;            // first prompt position whose row is wanted itself; -1: none
  // Admitted only when that request's prompt is cached, or that request is gone (the n-1 other
  // samples of one prompt). kNoRequest, or the id of a request added before; the priority is at
  // most that request's.
  RequestId wait_for_prefix_of = kNoRequest;
};

// One request's tokens in a step. The pointers stay valid until the next call on the scheduler.
struct StepRow {
  RequestId id = kNoRequest;
  void* user = nullptr;
  void* request = nullptr;         // the scheduler's Request, for it alone, valid until the step is committed
  int start = 0;                   // position of the first token = tokens already in the KV pool
  int num_tokens = 0;
  int num_logits = 0;              // logits, or the rows they are made of, are wanted of the last num_logits tokens
  int32_t state_slot = kNoStateSlot;  // holds the state after the `start` tokens before; at 0 it is undefined
  int first_checkpoint = 0;        // among the step's state_checkpoints: those that this row leaves
  int num_checkpoints = 0;
  int sample_slot = -1;            // its place in commit()'s `sampled`, or -1: samples nothing
  int future_slot = -1;            // >= 0: its one token is sampled[future_slot] of the step before
  int max_proposals = 0;           // so many more tokens may follow its one; `pages` cover them, too
  bool prefill = false;
  const LoraAdapter* adapter = nullptr;
  bool first_scheduled = false;    // its time in the queue ends with this step
  const int32_t* input_ids = nullptr;  // [num_tokens]; null when future_slot >= 0
  // [num_pages, groups] page tables, cover start + num_tokens tokens; the first num_blank[group] entries of a group
  // are kNoPage: no row sees those tokens any more.
  const int32_t* pages = nullptr;
  int num_pages = 0;
  const int* num_blank = nullptr;      // [groups]
  // While id and version stay the same a page table only grows at its end, and its blank beginning grows.
  uint32_t pages_version = 0;
};

// Copy the first num_tokens slots of one page to another, in all layers of its group.
struct PageCopy {
  int32_t src_page = kNoPage;
  int32_t dst_page = kNoPage;
  int num_tokens = 0;
};

// A copy of the state after the first num_tokens tokens of a row, into a slot.
struct StateCheckpoint {
  int num_tokens = 0;              // less than the row's
  int32_t slot = kNoStateSlot;
};

struct Step {
  uint64_t number = 0;             // 1, 2, 3, ...
  std::vector<int32_t> page_events;  // of the pool since the step before: see PagePool::take_events()
  std::vector<PageCopy> copies;    // to be done before the rows run
  std::vector<StateCopy> state_loads;  // before the rows run
  std::vector<StateCheckpoint> state_checkpoints;  // while the rows run: row by row, ascending within a row
  std::vector<StateCopy> state_saves;  // after the rows have run
  std::vector<StepRow> rows;       // prefill rows, then decode rows
  int num_tokens = 0;
  int num_samples = 0;
  bool empty() const { return rows.empty(); }
};

// What a committed step did for one request: a new token, the end, or both.
struct StepEvent {
  enum class Finish { none, stop, length, failed };
  RequestId id = kNoRequest;
  void* user = nullptr;
  int row = -1;                    // of the committed step
  int index = 0;                   // of the token among those of its row
  bool has_token = false;          // false only when max_new_tokens is 0
  int32_t token = 0;
  Finish finish = Finish::none;    // stop: `token` is an eos or stop token; failed: it is negative
  int cached_tokens = 0;           // prompt tokens taken from the cache at first admission
  int cached_kv_tokens = 0;        // of attention layers: more where the last checkpoint of recurrent ones lies before
  int retractions = 0;
};

struct SchedulerStats {
  int running_reqs = 0;            // prefilling or running
  int queued_reqs = 0;
  int64_t used_tokens = 0;         // slots of pages that requests hold
  int64_t evictable_tokens = 0;    // cached, held by nobody
  uint64_t prompt_tokens_total = 0;   // of admitted requests
  uint64_t cached_tokens_total = 0;   // of those, taken from the cache
  uint64_t cached_kv_tokens_total = 0;  // of attention layers (StepEvent::cached_kv_tokens)
  uint64_t retracted_reqs_total = 0;
  uint64_t evicted_tokens_total = 0;
  uint64_t steps_total = 0;
  double new_token_ratio = 0;
};

class Scheduler {
 public:
  static Status validate(const SchedulerConfig& config);
  // `config` has passed validate().
  explicit Scheduler(const SchedulerConfig& config);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Queues a request. invalid_argument: it can never run (empty, longer than context or pool);
  // resource_exhausted: the queue is full.
  Status add(ScheduledRequestSpec spec);

  // Ends a live request without an event (the caller knows): aborted by the client, or a stop
  // string was found. Its pages are free when no uncommitted step uses them. False: not live
  // (unknown, or already finished by an event).
  bool finish(RequestId id);

  // The next step; empty when there is nothing to do before the step in flight is committed (or
  // nothing at all). An empty step is not to be committed. At most 1 + overlap_depth steps may be
  // uncommitted. The reference stays valid until that step is committed.
  const Step& schedule();

  // The result of the oldest uncommitted step. `sampled` has the tokens of all samples, one each, or where `begin`
  // [num_samples + 1] is given those of sample s at [begin[s], begin[s + 1]): at least one, the accepted proposals
  // first. A negative one means that there is none: its request ends as failed, and what it computed is not cached.
  // One event a token. The reference stays valid until the next commit().
  const std::vector<StepEvent>& commit(const Step& step, std::span<const int32_t> sampled,
                                       std::span<const int> begin = {});

  // The uncommitted steps failed (device error): ends every request that has a row in one of them
  // and returns their ids, those still owed an answer only. What they computed is not cached.
  std::vector<RequestId> fail_uncommitted();

  // The `user` of every request the scheduler no longer refers to, each exactly once. Until then
  // a row of an uncommitted step may carry it. Call it now and then; order is unspecified.
  std::vector<void*> take_released();

  // Drops every cached prefix. False, and nothing done, while requests are running.
  bool flush_cache();

  bool idle() const { return requests_.empty(); }
  int uncommitted_steps() const { return static_cast<int>(in_flight_.size()); }
  SchedulerStats stats() const;
  const PagePool& pool() const { return pool_; }
  const RadixTree& tree() const { return tree_; }
  // Upper bound of the rows of a step, proposals among them, for buffers.
  static int64_t max_tokens_per_step(const SchedulerConfig& config);
  // At most so many tokens are proposed to the rows of a step.
  static int64_t max_step_proposals(const SchedulerConfig& config) {
    return std::min<int64_t>(int64_t{config.max_running_requests} * config.max_proposals, config.max_step_proposals);
  }
  // With max_proposals: whether rows of the steps to come have room for proposals. While they have none, requests need
  // not wait for their tokens, and steps overlap as without proposals. True at first.
  void set_proposing(bool on) { proposing_ = on; }
  const StatePool* states() const { return states_ ? &*states_ : nullptr; }

  // Recounts every page reference and counter; `internal` names the first that is wrong. O(pages).
  Status audit() const;

 private:
  struct Request;
  struct QueueOrder {
    bool operator()(const Request* a, const Request* b) const;
  };
  struct DeferredPage {
    uint64_t step;
    int32_t page;
    bool copy_source;
  };
  struct DeferredState {
    uint64_t step;
    int32_t slot;
  };
  struct PrefillBudget {
    int tokens;  // of this step, for requests after the first
    int chunk;   // where the next prompt is cut
    bool cut_at_pages = true;
  };

  // admission.cc: prefill rows and the queue
  void add_prefill_rows(Step& step);
  int mixed_chunk(int decode_rows);
  int64_t waiting_prefill_tokens(int64_t enough);
  bool can_admit_more() const;
  void collect_candidates();
  bool must_wait(Request& request);
  bool can_take_adapter(const Request& request);
  Request* prefilling_same_prefix(Request& request);
  bool admit(Request& request, PrefillBudget& budget, Step& step);
  bool take_pages(Request& request, int match_limit, Step& step);
  void hold_copy_sources(const RadixTree::Match& match, const Step& step);
  void drop_copy_sources(RadixTree::Match& match);
  void fill_tables(Request& request, int shared_pages, int matched_tokens);
  bool fits(const Request& request, const PageCount& new_pages) const;
  PageCount prefill_pages(const Request& request, int matched_tokens) const;
  int64_t reserved_tokens(int remaining) const;
  PageCount reserved_pages(const Request& request) const;
  void add_prefill_row(Request& request, PrefillBudget& budget, Step& step);
  int prefix_limit(const Request& request) const;
  void refresh_match(Request& request);
  int match_length(const Request& request, int limit) const;

  // decode.cc: decode rows and retraction
  void add_decode_rows(Step& step);
  bool can_decode(const Request& request) const;
  bool decodes_in_flight() const;
  bool needs_page(const Request& request) const;
  int covered_tokens(const Request& request) const;
  void make_room_for_proposals(Request& request, PageCount& spare, StepRow& row);
  PageCount pages_needed_for_decode() const;
  void make_room();
  Request* pick_victim() const;
  PageCount releasable_pages(const Request& request) const;
  PageCount pages_about_to_free() const;
  void retract(Request& request);

  // windows.cc: pages of groups with a sliding window
  int window_groups() const { return num_groups_ - full_groups_; }
  PagePart part_of(int group) const {
    return config_.cache_groups[group].windowed() ? PagePart::windows : PagePart::full;
  }
  // So many page table entries of every group.
  PageCount in_all_groups(int64_t count) const { return {full_groups_ * count, window_groups() * count}; }
  int window_pages_to_come(const Request& request, int64_t tokens) const;
  int reachable_tokens(const Request& request) const;
  void grow_windows(Request& request, int end);
  void leave_windows(Request& request);
  int drop_lingering(Request& request, int num_pages);
  int reclaim_lingering(int num_pages);

  bool proposals_in_flight() const;
  // states.cc: states of recurrent layers
  static Status validate_states(const SchedulerConfig& config);
  bool can_take_state() const { return !states_ || states_->num_free() > 0; }
  void take_state(Request& request, const RadixTree::Match& match, Step& step);
  int state_cut_tokens() const;
  int last_cut(int tokens) const { return tokens / state_cut_tokens() * state_cut_tokens(); }
  int shared_tokens(const Request& request, int tokens) const;
  int state_stop(const Request& request, int end) const;
  int32_t take_checkpoint_slot(Request& request, const StepRow& row, CheckpointWorth most);
  void save_state(Request& request, const StepRow& row, Step& step);
  void save_states_within(Request& request, StepRow& row, Step& step);
  void hang_up_states(Request& request, int tokens);
  void release_state(Request& request);
  Status check_spec(const ScheduledRequestSpec& spec) const;
  // `refs`: how many holders a page has, by those audited before.
  Status audit_request(const Request& request, std::vector<int>& refs) const;
  Status audit_pool(const std::vector<int>& refs) const;
  Status audit_states() const;

  // scheduler.cc: the rest of a request's life
  PageCount available_pages() const;
  void make_free(PageCount pages);
  bool append_pages(Request& request);
  void fill_row(Request& request, int num_tokens, bool prefill, Step& step);
  void apply_row(const StepRow& row, int row_index, std::span<const int32_t> tokens);
  void accept_tokens(Request& request, std::span<const int32_t> tokens, StepEvent& event);
  void accept_token(Request& request, StepEvent& event);
  void cache_prompt(Request& request);
  void leave_running(Request& request);
  void end(Request& request);
  void release_pages(Request& request);
  void release(Request& request);
  void release_deferred(uint64_t committed_step);

  const SchedulerConfig config_;
  const int num_groups_;
  int full_groups_ = 0;                 // those without a window
  PagePool pool_;
  std::optional<StatePool> states_;
  bool proposing_ = true;
  bool waits_for_tokens_ = false;  // of the step at hand: how many tokens the steps before it give is not known
  RadixTree tree_;
  NewTokenRatio new_token_ratio_;
  std::unordered_map<RequestId, std::unique_ptr<Request>> requests_;  // live or draining
  std::set<Request*, QueueOrder> waiting_;
  std::vector<Request*> running_;       // admitted and not ended, in order of admission
  std::vector<Request*> draining_;      // ended, but in an uncommitted step
  Request* chunked_ = nullptr;          // the one whose prompt is cut between steps
  std::deque<Step> in_flight_;          // uncommitted, oldest first
  Step scratch_;                        // the step being built; its vectors are reused
  std::vector<DeferredPage> deferred_;  // references given back when that step is committed
  std::vector<DeferredState> deferred_states_;  // checkpoints that a step under way reads
  int copy_source_pages_ = 0;           // how many of them are sources of copies, in groups without a window
  std::vector<const LoraAdapter*> adapters_;  // of running requests, while one is looked for
  std::vector<Request*> candidates_;
  std::vector<int32_t> displaced_;
  std::vector<StepEvent> events_;
  std::vector<void*> released_;
  uint64_t next_sequence_ = 0;
  SchedulerStats totals_;
};

}  // namespace warpweave
