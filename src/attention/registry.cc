#include "attention/registry.h"

#include <fmt/format.h>

#include <string>

namespace warpweave {

#define WW_BACKEND(name) BackendRegistration register_attention_##name();
#include "attention_backends.inc"
#undef WW_BACKEND

std::span<const BackendRegistration> built_backends() {
#define WW_BACKEND(name) register_attention_##name(),
  static const BackendRegistration kBuilt[] = {
#include "attention_backends.inc"
  };
#undef WW_BACKEND
  return kBuilt;
}

Result<std::unique_ptr<AttentionBackend>> create_backend(std::string_view name,
                                                         const BackendContext& context) {
  std::string usable;
  for (const BackendRegistration& backend : built_backends()) {
    if (backend.caps->name == name) return backend.create(context);
    if (backend.caps->selectable) {
      usable += fmt::format("{}{}", usable.empty() ? "" : ", ", backend.caps->name);
    }
  }
  for (const KnownBackend& backend : known_backends()) {
    if (backend.caps->name == name) {
      return Status::unsupported(
          fmt::format("attention backend {} is not built into this program; use one of: {}", name,
                      usable),
          "--attention-backend");
    }
  }
  return Status::not_found(
      fmt::format("unknown attention backend \"{}\"; did you mean {}?", name,
                  nearest_backend_name(name)),
      "--attention-backend");
}

}  // namespace warpweave
