#include "sample/grammar_mask.h"

#include <algorithm>
#include <array>
#include <exception>
#include <limits>

namespace warpweave {

using grammar::GrammarMatcher;

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// For the logits of a word's 32 tokens; without branches, so that the compiler makes it of vectors.
void mask_word(uint32_t word, float* logits) {
  static constexpr auto kBits = [] {
    std::array<uint32_t, 32> bits{};
    for (size_t i = 0; i < bits.size(); ++i) bits[i] = 1u << i;
    return bits;
  }();
  for (size_t i = 0; i < kBits.size(); ++i) logits[i] = (word & kBits[i]) != 0 ? logits[i] : kNever;
}

}  // namespace

// Shared with the mask thread, so that a request may end while its mask is being made.
struct GrammarMask::Work {
  enum class State { idle, queued, making, ready };

  explicit Work(std::shared_ptr<const grammar::CompiledGrammar> grammar)
      : matcher(std::move(grammar)), mask(grammar::mask_words(matcher.grammar().vocabulary().size())) {}

  // Takes what was sampled and makes the mask; the caller has set State::making. What fails, memory
  // above all, fails the sampler and not the thread that happens to be here.
  void make() noexcept {
    try {
      for (const int32_t id : sampled) valid = valid && matcher.accept_token(id);
      sampled.clear();
      valid = matcher.fill_mask(mask) && valid;
    } catch (...) {
      failure = std::current_exception();
    }
  }
  void finish() {
    {
      std::lock_guard lock(mutex);
      state = State::ready;
    }
    changed.notify_all();
  }

  std::mutex mutex;  // guards state; the rest belongs to who makes, or to the sampler when nobody does
  std::condition_variable changed;
  State state = State::idle;
  GrammarMatcher matcher;
  std::vector<int32_t> sampled;
  grammar::MaskWords mask;
  bool valid = true;
  std::exception_ptr failure;
};

GrammarMask::GrammarMask(std::shared_ptr<const grammar::CompiledGrammar> grammar, GrammarMaskThread* thread)
    : work_(std::make_shared<Work>(std::move(grammar))), thread_(thread) {
  queue();
  if (thread_ != nullptr) thread_->wake();
}

GrammarMask::~GrammarMask() = default;

void GrammarMask::queue() {
  if (thread_ == nullptr) return;
  {
    std::lock_guard lock(work_->mutex);
    work_->state = Work::State::queued;
  }
  std::lock_guard lock(thread_->mutex_);
  thread_->queue_.push_back(work_);
}

// Afterwards the mask is made and nobody else touches the work.
void GrammarMask::await() {
  std::unique_lock lock(work_->mutex);
  work_->changed.wait(lock, [&] { return work_->state != Work::State::making; });
  const bool is_ready = work_->state == Work::State::ready;
  work_->state = is_ready ? Work::State::ready : Work::State::making;
  lock.unlock();
  if (!is_ready) {
    work_->make();
    work_->finish();
  }
  if (work_->failure) std::rethrow_exception(work_->failure);
}

void GrammarMask::reset(std::span<const int32_t> output_ids) {
  await();
  work_->matcher = GrammarMatcher(work_->matcher.grammar_ptr());
  work_->sampled.assign(output_ids.begin(), output_ids.end());
  work_->valid = true;
  std::lock_guard lock(work_->mutex);
  work_->state = Work::State::idle;
}

void GrammarMask::accept(int32_t token_id) {
  await();
  work_->sampled.push_back(token_id);
  {
    std::lock_guard lock(work_->mutex);
    work_->state = Work::State::idle;
  }
  queue();
}

void GrammarMask::apply(std::span<float> logits) {
  await();
  if (!work_->valid) return std::fill(logits.begin(), logits.end(), kNever);
  const size_t masked = std::min(logits.size(), work_->matcher.grammar().vocabulary().size());
  const size_t whole_words = masked / 32;
  for (size_t i = 0; i < whole_words; ++i) {
    if (work_->mask[i] != ~0u) mask_word(work_->mask[i], &logits[32 * i]);
  }
  for (size_t id = 32 * whole_words; id < masked; ++id) {
    if ((work_->mask[id / 32] >> (id % 32) & 1) == 0) logits[id] = kNever;
  }
  std::fill(logits.begin() + static_cast<std::ptrdiff_t>(masked), logits.end(), kNever);
}

void GrammarMask::copy_mask(std::span<uint32_t> mask) {
  await();
  std::fill(mask.begin(), mask.end(), 0);
  if (!work_->valid) return;
  const size_t size = work_->matcher.grammar().vocabulary().size();
  std::copy_n(work_->mask.begin(), std::min(mask.size(), work_->mask.size()), mask.begin());
  if (size % 32 != 0 && size / 32 < mask.size()) mask[size / 32] &= (1u << (size % 32)) - 1;
}

bool GrammarMask::must_end() const {
  const grammar::Vocabulary& vocabulary = work_->matcher.grammar().vocabulary();
  size_t ends = 0, all = 0;
  for (const uint32_t word : work_->mask) all += static_cast<size_t>(__builtin_popcount(word));
  for (const int32_t id : vocabulary.end_ids()) ends += work_->mask[id >> 5] >> (id & 31) & 1;
  return ends > 0 && ends == all;
}

GrammarMaskThread::GrammarMaskThread() : thread_([this] { loop(); }) {}

GrammarMaskThread::~GrammarMaskThread() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void GrammarMaskThread::loop() {
  using State = GrammarMask::Work::State;
  for (;;) {
    std::shared_ptr<GrammarMask::Work> work;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
      if (stopping_) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    {
      std::lock_guard lock(work->mutex);
      if (work->state != State::queued) continue;  // the sampler was first
      work->state = State::making;
    }
    work->make();
    work->finish();
  }
}

}  // namespace warpweave
