// Free memory of the C library's allocator, back to the system.
//
// The allocator keeps what was freed between blocks that are in use, one heap for each few threads: a server's resident
// memory stays at the most that each of them ever needed at one moment, and what one has free serves no thread of
// another.
#pragma once

namespace warpweave {

// Takes about 0.3 ms for each MiB that goes back, in which allocations of other threads may wait. Nothing without
// glibc. Thread-safe.
void trim_memory() noexcept;

// For a server's start: there are two heaps, each keeps at most about 256 KiB free at its end, and blocks of a megabyte
// and more stand apart and go back when they are freed. By itself the C library makes eight heaps for each CPU, raises
// the bounds to 64 and 32 MiB with the largest block that was ever freed, and trim_memory() does not reach the ends of
// any heap but the first.
void bound_free_memory() noexcept;

}  // namespace warpweave
