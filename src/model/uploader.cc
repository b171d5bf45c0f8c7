#include "model/uploader.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>

#include "base/log.h"
#include "device/cuda/copy.h"
#include "device/cuda/current_device.h"
#include "device/cuda/stream.h"

namespace warpweave {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kPieceBytes = size_t{2} << 20;  // PCIe 5: 49 GB/s by pieces of 1 MiB, 52 of 2, 55 of 16
constexpr int kMaxReaders = 12;                  // eight do where memory is fast; 16 take longer to get pinned memory
// The caller is this far ahead at most: it reports progress.
constexpr size_t kMostUnreadBytes = size_t{256} << 20;

using SteadyClock = std::chrono::steady_clock;

double seconds(SteadyClock::duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

Result<Uploader::Pinned> Uploader::Pinned::allocate(size_t size_bytes) {
  Pinned out;
  out.memory_ = AlignedBuffer::allocate(size_bytes);
  const Status none =
      Status::resource_exhausted(std::to_string(size_bytes >> 20) + " MiB of pinned memory for staging of weights");
  if (out.memory_.data() == nullptr) return none;
  for (size_t at = 0; at < size_bytes; at += kPageBytes) static_cast<volatile std::byte*>(out.data())[at] = {};
  if (pin_memory(out.data(), size_bytes)) return out;
  out.memory_ = {};
  return none;
}

Uploader::Pinned::~Pinned() {
  if (memory_.data() != nullptr) unpin_memory(memory_.data());
}

Result<std::unique_ptr<Uploader>> Uploader::create(int threads) {
  std::unique_ptr<Uploader> out(new Uploader);
  WW_ASSIGN_OR_RETURN(out->stream_, create_stream());
  WW_ASSIGN_OR_RETURN(out->device_, current_device("uploading weights"));
  out->readers_.resize(std::clamp(threads, 1, kMaxReaders));
  for (Reader& reader : out->readers_) {
    out->threads_.emplace_back([uploader = out.get(), &reader] { uploader->work(reader); });
  }
  return out;
}

Uploader::~Uploader() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  added_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  (void)wait_for_stream(stream_.get(), "uploading weights");  // what is pinned may still be on its way
}

void Uploader::add_bytes(const void* from, size_t size_bytes, void* to) { add(copy_of(from, size_bytes, to)); }

Status Uploader::bytes(const void* from, size_t size_bytes, void* to) { return run(copy_of(from, size_bytes, to)); }

void Uploader::then(std::function<void()> done) {
  Job job;
  job.done = std::move(done);
  add(std::move(job));
}

Uploader::Job Uploader::copy_of(const void* from, size_t size_bytes, void* to) {
  Job job;
  job.count = static_cast<int64_t>(size_bytes);
  job.grain = kPieceBytes;
  job.to = static_cast<std::byte*>(to);
  job.fill = [from](int64_t begin, int64_t end, std::byte* out) {
    std::memcpy(out, static_cast<const std::byte*>(from) + begin, end - begin);
    return Status();
  };
  return job;
}

Status Uploader::rows(int64_t rows, size_t row_bytes, void* to, Fill fill) {
  if (row_bytes > kPieceBytes) return Status::unsupported("a weight row of more than 2 MiB");
  Job job;
  job.count = rows;
  job.grain = std::max<int64_t>(1, static_cast<int64_t>(kPieceBytes / row_bytes));
  job.unit_bytes = row_bytes;
  job.to = static_cast<std::byte*>(to);
  job.fill = std::move(fill);
  return run(std::move(job));
}

Status Uploader::finish() {
  {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return queue_.empty(); });
    WW_RETURN_IF_ERROR(failed_);
  }
  WW_RETURN_IF_ERROR(wait_for_stream(stream_.get(), "uploading weights"));
  double filled_s = 0, waited_s = 0;
  for (const Reader& reader : readers_) {
    filled_s += reader.filled_s / static_cast<double>(readers_.size());
    waited_s += reader.waited_s / static_cast<double>(readers_.size());
  }
  LOG_DEBUG("weights: {} threads, each {:.3f} s reading and converting, {:.3f} s waiting for the link",
            readers_.size(), filled_s, waited_s);
  return {};
}

std::shared_ptr<Uploader::Job> Uploader::add(Job job) {
  auto added = std::make_shared<Job>(std::move(job));
  {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return unread_bytes_ <= kMostUnreadBytes; });
    unread_bytes_ += added->count * added->unit_bytes;
    queue_.push_back(added);
    end_jobs();
  }
  added_.notify_all();
  return added;
}

// Of the jobs that have been read, those before which all have.
void Uploader::end_jobs() {
  for (; !queue_.empty() && queue_.front()->read == queue_.front()->count; queue_.pop_front()) {
    if (queue_.front()->done) queue_.front()->done();
  }
}

// What fits one piece does not wait for its turn.
Status Uploader::run(Job job) {
  if (job.count <= job.grain) return job.count > 0 ? send(own_, job, 0, job.count) : Status();
  const std::shared_ptr<const Job> added = add(std::move(job));
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return added->read == added->count; });
  return failed_;
}

void Uploader::work(Reader& reader) {
  use_device(device_);
  std::shared_ptr<Job> job;
  const auto next_job = [&] {
    const auto found =
        std::find_if(queue_.begin(), queue_.end(), [](auto& queued) { return queued->taken < queued->count; });
    job = found == queue_.end() ? nullptr : *found;
    return job != nullptr;
  };
  for (std::unique_lock lock(mutex_);;) {
    added_.wait(lock, [&] { return stopping_ || next_job(); });
    if (stopping_) return;
    const int64_t begin = job->taken, end = std::min(job->count, begin + job->grain);
    job->taken = end;
    const bool skipped = !failed_.ok();
    lock.unlock();
    const Status status = skipped ? Status() : send(reader, *job, begin, end);
    lock.lock();
    if (failed_.ok()) failed_ = status;
    job->read += end - begin;
    unread_bytes_ -= (end - begin) * job->unit_bytes;
    if (job->read < job->count) continue;
    end_jobs();
    done_.notify_all();
  }
}

Status Uploader::send(Reader& reader, const Job& job, int64_t begin, int64_t end) {
  if (reader.pinned.size_bytes() == 0) {
    WW_ASSIGN_OR_RETURN(reader.pinned, Pinned::allocate(kPieces * kPieceBytes));
    for (CudaEvent& event : reader.sent) {
      WW_ASSIGN_OR_RETURN(event, create_event());
    }
  }
  const cudaEvent_t sent = reader.sent[reader.next].get();
  std::byte* const memory = reader.pinned.data() + reader.next * kPieceBytes;
  reader.next = (reader.next + 1) % kPieces;
  const auto before = SteadyClock::now();
  WW_RETURN_IF_ERROR(wait_for_event(sent, "uploading weights"));
  const auto waited = SteadyClock::now();
  WW_RETURN_IF_ERROR(job.fill(begin, end, memory));
  reader.waited_s += seconds(waited - before);
  reader.filled_s += seconds(SteadyClock::now() - waited);
  WW_RETURN_IF_ERROR(copy_async(job.to + begin * job.unit_bytes, memory, (end - begin) * job.unit_bytes, stream_.get(),
                                "uploading weights"));
  WW_RETURN_IF_ERROR(record_event(sent, stream_.get(), "uploading weights"));
  return {};
}

}  // namespace warpweave
