// Kernels of linear attention beside their floors: microseconds of a call, gates and l2norm within, on one GPU.
//
//   linear_bench [random N [SEED] | rows FILE] [tile] [norm] [prepare | scan | piece_ends | join_pieces | piece_scan | decode | invariant]
//   default: fixed shapes, the wgmma kernels
//
// rows: a line of FILE a row, as in "gdn extend 16 32 128 128 8 4096 f32": heads and dims of k and v, requests, tokens of each, state.
// norm: outputs are normed and gated, as in a layer. prepare, scan: of prompts only that kernel runs, in one launch, to see where their
// time goes. piece_ends, join_pieces, piece_scan: the same of prompts that are cut into pieces. decode: only its rows. invariant: prompts in
// the form that does not depend on the batch.
// Floors: bytes (q, k, v, out, states, each once) at 4.3 TB/s; GEMMs of the chunk form, 11 MFLOP a chunk of 64 tokens and head
// of 128 x 128, at 600 TFLOP/s. Every launch of a decode row has slots of its own, so that states come from memory.
#include <cctype>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>

#include "bench/gpu/cuda_bench.h"
#include "linear/cuda/cuda_device.h"
#include "linear/cuda/testing/gpu_adapter.h"
#include "linear/reference.h"

using namespace warpweave;
using namespace warpweave::linear;

namespace {

// A device that runs one of the kernels of prompts, or all.
class PartOfPrompts : public LinearDevice {
 public:
  explicit PartOfPrompts(std::string_view part) : part_(part) {}
  // A part is not cut into segments, which needs more of them.
  int multiprocessors() const override {
    constexpr int kTooFewForSegments = 80;
    return part_ == "prepare" || part_ == "scan" ? kTooFewForSegments : device_->multiprocessors();
  }
  bool has_wgmma() const override { return device_->has_wgmma(); }
  void decode(const LinearParams& p, void* stream) override { device_->decode(p, stream); }
  void extend_exactly(const LinearParams& p, void* stream) override { device_->extend_exactly(p, stream); }
  void verify_few(const LinearParams& p, DType element, void* stream) override { device_->verify_few(p, element, stream); }
  void commit(const LinearParams& p, void* stream) override { device_->commit(p, stream); }
  void make_rows(const RowsParams& p, void* stream) override { device_->make_rows(p, stream); }
  void norm_rows(const RowsParams& p, void* stream) override { device_->norm_rows(p, stream); }
  void list_chunks(const LinearParams& p, void* stream) override { device_->list_chunks(p, stream); }
  void prepare(const LinearParams& p, DType element, void* stream) override {
    if (runs("prepare")) device_->prepare(p, element, stream);
  }
  void prepare_and_scan(const LinearParams& p, DType element, void* stream) override { device_->prepare_and_scan(p, element, stream); }
  void scan(const LinearParams& p, DType element, const ScanShape& shape, void* stream) override {
    if (runs("scan")) device_->scan(p, element, shape, stream);
  }
  void piece_ends(const LinearParams& p, DType element, void* stream) override {
    if (runs("piece_ends")) device_->piece_ends(p, element, stream);
  }
  void piece_scan(const LinearParams& p, DType element, void* stream) override {
    if (runs("piece_scan")) device_->piece_scan(p, element, stream);
  }
  void join_pieces(const LinearParams& p, void* stream) override {
    if (runs("join_pieces")) device_->join_pieces(p, stream);
  }

 private:
  bool runs(std::string_view kernel) const { return part_.empty() || part_ == "decode" || part_ == kernel; }
  std::unique_ptr<LinearDevice> device_ = make_cuda_device();
  std::string_view part_;
};

constexpr double kBytesPerUs = 4.3e6, kFlopsPerUs = 600e6, kStateSetsBytes = 256 << 20;  // far more than the L2

struct Row {
  LinearAttnKind kind = LinearAttnKind::gdn;
  int k_heads = 16, v_heads = 32, k_dim = 128, v_dim = 128;
  int requests = 1, tokens = 1;
  LinearAttnPhase phase = LinearAttnPhase::extend;
  DType state = DType::f32;
  bool any_form = true, norm = false;
};

double measure(LinearAttnKernelBase& kernel, const Row& row, cudaStream_t stream) {
  const LinearAttnShape shape = {row.kind, row.k_heads, row.v_heads, row.k_dim, row.v_dim};
  const double state_bytes = double(row.v_heads) * row.k_dim * row.v_dim * (row.state == DType::f32 ? 4 : 2) * row.requests;
  const bool decodes = row.phase == LinearAttnPhase::decode;
  // Sets of slots, one for each launch.
  const int sets = row.phase == LinearAttnPhase::extend ? 1 : std::clamp<int>(static_cast<int>(kStateSetsBytes / state_bytes) + 1, 2, 64);
  RandomCall random(kernel, shape, {row.requests, row.tokens, row.requests * sets}, row.state);
  LinearAttnCall call = random.call;
  call.stream = stream;
  call.any_form = row.any_form;
  LinearAttnNorm norm;
  if (row.norm) {
    std::mt19937 values(7);
    const std::vector<float> ones(row.v_dim, 1.0f);
    norm.z = random_rows(random.memory, int64_t{row.requests} * row.tokens, row.v_heads, row.v_dim, values);
    norm.weight = random.memory.copy(ones.data(), ones.size());
    norm.eps = 1e-6f;
    call.norm = &norm;
  }
  std::vector<int32_t> parents;  // a binary tree
  if (decodes) random.batch.q_indptr = nullptr;
  if (row.phase == LinearAttnPhase::target_verify) {
    for (int r = 0; r < row.requests; ++r) {
      for (int i = 0; i < row.tokens; ++i) parents.push_back(i == 0 ? -1 : (i - 1) / 2);
    }
    random.batch.parents = random.memory.copy(parents.data(), parents.size());
  }
  std::vector<const int32_t*> slots;
  for (int set = 0; set < sets; ++set) {
    std::vector<int32_t> own(row.requests);
    for (int r = 0; r < row.requests; ++r) own[r] = set * row.requests + r;
    slots.push_back(random.memory.copy(own.data(), own.size()));
  }
  const int launches = std::max(sets, row.phase == LinearAttnPhase::extend ? 3 : 16);
  const double us = bench::time_us(stream, launches, [&] {
    for (int i = 0; i < launches; ++i) {
      random.batch.slots = slots[i % sets];
      if (decodes) kernel.decode(call);
      else if (row.phase == LinearAttnPhase::extend) kernel.extend(call);
      else kernel.target_verify(call);
    }
  });
  const double tokens = double(row.requests) * row.tokens;
  const double row_bytes = tokens * (4.0 * row.k_heads * row.k_dim + 4.0 * row.v_heads * row.v_dim +
                                     (row.kind == LinearAttnKind::kda ? 2.0 * row.v_heads * row.k_dim : 4.0 * row.v_heads));
  const double byte_us = (row_bytes + state_bytes * (row.phase == LinearAttnPhase::target_verify ? 1 : 2)) / kBytesPerUs;
  const double flop_us = row.phase == LinearAttnPhase::extend
                             ? tokens / 64 * row.v_heads * (64.0 * (6.0 * row.k_dim * row.v_dim + 256.0 * row.k_dim + 256.0 * row.v_dim)) / kFlopsPerUs
                             : 0;
  const double floor = std::max(byte_us, flop_us);
  fmt::print("{} {:13} heads {:2}/{:2} dims {:3}/{:3} {:3} x {:5} state {}: {:8.1f} us, floors {:7.1f} bytes {:7.1f} flops, {:5.2f} x, {:5.0f} GB/s\n",
             linear_attn_kind_name(row.kind), linear_attn_phase_name(row.phase), row.k_heads, row.v_heads, row.k_dim, row.v_dim, row.requests,
             row.tokens, row.state == DType::f32 ? "f32 " : "bf16", us, byte_us, flop_us, us / floor, (row_bytes + 2 * state_bytes) / us * 1e-3);
  std::fflush(stdout);
  return us / floor;
}

std::vector<Row> fixed_rows() {
  std::vector<Row> rows;
  using Phase = LinearAttnPhase;
  for (auto [requests, tokens] : {std::pair{1, 4096}, {1, 16384}, {1, 65536}, {8, 4096}, {16, 1024}}) {
    rows.push_back({.requests = requests, .tokens = tokens, .phase = Phase::extend});
  }
  for (int requests : {1, 8, 64, 256}) rows.push_back({.requests = requests, .phase = Phase::decode});
  rows.push_back({.requests = 256, .phase = Phase::decode, .state = DType::bf16});
  rows.push_back({.requests = 64, .tokens = 16, .phase = Phase::target_verify});
  for (int tokens : {4096, 16384, 65536}) {
    rows.push_back({.kind = LinearAttnKind::kda, .k_heads = 32, .tokens = tokens, .phase = Phase::extend});
  }
  for (int requests : {1, 64, 256}) rows.push_back({.kind = LinearAttnKind::kda, .k_heads = 32, .requests = requests, .phase = Phase::decode});
  rows.push_back({.kind = LinearAttnKind::kda, .k_heads = 32, .requests = 64, .tokens = 16, .phase = Phase::target_verify});
  return rows;
}

Row random_row(std::mt19937& random) {
  const auto pick = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
  Row row;
  row.kind = pick(0, 1) ? LinearAttnKind::kda : LinearAttnKind::gdn;
  row.k_heads = 1 << pick(2, 5);
  row.v_heads = row.k_heads * (row.kind == LinearAttnKind::kda ? 1 : pick(1, 2));
  row.k_dim = 64 * pick(1, 4), row.v_dim = 64 * pick(1, 4);
  row.phase = pick(0, 1) ? LinearAttnPhase::extend : LinearAttnPhase::decode;
  row.requests = row.phase == LinearAttnPhase::decode ? 1 << pick(0, 7) : pick(1, 8);
  row.tokens = row.phase == LinearAttnPhase::decode ? 1 : pick(256, 8192);
  return row;
}

// Of kinds and phases as linear_attn.h names them; a line that is none ends the program.
std::vector<Row> rows_of_file(const std::string& path) {
  std::vector<Row> rows;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string kind, phase, state;
    Row row;
    words >> kind >> phase >> row.k_heads >> row.v_heads >> row.k_dim >> row.v_dim >> row.requests >> row.tokens >> state;
    if (!words || (kind != "gdn" && kind != "kda") || (phase != "extend" && phase != "decode")) {
      fmt::print(stderr, "no row: {}\n", line);
      std::exit(2);
    }
    row.kind = kind == "kda" ? LinearAttnKind::kda : LinearAttnKind::gdn;
    row.phase = phase == "decode" ? LinearAttnPhase::decode : LinearAttnPhase::extend;
    row.state = state == "bf16" ? DType::bf16 : DType::f32;
    rows.push_back(row);
  }
  return rows;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<Row> rows;
  bool wgmma = true, any_form = true, norm = false;
  std::string_view part;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "tile") wgmma = false;
    constexpr std::string_view kParts[] = {"prepare", "scan", "piece_ends", "join_pieces", "piece_scan", "decode"};
    if (std::find(std::begin(kParts), std::end(kParts), argument) != std::end(kParts)) part = argument;
    if (argument == "invariant") any_form = false;
    if (argument == "norm") norm = true;
    if (argument == "rows" && i + 1 < argc) rows = rows_of_file(argv[i + 1]);
    if (argument != "random" || i + 1 >= argc) continue;
    const bool seeded = i + 2 < argc && std::isdigit(static_cast<unsigned char>(*argv[i + 2])) != 0;
    const unsigned seed = seeded ? static_cast<unsigned>(std::stoul(argv[i + 2])) : std::random_device{}();
    std::mt19937 random(seed);
    fmt::print("seed {}\n", seed);
    for (int n = std::stoi(argv[i + 1]); n > 0; --n) rows.push_back(random_row(random));
  }
  if (rows.empty()) rows = fixed_rows();
  for (Row& row : rows) row.norm = norm;
  for (Row& row : rows) row.any_form = any_form && part != "prepare" && part != "scan";
  if (!part.empty()) {
    std::erase_if(rows, [&](const Row& row) { return (row.phase == LinearAttnPhase::decode) != (part == "decode"); });
  }
  CudaStream stream = bench::take(create_stream());
  const auto kernel = std::make_unique<ChunkedLinearKernel>(std::make_unique<PartOfPrompts>(part), wgmma);
  double sum = 0;
  for (const Row& row : rows) sum += std::log(measure(*kernel, row, stream.get()));
  fmt::print("{} rows of {}, geometric mean of time / floor {:.2f}\n", rows.size(), kernel->caps().name, std::exp(sum / static_cast<double>(rows.size())));
}
