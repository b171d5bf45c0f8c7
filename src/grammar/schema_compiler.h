// Writes the alternatives of a schema into a grammar: one rule per set of schemas that hold at once.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "grammar/schema_expand.h"

namespace warpweave::grammar {

class SchemaCompiler {
 public:
  SchemaCompiler(const Json& root, const JsonStyle& style, GrammarBuilder* builder)
      : document_(root, builder->limits()),
        expander_(&document_, builder->limits(), builder->deadline()),
        builder_(*builder),
        strings_(builder),
        style_(style) {}

  Result<RuleId> compile();

 private:
  // Inside unique arrays: one spelling per value and no whitespace.
  struct Mode {
    bool one_spelling = false;
    auto operator<=>(const Mode&) const = default;
  };
  // Members with one pattern of names in common, besides those the schema names.
  struct NameClass {
    std::optional<CharDfa> names;  // none: any text
    SchemaSet values;
  };

  RuleId rule_for(SchemaSet set, Mode mode);
  void build_rule(RuleId rule, const SchemaSet& set, Mode mode);
  bool simplify(SchemaSet* set);
  bool build_as_choice(RuleId rule, const SchemaSet& set, Mode mode);
  void fail(Status status) { builder_.fail(std::move(status)); }

  void emit_leaf(StateId from, StateId end, const SchemaLeaf& leaf, const SchemaSet& origin, Mode mode);
  std::optional<std::vector<std::string>> literals_of(const SchemaLeaf& leaf);
  void emit_literals(StateId from, StateId end, std::vector<std::string> texts);
  RuleId number_rule(const NumberBounds& bounds, bool one_spelling);
  void emit_number_leaf(StateId from, StateId end, const SchemaLeaf& leaf, bool integer, Mode mode);
  void emit_string_leaf(StateId from, StateId end, const SchemaLeaf& leaf, Mode mode);
  struct StringFacts {
    int64_t min = 0, max = -1;
    std::optional<CharDfa> dfa;
  };
  std::optional<StringFacts> string_facts(const SchemaLeaf& leaf);
  std::optional<CharDfa> whole_dfa(const StringFacts& facts);

  // schema_array.cc
  void emit_array(StateId from, StateId end, const SchemaLeaf& leaf, const SchemaSet& origin, Mode mode);
  // What a leaf says of its arrays' lengths and elements; none: it was refused.
  struct ArrayRules {
    int64_t min = 0, max = -1;  // max -1: no limit
    bool unique = false;
    const Json* contains = nullptr;
  };
  std::optional<ArrayRules> array_rules(const SchemaLeaf& leaf);
  // Of the array that begins at `open`: with a finite number of values there are no more elements than those.
  void limit_unique(StateId open, const SchemaLeaf& leaf, const SchemaSet& origin, ArrayRules& rules);
  SchemaSet item_set(const SchemaLeaf& leaf, const SchemaSet& origin, size_t index);
  std::optional<std::vector<std::string>> finite_values(const SchemaSet& set);

  // schema_object.cc
  struct ObjectMember {
    std::string name;
    SchemaSet values;
    bool required;
  };
  // What a leaf says of its objects; none: it can have none, or was refused.
  struct ObjectRules {
    int64_t min = 0, max = -1;  // members; max -1: no limit
    std::vector<ObjectMember> members;
    std::vector<NameClass> others;
    // Numbers of members that must be told apart, less one; the last one: so many or more.
    int64_t columns() const { return std::max<int64_t>({1, min, max}); }
  };
  std::optional<ObjectRules> object_rules(const SchemaLeaf& leaf, const SchemaSet& origin, Mode mode);
  // A state for each number of members so far.
  struct ObjectColumns {
    explicit ObjectColumns(int64_t columns) : states(columns + 1, 0), reached(columns + 1, false) {}
    // The column's, which `make` makes when it is first asked for.
    template <typename Make>
    StateId state(int64_t column, const Make& make) {
      if (!reached[column]) states[column] = make(), reached[column] = true;
      return states[column];
    }
    std::vector<StateId> states;
    std::vector<bool> reached;
  };
  void emit_object(StateId from, StateId end, const SchemaLeaf& leaf, const SchemaSet& origin, Mode mode);
  ObjectColumns emit_members(const ObjectRules& rules, ObjectColumns at, Mode mode);
  void emit_others(const ObjectRules& rules, const ObjectColumns& at, StateId end, Mode mode);
  void emit_close(const ObjectRules& rules, StateId state, int64_t column, StateId end, Mode mode);
  template <typename Own>
  SchemaSet member_schemas(const SchemaLeaf& leaf, const SchemaSet& origin, Own&& own);
  SchemaSet member_set(const SchemaLeaf& leaf, const SchemaSet& origin, const std::string& name);
  std::vector<std::string> declared_names(const SchemaLeaf& leaf);
  struct NamesAndPatterns {
    CharDfa names;
    std::vector<std::string> patterns;  // that all of these names match
  };
  SchemaSet undeclared_set(const SchemaLeaf& leaf, const SchemaSet& origin, const std::vector<std::string>& matched);
  Result<std::vector<NamesAndPatterns>> split_names(const SchemaLeaf& leaf, const std::vector<std::string>& declared);
  std::vector<NameClass> name_classes(const SchemaLeaf& leaf, const SchemaSet& origin,
                                      const std::vector<std::string>& declared);
  std::optional<CharDfa> names_dfa(const SchemaLeaf& leaf);
  bool name_allowed(const SchemaLeaf& leaf, const std::string& name);
  void emit_pair(StateId key_end, const SchemaSet& values, StateId to, Mode mode);
  bool is_origin(const Json* node, const SchemaSet& origin, const char* keyword);

  StateId emit_open(StateId from, char bracket, Mode mode);
  StateId emit_comma(StateId from, Mode mode);
  StateId emit_spaces(StateId from, Mode mode);
  RuleId make_spaces_rule();
  void emit_inner(StateId from, const SchemaSet& values, StateId to, Mode mode);

  SchemaDocument document_;
  SchemaExpander expander_;
  GrammarBuilder& builder_;
  JsonStrings strings_;
  JsonStyle style_;
  std::optional<RuleId> spaces_rule_;
  std::map<std::pair<NumberBounds, bool>, RuleId> number_rules_;  // by their bounds, and in one spelling
  std::map<std::pair<SchemaSet, Mode>, RuleId> rules_;
  std::vector<std::tuple<RuleId, SchemaSet, Mode>> to_build_;
};

// Whether nothing can hold along with the others: `false` is among them.
bool is_never(const SchemaSet& set);
int64_t whole_number(const Json& node, const char* key, int64_t otherwise);

}  // namespace warpweave::grammar
