#include "attention/plugin.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <utility>

#include "attention/plugin_table.h"
#include "attention/registry.h"

namespace warpweave {
namespace {

constexpr const char* kFlag = "--attention-backend-plugin";
constexpr const char* kEntry = "ww_attention_plugin";
using EntryFn = const ww_backend_table* (*)(uint32_t host_abi_version);

Status refusal(const std::string& path, const Status& status) {
  return Status(status.code(), fmt::format("plug-in {}: {}", path, status.message()), kFlag);
}

std::string last_dl_error() {
  const char* text = dlerror();
  return text != nullptr ? text : "no reason given";
}

}  // namespace

Result<const Caps*> load_attention_plugin(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return refusal(path,
                   Status::not_found("there is no such file; give the path of a shared library"));
  }
  // A name without a slash would be searched for in the system's folders.
  const std::string file = path.find('/') == std::string::npos ? "./" + path : path;
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return refusal(path,
                   Status::data_loss("cannot be loaded as a shared library: " + last_dl_error()));
  }
  const auto entry = reinterpret_cast<EntryFn>(dlsym(library, kEntry));
  if (entry == nullptr) {
    dlclose(library);
    return refusal(path, Status::data_loss(fmt::format(
                             "exports no function {}; see warpweave/plugin.h", kEntry)));
  }
  Result<PluginTable> read = read_plugin_table(entry(WW_PLUGIN_ABI_VERSION));
  if (!read.ok()) {
    dlclose(library);
    return refusal(path, read.status());
  }
  // Kept to the process's end: backends of it may live as long.
  static auto& loaded = *new std::deque<PluginTable>;
  const PluginTable& plugin = loaded.emplace_back(std::move(read).value());
  const Status added = add_backend({&plugin.caps, [&plugin](const BackendContext& context) {
                                      return create_plugin_backend(plugin, context);
                                    }});
  if (!added.ok()) {
    loaded.pop_back();
    dlclose(library);
    return refusal(path, added);
  }
  return &plugin.caps;
}

}  // namespace warpweave
