// A schema as a document: its nodes, references between them, which keywords it uses, and whether
// a given value is valid. Owned by one compilation; nodes made on the way live as long as it.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "grammar/char_dfa.h"
#include "grammar/json_text.h"
#include "grammar/schema.h"

namespace warpweave::grammar {

// A schema that holds, or that must not hold.
struct SchemaRef {
  const Json* node;
  bool negated = false;
  auto operator<=>(const SchemaRef&) const = default;
};
using SchemaSet = std::vector<SchemaRef>;  // all of them hold

// Keywords of made nodes: what negations need and schemas lack.
inline constexpr const char* kNotStrings = "\x01not-strings";
inline constexpr const char* kNotPattern = "\x01not-pattern";

class SchemaDocument {
 public:
  SchemaDocument(const Json& root, const GrammarLimits& limits);

  const Json& root() const { return root_; }
  // Checks every node's keywords and their types once; the first rule that is broken.
  Status check();
  Result<const Json*> resolve(const Json& ref_node);  // what its $ref or $dynamicRef names
  bool is_reference(const Json& node) const;
  // A node that says something but is not part of the text: parts of negations.
  const Json* make(Json node);
  bool is_made(const Json* node) const { return made_set_.contains(node); }

  // Whether `value` is valid; `unknown` where it cannot be told.
  bool valid(const Json& node, const Json& value, bool unknown, int depth = 0);
  bool valid(const SchemaRef& ref, const Json& value) {
    return ref.negated ? !valid(*ref.node, value, true) : valid(*ref.node, value, false);
  }

  Result<const CharDfa*> pattern(const std::string& pattern);  // searched for in the text
  static Result<const CharDfa*> format(const std::string& name);  // null: an annotation
  WorkBudget* dfa_work() { return &dfa_work_; }                // of all automata of this schema
  WorkBudget* work() { return &work_; }                        // of all else that grows faster than the schema

  static const Json* find(const Json& node, const char* key) {
    if (!node.is_object()) return nullptr;
    const auto at = node.find(key);
    return at == node.end() ? nullptr : &*at;
  }
  static bool only_annotations_besides(const Json& node, const char* keyword);
  static const char* type_of(const Json& value);  // "integer" for whole numbers
  static bool has_type(const Json& node, std::string_view type);  // what "type" says; true without

 private:
  Status check_node(const Json& node, const std::string& path, int depth);
  void index(const Json& node, const Json* resource, int depth);
  bool is_one_of(const Json& list, const Json& value);  // `list`: of an enum
  bool valid_number(const Json& node, const Json& value, bool unknown);
  bool valid_string(const Json& node, const std::string& value, bool unknown);
  bool valid_array(const Json& node, const Json& value, bool unknown, int depth);
  bool valid_object(const Json& node, const Json& value, bool unknown, int depth);
  bool valid_applicators(const Json& node, const Json& value, bool unknown, int depth);

  const Json& root_;
  const GrammarLimits& limits_;
  std::deque<Json> made_;
  std::unordered_set<const Json*> made_set_;
  std::unordered_map<std::string, const Json*> by_id_;
  std::unordered_map<const Json*, const Json*> resource_of_;  // of references in parts with an $id: the part
  WorkBudget dfa_work_, work_;
  std::unordered_map<const Json*, std::unordered_set<std::string>> keys_of_lists_;  // see is_one_of()
  std::map<std::string, CharDfa> patterns_;
};

NumberBounds number_bounds(const Json& node);
Decimal decimal_of_json(const Json& number);
size_t count_characters(std::string_view utf8);

}  // namespace warpweave::grammar
