// The parsed template: expressions and statements as plain data. Each node knows its line and its
// depth; the parser refuses deep nests, so walking and freeing a tree is safe.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace warpweave::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

using FilterFunction = Value (*)(Runtime&, const Value& subject, const CallArgs& args);
using TestFunction = bool (*)(Runtime&, const Value& subject, const CallArgs& args);

struct ArgExprs {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star;       // *list
  ExprPtr star_star;  // **mapping
};

struct Expr {
  enum class Kind {
    constant,     // value
    name,         // name
    list,         // children
    tuple,        // children
    dict,         // children: key, value, key, value ...
    attribute,    // children[0] . name
    item,         // children[0] [ children[1] ]
    slice,        // children[0] [ children[1] : children[2] : children[3] ], each may be null
    call,         // children[0] ( args )
    filter,       // children[0] | name(args); children[0] is null inside a filter block
    test,         // children[0] is name(args)
    negate,       // - children[0]
    positive,     // + children[0]
    logical_not,  // not children[0]
    logical_and,
    logical_or,
    arithmetic,   // children[0] name children[1], name is one of + - * / // % **
    concat,       // children joined as strings
    compare,      // children[0] ops[0] children[1] ops[1] children[2] ...
    conditional,  // children[0] if children[1] else children[2], which may be null
    namespace_attribute,  // name . attribute_name as the target of a set
  };
  Kind kind;
  int line = 0;
  int depth = 1;
  Value value;
  std::string name;
  std::string attribute_name;
  std::vector<ExprPtr> children;
  std::vector<std::string> ops;
  ArgExprs args;
  FilterFunction filter = nullptr;  // null: unknown, an error when it is reached
  TestFunction test = nullptr;
};

struct Stmt;
using Body = std::vector<std::unique_ptr<Stmt>>;

struct Macro {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<ExprPtr> defaults;  // of the last parameters
  Body body;
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
};

struct Stmt {
  enum class Kind {
    text,          // text
    output,        // expr
    if_,           // branches, else_body
    for_,          // target in expr [if condition]: body, else_body
    set,           // target = expr
    set_block,     // target = filter chain `expr` (or null) of body
    macro,         // macro
    call_block,    // expr is the call; macro is the caller
    filter_block,  // filter chain `expr` of body
    with,          // assignments, body
    scope,         // body in a scope of its own (generation)
    break_,
    continue_,
  };
  Kind kind;
  int line = 0;
  std::string text;
  ExprPtr target;
  ExprPtr expr;
  ExprPtr condition;
  std::vector<std::pair<ExprPtr, Body>> branches;
  std::vector<std::pair<ExprPtr, ExprPtr>> assignments;
  Body body;
  Body else_body;
  std::unique_ptr<Macro> macro;
};

struct Template {
  std::string source;
  Body body;
  bool iterates_content = false;  // some loop walks over a message's content
};

}  // namespace warpweave::jinja
