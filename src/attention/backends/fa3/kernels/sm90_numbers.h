// Where one kernel of Hopper begins to be faster than another: what an H200 takes, with the measurements that said so
// (docs/gpu-tuning.md). Another architecture has a file of its own.
#pragma once

namespace warpweave::cuda::sm90 {

// Rows of a tile that is not tall, and of a short request's larger one.
inline constexpr int kShortTileRows = 128, kShortTallRows = 128;

// Smaller boxes take TMA longer than gathering takes the threads.
inline constexpr int kMinBoxTokens = 8;

// Shorter requests leave more rows of tall tiles empty than those gain (200 and 256 tokens -20 %, 1024 +3 %).
inline constexpr int kTallTokens = 1024;
// With fp8 products (256 tokens -21 %, on a prefix of 2048 -9 %; 512 -2 %, on one of 16384 +8 %, head dim 64 +8 %).
inline constexpr int kTallFp8Tokens = 512;
// Head dim 128, bf16: 1024 tokens -11 %, 4096 +1 %, 8192 +5 %, 16384 +7 %; in boxes of 16 tokens -3 % at 16384.
inline constexpr int kTallTokensDim128 = 8192;
inline constexpr int kTallBoxTokensDim128 = 64;
// Two heads a tile, where a request's last tokens are few: 64 on a prefix of 2048 take half of the time; it costs
// batches of 4096 tokens 3 %.
inline constexpr int kPairTokens = 512;

// Reads that make up for a copy: on an H200 8 reads lose a fifth to gathering, 12 gain 5 % and 16 a third. What tall
// tiles gain on small boxes is less: 143 reads (8192 tokens on 16384) and 172 (16384) 4 %; 86 (8192) lost 5 %, with one
// kv head a section of the plan, and were not measured since.
inline constexpr int kMinReadsNotGathered = 9;
inline constexpr int kMinReadsNotBoxed = 100;

// Rows of a request and kv head that the decode kernel takes as fast (8), or a little faster (16) where it has so many
// units for each SM.
inline constexpr int kDecodeRows = 8, kManyDecodeRows = 16, kManyDecodeUnits = 2;

// The kernel for short requests splits K and V and is taken for so many tiles to ten of the one for prompts, each of
// which takes about as long.
inline constexpr int kShortTilesOfTen = 8;

}  // namespace warpweave::cuda::sm90
