// Between a plug-in's C table and the library's own types.
#pragma once

#include <memory>

#include "attention/backend.h"
#include "warpweave/plugin.h"

namespace warpweave {

// A plug-in's table, checked and copied.
struct PluginTable {
  ww_backend_table table{};
  Caps caps;                // name and summary point into the plug-in
};

// `unsupported` for another ABI version, `invalid_argument` for a table that breaks a rule.
Result<PluginTable> read_plugin_table(const ww_backend_table* table);

// A backend that calls the table. `plugin` outlives it. Null, with the plug-in's message logged,
// when its create() fails.
std::unique_ptr<AttentionBackend> create_plugin_backend(const PluginTable& plugin,
                                                        const BackendContext& context);

}  // namespace warpweave
