// The extension module warpweave._core: warpweave/c.h for Python, tensors by DLPack or the buffer
// protocol. Nothing here decides anything: shapes in the field's styles are made in Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "views.h"
#include "warpweave/c.h"

using namespace warpweave::python;
using namespace nb::literals;

namespace {

using Ints = nb::ndarray<const int32_t, nb::c_contig, nb::device::cpu>;
using Longs = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Words = nb::ndarray<const uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

ww_dtype dtype_of(const std::string& name) {
  if (name == "float32") return {WW_DTYPE_FLOAT, 32, 1};
  if (name == "float16") return {WW_DTYPE_FLOAT, 16, 1};
  if (name == "bfloat16") return {WW_DTYPE_BFLOAT, 16, 1};
  throw nb::value_error(("dtype " + name + " is not float32, float16 or bfloat16").c_str());
}

ww_device device_of(const std::string& name) {
  if (name == "cpu") return {WW_DEVICE_CPU, 0};
  if (name == "cuda") return {WW_DEVICE_CUDA, 0};
  throw nb::value_error(("device " + name + " is not cpu or cuda").c_str());
}

ww_kv_format kv_format_of(const std::string& name) {
  const char* const names[] = {"float32", "bfloat16", "float16", "fp8_e4m3",
                               "fp8_e5m2", "fp4_e2m1", "fp8_ds_mla", "fp4_mla"};
  for (ww_kv_format i = WW_KV_F32; i <= WW_KV_FP4_MLA; ++i) {
    if (name == names[i]) return i;
  }
  throw nb::value_error(("KV format " + name +
                         " is not float32, bfloat16, float16, fp8_e4m3, fp8_e5m2, fp4_e2m1, "
                         "fp8_ds_mla or fp4_mla")
                            .c_str());
}

struct Workspace {
  Workspace(Context& owner, size_t bytes) {
    check(ww_workspace_create(owner.context, bytes, &workspace));
  }
  ~Workspace() { ww_workspace_destroy(workspace); }
  ww_workspace* workspace = nullptr;
};

struct KvCache {
  ConstTensor k;
  std::optional<ConstTensor> v;  // none: latent attention
  std::string format = "bfloat16";
  bool hnd = false;
  std::optional<ConstTensor> k_scales, v_scales, k_block_scales, v_block_scales;
};

// A KvCache for the length of a call.
struct KvView {
  explicit KvView(const KvCache& kv)
      : k(kv.k),
        v(kv.v),
        k_scales(kv.k_scales),
        v_scales(kv.v_scales),
        k_block_scales(kv.k_block_scales),
        v_block_scales(kv.v_block_scales) {
    cache.format = kv_format_of(kv.format);
    cache.layout = kv.hnd ? WW_KV_HND : WW_KV_NHD;
    cache.k = k.get();
    cache.v = v.get();
    cache.k_scales = k_scales.get();
    cache.v_scales = v_scales.get();
    cache.k_block_scales = k_block_scales.get();
    cache.v_block_scales = v_block_scales.get();
  }
  View k;
  OptionalView v, k_scales, v_scales, k_block_scales, v_block_scales;
  ww_kv_cache cache = WW_KV_CACHE_INIT;
};

struct PlanOptions {
  int num_q_heads, num_kv_heads, head_dim, v_head_dim, page_size;
  std::string kv_format, q_dtype, backend;
  float scale, softcap;
  bool causal;
  int window_left;
  bool use_sinks, use_tree_mask, deterministic;
  std::string device;
  int max_pages_per_request;
  bool latent;
};

class Plan {
 public:
  Plan(Workspace& workspace, const PlanOptions& o) {
    ww_plan_options options = WW_PLAN_OPTIONS_INIT;
    options.num_q_heads = o.num_q_heads;
    options.num_kv_heads = o.num_kv_heads;
    options.head_dim = o.head_dim;
    options.v_head_dim = o.v_head_dim;
    options.page_size = o.page_size;
    options.kv_format = kv_format_of(o.kv_format);
    options.q_dtype = dtype_of(o.q_dtype);
    options.scale = o.scale;
    options.logit_softcap = o.softcap;
    options.causal = o.causal;
    options.window_left = o.window_left;
    options.use_sinks = o.use_sinks;
    options.use_tree_mask = o.use_tree_mask;
    options.deterministic = o.deterministic;
    options.backend = o.backend.c_str();
    options.device = device_of(o.device);
    options.max_pages_per_request = o.max_pages_per_request;
    options.latent = o.latent;
    check(ww_plan_create(workspace.workspace, &options, &plan_));
  }
  ~Plan() { ww_plan_destroy(plan_); }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  std::string explain() const { return ww_plan_explain(plan_); }
  size_t workspace_bytes() const { return ww_plan_workspace_bytes(plan_); }

  void set_batch(const Ints& q_indptr, const std::optional<Ints>& kv_lens,
                 const std::optional<Ints>& page_table, const std::optional<Ints>& page_indptr,
                 const std::optional<Ints>& page_indices, const std::optional<Ints>& kv_indptr,
                 const std::optional<Words>& tree_mask, int page_size, uint64_t stream) {
    ww_batch batch = WW_BATCH_INIT;
    batch.stream = stream_of(stream);
    const size_t count = q_indptr.size();
    if (count == 0)
      throw nb::value_error("q_indptr: is empty, needs one entry more than there are requests");
    batch.num_requests = static_cast<int32_t>(count - 1);
    batch.page_size = page_size;
    batch.q_indptr = q_indptr.data();
    batch.kv_lens = array(kv_lens, count - 1, "kv_lens");
    batch.page_indptr = array(page_indptr, count, "page_indptr");
    batch.kv_indptr = array(kv_indptr, count, "kv_indptr");
    if (page_table) {
      if (page_table->ndim() != 2 || page_table->shape(0) != count - 1) {
        throw nb::value_error("page_table: must be [requests, pages]");
      }
      batch.page_table = page_table->data();
      batch.page_table_stride = static_cast<int64_t>(page_table->shape(1));
    }
    if (page_indices) batch.page_indices = page_indices->data();
    if (page_indptr && (!page_indices || page_indptr->data()[count - 1] >
                                             static_cast<int64_t>(page_indices->size()))) {
      throw nb::value_error("page_indices: has fewer entries than page_indptr says");
    }
    if (tree_mask) {
      if (static_cast<int64_t>(tree_mask->shape(0)) < q_indptr.data()[count - 1]) {
        throw nb::value_error("tree_mask: has fewer rows than the batch");
      }
      batch.tree_mask = tree_mask->data();
      batch.tree_mask_words = static_cast<int32_t>(tree_mask->shape(1));
    }
    check(ww_plan_batch(plan_, &batch));
  }

  void run(const ConstTensor& q, const KvCache& kv, const Tensor& out,
           const std::optional<Tensor>& lse_ln, const std::optional<ConstTensor>& sinks,
           uint64_t stream) {
    const View q_view(q), out_view(out);
    const OptionalView lse_view(lse_ln), sinks_view(sinks);
    const KvView kv_view(kv);
    ww_run_args args = WW_RUN_ARGS_INIT;
    args.q = q_view.get();
    args.kv = &kv_view.cache;
    args.out = out_view.get();
    args.lse_ln = lse_view.get();
    args.sinks = sinks_view.get();
    args.stream = stream_of(stream);
    ww_status status;
    {
      nb::gil_scoped_release released;
      status = ww_plan_run(plan_, &args);
    }
    check(status);
  }

 private:
  static const int32_t* array(const std::optional<Ints>& values, size_t count, const char* name) {
    if (!values) return nullptr;
    if (values->size() != count) {
      throw nb::value_error((std::string(name) + ": has " + std::to_string(values->size()) +
                             " entries, needs " + std::to_string(count))
                                .c_str());
    }
    return values->data();
  }

  ww_plan* plan_ = nullptr;
};

void append_kv(Context& context, const ConstTensor& k_new, const ConstTensor& v_new,
               const Longs& slots, const KvCache& kv, uint64_t stream) {
  const View k_view(k_new), v_view(v_new);
  const KvView kv_view(kv);
  size_t rows = k_new.ndim() > 0 ? k_new.shape(0) : 0;
  if (k_new.ndim() == 4) rows *= k_new.shape(1);
  if (slots.shape(0) != rows) throw nb::value_error("slots: needs one entry for each row of k_new");
  ww_append_args args = WW_APPEND_ARGS_INIT;
  args.k_new = k_view.get();
  args.v_new = v_view.get();
  args.slots = slots.data();
  args.stream = stream_of(stream);
  args.kv = &kv_view.cache;
  ww_status status;
  {
    nb::gil_scoped_release released;
    status = ww_append_kv(context.context, &args);
  }
  check(status);
}

void merge_states(Context& context, const ConstTensor& outs, const ConstTensor& lses_ln,
                  const Tensor& out, const std::optional<Tensor>& lse_ln, uint64_t stream) {
  const View outs_view(outs), lses_view(lses_ln), out_view(out);
  const OptionalView lse_view(lse_ln);
  ww_merge_args args = WW_MERGE_ARGS_INIT;
  args.outs = outs_view.get();
  args.lses_ln = lses_view.get();
  args.out = out_view.get();
  args.lse_ln = lse_view.get();
  args.stream = stream_of(stream);
  ww_status status;
  {
    nb::gil_scoped_release released;
    status = ww_merge_states(context.context, &args);
  }
  check(status);
}

std::string load_backend_plugin(const std::string& path) {
  const char* name = nullptr;
  check(ww_load_backend_plugin(path.c_str(), &name));
  return name;
}

std::vector<std::string> backends() {
  std::vector<std::string> names;
  for (const char* name; (name = ww_backend_name(static_cast<int32_t>(names.size()))) != nullptr;) {
    names.push_back(name);
  }
  return names;
}

}  // namespace

NB_MODULE(_core, m) {
  m.attr("abi_version") = ww_abi_version();
  nb::class_<Context>(m, "Context").def(nb::init<int>(), "threads"_a = 0);
  nb::class_<Workspace>(m, "Workspace")
      .def(nb::init<Context&, size_t>(), "context"_a, "bytes"_a = 0, nb::keep_alive<1, 2>());
  nb::class_<KvCache>(m, "KvCache")
      .def(
          "__init__",
          [](KvCache* self, ConstTensor k, std::optional<ConstTensor> v, std::string format, bool hnd,
             std::optional<ConstTensor> k_scales, std::optional<ConstTensor> v_scales,
             std::optional<ConstTensor> k_block_scales, std::optional<ConstTensor> v_block_scales) {
            new (self) KvCache{std::move(k),
                               std::move(v),
                               std::move(format),
                               hnd,
                               std::move(k_scales),
                               std::move(v_scales),
                               std::move(k_block_scales),
                               std::move(v_block_scales)};
          },
          "k"_a, "v"_a.none(), "format"_a, "hnd"_a = false, "k_scales"_a = nb::none(),
          "v_scales"_a = nb::none(), "k_block_scales"_a = nb::none(),
          "v_block_scales"_a = nb::none());
  nb::class_<Plan>(m, "Plan")
      .def(
          "__init__",
          [](Plan* self, Workspace& workspace, int num_q_heads, int num_kv_heads, int head_dim,
             int v_head_dim, int page_size, std::string kv_format, std::string q_dtype, float scale,
             float softcap, bool causal, int window_left, bool use_sinks, bool use_tree_mask,
             bool deterministic, std::string backend, std::string device,
             int max_pages_per_request, bool latent) {
            new (self) Plan(workspace, {num_q_heads, num_kv_heads, head_dim, v_head_dim, page_size,
                                        kv_format, q_dtype, backend, scale, softcap, causal,
                                        window_left, use_sinks, use_tree_mask, deterministic,
                                        device, max_pages_per_request, latent});
          },
          "workspace"_a, nb::kw_only(), "num_q_heads"_a, "num_kv_heads"_a, "head_dim"_a,
          "v_head_dim"_a = 0, "page_size"_a = 0, "kv_format"_a, "q_dtype"_a, "scale"_a = 0.0f,
          "softcap"_a = 0.0f, "causal"_a = true, "window_left"_a = -1, "use_sinks"_a = false,
          "use_tree_mask"_a = false, "deterministic"_a = false, "backend"_a = "",
          "device"_a = "cpu", "max_pages_per_request"_a = 0, "latent"_a = false, nb::keep_alive<1, 2>())
      .def("explain", &Plan::explain)
      .def("workspace_bytes", &Plan::workspace_bytes)
      .def("set_batch", &Plan::set_batch, nb::kw_only(), "q_indptr"_a, "kv_lens"_a = nb::none(),
           "page_table"_a = nb::none(), "page_indptr"_a = nb::none(), "page_indices"_a = nb::none(),
           "kv_indptr"_a = nb::none(), "tree_mask"_a = nb::none(), "page_size"_a = 0,
           "stream"_a = 0)
      .def("run", &Plan::run, "q"_a, "kv"_a, "out"_a, "lse_ln"_a = nb::none(),
           "sinks"_a = nb::none(), "stream"_a = 0);
  m.def("append_kv", &append_kv, "context"_a, "k_new"_a, "v_new"_a, "slots"_a, "kv"_a,
        "stream"_a = 0);
  m.def("merge_states", &merge_states, "context"_a, "outs"_a, "lses_ln"_a, "out"_a,
        "lse_ln"_a = nb::none(), "stream"_a = 0);
  bind_linear_attention(m);
  m.def("load_backend_plugin", &load_backend_plugin, "path"_a);
  m.def("backends", &backends);
}
