// The functions of warpweave/c.h over the classes of this folder: struct versions, the last error,
// and the border that no exception crosses.
#include "warpweave/c.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>

#include "attention/plugin.h"
#include "attention/registry.h"
#include "capi/context.h"
#include "capi/kv_append.h"
#include "capi/linear_attention.h"
#include "capi/merge_states.h"
#include "capi/plan.h"
#include "capi/tensor_args.h"

struct ww_context : warpweave::capi::Context {
  using Context::Context;
};
struct ww_workspace : warpweave::capi::Workspace {
  using Workspace::Workspace;
};
struct ww_plan {
  std::unique_ptr<warpweave::capi::AttentionPlan> plan;
};

namespace warpweave::capi {
namespace {

constexpr int kMaxThreads = 1024;

thread_local std::string last_error;

ww_status code_of(StatusCode code) {
  switch (code) {
    case StatusCode::ok: return WW_OK;
    case StatusCode::invalid_argument: return WW_INVALID_ARGUMENT;
    case StatusCode::not_found: return WW_NOT_FOUND;
    case StatusCode::unsupported: return WW_UNSUPPORTED;
    case StatusCode::resource_exhausted: return WW_RESOURCE_EXHAUSTED;
    case StatusCode::data_loss: return WW_DATA_LOSS;
    case StatusCode::unavailable:
    case StatusCode::cancelled:
    case StatusCode::internal: break;
  }
  return WW_INTERNAL;
}

ww_status report(const Status& status) {
  if (status.ok()) return WW_OK;
  last_error = status.message();
  return code_of(status.code());
}

template <typename Function>
ww_status guarded(Function function) {
  try {
    return report(function());
  } catch (const std::bad_alloc&) {
    return report(Status::resource_exhausted("out of memory"));
  } catch (const std::exception& e) {
    return report(Status::internal(e.what()));
  }
}

Status null_argument(const char* name) {
  return Status::invalid_argument(fmt::format("{}: is NULL", name), name);
}

// The caller's struct in this library's version: missing fields keep their defaults, and fields
// this library does not know must be zero.
template <typename T>
Status read_struct(const T* from, const char* name, T& out) {
  if (from == nullptr) return null_argument(name);
  const size_t size = from->struct_size;
  if (size < sizeof(uint32_t) * 2 || size > 4096) {
    return Status::invalid_argument(
        fmt::format("{}.struct_size: is {}; start from its WW_..._INIT value", name, size), name);
  }
  const char* bytes = reinterpret_cast<const char*>(from);
  if (std::any_of(bytes + std::min(size, sizeof(T)), bytes + size, [](char c) { return c != 0; })) {
    return Status::unsupported(fmt::format("{}: has fields of a newer interface than this "
                                           "library's, version {}, that are not zero",
                                           name, WW_ABI_VERSION),
                               name);
  }
  std::memcpy(static_cast<void*>(&out), from, std::min(size, sizeof(T)));
  return {};
}

}  // namespace
}  // namespace warpweave::capi

using namespace warpweave;
using namespace warpweave::capi;

extern "C" {

uint32_t ww_abi_version(void) { return WW_ABI_VERSION; }
const char* ww_last_error(void) { return last_error.c_str(); }

ww_status ww_context_create(const ww_context_options* options, ww_context** context) {
  return guarded([&]() -> Status {
    if (context == nullptr) return null_argument("context");
    ww_context_options read = WW_CONTEXT_OPTIONS_INIT;
    if (options != nullptr) WW_RETURN_IF_ERROR(read_struct(options, "ww_context_options", read));
    if (read.threads < 0 || read.threads > kMaxThreads) {
      return Status::invalid_argument(
          fmt::format("ww_context_options.threads: is {}, must be 0 (one per CPU) "
                      "to {}",
                      read.threads, kMaxThreads),
          "threads");
    }
    *context = new ww_context(read.threads == 0 ? available_cpus() : read.threads);
    return {};
  });
}

void ww_context_destroy(ww_context* context) { delete context; }

ww_status ww_workspace_create(ww_context* context, size_t bytes, ww_workspace** workspace) {
  return guarded([&]() -> Status {
    if (context == nullptr || workspace == nullptr) return null_argument("context or workspace");
    auto created = std::make_unique<ww_workspace>(*context, bytes);
    if (bytes > 0) WW_RETURN_IF_ERROR(created->reserve(bytes));
    *workspace = created.release();
    return {};
  });
}

void ww_workspace_destroy(ww_workspace* workspace) { delete workspace; }

ww_status ww_plan_create(ww_workspace* workspace, const ww_plan_options* options, ww_plan** plan) {
  return guarded([&]() -> Status {
    if (workspace == nullptr || plan == nullptr) return null_argument("workspace or plan");
    ww_plan_options read = WW_PLAN_OPTIONS_INIT;
    WW_RETURN_IF_ERROR(read_struct(options, "ww_plan_options", read));
    const std::lock_guard lock(workspace->context().mutex);
    WW_ASSIGN_OR_RETURN(auto created, AttentionPlan::create(*workspace, read));
    *plan = new ww_plan{std::move(created)};
    return {};
  });
}

void ww_plan_destroy(ww_plan* plan) { delete plan; }

const char* ww_plan_explain(const ww_plan* plan) {
  return plan == nullptr ? "" : plan->plan->explanation().c_str();
}

ww_status ww_plan_batch(ww_plan* plan, const ww_batch* batch) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return null_argument("plan");
    ww_batch read = WW_BATCH_INIT;
    WW_RETURN_IF_ERROR(read_struct(batch, "ww_batch", read));
    const std::lock_guard lock(plan->plan->context().mutex);
    return plan->plan->set_batch(read);
  });
}

size_t ww_plan_workspace_bytes(const ww_plan* plan) {
  return plan == nullptr ? 0 : plan->plan->workspace_bytes();
}

ww_status ww_plan_run(ww_plan* plan, const ww_run_args* args) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return null_argument("plan");
    ww_run_args read = WW_RUN_ARGS_INIT;
    ww_kv_cache kv = WW_KV_CACHE_INIT;
    WW_RETURN_IF_ERROR(read_struct(args, "ww_run_args", read));
    WW_RETURN_IF_ERROR(read_struct(read.kv, "ww_run_args.kv", kv));
    const std::lock_guard lock(plan->plan->context().mutex);
    return plan->plan->run(read, kv);
  });
}

ww_status ww_append_kv(ww_context* context, const ww_append_args* args) {
  return guarded([&]() -> Status {
    if (context == nullptr) return null_argument("context");
    ww_append_args read = WW_APPEND_ARGS_INIT;
    ww_kv_cache kv = WW_KV_CACHE_INIT;
    WW_RETURN_IF_ERROR(read_struct(args, "ww_append_args", read));
    WW_RETURN_IF_ERROR(read_struct(read.kv, "ww_append_args.kv", kv));
    const std::lock_guard lock(context->mutex);
    return append_kv(*context, read, kv);
  });
}

ww_status ww_merge_states(ww_context* context, const ww_merge_args* args) {
  return guarded([&]() -> Status {
    if (context == nullptr) return null_argument("context");
    ww_merge_args read = WW_MERGE_ARGS_INIT;
    WW_RETURN_IF_ERROR(read_struct(args, "ww_merge_args", read));
    const std::lock_guard lock(context->mutex);
    return merge_states(*context, read);
  });
}

ww_status ww_linear_attention(ww_context* context, const ww_linear_args* args) {
  return guarded([&]() -> Status {
    if (context == nullptr) return null_argument("context");
    ww_linear_args read = WW_LINEAR_ARGS_INIT;
    WW_RETURN_IF_ERROR(read_struct(args, "ww_linear_args", read));
    const std::lock_guard lock(context->mutex);
    return linear_attention(*context, read);
  });
}

ww_status ww_load_backend_plugin(const char* path, const char** name) {
  return guarded([&]() -> Status {
    if (path == nullptr) return null_argument("path");
    WW_ASSIGN_OR_RETURN(const Caps* caps, load_attention_plugin(path));
    if (name != nullptr) *name = caps->name.data();
    return {};
  });
}

const char* ww_backend_name(int32_t index) {
  for (const BackendRegistration& backend : built_backends()) {
    if (backend.caps->selectable && backend.caps->archs.has(cpu_hardware_facts().arch) &&
        index-- == 0) {
      return backend.caps->name.data();
    }
  }
  return nullptr;
}

}  // extern "C"
