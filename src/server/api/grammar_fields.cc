#include "server/api/grammar_fields.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "server/api/limits.h"

namespace warpweave::server {
namespace {

using grammar::GrammarSpec;
using Kind = GrammarSpec::Kind;

constexpr size_t kMaxGrammarBytes = size_t{1} << 20;
constexpr size_t kMaxChoices = 4096;

struct Spelling {
  std::string_view name;
  Kind kind;
};
constexpr Spelling kNative[] = {{"json_schema", Kind::json_schema},
                                {"regex", Kind::regex},
                                {"ebnf", Kind::ebnf},
                                {"structural_tag", Kind::structural_tag}};
constexpr Spelling kOpenAi[] = {
    {"guided_json", Kind::json_schema}, {"guided_regex", Kind::regex}, {"guided_choice", Kind::choice},
    {"guided_grammar", Kind::ebnf}, {"guided_json_object", Kind::json_object}, {"json_schema", Kind::json_schema},
    {"regex", Kind::regex}, {"ebnf", Kind::ebnf}, {"structural_tag", Kind::structural_tag}};
constexpr Spelling kStructuredOutputs[] = {
    {"json", Kind::json_schema}, {"regex", Kind::regex}, {"choice", Kind::choice}, {"grammar", Kind::ebnf},
    {"json_object", Kind::json_object}, {"structural_tag", Kind::structural_tag}};

bool is_absent(const Json& value) {
  return value.is_null() || (value.is_boolean() && !value.get<bool>()) ||
         (value.is_string() && value.get_ref<const std::string&>().empty());
}

grammar::JsonStyle json_style(const ServerArgs& args) {
  grammar::JsonStyle style;
  style.any_whitespace = !args.constrained_json_disable_any_whitespace;
  return style;
}

// A request waits for its grammar while this lives.
class Compiling {
 public:
  explicit Compiling(ServerMetrics* metrics) : metrics_(metrics) {
    if (metrics_ != nullptr) metrics_->grammar_begins();
  }
  ~Compiling() {
    if (metrics_ != nullptr) metrics_->grammar_ends();
  }
  Compiling(const Compiling&) = delete;
  Compiling& operator=(const Compiling&) = delete;

 private:
  ServerMetrics* const metrics_;
};

Result<std::shared_ptr<const grammar::CompiledGrammar>> compile_spec(const GrammarContext& context,
                                                                     const std::string& field,
                                                                     const GrammarSpec& spec) {
  if (context.args.grammar_backend == "none") {
    return Status::unsupported(
        fmt::format("{} needs structured output, which --grammar-backend none turned off.", field), field);
  }
  if (context.compiler == nullptr) {
    return Status::unsupported(
        fmt::format("{} needs the tokenizer, and the server runs with --skip-tokenizer-init.", field), field);
  }
  const Compiling compiling(context.metrics);
  Result<std::shared_ptr<const grammar::CompiledGrammar>> compiled =
      context.budget != nullptr ? context.budget->compile(context.compiler, spec) : context.compiler->compile(spec);
  if (!compiled.ok()) {
    return Status(compiled.status().code(), fmt::format("{}: {}.", field, compiled.status().message()), field);
  }
  return compiled;
}

class GrammarReader {
 public:
  GrammarReader(const GrammarContext& context, SamplingParams* params)
      : context_(context), params_(*params), style_(json_style(context.args)) {}

  void read(FieldReader* reader, Dialect dialect) {
    if (dialect == Dialect::native) {
      for (const Spelling& spelling : kNative) read_field(reader, spelling);
    } else {
      for (const Spelling& spelling : kOpenAi) read_field(reader, spelling);
      read_structured_outputs(reader);
      read_response_format(reader);
      for (const char* name : {"guided_whitespace_pattern", "whitespace_pattern"}) {
        refuse_whitespace_pattern(reader, name);
      }
      std::string backend;  // another engine's name for who compiles: there is one here
      reader->get("guided_decoding_backend", TextLimit{256}, &backend);
    }
    if (reader->status().ok() && spec_) reader->fail(compile());
  }

 private:
  void refuse_whitespace_pattern(FieldReader* reader, const char* name) {
    const Json* value = reader->find(name);
    if (value == nullptr || is_absent(*value)) return;
    reader->fail(Status::unsupported(
        fmt::format(
            "{} is not supported: whitespace in JSON is a space or a line break, or none under "
            "--constrained-json-disable-any-whitespace.",
            reader->path(name)),
        reader->path(name)));
  }

  void read_field(FieldReader* reader, const Spelling& spelling) {
    const Json* value = reader->find(spelling.name);
    if (value == nullptr) return;
    // `false` is a schema, and no answer meets it; elsewhere it turns the field off.
    if (is_absent(*value) && !(value->is_boolean() && spelling.kind == Kind::json_schema)) return;
    take(reader, reader->path(spelling.name), spelling.kind, *value);
  }

  void take(FieldReader* reader, const std::string& field, Kind kind, const Json& value) {
    if (!reader->status().ok()) return;
    if (spec_) {
      return reader->fail(Status::invalid_argument(
          fmt::format("{} and {} are both given; an output can follow one grammar, send one of them.", field_, field),
          field));
    }
    field_ = field;
    spec_.emplace();
    spec_->kind = kind;
    spec_->style = style_;
    reader->fail(read_source(field, value, &*spec_));
  }

  static Status read_source(const std::string& field, const Json& value, GrammarSpec* spec) {
    switch (spec->kind) {
      case Kind::json_object:
        return value.is_boolean() ? Status() : wrong_type(field, "true or false", value);
      case Kind::regex:
      case Kind::ebnf: return read_string(value, field, kMaxGrammarBytes, &spec->source);
      case Kind::choice: {
        if (!value.is_array() || value.empty() || value.size() > kMaxChoices) {
          return wrong_type(field, fmt::format("a list of 1 to {} strings", kMaxChoices), value);
        }
        for (const Json& item : value) {
          if (!item.is_string()) return wrong_type(field, "a list of strings", item);
        }
        spec->source = value.dump();
        return {};
      }
      case Kind::json_schema:
      case Kind::structural_tag:
        if (value.is_string()) return read_string(value, field, kMaxGrammarBytes, &spec->source);
        if (!value.is_object() && !value.is_boolean()) return wrong_type(field, "an object, or its text", value);
        spec->source = value.dump();
        return {};
    }
    return {};
  }

  // {"json": {...}} and its relatives, with switches beside them.
  void read_structured_outputs(FieldReader* reader) {
    for (const char* name : {"structured_outputs", "structured_output"}) {
      const Json* object = reader->find(name);
      if (object == nullptr) continue;
      if (!object->is_object()) return reader->fail(wrong_type(reader->path(name), "an object", *object));
      FieldReader fields(*object, reader->path(name) + ".");
      bool compact = false, no_fallback = false, no_additional = false;
      fields.get("disable_any_whitespace", &compact);
      if (compact) style_.any_whitespace = false;
      fields.get("disable_fallback", &no_fallback);  // there is nothing to fall back to
      fields.get("disable_additional_properties", &no_additional);
      if (no_additional) {
        fields.fail(Status::unsupported(
            fmt::format(
                "{}.disable_additional_properties is not supported; write additionalProperties: false into the schema.",
                name),
            fields.path("disable_additional_properties")));
      }
      refuse_whitespace_pattern(&fields, "whitespace_pattern");
      for (const Spelling& spelling : kStructuredOutputs) read_field(&fields, spelling);
      for (const auto& [key, value] : object->items()) {
        const bool known = std::any_of(std::begin(kStructuredOutputs), std::end(kStructuredOutputs),
                                       [name = std::string_view(key)](const Spelling& s) { return s.name == name; });
        if (known || value.is_null() || key == "disable_any_whitespace" || key == "disable_fallback" ||
            key == "disable_additional_properties" || key == "whitespace_pattern" ||
            (key.starts_with('_') && value.is_string()) || context_.args.allow_unknown_fields) {
          continue;
        }
        fields.fail(Status::invalid_argument(
            fmt::format("{}.{} is not known; give json, regex, choice, grammar, json_object or structural_tag.", name,
                        key.substr(0, 60)),
            fields.path(key.substr(0, 60))));
      }
      reader->fail(fields.status());
    }
  }

  void read_response_format(FieldReader* reader) {
    const Json* format = reader->find("response_format");
    if (format == nullptr) return;
    if (!format->is_object()) return reader->fail(wrong_type("response_format", "an object", *format));
    FieldReader fields(*format, "response_format.");
    std::string type;
    if (!fields.get("type", TextLimit{256}, &type) && fields.status().ok()) {
      fields.fail(Status::invalid_argument(
          "response_format.type is missing; it must be text, json_object, json_schema or structural_tag.",
          "response_format.type"));
    }
    if (!fields.status().ok()) return reader->fail(fields.status());
    if (type == "structural_tag") return take(reader, "response_format", Kind::structural_tag, *format);
    if (type != "text" && type != "json_object" && type != "json_schema") {
      return reader->fail(Status::unsupported(
          fmt::format("response_format.type is \"{}\", but must be text, json_object, json_schema or structural_tag.",
                      type.substr(0, 60)),
          "response_format"));
    }
    const Json* schema = type == "text" ? nullptr : read_schema(&fields, type == "json_schema");
    if (!context_.args.allow_unknown_fields) fields.refuse_unknown();
    reader->fail(fields.status());
    if (type == "text" || !reader->status().ok()) return;
    if (schema != nullptr) return take(reader, "response_format.json_schema.schema", Kind::json_schema, *schema);
    if (type == "json_object") return take(reader, "response_format", Kind::json_object, Json(true));
    reader->fail(Status::invalid_argument(
        "response_format.json_schema.schema is missing; send {\"type\": \"json_schema\", \"json_schema\": {\"name\": "
        "\"...\", \"schema\": {...}}}.",
        "response_format"));
  }

  // Of OpenAI's wrapper, or beside the type as llama.cpp takes it; null where there is none.
  const Json* read_schema(FieldReader* format, bool wrapped) const {
    const Json* wrapper = wrapped ? format->find("json_schema") : nullptr;
    if (wrapper == nullptr) return format->find("schema");
    if (!wrapper->is_object()) return nullptr;
    FieldReader parts(*wrapper, "response_format.json_schema.");
    std::string text;
    bool strict = false;
    parts.get("name", TextLimit{kMaxTextBytes}, &text);
    parts.get("description", TextLimit{kMaxTextBytes}, &text);
    parts.get("strict", &strict);
    const Json* schema = parts.find("schema");
    if (!context_.args.allow_unknown_fields) parts.refuse_unknown();
    format->fail(parts.status());
    return schema;
  }

  Status compile() {
    WW_ASSIGN_OR_RETURN(params_.grammar, compile_spec(context_, field_, *spec_));
    return {};
  }

  const GrammarContext& context_;
  SamplingParams& params_;
  grammar::JsonStyle style_;
  std::string field_;
  std::optional<GrammarSpec> spec_;
};

}  // namespace

std::unique_ptr<grammar::GrammarCompiler> make_grammar_compiler(const Tokenizer* tokenizer,
                                                                std::vector<int32_t> end_ids) {
  if (tokenizer == nullptr) return nullptr;
  grammar::GrammarCompilerOptions options;
  options.make_vocabulary = [tokenizer, end_ids = std::move(end_ids)] {
    std::vector<std::string> tokens(tokenizer->vocab_size());
    for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
      if (!tokenizer->is_special(id)) tokens[id] = tokenizer->token_bytes(id);
    }
    return std::make_shared<const grammar::Vocabulary>(std::move(tokens), end_ids);
  };
  return std::make_unique<grammar::GrammarCompiler>(std::move(options));
}

void read_grammar(const GrammarContext& context, FieldReader* reader, Dialect dialect, SamplingParams* params) {
  GrammarReader(context, params).read(reader, dialect);
}

Result<std::shared_ptr<const grammar::CompiledGrammar>> compile_structural_tag(const GrammarContext& context,
                                                                               const std::string& field,
                                                                               const Json& tag) {
  return compile_spec(context, field, {Kind::structural_tag, tag.dump(), json_style(context.args)});
}

void refuse_misplaced_grammar(FieldReader* reader) {
  for (const Spelling& spelling : kNative) {
    const Json* value = reader->find(spelling.name);
    if (value == nullptr || is_absent(*value)) continue;
    const std::string field = reader->path(spelling.name);
    reader->fail(
        Status::invalid_argument(fmt::format("{} stands beside sampling_params; put it into them.", field), field));
  }
}

}  // namespace warpweave::server
