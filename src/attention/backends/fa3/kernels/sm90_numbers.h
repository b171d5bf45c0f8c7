// Where one kernel of Hopper begins to be faster than another, with the H200 measurements behind each number
// (docs/gpu-tuning.md). Another architecture has a file of its own.
#pragma once

namespace warpweave::cuda::sm90 {

// Rows of a tile: of the ordinary prefill kernel, and of the larger tiles of the kernel for short requests.
inline constexpr int kShortTileRows = 128, kShortTallRows = 128;

// Smaller boxes take TMA longer than gathering takes the threads.
inline constexpr int kMinBoxTokens = 8;

// Tall tiles from so many tokens on: shorter requests leave too many of their rows empty (200 and 256 tokens -20 %,
// 1024 +3 %).
inline constexpr int kTallTokens = 1024;
// With fp8 MMA (256 tokens -21 %, on a prefix of 2048 -9 %; 512 -2 %, on one of 16384 +8 %, head dim 64 +8 %).
inline constexpr int kTallFp8Tokens = 512;
// Head dim 128, bf16: 1024 tokens -11 %, 4096 +1 %, 8192 +5 %, 16384 +7 %; in boxes of 16 tokens -3 % at 16384.
inline constexpr int kTallTokensDim128 = 8192;
inline constexpr int kTallBoxTokensDim128 = 64;
// Two heads a tile, where a request's last tokens are few: 64 on a prefix of 2048 take half of the time; it costs
// batches of 4096 tokens 3 %.
inline constexpr int kPairTokens = 512;

// Pages are copied before they are multiplied where each is read at least so often: on an H200 copying loses a fifth
// to gathering at 8 reads, gains 5 % at 12 and a third at 16. Tall tiles gain less over small boxes: 4 % at 143 reads
// (8192 tokens on 16384) and 172 (16384); at 86 (8192) they lost 5 %, when a section of the plan had one kv head, and
// were not measured since.
inline constexpr int kMinReadsNotGathered = 9;
inline constexpr int kMinReadsNotBoxed = 100;

// Rows of a request and kv head that the decode kernel takes as fast (8), or a little faster (16) where it has so many
// units for each SM.
inline constexpr int kDecodeRows = 8, kManyDecodeRows = 16, kManyDecodeUnits = 2;

// The kernel for short requests splits K and V. It is taken where it has at most so many tiles for ten of the kernel
// for prompts; a tile of either takes about as long.
inline constexpr int kShortTilesOfTen = 8;

}  // namespace warpweave::cuda::sm90
