#include "flags/flag_table.h"

#include <algorithm>

namespace warpweave {
namespace {

using A = ServerArgs;
using G = FlagGroup;

constexpr double kMaxInt = std::numeric_limits<int>::max();

constexpr RefusedValue kMoeRunners[] = {
    {"aiter", "needs an AMD GPU"},
    {"cutlass", "needs CUTLASS's kernels, which are not built in"},
    {"deep_gemm", "needs the DeepGEMM library, which is not built in"},
    {"experimental_sgl_marlin", "multiplies 4-bit weights, which are not served here"},
    {"experimental_sgl_trtllm", "needs a Blackwell GPU and TensorRT-LLM's kernels, which are not built in"},
    {"flashinfer_cutedsl", "multiplies NVFP4 weights, which are not served here"},
    {"flashinfer_cutlass", "needs FlashInfer's kernels, which are not built in"},
    {"flashinfer_mxfp4", "multiplies MXFP4 weights, which are not served here"},
    {"flashinfer_trtllm", "needs a Blackwell GPU and TensorRT-LLM's kernels, which are not built in"},
    {"flashinfer_trtllm_routed", "needs a Blackwell GPU and TensorRT-LLM's kernels, which are not built in"},
    {"hpc_ops", "needs the HPC-Ops library, which is not built in"},
    {"humming", "multiplies weights of formats that are not served here"},
    {"intel_xpu", "needs an Intel GPU"},
    {"marlin", "multiplies 4-bit weights, which are not served here"},
    {"megamoe", "spreads experts over several GPUs, and one device serves here"},
    {"triton", "needs the Triton compiler, which is not built in"},
    {"triton_kernel", "needs the Triton compiler, which is not built in"},
};

std::vector<FlagSpec> model_flags() {
  return {
      {.names = {"--model-path", "--model"}, .group = G::model, .target = &A::model_path,
       .value_name = "PATH", .help = "Model folder in Hugging Face layout, a GGUF file, or an id in the local Hub cache",
       .default_text = "the embedded tale-llama", .common = true},
      {.names = {"--tokenizer-path"}, .group = G::model, .target = &A::tokenizer_path,
       .value_name = "PATH", .help = "Folder that holds tokenizer.json",
       .default_text = "the model's"},
      {.names = {"--skip-tokenizer-init"}, .group = G::model, .target = &A::skip_tokenizer_init,
       .help = "Serve token ids only: requests carry input_ids, answers output_ids"},
      {.names = {"--load-format"}, .group = G::model, .target = &A::load_format,
       .value_name = "FORMAT",
       .help = "Where weights come from; dummy makes random ones from config.json",
       .choices = {"auto", "safetensors", "gguf", "dummy"},
       .unserved_choices = {"pt", "npcache", "sharded_state", "bitsandbytes", "layered", "mistral", "flash_rl",
                            "remote", "remote_instance", "private", "fastsafetensors", "runai_streamer"}},
      {.names = {"--trust-remote-code"}, .group = G::model, .target = &A::trust_remote_code,
       .help = "Accepted for compatibility; code in model folders is never run",
       .notice = "--trust-remote-code: accepted, and no code of the model folder is run"},
      {.names = {"--served-model-name"}, .group = G::model, .target = &A::served_model_name,
       .value_name = "NAME", .help = "The name in /v1/models and in answers",
       .default_text = "the model's folder or file", .common = true},
      {.names = {"--chat-template"}, .group = G::model, .target = &A::chat_template,
       .value_name = "FILE", .help = "Jinja chat template: a file, or the text itself",
       .default_text = "the model's"},
      {.names = {"--completion-template"}, .group = G::model, .target = &A::completion_template, .value_name = "NAME",
       .help = "How /v1/completions fills in between prompt and suffix: deepseek_coder, star_coder, qwen_coder, a JSON file "
               "of SGLang's shape, auto (by the tokenizer), none"},
      {.names = {"--weight-version"}, .group = G::model, .target = &A::weight_version, .value_name = "TEXT",
       .help = "What answers call the version of the weights; /update_weight_version changes it"},
      {.names = {"--context-length"}, .group = G::model, .target = &A::context_length,
       .value_name = "TOKENS", .help = "Longest prompt plus answer", .default_text = "the model's",
       .min = 2, .max = kMaxInt, .common = true},
      {.names = {"--sampling-defaults"}, .group = G::model, .target = &A::sampling_defaults,
       .value_name = "SOURCE",
       .help = "Sampling values a request leaves out: generation_config.json or OpenAI's",
       .choices = {"model", "openai"}},
      {.names = {"--tool-call-parser"}, .group = G::model, .target = &A::tool_call_parser, .value_name = "FORMAT",
       .help = "How the model writes calls of tools; auto: the chat template tells; none: calls stay text",
       .choices = {"auto", "none", "deepseekv3", "deepseekv31", "glm", "glm45", "glm47", "gpt-oss", "hermes",
                   "json", "kimi_k2", "llama3", "llama4", "mistral", "pythonic", "qwen", "qwen25", "qwen3_coder",
                   "step3p5"},
       .unserved_choices = {"apertus2509", "beam", "cohere_command4", "deepseekv32", "deepseekv4", "deepseekv41", "dots",
                            "k2_horizon", "kimi_k3", "lfm2", "ling3", "mimo", "minicpm5", "muse", "poolside_v1", "spark25",
                            "step3", "minimax-m2", "minimax-m3", "nanbeige", "trinity", "interns1", "hunyuan", "gigachat3",
                            "gigachat35", "gemma4", "inkling", "iquest_q1", "response_template"}},
      {.names = {"--reasoning-parser"}, .group = G::model, .target = &A::reasoning_parser, .value_name = "FORMAT",
       .help = "How the model marks reasoning, which then comes as reasoning_content; auto: the chat template tells; "
               "none: it stays in the content",
       .choices = {"none", "auto", "deepseek-r1", "deepseek-v3", "glm45", "gpt-oss", "interns1", "kimi",
                   "kimi_k2", "minimax", "nemotron_3", "qwen3", "qwen3-thinking", "step3"},
       .unserved_choices = {"apertus2509", "beam", "deepseek-v4", "deepseek-v41", "dots", "ling3", "hunyuan", "k2_horizon",
                            "kimi_k3", "mimo", "muse", "poolside_v1", "minimax-append-think", "minimax-m3", "nanbeige",
                            "step3p5", "mistral", "granite_thinking_parser", "gemma4", "gigachat35", "inkling",
                            "iquest_q1", "cohere_command4", "response_template"}},
      {.names = {"--grammar-backend"}, .group = G::model, .target = &A::grammar_backend,
       .value_name = "NAME",
       .help = "Structured output: none turns it off; every other name means Warpweave's own engine",
       .choices = {"auto", "warpweave", "xgrammar", "outlines", "llguidance", "none"}},
      {.names = {"--constrained-json-disable-any-whitespace"}, .group = G::model,
       .target = &A::constrained_json_disable_any_whitespace,
       .help = "Structured JSON without any whitespace"},
      {.names = {"--disable-jump-forward"}, .group = G::model, .target = &A::disable_jump_forward,
       .help = "Without speculation: write text that a grammar forces token by token, not several tokens a step; on GPUs it always is"},
      {.names = {"--is-embedding", "--embeddings", "--embedding"}, .group = G::model, .target = &A::is_embedding,
       .help = "Serve embeddings of a model that generates; models saved for embeddings or with labels need no flag"},
      {.names = {"--pooling"}, .group = G::model, .target = &A::pooling, .value_name = "METHOD",
       .help = "Whose state an embedding is: the last token's, the mean of all, the first one's (cls); auto: the model's "
               "files tell, else last",
       .choices = {"auto", "last", "mean", "cls"}},
  };
}

std::vector<FlagSpec> number_flags() {
  return {
      {.names = {"--dtype"}, .group = G::numbers, .target = &A::dtype, .value_name = "DTYPE",
       .help = "Type of weights and activations; auto keeps the checkpoint's",
       .choices = {"auto", "half", "float16", "bfloat16", "float", "float32"}, .common = true},
      {.names = {"--quantization"}, .group = G::numbers, .target = &A::quantization,
       .value_name = "METHOD",
       .help = "fp8 rounds the weights of attention and feed-forward to 8 bits (e4m3, one scale an output "
               "feature) while they are read; fp8 checkpoints need no flag",
       .default_text = "as the checkpoint says", .choices = {"fp8"},
       .unserved_choices = {"awq", "awq_marlin", "gptq", "gptq_marlin", "marlin", "bitsandbytes", "gguf", "modelopt",
                            "modelopt_fp8", "modelopt_fp4", "petit_nvfp4", "w8a8_int8", "w8a8_fp8", "moe_wna16",
                            "qoq", "w4afp8", "mxfp4", "mxfp8", "nvfp4", "auto-round", "compressed-tensors", "quark"}},
      {.names = {"--moe-runner-backend"}, .group = G::numbers, .target = &A::moe_runner_backend,
       .value_name = "NAME",
       .help = "What multiplies the experts of a mixture; auto takes this program's own kernels, the only ones here",
       .choices = {"auto", "warpweave"}, .refused = kMoeRunners},
      {.names = {"--kv-cache-dtype"}, .group = G::numbers, .target = &A::kv_cache_dtype,
       .value_name = "DTYPE", .help = "Type of the KV pool; auto follows --dtype",
       .choices = {"auto", "fp8_e5m2", "fp8_e4m3", "bf16", "bfloat16", "f16", "f32", "fp4_e2m1", "fp8_ds_mla", "fp4_mla"},
       .unserved_choices = {"nvfp4", "fp4_mx_block16", "mxfp8"}},
      {.names = {"--device"}, .group = G::numbers, .target = &A::device, .value_name = "DEVICE",
       .help = "Where the model runs: cpu, cuda, or auto: a usable NVIDIA GPU, else the CPU"},
      {.names = {"--hardware"}, .group = G::numbers, .target = &A::hardware, .value_name = "NAME",
       .help = "Explain for a machine by name: h100, h200, h20, b200, gb200, rtx5090, a100, a40, l40s, rtx4090, "
               "t4, mi300x, mi355x, intel-gpu, npu, xeon, ...", .default_text = "this one", .explain_only = true},
      {.names = {"--tensor-parallel-size", "--tp-size", "--tp"}, .group = G::numbers,
       .target = &A::tp_size, .value_name = "N",
       .help = "Tensor parallelism: one device serves, so 1; on a CPU --threads spreads the work", .min = 1,
       .max = kMaxInt},
      {.names = {"--threads"}, .group = G::numbers, .target = &A::threads, .value_name = "N",
       .help = "Compute threads", .default_text = "one per usable CPU", .min = 1, .max = 1024,
       .common = true},
      {.names = {"--random-seed"}, .group = G::numbers, .target = &A::random_seed,
       .value_name = "SEED", .help = "Seed of requests that bring none", .default_text = "random",
       .min = 0, .max = 9007199254740992.0},
  };
}

std::vector<FlagSpec> http_flags() {
  return {
      {.names = {"--host"}, .group = G::http, .target = &A::host, .value_name = "ADDRESS",
       .help = "Address to listen on; 0.0.0.0 for every interface", .common = true},
      {.names = {"--port"}, .group = G::http, .target = &A::port, .value_name = "PORT",
       .help = "Port to listen on; 0 takes a free one", .min = 0, .max = 65535, .common = true},
      {.names = {"--api-key"}, .group = G::http, .target = &A::api_key, .value_name = "KEY",
       .help = "Requests must send 'Authorization: Bearer KEY'", .default_text = "no key needed",
       .common = true, .secret = true},
      {.names = {"--admin-api-key"}, .group = G::http, .target = &A::admin_api_key,
       .value_name = "KEY", .help = "Key of routes that change the server, such as /flush_cache",
       .default_text = "--api-key opens them too", .secret = true},
      {.names = {"--skip-server-warmup"}, .group = G::http, .target = &A::skip_server_warmup,
       .help = "Be ready without a first request of our own"},
      {.names = {"--drain-timeout"}, .group = G::http, .target = &A::drain_timeout_s,
       .value_name = "SECONDS", .help = "How long running requests may go on after SIGTERM",
       .min = 0, .max = 86400},
      {.names = {"--max-connections"}, .group = G::http, .target = &A::max_connections,
       .value_name = "N", .help = "Open connections; more get 503, but for /health; lowered where the system "
                                  "allows fewer open files", .min = 1, .max = 1000000},
      {.names = {"--max-body-bytes"}, .group = G::http, .target = &A::max_body_bytes,
       .value_name = "BYTES", .help = "Largest request body; a larger one gets 413", .min = 1024,
       .max = 1 << 30},
      {.names = {"--max-logprob-values"}, .group = G::http, .target = &A::max_logprob_values,
       .value_name = "N",
       .help = "Log-probabilities one request may return: positions x (1 + top + listed) x sequences",
       .min = 1024, .max = 1 << 30},
      {.names = {"--allow-unknown-fields"}, .group = G::http, .target = &A::allow_unknown_fields,
       .help = "Ignore fields of requests that this server does not know, instead of refusing them"},
      {.names = {"--any-model-name"}, .group = G::http, .target = &A::any_model_name,
       .help = "Answer requests for any model by the one that is served, instead of 404"},
      {.names = {"--no-special-tokens-in-content"}, .group = G::http,
       .target = &A::no_special_tokens_in_content,
       .help = "Special tokens written in messages and tools are text (docs/security.md)"},
      {.names = {"--http-timeout"}, .group = G::http, .target = &A::http_timeout_s,
       .value_name = "SECONDS",
       .help = "For a request to arrive whole, a reader to take each MiB of its answer, an idle connection",
       .min = 0.1, .max = 86400},
      {.names = {"--allowed-origins"}, .group = G::http, .target = &A::allowed_origins, .value_name = "LIST",
       .help = "Web pages that may send requests, as in https://a.example,https://b.example; * for every page, "
               "state changes included",
       .default_text = "every page; for state changes only the server's own"},
      {.names = {"--allowed-hosts"}, .group = G::http, .target = &A::allowed_hosts, .value_name = "LIST",
       .help = "Names in the Host header that requests must use, beside addresses, localhost and --host; * for any",
       .default_text = "any; for state changes without a key none"},
  };
}

std::vector<FlagSpec> memory_flags() {
  return {
      {.names = {"--mem-fraction-static"}, .group = G::memory, .target = &A::mem_fraction_static, .value_name = "FRACTION", .help = "Share of memory for weights and KV pool", .default_text = "0.9 with CUDA, else a KV pool of 0.6 of the free memory", .min = 0.01, .max = 1, .common = true},
      {.names = {"--max-total-tokens"}, .group = G::memory, .target = &A::max_total_tokens, .value_name = "TOKENS", .help = "KV pool size", .default_text = "from memory", .min = 1, .max = 1e12, .common = true},
      {.names = {"--max-running-requests"}, .group = G::memory, .target = &A::max_running_requests, .value_name = "N", .help = "Requests in one batch", .default_text = "512 with CUDA, else 256", .min = 1, .max = kMaxInt, .common = true},
      {.names = {"--max-queued-requests"}, .group = G::memory, .target = &A::max_queued_requests, .value_name = "N", .help = "Requests that may wait; more get 429", .default_text = "4096", .min = 1, .max = kMaxInt},
      {.names = {"--max-prefill-tokens"}, .group = G::memory, .target = &A::max_prefill_tokens, .value_name = "TOKENS", .help = "Prompt tokens of one prefill batch", .min = 1, .max = kMaxInt},
      {.names = {"--chunked-prefill-size"}, .group = G::memory, .target = &A::chunked_prefill_size, .value_name = "TOKENS", .help = "Longer prompts are prefilled in chunks; -1 never splits", .default_text = "8192 with CUDA, else 512", .min = -1, .max = kMaxInt},
      {.names = {"--enable-mixed-chunk"}, .group = G::memory, .target = &A::enable_mixed_chunk, .help = "Put prefill chunks and decodes into one batch", .default_text = "on with CUDA, else off"},
      {.names = {"--disable-mixed-chunk"}, .group = G::memory, .target = &A::disable_mixed_chunk, .help = "Keep prefill and decode steps apart"},
      {.names = {"--mixed-chunk-rows"}, .group = G::memory, .target = &A::mixed_chunk_rows, .value_name = "ROWS", .help = "Prompts join steps that decode in pieces that fill them to about ROWS; "
                                                                                                                          "0: as much as fits",
       .default_text = "512 with CUDA, more with experts, else 0",
       .min = 0,
       .max = kMaxInt},
      {.names = {"--schedule-policy"}, .group = G::memory, .target = &A::schedule_policy, .value_name = "POLICY", .help = "Order of the queue: arrival, longest cached prefix first, or by priority", .choices = {"fcfs", "lpm", "priority"}},
      {.names = {"--schedule-conservativeness"}, .group = G::memory, .target = &A::schedule_conservativeness, .value_name = "X", .help = "Above 1 admits less and retracts less", .min = 0.01, .max = 100},
      {.names = {"--page-size"}, .group = G::memory, .target = &A::page_size, .value_name = "TOKENS", .help = "Tokens per KV page", .default_text = "1", .min = 1, .max = 4096},
      {.names = {"--prefix-match"}, .group = G::memory, .target = &A::prefix_match, .value_name = "UNIT", .help = "Reuse cached prefixes by the token or by whole pages", .choices = {"token", "page"}},
      {.names = {"--disable-radix-cache"}, .group = G::memory, .target = &A::disable_radix_cache, .help = "Keep no prefixes after their requests end"},
      {.names = {"--disable-chunked-prefix-cache"}, .group = G::memory, .target = &A::disable_chunked_prefix_cache, .help = "Latent attention: never make K and V of a cached prefix anew; prompts attend to its latent rows"},
      {.names = {"--disable-hybrid-swa-memory"}, .group = G::memory, .target = &A::disable_hybrid_swa_memory, .help = "Let layers with a sliding window keep the K/V that left it"},
      {.names = {"--swa-full-tokens-ratio"}, .group = G::memory, .target = &A::swa_full_tokens_ratio, .value_name = "RATIO", .help = "Splits the KV pool: tokens that layers with a sliding window hold, for one of the others", .default_text = "all share the pool by need", .min = 0.0001, .max = 1},
      {.names = {"--max-mamba-cache-size"}, .group = G::memory, .target = &A::max_mamba_cache_size, .value_name = "N", .help = "States of recurrent layers that are held: one for each running request, the others are "
                                                                                                                               "checkpoints of the prefix cache",
       .default_text = "from memory",
       .min = 1,
       .max = 1e8},
      {.names = {"--mamba-full-memory-ratio"}, .group = G::memory, .target = &A::mamba_full_memory_ratio, .value_name = "RATIO", .help = "Memory of those states, as a part of the KV pool's", .default_text = "0.9", .min = 0.001, .max = 1000},
      {.names = {"--mamba-track-interval"}, .group = G::memory, .target = &A::mamba_track_interval, .value_name = "TOKENS", .help = "From checkpoint to checkpoint of such a state; multiples of 64 cost least", .default_text = "256", .min = 16, .max = 1e9},
      {.names = {"--mamba-ssm-dtype"}, .group = G::memory, .target = &A::mamba_ssm_dtype, .value_name = "TYPE", .help = "Type of the states of recurrent layers", .default_text = "float32", .choices = {"float32", "bfloat16"}, .unserved_choices = {"float16"}},
      {.names = {"--radix-eviction-policy"}, .group = G::memory, .target = &A::radix_eviction_policy, .value_name = "POLICY", .help = "Which cached prefix goes first", .choices = {"lru"}},
      {.names = {"--disable-overlap-schedule"}, .group = G::memory, .target = &A::disable_overlap_schedule, .help = "Prepare each step only after the one before has ended"},
      {.names = {"--stream-interval"}, .group = G::memory, .target = &A::stream_interval, .value_name = "TOKENS", .help = "Tokens per streamed piece", .min = 1, .max = 4096},
      {.names = {"--stream-output", "--incremental-streaming-output"}, .group = G::memory, .target = &A::stream_output, .help = "Events of streams of /generate hold only what is new"},
  };
}

// clang-format off
std::vector<FlagSpec> attention_flags() {
  return {
      {.names = {"--attention-backend"}, .group = G::attention, .target = &A::attention_backend,
       .value_name = "NAME", .help = "Attention backend of both phases; see `warpweave backends`",
       .default_text = "chosen and explained", .common = true},
      {.names = {"--prefill-attention-backend"}, .group = G::attention,
       .target = &A::prefill_attention_backend, .value_name = "NAME",
       .help = "Attention backend of prefill", .default_text = "--attention-backend"},
      {.names = {"--decode-attention-backend"}, .group = G::attention,
       .target = &A::decode_attention_backend, .value_name = "NAME",
       .help = "Attention backend of decode", .default_text = "--attention-backend"},
      {.names = {"--flex-attention-score-mod"}, .group = G::attention,
       .target = &A::flex_attention_score_mod, .value_name = "EXPR",
       .help = "flex_attention: the new score from score, q_idx, kv_idx, h (docs/flex-attention.md)",
       .default_text = "score"},
      {.names = {"--flex-attention-mask-mod"}, .group = G::attention,
       .target = &A::flex_attention_mask_mod, .value_name = "EXPR",
       .help = "flex_attention: what a row sees, e.g. window(1024)", .default_text = "causal"},
      {.names = {"--flex-attention-params"}, .group = G::attention,
       .target = &A::flex_attention_params, .value_name = "NAMES",
       .help = "Named numbers of the two expressions: \"slope=0.5, width=128\"",
       .default_text = "none"},
      {.names = {"--attention-backend-plugin"}, .group = G::attention,
       .target = &A::attention_backend_plugin, .value_name = "FILE",
       .help = "A backend in a shared library (docs/add-a-backend.md), held to its claims before it serves; "
               "runs both phases unless other flags name backends", .default_text = "none"},
      {.names = {"--attention-tuning-file"}, .group = G::attention,
       .target = &A::attention_tuning_file, .value_name = "FILE",
       .help = "Measurements written by `warpweave tune`; --attention-backend auto decides by them",
       .default_text = "none: by rule"},
      {.names = {"--nsa-prefill-backend", "--dsa-prefill-backend"}, .group = G::attention,
       .target = &A::nsa_prefill_backend, .value_name = "NAME",
       .help = "Kernel of sparse attention (DeepSeek V3.2) in prefill: flashmla_sparse, flashmla_kv, "
               "flashmla_auto, fa3", .default_text = "by KV dtype"},
      {.names = {"--nsa-decode-backend", "--dsa-decode-backend"}, .group = G::attention,
       .target = &A::nsa_decode_backend, .value_name = "NAME",
       .help = "Kernel of sparse attention in decode", .default_text = "by KV dtype"},
      {.names = {"--linear-attn-backend"}, .group = G::attention, .target = &A::linear_attn_backend,
       .value_name = "NAME", .help = "Kernels of GDN and KDA layers: triton, cutedsl, "
                                      "flashinfer, cpu",
       .default_text = "triton; prompts on Hopper: cutedsl; CPUs: cpu"},
      {.names = {"--linear-attn-prefill-backend"}, .group = G::attention,
       .target = &A::linear_attn_prefill_backend, .value_name = "NAME",
       .help = "Those of prefill", .default_text = "--linear-attn-backend"},
      {.names = {"--linear-attn-decode-backend"}, .group = G::attention,
       .target = &A::linear_attn_decode_backend, .value_name = "NAME",
       .help = "Those of decode", .default_text = "--linear-attn-backend"},
      {.names = {"--mm-attention-backend"}, .group = G::attention,
       .target = &A::mm_attention_backend, .value_name = "NAME",
       .help = "Attention of a vision tower: sdpa, fa3, fa4, triton_attn, amx_attn, xpu_attn",
       .default_text = "by device"},
      {.names = {"--disable-cuda-graph"}, .group = G::attention, .target = &A::disable_cuda_graph,
       .help = "Capture no CUDA graphs; a CPU has none"},
      {.names = {"--cuda-graph-max-bs"}, .group = G::attention, .target = &A::cuda_graph_max_bs,
       .value_name = "N", .help = "Largest decode batch that runs as a CUDA graph",
       .default_text = "256", .min = 1, .max = 4096},
      {.names = {"--cuda-graph-bs"}, .group = G::attention, .target = &A::cuda_graph_bs,
       .value_name = "N ...", .help = "Decode batch sizes that get CUDA graphs, as in 1 2 4 8 or 1,2,4,8",
       .default_text = "1 2 4 8 12 16 and on by 8", .many = true},
      {.names = {"--enable-deterministic-inference"}, .group = G::attention,
       .target = &A::enable_deterministic_inference,
       .help = "Same output for any batch, chunking and cache state"},
      {.names = {"--speculative-algorithm"}, .group = G::speculative,
       .target = &A::speculative_algorithm, .value_name = "NAME", .help = "Speculative decoding",
       .default_text = "none", .choices = {"EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM"}},
      {.names = {"--speculative-num-steps"}, .group = G::speculative,
       .target = &A::speculative_num_steps, .value_name = "N", .help = "Draft steps of a draft model",
       .default_text = "by model", .min = 1, .max = 64},
      {.names = {"--speculative-eagle-topk"}, .group = G::speculative,
       .target = &A::speculative_eagle_topk, .value_name = "N", .help = "Branches per draft step; 1: chains",
       .default_text = "by model", .min = 1, .max = 64},
      {.names = {"--speculative-num-draft-tokens"}, .group = G::speculative,
       .target = &A::speculative_num_draft_tokens, .value_name = "N",
       .help = "Tokens verified at once", .default_text = "by model", .min = 1, .max = 256},
      {.names = {"--speculative-adaptive"}, .group = G::speculative, .target = &A::speculative_adaptive,
       .help = "Guess as many tokens as pay, by what was measured; --speculative-num-steps at most"},
      {.names = {"--speculative-accept-threshold-single"}, .group = G::speculative,
       .target = &A::speculative_accept_threshold_single, .value_name = "P",
       .help = "Below 1: keep a guess as likely as this whatever was drawn; changes what is sampled",
       .default_text = "1", .min = 0.001, .max = 1},
      {.names = {"--speculative-accept-threshold-acc"}, .group = G::speculative,
       .target = &A::speculative_accept_threshold_acc, .value_name = "P",
       .help = "Below 1: keep guesses this much more often than they are drawn; changes what is sampled",
       .default_text = "1", .min = 0.001, .max = 1},
      {.names = {"--speculative-attention-mode"}, .group = G::speculative,
       .target = &A::speculative_attention_mode, .value_name = "PHASE",
       .help = "Which phase's backend verifies drafts", .choices = {"prefill", "decode"}},
      {.names = {"--speculative-draft-model-path", "--speculative-draft-model"}, .group = G::speculative,
       .target = &A::speculative_draft_model_path, .value_name = "PATH",
       .help = "EAGLE, EAGLE3, STANDALONE: the folder of the draft model"},
      {.names = {"--speculative-token-map"}, .group = G::speculative,
       .target = &A::speculative_token_map, .value_name = "FILE",
       .help = "EAGLE, NEXTN: tokens that may be guessed, as JSON or of torch.save()", .default_text = "every token"},
      {.names = {"--speculative-draft-model-quantization"}, .group = G::speculative,
       .target = &A::speculative_draft_model_quantization, .value_name = "METHOD",
       .help = "fp8 rounds the draft model's weights as --quantization does the model's, and on GPUs of compute capability 9.0 "
               "and newer a copy of the output head that it reads; int8 and int4, on CPUs, to blocks of 8 and 4 bits; unquant "
               "leaves them as they are",
       .default_text = "CPUs: int4; heads on GPUs: fp8, but --quantization for NEXTN's layer; else unquant",
       .choices = {"fp8", "int8", "int4", "unquant"}},
      {.names = {"--speculative-draft-window-size"}, .group = G::speculative,
       .target = &A::speculative_draft_window_size, .value_name = "TOKENS",
       .help = "The draft model attends to so many last tokens only", .default_text = "all", .min = 1, .max = 1e9},
      {.names = {"--speculative-draft-attention-backend"}, .group = G::speculative,
       .target = &A::speculative_draft_attention_backend, .value_name = "NAME",
       .help = "The draft model's attention", .default_text = "as the model's"},
      {.names = {"--speculative-ngram-min-match-window-size"}, .group = G::speculative,
       .target = &A::speculative_ngram_min_match_window_size, .value_name = "N",
       .help = "NGRAM: last tokens that must have been seen together before", .default_text = "1", .min = 1, .max = 31},
      {.names = {"--speculative-ngram-max-match-window-size"}, .group = G::speculative,
       .target = &A::speculative_ngram_max_match_window_size, .value_name = "N",
       .help = "NGRAM: last tokens that are compared at most", .default_text = "12, within the trie depth", .min = 1, .max = 31},
      {.names = {"--speculative-ngram-max-trie-depth", "--speculative-ngram-branch-length"}, .group = G::speculative,
       .target = &A::speculative_ngram_max_trie_depth, .value_name = "N",
       .help = "NGRAM: windows must be smaller than this, for a token stands behind each", .default_text = "18", .min = 2, .max = 64},
      {.names = {"--speculative-ngram-min-bfs-breadth"}, .group = G::speculative,
       .target = &A::speculative_ngram_min_bfs_breadth, .value_name = "N",
       .help = "NGRAM, BFS: branches where the longest window agreed", .default_text = "1", .min = 1, .max = 64},
      {.names = {"--speculative-ngram-max-bfs-breadth"}, .group = G::speculative,
       .target = &A::speculative_ngram_max_bfs_breadth, .value_name = "N",
       .help = "NGRAM: branches at most",
       .default_text = "--speculative-eagle-topk, else 10; 1 in deterministic mode on CPUs", .min = 1, .max = 64},
      {.names = {"--speculative-ngram-match-type"}, .group = G::speculative,
       .target = &A::speculative_ngram_match_type, .value_name = "TYPE",
       .help = "NGRAM: the likeliest branches first, or all of a level", .default_text = "PROB", .choices = {"PROB", "BFS"}},
      {.names = {"--speculative-ngram-capacity"}, .group = G::speculative,
       .target = &A::speculative_ngram_capacity, .value_name = "N",
       .help = "NGRAM: trie nodes kept, of 28 bytes and 8 to 16 in the table", .default_text = "10000000", .min = 1000, .max = 1e9},
  };
}
// clang-format on

std::vector<FlagSpec> observation_flags() {
  return {
      {.names = {"--log-level"}, .group = G::observation, .target = &A::log_level,
       .value_name = "LEVEL", .help = "How much is logged",
       .choices = {"debug", "info", "warning", "error"}, .common = true},
      {.names = {"--enable-nan-detection"}, .group = G::observation, .target = &A::enable_nan_detection,
       .help = "When a request fails for a NaN, name the layer where the first one was (CPU only; slower)"},
      {.names = {"--enable-kv-canary"}, .group = G::observation, .target = &A::enable_kv_canary,
       .help = "Fill free KV pages with a pattern and stop a request that finds it changed (CPU only; "
               "slower)"},
      {.names = {"--dump-batch"}, .group = G::observation, .target = &A::dump_batch, .value_name = "N",
       .help = "Write the attention of the N-th forward, the warm-up's counted, to a file for "
               "`warpweave replay`", .default_text = "none", .min = 1, .max = kMaxInt},
      {.names = {"--dump-batch-file"}, .group = G::observation, .target = &A::dump_batch_file,
       .value_name = "FILE", .help = "Where --dump-batch writes"},
      {.names = {"--dump-batch-layer"}, .group = G::observation, .target = &A::dump_batch_layer,
       .value_name = "LAYER", .help = "Write only this layer", .default_text = "every layer", .min = 0,
       .max = kMaxInt},
      {.names = {"--log-requests"}, .group = G::observation, .target = &A::log_requests,
       .help = "Log each answered request's route and status; never its text"},
      {.names = {"--enable-metrics"}, .group = G::observation, .target = &A::enable_metrics,
       .help = "Prometheus metrics at /metrics", .common = true},
      {.names = {"--metrics-compat"}, .group = G::observation, .target = &A::metrics_compat,
       .value_name = "NAMES", .help = "Emit metrics under the names of another server's dashboards too",
       .choices = {"sglang", "vllm", "none"}},
      {.names = {"--enable-cache-report"}, .group = G::observation,
       .target = &A::enable_cache_report, .help = "Report cached prompt tokens in usage"},
      {.names = {"--log-interval"}, .group = G::observation, .target = &A::decode_log_interval_s,
       .value_name = "SECONDS", .help = "Between status lines while requests run; 0 for none",
       .min = 0, .max = 86400},
      {.names = {"--profile-dir"}, .group = G::observation, .target = &A::profile_dir, .value_name = "PATH",
       .help = "Where /start_profile writes its traces of steps", .default_text = "none, and /start_profile is refused"},
      {.names = {"--json"}, .group = G::observation, .target = &A::json,
       .help = "Print the explanation as JSON", .explain_only = true},
  };
}

std::vector<FlagSpec> chat_flags() {
  const auto of_run = [](FlagSpec spec) {
    spec.common = spec.run_only = true;
    return spec;
  };
  return {
      of_run({.names = {"--temperature"}, .group = G::chat, .target = &A::temperature, .value_name = "T",
              .help = "How freely words are chosen; 0 takes the likeliest", .default_text = "the model's, or 0.7",
              .min = 0, .max = 100}),
      of_run({.names = {"--top-p"}, .group = G::chat, .target = &A::top_p, .value_name = "P",
              .help = "Only the likeliest words that sum up to this probability",
              .default_text = "the model's, or 0.9", .min = 0.001, .max = 1}),
      of_run({.names = {"--top-k"}, .group = G::chat, .target = &A::top_k, .value_name = "N",
              .help = "Only this many of the likeliest words; -1 or 0 for all", .default_text = "the model's, or -1",
              .min = -1, .max = kMaxInt}),
      of_run({.names = {"--min-p"}, .group = G::chat, .target = &A::min_p, .value_name = "P",
              .help = "Only words at least this likely, relative to the likeliest",
              .default_text = "the model's, or 0", .min = 0, .max = 1}),
      of_run({.names = {"--repetition-penalty"}, .group = G::chat, .target = &A::repetition_penalty, .value_name = "F",
              .help = "Makes words that were there less likely; 1 does nothing",
              .default_text = "the model's, or 1", .min = 0.01, .max = 2}),
      of_run({.names = {"--max-tokens"}, .group = G::chat, .target = &A::max_tokens, .value_name = "TOKENS",
              .help = "Longest answer", .default_text = "what the context leaves", .min = 1, .max = kMaxInt}),
      of_run({.names = {"--system-prompt"}, .group = G::chat, .target = &A::system_prompt, .value_name = "TEXT",
              .help = "Instructions that stand before the conversation", .default_text = "none"}),
  };
}

}  // namespace

std::string_view flag_group_title(FlagGroup group) {
  switch (group) {
    case G::model: return "Model and tokenizer";
    case G::numbers: return "Numbers and device";
    case G::http: return "HTTP server";
    case G::memory: return "Memory and scheduling";
    case G::attention: return "Attention";
    case G::speculative: return "Speculative decoding";
    case G::adapters: return "Adapters (LoRA)";
    case G::observation: return "Logs and metrics";
    case G::chat: return "Chat in the terminal (run only)";
  }
  return {};
}

std::span<const FlagSpec> flag_table() {
  static const std::vector<FlagSpec> table = [] {
    std::vector<FlagSpec> all;
    for (auto part : {model_flags, number_flags, http_flags, memory_flags, attention_flags,
                      adapter_flags, observation_flags, chat_flags}) {
      for (FlagSpec& spec : part()) all.push_back(std::move(spec));
    }
    return all;
  }();
  return table;
}

const FlagSpec* find_flag(std::string_view name) {
  for (const FlagSpec& spec : flag_table()) {
    if (std::find(spec.names.begin(), spec.names.end(), name) != spec.names.end()) return &spec;
  }
  return nullptr;
}

}  // namespace warpweave
