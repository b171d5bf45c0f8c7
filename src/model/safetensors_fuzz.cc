// Any bytes as a safetensors file: refused, or every tensor lies inside them. What begins like JSON is the index of
// a folder whose one shard, "s", holds two tensors.
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "model/weight_source.h"

namespace {

constexpr std::string_view kShardHeader = R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
                                          R"("b":{"dtype":"U8","shape":[4],"data_offsets":[16,20]}})";

// An empty folder of this process.
std::string make_folder() {
  std::string name = std::filesystem::temp_directory_path() / "safetensors_fuzz.XXXXXX";
  if (mkdtemp(name.data()) == nullptr) std::abort();
  std::ofstream shard(name + "/s", std::ios::binary);
  const uint64_t size = kShardHeader.size();
  shard.write(reinterpret_cast<const char*>(&size), sizeof size);
  shard << kShardHeader << std::string(20, '\1');
  return name;
}

void open_folder(std::string_view index) {
  static const std::string folder = make_folder();
  std::ofstream(folder + "/model.safetensors.index.json", std::ios::binary) << index;
  const auto source = warpweave::open_safetensors(folder);
  if (!source.ok()) return;
  const int64_t shape[] = {2, 2};
  if (const auto view = (*source)->find("a", shape); view.ok()) (*source)->release(*view);
  if (!(*source)->has("none") && (*source)->find("none", shape).ok()) std::abort();
  if (!(*source)->seal().ok()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  if (size > 0 && data[0] == '{') open_folder(file);
  const auto tensors = warpweave::parse_safetensors(file, "fuzz.safetensors");
  if (!tensors.ok()) return 0;
  for (const auto& [name, view, readable] : *tensors) {
    const auto* begin = static_cast<const char*>(view.data);
    if (begin < file.data() || view.size_bytes() > size_t(file.data() + size - begin)) std::abort();
  }
  return 0;
}
