// The formats of draft 2020-12 as expressions. Texts that only some validators take are left out.
#include "grammar/schema_document.h"

namespace warpweave::grammar {
namespace {

#define WW_LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,28}[A-Za-z0-9])?"
#define WW_HOST WW_LABEL "(?:\\." WW_LABEL "){0,7}"
#define WW_DATE                                                                                       \
  "(?:\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))" \
  "|(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
#define WW_TIME "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d+)?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define WW_CLOCK "T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S)"
#define WW_BYTE "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define WW_IPV4 WW_BYTE "(?:\\." WW_BYTE "){3}"
#define WW_HEX4 "[0-9a-fA-F]{1,4}"
#define WW_IPV6                                                                                              \
  "(?:(?:" WW_HEX4 ":){7}" WW_HEX4 "|(?:" WW_HEX4 ":){1,7}:|(?:" WW_HEX4 ":){1,6}:" WW_HEX4 "|(?:" WW_HEX4  \
  ":){1,5}(?::" WW_HEX4 "){1,2}|(?:" WW_HEX4 ":){1,4}(?::" WW_HEX4 "){1,3}|(?:" WW_HEX4 ":){1,3}(?::" WW_HEX4 \
  "){1,4}|(?:" WW_HEX4 ":){1,2}(?::" WW_HEX4 "){1,5}|" WW_HEX4 ":(?::" WW_HEX4 "){1,6}|:(?::" WW_HEX4       \
  "){1,7}|::)"
#define WW_PATH_CHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
#define WW_TAIL "(?:\\?(?:" WW_PATH_CHAR "|[/?])*)?(?:#(?:" WW_PATH_CHAR "|[/?])*)?"
#define WW_AUTHORITY "(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})+@)?(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+(?::\\d+)?"
#define WW_URI \
  "[A-Za-z][A-Za-z0-9+.-]*:(?://" WW_AUTHORITY "(?:/" WW_PATH_CHAR "*)*|" WW_PATH_CHAR "+(?:/" WW_PATH_CHAR "*)*)" WW_TAIL
#define WW_RELATIVE "/?(?:(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})+(?:/" WW_PATH_CHAR "*)*)?" WW_TAIL

struct Format {
  std::string_view name;
  std::string_view pattern;  // of the whole text; empty: an annotation
};
constexpr Format kFormats[] = {
    {"date", WW_DATE},
    {"time", WW_TIME},
    {"date-time", WW_DATE "T" WW_TIME},
    {"duration", "P(?:\\d+W|(?:\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?|\\d+D)(?:" WW_CLOCK ")?|" WW_CLOCK ")"},
    {"email", "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@" WW_HOST},
    {"idn-email", "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@" WW_HOST},
    {"hostname", WW_HOST},
    {"idn-hostname", WW_HOST},
    {"ipv4", WW_IPV4},
    {"ipv6", WW_IPV6},
    {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
    {"uri", WW_URI},
    {"iri", WW_URI},
    {"uri-reference", WW_URI "|" WW_RELATIVE},
    {"iri-reference", WW_URI "|" WW_RELATIVE},
    {"uri-template", WW_URI "|" WW_RELATIVE},
    {"json-pointer", "(?:/(?:[^~/]|~[01])*)*"},
    {"relative-json-pointer", "(?:0|[1-9]\\d{0,8})(?:#|(?:/(?:[^~/]|~[01])*)*)"},
    {"regex", "[A-Za-z0-9 _,:;=<>@#%&/!~-]*"},
    // Of drafts 3 and 4, and the usual short name of uri.
    {"url", WW_URI},
    {"ip-address", WW_IPV4},
    {"host-name", WW_HOST},
    {"color", "#(?:[0-9a-fA-F]{3}){1,2}"},
    // Of OpenAPI: they name how a value is stored, not which texts are valid.
    {"byte", ""}, {"binary", ""}, {"password", ""}, {"int32", ""}, {"int64", ""}, {"float", ""}, {"double", ""},
};

}  // namespace

Result<const CharDfa*> SchemaDocument::format(const std::string& name) {
  auto at = formats_.find(name);
  if (at == formats_.end()) {
    const auto known = std::find_if(std::begin(kFormats), std::end(kFormats), [&](const Format& f) { return f.name == name; });
    if (known == std::end(kFormats)) {
      return Status::unsupported("format \"" + name.substr(0, 100) + "\" is not known here; use pattern, or leave it out");
    }
    std::optional<CharDfa> dfa;
    if (!known->pattern.empty()) {
      WW_ASSIGN_OR_RETURN(const Regex regex, parse_regex(known->pattern, limits_));
      WW_ASSIGN_OR_RETURN(dfa, CharDfa::from_regex(regex, false, limits_, &dfa_work_));
    }
    at = formats_.emplace(name, std::move(dfa)).first;
  }
  const CharDfa* dfa = at->second ? &*at->second : nullptr;
  return dfa;
}

}  // namespace warpweave::grammar
