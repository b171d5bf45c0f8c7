// The example plug-in passes; every plug-in with one thing wrong is refused with words that name
// it.
#include "conformance/plugin_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <ostream>

#include "attention/plugin.h"
#include "attention/registry.h"
#include "base/testing/temporary_folder.h"
#include "conformance/suite.h"

namespace warpweave::conformance {
namespace {

std::string file_of(const std::string& name) {
  return std::string(WW_PLUGIN_DIR) + "/" + name + ".so";
}

TEST(Plugin, ExamplePassesAndClaimsAreTested) {
  const Result<const Caps*> caps = load_checked_plugin(file_of("online_softmax"));
  ASSERT_TRUE(caps.ok()) << caps.status().message();
  EXPECT_EQ((*caps)->name, "online_softmax");
  EXPECT_TRUE((*caps)->sinks && (*caps)->sliding_window && (*caps)->softcap &&
              (*caps)->deterministic);
  EXPECT_FALSE((*caps)->custom_mask || (*caps)->non_causal || (*caps)->graph_capture);
  EXPECT_TRUE((*caps)->page_sizes.accepts(53));
  EXPECT_FALSE((*caps)->head_dims.accepts(513));
  const auto known = known_backends();
  EXPECT_TRUE(std::any_of(known.begin(), known.end(),
                          [&](const KnownBackend& b) { return b.caps == *caps; }));

  const Result<const Caps*> again = load_attention_plugin(file_of("online_softmax"));
  ASSERT_FALSE(again.ok());
  EXPECT_NE(again.status().message().find("there already"), std::string::npos)
      << again.status().message();
}

struct Mutant {
  const char* name;
  StatusCode code;
  const char* text;
};
void PrintTo(const Mutant& mutant, std::ostream* out) { *out << mutant.name; }

class PluginMutant : public testing::TestWithParam<Mutant> {};

TEST_P(PluginMutant, IsRefused) {
  const Mutant& mutant = GetParam();
  const Result<const Caps*> caps = load_checked_plugin(file_of(mutant.name));
  ASSERT_FALSE(caps.ok());
  EXPECT_EQ(caps.status().code(), mutant.code) << caps.status().message();
  EXPECT_NE(caps.status().message().find(mutant.text), std::string::npos)
      << caps.status().message();
  EXPECT_NE(caps.status().message().find(mutant.name), std::string::npos) << "the file is named";
}

constexpr StatusCode kBadTable = StatusCode::invalid_argument,
                     kUnsupported = StatusCode::unsupported;
INSTANTIATE_TEST_SUITE_P(
    All, PluginMutant,
    testing::Values(
        Mutant{"no_such_file", StatusCode::not_found, "there is no such file"},
        Mutant{"no_symbol", StatusCode::data_loss, "exports no function ww_attention_plugin"},
        Mutant{"VERSION", kUnsupported, "was built for ABI version 3, this program has version 2"},
        Mutant{"OLD_VERSION", kUnsupported, "in which forward_extend and forward_decode return a status"},
        Mutant{"NO_TABLE", kUnsupported, "no backend for ABI version 2"},
        Mutant{"KINDLESS", kBadTable, "caps.kinds is 0"},
        Mutant{"UNKNOWN_KIND", kBadTable, "caps.kinds is 0x11"},
        Mutant{"ONLY_MLA", kUnsupported, "this program calls plug-ins for MHA"},
        Mutant{"TWO_DEVICES", kUnsupported, "claims the devices 0x3"},
        Mutant{"ONLY_NPU", kUnsupported, "claims the devices 0x8"},
        Mutant{"RIGHT_WINDOW", kUnsupported, "caps.right_window"},
        Mutant{"UNKNOWN_GPU", kBadTable, "caps.compute_capabilities has none"},
        Mutant{"ONLY_CUDA", kUnsupported, "no GPU here"},
        Mutant{"FORWARD_FAILS", kUnsupported, "the kernel gave up"},
        Mutant{"NO_DECODE", kBadTable, "must all be there"},
        Mutant{"HALF_GRAPHS", kBadTable, "for graphs must be all there or all NULL"},
        Mutant{"SMALL_STRUCT", kBadTable, "struct_size is 16"},
        Mutant{"NAMELESS", kBadTable, "caps.name is missing"},
        Mutant{"RESERVED_NAME", kBadTable, "caps.name is reference"},
        Mutant{"UNKNOWN_PHASE", kBadTable, "caps.phases is 0x8"},
        Mutant{"NO_DTYPE", kBadTable, "caps.model_dtypes is 0"},
        Mutant{"TREES_WITHOUT_MASK", kBadTable, "claims trees, which need custom_mask"},
        Mutant{"NEGATIVE_PAGE", kBadTable, "caps.page_sizes has the value -16"},
        Mutant{"CREATE_FAILS", kUnsupported, "the backend was not created"},
        Mutant{"PLAN_FAILS", kUnsupported, "planning gave up"},
        Mutant{"IGNORES_WINDOW", kUnsupported, "window"},
        Mutant{"WINDOW_OFF_BY_ONE", kUnsupported, "window"},
        Mutant{"IGNORES_SINKS", kUnsupported, "sink"},
        Mutant{"IGNORES_SOFTCAP", kUnsupported, "softcap"},
        Mutant{"CLAIMS_F16", kUnsupported, "with f16 KV"},
        Mutant{"CLAIMS_FP8", kUnsupported, "with fp8_e4m3 KV"},
        Mutant{"CLAIMS_TREES", kUnsupported, "tree"},
        Mutant{"CLAIMS_NON_CAUSAL", kUnsupported, "output differs"},
        Mutant{"LSE_IN_BITS", kUnsupported, "log-sum-exp differs"},
        Mutant{"NO_LSE", kUnsupported, "log-sum-exp differs"},
        Mutant{"BATCH_DEPENDENT", kUnsupported, "determinism check"}),
    [](const auto& info) { return info.param.name; });

TEST(Plugin, FileThatIsNoLibraryIsRefused) {
  const TemporaryFolder folder;
  const std::string path = folder / "not_a_library.so";
  std::ofstream(path) << "text";
  const Result<const Caps*> caps = load_attention_plugin(path);
  ASSERT_FALSE(caps.ok());
  EXPECT_EQ(caps.status().code(), StatusCode::data_loss);
}

}  // namespace
}  // namespace warpweave::conformance
