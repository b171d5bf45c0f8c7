#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "model/weight_source.h"

namespace warpweave {
namespace {

class BackgroundRelease final : public WeightSource {
 public:
  explicit BackgroundRelease(std::shared_ptr<WeightSource> inner)
      : inner_(std::move(inner)), worker_([this] { work(); }) {}
  ~BackgroundRelease() override {
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_one();
    worker_.join();
  }

  bool has(std::string_view name) const override { return inner_->has(name); }
  DType dtype(std::string_view name) const override { return inner_->dtype(name); }
  Result<TensorView> find(std::string_view name, std::span<const int64_t> shape) const override {
    return inner_->find(name, shape);
  }
  bool has_fp8(std::string_view name) const override { return inner_->has_fp8(name); }
  Result<Fp8Matrix> find_fp8(std::string_view name, std::span<const int64_t> shape) const override {
    return inner_->find_fp8(name, shape);
  }
  void release(const TensorView& view) const override {
    {
      std::lock_guard lock(mutex_);
      released_.push_back(view);
    }
    changed_.notify_one();
  }

 private:
  void work() {
    for (std::unique_lock lock(mutex_);;) {
      changed_.wait(lock, [&] { return ending_ || !released_.empty(); });
      if (released_.empty()) return;
      const std::vector<TensorView> views = std::exchange(released_, {});
      lock.unlock();
      for (const TensorView& view : views) inner_->release(view);
      lock.lock();
    }
  }

  const std::shared_ptr<WeightSource> inner_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable std::vector<TensorView> released_;
  bool ending_ = false;
  std::thread worker_;  // last: it uses all of the above
};

}  // namespace

std::shared_ptr<WeightSource> release_in_background(std::shared_ptr<WeightSource> inner) {
  return std::make_shared<BackgroundRelease>(std::move(inner));
}

}  // namespace warpweave
