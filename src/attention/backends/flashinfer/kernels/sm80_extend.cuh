// Tiled attention for many query rows over paged K/V: mma.sync, cp.async, two buffers. A CTA takes
// one item of the worklist (kTileRows rows of one request) and one kv head; a warp 16 rows. Rows are
// query token * group + head in the group, so the q heads of a kv head share its K and V reads.
// Runs every mask there is: causal, bidirectional, window, draft trees. bf16 or f16 arithmetic,
// float32 accumulation, softmax in log2 units; keys past the visible range are never read.
#pragma once

#include "attention/cuda/attention_params.h"
#include "attention/cuda/kv_fragment.h"
#include "attention/cuda/page_lookup.cuh"
#include "device/cuda/ptx.h"

namespace warpweave::cuda {

template <class Element_, KvStorage kStorage_, int kDim_, int kWarps_>
struct ExtendConfig {
  using Element = Element_;
  using Fragment = KvFragment<Element_, kStorage_>;
  static constexpr KvStorage kStorage = kStorage_;
  static constexpr int kDim = kDim_;
  static constexpr int kThreads = 32 * kWarps_;
  static constexpr int kTileRows = 16 * kWarps_;
  static constexpr int kTileTokens = kDim_ > 128 ? 32 : 64;
  static constexpr int kRowBytes = kDim * Fragment::kBits / 8;
  static constexpr int kTileBytes = kTileTokens * kRowBytes;
  static constexpr int kScaleRowBytes = kStorage_ == KvStorage::e2m1 ? kDim / 16 : 0;
  static constexpr int kBufferBytes = 2 * (kTileBytes + kTileTokens * kScaleRowBytes);  // K, V, their scales
  // At d 256 the Q fragments live in shared memory, each thread's own: O fills the registers.
  static constexpr bool kQueryInShared = kDim > 128;
  static constexpr int kQueryBytes = kQueryInShared ? kTileRows * kDim * 2 : 0;
  static constexpr int kOffsetBytes = 2 * kTileTokens * 8;
  static constexpr int kSmemBytes = 2 * kBufferBytes + kOffsetBytes + kQueryBytes;
};

struct ExtendTile {
  int request, head;
  int q_begin, q_len, kv_len;
  int first_row;
  int token_begin, token_end;  // kv positions that some row sees
};

// Two rows of the tile a thread owns: lane / 4 and lane / 4 + 8 of its warp's 16.
struct ExtendRow {
  int token, in_group;  // token: index in the request, -1 for no row
  int begin, end;       // visible kv positions (the tree's own columns excepted)
};

template <class C>
class ExtendTask {
 public:
  WW_DEVICE ExtendTask(const AttentionParams& p, const ExtendTile& tile, char* q_shared)
      : p_(p), t_(tile), q_shared_(reinterpret_cast<uint4*>(q_shared)) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) row_[i] = row_of(t_.first_row + warp * 16 + lane / 4 + i * 8);
    load_query();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      maximum_[i] = -INFINITY;
      sum_[i] = 0;
    }
#pragma unroll
    for (int n = 0; n < kDimTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out_[n][i] = 0;
    }
    const float k_scale = p_.k_head_scales != nullptr ? p_.k_head_scales[t_.head] : 1.0f;
    scale_log2_ = p_.scale * k_scale * kLog2e *
                  power_of_two(C::Fragment::kWidenedScaleLog2 - C::Fragment::kQueryLog2);
    const ExtendRow first = row_of(t_.first_row + warp * 16);
    const ExtendRow last = row_of(t_.first_row + warp * 16 + 15);
    plain_begin_ = last.begin;
    plain_end_ = min(first.end, last.end);
    if (p_.tree_mask != nullptr) {
      // A tree's rows stand at any depth, so none of them bounds the windows of the others.
      plain_end_ = p_.window_left >= 0 ? 0 : min(plain_end_, t_.kv_len - t_.q_len);
    }
  }

  WW_DEVICE void step(u32 k_tile, u32 v_tile, int position) {
    float s[kTokenTiles][4];
    scores(k_tile, s);
    mask(position, s);
    u32 probability[kTokenTiles][2];
    softmax(s, probability);
    accumulate(v_tile, probability);
  }

  WW_DEVICE void write() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = sum_[i];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      if (row_[i].token < 0) continue;
      const int64_t token = t_.q_begin + row_[i].token;
      const int head = t_.head * p_.group + row_[i].in_group;
      const bool empty = maximum_[i] == -INFINITY;
      float scale = power_of_two(C::Fragment::kWidenedScaleLog2);
      float top = maximum_[i];
      if (p_.sinks != nullptr && !empty) {
        const float sink = p_.sinks[head] * kLog2e;
        top = fmaxf(maximum_[i], sink);
        const float factor = ptx::exp2_approx(maximum_[i] - top);
        sum = sum * factor + ptx::exp2_approx(sink - top);
        scale *= factor;
      }
      scale = empty ? 0.0f : scale / sum;
      if (p_.v_head_scales != nullptr) scale *= p_.v_head_scales[t_.head];
      char* out = static_cast<char*>(p_.out) +
                  (token * p_.out_token_stride + static_cast<int64_t>(head) * C::kDim) * 2;
      write_row(out, i, scale);
      if (p_.lse != nullptr && threadIdx.x % 4 == 0) {
        p_.lse[token * p_.num_q_heads + head] = empty ? -INFINITY : (top + log2f(sum)) * kLn2;
      }
    }
  }

 private:
  using E = typename C::Element;
  using F = typename C::Fragment;
  static constexpr int kDimTiles = C::kDim / 8;
  static constexpr int kTokenTiles = C::kTileTokens / 8;
  static constexpr float kLog2e = 1.4426950408889634f;
  static constexpr float kLn2 = 0.6931471805599453f;

  WW_DEVICE ExtendRow row_of(int row) const {
    ExtendRow r;
    r.token = row / p_.group;
    r.in_group = row - r.token * p_.group;
    const int position = t_.kv_len - t_.q_len + r.token;
    r.end = p_.causal && p_.tree_mask == nullptr ? position + 1 : t_.kv_len;
    int window_position = position;
    if (r.token >= t_.q_len) {
      r.token = -1;
      r.end = 0;
    } else if (p_.tree_mask != nullptr) {
      window_position = p_.positions[t_.q_begin + r.token];
    }
    r.begin = p_.window_left < 0 ? 0 : max(0, window_position - p_.window_left);
    return r;
  }

  // A fragments of the warp's 16 rows; the order of dims matches that of widened values.
  WW_DEVICE void load_query() {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool real = row_[i].token >= 0;
      const char* base = static_cast<const char*>(p_.q);
      if (real) {
        base += ((t_.q_begin + row_[i].token) * p_.q_token_stride +
                 static_cast<int64_t>(t_.head * p_.group + row_[i].in_group) * C::kDim) * 2;
      }
#pragma unroll
      for (int k = 0; k < C::kDim / 16; ++k) {
        if constexpr (C::kStorage == KvStorage::same16) {
          const u32* pairs = reinterpret_cast<const u32*>(base) + k * 8 + lane % 4;
          q_[k][i] = real ? pairs[0] : 0;
          q_[k][i + 2] = real ? pairs[4] : 0;
        } else if constexpr (C::kStorage == KvStorage::e2m1) {
          if (k % 2 != 0) continue;
          const uint4 w = real ? reinterpret_cast<const uint4*>(base)[k * 2 + lane % 4] : make_uint4(0, 0, 0, 0);
          constexpr float kShift = power_of_two(F::kQueryLog2);
          q_[k][i] = E::pack(E::low(w.x) * kShift, E::low(w.z) * kShift);
          q_[k][i + 2] = E::pack(E::high(w.x) * kShift, E::high(w.z) * kShift);
          q_[k + 1][i] = E::pack(E::low(w.y) * kShift, E::low(w.w) * kShift);
          q_[k + 1][i + 2] = E::pack(E::high(w.y) * kShift, E::high(w.w) * kShift);
        } else {
          const uint2 four = real ? reinterpret_cast<const uint2*>(base)[k * 4 + lane % 4] : make_uint2(0, 0);
          constexpr float kShift = power_of_two(F::kQueryLog2);
          q_[k][i] = E::pack(E::low(four.x) * kShift, E::low(four.y) * kShift);
          q_[k][i + 2] = E::pack(E::high(four.x) * kShift, E::high(four.y) * kShift);
        }
      }
    }
    if constexpr (C::kQueryInShared) {
#pragma unroll
      for (int k = 0; k < C::kDim / 16; ++k) {
        q_shared_[k * C::kThreads + threadIdx.x] = make_uint4(q_[k][0], q_[k][1], q_[k][2], q_[k][3]);
      }
    }
  }

  WW_DEVICE void query(int k, u32 (&a)[4]) const {
    if constexpr (C::kQueryInShared) {
      const uint4 four = q_shared_[k * C::kThreads + threadIdx.x];
      a[0] = four.x, a[1] = four.y, a[2] = four.z, a[3] = four.w;
    } else {
      a[0] = q_[k][0], a[1] = q_[k][1], a[2] = q_[k][2], a[3] = q_[k][3];
    }
  }

  WW_DEVICE void scores(u32 k_tile, float (&s)[kTokenTiles][4]) const {
    const int lane = threadIdx.x % 32;
    const int row = lane % 8 + lane / 16 * 8;
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = 0;
    }
    [[maybe_unused]] u32 codes[kTokenTiles];
#pragma unroll
    for (int k = 0; k < C::kRowBytes / 32; ++k) {
      constexpr int kSteps = 16 / F::kBits;  // k steps of 16 dims in 32 bytes
      u32 a[kSteps][4];
#pragma unroll
      for (int step = 0; step < kSteps; ++step) query(k * kSteps + step, a[step]);
      if constexpr (C::kStorage == KvStorage::e2m1) {
        if (k % 2 == 0) {
#pragma unroll
          for (int n = 0; n < kTokenTiles; ++n) {
            codes[n] = scale_codes<C::kDim>(scale_row(k_tile, 0, n * 8 + lane / 4) + k * 4, lane & 2);
          }
        }
      }
#pragma unroll
      for (int n = 0; n < kTokenTiles; n += 2) {
        u32 b[4];
        ptx::ldmatrix_x4(b, k_tile + swizzled<C::kRowBytes>(n * 8 + row, k * 2 + lane / 8 % 2));
        if constexpr (C::kStorage == KvStorage::same16) {
          E::mma(s[n], a[0], b[0], b[1]);
          E::mma(s[n + 1], a[0], b[2], b[3]);
        } else if constexpr (C::kStorage == KvStorage::e2m1) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {  // token tile n + i / 2, chunk k * 2 + i % 2
            const u32 scale = row_scale<E>(codes[n + i / 2], (k * 2 + i % 2) % 4);
            E::mma(s[n + i / 2], a[i % 2 * 2], scaled<0>(b[i], scale), scaled<1>(b[i], scale));
            E::mma(s[n + i / 2], a[i % 2 * 2 + 1], scaled<2>(b[i], scale), scaled<3>(b[i], scale));
          }
        } else {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            E::mma(s[n], a[half], F::widen_low(b[half]), F::widen_high(b[half]));
            E::mma(s[n + 1], a[half], F::widen_low(b[2 + half]), F::widen_high(b[2 + half]));
          }
        }
      }
    }
  }

  // fp4: a pair of values.
  template <int kNibble>
  static WW_DEVICE u32 scaled(u32 word, u32 scale) {
    return E::multiply(F::template widen<kNibble>(word), scale);
  }
  // fp4: the block scales of row `row` of K (v 0) or V (1) of the buffer that begins with `k_tile`.
  static WW_DEVICE u32 scale_row(u32 k_tile, int v, int row) {
    return k_tile + 2 * C::kTileBytes + (v * C::kTileTokens + row) * C::kScaleRowBytes;
  }

  WW_DEVICE void mask(int position, float (&s)[kTokenTiles][4]) const {
    const bool plain = position >= plain_begin_ && position + C::kTileTokens <= plain_end_;
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (p_.softcap > 0) {
          s[n][i] = ptx::tanh_approx(s[n][i] * scale_log2_ * (kLn2 / p_.softcap)) * (p_.softcap * kLog2e);
        } else {
          s[n][i] *= scale_log2_;
        }
        if (!plain) {
          const int token = position + n * 8 + threadIdx.x % 4 * 2 + i % 2;
          if (!visible(row_[i / 2], token)) s[n][i] = -INFINITY;
        }
      }
    }
  }

  WW_DEVICE bool visible(const ExtendRow& row, int token) const {
    if (token >= row.end) return false;
    const int node = token - (t_.kv_len - t_.q_len);
    if (p_.tree_mask != nullptr && node >= 0) {
      const int64_t word = (static_cast<int64_t>(t_.q_begin) + row.token) * p_.tree_mask_words + node / 32;
      return p_.tree_mask[word] >> (node % 32) & 1;
    }
    return token >= row.begin;
  }

  WW_DEVICE void softmax(float (&s)[kTokenTiles][4], u32 (&probability)[kTokenTiles][2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float top = -INFINITY;
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) top = fmaxf(top, fmaxf(s[n][i * 2], s[n][i * 2 + 1]));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      // The stored maximum carries the shift that keeps results from widened codes in range.
      const float next = fmaxf(maximum_[i], top - F::kProbabilityLog2);
      const float reference = next == -INFINITY ? 0.0f : next;
      const float factor = ptx::exp2_approx(maximum_[i] - reference);
      maximum_[i] = next;
      sum_[i] *= factor;
#pragma unroll
      for (int n = 0; n < kDimTiles; ++n) {
        out_[n][i * 2] *= factor;
        out_[n][i * 2 + 1] *= factor;
      }
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
        const float a = ptx::exp2_approx(s[n][i * 2] - reference);
        const float b = ptx::exp2_approx(s[n][i * 2 + 1] - reference);
        sum_[i] += a + b;
        probability[n][i] = E::pack(a, b);
      }
    }
  }

  WW_DEVICE void accumulate(u32 v_tile, const u32 (&probability)[kTokenTiles][2]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < kTokenTiles / 2; ++k) {
      const u32 a[4] = {probability[k * 2][0], probability[k * 2][1], probability[k * 2 + 1][0],
                        probability[k * 2 + 1][1]};
      const int row = k * 16 + lane % 16;
      [[maybe_unused]] u32 codes[4];
#pragma unroll
      for (int chunk = 0; chunk < C::kRowBytes / 16; chunk += 2) {
        u32 b[4];
        ptx::ldmatrix_x4_trans(b, v_tile + swizzled<C::kRowBytes>(row, chunk + lane / 16));
        if constexpr (C::kStorage == KvStorage::e2m1) {
          if (chunk % 4 == 0) {
            const u32 first = scale_row(v_tile - C::kTileBytes, 1, k * 16 + lane % 4 * 2) + chunk * 2;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              codes[i] = scale_codes<C::kDim>(first + (i % 2 + i / 2 * 8) * C::kScaleRowBytes, lane & 16);
            }
          }
        }
        if constexpr (C::kStorage == KvStorage::same16) {
          E::mma(out_[chunk], a, b[0], b[1]);
          E::mma(out_[chunk + 1], a, b[2], b[3]);
        } else if constexpr (C::kStorage == KvStorage::e2m1) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const u32 low = row_pair_scales<E>(codes[0], codes[1], (chunk + half) % 4);
            const u32 high = row_pair_scales<E>(codes[2], codes[3], (chunk + half) % 4);
            const int n = (chunk + half) * 4;
            E::mma(out_[n], a, scaled<0>(b[half * 2], low), scaled<0>(b[half * 2 + 1], high));
            E::mma(out_[n + 1], a, scaled<1>(b[half * 2], low), scaled<1>(b[half * 2 + 1], high));
            E::mma(out_[n + 2], a, scaled<2>(b[half * 2], low), scaled<2>(b[half * 2 + 1], high));
            E::mma(out_[n + 3], a, scaled<3>(b[half * 2], low), scaled<3>(b[half * 2 + 1], high));
          }
        } else {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int n = (chunk + half) * 2;
            E::mma(out_[n], a, F::widen_low(b[half * 2]), F::widen_low(b[half * 2 + 1]));
            E::mma(out_[n + 1], a, F::widen_high(b[half * 2]), F::widen_high(b[half * 2 + 1]));
          }
        }
      }
    }
  }

  WW_DEVICE void write_row(char* out, int i, float scale) const {
    const int lane = threadIdx.x % 32;
    if constexpr (C::kStorage == KvStorage::same16) {
#pragma unroll
      for (int n = 0; n < kDimTiles; ++n) {
        reinterpret_cast<u32*>(out)[n * 4 + lane % 4] =
            E::pack(out_[n][i * 2] * scale, out_[n][i * 2 + 1] * scale);
      }
    } else if constexpr (C::kStorage == KvStorage::e2m1) {
#pragma unroll
      for (int n = 0; n < kDimTiles; n += 4) {  // every fourth dim of 32 each
        uint4 eight;
        eight.x = E::pack(out_[n][i * 2] * scale, out_[n + 1][i * 2] * scale);
        eight.y = E::pack(out_[n + 2][i * 2] * scale, out_[n + 3][i * 2] * scale);
        eight.z = E::pack(out_[n][i * 2 + 1] * scale, out_[n + 1][i * 2 + 1] * scale);
        eight.w = E::pack(out_[n + 2][i * 2 + 1] * scale, out_[n + 3][i * 2 + 1] * scale);
        reinterpret_cast<uint4*>(out)[n + lane % 4] = eight;
      }
    } else {
#pragma unroll
      for (int n = 0; n < kDimTiles; n += 2) {  // even and odd dims of 16
        uint2 four;
        four.x = E::pack(out_[n][i * 2] * scale, out_[n + 1][i * 2] * scale);
        four.y = E::pack(out_[n][i * 2 + 1] * scale, out_[n + 1][i * 2 + 1] * scale);
        reinterpret_cast<uint2*>(out)[n * 2 + lane % 4] = four;
      }
    }
  }

  const AttentionParams& p_;
  const ExtendTile& t_;
  uint4* q_shared_;
  ExtendRow row_[2];
  float scale_log2_;
  int plain_begin_, plain_end_;  // positions that all of the warp's rows see
  u32 q_[C::kDim / 16][4];
  float out_[kDimTiles][4];
  float maximum_[2], sum_[2];
};

// Byte offsets of a tile's tokens in the pools; -1 past the visible range.
template <class C>
WW_DEVICE void find_tokens(const AttentionParams& p, const ExtendTile& t, int position, long long* offsets) {
  if (threadIdx.x < C::kTileTokens) {
    const int token = position + threadIdx.x;
    long long offset = -1;
    if (token < t.token_end) {
      int in_page;
      const int64_t page = page_of_token(p, t.request, token, in_page);
      offset = (page * p.page_stride + in_page * p.token_stride +
                t.head * p.head_stride) * C::Fragment::kBits / 8;
    }
    offsets[threadIdx.x] = offset;
  }
}

template <class C>
WW_DEVICE void load_tile(const AttentionParams& p, u32 k_tile, const long long* offsets) {
  constexpr int kChunks = C::kRowBytes / 16;
  constexpr int kRowsPerPass = C::kThreads / kChunks;
  const int chunk = threadIdx.x % kChunks;
#pragma unroll
  for (int i = 0; i * kRowsPerPass < C::kTileTokens; ++i) {
    const int row = threadIdx.x / kChunks + i * kRowsPerPass;
    if (kRowsPerPass > C::kTileTokens && row >= C::kTileTokens) break;
    const long long offset = offsets[row];
    const int bytes = offset >= 0 ? 16 : 0;
    const long long source = (offset >= 0 ? offset : 0) + chunk * 16;
    const u32 target = k_tile + swizzled<C::kRowBytes>(row, chunk);
    ptx::cp_async_16(target, static_cast<const char*>(p.k) + source, bytes);
    ptx::cp_async_16(target + C::kTileBytes, static_cast<const char*>(p.v) + source, bytes);
  }
  if constexpr (C::kScaleRowBytes > 0) {
    if (threadIdx.x >= 2 * C::kTileTokens) return;
    const long long offset = offsets[threadIdx.x % C::kTileTokens];
    const uint8_t* scales = threadIdx.x < C::kTileTokens ? p.k_block_scales : p.v_block_scales;
    ptx::cp_async_few<C::kScaleRowBytes>(k_tile + 2 * C::kTileBytes + threadIdx.x * C::kScaleRowBytes,
                                         scales + (offset >= 0 ? offset / 8 : 0), offset >= 0 ? C::kScaleRowBytes : 0);
  }
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    sm80_extend(const __grid_constant__ AttentionParams p, const __grid_constant__ ExtendWorklist work) {
  extern __shared__ __align__(128) char smem[];
  if (blockIdx.y >= work.header->num_items) return;
  const ExtendItem item = work.items[blockIdx.y];

  ExtendTile t;
  t.request = item.request;
  t.head = blockIdx.x;
  t.q_begin = p.q_indptr[item.request];
  t.q_len = p.q_indptr[item.request + 1] - t.q_begin;
  t.kv_len = p.kv_lens[item.request];
  t.first_row = item.tile * C::kTileRows;
  const int first_token = t.first_row / p.group;
  const int last_token = min(t.q_len - 1, (t.first_row + C::kTileRows - 1) / p.group);
  const bool tree = p.tree_mask != nullptr;
  t.token_end = p.causal && !tree ? t.kv_len - t.q_len + last_token + 1 : t.kv_len;
  t.token_begin = first_visible(t.kv_len, t.q_len - (tree ? 0 : first_token), p.window_left);

  long long* offsets = reinterpret_cast<long long*>(smem + 2 * C::kBufferBytes);
  const u32 tiles = ptx::smem_address(smem);
  find_tokens<C>(p, t, t.token_begin, offsets);
  __syncthreads();
  load_tile<C>(p, tiles, offsets);
  ptx::cp_async_commit();
  find_tokens<C>(p, t, t.token_begin + C::kTileTokens, offsets + C::kTileTokens);

  ExtendTask<C> task(p, t, smem + 2 * C::kBufferBytes + C::kOffsetBytes);
  int buffer = 0;
  for (int position = t.token_begin; position < t.token_end; position += C::kTileTokens) {
    ptx::cp_async_wait<0>();
    __syncthreads();  // this tile has landed, and nobody reads the other buffer any more
    const u32 tile = tiles + buffer * C::kBufferBytes;
    if (position + C::kTileTokens < t.token_end) {
      load_tile<C>(p, tiles + (buffer ^ 1) * C::kBufferBytes, offsets + (buffer ^ 1) * C::kTileTokens);
      ptx::cp_async_commit();
      find_tokens<C>(p, t, position + 2 * C::kTileTokens, offsets + buffer * C::kTileTokens);
    }
    task.step(tile, tile + C::kTileBytes, position);
    buffer ^= 1;
  }
  task.write();
}

}  // namespace warpweave::cuda
