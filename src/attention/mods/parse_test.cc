// The language: meaning of every construct against plain C++, messages with their column, bounds,
// and every example of docs/flex-attention.md.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <sstream>

#include "attention/mods/bounds.h"
#include "attention/mods/evaluate.h"
#include "attention/mods/parse.h"

namespace warpweave::mods {
namespace {

bool masked(const std::string& text, const Cell& cell) {
  const auto mask = parse_mask_modifier(text);
  EXPECT_TRUE(mask.ok()) << text << ": " << mask.status().message();
  return mask.ok() && evaluate(*mask, cell).integer == 1;
}

double scored(const std::string& text, const Cell& cell) {
  const auto score = parse_score_modifier(text);
  EXPECT_TRUE(score.ok()) << text << ": " << score.status().message();
  return score.ok() ? evaluate(*score, cell).real : NAN;
}

TEST(Mods, NamedMasksMeanWhatTheirNamesSay) {
  struct Named {
    const char* text;
    std::function<bool(int q, int kv)> visible;
  };
  const Named kNamed[] = {
      {"causal", [](int q, int kv) { return kv <= q; }},
      {"window(5)", [](int q, int kv) { return kv <= q && kv > q - 5; }},
      {"chunked(8)", [](int q, int kv) { return kv <= q && kv >= q - q % 8; }},
      {"prefix_lm(6)", [](int q, int kv) { return kv <= q || kv < 6; }},
      {"document(4, 9)", [](int q, int kv) {
         const auto id = [](int p) { return p < 4 ? 0 : p < 9 ? 1 : 2; };
         return id(q) == id(kv);
       }},
      {"causal && document(4, 9)", [](int q, int kv) {
         return kv <= q && (q < 4 || (q < 9 && kv >= 4) || kv >= 9);
       }},
      {"causal || true", [](int, int) { return true; }},
      {"!causal", [](int q, int kv) { return kv > q; }},
      {"(q_idx - kv_idx) % 3 == 0", [](int q, int kv) { return std::abs(q - kv) % 3 == 0; }},
      {"q_idx < 4 ? kv_idx == 0 : kv_idx >= 4", [](int q, int kv) { return q < 4 ? kv == 0 : kv >= 4; }},
  };
  for (const Named& named : kNamed) {
    for (int q = 0; q < 20; ++q) {
      for (int kv = 0; kv < 20; ++kv) {
        ASSERT_EQ(masked(named.text, {.q_idx = q, .kv_idx = kv}), named.visible(q, kv))
            << named.text << " q " << q << " kv " << kv;
      }
    }
  }
}

TEST(Mods, ScoresAreComputed) {
  const Cell cell = {.q_idx = 9, .kv_idx = 4, .request = 2, .head = 3, .q_len = 5, .kv_len = 10,
                     .num_heads = 8, .head_dim = 64, .score = 1.5};
  EXPECT_DOUBLE_EQ(scored("score", cell), 1.5);
  EXPECT_DOUBLE_EQ(scored("softcap(20)", cell), 20 * std::tanh(1.5 / 20));
  EXPECT_DOUBLE_EQ(scored("alibi", cell), 1.5 + std::exp2(-4.0) * (4 - 9));
  EXPECT_DOUBLE_EQ(scored("softcap(30, alibi)", cell), 30 * std::tanh((1.5 - 5.0 / 16) / 30));
  EXPECT_DOUBLE_EQ(scored("score * 2 + b - h + q_len * kv_len + head_dim / 3", cell), 3 + 2 - 3 + 50 + 21);
  EXPECT_DOUBLE_EQ(scored("-7 / 2", cell), -4);       // rounds down
  EXPECT_DOUBLE_EQ(scored("-7 % 4", cell), 1);        // the divisor's sign
  EXPECT_DOUBLE_EQ(scored("kv_idx / 3.0", cell), 4 / 3.0);
  EXPECT_DOUBLE_EQ(scored("10 % (kv_idx - 4)", cell), 0);
  EXPECT_DOUBLE_EQ(scored("min(3, score, 2) + max(1, 2) + abs(-3)", cell), 1.5 + 2 + 3);
  EXPECT_DOUBLE_EQ(scored("exp(log(2.5)) + sqrt(4) + tanh(0)", cell), 4.5);
  EXPECT_DOUBLE_EQ(scored("int(q_idx > kv_idx) + float(3)", cell), 4);
  EXPECT_DOUBLE_EQ(scored("1 + 2 * 3 - 8 / 2 / 2", cell), 5);
  EXPECT_DOUBLE_EQ(scored("2147483647 + 1", cell), -2147483648.0);  // wraps
  EXPECT_DOUBLE_EQ(scored(".5e1 + 1.", cell), 6);
}

TEST(Mods, AlibiSlopesOfAnyHeadCount) {
  // 12 heads: the 8 slopes of 8 heads, then every other slope of 16.
  for (int h = 0; h < 12; ++h) {
    const double want = h < 8 ? std::pow(2, -(h + 1)) : std::pow(2, -0.5 * (2 * (h - 8) + 1));
    EXPECT_NEAR(scored("alibi_slope(h)", {.head = h, .num_heads = 12}), want, 1e-15);
  }
}

TEST(Mods, ParametersAreNumbersByName) {
  const auto parameters = parse_parameters("slope=-0.5, width = 3");
  ASSERT_TRUE(parameters.ok()) << parameters.status().message();
  const auto score = parse_score_modifier("score + slope * (kv_idx % width)", *parameters);
  ASSERT_TRUE(score.ok()) << score.status().message();
  EXPECT_DOUBLE_EQ(evaluate(*score, {.kv_idx = 5, .score = 1}).real, 0);
  EXPECT_TRUE(parse_parameters("")->empty());
  const auto both = parse_modifiers({.score = "score * s", .mask = "window(w)", .parameters = "s=2.0,w=4"});
  EXPECT_TRUE(both.ok());
  EXPECT_TRUE(parse_modifiers({})->empty());
}

TEST(Mods, ErrorsSayWhereAndWhy) {
  struct Wrong {
    const char* text;
    const char* message;  // a part of it
  };
  const Wrong kMasks[] = {
      {"", "column 1: expected a number, a name or '(', got the end"},
      {"causal &&", "column 10: expected a number"},
      {"causal & causal", "column 8: '&': write && for and"},
      {"(causal", "column 8: expected ')', got the end"},
      {"causal)", "column 7: expected an operator or the end, got ')'"},
      {"q_idx", "column 1: the result must be a condition"},
      {"q_idx + causal < 3", "column 7: '+' has an integer on one side and a condition on the other"},
      {"0 < q_idx < 5", "column 11: comparisons do not chain"},
      {"caussal", "column 1: unknown name 'caussal'; known: q_idx"},
      {"windo(3)", "column 1: unknown function 'windo'"},
      {"window", "column 1: 'window' takes arguments: window(n)"},
      {"window(1, 2)", "column 1: window(n) got 2 arguments"},
      {"causal && window(1.5)", "window(n) takes integers, not a real number"},
      {"document(9, 4)", "takes ascending positive constants"},
      {"score > 0", "'score' is for the score modifier"},
      {"alibi > 0", "it belongs in the score modifier"},
      {"q_idx / 0 == 1", "column 7: division by zero"},
      {"q_idx % 2.0 == 1", "column 7: '%' takes integers"},
      {"!q_idx == 1", "column 1: '!' takes a condition here, not an integer"},
      {"q_idx ? causal : causal", "column 7: '?' takes a condition here"},
      {"causal ? 1 : causal", "column 8: '?:' has an integer on one side"},
      {"causal < causal", "column 8: '<' compares numbers"},
      {"q_idx < 99999999999", "column 9: '99999999999': integers go up to 2147483647"},
      {"q_idx < 1e99", "column 9: '1e99': real numbers go up to"},
      {"q_idx \x01 3", "column 7: byte 1: unknown character"},
  };
  for (const Wrong& wrong : kMasks) {
    const auto mask = parse_mask_modifier(wrong.text);
    ASSERT_FALSE(mask.ok()) << wrong.text;
    EXPECT_NE(mask.status().message().find(wrong.message), std::string::npos)
        << wrong.text << " -> " << mask.status().message();
    EXPECT_EQ(mask.status().message().find("mask modifier, column "), 0u);
  }
  EXPECT_FALSE(parse_score_modifier("causal").ok());
  EXPECT_FALSE(parse_score_modifier("score + causal").ok());
  for (const char* text : {"1=2", "a", "a=", "a=b", "a=1,", "a=1 b=2", "q_idx=1", "a=1,a=2", "tanh=1"}) {
    EXPECT_FALSE(parse_parameters(text).ok()) << text;
  }
}

TEST(Mods, BoundsOfTextDepthAndSize) {
  EXPECT_TRUE(parse_mask_modifier(std::string(60, '(') + "causal" + std::string(60, ')')).ok());
  const auto deep = parse_mask_modifier(std::string(5000, '('));
  ASSERT_FALSE(deep.ok());
  EXPECT_NE(deep.status().message().find("nested deeper"), std::string::npos);
  EXPECT_FALSE(parse_mask_modifier(std::string(5000, '!') + "causal").ok());
  EXPECT_FALSE(parse_mask_modifier(std::string(9000, ' ') + "causal").ok());
  std::string wide = "causal";
  for (int i = 0; i < 600; ++i) wide += "||kv_idx==" + std::to_string(i);
  const auto many = parse_mask_modifier(wide);
  ASSERT_FALSE(many.ok());
  EXPECT_NE(many.status().message().find("more than 1024 operations"), std::string::npos);
}

TEST(Mods, EqualPartsAreShared) {
  const auto once = parse_score_modifier("tanh(score * q_idx)");
  const auto twice = parse_score_modifier("tanh(score * q_idx) + tanh(score * q_idx)");
  EXPECT_EQ(twice->nodes.size(), once->nodes.size() + 1);
  EXPECT_EQ(parse_score_modifier("(3 + 4) * 2")->nodes.size(), 1u);
}

struct DocExample { std::string kind, text; };

// The lines of ```mask and ```score blocks.
std::vector<DocExample> doc_examples(std::istream& doc) {
  std::vector<DocExample> examples;
  std::string line, kind;
  while (std::getline(doc, line)) {
    if (line.starts_with("```")) {
      kind = kind.empty() ? line.substr(3) : "";
      if (kind.empty()) continue;
    } else if (kind == "mask" || kind == "score") {
      examples.push_back({kind, line});
    }
  }
  return examples;
}

TEST(Mods, ExamplesOfTheDocumentation) {
  std::ifstream doc("docs/flex-attention.md");
  ASSERT_TRUE(doc.good());
  const auto parameters = parse_parameters("slope=0.1, width=1024, sink=4");
  const std::vector<DocExample> examples = doc_examples(doc);
  EXPECT_GE(examples.size(), 10u);
  for (const DocExample& example : examples) {
    const auto parsed = example.kind == "mask" ? parse_mask_modifier(example.text, *parameters)
                                               : parse_score_modifier(example.text, *parameters);
    EXPECT_TRUE(parsed.ok()) << example.text << ": " << parsed.status().message();
  }
}

// Rows "| `expression` | `q_idx=5 kv_idx=3` | value |" of the documentation.
TEST(Mods, ValuesOfTheDocumentation) {
  std::ifstream doc("docs/flex-attention.md");
  std::string line;
  int rows = 0;
  while (std::getline(doc, line)) {
    if (!line.starts_with("| `")) continue;
    std::vector<std::string> columns;
    std::stringstream split(line.substr(1));
    for (std::string column; std::getline(split, column, '|');) {
      const size_t first = column.find_first_not_of(" `"), last = column.find_last_not_of(" `");
      columns.push_back(first == std::string::npos ? "" : column.substr(first, last - first + 1));
    }
    if (columns.size() != 3 || columns[1].find('=') == std::string::npos) continue;
    Cell cell{.num_heads = 8, .head_dim = 64};
    std::stringstream settings(columns[1]);
    for (std::string setting; settings >> setting;) {
      const size_t equals = setting.find('=');
      const std::string name = setting.substr(0, equals);
      const double value = std::stod(setting.substr(equals + 1));
      if (name == "score") cell.score = value;
      else if (name == "q_idx") cell.q_idx = static_cast<int>(value);
      else if (name == "kv_idx") cell.kv_idx = static_cast<int>(value);
      else if (name == "h") cell.head = static_cast<int>(value);
      else FAIL() << "unknown variable in " << line;
    }
    if (columns[2] == "true" || columns[2] == "false") {
      EXPECT_EQ(masked(columns[0], cell), columns[2] == "true") << line;
    } else {
      EXPECT_NEAR(scored(columns[0], cell), std::stod(columns[2]), 1e-4) << line;
    }
    ++rows;
  }
  EXPECT_GE(rows, 6);
}

}  // namespace
}  // namespace warpweave::mods
