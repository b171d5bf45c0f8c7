#include "text/jinja/loop.h"

#include <algorithm>

namespace warpweave::jinja {

// loop.cycle(...) and loop.changed(...).
class LoopMethod : public Object {
 public:
  LoopMethod(std::weak_ptr<Loop> loop, bool cycle) : loop_(std::move(loop)), cycle_(cycle) {}
  std::string type_name() const override { return "method"; }
  bool callable() const override { return true; }

  Value call(Runtime& runtime, const CallArgs& args) override {
    auto held = loop_.lock();
    if (!held) throw Error("the loop is over");
    Loop& loop = *held;
    if (cycle_) {
      if (args.positional.empty()) throw Error("loop.cycle() needs items to cycle through");
      return args.positional[static_cast<size_t>(loop.index0_) % args.positional.size()];
    }
    for (const Value& value : args.positional) runtime.charge_walk(value);
    const bool same = loop.last_changed_ && loop.last_changed_->size() == args.positional.size() &&
                      std::equal(args.positional.begin(), args.positional.end(),
                                 loop.last_changed_->begin(), equal);
    if (!same) loop.last_changed_ = args.positional;
    return Value(!same);
  }

 private:
  std::weak_ptr<Loop> loop_;
  bool cycle_;
};

std::optional<Value> Loop::pull() {
  while (at_ < items_.size()) {
    const Value& item = items_[at_++];
    if (!filter_ || filter_(item)) return item;
  }
  return std::nullopt;
}

const Value* Loop::peek() {
  if (ahead_.empty()) {
    if (auto item = pull()) ahead_.push_back(*std::move(item));
  }
  return ahead_.empty() ? nullptr : &ahead_.front();
}

std::optional<Value> Loop::next() {
  if (peek() == nullptr) return std::nullopt;
  previous_ = std::move(current_);
  current_ = std::move(ahead_.front());
  ahead_.pop_front();
  ++index0_;
  return current_;
}

void Loop::finish() {
  filter_ = nullptr;
  at_ = items_.size();
}

int64_t Loop::length() {
  if (!filter_) return static_cast<int64_t>(items_.size() - at_ + ahead_.size()) + index0_ + 1;
  while (auto item = pull()) ahead_.push_back(*std::move(item));
  return index0_ + 1 + static_cast<int64_t>(ahead_.size());
}

std::optional<Value> Loop::attribute(Runtime&, std::string_view name) {
  if (name == "index") return Value(index0_ + 1);
  if (name == "index0") return Value(index0_);
  if (name == "first") return Value(index0_ == 0);
  if (name == "last") return Value(peek() == nullptr);
  if (name == "length") return Value(length());
  if (name == "revindex") return Value(length() - index0_);
  if (name == "revindex0") return Value(length() - index0_ - 1);
  if (name == "cycle") return Value(std::make_shared<LoopMethod>(weak_from_this(), true));
  if (name == "changed") return Value(std::make_shared<LoopMethod>(weak_from_this(), false));
  if (name == "depth") return Value(int64_t{1});
  if (name == "depth0") return Value(int64_t{0});
  if (name == "previtem") {
    return previous_ ? *previous_ : Value::undefined("there is no previous item");
  }
  if (name == "nextitem") {
    const Value* next = peek();
    return next != nullptr ? *next : Value::undefined("there is no next item");
  }
  return std::nullopt;
}

}  // namespace warpweave::jinja
