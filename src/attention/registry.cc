#include "attention/registry.h"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace warpweave {

#define WW_BACKEND(name) BackendRegistration register_attention_##name();
#include "attention_backends.inc"
#undef WW_BACKEND

namespace {

std::vector<BackendRegistration>& registrations() {
#define WW_BACKEND(name) register_attention_##name(),
  static std::vector<BackendRegistration> list = {
#include "attention_backends.inc"
  };
#undef WW_BACKEND
  return list;
}

Result<std::unique_ptr<AttentionBackend>> create(const BackendRegistration& registration,
                                                 const BackendContext& context) {
  std::unique_ptr<AttentionBackend> backend = registration.create(context);
  if (backend != nullptr) return backend;
  return Status::unavailable(
      fmt::format("attention backend {} could not start on this machine", registration.caps->name));
}

}  // namespace

std::span<const BackendRegistration> built_backends() { return registrations(); }

Status add_backend(BackendRegistration added) {
  for (const BackendRegistration& backend : registrations()) {
    if (backend.caps->name == added.caps->name &&
        (backend.caps->kinds.bits & added.caps->kinds.bits) != 0 &&
        (backend.caps->archs.bits & added.caps->archs.bits) != 0) {
      return Status::invalid_argument(
          fmt::format("an attention backend {} for the same kind and device is there already; give "
                      "the added one another name", added.caps->name),
          "--attention-backend-plugin");
    }
  }
  registrations().push_back(std::move(added));
  return {};
}

Result<std::unique_ptr<AttentionBackend>> create_backend(const Caps& caps,
                                                         const BackendContext& context) {
  for (const BackendRegistration& backend : built_backends()) {
    if (backend.caps == &caps) return create(backend, context);
  }
  return create_backend(caps.name, context);
}

Result<std::unique_ptr<AttentionBackend>> create_backend(std::string_view name,
                                                         const BackendContext& context) {
  std::string usable;
  for (const BackendRegistration& backend : built_backends()) {
    if (backend.caps->name == name) return create(backend, context);
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
