#include "model/kv_scales.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "base/float16.h"

namespace warpweave {
namespace {

// Tensors of a test by name.
class Tensors : public WeightSource {
 public:
  void add(const std::string& name, std::vector<int64_t> shape, std::vector<float> values) {
    Entry& entry = entries_[name];
    entry.values = std::move(values);
    entry.view.data = entry.values.data();
    entry.view.rank = static_cast<int>(shape.size());
    std::copy(shape.begin(), shape.end(), entry.view.shape.begin());
  }
  void add_bf16(const std::string& name, float value) {
    Entry& entry = entries_[name];
    entry.bits = f32_to_bf16(value);
    entry.view.data = &entry.bits;
    entry.view.dtype = DType::bf16;
  }
  void set_dtype(const std::string& name, DType dtype) { entries_[name].view.dtype = dtype; }

  bool has(std::string_view name) const override { return entries_.count(std::string(name)) != 0; }
  DType dtype(std::string_view name) const override { return entries_.at(std::string(name)).view.dtype; }
  Result<TensorView> find(std::string_view name, std::span<const int64_t> shape) const override {
    const TensorView& view = entries_.at(std::string(name)).view;
    WW_RETURN_IF_ERROR(check_shape(name, view, shape));
    return view;
  }

 private:
  struct Entry {
    std::vector<float> values;
    uint16_t bits = 0;
    TensorView view;
  };
  std::map<std::string, Entry> entries_;
};

ModelConfig two_layers() {
  ModelConfig config;
  config.num_layers = 2;
  config.num_kv_heads = 3;
  return config;
}

using Floats = std::vector<float>;

TEST(KvScales, AreEmptyWithoutTensors) {
  const Result<KvHeadScales> scales = load_kv_scales(Tensors(), two_layers());
  ASSERT_TRUE(scales.ok());
  EXPECT_TRUE(scales->k.empty());
  EXPECT_TRUE(scales->v.empty());
}

TEST(KvScales, ReadsEveryNameAndShape) {
  for (const std::string name : {"k_scale", "attn.k_scale", "k_proj.k_scale", "k_proj.output_scale"}) {
    std::string v_name = name;
    for (size_t at; (at = v_name.find("k_")) != v_name.npos;) v_name[at] = 'v';
    Tensors tensors;
    tensors.add("model.layers.0.self_attn." + name, {}, {0.5f});
    tensors.add("model.layers.1.self_attn." + name, {3}, {1, 2, 3});
    tensors.add("model.layers.1.self_attn." + v_name, {1}, {0.25f});
    const Result<KvHeadScales> scales = load_kv_scales(tensors, two_layers());
    ASSERT_TRUE(scales.ok()) << scales.status().message();
    EXPECT_EQ(scales->k, (Floats{0.5f, 0.5f, 0.5f, 1, 2, 3})) << name;
    EXPECT_EQ(scales->v, (Floats{1, 1, 1, 0.25f, 0.25f, 0.25f})) << v_name;
  }
}

TEST(KvScales, OneScaleForBothAndBf16) {
  Tensors tensors;
  tensors.add_bf16("model.layers.0.self_attn.kv_scale", 0.125f);
  const Result<KvHeadScales> scales = load_kv_scales(tensors, two_layers());
  ASSERT_TRUE(scales.ok()) << scales.status().message();
  EXPECT_EQ(scales->k, (Floats{0.125f, 0.125f, 0.125f, 1, 1, 1}));
  EXPECT_EQ(scales->v, scales->k);
}

TEST(KvScales, RefusesWhatIsNoScaleAndNamesTheTensor) {
  const std::string name = "model.layers.1.self_attn.v_scale";
  for (const float bad : {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    Tensors tensors;
    tensors.add(name, {}, {bad});
    const Status status = load_kv_scales(tensors, two_layers()).status();
    EXPECT_EQ(status.code(), StatusCode::data_loss) << bad;
    EXPECT_EQ(status.field(), name);
  }
  Tensors tensors;
  tensors.add(name, {2}, {1, 1});
  EXPECT_EQ(load_kv_scales(tensors, two_layers()).status().code(), StatusCode::data_loss);
  tensors.add(name, {}, {1});
  tensors.set_dtype(name, DType::i32);
  EXPECT_EQ(load_kv_scales(tensors, two_layers()).status().code(), StatusCode::data_loss);
}

}  // namespace
}  // namespace warpweave
