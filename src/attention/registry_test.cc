// The registry's entries against each other: what is declared, written and built.
#include "attention/registry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "attention/select.h"

namespace warpweave {
namespace {

bool is_written(const Caps* caps) {
  const auto written = written_backends();
  return std::find(written.begin(), written.end(), caps) != written.end();
}

TEST(Registry, WhatIsBuiltIsWritten) {
  for (const BackendRegistration& built : built_backends()) {
    EXPECT_TRUE(!built.caps->selectable || is_written(built.caps)) << built.caps->name;
  }
}

// Every Caps value of the source tree is in the list: a build without a GPU knows them, too.
TEST(Registry, EveryCapsFileIsListed) {
  size_t values = 0;
  for (const auto& folder : std::filesystem::directory_iterator("src/attention/backends")) {
    std::ifstream file(folder.path() / "caps.h");
    std::stringstream text;
    text << file.rdbuf();
    if (folder.path().filename() == "reference") continue;
    for (size_t at = 0; (at = text.str().find("inline constexpr Caps k", at)) != std::string::npos; ++at) ++values;
  }
  EXPECT_EQ(values, written_backends().size());
}

TEST(Registry, EntriesDoNotOverlap) {
  std::set<std::string> seen;
  for (const KnownBackend& backend : known_backends()) {
    for (int kind = 0; kind < 5; ++kind) {
      for (int arch = 0; arch < kNumDeviceArchs; ++arch) {
        if (!backend.caps->kinds.has(static_cast<AttentionKind>(kind)) ||
            !backend.caps->archs.has(static_cast<DeviceArch>(arch))) {
          continue;
        }
        const std::string key =
            std::string(backend.caps->name) + "/" + std::to_string(kind) + "/" + std::to_string(arch);
        EXPECT_TRUE(seen.insert(key).second) << key;
      }
    }
    EXPECT_TRUE(backend.written || !backend.built) << backend.caps->name;
    EXPECT_EQ(backend.written, !backend.caps->kernels.decode.empty()) << backend.caps->name;
  }
}

// Every device that the field's documentation names for a backend has an entry, written or not.
TEST(Registry, NothingDeclaredIsLost) {
  for (const Caps& declared : declared_backends()) {
    EnumSet<DeviceArch> missing = declared.archs;
    for (const KnownBackend& backend : known_backends()) {
      if (backend.caps->name == declared.name && (backend.caps->kinds.bits & declared.kinds.bits)) {
        missing.bits &= ~backend.caps->archs.bits;
      }
    }
    EXPECT_EQ(missing.bits, 0u) << declared.name;
  }
}

const Caps* declared(std::string_view name, AttentionKind kind) {
  for (const Caps& caps : declared_backends()) {
    if (caps.name == name && caps.kinds.has(kind)) return &caps;
  }
  return nullptr;
}

TEST(Registry, MlaHasClaimsOfItsOwn) {
  for (const Caps& caps : declared_backends()) {
    EXPECT_TRUE(!caps.kinds.has(AttentionKind::mha) || !caps.kinds.has(AttentionKind::mla)) << caps.name;
  }
  const Caps* mha = declared("ascend", AttentionKind::mha);
  const Caps* mla = declared("ascend", AttentionKind::mla);
  ASSERT_TRUE(mha != nullptr && mla != nullptr);
  EXPECT_TRUE(mha->sliding_window);
  EXPECT_EQ(mha->spec, SpecSupport::chain);
  EXPECT_FALSE(mla->sliding_window);
  EXPECT_EQ(mla->spec, SpecSupport::none);
  EXPECT_FALSE(mla->mla_chunked_prefix);
}

TEST(Registry, AllOfACpusBackendsReadPackedLatentTokens) {
  for (const Caps* caps : written_backends()) {
    if (!caps->kinds.has(AttentionKind::mla) || !caps->archs.has(DeviceArch::cpu_x86_64)) continue;
    for (const KvFormat format : {KvFormat::fp8_ds_mla, KvFormat::fp4_mla}) {
      EXPECT_TRUE(caps->kv_formats.has(format)) << caps->name << ", " << kv_format_name(format);
    }
  }
}

}  // namespace
}  // namespace warpweave
