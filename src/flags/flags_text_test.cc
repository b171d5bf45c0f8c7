#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "flags/flag_table.h"
#include "flags/server_args.h"

namespace warpweave {
namespace {

TEST(FlagsText, CommittedDocumentIsTheTables) {
  std::ifstream file("docs/flags.md");
  ASSERT_TRUE(file.good()) << "docs/flags.md is missing: write it with `warpweave docs flags`";
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), flags_markdown()) << "renew it: warpweave docs flags > docs/flags.md";
}

TEST(FlagsText, HelpIsStaged) {
  const std::string common = flags_help(Command::serve, false);
  const std::string all = flags_help(Command::serve, true);
  EXPECT_NE(common.find("--model-path"), std::string::npos);
  EXPECT_EQ(common.find("--schedule-conservativeness"), std::string::npos);
  for (const FlagSpec& spec : flag_table()) {
    EXPECT_EQ(all.find(spec.names[0]) == std::string::npos, spec.explain_only || spec.run_only) << spec.names[0];
  }
}

TEST(FlagsText, JsonHidesKeys) {
  ServerArgs args;
  args.api_key = "very-secret";
  args.page_size = 16;
  const auto json = server_args_json(args);
  EXPECT_EQ(json.dump().find("very-secret"), std::string::npos);
  EXPECT_EQ(json["api_key"], true);
  EXPECT_EQ(json["admin_api_key"], false);
  EXPECT_EQ(json["page_size"], 16);
  EXPECT_EQ(json["port"], 30000);
  EXPECT_TRUE(json["max_total_tokens"].is_null());
}

}  // namespace
}  // namespace warpweave
