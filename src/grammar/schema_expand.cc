#include "grammar/schema_expand.h"

#include <algorithm>

namespace warpweave::grammar {
namespace {

constexpr size_t kMaxAlternatives = 512;
constexpr int kMaxDepth = 128;
constexpr int kMaxEarlyParts = 32;  // of $ref and allOf inside each other that keep their place among members
constexpr const char* kTypes[] = {"null", "boolean", "integer", "number", "string", "array", "object"};

const Json* find(const Json& node, const char* key) { return SchemaDocument::find(node, key); }

bool contains(const Json& list, const std::string& text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

// Steps of a few nanoseconds, by measurement: to visit a node of a leaf, and to copy an alternative.
constexpr size_t kStepsPerNode = 64, kStepsPerOption = 8;

}  // namespace

// To copy the branch, and to look for contradictions in it.
size_t SchemaExpander::Branch::steps() const {
  size_t options = 0;
  for (const Options& choice : choices) options += choice.size();
  return kStepsPerNode * (1 + todo.size() + leaf.size()) + seen.size() + kStepsPerOption * options;
}

Result<std::vector<SchemaLeaf>> SchemaExpander::expand(const SchemaSet& set) {
  status_ = {};
  lossy_ = false;
  std::vector<SchemaLeaf> out;
  run({.todo = set, .seen = {}, .leaf = {}, .choices = {}}, max_lossy_alternatives_, &out);
  if (!status_.ok()) return status_;
  return out;
}

void SchemaExpander::fail_to_combine() {
  status_ = Status::invalid_argument(
      "the schema's anyOf, oneOf, not and if nest too deep or take too long to combine; make it simpler");
}

bool SchemaExpander::spend(size_t steps) {
  if (document_.work()->spend(steps) && !deadline_.passed()) return true;
  fail_to_combine();
  return false;
}

void SchemaExpander::run(Branch branch, size_t share, std::vector<SchemaLeaf>* out) {
  if (!status_.ok()) return;
  if (!spend(branch.steps())) return;
  struct Leave {
    int& depth;
    ~Leave() { --depth; }
  } leave{++depth_};
  if (depth_ > kMaxDepth) return fail_to_combine();
  for (size_t next = 0; next < branch.todo.size(); ++next) {
    const SchemaRef ref = branch.todo[next];
    if (!take_now(ref, &branch, 0)) return;
  }
  if (!spend(kStepsPerNode * branch.leaf.size()) || contradicts(branch.leaf)) return;
  if (branch.choices.empty()) {
    if (std::find(out->begin(), out->end(), branch.leaf) != out->end()) return;
    if (out->size() < kMaxAlternatives) {
      out->push_back(std::move(branch.leaf));
    } else if (!lossy_) {
      status_ = Status::invalid_argument("anyOf, oneOf and if make more than " + std::to_string(kMaxAlternatives) +
                                         " combinations; nest fewer of them in allOf");
    }
    return;
  }
  const auto smallest = std::min_element(branch.choices.begin(), branch.choices.end(),
                                         [](const Options& a, const Options& b) { return a.size() < b.size(); });
  const Options options = std::move(*smallest);
  branch.choices.erase(smallest);
  for (const SchemaSet& option : options) {
    lossy_ = lossy_ || std::any_of(option.begin(), option.end(), [](const SchemaRef& ref) { return ref.negated; });
  }
  const size_t before = out->size();
  for (size_t i = 0; i < options.size(); ++i) {
    const size_t made = out->size() - before;
    if (lossy_ && made >= share) return;
    Branch next = branch;
    next.todo = options[i];
    run(std::move(next), std::max<size_t>(1, (share - std::min(share, made)) / (options.size() - i)), out);
  }
}

// False when nothing can be valid.
bool SchemaExpander::take(const SchemaRef& ref, Branch* branch, int depth) {
  const Json& node = *ref.node;
  if (ref.negated) {
    lossy_ = true;
    if (node.is_boolean()) return !node.get<bool>();
    branch->choices.push_back(negate(node));
    return !branch->choices.back().empty();
  }
  if (node.is_boolean()) return node.get<bool>();
  if (!node.is_object()) return false;
  if (document_.is_reference(node)) {
    const Result<const Json*> target = document_.resolve(node);
    if (!target.ok()) {
      status_ = target.status();
      return false;
    }
    if (depth == 0) branch->todo.push_back({*target});
    if (depth > 0 && !take_now({*target}, branch, depth + 1)) return false;
  }
  // Members stand in the order in which the document names them, also where an allOf before properties names some.
  const bool has_properties = find(node, "properties") != nullptr;
  for (const auto& [keyword, value] : node.items()) {
    if (keyword == "properties" || !has_properties) break;
    if (keyword != "allOf") continue;
    for (const Json& part : value) {
      if (!take_now({&part}, branch, depth + 1)) return false;
    }
  }
  branch->leaf.push_back(&node);
  take_logic(node, branch);
  take_dependencies(node, branch);
  return true;
}

// Before what the caller's node says itself, where `depth`, of parts taken early inside each other, is not too large.
bool SchemaExpander::take_now(const SchemaRef& ref, Branch* branch, int depth) {
  if (depth >= kMaxEarlyParts) {
    branch->todo.push_back(ref);
    return true;
  }
  const auto seen = [&](const SchemaRef& other) {
    return std::find(branch->seen.begin(), branch->seen.end(), other) != branch->seen.end();
  };
  if (seen(ref)) return true;
  if (seen({ref.node, !ref.negated})) return false;
  branch->seen.push_back(ref);
  return take(ref, branch, depth);
}

void SchemaExpander::take_logic(const Json& node, Branch* branch) {
  if (const Json* all = find(node, "allOf")) {
    for (const Json& part : *all) branch->todo.push_back({&part});
  }
  if (const Json* none = find(node, "not")) branch->todo.push_back({none, true});
  if (const Json* any = find(node, "anyOf")) {
    Options options;
    for (const Json& part : *any) options.push_back({{&part}});
    branch->choices.push_back(std::move(options));
  }
  if (const Json* one = find(node, "oneOf")) branch->choices.push_back(one_of(*one));
  if (const Json* condition = find(node, "if")) {
    const Json *then = find(node, "then"), *otherwise = find(node, "else");
    if (then == nullptr && otherwise == nullptr) return;
    SchemaSet held{{condition}}, failed{{condition, true}};
    if (then != nullptr) held.push_back({then});
    if (otherwise != nullptr) failed.push_back({otherwise});
    branch->choices.push_back({std::move(held), std::move(failed)});
  }
}

void SchemaExpander::take_dependencies(const Json& node, Branch* branch) {
  for (const char* keyword : {"dependentRequired", "dependentSchemas", "dependencies"}) {
    const Json* dependencies = find(node, keyword);
    if (dependencies == nullptr) continue;
    for (const auto& [name, what] : dependencies->items()) {
      Json required = Json::array({name});
      if (what.is_array()) required.insert(required.end(), what.begin(), what.end());
      SchemaSet present = made({{"type", "object"}, {"required", required}});
      if (!what.is_array()) present.push_back({&what});
      branch->choices.push_back({std::move(present), made({{"properties", {{name, false}}}})});
    }
  }
}

// Exactly one holds: it does, and those that could hold along with it do not.
SchemaExpander::Options SchemaExpander::one_of(const Json& list) {
  Options options;
  for (size_t i = 0; i < list.size(); ++i) {
    SchemaSet option{{&list[i]}};
    for (size_t k = 0; k < list.size(); ++k) {
      if (k != i && !disjoint({&list[i]}, {&list[k]})) option.push_back({&list[k], true});
    }
    options.push_back(std::move(option));
  }
  return options;
}

bool SchemaExpander::contradicts(const SchemaLeaf& leaf) const {
  bool any_type = false, only_object = true;
  for (const char* type : kTypes) {
    const bool possible =
        std::all_of(leaf.begin(), leaf.end(), [&](const Json* n) { return SchemaDocument::has_type(*n, type); });
    any_type = any_type || possible;
    if (possible && std::string_view(type) != "object") only_object = false;
  }
  if (!any_type) return true;
  if (!only_object) return false;
  for (const Json* node : leaf) {
    const Json* required = find(*node, "required");
    if (required == nullptr) continue;
    for (const Json& name : *required) {
      for (const Json* other : leaf) {
        const Json* properties = find(*other, "properties");
        const Json* property =
            properties != nullptr ? find(*properties, name.get_ref<const std::string&>().c_str()) : nullptr;
        if (property != nullptr && property->is_boolean() && !property->get<bool>()) return true;
      }
    }
  }
  return false;
}

// The nodes that surely hold when `node` does: through $ref and allOf.
SchemaLeaf SchemaExpander::plain_nodes(const Json& node) {
  SchemaLeaf out, todo{&node};
  while (!todo.empty() && out.size() < 64) {
    const Json* next = todo.back();
    todo.pop_back();
    if (!next->is_object() || std::find(out.begin(), out.end(), next) != out.end()) continue;
    out.push_back(next);
    if (document_.is_reference(*next)) {
      if (const Result<const Json*> target = document_.resolve(*next); target.ok()) todo.push_back(*target);
    }
    if (const Json* all = find(*next, "allOf")) {
      for (const Json& part : *all) todo.push_back(&part);
    }
  }
  return out;
}

bool SchemaExpander::disjoint(const SchemaRef& a_ref, const SchemaRef& b_ref, int depth) {
  if (depth > 6 || !spend(kStepsPerNode)) return false;
  if (a_ref.node->is_boolean() || b_ref.node->is_boolean()) {
    return (a_ref.node->is_boolean() && !a_ref.node->get<bool>()) ||
           (b_ref.node->is_boolean() && !b_ref.node->get<bool>());
  }
  const SchemaLeaf a = plain_nodes(*a_ref.node), b = plain_nodes(*b_ref.node);
  if (!spend(kStepsPerNode * (a.size() + b.size()))) return false;
  std::vector<std::string_view> common;
  for (const char* type : kTypes) {
    const auto has = [&](const Json* node) { return SchemaDocument::has_type(*node, type); };
    if (std::all_of(a.begin(), a.end(), has) && std::all_of(b.begin(), b.end(), has)) common.push_back(type);
  }
  if (common.empty()) return true;
  const auto values_miss = [&](const SchemaLeaf& nodes, const Json& other) {
    for (const Json* node : nodes) {
      const auto misses = [&](const Json& value) { return !document_.valid(other, value, true); };
      if (const Json* constant = find(*node, "const"); constant != nullptr && misses(*constant)) return true;
      const Json* values = find(*node, "enum");
      if (values != nullptr && std::all_of(values->begin(), values->end(), misses)) return true;
    }
    return false;
  };
  if (values_miss(a, *b_ref.node) || values_miss(b, *a_ref.node)) return true;
  const auto split = [&](const SchemaLeaf& nodes, const SchemaRef& other) {
    for (const Json* node : nodes) {
      for (const char* keyword : {"anyOf", "oneOf"}) {
        const Json* parts = find(*node, keyword);
        if (parts != nullptr && std::all_of(parts->begin(), parts->end(),
                                            [&](const Json& part) { return disjoint({&part}, other, depth + 1); }))
          return true;
      }
    }
    return false;
  };
  if (split(a, b_ref) || split(b, a_ref)) return true;
  if (common.size() == 1 && common[0] == "object") return disjoint_objects(a, b, depth);
  return false;
}

bool SchemaExpander::disjoint_objects(const SchemaLeaf& a, const SchemaLeaf& b, int depth) {
  const auto requires_name = [](const SchemaLeaf& leaf, const std::string& name) {
    return std::any_of(leaf.begin(), leaf.end(), [&](const Json* node) {
      const Json* required = find(*node, "required");
      return required != nullptr && contains(*required, name);
    });
  };
  const auto property = [](const Json& node, const std::string& name) -> const Json* {
    const Json* properties = find(node, "properties");
    return properties == nullptr ? nullptr : find(*properties, name.c_str());
  };
  const auto forbids = [&](const SchemaLeaf& leaf, const std::string& name) {
    return std::any_of(leaf.begin(), leaf.end(), [&](const Json* node) {
      if (const Json* known = property(*node, name)) return known->is_boolean() && !known->get<bool>();
      const Json* additional = find(*node, "additionalProperties");
      return additional != nullptr && additional->is_boolean() && !additional->get<bool>() &&
             find(*node, "patternProperties") == nullptr;
    });
  };
  const auto by_names_of = [&](const SchemaLeaf& x, const SchemaLeaf& y) {
    for (const Json* node : x) {
      const Json* required = find(*node, "required");
      if (required == nullptr) continue;
      for (const Json& each : *required) {
        const std::string name = each.get<std::string>();
        if (!spend(kStepsPerNode * y.size())) return false;
        if (forbids(y, name)) return true;
        if (!requires_name(y, name)) continue;
        for (const Json* n : x) {
          for (const Json* m : y) {
            const Json *p = property(*n, name), *q = property(*m, name);
            if (p != nullptr && q != nullptr && disjoint({p}, {q}, depth + 1)) return true;
          }
        }
      }
    }
    return false;
  };
  return by_names_of(a, b) || by_names_of(b, a);
}

}  // namespace warpweave::grammar
