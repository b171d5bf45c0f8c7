// A schema as alternatives without logic: each a list of nodes whose own keywords all hold.
//
// allOf and $ref are followed; anyOf, oneOf, if, not and the dependencies are multiplied out. "Not"
// is pushed down to single keywords; of the ways to break a schema those that a grammar can say are
// kept, so that a text that is allowed is always valid.
#pragma once

#include <vector>

#include "grammar/schema_document.h"

namespace warpweave::grammar {

using SchemaLeaf = std::vector<const Json*>;  // all of them hold, by their plain keywords

class SchemaExpander {
 public:
  // `deadline` is the compilation's; both outlive this.
  SchemaExpander(SchemaDocument* document, const GrammarLimits& limits, ThreadDeadline* deadline)
      : document_(*document), deadline_(*deadline), max_lossy_alternatives_(limits.max_lossy_alternatives) {}

  Result<std::vector<SchemaLeaf>> expand(const SchemaSet& set);
  // Whether no value is valid against both; false where it cannot be told cheaply.
  bool disjoint(const SchemaRef& a, const SchemaRef& b, int depth = 0);

 private:
  using Options = std::vector<SchemaSet>;
  struct Branch {
    SchemaSet todo;
    SchemaSet seen;
    SchemaLeaf leaf;
    std::vector<Options> choices;
    size_t steps() const;
  };
  // `share`: of alternatives that are kept where a negation takes part, so that each option keeps some.
  void run(Branch branch, size_t share, std::vector<SchemaLeaf>* out);
  bool take(const SchemaRef& ref, Branch* branch, int depth);
  bool take_now(const SchemaRef& ref, Branch* branch, int depth);
  void take_logic(const Json& node, Branch* branch);
  void take_dependencies(const Json& node, Branch* branch);
  Options one_of(const Json& list);
  Options negate(const Json& node);
  void negate_logic(const Json& node, Options* out);
  void negate_values(const Json& node, Options* out);
  void negate_object(const Json& node, Options* out);
  void negate_bounds(const Json& node, Options* out);
  bool contradicts(const SchemaLeaf& leaf) const;
  // False, and status_ an error, when the steps or the time are used up.
  bool spend(size_t steps);
  void fail_to_combine();
  SchemaLeaf plain_nodes(const Json& node);
  bool disjoint_objects(const SchemaLeaf& a, const SchemaLeaf& b, int depth);
  SchemaSet made(Json node) { return {{document_.make(std::move(node))}}; }

  SchemaDocument& document_;
  ThreadDeadline& deadline_;
  Status status_;
  const size_t max_lossy_alternatives_;
  bool lossy_ = false;  // a negation took part: alternatives may be left out
  int depth_ = 0;
};

}  // namespace warpweave::grammar
