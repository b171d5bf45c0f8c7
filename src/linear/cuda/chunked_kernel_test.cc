// The CUDA kernels of linear attention and the host code that calls them, run on the host (host_cta.h): the cases that every
// kernel is held to, as far as they are small. Threads take their turns in several orders: each gives the same bits.
#include "linear/cuda/chunked_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "device/cuda/testing/host_cta.h"

#include "linear/cuda/testing/host_math.h"

#include "linear/cuda/chunk_list.cuh"
#include "linear/cuda/conv_step.cuh"
#include "linear/cuda/decode.cuh"
#include "linear/cuda/rows.cuh"
#include "linear/cuda/verify_few_kda.cuh"

#include "attention/cuda/testing/shared_array.h"

#include "linear/cuda/launch_grids.h"
#include "linear/cuda/prompt_forms.h"
#include "linear/cuda/recurrent_verify.cuh"
#include "linear/cuda/testing/slack.h"
#include "linear/testing/suite.h"

namespace warpweave::linear {
namespace {

using host_cta::Order;
using testing_linear::LinearAttnCase;

class HostDevice : public LinearDevice {
 public:
  explicit HostDevice(Order order, int multiprocessors = 4) : order_(order), multiprocessors_(multiprocessors) {}
  static inline int one_launches = 0;  // of prepare_and_scan, by all devices
  static inline int most_pieces = 0;   // of join_pieces
  int multiprocessors() const override { return multiprocessors_; }
  bool has_wgmma() const override { return true; }
  int least_segmented_tokens() const override { return 2048; }
  bool cuts_all_in_pieces() const override { return multiprocessors_ > 4; }

  void decode(const LinearParams& given, void*) override {
    LinearParams p = given;
    if (slices_take(p)) {
      return slices_grid(p, 4, [&]<class C>(int x, int y) { run(x, y, C::kThreads, C::kSmemBytes, [&] { decode_slice<C>(p, cuda::smem); }); });
    }
    decode_grid(p, 4, [&]<class C>() {
      const DecodeLaunch launch = decode_launch<C>(p, 4);
      p.decode_blocks = launch.blocks, p.decode_units = launch.units, p.decode_by_turns = launch.by_turns;
      run(launch.blocks, 1, C::kThreads, launch.shared_bytes, [&] { decode_units<C>(p, cuda::smem); });
    });
  }
  void commit(const LinearParams& p, void*) override {
    recurrent_grid<RecurrentMode::commit>(p, 4, [&]<class C>(int x, int y) { run(x, y, C::kThreads, 0, [&] { recurrent<C>(p); }); });
  }
  void extend_exactly(const LinearParams& p, void*) override {
    if (!p.writes_state) return verify_grid(p, [&]<class C>(int x, int y) { run(x, y, C::kThreads, 0, [&] { recurrent_verify<C>(p); }); });
    recurrent_grid<RecurrentMode::extend>(p, 4, [&]<class C>(int x, int y) { run(x, y, C::kThreads, 0, [&] { recurrent<C>(p); }); });
  }
  void verify_few(const LinearParams& p, DType element, void*) override {
    const auto with = [&]<class C>(int x, int y) { run(x, y, C::kThreads, verify_few_shared_bytes<C>(), [&] { linear::verify_few<C>(p, cuda::smem); }); };
    element == DType::f16 ? verify_few_grid<ptx::F16>(p, with) : verify_few_grid<ptx::Bf16>(p, with);
  }
  void make_rows(const RowsParams& p, void*) override {
    if (p.conv_step) {
      constexpr int kChannels = ConvStep::kChannels * kRowsThreads;
      return run((p.channels + kChannels - 1) / kChannels, p.linear.batch.num_requests, kRowsThreads, 0,
                 [&] { linear::conv_step(p, [] {}); });
    }
    run((p.channels + kRowsThreads - 1) / kRowsThreads, p.blocks, kRowsThreads, 0, [&] { linear::make_rows(p); });
  }
  void norm_rows(const RowsParams& p, void*) override {
    run(p.linear.v_heads, p.blocks, kRowsThreads, 0, [&] { linear::norm_rows(p); });
  }
  void list_chunks(const LinearParams& p, void*) override {
    EXPECT_FALSE(p.batch.checkpoints_end_chunks);
    run(1, 1, kListThreads, 0, [&] { linear::list_chunks(p, const_cast<Chunk*>(p.work.list), const_cast<int*>(p.work.list_first)); });
  }
  void prepare(const LinearParams& p, DType element, void*) override {
    const auto with = [&]<class C>(int x, int y) { run(x, y, C::kThreads, C::kSmemBytes, [&] { chunk_prepare<C>(p, cuda::smem); }); };
    element == DType::f16 ? prepare_grid<ptx::F16>(p, with) : prepare_grid<ptx::Bf16>(p, with);
  }
  void prepare_and_scan(const LinearParams& given, DType element, void*) override {
    LinearParams p = given;
    ++one_launches;
    p.fused_blocks = std::min(4, p.v_heads * p.batch.num_requests);
    const auto with = [&]<class C> { run(p.fused_blocks, 1, C::kThreads, C::kSmemBytes, [&] { fused_chunks<C>(p, nullptr, cuda::smem); }); };
    element == DType::f16 ? with.template operator()<FusedConfig<ptx::F16>>() : with.template operator()<FusedConfig<ptx::Bf16>>();
  }
  void scan(const LinearParams& p, DType element, const ScanShape& shape, void*) override {
    const auto with = [&]<class C>(int x, int y) { run(x, y, C::kThreads, C::kSmemBytes, [&] { chunk_scan<C>(p, nullptr, cuda::smem); }); };
    if (shape.wgmma) {
      element == DType::f16 ? wgmma_scan_grid<ptx::F16>(p, shape.groups, with) : wgmma_scan_grid<ptx::Bf16>(p, shape.groups, with);
    } else {
      element == DType::f16 ? tile_scan_grid<ptx::F16>(p, with) : tile_scan_grid<ptx::Bf16>(p, with);
    }
  }
  void piece_ends(const LinearParams& p, DType element, void*) override {
    const auto with = [&]<class C>(int x, int y) { run(x, y, C::kThreads, C::kSmemBytes, [&] { chunk_scan<C>(p, nullptr, cuda::smem); }); };
    element == DType::f16 ? piece_ends_grid<ptx::F16>(p, with) : piece_ends_grid<ptx::Bf16>(p, with);
  }
  void piece_scan(const LinearParams& p, DType element, void*) override {
    const auto with = [&]<class C>(int x, int y) { run(x, y, C::kThreads, C::kSmemBytes, [&] { chunk_scan<C>(p, nullptr, cuda::smem); }); };
    element == DType::f16 ? piece_scan_grid<ptx::F16>(p, with) : piece_scan_grid<ptx::Bf16>(p, with);
  }
  void join_pieces(const LinearParams& p, void*) override {
    most_pieces = std::max(most_pieces, p.work.pieces.most);
    join_pieces_grid(p, [&]<class C>(int x, int y) { run(x, y, C::kThreads, C::kSmemBytes, [&] { linear::join_pieces(p, cuda::smem); }); });
  }

 private:
  template <class Kernel>
  void run(int x, int y, int threads, int shared_bytes, const Kernel& kernel) {
    for (int row = 0; row < y; ++row) {
      for (int column = 0; column < x; ++column) {
        std::memset(cuda::smem, 0xff, sizeof(cuda::smem));
        ptx::set_shared_memory(cuda::smem, shared_bytes, threads);
        host_cta::run(threads, order_, kernel, {static_cast<unsigned>(column), static_cast<unsigned>(row)});
      }
    }
  }

  Order order_;
  int multiprocessors_;
};

bool small(const LinearAttnCase& c) {
  const int tokens = std::accumulate(c.lengths.begin(), c.lengths.end(), 0, [](int sum, int n) { return sum + std::abs(n); });
  return tokens <= 300 && c.shape.k_dim * c.shape.v_dim <= 128 * 128;
}

void expect_all_pass(bool wgmma, Order order, LinearAttnKind kind) {
  ChunkedLinearKernel kernel(std::make_unique<HostDevice>(order), wgmma);
  for (const LinearAttnCase& c : testing_linear::linear_attn_cases()) {
    if (c.shape.kind != kind || !small(c) || !testing_linear::runs_case(kernel.caps(), c)) continue;
    const auto result = testing_linear::run_case(kernel, c, {.slack = gpu_slack(c)});
    EXPECT_TRUE(result.passed()) << c.name << ": " << result.text;
  }
}

// One row each of the first requests by decode, the others by extend, in two calls over one batch.
TEST(ChunkedLinearKernel, PartsOfABatchAreTheBatch) {
  constexpr int kSteps = 3;
  LinearAttnCase c{.name = "parts", .shape = {LinearAttnKind::gdn, 1, 2, 64, 64}, .lengths = {1, 1, 1, 70, 5}};
  c.conv = c.gates = c.norm = true;
  c.activation = c.out = DType::bf16;
  testing_linear::LinearAttnProblem whole(c), parts(c);
  ChunkedLinearKernel kernel(std::make_unique<HostDevice>(Order::ascending), false);
  LinearAttnCall call = whole.call();
  call.workspace_bytes = kernel.workspace_bytes(call.shape, {5, call.batch->num_tokens, 4});
  std::vector<std::byte> memory(call.workspace_bytes + 256);
  call.workspace = memory.data() + 256 - reinterpret_cast<uintptr_t>(memory.data()) % 256;
  kernel.extend(call);
  LinearAttnCall part = parts.call();
  part.workspace = call.workspace, part.workspace_bytes = call.workspace_bytes;
  LinearAttnBatch first = *part.batch, rest = first;
  first.num_requests = kSteps;
  rest.num_requests -= kSteps, rest.q_indptr += kSteps, rest.slots += kSteps;
  part.batch = &rest;
  kernel.extend(part);
  part.batch = &first;
  kernel.decode(part);
  for (int64_t token = 0; token < call.batch->num_tokens; ++token) {
    for (int i = 0; i < 2 * 64; ++i) EXPECT_NEAR(parts.out_at(token, i), whole.out_at(token, i), 0.15) << token << " " << i;
  }
  for (int r = 0; r < 5; ++r) {
    const auto expected = whole.recurrent(call.batch->slots[r]), found = parts.recurrent(call.batch->slots[r]);
    for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(found[i], expected[i], 0.02) << r << " " << i;
  }
}

// Blocks of decode with several units each, whose states go round in shared memory, and with a part of a head; rows of V that do not
// fill their last step.
TEST(ChunkedLinearKernel, DecodeOfManyUnits) {
  ChunkedLinearKernel kernel(std::make_unique<HostDevice>(Order::random), false);
  for (const LinearAttnKind kind : {LinearAttnKind::gdn, LinearAttnKind::kda}) {
    for (DType state : {DType::f32, DType::bf16}) {
      for (const auto& [k_dim, v_dim] : {std::pair{128, 80}, {64, 112}, {64, 48}, {128, 64}, {192, 80}, {256, 144}, {48, 32}, {96, 64}, {176, 48}, {208, 80}}) {
        for (int requests : {1, 15}) {
          for (bool norm : {false, true}) {
            LinearAttnCase c{.name = {}, .phase = LinearAttnPhase::decode, .shape = {kind, 1, 3, k_dim, v_dim}, .lengths = std::vector<int>(requests, 1)};
            if (requests > 4) c.lengths[4] = -1;
            c.start = testing_linear::Start::elsewhere;
            c.gates = c.norm = norm;
            c.state = state;
            const auto result = testing_linear::run_case(kernel, c, {.slack = gpu_slack(c)});
            EXPECT_TRUE(result.passed()) << linear_attn_kind_name(kind) << " " << k_dim << " " << requests << " " << norm << " " << result.text;
          }
        }
      }
    }
  }
}

// What speculation in deterministic mode rests on.
TEST(ChunkedLinearKernel, DraftedNodesHaveDecodesBits) {
  ChunkedLinearKernel kernel(std::make_unique<HostDevice>(Order::random), false);
  for (const LinearAttnKind kind : {LinearAttnKind::gdn, LinearAttnKind::kda}) {
    for (const LinearAttnCase& c : testing_linear::chains_cases(kind)) {
      const auto result = testing_linear::run_drafted_and_decoded(kernel, c);
      EXPECT_TRUE(result.passed()) << linear_attn_kind_name(kind) << " " << c.name << ": " << result.text;
    }
  }
}

// By slices and by whole heads.
TEST(ChunkedLinearKernel, DecodeOfF32States) {
  ChunkedLinearKernel kernel(std::make_unique<HostDevice>(Order::random), false);
  for (const LinearAttnKind kind : {LinearAttnKind::gdn, LinearAttnKind::kda}) {
    for (const LinearAttnCase& c : testing_linear::decode_cases(kind)) {
      const auto result = testing_linear::run_case(kernel, c, {.slack = gpu_slack(c)});
      EXPECT_TRUE(result.passed()) << c.name << ": " << result.text;
    }
  }
}

// Enough heads for blocks that come and go.
TEST(ChunkedLinearKernel, DecodeInRuns) {
  ChunkedLinearKernel kernel(std::make_unique<HostDevice>(Order::random), false);
  for (const LinearAttnKind kind : {LinearAttnKind::gdn, LinearAttnKind::kda}) {
    LinearAttnCase c{.name = "runs", .phase = LinearAttnPhase::decode, .shape = {kind, 1, 3, 256, 64}, .lengths = std::vector<int>(65, 1)};
    c.lengths[4] = -1;
    c.start = testing_linear::Start::elsewhere;
    const auto result = testing_linear::run_case(kernel, c, {.slack = gpu_slack(c)});
    EXPECT_TRUE(result.passed()) << linear_attn_kind_name(kind) << " " << result.text;
  }
}

// A batch is of one form of the kernel, and its first request alone of the other.
void expect_the_same_bits_alone(LinearAttnCase c) {
  c.start = testing_linear::Start::own_slot;
  ChunkedLinearKernel kernel(std::make_unique<HostDevice>(Order::ascending), false);
  testing_linear::LinearAttnProblem all(c), one(c);
  LinearAttnCall batch = all.call(), alone = one.call();
  LinearAttnBatch first = *alone.batch;
  first.num_requests = 1, first.num_tokens = 1;
  alone.batch = &first;
  kernel.decode(batch);
  kernel.decode(alone);
  for (int i = 0; i < c.shape.v_heads * c.shape.v_dim; ++i) EXPECT_EQ(all.out_at(0, i), one.out_at(0, i)) << c.name << " " << i;
  EXPECT_EQ(all.recurrent(first.slots[0]), one.recurrent(first.slots[0])) << c.name;
}
TEST(ChunkedLinearKernel, DecodeGivesARequestTheSameBitsInAnyBatch) {
  for (const LinearAttnKind kind : {LinearAttnKind::gdn, LinearAttnKind::kda}) {
    for (int k_dim : {64, 128, 192, 256}) {
      for (const DType state : {DType::f32, DType::bf16}) {
        for (const bool norm : {false, true}) {
          LinearAttnCase c{.name = {}, .phase = LinearAttnPhase::decode, .shape = {kind, 1, 2, k_dim, 48}, .lengths = std::vector<int>(8, 1)};
          c.name = std::string(linear_attn_kind_name(kind)) + " " + std::to_string(k_dim) + (state == DType::bf16 ? " bf16" : "") + (norm ? " norm" : "");
          c.state = state, c.gates = c.norm = norm;
          expect_the_same_bits_alone(c);
        }
      }
    }
  }
}

// A prompt that is alone, whose segments begin in the middle of what checkpoints make of its chunks.
TEST(ChunkedLinearKernel, PromptInSegments) {
  for (bool wgmma : {false, true}) {
    ChunkedLinearKernel kernel(std::make_unique<HostDevice>(Order::random), wgmma);
    for (DType state : {DType::f32, DType::bf16}) {
      const LinearAttnKind kind = wgmma == (state == DType::f32) ? LinearAttnKind::gdn : LinearAttnKind::kda;
      LinearAttnCase c{.name = "segments", .shape = {kind, 1, 1, 64, 64}, .lengths = {2700}, .start = testing_linear::Start::own_slot};
      c.checkpoints = state == DType::f32;
      c.activation = c.out = DType::bf16;
      c.state = state;
      const auto result = testing_linear::run_case(kernel, c, {.slack = gpu_slack(c)});
      EXPECT_TRUE(result.passed()) << wgmma << " " << result.text;
    }
  }
}

// Prompts whose scans leave multiprocessors idle, in pieces: of one request, and of two of unlike lengths beside an empty one.
TEST(ChunkedLinearKernel, PromptsInPieces) {
  for (const LinearAttnKind kind : {LinearAttnKind::gdn, LinearAttnKind::kda}) {
    for (const int requests : {1, 3}) {
      HostDevice::most_pieces = 0;
      ChunkedLinearKernel kernel(std::make_unique<HostDevice>(requests == 1 ? Order::random : Order::descending, 132), true);
      LinearAttnCase c{.name = "pieces", .shape = {kind, 1, 1, 128, requests == 1 ? 128 : 80}, .lengths = {1100}};
      if (requests == 3) c.lengths = {1100, 0, 330}, c.shape.k_dim = 112;
      c.checkpoints = c.whole_chunks = requests == 3;
      c.any_form = true;
      c.start = requests == 1 ? testing_linear::Start::own_slot : testing_linear::Start::elsewhere;
      c.activation = c.out = requests == 1 ? DType::bf16 : DType::f16;
      const auto result = testing_linear::run_case(kernel, c, {.slack = gpu_slack(c)});
      EXPECT_TRUE(result.passed()) << linear_attn_kind_name(kind) << " " << requests << " " << result.text;
      EXPECT_GE(HostDevice::most_pieces, 3);
    }
  }
}

// By WGMMA with more than 128 channels of k, and not whole blocks of them.
TEST(ChunkedLinearKernel, PromptsOfManyChannels) {
  for (const LinearAttnKind kind : {LinearAttnKind::gdn, LinearAttnKind::kda}) {
    for (const int k_dim : {192, 256, 144, 208}) {
      ChunkedLinearKernel kernel(std::make_unique<HostDevice>(k_dim == 192 ? Order::random : Order::descending), true);
      LinearAttnCase c{.name = "wide", .shape = {kind, 1, 1, k_dim, k_dim == 256 ? 80 : 64}, .lengths = {150, 3, -70, 64}};
      c.activation = k_dim == 192 ? DType::f16 : DType::bf16;
      c.out = k_dim == 144 ? DType::f32 : c.activation;
      c.state = k_dim == 208 ? DType::bf16 : DType::f32;
      c.start = testing_linear::Start::elsewhere;
      c.gates = k_dim == 256;
      c.checkpoints = k_dim == 256;
      const auto result = testing_linear::run_case(kernel, c, {.slack = gpu_slack(c)});
      EXPECT_TRUE(result.passed()) << linear_attn_kind_name(kind) << " " << k_dim << " " << result.text;
      c.phase = LinearAttnPhase::target_verify;
      c.tree = testing_linear::Tree::random;
      c.lengths = {20, 3};
      c.checkpoints = false;
      const auto verified = testing_linear::run_case(kernel, c, {.slack = gpu_slack(c)});
      EXPECT_TRUE(verified.passed()) << linear_attn_kind_name(kind) << " tree " << k_dim << " " << verified.text;
    }
  }
}

TEST(ChunkedLinearKernel, CheckpointsAreTheStatesOfCallsThatEndThere) {
  for (bool wgmma : {false, true}) {
    ChunkedLinearKernel kernel(std::make_unique<HostDevice>(Order::random), wgmma);
    for (const LinearAttnKind kind : {LinearAttnKind::gdn, LinearAttnKind::kda}) {
      LinearAttnCase c = testing_linear::checkpoints_case(kind);
      c.lengths = {200, 64, -3, 130};
      c.activation = c.out = DType::bf16;
      for (const bool whole_chunks : {false, true}) {
        c.whole_chunks = whole_chunks;
        const auto result = testing_linear::run_in_pieces(kernel, c);
        EXPECT_TRUE(result.passed()) << linear_attn_kind_name(kind) << " " << wgmma << " " << whole_chunks << ": " << result.text;
      }
      c.exact = c.same_bits_drafted = true;  // models in f32, in deterministic mode
      c.activation = c.out = DType::f32;
      const auto result = testing_linear::run_in_pieces(kernel, c);
      EXPECT_TRUE(result.passed()) << linear_attn_kind_name(kind) << " " << wgmma << " exact: " << result.text;
    }
  }
}

// As PromptInSegments, of a prompt whose rows begin behind those of other requests: the bits of one call for all.
TEST(ChunkedLinearKernel, PromptInSegmentsBehindOthers) {
  constexpr int kOthers = 150, kTokens = 2100;
  for (const LinearAttnKind kind : {LinearAttnKind::gdn, LinearAttnKind::kda}) {
    LinearAttnCase c{.name = "behind", .shape = {kind, 1, 1, 64, 64}, .lengths = std::vector<int>(kOthers + 1, 1)};
    c.lengths.back() = kTokens;
    c.activation = c.out = DType::bf16;
    testing_linear::LinearAttnProblem whole(c), part(c);
    ChunkedLinearKernel kernel(std::make_unique<HostDevice>(Order::ascending), false);
    LinearAttnCall all = whole.call(), prompt = part.call();
    all.workspace_bytes = kernel.workspace_bytes(all.shape, {kOthers + 1, all.batch->num_tokens, 0});
    std::vector<std::byte> memory(all.workspace_bytes + 256);
    all.workspace = memory.data() + 256 - reinterpret_cast<uintptr_t>(memory.data()) % 256;
    kernel.extend(all);
    std::fill(memory.begin(), memory.end(), std::byte{0xff});
    LinearAttnBatch batch = *prompt.batch;
    batch.num_requests = 1, batch.q_indptr += kOthers, batch.slots += kOthers;
    prompt.batch = &batch;
    prompt.workspace = all.workspace, prompt.workspace_bytes = all.workspace_bytes;
    kernel.extend(prompt);
    for (int64_t token = kOthers; token < kOthers + kTokens; ++token) {
      for (int i = 0; i < 64; ++i) ASSERT_EQ(part.out_at(token, i), whole.out_at(token, i)) << token << " " << i;
    }
    EXPECT_EQ(part.recurrent(batch.slots[0]), whole.recurrent(batch.slots[0]));
  }
}

// Prompts whose chunks are prepared and scanned by one launch, where the call says any_form.
TEST(ChunkedLinearKernel, OneLaunch) {
  HostDevice::one_launches = 0;
  for (const Order order : {Order::ascending, Order::descending, Order::random}) {
    ChunkedLinearKernel kernel(std::make_unique<HostDevice>(order), true);
    LinearAttnCase c{.name = "fused", .shape = {LinearAttnKind::gdn, 1, 2, 128, 128}, .lengths = {200, 190, -180, 0, 150, 3}};
    if (order == Order::descending) c.lengths = {300, 310, 290, 305};
    c.any_form = true;
    c.activation = c.out = order == Order::descending ? DType::f16 : DType::bf16;
    c.checkpoints = order != Order::ascending;
    c.gates = order == Order::random;
    c.state = order == Order::random ? DType::bf16 : DType::f32;
    c.start = order == Order::ascending ? testing_linear::Start::elsewhere : testing_linear::Start::own_slot;
    const auto result = testing_linear::run_case(kernel, c, {.slack = gpu_slack(c)});
    EXPECT_TRUE(result.passed()) << static_cast<int>(order) << " " << result.text;
  }
  EXPECT_EQ(HostDevice::one_launches, 3);
  LinearAttnCase c{.name = "two launches", .shape = {LinearAttnKind::gdn, 1, 2, 128, 128}, .lengths = {10, 300, 10}};
  for (const bool any_form : {false, true}) {  // of unlike lengths
    c.any_form = any_form;
    c.lengths[1] = any_form ? 300 : 200;
    c.activation = c.out = DType::bf16;
    ChunkedLinearKernel kernel(std::make_unique<HostDevice>(Order::ascending), true);
    EXPECT_TRUE(testing_linear::run_case(kernel, c, {.slack = gpu_slack(c)}).passed()) << any_form;
  }
  EXPECT_EQ(HostDevice::one_launches, 3);
}

// What fills the device in one launch, the heads that are left in two.
TEST(ChunkedLinearKernel, HeadsSharedOutAmongForms) {
  const int before = HostDevice::one_launches;
  ChunkedLinearKernel kernel(std::make_unique<HostDevice>(Order::ascending), true);
  LinearAttnCase c{.name = "shared out", .shape = {LinearAttnKind::gdn, 5, 5, 128, 128}, .lengths = {2560}, .start = testing_linear::Start::own_slot};
  c.any_form = c.gates = true;
  c.activation = c.out = DType::bf16;
  const auto result = testing_linear::run_case(kernel, c, {.slack = gpu_slack(c)});
  EXPECT_TRUE(result.passed()) << result.text;
  EXPECT_EQ(HostDevice::one_launches, before + 1);
}

// Heads in one launch of prompts of 128 x 128 on 132 multiprocessors, as timed on an H200.
TEST(ChunkedLinearKernel, FormsOfPrompts) {
  const auto heads = [](int k_heads, int v_heads, int requests, int longest, int64_t tokens) {
    LinearParams p;
    p.k_heads = k_heads, p.v_heads = v_heads, p.heads_per_k = v_heads / k_heads, p.k_dim = p.v_dim = 128;
    p.batch.num_requests = requests, p.batch.max_q_tokens = longest, p.batch.num_tokens = tokens;
    return heads_in_one_launch(p, 132);
  };
  EXPECT_EQ(heads(16, 32, 1, 256, 256), 32);  // short
  EXPECT_EQ(heads(16, 32, 64, 256, 16384), 32);
  EXPECT_EQ(heads(16, 32, 1, 4096, 4096), 0);  // few
  EXPECT_EQ(heads(16, 32, 2, 4096, 8192), 0);
  EXPECT_EQ(heads(16, 16, 6, 5599, 33594), 16);  // 96 blocks
  EXPECT_EQ(heads(16, 32, 8, 4096, 32768), 32);  // 256 of 264
  EXPECT_EQ(heads(16, 32, 5, 4096, 20480), 26);  // 130 and the other 30
  EXPECT_EQ(heads(16, 16, 8, 4096, 4608), 0);    // of one long prompt and seven short ones
}

TEST(ChunkedLinearKernel, TileGdn) { expect_all_pass(false, Order::ascending, LinearAttnKind::gdn); }
TEST(ChunkedLinearKernel, TileKda) { expect_all_pass(false, Order::descending, LinearAttnKind::kda); }
TEST(ChunkedLinearKernel, WgmmaGdn) { expect_all_pass(true, Order::random, LinearAttnKind::gdn); }
TEST(ChunkedLinearKernel, WgmmaKda) { expect_all_pass(true, Order::ascending, LinearAttnKind::kda); }

}  // namespace
}  // namespace warpweave::linear
