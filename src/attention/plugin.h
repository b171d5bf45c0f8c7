// Attention backends from shared libraries: loads a plug-in (include/warpweave/plugin.h), checks
// its table and adds it to the registry. A library stays loaded to the process's end.
//
// Loading runs the library's own code: a plug-in is as trusted as the program. What it claims is
// not believed: callers run a conformance suite before they serve with it (conformance/suite.h).
#pragma once

#include <string>

#include "attention/caps.h"
#include "warpweave/status.h"

namespace warpweave {

// At start only, as add_backend. The Caps are those in the registry; their `name` and `summary` end
// in 0. Errors, with the file's name: `not_found` (no such file), `data_loss` (not a shared
// library, symbol missing), `unsupported` (another ABI version), `invalid_argument` (a table that
// breaks a rule, or a name that is taken).
Result<const Caps*> load_attention_plugin(const std::string& path);

}  // namespace warpweave
