// The adapters of a server, by name: loaded at start or by request, found by requests, unloaded while others run.
//
// A request holds its adapter for as long as it runs. unload() takes the name away: later requests are refused, those
// that run go on, and the adapter's memory is free when the last of them has ended. Until then it counts as loaded. An
// adapter that is loaded again under the same name is another one: prefixes cached for the first are not used for it.
// Thread-safe; one adapter is read at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lora/load_adapter.h"
#include "warpweave/adapters.h"

namespace warpweave {

inline constexpr size_t kMaxLoraNameBytes = 128;

struct LoraRegistryOptions {
  LoraTargets targets;
  LoraLimits limits;
  DType dtype = DType::f32;
  std::function<std::unique_ptr<LoraPlacer>()> placer;  // of the next adapter; empty: on the host
  int max_loaded = 0;
  std::string root;              // where load_from_root() reads; empty: it does not
  std::vector<std::string> reserved_names;  // those of the model itself
};

class LoraRegistry : public AdapterStore {
 public:
  explicit LoraRegistry(LoraRegistryOptions options) : options_(std::move(options)) {}

  // From any folder. `invalid_argument` for a name that is taken or cannot be used, `resource_exhausted` where there
  // are as many as may be, else load_lora_adapter()'s errors.
  Result<AdapterInfo> load(const std::string& name, const std::string& folder);
  Result<AdapterInfo> load_from_root(const std::string& name, const std::string& path) override;
  Status unload(const std::string& name) override;
  Result<AdapterInfo> take(const std::string& name) override;
  std::vector<AdapterInfo> list() const override;

 private:
  struct Entry {
    std::shared_ptr<const LoraAdapter> adapter;
    uint64_t requests = 0;
  };
  static AdapterInfo info_of(const Entry& entry);
  Status check_name(const std::string& name) const;  // holds mutex_
  Status not_loaded(const std::string& name) const;

  const LoraRegistryOptions options_;
  std::mutex loading_;
  mutable std::mutex mutex_;     // guards what follows
  std::map<std::string, Entry> adapters_;
  std::vector<std::weak_ptr<const LoraAdapter>> unloaded_;  // that requests may still hold
  uint64_t next_id_ = 1;
};

}  // namespace warpweave
