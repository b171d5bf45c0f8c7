// The formats of draft 2020-12 as expressions. Texts that only some validators take are left out.
#include <algorithm>
#include <map>
#include <mutex>

#include "grammar/schema_document.h"

namespace warpweave::grammar {
namespace {

#define WW_LABEL_30 "[A-Za-z0-9](?:[A-Za-z0-9-]{0,28}[A-Za-z0-9])?"
#define WW_LABEL_61 "[A-Za-z0-9](?:[A-Za-z0-9-]{0,59}[A-Za-z0-9])?"
#define WW_LABEL_63 "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
// Mailbox in RFC 5321, which bounds no label; of its address literals those of IPv4, of its local parts the dotted
// ones.
#define WW_MAIL_WORD "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
#define WW_MAIL_LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
#define WW_EMAIL \
  WW_MAIL_WORD "(?:\\." WW_MAIL_WORD ")*@(?:" WW_MAIL_LABEL "(?:\\." WW_MAIL_LABEL ")*|\\[" WW_IPV4 "\\])"
#define WW_DATE                                                                                       \
  "(?:\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))" \
  "|(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
#define WW_TIME "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d+)?(?:[Zz]|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
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

constexpr std::string_view kHost = "a host name";  // stands for host_pattern()

struct Format {
  std::string_view name;
  std::string_view pattern;  // of the whole text; empty: an annotation
};
constexpr Format kFormats[] = {
    {"date", WW_DATE},
    {"time", WW_TIME},
    {"date-time", WW_DATE "[Tt]" WW_TIME},
    {"duration", "P(?:\\d+W|(?:\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?|\\d+D)(?:" WW_CLOCK ")?|" WW_CLOCK ")"},
    {"email", WW_EMAIL},
    {"idn-email", WW_EMAIL},
    {"hostname", kHost},
    {"idn-hostname", kHost},
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
    {"host-name", kHost},
    {"color", "#(?:[0-9a-fA-F]{3}){1,2}"},
    // A Duration in the JSON of Google's APIs (protobuf).
    {"google-duration", "-?(?:0|[1-9]\\d{0,11})(?:\\.\\d{1,9})?s"},
    // Of OpenAPI: they name how a value is stored, not which texts are valid.
    {"byte", ""}, {"binary", ""}, {"password", ""}, {"int32", ""}, {"int64", ""}, {"float", ""}, {"double", ""},
};

// A host name has at most 253 characters, its labels at most 63. An automaton that counted both would have thousands of
// states; so labels are counted: 8 of at most 30 characters, where one of at most 61 counts for two, or 4 of any
// length.
std::string host_tail(int labels) {
  const auto followed = [](const char* label, std::string tail) {
    return tail.empty() ? std::string(label) : label + ("(?:\\." + tail) + ")?";
  };
  if (labels <= 0) return "";
  std::string tail = followed(WW_LABEL_30, host_tail(labels - 1));
  if (labels >= 2) tail = "(?:" + tail + "|" + followed(WW_LABEL_61, host_tail(labels - 2)) + ")";
  return tail;
}

std::string host_pattern() {
  return host_tail(8) + "|" WW_LABEL_63 "(?:\\." WW_LABEL_63 "){0,2}(?:\\." WW_LABEL_61 ")?";
}

// Formats are the same for every schema: each is made once, when a schema first names it. From any thread.
Result<const CharDfa*> automaton_of(const Format& format) {
  static std::mutex mutex;
  static std::map<std::string_view, CharDfa> made;
  const std::lock_guard lock(mutex);
  auto at = made.find(format.pattern);
  if (at == made.end()) {
    const GrammarLimits limits;
    WorkBudget work(limits.max_dfa_work);
    const std::string pattern = format.pattern == kHost ? host_pattern() : std::string(format.pattern);
    WW_ASSIGN_OR_RETURN(const Regex regex, parse_regex(pattern, limits));
    WW_ASSIGN_OR_RETURN(CharDfa dfa, CharDfa::from_regex(regex, false, limits, &work));
    at = made.emplace(format.pattern, std::move(dfa)).first;
  }
  return &at->second;
}

}  // namespace

Result<const CharDfa*> SchemaDocument::format(const std::string& name) {
  const auto known =
      std::find_if(std::begin(kFormats), std::end(kFormats), [&](const Format& f) { return f.name == name; });
  if (known == std::end(kFormats)) {
    return Status::unsupported("format \"" + name.substr(0, 100) +
                               "\" is not known here; use pattern, or leave it out");
  }
  if (known->pattern.empty()) return static_cast<const CharDfa*>(nullptr);
  return automaton_of(*known);
}

}  // namespace warpweave::grammar
