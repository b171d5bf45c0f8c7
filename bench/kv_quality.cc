// What a KV format costs in quality: perplexity of a model on a text, per format and backend. With --states what the type of
// recurrent layers' states costs.
//
//   kv_quality MODEL_DIR TEXT_FILE [--rows N] [--row-tokens N] [--dtype bf16] [--backends a,b] [--states] [--step-tokens N]
//
// The text is cut into rows of --row-tokens tokens, each a sequence of its own; every token but a
// row's first is predicted from those before it. K and V are written to the pool in the format and
// read back from there, also within the row. Prints a markdown table; the change is against bf16 KV
// of the same backend. States are rounded once a call, so that --step-tokens 1 rounds them as decoding does.
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attention/registry.h"
#include "attention/select.h"
#include "model/testing/paged_run.h"
#include "ops/elementwise.h"

using namespace warpweave;

namespace {

constexpr KvFormat kFormats[] = {KvFormat::bf16,     KvFormat::f32,      KvFormat::f16,        KvFormat::fp8_e4m3,
                                 KvFormat::fp8_e5m2, KvFormat::fp4_e2m1, KvFormat::fp8_ds_mla, KvFormat::fp4_mla};

struct Options {
  std::string model, text, dtype = "bf16";
  int rows = 64, row_tokens = 512, step_tokens = 0, threads = 2;
  bool states = false;
  std::vector<std::string> backends = {"intel_amx", "torch_native"};
};

[[noreturn]] void fail(const Status& status) {
  fmt::print(stderr, "{}\n", status.message());
  std::exit(1);
}

std::vector<int32_t> tokens_of(const Tokenizer& tokenizer, const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  auto ids = tokenizer.encode(text, false);
  if (!ids.ok()) fail(ids.status());
  return *ids;
}

// How what attention keeps is stored.
struct Storage {
  KvFormat format = KvFormat::bf16;
  DType state = DType::f32;
  std::string name;
};

// The first is what the others are compared with.
std::vector<Storage> storages(const Options& options, const Caps& caps) {
  if (options.states) return {{.name = "bf16, states f32"}, {.state = DType::bf16, .name = "bf16, states bf16"}};
  std::vector<Storage> out;
  for (const KvFormat format : kFormats) {
    if (caps.kv_formats.has(format)) out.push_back({.format = format, .name = std::string(kv_format_name(format))});
  }
  return out;
}

// Mean negative log-likelihood over all predicted tokens.
Result<double> mean_loss(const Options& options, const std::string& backend, const Storage& storage,
                         std::span<const int32_t> tokens) {
  WW_ASSIGN_OR_RETURN(auto run, PagedRun::open(options.model, {.backend = backend,
                                                               .dtype = *parse_dtype(options.dtype),
                                                               .kv_format = storage.format,
                                                               .state_dtype = storage.state,
                                                               .page_size = 64,
                                                               .max_tokens = options.row_tokens,
                                                               .threads = options.threads}));
  double loss = 0;
  int64_t predicted = 0;
  const size_t vocab = run->vocab_size();
  for (size_t row = 0; row + options.row_tokens <= tokens.size(); row += options.row_tokens) {
    run->restart();
    const auto ids = tokens.subspan(row, options.row_tokens);
    std::vector<float> logits;
    const size_t step = options.step_tokens > 0 ? options.step_tokens : ids.size();
    for (size_t at = 0; at < ids.size(); at += step) {
      WW_ASSIGN_OR_RETURN(const std::vector<float> part, run->feed(ids.subspan(at, std::min(step, ids.size() - at))));
      logits.insert(logits.end(), part.begin(), part.end());
    }
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const float* next = logits.data() + i * vocab;
      loss += log_sum_exp(next, vocab) - next[ids[i + 1]];
      ++predicted;
    }
  }
  return loss / static_cast<double>(predicted);
}

void measure(const Options& options, AttentionKind kind, const std::string& backend, std::span<const int32_t> tokens) {
  const Caps* caps = nullptr;
  for (const BackendRegistration& built : built_backends()) {
    const bool here = built.caps->archs.has(cpu_hardware_facts().arch);
    if (built.caps->name == backend && here && built.caps->kinds.has(kind)) caps = built.caps;
  }
  if (caps == nullptr) fail(Status::not_found("no backend " + backend));
  std::optional<double> base;
  for (const Storage& storage : storages(options, *caps)) {
    const auto loss = mean_loss(options, backend, storage, tokens);
    if (!loss.ok()) fail(loss.status());
    if (!base) base = *loss;
    fmt::print("| {} | {} | {:.4f} | {:+.3f} % |\n", backend, storage.name, std::exp(*loss), (std::exp(*loss - *base) - 1) * 100);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Perplexity per KV format and attention backend."};
  app.add_option("model", options.model, "model folder")->required();
  app.add_option("text", options.text, "text file")->required()->check(CLI::ExistingFile);
  app.add_option("--rows", options.rows, "rows to score, 0: the whole text");
  app.add_option("--row-tokens", options.row_tokens, "tokens of a row")->check(CLI::Range(2, 1 << 20));
  app.add_option("--dtype", options.dtype, "of the model's arithmetic")->check(CLI::IsMember({"f32", "bf16"}));
  app.add_option("--step-tokens", options.step_tokens, "tokens of a call, 0: a whole row");
  app.add_flag("--states", options.states, "types of recurrent states in place of KV formats");
  app.add_option("--threads", options.threads, "threads");
  app.add_option("--backends", options.backends, "attention backends")->delimiter(',');
  CLI11_PARSE(app, argc, argv);

  const auto bundle = open_model_bundle(options.model, {});
  if (!bundle.ok()) fail(bundle.status());
  std::vector<int32_t> tokens = tokens_of(*bundle->tokenizer, options.text);
  if (options.rows > 0) {
    tokens.resize(std::min(tokens.size(), static_cast<size_t>(options.rows) * options.row_tokens));
  }
  fmt::print("{} tokens in rows of {}, {} arithmetic\n\n| backend | KV format | perplexity | change |\n"
             "| --- | --- | --- | --- |\n",
             tokens.size() / options.row_tokens * options.row_tokens, options.row_tokens, options.dtype);
  const AttentionKind kind = bundle->config.latent ? AttentionKind::mla : AttentionKind::mha;
  for (const std::string& backend : options.backends) measure(options, kind, backend, tokens);
  return 0;
}
