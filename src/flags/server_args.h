// Every flag of `warpweave serve`, `run` and `explain`: parsed values and the functions over them.
//
// One table (flag_table.cc) drives parsing, --help, docs/flags.md, the nearest-name advice and the
// flags in /get_server_info. Names, meanings and defaults are those SGLang's users know; a flag of
// theirs that does nothing here is refused with advice (known_flags.cc), never ignored.
// Plain values; copy freely. Errors are `invalid_argument` or `unsupported` with `field` = the flag,
// and the message says flag, value, rule and the nearest command that works.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "warpweave/status.h"

namespace warpweave {

// An empty string and nullopt mean "not given": the engine decides and reports what it chose.
struct ServerArgs {
  // Model and tokenizer
  std::string model_path;                    // empty: the embedded tale-llama
  std::string tokenizer_path;                // empty: model_path
  bool skip_tokenizer_init = false;
  std::string load_format = "auto";          // auto, safetensors, gguf, dummy
  bool trust_remote_code = false;            // accepted; runs nothing
  std::string served_model_name;             // empty: the last part of model_path
  std::string chat_template;                 // a file, or the template text itself
  std::string completion_template = "auto";  // of `suffix`: a name, a JSON file, auto (by the tokenizer), none
  std::string weight_version = "default";    // what answers call the weights' version
  std::optional<int> context_length;         // tokens
  std::string sampling_defaults = "model";   // model, openai
  std::string tool_call_parser = "auto";     // a format of src/output, auto (by the template), none
  std::string reasoning_parser = "none";
  std::string grammar_backend = "auto";      // none, or who else would compile grammars
  bool constrained_json_disable_any_whitespace = false;
  bool disable_jump_forward = false;
  bool is_embedding = false;
  std::string pooling = "auto";              // last, mean, cls; auto: by the model's files

  // Numbers: dtype and device
  std::string dtype = "auto";                // auto, half, float16, bfloat16, float, float32
  std::string moe_runner_backend = "auto";   // or warpweave, which is the same
  std::string quantization;                  // fp8; empty: as the checkpoint stores its weights
  std::string kv_cache_dtype = "auto";
  std::string device = "auto";               // auto, cpu, cuda
  int tp_size = 1;
  std::optional<int> threads;                // compute threads; unset: one per usable CPU
  std::optional<int64_t> random_seed;

  // HTTP server
  std::string host = "127.0.0.1";
  int port = 30000;                          // 0: any free port, printed at start
  std::string api_key;
  std::string admin_api_key;
  bool skip_server_warmup = false;
  double drain_timeout_s = 30;
  int max_connections = 4096;
  int64_t max_body_bytes = 32 << 20;
  int64_t max_logprob_values = 1 << 19;      // of one request
  bool allow_unknown_fields = false;
  bool any_model_name = false;
  bool no_special_tokens_in_content = false;
  double http_timeout_s = 60;                // a request must arrive within it; idle keep-alive
  std::string allowed_origins;               // "https://a.example,..."; empty: all, but for changes none
  std::string allowed_hosts;                 // "name,..."

  // Memory and scheduling
  std::optional<double> mem_fraction_static;
  std::optional<int64_t> max_total_tokens;
  std::optional<int> max_running_requests;
  std::optional<int> max_queued_requests;
  int max_prefill_tokens = 16384;
  std::optional<int> chunked_prefill_size;   // -1: prompts are never split
  bool enable_mixed_chunk = false;
  bool disable_mixed_chunk = false;
  std::optional<int> mixed_chunk_rows;
  std::string schedule_policy = "fcfs";      // fcfs, lpm, priority
  double schedule_conservativeness = 1.0;
  std::optional<int> page_size;              // tokens
  std::string prefix_match = "token";        // token, page
  bool disable_radix_cache = false;
  bool disable_chunked_prefix_cache = false;  // of latent attention
  bool disable_hybrid_swa_memory = false;
  std::optional<double> swa_full_tokens_ratio;  // in (0, 1]
  std::string radix_eviction_policy = "lru";
  // Of models with recurrent layers
  std::string mamba_ssm_dtype;               // float32, bfloat16; empty: float32
  std::optional<int> mamba_track_interval;   // tokens
  std::optional<int> max_mamba_cache_size;   // slots
  std::optional<double> mamba_full_memory_ratio;
  bool disable_overlap_schedule = false;
  int stream_interval = 1;                   // tokens per streamed delta
  bool stream_output = false;                // streams of /generate hold what is new, not all so far

  // Attention
  std::string attention_backend;
  std::string prefill_attention_backend;
  std::string decode_attention_backend;
  std::string flex_attention_score_mod;      // expressions, docs/flex-attention.md
  std::string flex_attention_mask_mod;
  std::string flex_attention_params;         // "name=number, ..."
  std::string attention_backend_plugin;      // a shared library with a backend
  std::string attention_tuning_file;         // measurements of `warpweave tune`
  std::string nsa_prefill_backend;
  std::string nsa_decode_backend;
  std::string linear_attn_backend;
  std::string linear_attn_prefill_backend;
  std::string linear_attn_decode_backend;
  std::string mm_attention_backend;
  bool enable_deterministic_inference = false;
  bool disable_cuda_graph = false;
  bool routing_dice = false;         // no flag: experts are drawn, which benchmarks ask for (ops/cuda/experts.h)
  // No flag, and on GPUs only: guesses are right with this probability whatever the model says, which benchmarks ask
  // for.
  std::optional<double> acceptance_dice;
  std::optional<int> cuda_graph_max_bs;
  std::string cuda_graph_bs;                 // "1,2,4,8"

  // Speculative decoding
  std::string speculative_algorithm;
  std::optional<int> speculative_num_steps;
  std::optional<int> speculative_eagle_topk;
  std::optional<int> speculative_num_draft_tokens;
  std::string speculative_attention_mode = "prefill";
  bool speculative_adaptive = false;
  std::optional<double> speculative_accept_threshold_single;
  std::optional<double> speculative_accept_threshold_acc;
  std::string speculative_draft_model_path;
  std::string speculative_draft_attention_backend;
  std::string speculative_token_map;
  std::string speculative_draft_model_quantization;
  std::optional<int> speculative_draft_window_size;
  std::optional<int> speculative_ngram_min_match_window_size;
  std::optional<int> speculative_ngram_max_match_window_size;
  std::optional<int> speculative_ngram_max_trie_depth;
  std::optional<int> speculative_ngram_min_bfs_breadth;
  std::optional<int> speculative_ngram_max_bfs_breadth;
  std::string speculative_ngram_match_type;
  std::optional<int64_t> speculative_ngram_capacity;

  // Adapters
  bool enable_lora = false;
  std::string lora_paths;                    // "name=folder" or "folder", a line each
  std::string lora_root;
  int max_lora_rank = 64;
  int max_loras_per_batch = 8;
  int max_loaded_loras = 64;
  std::string lora_target_modules;           // names, a line each; empty or "all": every one
  std::string lora_backend = "auto";         // or warpweave, which is the same
  bool wants_lora() const { return enable_lora || !lora_paths.empty() || !lora_root.empty(); }

  // Observation
  bool enable_nan_detection = false;         // name the layer of the first NaN
  bool enable_kv_canary = false;             // poison free KV pages and check them
  std::optional<int> dump_batch;             // the forward that is written to a file, from 1
  std::string dump_batch_file = "warpweave-batch.wwb";
  std::optional<int> dump_batch_layer;       // unset: every layer
  std::string log_level = "info";            // debug, info, warning, error
  bool log_requests = false;
  bool enable_metrics = false;
  std::string metrics_compat = "sglang";     // sglang, vllm, none
  bool enable_cache_report = false;
  double decode_log_interval_s = 10;
  std::string profile_dir;                   // of /start_profile; empty: it is refused

  // `run` only; unset: generation_config.json's, else what suits small chat models
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<int> top_k;                  // -1: all
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<int> max_tokens;             // of one answer; unset: the room in the context
  std::string system_prompt;

  std::vector<Status> unserved_values;  // what was said of flags that keep their default for it

  // `explain` only
  std::string hardware;                      // a described machine; empty: this one
  bool json = false;
};

enum class Command { serve, run, explain };

struct ParsedFlags {
  ServerArgs args;
  std::vector<std::string> notices;  // what an accepted flag does not do here, one line each
  bool help = false;                 // --help: the common flags
  bool help_all = false;             // --help-all: every flag
};

// `argv` without the program's and the command's name. After --help or --help-all nothing else is
// checked.
Result<ParsedFlags> parse_flags(Command command, std::span<const std::string> argv);

// What flags ask for that is not served, each as `unsupported` with its flag: refused by serve and run
// when they parse them, together, and by explain beside what else it finds.
std::vector<Status> unserved_flags(const ServerArgs& args);

std::string flags_help(Command command, bool all);

// docs/flags.md, whole.
std::string flags_markdown();

// {"model_path": ..., "port": 30000, ...}: every flag's value; the keys are only said to be set.
nlohmann::ordered_json server_args_json(const ServerArgs& args);

}  // namespace warpweave
