// GBNF and Lark: one reader for both, told apart by how a rule begins.
#include <algorithm>
#include <map>
#include <optional>

#include "grammar/regex_grammar.h"

namespace warpweave::grammar {
namespace {

constexpr int kMaxRepeat = 10'000;

struct CommonTerminal {
  std::string_view name, pattern;
};
// What `%import common.NAME` brings in Lark.
constexpr CommonTerminal kCommon[] = {
    {"DIGIT", "[0-9]"}, {"HEXDIGIT", "[0-9a-fA-F]"}, {"INT", "[0-9]+"}, {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
    {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
    {"SIGNED_FLOAT", "[+-]?(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"},
    {"NUMBER", "[0-9]+(?:\\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\\.[0-9]+(?:[eE][+-]?[0-9]+)?"},
    {"SIGNED_NUMBER", "[+-]?(?:[0-9]+(?:\\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\\.[0-9]+(?:[eE][+-]?[0-9]+)?)"},
    {"ESCAPED_STRING", "\"(?:[^\"\\\\\\n]|\\\\[^\\n])*\""}, {"LCASE_LETTER", "[a-z]"}, {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[a-zA-Z]"}, {"WORD", "[a-zA-Z]+"}, {"CNAME", "[a-zA-Z_][a-zA-Z0-9_]*"}, {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"}, {"CR", "\\r"}, {"LF", "\\n"}, {"NEWLINE", "(?:\\r?\\n)+"},
};

struct Node {
  enum class Kind { text, regex, rule, sequence, choice, repeat };
  Kind kind = Kind::sequence;
  std::string text = {};  // of a literal, or a rule's name
  bool ignore_case = false;
  Regex regex = {};
  std::vector<Node> parts = {};
  int min = 0, max = -1;
  size_t at = 0;
};

bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name(char c) { return is_name_start(c) || (c >= '0' && c <= '9') || c == '-' || c == '.'; }

class Reader {
 public:
  Reader(std::string_view text, GrammarBuilder* builder)
      : text_(text), builder_(*builder), lark_(text.find("::=") == std::string_view::npos) {}

  Result<RuleId> read() {
    if (text_.size() > builder_.limits().max_source_bytes)
      return fail(0, "the grammar is longer than " + std::to_string(builder_.limits().max_source_bytes) + " bytes");
    skip_space();
    while (at_ < text_.size()) {
      WW_RETURN_IF_ERROR(text_[at_] == '%' ? read_directive() : read_rule());
      skip_space();
    }
    return emit();
  }

 private:
  Status fail(size_t at, const std::string& what) const {
    const auto line = 1 + std::count(text_.begin(), text_.begin() + std::min(at, text_.size()), '\n');
    return Status::invalid_argument("line " + std::to_string(line) + ": " + what);
  }
  void skip_space() {
    while (at_ < text_.size()) {
      if (text_[at_] == '#' || text_.substr(at_, 2) == "//") {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r') {
        ++at_;
      } else {
        return;
      }
    }
  }
  bool take(std::string_view word) {
    skip_space();
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  std::string_view read_name() {
    const size_t begin = at_;
    if (at_ < text_.size() && is_name_start(text_[at_])) {
      while (at_ < text_.size() && is_name(text_[at_]) && !(lark_ && (text_[at_] == '-' || text_[at_] == '.'))) ++at_;
    }
    return text_.substr(begin, at_ - begin);
  }
  // Whether a rule's head stands here: "name ::=" or "name:".
  bool at_rule_head() {
    const size_t begin = at_;
    skip_space();
    if (lark_) {
      while (at_ < text_.size() && (text_[at_] == '?' || text_[at_] == '!')) ++at_;
    }
    bool head = !read_name().empty();
    if (head && lark_ && at_ < text_.size() && text_[at_] == '.') {
      ++at_;
      while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    }
    skip_space();
    head = head && text_.substr(at_, lark_ ? 1 : 3) == (lark_ ? ":" : "::=");
    at_ = begin;
    return head;
  }

  Status read_directive() {
    const size_t begin = at_;
    if (!lark_) return fail(begin, "'%' begins nothing in this notation");
    if (take("%import")) {
      if (!take("common")) return fail(begin, "only %import common.NAME is supported");
      if (!take(".")) return fail(begin, "%import common without .NAME");
      std::vector<std::string> names;
      if (take("(")) {
        do {
          skip_space();
          names.emplace_back(read_name());
        } while (take(","));
        if (!take(")")) return fail(begin, "'(' without ')'");
      } else {
        names.emplace_back(read_name());
      }
      for (const std::string& name : names) {
        const auto known = std::find_if(std::begin(kCommon), std::end(kCommon),
                                        [&](const CommonTerminal& t) { return t.name == name; });
        if (known == std::end(kCommon)) return fail(begin, "%import common." + name + " is not known");
        std::string alias = name;
        const size_t before = at_;
        if (take("->")) {
          skip_space();
          alias = read_name();
        } else {
          at_ = before;
        }
        WW_ASSIGN_OR_RETURN(Regex regex, parse_regex(known->pattern, builder_.limits()));
        Node node{.kind = Node::Kind::regex};
        node.regex = std::move(regex);
        bodies_[alias] = std::move(node);
      }
      return {};
    }
    if (take("%ignore")) {
      WW_ASSIGN_OR_RETURN(Node node, read_choice());
      ignored_.push_back(std::move(node));
      return {};
    }
    return fail(begin, "only %import common.NAME and %ignore are supported");
  }

  Status read_rule() {
    const size_t begin = at_;
    if (!at_rule_head())
      return fail(begin, lark_ ? "a rule ('name: ...') was expected" : "a rule ('name ::= ...') was expected");
    while (text_[at_] == '?' || text_[at_] == '!') ++at_;
    const std::string name(read_name());
    if (lark_ && text_[at_] == '.') {
      ++at_;
      while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    }
    take(lark_ ? ":" : "::=");
    if (first_.empty()) first_ = name;
    WW_ASSIGN_OR_RETURN(Node body, read_choice());
    if (!bodies_.emplace(name, std::move(body)).second) return fail(begin, "rule " + name + " is defined twice");
    return {};
  }

  Result<Node> read_choice() {
    if (++nesting_ > builder_.limits().max_nesting) return fail(at_, "groups are nested too deep");
    Node choice{.kind = Node::Kind::choice};
    do {
      WW_ASSIGN_OR_RETURN(Node part, read_sequence());
      choice.parts.push_back(std::move(part));
    } while (take("|"));
    --nesting_;
    return choice;
  }

  Result<Node> read_sequence() {
    Node sequence;
    for (;;) {
      skip_space();
      if (at_ >= text_.size() || text_[at_] == '|' || text_[at_] == ')' ||
          (lark_ && (text_[at_] == ']' || text_[at_] == '%')) || at_rule_head())
        return sequence;
      if (lark_ && take("->")) {  // an alias for trees: of no meaning here
        skip_space();
        read_name();
        continue;
      }
      WW_ASSIGN_OR_RETURN(Node part, read_atom());
      WW_RETURN_IF_ERROR(read_quantifier(&part));
      sequence.parts.push_back(std::move(part));
    }
  }

  Result<Node> read_atom() {
    const size_t begin = at_;
    if (take("(")) {
      WW_ASSIGN_OR_RETURN(Node inside, read_choice());
      if (!take(")")) return fail(begin, "'(' without ')'");
      return inside;
    }
    if (lark_ && take("[")) {
      WW_ASSIGN_OR_RETURN(Node inside, read_choice());
      if (!take("]")) return fail(begin, "'[' without ']'");
      Node optional{.kind = Node::Kind::repeat, .min = 0, .max = 1};
      optional.parts.push_back(std::move(inside));
      return optional;
    }
    if (text_[at_] == '"' || (!lark_ && text_[at_] == '\'')) return read_literal();
    if (text_[at_] == '/') return read_regex('/');
    if (!lark_ && text_[at_] == '[') return read_regex(']');
    if (!lark_ && take(".")) {
      Node any{.kind = Node::Kind::regex};
      any.regex = {.kind = Regex::Kind::chars, .chars = CharSet::any()};
      return any;
    }
    const std::string name(read_name());
    if (name.empty()) return fail(begin, std::string("'") + text_[at_] + "' was not expected here");
    return Node{.kind = Node::Kind::rule, .text = name, .at = begin};
  }

  Result<std::string> read_quoted() {
    const size_t begin = at_;
    const char quote = text_[at_++];
    std::string out;
    while (at_ < text_.size() && text_[at_] != quote) {
      if (text_[at_] == '\\') {
        ++at_;
        Result<uint32_t> c = parse_char_escape(text_, &at_);
        if (!c.ok()) return fail(begin, c.status().message());
        append_utf8(*c, &out);
      } else {
        out += text_[at_++];
      }
    }
    if (at_ >= text_.size()) return fail(begin, "a literal without its closing quote");
    ++at_;
    return out;
  }

  Result<Node> read_literal() {
    const size_t begin = at_;
    Node node{.kind = Node::Kind::text, .at = begin};
    WW_ASSIGN_OR_RETURN(node.text, read_quoted());
    if (!lark_) return node;
    if (at_ < text_.size() && text_[at_] == 'i') ++at_, node.ignore_case = true;
    const size_t before = at_;
    if (!take("..")) {
      at_ = before;
      return node;
    }
    skip_space();
    if (at_ >= text_.size() || text_[at_] != '"') return fail(begin, "a range needs a literal on both sides of '..'");
    WW_ASSIGN_OR_RETURN(const std::string last, read_quoted());
    size_t i = 0, k = 0;
    uint32_t low = 0, high = 0;
    if (!next_utf8(node.text, &i, &low) || i != node.text.size() || !next_utf8(last, &k, &high) || k != last.size() ||
        low > high) {
      return fail(begin, "a range is of one character to another");
    }
    Node range{.kind = Node::Kind::regex};
    range.regex = {.kind = Regex::Kind::chars, .chars = CharSet::of(low, high)};
    return range;
  }

  // /expression/ or [class]: up to the closing character that no backslash stands before.
  Result<Node> read_regex(char close) {
    const size_t begin = at_++;
    bool in_class = close == ']';
    while (at_ < text_.size() && !(text_[at_] == close && (close == ']' || !in_class))) {
      if (text_[at_] == '[') in_class = true;
      if (text_[at_] == ']') in_class = false;
      at_ += text_[at_] == '\\' ? 2 : 1;
    }
    if (at_ >= text_.size()) return fail(begin, std::string("'") + text_[begin] + "' without '" + close + "'");
    ++at_;
    const std::string_view whole = text_.substr(begin, at_ - begin);
    Result<Regex> regex = parse_regex(close == '/' ? whole.substr(1, whole.size() - 2) : whole, builder_.limits());
    if (!regex.ok()) return fail(begin, regex.status().message());
    if (close == '/' && at_ < text_.size() && is_name_start(text_[at_]))
      return fail(begin, "flags of expressions are not supported");
    const Status anchors = strip_outer_anchors(&*regex);
    if (!anchors.ok()) return fail(begin, anchors.message());
    Node node{.kind = Node::Kind::regex};
    node.regex = std::move(*regex);
    return node;
  }

  Status read_quantifier(Node* part) {
    for (;;) {
      if (at_ >= text_.size()) return {};
      int min = 0, max = -1;
      const size_t begin = at_;
      const char c = text_[at_];
      if (c == '?' && !(lark_ && at_rule_head())) {
        ++at_;
        max = 1;
      } else if (c == '*' || c == '+') {
        ++at_;
        min = c == '+';
      } else if (c == '{' || (lark_ && c == '~')) {
        ++at_;
        if (!read_number(&min)) return fail(begin, "a repetition without its number");
        max = min;
        if (c == '{') {
          if (take(",") && !read_number(&max)) max = -1;
          if (!take("}")) return fail(begin, "'{' without '}'");
        } else if (text_.substr(at_, 2) == "..") {
          at_ += 2;
          if (!read_number(&max)) return fail(begin, "a repetition without its second number");
        }
        if (min > kMaxRepeat || max > kMaxRepeat || (max >= 0 && max < min))
          return fail(begin, "a repetition needs a minimum, not above its maximum, and both up to " +
                                 std::to_string(kMaxRepeat));
      } else {
        return {};
      }
      Node repeat{.kind = Node::Kind::repeat, .min = min, .max = max};
      repeat.parts.push_back(std::move(*part));
      *part = std::move(repeat);
    }
  }

  bool read_number(int* out) {
    skip_space();
    const size_t begin = at_;
    int64_t value = 0;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9' && at_ - begin < 9)
      value = value * 10 + (text_[at_++] - '0');
    *out = static_cast<int>(value);
    return at_ > begin;
  }

  Result<RuleId> emit() {
    const std::string start = lark_ ? "start" : bodies_.contains("root") ? "root" : first_;
    if (!bodies_.contains(start))
      return fail(0, lark_ ? "the grammar has no rule 'start' (and no '::=')" : "the grammar has no rule");
    if (!ignored_.empty()) {
      ignore_rule_ = builder_.add_rule();
      const StateId begin = builder_.start(*ignore_rule_);
      for (const Node& node : ignored_) {
        WW_ASSIGN_OR_RETURN(const StateId end, emit_node(begin, node, true));
        builder_.add_empty(end, begin);
      }
      builder_.end_rule(begin);
    }
    const RuleId root = builder_.add_rule();
    StateId from = builder_.start(root);
    if (ignore_rule_) from = builder_.emit_call(from, *ignore_rule_);
    WW_ASSIGN_OR_RETURN(const RuleId first, rule_of(start, 0));
    builder_.end_rule(builder_.emit_call(from, first));
    while (!to_emit_.empty() && builder_.within_limits()) {
      const std::string name = to_emit_.back();
      to_emit_.pop_back();
      const bool terminal = lark_ && name[0] != '_' && !(name[0] >= 'a' && name[0] <= 'z');
      WW_ASSIGN_OR_RETURN(const StateId end, emit_node(builder_.start(rules_.at(name)), bodies_.at(name), terminal));
      builder_.end_rule(end);
    }
    if (builder_.failed()) return builder_.status();
    return root;
  }

  Result<RuleId> rule_of(const std::string& name, size_t at) {
    if (!bodies_.contains(name)) return fail(at, "rule " + name + " is not defined");
    const auto [rule, fresh] = rules_.try_emplace(name, 0);
    if (fresh) {
      rule->second = builder_.add_rule();
      to_emit_.push_back(name);
    }
    return rule->second;
  }

  // What %ignore names may stand behind every terminal that a rule uses.
  StateId after_terminal(StateId state, bool in_terminal) {
    return ignore_rule_ && !in_terminal ? builder_.emit_call(state, *ignore_rule_) : state;
  }

  Result<StateId> emit_node(StateId from, const Node& node, bool in_terminal) {
    switch (node.kind) {
      case Node::Kind::text: {
        if (!node.ignore_case) return after_terminal(builder_.emit_text(from, node.text), in_terminal);
        for (const char c : node.text) {
          const StateId to = builder_.add_state();
          const auto low = static_cast<uint8_t>(std::tolower(static_cast<uint8_t>(c)));
          const auto high = static_cast<uint8_t>(std::toupper(static_cast<uint8_t>(c)));
          builder_.add_byte(from, low, low, to);
          if (low != high) builder_.add_byte(from, high, high, to);
          from = to;
        }
        return after_terminal(from, in_terminal);
      }
      case Node::Kind::regex: return after_terminal(emit_regex(&builder_, from, node.regex), in_terminal);
      case Node::Kind::rule: {
        WW_ASSIGN_OR_RETURN(const RuleId rule, rule_of(node.text, node.at));
        const bool terminal = lark_ && node.text[0] >= 'A' && node.text[0] <= 'Z';
        const StateId to = builder_.emit_call(from, rule);
        return terminal ? after_terminal(to, in_terminal) : to;
      }
      case Node::Kind::sequence:
        for (const Node& part : node.parts) {
          WW_ASSIGN_OR_RETURN(from, emit_node(from, part, in_terminal));
        }
        return from;
      case Node::Kind::choice: {
        const StateId end = builder_.add_state();
        for (const Node& part : node.parts) {
          const StateId own = builder_.add_state();
          builder_.add_empty(from, own);
          WW_ASSIGN_OR_RETURN(const StateId to, emit_node(own, part, in_terminal));
          builder_.add_empty(to, end);
        }
        return end;
      }
      case Node::Kind::repeat: break;
    }
    return emit_repeat(from, node, in_terminal);
  }

  Result<StateId> emit_repeat(StateId from, const Node& node, bool in_terminal) {
    const Node& part = node.parts[0];
    const Node* inside = &part;
    while (inside->parts.size() == 1 && inside->kind != Node::Kind::repeat) inside = &inside->parts[0];
    if (inside->kind == Node::Kind::regex && (in_terminal || !ignore_rule_)) {
      Regex repeat{.kind = Regex::Kind::repeat, .min = node.min, .max = node.max};
      repeat.parts.push_back(inside->regex);
      return emit_regex(&builder_, from, repeat);
    }
    for (int i = 0; i < node.min && builder_.within_limits(); ++i) {
      WW_ASSIGN_OR_RETURN(from, emit_node(from, part, in_terminal));
    }
    const StateId end = builder_.add_state();
    if (node.max < 0) {
      const StateId head = builder_.add_state();
      builder_.add_empty(from, head);
      WW_ASSIGN_OR_RETURN(const StateId again, emit_node(head, part, in_terminal));
      builder_.add_empty(again, head);
      builder_.add_empty(head, end);
      return end;
    }
    for (int i = node.min; i < node.max && builder_.within_limits(); ++i) {
      builder_.add_empty(from, end);
      WW_ASSIGN_OR_RETURN(from, emit_node(from, part, in_terminal));
    }
    builder_.add_empty(from, end);
    return end;
  }

  std::string_view text_;
  GrammarBuilder& builder_;
  const bool lark_;
  size_t at_ = 0;
  int nesting_ = 0;
  std::string first_;
  std::map<std::string, Node> bodies_;
  std::vector<Node> ignored_;
  std::map<std::string, RuleId> rules_;
  std::vector<std::string> to_emit_;
  std::optional<RuleId> ignore_rule_;
};

}  // namespace

Result<RuleId> add_ebnf(std::string_view text, GrammarBuilder* builder) { return Reader(text, builder).read(); }

}  // namespace warpweave::grammar
