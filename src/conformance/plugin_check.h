// A backend from a shared library, before it may serve: loaded, and held to what it claims.
#pragma once

#include <string>

#include "attention/caps.h"
#include "conformance/variant.h"
#include "warpweave/status.h"

namespace warpweave::conformance {

// The variant that run_suite takes for a loaded plug-in: on the CPU, or as a built-in backend runs on the GPU.
// `unsupported` where this machine has no such device, so that nothing it claims can be seen.
Result<Variant> plugin_variant(const Caps& caps);

// A second's worth of the committed cases: every feature, the small shapes. `unsupported`, with the
// case and the difference, when the backend does not do what its Caps claim.
Status check_claims(const Variant& variant);

// load_attention_plugin, then check_claims; a plug-in that fails must not be used.
Result<const Caps*> load_checked_plugin(const std::string& path);

}  // namespace warpweave::conformance
