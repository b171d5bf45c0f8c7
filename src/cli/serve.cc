#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/log.h"
#include "base/memory_reserve.h"
#include "base/trim_memory.h"
#include "cli/commands.h"
#include "cli/load_model.h"
#include "cli/loading_routes.h"
#include "cli/model_search.h"
#include "cli/process_setup.h"
#include "server/api/api.h"
#include "server/api/errors.h"
#include "server/http_syntax.h"
#include "server/http_server.h"
#include "server/metrics.h"
#include "text/literal_text.h"
#include "text/tokenizer_core.h"

namespace warpweave {
namespace {

using namespace server;

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr double kWarmupSeconds = 60;

// SIGTERM and SIGINT, taken by a thread of their own. While the model loads either ends the process;
// later the first one starts the drain and the second ends the process.
class StopSignals {
 public:
  // Before any other thread, so that all inherit the mask.
  StopSignals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    std::thread([this] { take_signals(); }).detach();
  }

  // From now on the first signal ends wait(), also where that is called later.
  void expect() {
    std::lock_guard lock(mutex_);
    expected_ = true;
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopping_; });
  }

 private:
  void take_signals() {
    while (true) {
      int signal = 0;
      sigwait(&set_, &signal);
      std::lock_guard lock(mutex_);
      if (!expected_ || stopping_) _exit(128 + signal);
      stopping_ = true;
      changed_.notify_all();
    }
  }

  sigset_t set_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool expected_ = false;
  bool stopping_ = false;
};

void print_attention(const EngineInfo& info) {
  const size_t refused = info.attention_refused.size();
  const bool all = spdlog::should_log(spdlog::level::debug);
  std::printf("Attention: prefill %s, decode %s%s\n", info.prefill_attention_backend.c_str(),
              info.decode_attention_backend.c_str(),
              refused == 0 || all ? ""
                                  : fmt::format("; {} others refused (why: warpweave explain, or --log-level debug)",
                                                refused).c_str());
  for (const std::string& reason : info.attention_reasons) std::printf("  %s\n", reason.c_str());
  if (!all) return;
  for (const std::string& line : info.attention_refused) std::printf("  refused %s\n", line.c_str());
}

void print_model(const LoadedModel& model) {
  const Engine& engine = *model.served.engine;
  const EngineInfo& info = engine.info();
  const EngineStats stats = engine.stats();
  std::printf("Device: %s\n", info.device.c_str());
  std::printf("Model: %s (%s), %s, weights %.3f GB, loaded in %.2f s\n",
              model.embedded ? fmt::format("the embedded {}", kDefaultModel).c_str() : info.model_path.c_str(),
              info.architecture.c_str(), info.dtype.c_str(), info.weight_bytes / kGiB,
              info.load_seconds);
  std::printf("KV pool: %.3f GB reserved for %lld tokens (%d pages of %d, %s), %lld tokens used; context %d tokens\n",
              info.kv_cache_bytes / kGiB, static_cast<long long>(info.max_total_tokens), info.num_pages,
              info.page_size, info.kv_cache_dtype.c_str(),
              static_cast<long long>(stats.used_tokens + stats.evictable_tokens), info.context_len);
  if (info.max_window_tokens > 0) {
    std::printf("  Split by --swa-full-tokens-ratio: layers with a sliding window hold %lld tokens, the others %lld\n",
                static_cast<long long>(info.max_window_tokens), static_cast<long long>(info.max_total_tokens));
  } else if (info.max_tokens_at_context > info.max_total_tokens) {
    std::printf(
        "  Layers with a sliding window give back what leaves it: in requests of %d tokens the pool holds %lld\n",
        info.context_len, static_cast<long long>(info.max_tokens_at_context));
  }
  print_attention(info);
}

std::string url_of(const ServerArgs& args, int port) {
  const bool any = args.host == "0.0.0.0" || args.host == "::";
  const bool v6 = args.host.find(':') != std::string::npos;
  const std::string host = any ? "127.0.0.1" : v6 ? "[" + args.host + "]" : args.host;
  return fmt::format("http://{}:{}", host, port);
}

void print_ready(const ServerArgs& args, const LoadedModel& model, int port) {
  const std::string url = url_of(args, port);
  const std::string key = args.api_key.empty() ? "" : " -H 'Authorization: Bearer YOUR_KEY'";
  std::string path = "/generate";
  std::string body = R"({"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 64}})";
  if (model.chat_template.has_value()) {
    path = "/v1/chat/completions";
    const bool tells_tales = std::filesystem::path(model.served.engine->info().model_path).filename() == kDefaultModel;
    const char* const question =
        tells_tales ? "Tell me a tale of a fox and a lantern." : "What is the capital of France?";
    body = fmt::format(R"({{"model": "default", "messages": [{{"role": "user", "content": "{}"}}]}})", question);
  } else if (model.served.engine->info().has_tokenizer) {
    path = "/v1/completions";
    body = R"({"model": "default", "prompt": "Once upon a time", "max_tokens": 64})";
  }
  std::printf("The server is fired up and ready to roll!\n"
              "Try: curl %s%s%s -H 'Content-Type: application/json' -d '%s'\nChat page: %s/\n",
              url.c_str(), path.c_str(), key.c_str(), body.c_str(), url.c_str());
}

// One request through the whole engine, so that the first user pays for no first touch.
void warm_up(Engine& engine) {
  struct Done {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
  };
  const auto done = std::make_shared<Done>();  // a late delta may outlive the wait
  GenerateRequest request;
  request.rid = "warmup";
  request.input_ids.assign(std::max(1, std::min(16, engine.info().context_len - 4)), 1);
  request.sampling.max_new_tokens = 2;
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  request.cache_salt = "warmup";
  if (!engine.info().generates) request.states = StateWish::pooled;
  const Status status = engine.submit(std::move(request), [done](OutputDelta delta) {
    if (!delta.finish) return;
    std::lock_guard lock(done->mutex);
    done->done = true;
    done->changed.notify_all();
  });
  if (!status.ok()) {
    LOG_WARN("warm-up: {}", status.message());
    return;
  }
  std::unique_lock lock(done->mutex);
  done->changed.wait_for(lock, std::chrono::duration<double>(kWarmupSeconds),
                         [&] { return done->done; });
}

// "a, b" -> a, b
std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> parts;
  for_each_element(text, [&](std::string_view part) { parts.emplace_back(part); });
  return parts;
}

Status check_origins(const std::vector<std::string>& origins) {
  for (const std::string& origin : origins) {
    const size_t scheme = origin.find("://");
    const bool whole = scheme != std::string::npos && scheme > 0 &&
                       is_host(std::string_view(origin).substr(scheme + 3)) && origin.size() > scheme + 3;
    if (origin == "*" || whole) continue;
    return Status::invalid_argument("--allowed-origins " + log_safe(origin) +
                                        ": an origin is scheme://host or scheme://host:port, without a path; try: "
                                        "--allowed-origins https://a.example",
                                    "--allowed-origins");
  }
  return {};
}

Status check_hosts(const std::vector<std::string>& hosts) {
  for (const std::string& host : hosts) {
    if (host == "*" || (is_host(host) && host_without_port(host) == host)) continue;
    return Status::invalid_argument(
        "--allowed-hosts " + log_safe(host) +
            ": a name without scheme, port and path is wanted; try: --allowed-hosts a.example",
        "--allowed-hosts");
  }
  return {};
}

}  // namespace

Status check_allowed(const ServerArgs& args) {
  WW_RETURN_IF_ERROR(check_origins(split_list(args.allowed_origins)));
  return check_hosts(split_list(args.allowed_hosts));
}

namespace {

// Set once the model is there; until then answers are not counted.
using LateMetrics = std::atomic<ServerMetrics*>;

Result<ServerOptions> server_options(const ServerArgs& args, const LateMetrics& metrics) {
  ServerOptions options;
  options.host = args.host;
  options.port = args.port;
  options.api_key = args.api_key;
  options.admin_api_key = args.admin_api_key;
  options.allowed_origins = split_list(args.allowed_origins);
  options.allowed_hosts = split_list(args.allowed_hosts);
  WW_RETURN_IF_ERROR(check_allowed(args));
  const ConnectionRoom room = make_connection_room(args.max_connections, options.spare_connections);
  if (!room.note.empty()) std::fprintf(stderr, "note: %s\n", room.note.c_str());
  options.max_connections = room.max_connections;
  options.max_body_bytes = static_cast<size_t>(args.max_body_bytes);
  options.read_timeout_s = options.idle_timeout_s = options.write_timeout_s = args.http_timeout_s;
  options.on_response = [&metrics, log = args.log_requests](const AnsweredRequest& answered) {
    if (ServerMetrics* counted = metrics.load()) counted->observe_http(answered);
    if (log) LOG_INFO("{} {}", answered.route, answered.status);
  };
  return options;
}

void add_metrics_route(Router& router, const ServerArgs& args, const ServerMetrics& metrics,
                       const ServedModel& served) {
  if (!args.enable_metrics) {
    router.add({"GET", "/metrics", AuthLevel::open, [](auto, auto writer) {
                  send_error(*writer, Status::not_found("There are no metrics; start with --enable-metrics."));
                }});
    return;
  }
  router.add({"GET", "/metrics", AuthLevel::open, [&metrics, &served](auto, auto writer) {
                writer->send(200, kMetricsContentType, metrics.render(served.engine.get(), served.adapters.get()));
              }});
}

// Lets running requests end, up to --drain-timeout, and their last bytes reach the clients.
void drain(const ServerArgs& args, HttpServer& server, Engine& engine) {
  LOG_INFO("stopping: new requests get 503, running ones have {:g} s; a second signal stops at once",
           args.drain_timeout_s);
  server.begin_drain();
  engine.drain(args.drain_timeout_s);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (server.active_requests() > 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (server.active_requests() > 0) {
    LOG_WARN("{} answers are cut: their readers did not take them in time", server.active_requests());
  }
  server.stop();
}

int serve(const ServerArgs& args) {
  bound_free_memory();
  hold_memory_reserve();
  StopSignals& signals = *new StopSignals;  // its thread lives to the process's end
  std::printf("%s\n", version_text().c_str());
  // Above the server, which uses them to its end.
  std::optional<LoadedModel> model;
  std::optional<ServerMetrics> metrics;
  LateMetrics late_metrics{nullptr};
  LoadingProgress progress;
  std::atomic<bool> ready{false};

  // The port is taken before the long work, and says how far that is.
  Result<ServerOptions> options = server_options(args, late_metrics);
  if (!options.ok()) return fail(options.status(), kExitUsage);
  HttpServer server(std::move(options).value(), loading_routes(progress));
  if (Status status = server.start(); !status.ok()) return fail(status, kExitFailed);
  std::printf("Listening on %s; /health answers 503 until the model is loaded.\n", url_of(args, server.port()).c_str());
  Result<LoadedModel> loaded = load_model(args, [&progress](int done, int all) { progress.set(done, all); });
  if (!loaded.ok()) return fail(loaded.status(), kExitFailed);
  model = std::move(loaded).value();
  Engine& engine = *model->served.engine;
  if (args.no_special_tokens_in_content && model->served.tokenizer != nullptr) {
    const Result<LiteralText> usable = LiteralText::create(*model->served.tokenizer, {});
    if (!usable.ok()) return fail(usable.status(), kExitFailed);
  }
  if (model->served.tokenizer != nullptr) model->served.tokenizer->core().prepare(ServerOptions().worker_threads);
  print_model(*model);

  metrics.emplace(MetricsOptions{.model_name = engine.info().served_model_name,
                                 .compat = args.metrics_compat});
  late_metrics = &*metrics;
  Router router;
  register_api(router, {.engine = engine,
                        .args = args,
                        .tokenizer = model->served.tokenizer.get(),
                        .chat_template = model->chat_template ? &*model->chat_template : nullptr,
                        .metrics = &*metrics,
                        .adapters = model->served.adapters.get(),
                        .default_sampling = model->default_sampling,
                        .completion_template = model->completion_template,
                        .is_ready = [&ready] { return ready.load(); }});
  add_metrics_route(router, args, *metrics, model->served);
  server.set_router(std::move(router));
  if (!args.skip_server_warmup) warm_up(engine);
  signals.expect();  // before anybody is told that requests are taken
  ready = true;
  print_ready(args, *model, server.port());

  signals.wait();
  ready = false;
  drain(args, server, engine);
  return 0;
}

}  // namespace

int serve_command(std::span<const std::string> argv) {
  survive_lost_output();
  const Started started = start_command(Command::serve, argv);
  return started.exit_code ? *started.exit_code : serve(started.args);
}

}  // namespace warpweave
