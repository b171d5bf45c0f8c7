// An AdapterStore without tensors, for tests of the server. One adapter is there at first: french.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "warpweave/adapters.h"

namespace warpweave::server::testing {

class FakeAdapters : public AdapterStore {
 public:
  // `any`: every name can be taken and unloaded.
  explicit FakeAdapters(bool any = false) : any_(any) { add("french", "/adapters/french"); }

  void add(const std::string& name, const std::string& path) {
    const auto token = std::make_shared<int>(0);
    adapters_.push_back({name, path, 8, 1024, 0, {token, reinterpret_cast<const LoraAdapter*>(token.get())}});
  }
  Result<AdapterInfo> take(const std::string& name) override {
    for (AdapterInfo& adapter : adapters_) {
      if (!any_ && adapter.name != name) continue;
      ++adapter.requests;
      return adapter;
    }
    return Status::not_found("There is no adapter called " + name + ".", "lora_path");
  }
  Result<AdapterInfo> load_from_root(const std::string& name, const std::string& path) override {
    if (path == "outside") return Status::not_found("lora_path names no folder below --lora-root.", "lora_path");
    if (path == "broken")
      return Status::data_loss("adapter_model.safetensors: too short for a safetensors file",
                               "adapter_model.safetensors");
    if (path == "f64") return Status::unsupported("tensor lora_A.weight has the dtype F64");
    if (path == "too-many")
      return Status(StatusCode::resource_exhausted, "64 adapters are loaded, as many as --max-loaded-loras allows",
                    "--max-loaded-loras");
    if (!any_) add(name, "/adapters/" + path);
    return adapters_.back();
  }
  Status unload(const std::string& name) override {
    if (any_) return {};
    const size_t before = adapters_.size();
    std::erase_if(adapters_, [&](const AdapterInfo& adapter) { return adapter.name == name; });
    return adapters_.size() < before ? Status()
                                     : Status::not_found("There is no adapter called " + name + ".", "lora_name");
  }
  std::vector<AdapterInfo> list() const override { return adapters_; }

 private:
  const bool any_;
  std::vector<AdapterInfo> adapters_;
};

}  // namespace warpweave::server::testing
