// The layer against transformers' Qwen3-Next layer (tools/make_linear_attn_golden.py).
#include "linear/gdn_layer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

#include "linear/cpu/cpu_linear_attn.h"

namespace warpweave {
namespace {

using Floats = std::vector<float>;

struct Sequence {
  Floats x, y, state;
};

class Golden {
 public:
  Golden() : json_(nlohmann::json::parse(std::ifstream("tests/golden/linear/gated_delta_net.json"))) {
    shape = {LinearAttnKind::gdn, json_["k_heads"], json_["v_heads"], json_["k_dim"], json_["v_dim"]};
    hidden = json_["hidden"];
    qkvz_ = floats("in_proj_qkvz");
    ba_ = floats("in_proj_ba");
    out_ = floats("out_proj");
    for (const auto& s : json_["sequences"]) {
      sequences.push_back({s["x"].get<Floats>(), s["y"].get<Floats>(), s["state"].get<Floats>()});
    }
  }

  TensorView matrix(const Floats& x, int64_t cols) const {
    return {x.data(), DType::f32, 2, {static_cast<int64_t>(x.size()) / cols, cols}};
  }
  TensorView qkvz() const { return matrix(qkvz_, hidden); }
  TensorView ba() const { return matrix(ba_, hidden); }

  GdnLayerWeights weights(ThreadTeam& team) const {
    GdnLayerWeights w;
    w.shape = shape;
    w.conv_width = json_["conv_width"];
    w.norm_eps = json_["norm_eps"];
    const auto parts = gdn_grouped_input(shape, qkvz(), ba());
    EXPECT_TRUE(parts.ok()) << parts.status().message();
    w.in = PackedLinear::pack(*parts, {}, team).value();
    const LinearPart out{.weight = matrix(out_, int64_t{shape.v_heads} * shape.v_dim), .bias = {}};
    w.out = PackedLinear::pack({&out, 1}, {}, team).value();
    w.conv_weight = floats("conv1d");
    w.a_log = floats("A_log");
    w.dt_bias = floats("dt_bias");
    w.norm_weight = floats("norm");
    return w;
  }

  LinearAttnShape shape;
  int hidden = 0;
  std::vector<Sequence> sequences;

 private:
  Floats floats(const char* name) const { return json_[name].get<Floats>(); }
  nlohmann::json json_;
  Floats qkvz_, ba_, out_;
};

// The golden's layer with a slot per sequence.
class Layer {
 public:
  explicit Layer(const Golden& golden)
      : golden_(golden), weights_(golden.weights(team_)), backends_(cpu_linear_attn_backends(team_)),
        kernels_(LinearAttnDispatcher::create(LinearAttnKind::gdn, {"cpu", "cpu", "cpu", true}, DType::f32, backends_).value()) {
    state_.resize(golden.sequences.size() * head_elements() * golden.shape.v_heads, NAN);
    conv_.resize(golden.sequences.size() * conv_elements(), NAN);
  }

  int64_t head_elements() const { return int64_t{golden_.shape.v_dim} * golden_.shape.k_dim; }
  int64_t conv_elements() const { return int64_t{golden_.shape.conv_channels()} * (weights_.conv_width - 1); }
  const float* state(int slot) const { return state_.data() + slot * head_elements() * golden_.shape.v_heads; }

  // Rows of hidden states, request after request; returns the layer's output for them.
  Floats run(LinearAttnPhase phase, const LinearAttnBatch& batch, const Floats& x) {
    Floats y(batch.num_tokens * golden_.hidden);
    if (phase != LinearAttnPhase::commit) rows_.assign(batch.num_tokens * weights_.row_width(), NAN);
    Floats heads(batch.num_tokens * weights_.v_width());
    const size_t bytes = kernels_.workspace_bytes(golden_.shape, {batch.num_requests, batch.num_tokens, weights_.conv_width});
    AlignedBuffer workspace = AlignedBuffer::allocate(bytes);
    GdnLayerCall call;
    call.phase = phase;
    call.batch = &batch;
    call.x = {.data = x.data(), .rows = batch.num_tokens, .row_stride = golden_.hidden};
    call.y = {.data = y.data(), .row_stride = golden_.hidden};
    call.state = {state_.data(), DType::f32, head_elements() * golden_.shape.v_heads, head_elements()};
    call.conv_state = conv_.data();
    call.conv_slot_stride = conv_elements();
    call.rows = rows_.data();
    call.heads = heads.data();
    call.workspace = workspace.data();
    call.workspace_bytes = bytes;
    const Status status = run_gdn_layer(weights_, call, kernels_, team_);
    EXPECT_TRUE(status.ok()) << status.message();
    return y;
  }

 private:
  const Golden& golden_;
  ThreadTeam team_{2};
  GdnLayerWeights weights_;
  std::vector<LinearAttnBackend> backends_;
  LinearAttnDispatcher kernels_;
  Floats state_, conv_, rows_;
};

void expect_near(std::span<const float> got, std::span<const float> want, const char* what) {
  ASSERT_EQ(got.size(), want.size());
  double largest = 0, error = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    largest = std::max(largest, std::abs(double{want[i]}));
    error = std::max(error, std::isnan(got[i]) ? INFINITY : std::abs(double{got[i]} - want[i]));
  }
  EXPECT_GT(largest, 0);
  EXPECT_LE(error, 3e-5 * largest) << what;
}

TEST(GdnLayer, PromptsMatchTransformers) {
  const Golden golden;
  Layer layer(golden);
  Floats x, y;
  std::vector<int32_t> indptr{0}, slots, fresh;
  LinearAttnBatch batch;
  for (const Sequence& s : golden.sequences) {
    x.insert(x.end(), s.x.begin(), s.x.end());
    y.insert(y.end(), s.y.begin(), s.y.end());
    const auto tokens = static_cast<int>(s.x.size() / golden.hidden);
    indptr.push_back(indptr.back() + tokens);
    slots.push_back(batch.num_requests++);
    fresh.push_back(-1);
    batch.max_q_tokens = std::max(batch.max_q_tokens, tokens);
  }
  batch.num_tokens = indptr.back();
  batch.q_indptr = indptr.data();
  batch.slots = slots.data();
  batch.initial_slots = fresh.data();
  expect_near(layer.run(LinearAttnPhase::extend, batch, x), y, "outputs");
  for (int r = 0; r < batch.num_requests; ++r) {
    const Floats& state = golden.sequences[r].state;
    expect_near({layer.state(r), state.size()}, state, "state");
  }
}

// A prompt in pieces, a verified chain of drafts of which some are kept, then token after token.
TEST(GdnLayer, PiecesDraftsAndDecodesMatchTransformers) {
  const Golden golden;
  Layer layer(golden);
  const Sequence& s = golden.sequences[0];
  const auto tokens = static_cast<int>(s.x.size() / golden.hidden);
  const int32_t slot = 0, fresh = -1;
  Floats y;
  const auto piece = [&](LinearAttnPhase phase, int first, int count, int kept) {
    const int32_t indptr[] = {0, count}, accepted = kept - 1;
    LinearAttnBatch batch;
    batch.num_requests = 1;
    batch.num_tokens = batch.max_q_tokens = count;
    batch.q_indptr = phase == LinearAttnPhase::decode ? nullptr : indptr;
    batch.slots = &slot;
    batch.initial_slots = first == 0 ? &fresh : nullptr;
    batch.accepted = &accepted;
    const Floats x(s.x.begin() + first * golden.hidden, s.x.begin() + (first + count) * golden.hidden);
    const Floats out = layer.run(phase, batch, x);
    if (phase == LinearAttnPhase::target_verify) layer.run(LinearAttnPhase::commit, batch, x);
    y.insert(y.end(), out.begin(), out.begin() + kept * golden.hidden);
  };
  piece(LinearAttnPhase::extend, 0, 13, 13);
  piece(LinearAttnPhase::extend, 13, 21, 21);
  piece(LinearAttnPhase::target_verify, 34, 6, 4);
  piece(LinearAttnPhase::target_verify, 38, 2, 0);
  for (int t = 38; t < tokens; ++t) piece(LinearAttnPhase::decode, t, 1, 1);
  expect_near(y, s.y, "outputs");
  expect_near({layer.state(0), s.state.size()}, s.state, "state");
}

TEST(GdnLayer, WeightsOfOtherHeadsAreRefused) {
  const Golden golden;
  LinearAttnShape shape = golden.shape;
  shape.v_heads *= 2;
  EXPECT_EQ(gdn_grouped_input(shape, golden.qkvz(), golden.ba()).status().field(), "in_proj_qkvz");
  TensorView vector = golden.qkvz();
  vector.rank = 1;
  EXPECT_FALSE(gdn_grouped_input(golden.shape, vector, golden.ba()).ok());
  EXPECT_EQ(gdn_grouped_input(golden.shape, golden.qkvz(), golden.qkvz()).status().field(), "in_proj_ba");
}

}  // namespace
}  // namespace warpweave
