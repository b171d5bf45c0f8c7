// The MMAs of one warp of the mma.sync MLA kernel (sm80_mla.cuh), from tokens in shared memory as the pool has
// them.
//
// e4m3 codes become pairs of f16 numbers, neighbours in memory. For S a lane then has four neighbouring columns where
// an MMA expects two and two others, so Q is laid out alike. For O it has two columns of two tokens in a word, which
// gives one MMA the even columns and another the odd ones: they are put back when they are written.
// Q is divided by a power of two a row, as f16 does not reach as far as bf16. The scales of 656-byte tokens multiply P
// relative to the largest one yet of the warp's block of columns, by which O is multiplied in the end.
//
// e2m1 codes become pairs of f16 numbers, their blocks' scales included (fp4_fragment.h): those four apart in a word.
// It has eight neighbouring columns of a token for S, which are two MMAs' four, and for O four columns of two tokens,
// one each for four MMAs.
#pragma once

#include "attention/cuda/fp4_fragment.h"
#include "attention/cuda/mla/sm80_mla_shared.cuh"

namespace warpweave::cuda {

template <class C>
class Sm80MlaMma {
 public:
  using E = typename C::Element;
  using Operand = typename C::Operand;
  static constexpr int kLatentSteps = 8;               // of 16 columns: a warp's share of S
  static constexpr int kScoreTiles = C::kTokens / 16;  // of 8 tokens: half of a step's
  static constexpr int kOutTiles = 8;                  // of 8 columns

  static WW_DEVICE int lane() { return static_cast<int>(threadIdx.x) % 32; }
  static WW_DEVICE int warp() { return static_cast<int>(threadIdx.x) / 32; }
  static WW_DEVICE int quarter() { return warp() % 4; }     // of the columns, for S
  static WW_DEVICE int half() { return warp() / 4; }        // of the tokens, for S

  // Of the rows that there are; others are zeros. All threads, with barriers where there are codes.
  WW_DEVICE void load_queries(const MlaParams& p, const SplitSegment& s, const Sm80MlaShared<C>& shared) {
    const int count = s.q_len * p.num_heads, j = lane() % 4;
#pragma unroll
    for (int m = 0; m < C::kRowBlocks; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = s.unit * C::kRows + m * 16 + lane() / 4 + i * 8, query = row / p.num_heads;
        const char* from = static_cast<const char*>(p.q) +
                           ((static_cast<int64_t>(s.q_begin) + query) * p.q_token_stride +
                            (row - query * p.num_heads) * p.q_head_stride) * 2;
        const bool has = row < count;
#pragma unroll
        for (int step = 0; step <= kLatentSteps; ++step) {
          const bool rope = step == kLatentSteps;
          const int column = rope ? kMlaLatentDim + quarter() * 16 : quarter() * kMlaScaleDim + step * 16;
          uint2 w = make_uint2(0, 0);
          if (C::kFp4 && coded(step)) {
            if (has) w = fp4_columns(from + (column - step % 2 * 16 + j * 8 + step % 2 * 2) * 2);
          } else if (coded(step)) {
            if (has) w = *reinterpret_cast<const uint2*>(from + (column + j * 4) * 2);
          } else if (has) {
            w = make_uint2(*reinterpret_cast<const ptx::u32*>(from + (column + j * 2) * 2),
                           *reinterpret_cast<const ptx::u32*>(from + (column + j * 2 + 8) * 2));
          }
          q_[m][step][i] = w.x;
          q_[m][step][i + 2] = w.y;
        }
      }
    }
    if constexpr (C::kCodes) divide_queries(shared);
  }

  // S of this warp's columns and tokens, to parts[quarter].
  WW_DEVICE void scores(ptx::u32 stage, float* parts) const {
    float s[C::kRowBlocks][kScoreTiles][4];
#pragma unroll
    for (int m = 0; m < C::kRowBlocks; ++m) {
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[m][n][i] = 0;
      }
    }
    const ptx::u32 tokens = stage + half() * (C::kTokens / 2) * C::kTokenPitch;
    if constexpr (C::kFp4) fp4_scores(tokens, s);
    else if constexpr (C::kCodes) coded_scores(tokens, s);
    else block_scores<0, kLatentSteps>(stage, quarter() * 2, 0, s);
    if constexpr (!C::kSwizzled) rope_scores(tokens, s);
    else block_scores<kLatentSteps, 1>(stage, kMlaLatentDim / 64, quarter() * 2, s);
#pragma unroll
    for (int m = 0; m < C::kRowBlocks; ++m) {
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = m * 16 + lane() / 4 + i * 8, column = half() * (C::kTokens / 2) + n * 8 + lane() % 4 * 2;
          *reinterpret_cast<float2*>(parts + (quarter() * C::kRows + row) * C::kPartPitch + column) =
              make_float2(s[m][n][i * 2], s[m][n][i * 2 + 1]);
        }
      }
    }
  }

  WW_DEVICE void clear_out() {
    scale_unit_ = kLeastScaleUnit;
#pragma unroll
    for (int m = 0; m < C::kRowBlocks; ++m) {
#pragma unroll
      for (int n = 0; n < kOutTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[m][n][i] = 0;
      }
    }
  }

  // Multiplies the rows of O with their factors.
  WW_DEVICE void rescale(const float* factors) {
#pragma unroll
    for (int m = 0; m < C::kRowBlocks; ++m) {
      const float low = factors[m * 16 + lane() / 4], high = factors[m * 16 + lane() / 4 + 8];
      if (!__any_sync(~0u, low != 1.0f || high != 1.0f)) continue;
#pragma unroll
      for (int n = 0; n < kOutTiles; ++n) {
        out[m][n][0] *= low;
        out[m][n][1] *= low;
        out[m][n][2] *= high;
        out[m][n][3] *= high;
      }
    }
  }

  // What `out` is to be multiplied by, beside the rows' factors.
  WW_DEVICE float out_unit() const { return C::kFormat == MlaFormat::ds_mla ? scale_unit_ : C::kWidenedScale; }

  // O of this warp's 64 columns.
  WW_DEVICE void add_values(ptx::u32 stage, ptx::u32 probability) {
    if constexpr (C::kFormat == MlaFormat::ds_mla) raise_scale_unit(stage);
    const int row = lane() % 8 + lane() / 8 % 2 * 8;  // of ldmatrix, and the token of its transposed form
#pragma unroll
    for (int step = 0; step < C::kTokens / 16; ++step) {
      ptx::u32 a[C::kRowBlocks][4];
#pragma unroll
      for (int m = 0; m < C::kRowBlocks; ++m) {
        ptx::ldmatrix_x4(a[m], probability + (m * 16 + row) * C::kProbabilityPitch + step * 32 + lane() / 16 * 16);
      }
      if constexpr (C::kFormat == MlaFormat::ds_mla) scale_probabilities(stage, step, a);
      if constexpr (C::kFp4) {
        add_fp4_values(stage + step * 16 * C::kTokenPitch, a);
      } else if constexpr (C::kCodes) {
        const ptx::u32 tokens = stage + (step * 16 + row) * C::kTokenPitch;
#pragma unroll
        for (int c = 0; c < 2; ++c) {  // 32 columns
          ptx::u32 b[4];
          ptx::ldmatrix_x4_trans(b, tokens + warp() * 64 + c * 32 + lane() / 16 * 16);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            // The even column's codes of both tokens, then the odd one's.
            const ptx::u32 near = __byte_perm(b[i * 2], 0, 0x3120), far = __byte_perm(b[i * 2 + 1], 0, 0x3120);
#pragma unroll
            for (int m = 0; m < C::kRowBlocks; ++m) {
              Operand::mma(out[m][c * 4 + i * 2], a[m], halves_of_e4m3<false>(near), halves_of_e4m3<false>(far));
              Operand::mma(out[m][c * 4 + i * 2 + 1], a[m], halves_of_e4m3<true>(near), halves_of_e4m3<true>(far));
            }
          }
        }
      } else {
#pragma unroll
        for (int c = 0; c < 4; ++c) {  // 16 columns
          ptx::u32 b[4];
          ptx::ldmatrix_x4_trans(b, stage + sm80_mla_at<C>(warp(), step * 16 + row, c * 2 + lane() / 16));
#pragma unroll
          for (int m = 0; m < C::kRowBlocks; ++m) {
            E::mma(out[m][c * 2], a[m], b[0], b[1]);
            E::mma(out[m][c * 2 + 1], a[m], b[2], b[3]);
          }
        }
      }
    }
  }

  // Where a lane's `pair`th numbers, of rows lane / 4 and lane / 4 + 8 of a block, belong: to columns 8 * tile +
  // 2 * (place.lane % 4) and the next one of this warp's 64. Of codes, another lane of the same row has those in a
  // piece.
  struct Place {
    int tile, lane;
  };
  WW_DEVICE Place place(int pair) const {
    const int j = lane() % 4;
    if constexpr (C::kFp4) return {pair / 4 * 4 + j, lane() / 4 * 4 + pair % 4};
    if constexpr (!C::kCodes) return {pair, lane()};
    return {pair / 2 * 2 + j / 2, lane() / 4 * 4 + j % 2 * 2 + pair % 2};
  }
  WW_DEVICE float4 numbers(int m, int pair) const {
    if constexpr (!C::kCodes) {
      return make_float4(out[m][pair][0], out[m][pair][1], out[m][pair][2], out[m][pair][3]);
    }
    const int even = C::kFp4 ? pair / 4 * 4 + pair % 2 * 2 : pair / 2 * 2, i = C::kFp4 ? pair / 2 % 2 : pair % 2;
    return make_float4(out[m][even][i], out[m][even + 1][i], out[m][even][i + 2], out[m][even + 1][i + 2]);
  }

  float out[C::kRowBlocks][kOutTiles][4];

 private:
  static constexpr float kLeastScaleUnit = 0x1p-100f;  // its inverse is finite
  static constexpr int kQuarterScales = kMlaScaleDim / kFp4BlockElements;

  static WW_DEVICE constexpr bool coded(int step) {
    return C::kFormat == MlaFormat::e4m3 || (mla_is_packed(C::kFormat) && step < kLatentSteps);
  }

  // Q to f16, each row divided by the power of two below its largest number: 2^-10 of that keeps all bits of bf16.
  WW_DEVICE void divide_queries(const Sm80MlaShared<C>& shared) {
    float* const largest = shared.parts;  // [quarter][rows]
    __syncthreads();
#pragma unroll
    for (int m = 0; m < C::kRowBlocks; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float most = 0;
#pragma unroll
        for (int step = 0; step <= kLatentSteps; ++step) {
#pragma unroll
          for (int part = 0; part < 4; part += 2) {
            const ptx::u32 pair = q_[m][step][i + part];
            most = fmaxf(most, fmaxf(fabsf(E::low(pair)), fabsf(E::high(pair))));
          }
        }
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        // Warps of both halves of the tokens write the same.
        if (lane() % 4 == 0) largest[quarter() * C::kRows + m * 16 + lane() / 4 + i * 8] = most;
      }
    }
    __syncthreads();
#pragma unroll
    for (int m = 0; m < C::kRowBlocks; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = m * 16 + lane() / 4 + i * 8;
        float most = 0;
#pragma unroll
        for (int part = 0; part < 4; ++part) most = fmaxf(most, largest[part * C::kRows + row]);
        // The exponent alone, held where the inverse is a normal number, too.
        const ptx::u32 exponent = min(max(__float_as_uint(most) & 0x7f800000u, 0x10000000u), 0x70000000u);
        const float unit = __uint_as_float(exponent), inverse = __uint_as_float(0x7f000000u - exponent);
        if (lane() % 4 == 0) shared.query_units[row] = unit;
#pragma unroll
        for (int step = 0; step <= kLatentSteps; ++step) {
#pragma unroll
          for (int part = 0; part < 4; part += 2) {
            ptx::u32& pair = q_[m][step][i + part];
            const float low = E::low(pair) * inverse, high = E::high(pair) * inverse;
            constexpr float kRopeUnit = 1 / C::kWidenedScale;  // the scores of both parts are added
            pair = coded(step) ? Operand::pack(low, high) : E::pack(low * kRopeUnit, high * kRopeUnit);
          }
        }
      }
    }
    __syncthreads();
  }

  // Of 16-bit numbers: kSteps of 16 columns, from 16-byte `unit` of `block` on; kFirst: of Q's.
  template <int kFirst, int kSteps>
  WW_DEVICE void block_scores(ptx::u32 stage, int block, int unit, float (&s)[C::kRowBlocks][kScoreTiles][4]) const {
    const int token = half() * (C::kTokens / 2) + lane() % 8 + lane() / 16 * 8;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const ptx::u32 from = stage + sm80_mla_at<C>(block + step / 4, token, unit + step % 4 * 2 + lane() / 8 % 2);
#pragma unroll
      for (int n = 0; n < kScoreTiles; n += 2) multiply_scores(from + n * 8 * 128, n, kFirst + step, s);
    }
  }
  // The rotated 16-bit numbers beside codes, from byte `at` of the tokens.
  WW_DEVICE void plain_rope_scores(ptx::u32 tokens, int at, float (&s)[C::kRowBlocks][kScoreTiles][4]) const {
    const ptx::u32 from = tokens + (lane() % 8 + lane() / 16 * 8) * C::kTokenPitch + at + lane() / 8 % 2 * 16;
#pragma unroll
    for (int n = 0; n < kScoreTiles; n += 2) multiply_scores(from + n * 8 * C::kTokenPitch, n, kLatentSteps, s);
  }
  // 16 tokens by 16 columns, the lane's rows of which stand at `from`.
  WW_DEVICE void multiply_scores(ptx::u32 from, int n, int of_q, float (&s)[C::kRowBlocks][kScoreTiles][4]) const {
    ptx::u32 b[4];
    ptx::ldmatrix_x4(b, from);
#pragma unroll
    for (int m = 0; m < C::kRowBlocks; ++m) {
      E::mma(s[m][n], q_[m][of_q], b[0], b[1]);
      E::mma(s[m][n + 1], q_[m][of_q], b[2], b[3]);
    }
  }

  WW_DEVICE void coded_scores(ptx::u32 tokens, float (&s)[C::kRowBlocks][kScoreTiles][4]) const {
    const ptx::u32 from = tokens + lane() % 8 * C::kTokenPitch + quarter() * kMlaScaleDim + lane() / 8 * 16;
#pragma unroll
    for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        ptx::u32 b[4];
        ptx::ldmatrix_x4(b, from + n * 8 * C::kTokenPitch + c * 64);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int m = 0; m < C::kRowBlocks; ++m) {
            Operand::mma(s[m][n], q_[m][c * 4 + i], halves_of_e4m3<false>(b[i]), halves_of_e4m3<true>(b[i]));
          }
        }
      }
      if constexpr (C::kFormat == MlaFormat::ds_mla) {
        const ptx::u32 scales = tokens + (n * 8 + lane() % 4 * 2) * C::kTokenPitch + kMlaLatentDim + quarter() * 4;
        const float low = __uint_as_float(ptx::load_shared_4(scales));
        const float high = __uint_as_float(ptx::load_shared_4(scales + C::kTokenPitch));
#pragma unroll
        for (int m = 0; m < C::kRowBlocks; ++m) {
#pragma unroll
          for (int i = 0; i < 4; ++i) s[m][n][i] *= i % 2 == 0 ? low : high;
        }
      }
    }
  }

  // Of eight neighbouring columns of Q from `from` on, less 0 or 2: the first and the fifth, the second and the sixth.
  static WW_DEVICE uint2 fp4_columns(const char* from) {
    const ptx::u32 near = *reinterpret_cast<const ptx::u32*>(from), far = *reinterpret_cast<const ptx::u32*>(from + 8);
    return make_uint2(__byte_perm(near, far, 0x5410), __byte_perm(near, far, 0x7632));
  }

  // Eight codes times `scale`.
  static WW_DEVICE void widen_fp4(ptx::u32 codes, ptx::u32 scale, ptx::u32 (&pairs)[4]) {
    Fp4Halves::widen(codes, pairs);
#pragma unroll
    for (ptx::u32& pair : pairs) pair = Operand::multiply(pair, scale);
  }

  WW_DEVICE void fp4_scores(ptx::u32 tokens, float (&s)[C::kRowBlocks][kScoreTiles][4]) const {
    const ptx::u32 from = tokens + lane() % 8 * C::kTokenPitch + quarter() * (kMlaScaleDim / 2) + lane() / 8 * 16;
    const ptx::u32 scales = tokens + lane() / 4 * C::kTokenPitch + kFp4MlaScaleAt + quarter() * kQuarterScales;
#pragma unroll
    for (int n = 0; n < kScoreTiles; ++n) {
      ptx::u32 b[4];  // 32 columns each
      ptx::ldmatrix_x4(b, from + n * 8 * C::kTokenPitch);
      const uint2 all = ptx::load_shared_8(scales + n * 8 * C::kTokenPitch);
      const ptx::u32 own = __byte_perm(all.x, all.y, lane() % 4 / 2 == 0 ? 0x6420 : 0x7531);
      const ptx::u32 halves[2] = {halves_of_e4m3<false>(own), halves_of_e4m3<true>(own)};
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        ptx::u32 pairs[4];
        widen_fp4(b[c], __byte_perm(halves[c / 2], 0, c % 2 == 0 ? 0x1010 : 0x3232), pairs);
#pragma unroll
        for (int m = 0; m < C::kRowBlocks; ++m) {
          Operand::mma(s[m][n], q_[m][c * 2], pairs[0], pairs[1]);
          Operand::mma(s[m][n], q_[m][c * 2 + 1], pairs[2], pairs[3]);
        }
      }
    }
  }

  // O of 16 tokens from `tokens` on.
  WW_DEVICE void add_fp4_values(ptx::u32 tokens, const ptx::u32 (&a)[C::kRowBlocks][4]) {
    const ptx::u32 scales = tokens + lane() % 4 * 2 * C::kTokenPitch + kFp4MlaScaleAt + warp() * 4;
    ptx::u32 halves[2][2];  // of the first and the last eight tokens; of 32 columns each
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const ptx::u32 first = ptx::load_shared_4(scales + half * 8 * C::kTokenPitch);
      const ptx::u32 second = ptx::load_shared_4(scales + (half * 8 + 1) * C::kTokenPitch);
      const ptx::u32 own = __byte_perm(first, second, lane() < 16 ? 0x6240 : 0x7351);
      halves[half][0] = halves_of_e4m3<false>(own);
      halves[half][1] = halves_of_e4m3<true>(own);
    }
    ptx::u32 b[4];  // 32 columns of the first and the last eight tokens, then the other 32
    const int row = lane() % 8 + lane() / 8 % 2 * 8;
    ptx::ldmatrix_x4_trans(b, tokens + row * C::kTokenPitch + warp() * 32 + lane() / 16 * 16);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      ptx::u32 near[4], far[4];
      widen_fp4(b[c * 2], halves[0][c], near);
      widen_fp4(b[c * 2 + 1], halves[1][c], far);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int m = 0; m < C::kRowBlocks; ++m) Operand::mma(out[m][c * 4 + i], a[m], near[i], far[i]);
      }
    }
  }

  WW_DEVICE void rope_scores(ptx::u32 tokens, float (&s)[C::kRowBlocks][kScoreTiles][4]) const {
    if constexpr (C::kFormat == MlaFormat::e4m3) {
#pragma unroll
      for (int n = 0; n < kScoreTiles; n += 4) {
        // A matrix for each 8 tokens; where there are but 16, twice.
        const int token = n * 8 + lane() % (kScoreTiles < 4 ? 16 : 32);
        ptx::u32 b[4];
        ptx::ldmatrix_x4(b, tokens + token * C::kTokenPitch + kMlaLatentDim + quarter() * 16);
#pragma unroll
        for (int i = 0; i < 4 && n + i < kScoreTiles; ++i) {
#pragma unroll
          for (int m = 0; m < C::kRowBlocks; ++m) {
            Operand::mma(s[m][n + i], q_[m][kLatentSteps], halves_of_e4m3<false>(b[i]), halves_of_e4m3<true>(b[i]));
          }
        }
      }
    } else {
      plain_rope_scores(tokens, mla_rope_at(C::kFormat) + quarter() * 32, s);
    }
  }

  // The largest scale of this warp's columns yet becomes the unit of O.
  WW_DEVICE void raise_scale_unit(ptx::u32 stage) {
    ptx::u32 most = 0;  // bits of numbers that are not negative are ordered as those are
#pragma unroll
    for (int token = 0; token < C::kTokens; token += 32) {
      const ptx::u32 at = stage + (token + lane()) * C::kTokenPitch + kMlaLatentDim + warp() / 2 * 4;
      most = max(most, ptx::load_shared_4(at) & 0x7fffffffu);
    }
    const float unit = __uint_as_float(__reduce_max_sync(~0u, most));
    if (unit <= scale_unit_) return;
    const float factor = __fdividef(scale_unit_, unit);
    scale_unit_ = unit;
#pragma unroll
    for (int m = 0; m < C::kRowBlocks; ++m) {
#pragma unroll
      for (int n = 0; n < kOutTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[m][n][i] *= factor;
      }
    }
  }

  // P times the tokens' scales of this warp's columns.
  WW_DEVICE void scale_probabilities(ptx::u32 stage, int step, ptx::u32 (&a)[C::kRowBlocks][4]) const {
    const float inverse = __fdividef(1.0f, scale_unit_);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const ptx::u32 scales =
          stage + (step * 16 + half * 8 + lane() % 4 * 2) * C::kTokenPitch + kMlaLatentDim + warp() / 2 * 4;
      const ptx::u32 factor =
          Operand::pack(__uint_as_float(ptx::load_shared_4(scales)) * inverse,
                        __uint_as_float(ptx::load_shared_4(scales + C::kTokenPitch)) * inverse);
#pragma unroll
      for (int m = 0; m < C::kRowBlocks; ++m) {
#pragma unroll
        for (int i = 0; i < 2; ++i) a[m][half * 2 + i] = Operand::multiply(a[m][half * 2 + i], factor);
      }
    }
  }

  ptx::u32 q_[C::kRowBlocks][kLatentSteps + 1][4];
  float scale_unit_ = kLeastScaleUnit;
};

}  // namespace warpweave::cuda
