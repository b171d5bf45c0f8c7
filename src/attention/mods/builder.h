// Makes the nodes of an expression: checks and unites types, folds constants, shares equal nodes.
// Parts are node indices. The first error sticks, with the column where it was made; after it every
// call returns a harmless index, so callers check status() once.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "attention/mods/expression.h"
#include "warpweave/status.h"

namespace warpweave::mods {

class Builder {
 public:
  static constexpr size_t kMaxNodes = 1024;

  // Messages read "<what>, column <column>: ...". Columns count bytes from 1.
  Builder(std::string what, std::string text);

  void at(size_t column) { column_ = column; }
  void fail(const std::string& why);
  const Status& status() const { return status_; }

  using Part = uint16_t;
  Part variable(Op op);
  Part integer(int32_t value);
  Part real(double value);
  Part unary(Op op, Part a);
  Part binary(Op op, Part a, Part b);
  Part select(Part condition, Part yes, Part no);
  Part as_real(Part a);

  ValueType type(Part part) const { return expression_.nodes[part].type; }
  const Node& node(Part part) const { return expression_.nodes[part]; }

  // The expression whose result is `root`, without nodes that it does not need.
  Expression finish(Part root) const;

 private:
  Part add(Node node);
  void unite(Part& a, Part& b, const char* op);
  bool want(Part a, ValueType type, const char* op);
  Part arithmetic(Op op, Part a, Part b);

  std::string what_;
  size_t column_ = 1;
  Status status_;
  Expression expression_;
};

const char* type_name(ValueType type);

}  // namespace warpweave::mods
