// The `loop` variable of a for loop, and the items behind it. The loop's filter is asked lazily,
// one item ahead at most, as jinja2 does: what the body changes in a namespace it can see.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "text/jinja/runtime.h"

namespace warpweave::jinja {

class Loop : public Object, public std::enable_shared_from_this<Loop> {
 public:
  using Filter = std::function<bool(const Value&)>;  // empty: every item passes

  Loop(std::vector<Value> items, Filter filter)
      : items_(std::move(items)), filter_(std::move(filter)) {}

  // Moves to the next item; nothing when there is none.
  std::optional<Value> next();
  // No more calls to the filter: its scope is gone.
  void finish();

  std::string type_name() const override { return "LoopContext"; }
  std::optional<Value> attribute(Runtime& runtime, std::string_view name) override;

 private:
  friend class LoopMethod;

  std::optional<Value> pull();
  const Value* peek();
  int64_t length();

  std::vector<Value> items_;
  Filter filter_;
  size_t at_ = 0;                // first item not yet pulled
  std::deque<Value> ahead_;      // pulled but not reached
  std::optional<Value> current_;
  std::optional<Value> previous_;
  std::optional<std::vector<Value>> last_changed_;
  int64_t index0_ = -1;
};

}  // namespace warpweave::jinja
