// The names every template sees: range, dict, namespace, cycler, joiner, raise_exception and
// strftime_now; and the namespace object, the one value a template can change.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "text/jinja/runtime.h"

namespace warpweave::jinja {

class Namespace : public Object {
 public:
  std::string type_name() const override { return "Namespace"; }
  std::optional<Value> attribute(Runtime& runtime, std::string_view name) override;
  void set(Runtime& runtime, std::string_view name, Value value);
  void clear() { attributes_.clear(); }

 private:
  std::map<std::string, Value, std::less<>> attributes_;
};

// Undefined when there is no such name. namespace() is made by the interpreter, which must empty
// every namespace at the end: they can refer to each other in a ring.
Value find_global(std::string_view name);
std::shared_ptr<Namespace> make_namespace(Runtime& runtime, const CallArgs& args);

}  // namespace warpweave::jinja
