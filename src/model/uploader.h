// Host memory to the GPU: threads fill pinned pieces and send them, so that the link is busy while the caller looks for
// the next tensor. Only for builds with GPU kernels.
//
// One thread calls. The threads work through a queue in its order, so that a mapped file is read from one end to the
// other. An error ends all later work and is finish()'s.
#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "ops/aligned_buffer.h"
#include "warpweave/status.h"

namespace warpweave {

class Uploader {
 public:
  // Writes units [begin, end) to `out`; called by several threads.
  using Fill = std::function<Status(int64_t begin, int64_t end, std::byte* out)>;

  static Result<std::unique_ptr<Uploader>> create(int threads);
  ~Uploader();

  // Returns at once; the bytes are read before what is given to then() next is called.
  void add_bytes(const void* from, size_t size_bytes, void* to);
  // Calls `done`, which must be short, in any thread, once all that was added before has been read.
  void then(std::function<void()> done);
  // Returns when the bytes have been read.
  Status bytes(const void* from, size_t size_bytes, void* to);
  // `rows` rows of row_bytes each, as `fill` makes them. Returns when they have been made.
  Status rows(int64_t rows, size_t row_bytes, void* to, Fill fill);

  // Waits until everything has arrived.
  Status finish();

 private:
  static constexpr int kPieces = 2;  // of a thread: one is filled, one on its way
  struct Job {
    Fill fill;
    int64_t count = 0;       // units
    int64_t grain = 1;       // of a piece
    size_t unit_bytes = 1;
    std::byte* to = nullptr;
    int64_t taken = 0, read = 0;
    std::function<void()> done;
  };
  // Pinned memory in huge pages: with small ones, cudaMallocHost takes 0.3 ms for a MiB.
  class Pinned {
   public:
    static Result<Pinned> allocate(size_t size_bytes);
    Pinned() = default;
    Pinned(Pinned&& other) noexcept = default;
    Pinned& operator=(Pinned&& other) noexcept = default;
    ~Pinned();
    std::byte* data() { return memory_.data(); }
    size_t size_bytes() const { return memory_.size(); }

   private:
    AlignedBuffer memory_;  // registered when there is any
  };
  // What a thread sends from. The memory is allocated at first use, so that the first thread need not wait until all
  // have theirs.
  struct Reader {
    Pinned pinned;
    std::array<CudaEvent, kPieces> sent;
    int next = 0;
    double filled_s = 0, waited_s = 0;
  };

  Uploader() = default;
  void work(Reader& reader);
  Status send(Reader& reader, const Job& job, int64_t begin, int64_t end);
  static Job copy_of(const void* from, size_t size_bytes, void* to);
  Status run(Job job);
  std::shared_ptr<Job> add(Job job);
  void end_jobs();

  int device_ = 0;
  CudaStream stream_;
  Reader own_;  // of the caller
  std::vector<Reader> readers_;
  std::mutex mutex_;
  std::condition_variable added_, done_;
  std::deque<std::shared_ptr<Job>> queue_;  // the first is not done
  size_t unread_bytes_ = 0;
  bool stopping_ = false;
  Status failed_;
  std::vector<std::thread> threads_;
};

}  // namespace warpweave
