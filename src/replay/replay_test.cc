// A recorded forward gives the same results when it is run again; a planted difference is found
// where it is; files that lie are refused.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "attention/hybrid.h"
#include "attention/registry.h"
#include "base/testing/temporary_folder.h"
#include "kv/kv_codec.h"
#include "kv/latent_token.h"
#include "replay/compare.h"
#include "replay/recording.h"
#include "replay/recording_backend.h"

namespace warpweave {
namespace {

constexpr int kQHeads = 4, kKvHeads = 2, kDim = 32, kPageSize = 4, kPages = 40, kLayers = 3;

// A pool of each layer and a batch of three requests over scattered pages.
class Forward {
 public:
  explicit Forward(KvFormat format) : format_(format) {
    std::mt19937_64 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> row(kDim);
    for (std::vector<uint8_t>& pool : pools_) {
      pool.resize(kPages * kPageSize * kKvHeads * kDim * 4);
      blocks_.emplace_back(kPages * kPageSize * kKvHeads * kDim / 16);
      for (int64_t slot = 0; slot < kPages * kPageSize * kKvHeads; ++slot) {
        for (float& x : row) x = normal(random);
        kv_encode_run(view(static_cast<int>(&pool - pools_)), static_cast<int>(slot % kKvHeads),
                      slot * kDim, kDim, row.data());
      }
    }
    q_.resize(6 * kQHeads * kDim);
    for (float& x : q_) x = normal(random);
    batch_.mode = ForwardMode::mixed;
    batch_.num_reqs = 3;
    batch_.num_tokens = 6;
    batch_.max_q_len = 4;
    batch_.max_kv_len = 17;
    batch_.page_size = kPageSize;
    batch_.page_table_stride = 6;
    batch_.q_indptr = q_indptr_;
    batch_.kv_lens = kv_lens_;
    batch_.kv_slots = kv_slots_;
    batch_.page_table = table_;
  }

  KvPoolView view(int index) {
    KvPoolView view;
    view.data = pools_[index].data();
    view.format = format_;
    view.head_stride = kDim;
    view.token_stride = kKvHeads * kDim;
    view.page_stride = kPageSize * view.token_stride;
    if (format_ == KvFormat::fp4_e2m1) view.block_scales = blocks_[index].data();
    if (kv_format_is_scaled(format_)) view.head_scales = scales_;
    return view;
  }

  void run(AttentionBackend& backend, int layers = kLayers) {
    ASSERT_TRUE(backend.init_forward_metadata(batch_).ok());
    for (int layer = 0; layer < layers; ++layer) {
      AttentionCall call;
      call.layer = layer;
      call.num_q_heads = kQHeads;
      call.num_kv_heads = kKvHeads;
      call.head_dim = call.v_head_dim = kDim;
      call.scale = 0.2f;
      call.window_left = layer == 1 ? 5 : -1;
      call.sinks = layer == 2 ? sinks_ : nullptr;
      call.q = q_.data();
      call.q_token_stride = kQHeads * kDim;
      call.k = view(2 * layer);
      call.v = view(2 * layer + 1);
      out_[layer].assign(6 * kQHeads * kDim, 0);
      call.out = out_[layer].data();
      call.out_token_stride = kQHeads * kDim;
      ASSERT_TRUE(backend.forward_extend(batch_, call).ok());
    }
  }
  const std::vector<float>& out(int layer) const { return out_[layer]; }

 private:
  KvFormat format_;
  std::vector<uint8_t> pools_[2 * kLayers];
  std::vector<std::vector<uint8_t>> blocks_;
  std::vector<float> q_, out_[kLayers];
  const float scales_[kKvHeads] = {0.5f, 0.25f}, sinks_[kQHeads] = {1, 2, 3, 4};
  const int32_t q_indptr_[4] = {0, 1, 5, 6}, kv_lens_[3] = {17, 9, 8},
                kv_slots_[6] = {0, 0, 0, 0, 0, 0};
  const int32_t table_[18] = {7, 3, 31, 0, 12, -9, 7, 3, 20, -9, -9, -9, 39, 1, -9, -9, -9, -9};
  ForwardBatch batch_;
};

// Latent attention: one layer of 512 + 64 values a token, of which the first 512 are V, too.
class LatentForward {
 public:
  static constexpr int kDim = 576, kVDim = 512, kPages = 9;

  explicit LatentForward(KvFormat format) : format_(format) {
    std::mt19937_64 random(5);
    std::normal_distribution<float> normal;
    const int stored = kv_stored_dim(format, kDim);
    pool_.resize(kPages * kPageSize * stored * 4);
    std::vector<float> row(kDim);
    for (int64_t slot = 0; slot < kPages * kPageSize; ++slot) {
      for (float& x : row) x = normal(random);
      if (kv_format_is_packed(format)) {
        pack_latent_token(format, row.data(), reinterpret_cast<std::byte*>(pool_.data()) + slot * stored);
      } else {
        kv_encode_run(view(), 0, slot * kDim, kDim, row.data());
      }
    }
    q_.resize(3 * kQHeads * kDim);
    for (float& x : q_) x = normal(random);
    batch_.mode = ForwardMode::extend;
    batch_.num_reqs = 2;
    batch_.num_tokens = 3;
    batch_.max_q_len = 2;
    batch_.max_kv_len = 11;
    batch_.page_size = kPageSize;
    batch_.page_table_stride = 3;
    batch_.q_indptr = q_indptr_;
    batch_.kv_lens = kv_lens_;
    batch_.kv_slots = kv_slots_;
    batch_.page_table = table_;
  }

  Status run(AttentionBackend& backend) {
    WW_RETURN_IF_ERROR(backend.init_forward_metadata(batch_));
    out_.assign(3 * kQHeads * kVDim, 0);
    AttentionCall call;
    call.num_q_heads = kQHeads;
    call.num_kv_heads = 1;
    call.head_dim = kDim;
    call.v_head_dim = kVDim;
    call.scale = 0.07f;
    call.q = q_.data();
    call.q_token_stride = kQHeads * kDim;
    call.k = call.v = view();
    call.out = out_.data();
    call.out_token_stride = kQHeads * kVDim;
    return backend.forward_extend(batch_, call);
  }

 private:
  KvPoolView view() {
    const int stored = kv_stored_dim(format_, kDim);
    KvPoolView view;
    view.data = pool_.data();
    view.format = format_;
    view.head_stride = view.token_stride = stored;
    view.page_stride = kPageSize * stored;
    if (kv_format_is_scaled(format_)) view.head_scales = scales_;
    return view;
  }

  KvFormat format_;
  std::vector<uint8_t> pool_;
  std::vector<float> q_, out_;
  const float scales_[1] = {0.5f};
  const int32_t q_indptr_[3] = {0, 2, 3}, kv_lens_[2] = {11, 3}, kv_slots_[3] = {0, 0, 0};
  const int32_t table_[6] = {7, 3, 5, 1, -9, -9};
  ForwardBatch batch_;
};

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The second forward of a backend, recorded.
Recording record(KvFormat format, const std::string& path, Forward& forward,
                 std::optional<int> layer = {}) {
  ThreadTeam team(2);
  auto inner = create_backend("torch_native", {.team = &team});
  auto backend =
      record_forward(std::move(inner).value(),
                     {.forward = 2, .layer = layer, .num_layers = kLayers, .path = path});
  for (int i = 0; i < 3; ++i) {
    forward.run(*backend);
    EXPECT_EQ(std::filesystem::exists(path), i > 0) << "after forward " << i + 1;
  }
  Result<Recording> recording = read_recording(path);
  EXPECT_TRUE(recording.ok()) << recording.status().message();
  return std::move(recording).value();
}

TEST(Replay, RecordedForwardRunsAgain) {
  for (KvFormat format : {KvFormat::f32, KvFormat::bf16, KvFormat::fp8_e4m3, KvFormat::fp4_e2m1}) {
    SCOPED_TRACE(std::string(kv_format_name(format)));
    const TemporaryFolder folder;
    const std::string path = folder / "forward.wwb";
    Forward forward(format);
    const Recording recording = record(format, path, forward);
    ASSERT_EQ(recording.layers.size(), 3u);
    EXPECT_EQ(recording.backend, "torch_native");
    EXPECT_EQ(recording.forward, 2);
    EXPECT_EQ(recording.num_pages, 8) << "pages 7 and 3 are shared";
    for (int layer = 0; layer < kLayers; ++layer)
      EXPECT_EQ(recording.layers[layer].out, forward.out(layer));
    ThreadTeam team(2);
    for (const char* backend : {"torch_native", "intel_amx"}) {
      for (const char* against : {"recorded", "reference"}) {
        const auto differences = replay(recording, {.backend = backend, .against = against}, team);
        ASSERT_TRUE(differences.ok()) << differences.status().message();
        for (const LayerDifference& d : *differences)
          EXPECT_FALSE(d.first) << backend << " against " << against;
      }
    }
    const auto same = replay(recording, {.backend = "torch_native", .against = "recorded"}, team);
    for (const LayerDifference& d : *same) EXPECT_EQ(d.largest.difference, 0);
  }
}

Result<std::unique_ptr<AttentionBackend>> create_latent(std::string_view name, ThreadTeam& team) {
  for (const BackendRegistration& backend : built_backends()) {
    const Caps& caps = *backend.caps;
    const bool here = (caps.archs.bits & kCpuArchs.bits) != 0;
    if (here && caps.name == name && caps.kinds.has(AttentionKind::mla)) return create_backend(caps, {.team = &team});
  }
  return Status::not_found(std::string(name));
}

TEST(Replay, LatentForwardRunsAgain) {
  for (const KvFormat format :
       {KvFormat::f32, KvFormat::bf16, KvFormat::fp8_e4m3, KvFormat::fp8_ds_mla, KvFormat::fp4_mla}) {
    SCOPED_TRACE(std::string(kv_format_name(format)));
    const TemporaryFolder folder;
    const std::string path = folder / "latent.wwb";
    LatentForward forward(format);
    ThreadTeam team(2);
    auto inner = create_latent("torch_native", team);
    auto backend = record_forward(std::move(inner).value(), {.forward = 1, .layer = {}, .num_layers = 1, .path = path});
    const Status ran = forward.run(*backend);
    ASSERT_TRUE(ran.ok()) << ran.message();
    const Result<Recording> recording = read_recording(path);
    ASSERT_TRUE(recording.ok()) << recording.status().message();
    EXPECT_TRUE(recording->layers[0].latent);
    EXPECT_TRUE(recording->layers[0].v.empty());
    for (const char* name : {"torch_native", "intel_amx"}) {
      for (const char* against : {"recorded", "reference"}) {
        const auto differences = replay(*recording, {.backend = name, .against = against}, team);
        ASSERT_TRUE(differences.ok()) << differences.status().message();
        EXPECT_FALSE((*differences)[0].first) << name << " against " << against;
      }
    }
    const auto other = replay(*recording, {.backend = "intel_xpu"}, team);
    EXPECT_NE(other.status().message().find("does not claim latent attention"), std::string::npos)
        << other.status().message();
  }
}

// Of a pair of backends the one that ran is the one that runs it again.
TEST(Replay, PairsAreCalledByThePartThatRan) {
  const TemporaryFolder folder;
  const std::string path = folder / "pair.wwb";
  LatentForward forward(KvFormat::bf16);
  ThreadTeam team(1);
  auto prefill = create_latent("torch_native", team);
  auto decode = create_latent("intel_amx", team);
  auto pair = std::make_unique<HybridAttnBackend>(std::move(prefill).value(), std::move(decode).value());
  auto backend = record_forward(std::move(pair), {.forward = 1, .layer = {}, .num_layers = 1, .path = path});
  ASSERT_TRUE(forward.run(*backend).ok());
  const Result<Recording> recording = read_recording(path);
  ASSERT_TRUE(recording.ok()) << recording.status().message();
  EXPECT_EQ(recording->backend, "torch_native");
}

TEST(Replay, OneLayer) {
  const TemporaryFolder folder;
  const std::string path = folder / "one_layer.wwb";
  Forward forward(KvFormat::bf16);
  const Recording recording = record(KvFormat::bf16, path, forward, 1);
  ASSERT_EQ(recording.layers.size(), 1u);
  EXPECT_EQ(recording.layers[0].call.layer, 1);
  EXPECT_EQ(recording.layers[0].call.window_left, 5);
  ThreadTeam team(1);
  const auto missing = replay(recording, {.backend = "torch_native", .layer = 2}, team);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().message(), "the recording has no layer 2");
}

// A file of version 1 stays readable.
TEST(Replay, CommittedFile) {
  const Result<Recording> recording = read_recording("tests/golden/recording/one_layer_v1.wwb");
  ASSERT_TRUE(recording.ok()) << recording.status().message();
  ThreadTeam team(1);
  const auto differences =
      replay(*recording, {.backend = "intel_amx", .against = "recorded"}, team);
  ASSERT_TRUE(differences.ok()) << differences.status().message();
  EXPECT_FALSE((*differences)[0].first);
}

TEST(Replay, FindsWhereADifferenceIs) {
  const TemporaryFolder folder;
  const std::string path = folder / "planted.wwb";
  Forward forward(KvFormat::f32);
  Recording recording = record(KvFormat::f32, path, forward);
  // Request 1, row 2 (position 7), head 3, element 5; a larger one later.
  recording.layers[1].out[(3 * kQHeads + 3) * kDim + 5] += 0.5f;
  recording.layers[1].out[(5 * kQHeads + 1) * kDim + 6] -= 2;
  ThreadTeam team(1);
  const auto differences =
      replay(recording, {.backend = "torch_native", .against = "recorded"}, team);
  ASSERT_TRUE(differences.ok());
  EXPECT_FALSE((*differences)[0].first || (*differences)[2].first);
  const LayerDifference& d = (*differences)[1];
  ASSERT_TRUE(d.first);
  EXPECT_EQ(d.first->request, 1);
  EXPECT_EQ(d.first->row, 2);
  EXPECT_EQ(d.first->position, 7);
  EXPECT_EQ(d.first->head, 3);
  EXPECT_EQ(d.first->element, 5);
  EXPECT_NEAR(d.first->difference, 0.5, 1e-6);
  EXPECT_EQ(d.largest.request, 2);
  EXPECT_NEAR(d.by_head[1], 2, 1e-6);
  EXPECT_EQ(d.by_head[0], 0);
}

TEST(Replay, UnclaimedIsRefused) {
  const TemporaryFolder folder;
  const std::string path = folder / "unclaimed.wwb";
  Forward forward(KvFormat::f32);
  Recording recording = record(KvFormat::f32, path, forward);
  ThreadTeam team(1);
  const auto unknown = replay(recording, {.backend = "intel_amxx"}, team);
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.status().message().find("did you mean intel_amx?"), std::string::npos);
  recording.layers[0].call.head_dim = 4096;
  const auto refused = replay(recording, {.backend = "intel_amx"}, team);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().message(),
            "intel_amx does not run layer 0 of this recording: it does not claim head dim 4096");
}

// Damaged files are refused, or harmless to run.
TEST(Replay, DamagedFilesDoNoHarm) {
  const std::string good = bytes_of("tests/golden/recording/one_layer_v1.wwb");
  ASSERT_FALSE(good.empty());
  const size_t header_bytes = good.find("tree_mask_words\"");
  std::mt19937_64 random(11);
  ThreadTeam team(1);
  int accepted = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string bad = good;
    for (uint64_t n = random() % 4; n < 4; ++n) {  // one to four places, most of them in the header
      const size_t at = random() % (n % 2 == 0 ? header_bytes : bad.size());
      bad[at] = n % 3 == 0 ? "0123456789-,:[]{}\""[random() % 18] : static_cast<char>(random());
    }
    const Result<Recording> parsed = parse_recording(bad);
    if (!parsed.ok()) continue;
    ++accepted;
    (void)replay(*parsed, {.backend = "torch_native", .against = "recorded"}, team);
  }
  EXPECT_GT(accepted, 0) << "damage to values only goes unnoticed";
}

TEST(Replay, FilesThatLieAreRefused) {
  const TemporaryFolder folder;
  const std::string path = folder / "lies.wwb";
  Forward forward(KvFormat::bf16);
  record(KvFormat::bf16, path, forward);
  const std::string good = bytes_of(path);
  EXPECT_FALSE(parse_recording("").ok());
  EXPECT_FALSE(parse_recording("GGUF and more than the prefix").ok());
  for (size_t size = 0; size < good.size(); size += 97)
    EXPECT_FALSE(parse_recording(std::string_view(good).substr(0, size)).ok());
  EXPECT_FALSE(parse_recording(good + "x").ok());

  struct Lie { const char *from, *to, *text; };
  const Lie lies[] = {
      {"\"page_size\":4", "\"page_size\":5", "the arrays take"},
      {"\"page_size\":4", "\"page_size\":0", "page_size is 0"},
      {"\"num_pages\":8", "\"num_pages\":7", "the arrays take"},
      {"\"num_kv_heads\":2", "\"num_kv_heads\":3", "no multiple"},
      {"\"kv_lens\":[17,", "\"kv_lens\":[77,", "too few pages"},
      {"\"q_indptr\":[0,1,5,6]", "\"q_indptr\":[0,5,1,6]", "does not rise"},
      {"\"kv_format\":\"bf16\"", "\"kv_format\":\"bf61\"", "kv_format is not known"},
      {"\"causal\":true", "\"causal\":1234", "causal is not true or false"},
      {"\"scale\":", "\"scalf\":", "scale is missing"},
  };
  for (const Lie& lie : lies) {
    std::string bad = good;
    const size_t at = bad.find(lie.from);
    ASSERT_NE(at, std::string::npos) << lie.from;
    bad.replace(at, std::strlen(lie.from), lie.to);
    const Result<Recording> parsed = parse_recording(bad);
    ASSERT_FALSE(parsed.ok()) << lie.to;
    EXPECT_NE(parsed.status().message().find(lie.text), std::string::npos)
        << parsed.status().message();
  }
  std::string newer = good;
  newer[8] = 2;
  EXPECT_EQ(parse_recording(newer).status().message(),
            "recording: has version 2, this program reads 1");
}

}  // namespace
}  // namespace warpweave
