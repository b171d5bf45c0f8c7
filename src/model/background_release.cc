#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "model/weight_source.h"

namespace warpweave {
namespace {

// What the releasing thread shares with its source, and keeps until it is done.
class Releaser {
 public:
  explicit Releaser(std::shared_ptr<WeightSource> inner) : inner_(std::move(inner)) {}

  const WeightSource& inner() const { return *inner_; }
  void add(const TensorView& view) {
    {
      std::lock_guard lock(mutex_);
      released_.push_back(view);
    }
    changed_.notify_one();
  }
  void end() {
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_one();
  }
  void run() {
    for (std::unique_lock lock(mutex_);;) {
      changed_.wait(lock, [&] { return ending_ || !released_.empty(); });
      if (released_.empty()) return;
      const std::vector<TensorView> views = std::exchange(released_, {});
      lock.unlock();
      for (const TensorView& view : views) inner_->release(view);
      lock.lock();
    }
  }

 private:
  const std::shared_ptr<WeightSource> inner_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<TensorView> released_;
  bool ending_ = false;
};

class BackgroundRelease final : public WeightSource {
 public:
  explicit BackgroundRelease(std::shared_ptr<WeightSource> inner)
      : releaser_(std::make_shared<Releaser>(std::move(inner))) {
    std::thread([releaser = releaser_] { releaser->run(); }).detach();
  }
  ~BackgroundRelease() override { releaser_->end(); }

  bool has(std::string_view name) const override { return releaser_->inner().has(name); }
  bool may_lack_biases() const override { return releaser_->inner().may_lack_biases(); }
  DType dtype(std::string_view name) const override { return releaser_->inner().dtype(name); }
  Result<TensorView> find(std::string_view name, std::span<const int64_t> shape) const override {
    return releaser_->inner().find(name, shape);
  }
  bool has_fp8(std::string_view name) const override { return releaser_->inner().has_fp8(name); }
  Result<Fp8Matrix> find_fp8(std::string_view name, std::span<const int64_t> shape) const override {
    return releaser_->inner().find_fp8(name, shape);
  }
  std::optional<RandomMatrix> random(std::string_view name, std::span<const int64_t> shape) const override {
    return releaser_->inner().random(name, shape);
  }
  std::optional<RandomFp8> random_fp8(std::string_view name, std::span<const int64_t> shape) const override {
    return releaser_->inner().random_fp8(name, shape);
  }
  void release(const TensorView& view) const override { releaser_->add(view); }
  std::vector<std::string> unread() const override { return releaser_->inner().unread(); }
  Status intact() const override { return releaser_->inner().intact(); }
  Status seal() const override { return releaser_->inner().seal(); }

 private:
  const std::shared_ptr<Releaser> releaser_;
};

}  // namespace

std::shared_ptr<WeightSource> release_in_background(std::shared_ptr<WeightSource> inner) {
  return std::make_shared<BackgroundRelease>(std::move(inner));
}

}  // namespace warpweave
