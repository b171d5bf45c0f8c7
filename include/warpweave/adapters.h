// The adapters (LoRA) of a server as its endpoints see them: by name. No files and no tensors.
//
// Thread-safe: any thread may call any method. `weights` keeps an adapter alive: a request carries it
// (GenerateRequest::adapter) and is not disturbed by unload().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "warpweave/status.h"

namespace warpweave {

struct LoraAdapter;

struct AdapterInfo {
  std::string name;
  std::string path;           // the folder it was read from
  int rank = 0;               // the largest of its matrices
  size_t bytes = 0;           // of memory
  uint64_t requests = 0;      // that have asked for it
  std::shared_ptr<const LoraAdapter> weights;
};

class AdapterStore {
 public:
  virtual ~AdapterStore() = default;

  // The adapter for a request, which is counted. `not_found`, listing what there is.
  virtual Result<AdapterInfo> take(const std::string& name) = 0;
  // From a folder below the one that the server's start named: by its path from there, or an absolute one.
  virtual Result<AdapterInfo> load_from_root(const std::string& name, const std::string& path) = 0;
  // Later requests are refused; those that run go on.
  virtual Status unload(const std::string& name) = 0;
  virtual std::vector<AdapterInfo> list() const = 0;  // by name
};

}  // namespace warpweave
