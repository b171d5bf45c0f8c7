// Where the chunks of a batch are. Without checkpoints request r's chunk c has index first_row / 64 + r + c: ascending, none
// twice, and found again without a search of all. With checkpoints within chunks, which then end there, list_chunks makes a list
// first.
#pragma once

#include "linear/cuda/gates.cuh"

namespace warpweave::linear {

WW_DEVICE int chunk_base(const LinearParams& p, int request) {
  if (p.work.list_first != nullptr) return p.work.list_first[request];
  return first_row(p.batch, request) / kChunk + request;
}

// The chunk of this index, or false: there is none.
WW_DEVICE bool find_chunk(const LinearParams& p, int index, Chunk& chunk) {
  if (p.work.list != nullptr) {
    if (index >= p.work.list_first[p.batch.num_requests]) return false;
    chunk = p.work.list[index];
    return true;
  }
  int low = 0, high = p.batch.num_requests - 1;  // the last request that begins at or before the index
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (chunk_base(p, middle) <= index) low = middle;
    else high = middle - 1;
  }
  const int first = first_row(p.batch, low), begin = (index - chunk_base(p, low)) * kChunk;
  const int tokens = first_row(p.batch, low + 1) - first;
  if (begin < 0 || begin >= tokens || p.batch.slots[low] < 0) return false;
  chunk = {low, first + begin, min(kChunk, tokens - begin), index};
  return true;
}

// Of the request of a batch of one: the number of the first chunk that begins at this token or behind it.
WW_DEVICE int chunk_from(const LinearParams& p, int token) {
  int low = token / kChunk;
  if (p.work.list == nullptr) return low;
  const int first = first_row(p.batch, 0);
  for (int high = p.work.list_first[1], middle = low; low < high; middle = (low + high) / 2) {  // the least one is likely
    if (p.work.list[middle].first - first < token) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Walks a request's chunks, as list_chunks and chunk_scan do.
struct ChunkWalk {
  int tokens, end, position = 0, checkpoint = 0, checkpoint_end = 0;

  WW_DEVICE ChunkWalk(const LinearParams& p, int request)
      : tokens(first_row(p.batch, request + 1) - first_row(p.batch, request)), end(tokens) {
    if (p.batch.checkpoint_indptr == nullptr) return;
    checkpoint = p.batch.checkpoint_indptr[request];
    checkpoint_end = p.batch.checkpoint_indptr[request + 1];
  }
  // To the chunks of a segment; the number of its first one.
  WW_DEVICE int skip_to(const LinearParams& p, const Segment& segment) {
    if (segment.index < 0) return 0;
    const int chunk = chunk_from(p, segment.begin);
    if (p.work.list == nullptr) position = segment.begin;
    else position = chunk < p.work.list_first[1] ? p.work.list[chunk].first - first_row(p.batch, 0) : tokens;
    while (checkpoint < checkpoint_end && p.batch.checkpoint_tokens[checkpoint] <= position) ++checkpoint;
    end = min(tokens, segment.end);
    return chunk;
  }
  WW_DEVICE bool more() const { return position < end; }
  WW_DEVICE int length(const LinearParams& p) const {
    int chunk_end = min(tokens, position + kChunk);
    if (checkpoint < checkpoint_end) chunk_end = min(chunk_end, p.batch.checkpoint_tokens[checkpoint]);
    return chunk_end - position;
  }
  // Past a chunk of this length; the slot of the checkpoint that ends there, or -1.
  WW_DEVICE int advance(const LinearParams& p, int length) {
    position += length;
    if (checkpoint == checkpoint_end || p.batch.checkpoint_tokens[checkpoint] != position) return -1;
    return p.batch.checkpoint_slots[checkpoint++];
  }
};

inline constexpr int kListThreads = 256;

WW_DEVICE void stop_program() {
#if defined(__CUDA_ARCH__)
  asm volatile("trap;");
#else
  __builtin_trap();
#endif
}

// One CTA. Stops the program where a batch has more chunks than the workspace's capacity (cuda_linear.h says how many).
WW_DEVICE void list_chunks(const LinearParams& p, Chunk* list, int* list_first) {
  __shared__ int counts[kListThreads];
  __shared__ int total;
  const int thread = threadIdx.x;
  if (thread == 0) total = 0;
  for (int base = 0; base < p.batch.num_requests; base += kListThreads) {
    const int request = base + thread;
    int count = 0;
    if (request < p.batch.num_requests && p.batch.slots[request] >= 0) {
      for (ChunkWalk walk(p, request); walk.more(); ++count) walk.advance(p, walk.length(p));
    }
    counts[thread] = count;
    __syncthreads();
    for (int step = 1; step < kListThreads; step *= 2) {
      const int before = thread >= step ? counts[thread - step] : 0;
      __syncthreads();
      counts[thread] += before;
      __syncthreads();
    }
    int at = total + counts[thread] - count;
    if (request < p.batch.num_requests) list_first[request] = at;
    if (at + count > p.work.capacity) stop_program();
    if (count > 0) {
      const int first = first_row(p.batch, request);
      for (ChunkWalk walk(p, request); walk.more(); ++at) {
        const int length = walk.length(p);
        list[at] = {request, first + walk.position, length, at};
        walk.advance(p, length);
      }
    }
    __syncthreads();
    if (thread == kListThreads - 1) total += counts[thread];
    __syncthreads();
  }
  if (thread == 0) list_first[p.batch.num_requests] = total;
}

}  // namespace warpweave::linear
