// Between the qkv GEMM and attention: q/k norms, rotary embedding and the KV pool write, fused
// into one pass over the rows so that a decode step wakes the team once per layer for it.
// Source of the rotation: RoFormer (Su et al. 2021); "neox" pairs i with i + rotary_dim/2,
// "interleaved" pairs 2i with 2i + 1.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/threads.h"
#include "kv/kv_pool_view.h"
#include "warpweave/tensor.h"

namespace warpweave {

// cos and sin of position * frequency, [positions, rotary_dim / 2] each, owned. The model builds
// it (plain, llama3, yarn, linear scaling) from its inverse frequencies.
struct RopeTable {
  int rotary_dim = 0;        // even, <= head_dim; the rest of a head passes unrotated
  bool interleaved = false;
  int64_t positions = 0;
  std::vector<float> cos;
  std::vector<float> sin;
  // What further positions are made of.
  std::vector<double> inv_freq;
  double attention_factor = 1;
  int64_t most_positions = 0;

  // angle(p, i) = p * inv_freq[i]; both tables are multiplied by `attention_factor` (yarn).
  // Angles are computed in f64, rounded once. inv_freq has rotary_dim / 2 entries.
  static RopeTable make(const std::vector<double>& inv_freq, int64_t positions,
                        bool interleaved = false, double attention_factor = 1.0);
  // The same with no position yet: those take memory that reach() was asked for, of up to `most_positions`.
  static RopeTable make_empty(const std::vector<double>& inv_freq, int64_t most_positions, bool interleaved,
                              double attention_factor);
  // Positions up to `last` at least, and a few more, so that steps of decoding seldom make any. No angle moves.
  void reach(int64_t last, ThreadTeam& team);

 private:
  void fill(int64_t begin, int64_t end);
};

// Which of three positions of a row turns each frequency (M-RoPE, Qwen2-VL 2409.12191): 0 temporal, 1 height, 2 width.
// `sections` [3] add up to the frequencies: so many of each in turn, or interleaved (Qwen3-VL): every third is of
// height and of width as long as theirs last, and the rest temporal.
std::vector<uint8_t> rope_axes(std::span<const int> sections, bool interleaved);

// The table of rows at three positions each: row r of `out` has the angles that `positions` [3, rows] give row r, so
// that a rotation by `out` at positions 0, 1, 2, ... is theirs. With three equal ones it is bit by bit that of `table`.
void gather_rope_rows(const RopeTable& table, std::span<const uint8_t> axes, const int32_t* positions, int64_t rows,
                      RopeTable& out);

struct QkvRowsCall {
  int64_t rows = 0;
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;                   // of q and k
  int v_head_dim = 0;
  float* q = nullptr;                 // [rows, num_q_heads, head_dim], changed in place
  float* k = nullptr;                 // [rows, num_kv_heads, head_dim], changed in place
  const float* v = nullptr;           // [rows, num_kv_heads, v_head_dim]
  int64_t q_stride = 0;               // row strides in elements (one merged qkv row: all equal)
  int64_t k_stride = 0;
  int64_t v_stride = 0;
  const float* q_norm = nullptr;      // [head_dim] RMS norm per head before rope; null: none
  const float* k_norm = nullptr;
  bool norm_after_rope = false;       // the norms follow the rotation
  float norm_weight_offset = 0.0f;    // 1 for Gemma
  float norm_eps = 1e-6f;
  const RopeTable* rope = nullptr;    // null: no rotation
  const int32_t* positions = nullptr; // [rows], each < rope->positions
  const int32_t* kv_slots = nullptr;  // [rows] page * page_size + offset, or -1: write nothing
  int page_size = 1;
  KvPoolView k_out;                   // pools to write, in any format, as kv/kv_codec.h defines
                                      // it; data == nullptr: no write at all
  KvPoolView v_out;
};
void norm_rope_write_kv(const QkvRowsCall& call, ThreadTeam& team);

}  // namespace warpweave
