// The post-processors of tokenizer.json.
#include "text/tokenizer_json_parts.h"

namespace warpweave::tokenizer_json {
namespace {

// The ids of a special token that a template names.
Status template_ids(const object& node, std::string_view name, std::vector<int32_t>* ids) {
  object specials;
  if (node["special_tokens"].get(specials) == simdjson::SUCCESS) {
    for (const auto& [key, value] : specials) {
      array listed;
      if (key != name || value["ids"].get(listed) != simdjson::SUCCESS) continue;
      for (element item : listed) {
        WW_RETURN_IF_ERROR(get_id(item, &ids->emplace_back()));
      }
      return {};
    }
  }
  return broken("the template names \"" + std::string(name.substr(0, 60)) +
                    "\", which special_tokens lacks",
                "special_tokens");
}

Status read_template(const object& node, std::vector<int32_t>* before,
                     std::vector<int32_t>* after) {
  int sequences = 0;
  WW_RETURN_IF_ERROR(for_each(node, "single", [&](const object& item) -> Status {
    std::string_view name;
    if (item["Sequence"]["id"].get(name) == simdjson::SUCCESS && name == "A") {
      ++sequences;
      return {};
    }
    if (item["SpecialToken"]["id"].get(name) == simdjson::SUCCESS) {
      return template_ids(node, name, sequences == 0 ? before : after);
    }
    return broken("a template may hold Sequence A and SpecialToken", "single");
  }));
  if (sequences != 1) return broken("a template must hold Sequence A once", "single");
  return {};
}

// How two texts are joined; their tokens' types are in the template, too.
Status read_pair(const object& node, std::vector<PairPart>* out) {
  return for_each(node, "pair", [&](const object& item) -> Status {
    PairPart& part = out->emplace_back();
    std::string_view name;
    uint64_t type = 0;
    const bool special = item["SpecialToken"]["id"].get(name) == simdjson::SUCCESS;
    if (special) {
      WW_RETURN_IF_ERROR(template_ids(node, name, &part.ids));
    } else if (item["Sequence"]["id"].get(name) == simdjson::SUCCESS && (name == "A" || name == "B")) {
      part.text = name == "A" ? PairPart::Text::first : PairPart::Text::second;
    } else {
      return broken("a template may hold Sequence A, Sequence B and SpecialToken", "pair");
    }
    const auto told = special ? item["SpecialToken"]["type_id"].get(type) : item["Sequence"]["type_id"].get(type);
    if (told == simdjson::SUCCESS) part.of_second = type > 0;
    return {};
  });
}

// [CLS] A [SEP] B [SEP], and RoBERTa's <s> A </s></s> B </s>.
std::vector<PairPart> fixed_pair(int32_t cls, int32_t sep, bool roberta) {
  using Text = PairPart::Text;
  std::vector<int32_t> between(roberta ? 2 : 1, sep);
  const bool types = !roberta;
  return {{.ids = {cls}}, {.text = Text::first, .ids = {}}, {.ids = std::move(between)},
          {.text = Text::second, .ids = {}, .of_second = types}, {.ids = {sep}, .of_second = types}};
}

}  // namespace

Status read_post_processor(const object& node, int depth, TokenizerSpec* spec) {
  const std::string type = type_of(node);
  if (type == "ByteLevel") return {};  // only about offsets
  if (type == "Sequence" && depth < kMaxDepth) {
    return for_each(node, "processors", [&](const object& child) {
      return read_post_processor(child, depth + 1, spec);
    });
  }
  std::vector<int32_t> before, after;
  if (type == "TemplateProcessing") {
    WW_RETURN_IF_ERROR(read_template(node, &before, &after));
    spec->pair.clear();
    WW_RETURN_IF_ERROR(read_pair(node, &spec->pair));
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    element first, last;
    if (node["cls"].at(1).get(first) != simdjson::SUCCESS ||
        node["sep"].at(1).get(last) != simdjson::SUCCESS) {
      return broken(type + " needs cls and sep", "post_processor");
    }
    WW_RETURN_IF_ERROR(get_id(first, &before.emplace_back()));
    WW_RETURN_IF_ERROR(get_id(last, &after.emplace_back()));
    spec->pair = fixed_pair(before[0], after[0], type == "RobertaProcessing");
  } else {
    return unknown_type("post_processor", type);
  }
  spec->ids_before.insert(spec->ids_before.begin(), before.begin(), before.end());
  spec->ids_after.insert(spec->ids_after.end(), after.begin(), after.end());
  return {};
}

}  // namespace warpweave::tokenizer_json
