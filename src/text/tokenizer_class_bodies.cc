#include "text/tokenizer_class_bodies.h"

#include <cctype>
#include <utility>

#include "text/tokenizer_unicode.h"

namespace warpweave {

std::string hex_escape(char32_t c) {
  static const char* const digits = "0123456789ABCDEF";
  std::string hex;
  do {
    hex.insert(hex.begin(), digits[c & 15]);
    c >>= 4;
  } while (c != 0);
  return "\\x{" + hex + "}";
}

std::string category_body(std::string_view category) {
  std::string body = "\\p{" + std::string(category) + "}";
  for (const UnicodeAddition& added : unicode_additions(category)) {
    body += hex_escape(added.first) + "-" + hex_escape(added.last);
  }
  return body;
}

std::string word_body() {
  return "\\p{Alphabetic}" + category_body("L") + category_body("M") + category_body("Nd") +
         "\\p{Pc}";
}

std::string lone_word_body() { return word_body() + R"(\xB2\xB3\xB9\xBC-\xBE)"; }

// Alphabetic of Unicode 16: the marks that Unicode 14 does not count among it are listed.
std::string alphabetic_body() {
  return "\\p{Alphabetic}" + category_body("L") +
         R"(\x{363}-\x{36F}\x{C04}\x{F82}\x{F83}\x{1DD3}-\x{1DE6}\x{11080}\x{11081})"
         R"(\x{897}\x{CF3}\x{10D69}\x{10EFC}\x{11241}\x{113B8}-\x{113C0}\x{113C2}\x{113C5})"
         R"(\x{113C7}-\x{113CA}\x{113CC}-\x{113CD}\x{11F00}-\x{11F01}\x{11F03})"
         R"(\x{11F34}-\x{11F3A}\x{11F3E}-\x{11F40}\x{1611E}-\x{1612E}\x{1E08F})";
}

std::string loose_name(std::string_view name) {
  std::string loose;
  for (char c : name) {
    if (c != ' ' && c != '_' && c != '-') {
      loose += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  return loose;
}

std::string general_category(const std::string& loose) {
  static constexpr std::pair<std::string_view, std::string_view> kLongNames[] = {
      {"letter", "L"},           {"uppercaseletter", "Lu"},  {"lowercaseletter", "Ll"},
      {"titlecaseletter", "Lt"}, {"modifierletter", "Lm"},   {"otherletter", "Lo"},
      {"mark", "M"},             {"nonspacingmark", "Mn"},   {"spacingmark", "Mc"},
      {"enclosingmark", "Me"},   {"number", "N"},            {"decimalnumber", "Nd"},
      {"letternumber", "Nl"},    {"othernumber", "No"},      {"punctuation", "P"},
      {"symbol", "S"},           {"mathsymbol", "Sm"},       {"currencysymbol", "Sc"},
      {"modifiersymbol", "Sk"},  {"othersymbol", "So"},      {"separator", "Z"},
      {"spaceseparator", "Zs"},  {"lineseparator", "Zl"},    {"paragraphseparator", "Zp"},
      {"other", "C"},            {"control", "Cc"},          {"format", "Cf"},
  };
  for (const auto& [long_name, short_name] : kLongNames) {
    if (loose == long_name) return std::string(short_name);
  }
  static constexpr std::string_view kShortNames =
      " c cc cf cn co cs l ll lm lo lt lu m mc me mn n nd nl no p pc pd pe pf pi po ps "
      "s sc sk sm so z zl zp zs ";
  if (loose.empty() || kShortNames.find(" " + loose + " ") == std::string_view::npos) return {};
  std::string category = loose;
  category[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(category[0])));
  return category;
}

}  // namespace warpweave
