#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>

#include "flags/flag_table.h"
#include "flags/nearest_name.h"
#include "flags/server_args.h"

namespace warpweave {
namespace {

using Argv = std::vector<std::string>;

TEST(ParseFlags, DefaultsAreTheFieldsOwn) {
  const auto parsed = parse_flags(Command::serve, Argv{});
  ASSERT_TRUE(parsed.ok());
  const ServerArgs& args = parsed->args;
  EXPECT_EQ(args.host, "127.0.0.1");
  EXPECT_EQ(args.port, 30000);
  EXPECT_EQ(args.max_prefill_tokens, 16384);
  EXPECT_EQ(args.schedule_policy, "fcfs");
  EXPECT_EQ(args.stream_interval, 1);
  EXPECT_FALSE(args.chunked_prefill_size.has_value());
  EXPECT_TRUE(parsed->notices.empty());
}

TEST(ParseFlags, BothFormsAliasesAndTheLastOfTwo) {
  const auto parsed = parse_flags(
      Command::serve,
      Argv{"--model", "/m", "--port=8000", "--tp", "1", "--chunked-prefill-size", "-1", "--port",
           "9000", "--context-length", "32Ki", "--max-total-tokens=1.5M", "--enable-metrics",
           "--mem-fraction-static", "0.8", "--trust-remote-code", "--served-model-name=a=b"});
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->args.model_path, "/m");
  EXPECT_EQ(parsed->args.port, 9000);
  EXPECT_EQ(parsed->args.chunked_prefill_size, -1);
  EXPECT_EQ(parsed->args.context_length, 32768);
  EXPECT_EQ(parsed->args.max_total_tokens, 1500000);
  EXPECT_TRUE(parsed->args.enable_metrics);
  EXPECT_EQ(parsed->args.mem_fraction_static, 0.8);
  EXPECT_EQ(parsed->args.served_model_name, "a=b");
  ASSERT_EQ(parsed->notices.size(), 1u);
  EXPECT_NE(parsed->notices[0].find("--trust-remote-code"), std::string::npos);
}

TEST(ParseFlags, SomeFlagsTakeSeveralValues) {
  const auto parsed = parse_flags(Command::serve, Argv{"--lora-paths", "a=/x", "b=/y z", "--port", "8000",
                                                       "--lora-target-modules", "q_proj", "--lora-paths", "/c"});
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->args.lora_paths, "a=/x\nb=/y z\n/c");
  EXPECT_EQ(parsed->args.lora_target_modules, "q_proj");
  EXPECT_EQ(parsed->args.port, 8000);
  EXPECT_TRUE(parsed->args.wants_lora());
  const auto sizes = parse_flags(Command::serve, Argv{"--cuda-graph-bs", "1", "8", "64", "--port", "8000"});
  ASSERT_TRUE(sizes.ok()) << sizes.status().message();
  EXPECT_EQ(sizes->args.cuda_graph_bs, "1\n8\n64");
  for (const Argv& argv : {Argv{"--lora-paths"}, Argv{"--lora-paths", "--port", "8000"}, Argv{"--lora-paths", ""}}) {
    const auto refused = parse_flags(Command::serve, argv);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().field(), "--lora-paths") << refused.status().message();
  }
}

// Every flag of SGLang 0.5.10 and 0.5.23, and of vLLM (tests/golden/flags, from their argument parsers; vLLM's engine
// of 0.11, its server of 2026): taken, or refused with what to use. None is unknown.
TEST(ParseFlags, KnowsEveryFlagOfOtherServers) {
  std::set<std::string> done;  // the lists have most names in common
  for (const auto& [version, least] :
       std::map<std::string, size_t>{{"sglang-0.5.10", 360}, {"sglang-0.5.23", 360}, {"vllm", 200}}) {
    std::ifstream names("tests/golden/flags/" + version + ".txt");
    size_t count = 0;
    for (std::string name; std::getline(names, name); ++count) {
      if (find_flag(name) != nullptr || !done.insert(name).second) continue;
      const KnownFlag* known = find_known_flag(name);
      ASSERT_NE(known, nullptr) << name;
      EXPECT_FALSE(known->advice.empty()) << name;
      Argv argv{name};
      if (!known->is_switch) argv.emplace_back("x");
      const auto parsed = parse_flags(Command::serve, argv);
      if (known->accepted == "on") {
        EXPECT_TRUE(parsed.ok()) << name;
      } else {
        ASSERT_FALSE(parsed.ok()) << name;
        EXPECT_EQ(parsed.status().field(), name);
      }
    }
    EXPECT_GT(count, least) << version;
  }
}

struct Refusal {
  Argv argv;
  StatusCode code;
  std::string field;
  std::string says;  // part of the message
};

TEST(ParseFlags, RefusesWithFlagValueRuleAndFix) {
  using enum StatusCode;
  const std::vector<Refusal> cases = {
      {{"--port", "70000"}, invalid_argument, "--port",
       "between 0 and 65535; try: warpweave serve --port 65535"},
      {{"--port", "-1"}, invalid_argument, "--port", "--port 0"},
      {{"--port", "abc"}, invalid_argument, "--port", "whole number"},
      {{"--port", "1e400"}, invalid_argument, "--port", "whole number"},
      {{"--port", "nan"}, invalid_argument, "--port", "whole number"},
      {{"--port="}, invalid_argument, "--port", "--port"},
      {{"--port"}, invalid_argument, "--port", "needs a value"},
      {{"--model-path", "--port", "3"}, invalid_argument, "--model-path", "needs a value"},
      {{"--page-size", "0"}, invalid_argument, "--page-size", "--page-size 1"},
      {{"--context-length", "1"}, invalid_argument, "--context-length", "--context-length 2"},  // a token and its answer
      {{"--page-size", "1.5"}, invalid_argument, "--page-size", "whole number"},
      {{"--mem-fraction-static", "inf"}, invalid_argument, "--mem-fraction-static", "between"},
      {{"--swa-full-tokens-ratio", "0"}, invalid_argument, "--swa-full-tokens-ratio", "between 0.0001 and 1"},
      {{"--swa-full-tokens-ratio", "1.01"}, invalid_argument, "--swa-full-tokens-ratio", "between 0.0001 and 1"},
      {{"--random-seed", "99999999999999999999"}, invalid_argument, "--random-seed", "whole"},
      {{"--dtype", "float61"}, invalid_argument, "--dtype", "try: warpweave serve --dtype float16"},
      {{"--schedule-policy", "dfs-weight"}, invalid_argument, "--schedule-policy", "fcfs, lpm"},
      {{"--chunked-prefill-size", "0"}, invalid_argument, "--chunked-prefill-size", "-1"},
      {{"--api-key", ""}, invalid_argument, "--api-key", "empty"},
      {{"--enable-metrics=maybe"}, invalid_argument, "--enable-metrics", "no value"},
      {{"--prot", "1"}, invalid_argument, "--prot", "did you mean --port?"},
      {{"--max-running"}, invalid_argument, "--max-running", "--max-running-requests"},
      {{"--zzzzzzzzzz"}, invalid_argument, "--zzzzzzzzzz", "unknown flag"},
      {{"model"}, invalid_argument, "model", "--model-path model"},
      {{"--tp-size", "2"}, unsupported, "--tp-size", "--tp-size 1"},
      {{"--device", "tpu"}, invalid_argument, "--device", "auto, cpu and cuda"},
      {{"--dp-size", "2"}, unsupported, "--dp-size", "only --dp-size 1 works"},
      {{"--quantization", "awq"}, unsupported, "--quantization", "--quantization fp8"},
      {{"--moe-runner-backend", "triton"}, unsupported, "--moe-runner-backend", "Triton compiler"},
      {{"--moe-runner-backend", "aiter"}, unsupported, "--moe-runner-backend", "AMD GPU"},
      {{"--moe-runner-backend", "marlin"}, unsupported, "--moe-runner-backend", "--moe-runner-backend auto"},
      {{"--moe-runner-backend", "trtion"}, invalid_argument, "--moe-runner-backend", "auto, warpweave"},
      {{"--enable-torch-compile"}, unsupported, "--enable-torch-compile", "known, not supported"},
      {{"--quantization", "fp7"}, invalid_argument, "--quantization", "must be one of fp8"},
      {{"--kv-cache-dtype", "nvfp4"}, unsupported, "--kv-cache-dtype", "fp4_e2m1"},
      {{"--json"}, unsupported, "--json", "explain"},
      {{"--hardware", "h200"}, unsupported, "--hardware", "explain"},
  };
  for (const Refusal& c : cases) {
    const auto parsed = parse_flags(Command::serve, c.argv);
    ASSERT_FALSE(parsed.ok()) << c.argv[0];
    EXPECT_EQ(parsed.status().code(), c.code) << parsed.status().message();
    EXPECT_EQ(parsed.status().field(), c.field) << parsed.status().message();
    EXPECT_NE(parsed.status().message().find(c.says), std::string::npos)
        << parsed.status().message();
  }
}

TEST(ParseFlags, TheExpertsRunWithAutoAndByName) {
  EXPECT_EQ(parse_flags(Command::serve, Argv{})->args.moe_runner_backend, "auto");
  for (const char* name : {"auto", "warpweave"}) {
    const auto parsed = parse_flags(Command::serve, Argv{"--moe-runner-backend", name});
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_EQ(parsed->args.moe_runner_backend, name);
  }
}

TEST(ParseFlags, AcceptsTheDefaultsOfOtherSetupsAndSaysSo) {
  const auto parsed = parse_flags(
      Command::serve, Argv{"--dp-size", "1", "--disable-custom-all-reduce", "--nnodes=1"});
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->notices.size(), 3u);
}

TEST(ParseFlags, ExplainTakesHardwareAndSpeculation) {
  const auto parsed = parse_flags(
      Command::explain, Argv{"--hardware", "h200", "--tp", "8", "--speculative-algorithm", "EAGLE",
                             "--speculative-eagle-topk", "4", "--json"});
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->args.hardware, "h200");
  EXPECT_EQ(parsed->args.speculative_eagle_topk, 4);
  EXPECT_TRUE(parsed->args.json);
}

TEST(ParseFlags, HelpWinsOverErrors) {
  const auto parsed = parse_flags(Command::serve, Argv{"--help", "--nonsense"});
  ASSERT_TRUE(parsed.ok());
  EXPECT_TRUE(parsed->help);
}

TEST(FlagTable, EveryNameIsUniqueAndNotBothOursAndRefused) {
  std::set<std::string_view> names;
  for (const FlagSpec& spec : flag_table()) {
    EXPECT_FALSE(spec.help.empty()) << spec.names[0];
    EXPECT_EQ(spec.value_name.empty(), std::holds_alternative<bool ServerArgs::*>(spec.target))
        << spec.names[0];
    for (std::string_view name : spec.names) EXPECT_TRUE(names.insert(name).second) << name;
  }
  for (const KnownFlag& flag : known_flags()) EXPECT_TRUE(names.insert(flag.name).second) << flag.name;
}

TEST(NearestName, CountsSwapsAsOne) {
  EXPECT_EQ(edit_distance("prot", "port"), 1);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("same", "same"), 0);
}

}  // namespace
}  // namespace warpweave
