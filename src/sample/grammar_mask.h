// A request's grammar while its tokens are sampled: what came, and the mask of what may come next,
// made ahead by another thread while the device computes.
//
// accept() says that a token was sampled and returns at once; the thread begins with it when it is
// woken. apply() waits for the mask of this request alone, or makes it itself when the other thread
// has not begun. One thread at a time calls reset(), accept() and apply(); GrammarMaskThread works
// beside it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "grammar/matcher.h"

namespace warpweave {

class GrammarMaskThread;

class GrammarMask {
 public:
  // `thread` makes the masks ahead; null: apply() makes them.
  GrammarMask(std::shared_ptr<const grammar::CompiledGrammar> grammar, GrammarMaskThread* thread);
  ~GrammarMask();

  // Forgets the text so far and takes `output_ids` instead.
  void reset(std::span<const int32_t> output_ids);
  void accept(int32_t token_id);
  // Sets the logits of all tokens that may not come next to -inf.
  void apply(std::span<float> logits);
  // What apply() leaves, a bit for each id of the model; ids past the grammar's vocabulary are not allowed.
  void copy_mask(std::span<uint32_t> mask);
  // Nothing but the end may follow; after apply() or copy_mask().
  bool must_end() const;

 private:
  friend class GrammarMaskThread;
  struct Work;

  void queue();
  void await();

  const std::shared_ptr<Work> work_;
  GrammarMaskThread* const thread_;
};

class GrammarMaskThread {
 public:
  GrammarMaskThread();
  ~GrammarMaskThread();

  // Begins with what was accepted since: once for all tokens of a step, as waking a thread costs more than a mask.
  void wake() { changed_.notify_one(); }

 private:
  friend class GrammarMask;
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<GrammarMask::Work>> queue_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace warpweave
