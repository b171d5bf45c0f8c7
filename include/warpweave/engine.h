// The engine as its callers see it: token ids in, deltas out. No HTTP and no JSON.
//
// Thread-safe: any thread may call any method. An OutputSink is called from the engine's own
// threads, one call at a time per request, and must not block (hand the delta over and return).
// Source of the field names: the request and meta_info fields that users of SGLang know.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "warpweave/status.h"

namespace warpweave {

struct LoraAdapter;

namespace grammar {
class CompiledGrammar;
class CharDfa;
}

// Generation ends with the token by which the text holds a match; the match stays in the text.
struct StopRegex {
  std::string pattern;
  std::shared_ptr<const grammar::CharDfa> found;  // accepts the texts that hold a match
};

struct SamplingParams {
  int max_new_tokens = 128;
  int min_new_tokens = 0;    // before them nothing ends the answer: no end or stop token, stop string or stop regex
  float temperature = 1.0f;  // 0 means greedy
  float top_p = 1.0f;
  int top_k = -1;            // -1: all
  float min_p = 0.0f;
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  float repetition_penalty = 1.0f;
  std::optional<uint64_t> seed;
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  bool no_stop_trim = false;  // keep the matched stop string / token in the text
  std::vector<std::string> stop;
  std::vector<StopRegex> stop_regex;
  std::vector<int32_t> stop_token_ids;
  std::vector<int32_t> allowed_token_ids;          // sorted; empty: all
  std::vector<std::vector<int32_t>> bad_words;     // sequences whose last token is never sampled
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::shared_ptr<const grammar::CompiledGrammar> grammar;  // what the output must match; or null
};

// Which states of the model (rows behind its final norm) a request wants. `pooled`: those of its prompt as one vector,
// and no new tokens. `each`: of every prompt token and of every new one but the last. `last`: the newest of those.
enum class StateWish { none, pooled, each, last };

struct GenerateRequest {
  std::string rid;                    // unique among the live requests
  std::vector<int32_t> input_ids;     // not empty
  SamplingParams sampling;
  int priority = 0;                   // larger first, under --schedule-policy priority
  std::string cache_salt;             // requests share cached prefixes only under an equal salt, and of one adapter
  std::shared_ptr<const LoraAdapter> adapter;  // what joins the model's GEMMs (ops/lora.h); null: nothing
  bool return_logprob = false;
  int logprob_start_len = -1;         // first prompt position with a logprob; -1: output only
  int top_logprobs_num = 0;
  std::vector<int32_t> token_ids_logprob;
  bool stream = true;                 // false: one delta, at the end
  StateWish states = StateWish::none;
  // [input_ids, EngineInfo::hidden_size] in place of the embeddings of input_ids, which then only hold their places; or
  // null. Prefixes are cached by these values: an equal beginning is shared, and never with a prompt of ids.
  std::shared_ptr<const std::vector<float>> input_embeds;
  // With input_embeds: where each of its rows stands in time, height and width, [3, input_ids]; or null: where it is
  // counted. What follows the prompt goes on behind the farthest of them, on each axis
  // (EngineInfo::takes_position_ids).
  std::shared_ptr<const std::vector<int32_t>> position_ids;
  int second_text_at = -1;            // a pair's second text begins at this token (EngineInfo::reads_pairs); -1: none
  std::string wait_for_prefix_of;     // rid of a live request with the same prompt (n > 1), or empty
};

struct TokenLogprob {
  float logprob = 0.0f;  // NaN where there is none (the first prompt token)
  int32_t token_id = 0;
};

// Log-probabilities of one position.
struct PositionLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;        // top_logprobs_num entries, best first
  std::vector<TokenLogprob> token_ids;  // in the order of token_ids_logprob
};

struct FinishReason {
  enum class Type { stop, length, abort } type = Type::stop;
  int32_t matched_token = -1;    // the stop token, when a token ended it
  std::string matched_string;    // the stop string or stop_regex, when one ended it
  Status error;                  // for abort: why
};

// What came of speculative decoding so far.
struct SpeculationCounts {
  uint64_t verify_steps = 0;     // decode steps of a request
  uint64_t draft_tokens = 0;     // proposed in them
  uint64_t accepted_tokens = 0;  // of those, kept
  // Tokens that a step brings.
  double accept_length() const {
    return verify_steps > 0 ? 1 + static_cast<double>(accepted_tokens) / static_cast<double>(verify_steps) : 0;
  }
  double accept_rate() const {
    return draft_tokens > 0 ? static_cast<double>(accepted_tokens) / static_cast<double>(draft_tokens) : 0;
  }
};

// What one step added to one request.
struct OutputDelta {
  std::string rid;
  std::vector<int32_t> token_ids;      // new ids
  std::string text;                    // new text; whole UTF-8 characters; stop text withheld
  std::vector<PositionLogprobs> output_logprobs;  // one per new id, if asked
  std::vector<PositionLogprobs> input_logprobs;   // whole, in the first delta, if asked
  std::vector<float> pooled;           // with `finish`, if asked: an embedding, or a logit for each label
  std::vector<float> states;           // with `finish`, if asked for: [tokens or 1, EngineInfo::hidden_size]
  std::optional<FinishReason> finish;  // set on the last delta of the request
  // Totals so far.
  int prompt_tokens = 0;
  int completion_tokens = 0;
  int cached_tokens = 0;
  // With recurrent layers: tokens that attention layers had cached. Those past the last checkpoint of a state, after
  // which cached_tokens counts no more, are computed again by all layers.
  std::optional<int> cached_kv_tokens;
  int total_retractions = 0;
  std::optional<SpeculationCounts> speculation;  // unset: the engine does not speculate
  double queue_time_s = 0;    // arrival to first scheduling
  double e2e_latency_s = 0;   // arrival to this delta
};

using OutputSink = std::function<void(OutputDelta)>;

// Steps of one kind since the start.
struct StepTotals {
  uint64_t steps = 0;
  uint64_t requests = 0;
  uint64_t tokens = 0;
  double device_ms = 0;
  double draft_ms = 0;            // of that, the draft model's; 0 where the device does not tell
  double host_ms = 0;             // choosing, preparing and enqueueing; with overlap, while the step before runs
};

// Steps since the start by the tokens in them. counts[i]: more than limits_tokens[i - 1] and at most limits_tokens[i];
// the last one: more than any limit. The limits are those of vLLM's dashboards.
struct StepSizes {
  static constexpr std::array<int, 13> limits_tokens = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
  std::array<uint64_t, limits_tokens.size() + 1> counts{};
};

// A snapshot for /metrics, /get_server_info and the periodic log line.
struct EngineStats {
  int running_reqs = 0;
  int queued_reqs = 0;
  int64_t used_tokens = 0;        // pool tokens owned by running requests
  int64_t evictable_tokens = 0;   // cached, owned by nobody
  int64_t max_total_tokens = 0;
  double gen_throughput_tokens_per_s = 0;   // over the last ten seconds; falls to 0 when idle
  uint64_t prompt_tokens_total = 0;
  uint64_t cached_tokens_total = 0;
  std::optional<uint64_t> cached_kv_tokens_total;  // of OutputDelta::cached_kv_tokens; unset: no recurrent layers
  uint64_t generation_tokens_total = 0;
  uint64_t requests_total = 0;
  uint64_t aborted_requests_total = 0;
  uint64_t retracted_reqs_total = 0;
  uint64_t evicted_tokens_total = 0;
  uint64_t steps_total = 0;
  double step_overhead_us = 0;    // host time of the last step outside the model's forward
  StepTotals decode_steps, prefill_steps, mixed_steps;  // mixed: prefill and decode in one
  StepSizes step_sizes;           // of all three kinds
  std::optional<SpeculationCounts> speculation;  // of all requests; unset: the engine does not speculate
  // Proposals kept, by how far behind the row's own token they stood: [0] right behind it. Deeper ones than have a
  // place: none.
  std::array<uint64_t, 64> accepted_by_position{};
};

// How the experts of one layer were chosen since the start.
struct ExpertLayerLoad {
  int layer = 0;
  int experts = 0;
  uint64_t choices = 0;           // rows times experts per row
  uint64_t busiest = 0;           // choices of the most chosen expert
  int never_chosen = 0;           // experts without any
};

// What does not change after start.
struct EngineInfo {
  std::string model_path;
  std::string served_model_name;
  std::string model_type;         // "llama"
  std::string architecture;       // "LlamaForCausalLM"
  std::string dtype;
  std::string kv_cache_dtype;
  std::string device;             // "cpu: AMD EPYC, avx512_bf16, 2 threads"
  std::string prefill_attention_backend;
  std::string decode_attention_backend;
  std::vector<std::string> attention_reasons;  // requested -> resolved, because ...
  std::vector<std::string> attention_refused;  // "fa3: has no kernels for CPU (x86-64)"
  int context_len = 0;
  int vocab_size = 0;
  int hidden_size = 0;
  bool generates = true;              // false: the model has no vocabulary to choose from
  bool gives_states = false;          // this device copies states back
  bool takes_position_ids = false;    // the model's rotation has sections (M-RoPE), and this device reads them
  bool reads_pairs = false;           // an encoder: its tokenizer joins two texts as it has seen them in training
  bool pools = false;                 // requests for pooled states are taken
  int pooled_size = 0;                // values of a pooled result
  std::string pooling;                // for people: "last, normalized"
  bool normalizes_pooled = false;     // pooled states have length 1
  std::vector<std::string> labels;    // of a classifier; empty: pooled results are embeddings
  int page_size = 1;
  int num_pages = 0;
  int64_t max_total_tokens = 0;       // that the KV pool surely holds
  int64_t max_window_tokens = 0;      // in layers with a sliding window, where the pool is split; 0: all share it
  int64_t max_tokens_at_context = 0;  // that it holds in requests of context_len: more where layers have windows
  int max_running_requests = 0;
  int max_queued_requests = -1;   // -1: no bound
  int chunked_prefill_size = 0;
  bool enable_mixed_chunk = false;
  std::vector<int32_t> eos_token_ids;
  size_t weight_bytes = 0;
  size_t kv_cache_bytes = 0;
  double load_seconds = 0;
  bool has_tokenizer = true;
};

// A recording of steps.
struct ProfileRequest {
  std::string folder;             // made where it lacks
  int num_steps = 0;              // after so many it ends by itself; 0: with stop_profile()
  int64_t start_step = 0;         // begins behind so many steps since the engine's start, or at once
};

class Engine {
 public:
  virtual ~Engine() = default;

  virtual const EngineInfo& info() const = 0;
  virtual EngineStats stats() const = 0;
  // By layer; empty for a model without experts, and where the device does not count.
  virtual std::vector<ExpertLayerLoad> expert_load() const { return {}; }

  // Checks the request against the model's limits (vocab, context, pool) and queues it.
  // `invalid_argument` names the field; `resource_exhausted` when the queue is full; `unavailable`
  // when draining. On success the sink gets deltas until one carries `finish`, exactly one.
  virtual Status submit(GenerateRequest request, OutputSink sink) = 0;

  // Ends a request: its pages are free within a step and its sink gets finish = abort.
  // An unknown rid is ignored (it may just have finished). Empty rid: all requests.
  virtual void abort(const std::string& rid) = 0;

  // Drops every cached prefix. False when requests are running (nothing is dropped then).
  virtual bool flush_cache() = 0;

  // Recounts who holds which KV page. `internal` names the first thing that is wrong. Costs a pass over the pool; for
  // diagnosis.
  virtual Status audit() = 0;

  // Records when steps are prepared and computed; stop_profile() returns the path of the file it wrote.
  virtual Status start_profile(const ProfileRequest&) { return Status::unsupported("this engine records no profiles"); }
  virtual Result<std::string> stop_profile() { return Status::unsupported("this engine records no profiles"); }

  // No new requests; running ones go on until `deadline_s` passes, then are aborted. Blocks.
  virtual void drain(double deadline_s) = 0;
};

}  // namespace warpweave
