#include "grammar/structural_tag.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>

#include "grammar/regex_grammar.h"

namespace warpweave::grammar {
namespace {

// Free text up to the first of some marks: an automaton that follows all of them at once
// (Aho & Corasick 1975).
class TextUntil {
 public:
  explicit TextUntil(const std::vector<std::string>& marks) {
    nodes_.emplace_back();
    for (size_t m = 0; m < marks.size(); ++m) {
      int node = 0;
      for (const char c : marks[m]) {
        int& to = nodes_[node].next[static_cast<uint8_t>(c)];
        if (to < 0) {
          to = static_cast<int>(nodes_.size());
          nodes_.emplace_back();
        }
        node = nodes_[node].next[static_cast<uint8_t>(c)];
      }
      if (nodes_[node].mark < 0) nodes_[node].mark = static_cast<int>(m);
    }
    link();
  }

  // Reads text from `from`; `marked[m]` is where mark m ends, `end` where text without one may.
  void emit(GrammarBuilder* b, StateId from, const std::vector<StateId>& marked, StateId end) const {
    std::vector<StateId> states(nodes_.size());
    for (StateId& state : states) state = b->add_state();
    b->add_empty(from, states[0]);
    const auto target = [&](int node) { return nodes_[node].mark >= 0 ? marked[nodes_[node].mark] : states[node]; };
    for (size_t n = 0; n < nodes_.size() && b->within_limits(); ++n) {
      if (nodes_[n].mark >= 0) continue;
      if (end != kNowhere) b->add_empty(states[n], end);
      for (int byte = 0; byte < 256;) {
        int last = byte;
        while (last < 255 && nodes_[n].next[last + 1] == nodes_[n].next[byte]) ++last;
        b->add_byte(states[n], static_cast<uint8_t>(byte), static_cast<uint8_t>(last), target(nodes_[n].next[byte]));
        byte = last + 1;
      }
    }
  }
  static constexpr StateId kNowhere = ~StateId{0};

 private:
  struct Node {
    Node() { next.fill(-1); }
    std::array<int, 256> next;
    int fail = 0;
    int mark = -1;
  };
  void link() {
    std::deque<int> work;
    for (int& to : nodes_[0].next) {
      if (to < 0) {
        to = 0;
      } else {
        work.push_back(to);
      }
    }
    while (!work.empty()) {
      const int n = work.front();
      work.pop_front();
      if (nodes_[n].mark < 0) nodes_[n].mark = nodes_[nodes_[n].fail].mark;
      for (int byte = 0; byte < 256; ++byte) {
        int& to = nodes_[n].next[byte];
        const int other = nodes_[nodes_[n].fail].next[byte];
        if (to < 0) {
          to = other;
        } else {
          nodes_[to].fail = other;
          work.push_back(to);
        }
      }
    }
  }
  std::vector<Node> nodes_;
};

constexpr size_t kMaxTags = 1024;

struct FormatMembers {
  std::string_view type;
  std::vector<std::string_view> names;  // beside the type
};
const std::vector<FormatMembers>& format_members() {
  static const std::vector<FormatMembers> members = {
      {"const_string", {"value"}},
      {"json_schema", {"json_schema"}},
      {"regex", {"pattern"}},
      {"grammar", {"grammar"}},
      {"any_text", {}},
      {"sequence", {"elements"}},
      {"or", {"elements"}},
      {"tag", {"begin", "content", "end"}},
      {"triggered_tags", {"triggers", "tags", "at_least_one", "stop_after_first"}},
      {"tags_with_separator", {"separator", "tags", "at_least_one", "stop_after_first"}}};
  return members;
}

// Nothing that an object asks for is overlooked; null, false and an empty list ask for nothing.
Status check_members(const Json& object, std::string_view what, const std::vector<std::string_view>& names) {
  for (const auto& [key, value] : object.items()) {
    const bool known = key == "type" || std::find(names.begin(), names.end(), key) != names.end();
    if (known || value.is_null() || value == false || (value.is_array() && value.empty())) continue;
    if (what == "json_schema" && key == "style" && value == "json") continue;  // the only one there is
    return Status::unsupported(key.substr(0, 60) + " is not known in " + std::string(what) + "; leave it out");
  }
  return {};
}

class TagCompiler {
 public:
  TagCompiler(const JsonStyle& style, GrammarBuilder* builder) : style_(style), b_(*builder) {}

  Result<StateId> emit(const Json& format, StateId from) {
    if (++nesting_ > b_.limits().max_nesting) return Status::invalid_argument("format is nested too deep");
    Result<StateId> end = emit_one(format, from);
    --nesting_;
    return end;
  }

  Result<StateId> emit_structures(const Json& tag, StateId from) {
    Json format{{"type", "triggered_tags"}, {"triggers", tag.value("triggers", Json())}, {"tags", Json::array()}};
    for (const Json& structure : tag["structures"]) {
      if (!structure.is_object() || !structure.contains("schema")) {
        return Status::invalid_argument("structures must be objects with begin, schema and end");
      }
      WW_RETURN_IF_ERROR(check_members(structure, "structures", {"begin", "schema", "end"}));
      const Json content{{"type", "json_schema"}, {"json_schema", structure["schema"]}};
      format["tags"].push_back(
          {{"begin", structure.value("begin", Json())}, {"content", content}, {"end", structure.value("end", Json())}});
    }
    kept_.push_back(std::move(format));
    return emit(kept_.back(), from);
  }

 private:
  static Result<std::string> text_of(const Json& node, const char* key) {
    const auto at = node.is_object() ? node.find(key) : node.end();
    if (!node.is_object() || at == node.end() || !at->is_string())
      return Status::invalid_argument(std::string(key) + " must be a string");
    return at->get<std::string>();
  }
  static Result<const Json*> list_of(const Json& node, const char* key) {
    const auto at = node.find(key);
    if (at == node.end() || !at->is_array() || at->empty() || at->size() > kMaxTags) {
      return Status::invalid_argument(std::string(key) + " must be a list of 1 to " + std::to_string(kMaxTags) +
                                      " items");
    }
    return &*at;
  }
  static Result<bool> flag(const Json& node, const char* key) {
    const auto at = node.find(key);
    if (at == node.end() || at->is_null()) return false;
    if (!at->is_boolean()) return Status::invalid_argument(std::string(key) + " must be true or false");
    return at->get<bool>();
  }

  Result<StateId> emit_one(const Json& format, StateId from) {
    WW_ASSIGN_OR_RETURN(const std::string type, text_of(format, "type"));
    for (const FormatMembers& known : format_members()) {
      if (known.type == type) WW_RETURN_IF_ERROR(check_members(format, type, known.names));
    }
    if (type == "const_string") {
      WW_ASSIGN_OR_RETURN(const std::string value, text_of(format, "value"));
      return b_.emit_text(from, value);
    }
    if (type == "json_schema") {
      if (!format.contains("json_schema"))
        return Status::invalid_argument("json_schema is missing in the format json_schema");
      WW_ASSIGN_OR_RETURN(const RuleId rule, add_json_schema(format["json_schema"], style_, &b_));
      return b_.emit_call(from, rule);
    }
    if (type == "regex" || type == "grammar") {
      WW_ASSIGN_OR_RETURN(const std::string text, text_of(format, type == "regex" ? "pattern" : "grammar"));
      WW_ASSIGN_OR_RETURN(const RuleId rule, type == "regex" ? add_regex(text, &b_) : add_ebnf(text, &b_));
      return b_.emit_call(from, rule);
    }
    if (type == "any_text") {
      const StateId end = b_.add_state();
      TextUntil({}).emit(&b_, from, {}, end);
      return end;
    }
    if (type == "sequence" || type == "or") {
      WW_ASSIGN_OR_RETURN(const Json* elements, list_of(format, "elements"));
      return type == "or" ? emit_or(*elements, from) : emit_sequence(*elements, from);
    }
    if (type == "tag") {
      WW_ASSIGN_OR_RETURN(const std::string begin, text_of(format, "begin"));
      return emit_tag(format, b_.emit_text(from, begin));
    }
    if (type == "triggered_tags") return emit_triggered(format, from);
    if (type == "tags_with_separator") return emit_separated(format, from);
    return Status::unsupported("format type \"" + type.substr(0, 60) +
                               "\" is not supported; use const_string, json_schema, regex, grammar, any_text, "
                               "sequence, or, tag, triggered_tags or tags_with_separator");
  }

  Result<StateId> emit_sequence(const Json& elements, StateId from) {
    for (size_t i = 0; i < elements.size(); ++i) {
      WW_ASSIGN_OR_RETURN(from, emit(elements[i], from));
    }
    return from;
  }

  Result<StateId> emit_or(const Json& elements, StateId from) {
    const StateId end = b_.add_state();
    for (const Json& element : elements) {
      const StateId own = b_.add_state();
      b_.add_empty(from, own);
      WW_ASSIGN_OR_RETURN(const StateId to, emit(element, own));
      b_.add_empty(to, end);
    }
    return end;
  }

  // What stands behind a tag's beginning: its content and its end.
  Result<StateId> emit_tag(const Json& tag, StateId from) {
    WW_ASSIGN_OR_RETURN(const std::string end, text_of(tag, "end"));
    if (!tag.contains("content")) return Status::invalid_argument("content is missing in a tag");
    const Json& content = tag["content"];
    WW_RETURN_IF_ERROR(check_members(tag, "a tag", {"begin", "content", "end"}));
    if (content.is_object() && content.value("type", "") == "any_text" && !end.empty()) {
      WW_RETURN_IF_ERROR(check_members(content, "any_text", {}));
      const StateId to = b_.add_state();
      TextUntil({end}).emit(&b_, from, {to}, TextUntil::kNowhere);
      return to;
    }
    WW_ASSIGN_OR_RETURN(const StateId to, emit(content, from));
    return b_.emit_text(to, end);
  }

  Result<StateId> emit_triggered(const Json& format, StateId from) {
    WW_ASSIGN_OR_RETURN(const Json* trigger_list, list_of(format, "triggers"));
    WW_ASSIGN_OR_RETURN(const Json* tags, list_of(format, "tags"));
    std::vector<std::string> triggers;
    std::vector<StateId> marked;
    for (const Json& trigger : *trigger_list) {
      if (!trigger.is_string() || trigger.get<std::string>().empty())
        return Status::invalid_argument("triggers must be strings that are not empty");
      triggers.push_back(trigger.get<std::string>());
      marked.push_back(b_.add_state());
    }
    WW_ASSIGN_OR_RETURN(const bool once, flag(format, "stop_after_first"));
    WW_ASSIGN_OR_RETURN(const bool one_at_least, flag(format, "at_least_one"));
    const StateId end = b_.add_state(), behind = b_.add_state();
    for (const Json& tag : *tags) {
      WW_ASSIGN_OR_RETURN(const std::string begin, text_of(tag, "begin"));
      bool triggered = false;
      for (size_t t = 0; t < triggers.size() && !triggered; ++t) {
        if (!begin.starts_with(triggers[t])) continue;
        triggered = true;
        const StateId own = b_.add_state();
        b_.add_empty(marked[t], own);
        WW_ASSIGN_OR_RETURN(const StateId to,
                            emit_tag(tag, b_.emit_text(own, std::string_view(begin).substr(triggers[t].size()))));
        b_.add_empty(to, behind);
      }
      if (!triggered)
        return Status::invalid_argument("the tag that begins with \"" + begin.substr(0, 60) +
                                        "\" begins with none of the triggers");
    }
    const TextUntil text(triggers);
    text.emit(&b_, from, marked, one_at_least ? TextUntil::kNowhere : end);
    if (once) {
      b_.add_empty(behind, end);
    } else {
      text.emit(&b_, behind, marked, end);
    }
    return end;
  }

  Result<StateId> emit_separated(const Json& format, StateId from) {
    WW_ASSIGN_OR_RETURN(const Json* tags, list_of(format, "tags"));
    WW_ASSIGN_OR_RETURN(const std::string separator, text_of(format, "separator"));
    const StateId begin = b_.add_state(), behind = b_.add_state(), end = b_.add_state();
    b_.add_empty(from, begin);
    WW_ASSIGN_OR_RETURN(const bool once, flag(format, "stop_after_first"));
    WW_ASSIGN_OR_RETURN(const bool one_at_least, flag(format, "at_least_one"));
    if (!one_at_least) b_.add_empty(begin, end);
    for (const Json& tag : *tags) {
      WW_ASSIGN_OR_RETURN(const std::string opening, text_of(tag, "begin"));
      WW_ASSIGN_OR_RETURN(const StateId to, emit_tag(tag, b_.emit_text(begin, opening)));
      b_.add_empty(to, behind);
    }
    b_.add_empty(behind, end);
    if (!once) b_.add_empty(b_.emit_text(behind, separator), begin);
    return end;
  }

  const JsonStyle& style_;
  GrammarBuilder& b_;
  int nesting_ = 0;
  std::deque<Json> kept_;
};

}  // namespace

Result<std::shared_ptr<const Grammar>> behind_reasoning(const Grammar& grammar, const ReasoningMarks& marks,
                                                        const GrammarLimits& limits) {
  GrammarBuilder builder(limits);
  const RuleId root = builder.add_rule();
  const RuleId held = builder.add_grammar(grammar);
  const StateId begin = builder.start(root), thought = builder.add_state(), end = builder.add_state();
  if (!marks.begin.empty()) builder.add_call(begin, held, end);
  TextUntil({marks.end}).emit(&builder, builder.emit_text(begin, marks.begin), {thought}, TextUntil::kNowhere);
  StateId blanks = thought;
  for (int breaks = 0; breaks <= 2; ++breaks) {
    builder.add_call(blanks, held, end);
    if (breaks < 2) blanks = builder.emit_text(blanks, "\n");
  }
  builder.end_rule(end);
  return builder.finish(root);
}

Result<std::shared_ptr<const Grammar>> compile_structural_tag(const Json& tag, const JsonStyle& style,
                                                              const GrammarLimits& limits) {
  if (!tag.is_object()) return Status::invalid_argument("a structural tag must be an object");
  GrammarBuilder builder(limits);
  TagCompiler compiler(style, &builder);
  const RuleId root = builder.add_rule();
  const bool structures = tag.contains("structures") && tag["structures"].is_array();
  const std::vector<std::string_view> members =
      structures ? std::vector<std::string_view>{"structures", "triggers"} : std::vector<std::string_view>{"format"};
  WW_RETURN_IF_ERROR(check_members(tag, "a structural tag", members));
  if (!structures && !tag.contains("format"))
    return Status::invalid_argument("a structural tag needs format, or structures and triggers");
  WW_ASSIGN_OR_RETURN(const StateId end, structures ? compiler.emit_structures(tag, builder.start(root))
                                                    : compiler.emit(tag["format"], builder.start(root)));
  builder.end_rule(end);
  return builder.finish(root);
}

}  // namespace warpweave::grammar
