#include "text/jinja/parser.h"

#include <algorithm>
#include <utility>

#include "text/jinja/expression_parser.h"

namespace warpweave::jinja {

namespace {

using Type = Token::Type;

// x.content, x['content'] or a variable named content.
bool names_content(const Expr& expr) {
  switch (expr.kind) {
    case Expr::Kind::name:
    case Expr::Kind::attribute: return expr.name == "content";
    case Expr::Kind::item: {
      const Expr& index = *expr.children[1];
      return index.kind == Expr::Kind::constant && index.value.is(Kind::string) &&
             index.value.string() == "content";
    }
    default: return false;
  }
}

class StatementParser {
 public:
  StatementParser(std::vector<Token> tokens, Template& result)
      : in_(std::move(tokens)), result_(result) {}

  void run() { result_.body = body({}); }

 private:
  using Ends = std::initializer_list<std::string_view>;

  std::unique_ptr<Stmt> stmt(Stmt::Kind kind) const {
    auto s = std::make_unique<Stmt>();
    s->kind = kind;
    s->line = in_.current().line;
    return s;
  }

  void end_tag() {
    if (in_.current().type != Type::block_end) {
      in_.fail("expected '%}', got " + in_.describe(in_.current()));
    }
    in_.next();
  }

  // Everything up to a tag whose first word is one of `ends`; that word is the current token then.
  Body body(Ends ends) {
    ExpressionParser::Level level(in_);
    const int line = in_.current().line;
    Body out;
    while (in_.current().type != Type::end) {
      if (in_.current().type == Type::data) {
        auto s = stmt(Stmt::Kind::text);
        s->text = in_.next().text;
        out.push_back(std::move(s));
      } else if (in_.current().type == Type::variable_begin) {
        in_.next();
        auto s = stmt(Stmt::Kind::output);
        s->expr = in_.tuple();
        if (in_.current().type != Type::variable_end) {
          in_.fail("expected '}}', got " + in_.describe(in_.current()));
        }
        in_.next();
        out.push_back(std::move(s));
      } else {
        in_.next();  // block_begin
        for (std::string_view end : ends) {
          if (in_.is_name(end)) return out;
        }
        out.push_back(statement());
      }
    }
    if (ends.size() > 0) {
      in_.fail("the block opened in line " + std::to_string(line) + " is not closed; add {% " +
               std::string(*(ends.end() - 1)) + " %}");
    }
    return out;
  }

  // A body closed by {% end %}, past its tag.
  Body closed_body(std::string_view end) {
    Body out = body({end});
    in_.next();
    return out;
  }

  std::unique_ptr<Stmt> statement() {
    const Token& token = in_.current();
    if (token.type != Type::name) in_.fail("a tag starts with its name, got " + in_.describe(token));
    const std::string& name = token.text;
    if (name == "if") return if_statement();
    if (name == "for") return for_statement();
    if (name == "set") return set_statement();
    if (name == "macro") return macro_statement();
    if (name == "call") return call_statement();
    if (name == "filter") return filter_statement();
    if (name == "with") return with_statement();
    if (name == "generation") return generation_statement();
    if (name == "break" || name == "continue") return loop_control();
    in_.fail("unknown tag '" + name +
             "'; a chat template may use if, for, set, macro, call, filter, with, raw, generation, "
             "break and continue");
  }

  std::unique_ptr<Stmt> if_statement() {
    auto s = stmt(Stmt::Kind::if_);
    ++in_.conditions;
    while (true) {
      in_.next();  // if or elif
      ExprPtr condition = in_.tuple(false);
      end_tag();
      Body branch = body({"elif", "else", "endif"});
      s->branches.emplace_back(std::move(condition), std::move(branch));
      if (!in_.is_name("elif")) break;
    }
    if (in_.skip_name("else")) {
      end_tag();
      s->else_body = body({"endif"});
    }
    --in_.conditions;
    in_.next();
    end_tag();
    return s;
  }

  std::unique_ptr<Stmt> for_statement() {
    auto s = stmt(Stmt::Kind::for_);
    in_.next();
    s->target = in_.target(false);
    in_.expect_name("in");
    s->expr = in_.tuple(false);
    if (names_content(*s->expr)) result_.iterates_content = true;
    if (in_.skip_name("if")) s->condition = in_.expression();
    if (in_.is_name("recursive")) {
      in_.fail("recursive loops are not supported; write a macro that calls itself");
    }
    end_tag();
    ++loops_;
    s->body = body({"else", "endfor"});
    --loops_;
    if (in_.skip_name("else")) {
      end_tag();
      s->else_body = body({"endfor"});
    }
    in_.next();
    end_tag();
    return s;
  }

  std::unique_ptr<Stmt> set_statement() {
    auto s = stmt(Stmt::Kind::set);
    in_.next();
    s->target = in_.target(true);
    if (in_.skip_op("=")) {
      s->expr = in_.tuple();
      end_tag();
      return s;
    }
    s->kind = Stmt::Kind::set_block;
    if (in_.skip_op("|")) s->expr = in_.filter_chain();
    end_tag();
    s->body = closed_body("endset");
    end_tag();
    return s;
  }

  // "(a, b=1)" of a macro or a call block.
  void parameters(Macro& macro) {
    in_.expect_op("(");
    while (!in_.is_op(")")) {
      if (!macro.parameters.empty()) in_.expect_op(",");
      if (macro.parameters.size() == kMaxParameters) {
        in_.fail("a macro takes at most " + std::to_string(kMaxParameters) + " parameters; pass a mapping");
      }
      macro.parameters.push_back(in_.identifier());
      if (in_.skip_op("=")) {
        macro.defaults.push_back(in_.expression());
      } else if (!macro.defaults.empty()) {
        in_.fail("parameter '" + macro.parameters.back() +
                 "' stands behind one with a default; give it a default too");
      }
    }
    in_.next();
  }

  // The body of a macro; loops outside it do not reach in. `caller` inside a call block is the one
  // of the macro around it.
  void macro_body(Macro& macro, std::string_view end) {
    Macro* outer_macro = end == "endmacro" ? std::exchange(in_.macro, &macro) : in_.macro;
    const int outer_loops = std::exchange(loops_, 0);
    macro.body = closed_body(end);
    in_.macro = outer_macro;
    loops_ = outer_loops;
    end_tag();
  }

  std::unique_ptr<Stmt> macro_statement() {
    auto s = stmt(Stmt::Kind::macro);
    in_.next();
    s->macro = std::make_unique<Macro>();
    s->macro->name = in_.identifier();
    parameters(*s->macro);
    end_tag();
    macro_body(*s->macro, "endmacro");
    return s;
  }

  std::unique_ptr<Stmt> call_statement() {
    auto s = stmt(Stmt::Kind::call_block);
    in_.next();
    s->macro = std::make_unique<Macro>();
    s->macro->name = "caller";
    if (in_.is_op("(")) parameters(*s->macro);
    s->expr = in_.expression();
    if (s->expr->kind != Expr::Kind::call) in_.fail("a call block needs a call: {% call name() %}");
    end_tag();
    macro_body(*s->macro, "endcall");
    return s;
  }

  std::unique_ptr<Stmt> filter_statement() {
    auto s = stmt(Stmt::Kind::filter_block);
    in_.next();
    s->expr = in_.filter_chain();
    end_tag();
    s->body = closed_body("endfilter");
    end_tag();
    return s;
  }

  std::unique_ptr<Stmt> with_statement() {
    auto s = stmt(Stmt::Kind::with);
    in_.next();
    while (in_.current().type != Type::block_end) {
      if (!s->assignments.empty()) in_.expect_op(",");
      ExprPtr target = in_.target(false);
      in_.expect_op("=");
      ExprPtr value = in_.expression();
      s->assignments.emplace_back(std::move(target), std::move(value));
    }
    end_tag();
    s->body = closed_body("endwith");
    end_tag();
    return s;
  }

  std::unique_ptr<Stmt> generation_statement() {
    auto s = stmt(Stmt::Kind::scope);
    in_.next();
    end_tag();
    s->body = closed_body("endgeneration");
    end_tag();
    return s;
  }

  std::unique_ptr<Stmt> loop_control() {
    const bool is_break = in_.is_name("break");
    if (loops_ == 0) in_.fail("'" + in_.current().text + "' stands outside a loop");
    auto s = stmt(is_break ? Stmt::Kind::break_ : Stmt::Kind::continue_);
    in_.next();
    end_tag();
    return s;
  }

  ExpressionParser in_;
  Template& result_;
  int loops_ = 0;
};

}  // namespace

std::shared_ptr<const Template> parse_template(std::string source) {
  if (source.size() > kMaxTemplateBytes) {
    throw Error("the template has " + std::to_string(source.size()) + " bytes, at most " +
                std::to_string(kMaxTemplateBytes) + " are allowed; use a shorter one");
  }
  auto result = std::make_shared<Template>();
  StatementParser(tokenize(source), *result).run();
  result->source = std::move(source);
  return result;
}

}  // namespace warpweave::jinja
