#include <fmt/format.h>

#include <numeric>

#include "linear/testing/case.h"

namespace warpweave::testing_linear {
namespace {

using Phase = LinearAttnPhase;
using Kind = LinearAttnKind;

// Around the edges of sub-chunks (16) and chunks (64).
const std::vector<int> kEdges = {0, 1, 2, 3, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 66, 79, 80, 81, 127, 128, 129};

LinearAttnShape shape_of(Kind kind, int k_heads, int v_heads, int k_dim, int v_dim) {
  return {kind, k_heads, v_heads, k_dim, v_dim};
}

// Everything that one layer of a model gives.
LinearAttnCase whole_layer(LinearAttnCase c) {
  c.conv = c.gates = c.norm = true;
  return c;
}

void add_extend(Kind kind, std::vector<LinearAttnCase>& cases) {
  std::vector<int> all(130);
  std::iota(all.begin(), all.end(), 0);
  cases.push_back({.name = "lengths_0_to_129", .shape = shape_of(kind, 1, 2, 16, 16), .lengths = all, .start = Start::elsewhere});
  cases.push_back({.name = "edges", .shape = shape_of(kind, 1, 1, 64, 64), .lengths = kEdges});
  cases.push_back({.name = "edges_fresh", .shape = shape_of(kind, 1, 1, 32, 48), .lengths = kEdges, .start = Start::fresh});
  for (auto [k, v] : {std::pair{48, 80}, {96, 64}, {128, 128}, {192, 96}, {208, 48}, {256, 64}, {64, 256}, {256, 256}}) {
    cases.push_back({.name = fmt::format("dims_{}_{}", k, v), .shape = shape_of(kind, 1, 1, k, v), .lengths = {70, 1}});
  }
  for (auto [k, v] : {std::pair{1, 4}, {3, 3}, {2, 6}, {4, 8}}) {
    cases.push_back({.name = fmt::format("heads_{}_{}", k, v), .shape = shape_of(kind, k, v, 32, 32), .lengths = {37, 5, 66}});
  }
  const std::pair<Decay, const char*> decays[] = {
      {Decay::near_one, "near_one"}, {Decay::near_zero, "near_zero"}, {Decay::mixed, "mixed"}};
  for (auto [decay, name] : decays) {
    cases.push_back({.name = fmt::format("decay_{}", name), .shape = shape_of(kind, 1, 2, 64, 64), .lengths = {130, 64, 200}, .decay = decay});
  }
  cases.push_back({.name = "alike_keys", .shape = shape_of(kind, 1, 1, 64, 64), .lengths = {129, 64}, .decay = Decay::near_one, .alike_keys = true});
  cases.push_back({.name = "unit_keys", .shape = shape_of(kind, 1, 2, 64, 64), .lengths = {40, 100}, .l2norm = false});
  cases.push_back({.name = "checkpoints", .shape = shape_of(kind, 1, 2, 32, 32), .lengths = {100, 3, 1, 64, 200, 129}, .start = Start::elsewhere, .checkpoints = true});
  cases.push_back({.name = "padded_and_strided", .shape = shape_of(kind, 2, 4, 32, 48), .lengths = {20, -3, 70, -1, 0, 9}, .start = Start::elsewhere, .checkpoints = true, .strided = true});
  for (int width : {2, 3, 4, 8}) {
    cases.push_back({.name = fmt::format("conv_{}_of_tokens", width), .shape = shape_of(kind, 1, 2, 32, 32), .lengths = {0, 1, 3, 70}, .start = Start::elsewhere, .conv = true, .conv_bias = width != 4, .conv_width = width, .v_weight = true, .checkpoints = true});
    cases.push_back({.name = fmt::format("conv_{}", width), .shape = shape_of(kind, 1, 2, 32, 32), .lengths = {0, 1, 2, 3, 5, 70}, .start = Start::elsewhere, .conv = true, .conv_bias = width != 4, .conv_width = width, .checkpoints = true});
  }
  cases.push_back({.name = "gates", .shape = shape_of(kind, 1, 2, 64, 64), .lengths = {50, 90}, .gates = true});
  cases.push_back({.name = "norm_silu", .shape = shape_of(kind, 1, 2, 64, 64), .lengths = {20, 66}, .norm = true});
  cases.push_back({.name = "norm_sigmoid", .shape = shape_of(kind, 1, 2, 64, 80), .lengths = {20, 66}, .norm = true, .norm_gate = LinearAttnNormGate::sigmoid});
  cases.push_back(whole_layer({.name = "layer", .shape = shape_of(kind, 2, 4, 64, 64), .lengths = {65, 1, -2, 30}, .start = Start::elsewhere, .checkpoints = true, .strided = true}));
  cases.push_back(whole_layer({.name = "layer_bf16", .shape = shape_of(kind, 2, 4, 64, 64), .lengths = {65, 1, -2, 30}, .start = Start::elsewhere, .checkpoints = true, .activation = DType::bf16, .out = DType::bf16, .state = DType::bf16}));
  cases.push_back(whole_layer({.name = "layer_f16", .shape = shape_of(kind, 1, 2, 64, 64), .lengths = {65, 7}, .activation = DType::f16, .out = DType::f16}));
  cases.push_back({.name = "bf16_state", .shape = shape_of(kind, 1, 2, 64, 64), .lengths = {3, 64, 100}, .state = DType::bf16});
  cases.push_back({.name = "long", .shape = shape_of(kind, 1, 1, 32, 32), .lengths = {3000}, .decay = Decay::near_one});
  cases.push_back(whole_layer({.name = "exact_layer", .shape = shape_of(kind, 2, 4, 48, 64), .lengths = {65, 1, -2, 0, 30}, .start = Start::elsewhere, .checkpoints = true, .strided = true, .exact = true}));
  cases.push_back({.name = "exact_bf16", .shape = shape_of(kind, 1, 2, 128, 128), .lengths = {20, 3}, .exact = true, .activation = DType::bf16, .state = DType::bf16});
}

void add_decode(Kind kind, std::vector<LinearAttnCase>& cases) {
  const auto phase = Phase::decode;
  cases.push_back({.name = "one", .phase = phase, .shape = shape_of(kind, 1, 1, 64, 64), .lengths = {1}});
  cases.push_back({.name = "batch", .phase = phase, .shape = shape_of(kind, 2, 4, 64, 64), .lengths = {1, 1, -1, 1, 1, 1, -1}, .start = Start::elsewhere, .strided = true});
  for (auto [k, v] : {std::pair{48, 80}, {96, 64}, {128, 128}, {192, 96}, {208, 48}, {256, 64}, {64, 256}, {256, 256}}) {
    cases.push_back({.name = fmt::format("dims_{}_{}", k, v), .phase = phase, .shape = shape_of(kind, 1, 2, k, v), .lengths = {1, 1}});
  }
  for (auto [k, v] : {std::pair{1, 4}, {3, 3}, {2, 6}}) {
    cases.push_back({.name = fmt::format("heads_{}_{}", k, v), .phase = phase, .shape = shape_of(kind, k, v, 32, 32), .lengths = {1, 1, 1}});
  }
  for (auto [decay, name] : {std::pair{Decay::near_one, "near_one"}, {Decay::near_zero, "near_zero"}, {Decay::mixed, "mixed"}}) {
    cases.push_back({.name = fmt::format("decay_{}", name), .phase = phase, .shape = shape_of(kind, 1, 2, 64, 64), .lengths = {1, 1, 1}, .decay = decay});
  }
  cases.push_back({.name = "unit_keys", .phase = phase, .shape = shape_of(kind, 1, 2, 64, 64), .lengths = {1, 1}, .l2norm = false});
  for (int width : {2, 4, 8}) {
    cases.push_back({.name = fmt::format("conv_{}_of_tokens", width), .phase = phase, .shape = shape_of(kind, 1, 2, 32, 32), .lengths = {1, 1, -1, 1}, .start = Start::elsewhere, .conv = true, .conv_bias = width != 4, .conv_width = width, .v_weight = true});
    cases.push_back({.name = fmt::format("conv_{}", width), .phase = phase, .shape = shape_of(kind, 1, 2, 32, 32), .lengths = {1, 1, -1, 1}, .start = Start::elsewhere, .conv = true, .conv_bias = width != 4, .conv_width = width});
  }
  cases.push_back(whole_layer({.name = "layer", .phase = phase, .shape = shape_of(kind, 2, 4, 128, 128), .lengths = {1, -1, 1}, .start = Start::elsewhere, .strided = true}));
  cases.push_back(whole_layer({.name = "layer_bf16", .phase = phase, .shape = shape_of(kind, 2, 4, 64, 64), .lengths = {1, 1, 1}, .activation = DType::bf16, .out = DType::bf16, .state = DType::bf16}));
  cases.push_back({.name = "bf16_state", .phase = phase, .shape = shape_of(kind, 1, 2, 128, 128), .lengths = {1, 1}, .start = Start::fresh, .state = DType::bf16});
}

void add_verify(Kind kind, std::vector<LinearAttnCase>& cases) {
  const auto phase = Phase::target_verify;
  for (auto [tree, name] : {std::pair{Tree::chain, "chain"}, {Tree::random, "tree"}, {Tree::star, "star"}}) {
    cases.push_back({.name = name, .phase = phase, .shape = shape_of(kind, 1, 2, 64, 64), .lengths = {5, 1, 16, 17, 8, 3}, .tree = tree});
    cases.push_back(whole_layer({.name = fmt::format("{}_layer", name), .phase = phase, .shape = shape_of(kind, 1, 2, 32, 48), .lengths = {7, 64, -3, 16, 2, 33}, .start = Start::elsewhere, .tree = tree, .strided = true}));
  }
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    cases.push_back(whole_layer({.name = fmt::format("tree_{}", seed), .phase = phase, .shape = shape_of(kind, 1, 2, 32, 32), .lengths = {12, 20, 9}, .tree = Tree::random, .conv_width = seed % 2 ? 4 : 3, .v_weight = seed % 4 == 3, .seed = seed}));
  }
  cases.push_back({.name = "tree_decay_mixed", .phase = phase, .shape = shape_of(kind, 1, 2, 64, 64), .lengths = {40, 12}, .decay = Decay::mixed, .tree = Tree::random});
  cases.push_back({.name = "tree_heads", .phase = phase, .shape = shape_of(kind, 2, 6, 128, 128), .lengths = {16, 4}, .tree = Tree::random});
  for (auto [tree, name] : {std::pair{Tree::chain, "exact_chain"}, {Tree::random, "exact_tree"}, {Tree::star, "exact_star"}}) {
    cases.push_back(whole_layer({.name = name, .phase = phase, .shape = shape_of(kind, 1, 2, 48, 64), .lengths = {7, 64, -3, 16, 1, 33}, .start = Start::elsewhere, .tree = tree, .strided = true, .exact = true}));
  }
  cases.push_back(whole_layer({.name = "tree_bf16", .phase = phase, .shape = shape_of(kind, 1, 2, 64, 64), .lengths = {16, 8, 5}, .tree = Tree::random, .activation = DType::bf16, .out = DType::bf16, .state = DType::bf16}));
}

}  // namespace

std::vector<LinearAttnCase> linear_attn_cases() {
  std::vector<LinearAttnCase> cases;
  for (Kind kind : {Kind::gdn, Kind::kda}) {
    std::vector<LinearAttnCase> own;
    add_decode(kind, own);
    add_extend(kind, own);
    add_verify(kind, own);
    for (LinearAttnCase& c : own) {
      c.name = fmt::format("{}/{}/{}", linear_attn_kind_name(kind), linear_attn_phase_name(c.phase), c.name);
      cases.push_back(std::move(c));
    }
  }
  return cases;
}

std::vector<LinearAttnCase> chains_cases(LinearAttnKind kind) {
  std::vector<LinearAttnCase> cases;
  for (const DType state : {DType::f32, DType::bf16}) {
    for (const auto& [k_dim, v_dim] : {std::pair{128, 128}, {64, 48}, {192, 80}, {256, 144}}) {
      LinearAttnCase c = whole_layer({.name = fmt::format("chains {} {}", k_dim, v_dim), .phase = Phase::target_verify, .shape = shape_of(kind, 1, 2, k_dim, v_dim), .lengths = {7, 1, -2, 12}, .start = Start::elsewhere});
      c.activation = c.out = DType::bf16;
      c.state = state;
      cases.push_back(c);
    }
  }
  return cases;
}

std::vector<LinearAttnCase> decode_cases(LinearAttnKind kind) {
  struct Dims {
    int k, v;
    bool norm;
  };
  std::vector<LinearAttnCase> cases;
  for (const Dims& dims : {Dims{128, 96, false}, {64, 80, false}, {128, 128, true}, {64, 64, true}, {128, 64, true}, {64, 128, true}}) {
    for (const DType activation : {DType::f32, DType::f16, DType::bf16}) {
      LinearAttnCase c{.name = {}, .phase = Phase::decode, .shape = shape_of(kind, 1, 3, dims.k, dims.v), .lengths = std::vector<int>(18, 1), .start = Start::elsewhere};
      c.name = fmt::format("{} decode {} {} {}{}", linear_attn_kind_name(kind), dims.k, dims.v, static_cast<int>(activation), dims.norm ? " norm" : "");
      c.lengths[4] = -1;
      c.activation = c.out = activation;
      c.gates = dims.k == 128, c.norm = dims.norm;
      if (dims.k != dims.v) c.norm_gate = LinearAttnNormGate::sigmoid;
      cases.push_back(c);
    }
  }
  return cases;
}

LinearAttnCase checkpoints_case(LinearAttnKind kind) {
  LinearAttnCase c{.name = "checkpoints", .shape = {kind, 1, 2, 64, 64}, .lengths = {700, 300, 64, -3, 200}};
  c.start = Start::elsewhere;
  c.conv = c.gates = c.norm = c.checkpoints = true;
  return c;
}

}  // namespace warpweave::testing_linear
