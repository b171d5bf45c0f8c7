#include "attention/plugin_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <string>

#include "attention/select.h"
#include "base/log.h"
#include "base/threads.h"

namespace warpweave {
namespace {

constexpr size_t kMaxNameLength = 64;
constexpr size_t kErrorBytes = 1024;

Status invalid(std::string_view field, const std::string& text) {
  return Status::invalid_argument(fmt::format("its table's {} {}", field, text));
}

// What a table may claim in a later version of this program, and what it must claim for this one.
Status check_callable(const ww_backend_caps& from) {
  if (!(from.kinds & WW_KIND_MHA)) {
    return Status::unsupported(
        "claims MLA, sparse or linear attention alone (its table's caps.kinds); this program calls "
        "plug-ins for MHA");
  }
  if (from.devices != WW_RUNS_ON_CPU && from.devices != WW_RUNS_ON_CUDA) {
    return Status::unsupported(
        fmt::format("claims the devices {:#x} (its table's caps.devices); this program calls plug-ins "
                    "for one of WW_RUNS_ON_CPU and WW_RUNS_ON_CUDA",
                    from.devices));
  }
  if (std::any_of(std::begin(from.reserved), std::end(from.reserved), [](uint8_t byte) { return byte != 0; })) {
    return invalid("caps.reserved", "must be 0");
  }
  if (from.right_window) {
    return Status::unsupported("claims bounded right windows (its table's caps.right_window), which this program asks "
                               "no plug-in for and so does not check; claim 0");
  }
  return {};
}

Status check_bits(std::string_view field, uint32_t bits, uint32_t known) {
  if (bits == 0) return invalid(field, "is 0: it claims nothing");
  if ((bits & ~known) == 0) return {};
  return invalid(field, fmt::format("is {:#x}; this program knows the bits {:#x}", bits, known));
}

Status read_choice(std::string_view field, const ww_int_choice& from, IntChoice& out) {
  if (from.count < 0 || from.count > WW_PLUGIN_MAX_CHOICES) {
    return invalid(field,
                   fmt::format("has count {}, must be 0 to {}", from.count, WW_PLUGIN_MAX_CHOICES));
  }
  if (from.count == 0) {
    if (from.max < 0) return invalid(field, fmt::format("has max {}, must be 0 or more", from.max));
    out = IntChoice::any_up_to(from.max);
    return {};
  }
  for (int i = 0; i < from.count; ++i) {
    if (from.values[i] < 1)
      return invalid(field, fmt::format("has the value {}, must be 1 or more", from.values[i]));
    out.values[i] = from.values[i];
  }
  return {};
}

Status check_name(const char* name) {
  if (name == nullptr || *name == 0) return invalid("caps.name", "is missing");
  const std::string_view text(name, strnlen(name, kMaxNameLength + 1));
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
  if (text.size() > kMaxNameLength || !plain) {
    return invalid("caps.name",
                   fmt::format("must be at most {} letters, digits and _", kMaxNameLength));
  }
  if (text == "auto" || text == "reference" || text == "hybrid") {
    return invalid("caps.name", fmt::format("is {}, a name with a meaning of its own", text));
  }
  return {};
}

Status read_archs(const ww_backend_caps& from, Caps& caps) {
  if (from.devices == WW_RUNS_ON_CPU) {
    caps.archs = kCpuArchs;
    return {};
  }
  IntChoice versions;
  WW_RETURN_IF_ERROR(read_choice("caps.compute_capabilities", from.compute_capabilities, versions));
  for (int version = 1; version < 1000; ++version) {
    const std::optional<DeviceArch> arch = arch_of_compute_capability(version);
    if (arch && versions.accepts(version)) caps.archs.bits |= EnumSet{*arch}.bits;
  }
  if (caps.archs.bits == 0) return invalid("caps.compute_capabilities", "has none that this program knows");
  return {};
}

Status read_caps(const ww_backend_caps& from, Caps& caps) {
  WW_RETURN_IF_ERROR(check_name(from.name));
  WW_RETURN_IF_ERROR(check_bits("caps.phases", from.phases, WW_PHASE_PREFILL | WW_PHASE_DECODE));
  WW_RETURN_IF_ERROR(check_bits("caps.kinds", from.kinds, 2 * WW_KIND_LINEAR - 1));
  WW_RETURN_IF_ERROR(check_bits("caps.devices", from.devices, 2 * WW_RUNS_ON_OTHER - 1));
  WW_RETURN_IF_ERROR(check_callable(from));
  WW_RETURN_IF_ERROR(check_bits("caps.model_dtypes", from.model_dtypes,
                                WW_MODEL_F32 | WW_MODEL_BF16 | WW_MODEL_F16));
  WW_RETURN_IF_ERROR(
      check_bits("caps.kv_formats", from.kv_formats, WW_KV_BIT(WW_KV_FP4_E2M1 + 1) - 1));
  WW_RETURN_IF_ERROR(read_choice("caps.head_dims", from.head_dims, caps.head_dims));
  WW_RETURN_IF_ERROR(read_choice("caps.page_sizes", from.page_sizes, caps.page_sizes));
  if (from.spec > WW_SPEC_TREE || from.spec_paged > WW_SPEC_TREE) {
    return invalid("caps.spec", fmt::format("is {} and {}, must be 0 to {}", from.spec,
                                            from.spec_paged, +WW_SPEC_TREE));
  }
  if ((from.spec == WW_SPEC_TREE || from.spec_paged == WW_SPEC_TREE) && !from.custom_mask) {
    return invalid("caps.spec", "claims trees, which need custom_mask");
  }
  caps.name = from.name;
  caps.summary = from.summary != nullptr ? from.summary : "";
  caps.kinds = {AttentionKind::mha};
  if (from.phases & WW_PHASE_PREFILL) caps.phases.bits |= EnumSet{AttentionPhase::prefill}.bits;
  if (from.phases & WW_PHASE_DECODE) caps.phases.bits |= EnumSet{AttentionPhase::decode}.bits;
  WW_RETURN_IF_ERROR(read_archs(from, caps));
  caps.dtypes.bits = from.model_dtypes;
  caps.kv_formats.bits = from.kv_formats;
  caps.expands_pages = from.expands_pages;
  caps.sliding_window = from.sliding_window;
  caps.sinks = from.sinks;
  caps.softcap = from.softcap;
  caps.custom_mask = from.custom_mask;
  caps.chunked_prefix = from.chunked_prefix;
  caps.non_causal = from.non_causal;
  caps.deterministic = from.deterministic;
  caps.deterministic_trees = false;  // no field of the table says so
  caps.spec = static_cast<SpecSupport>(from.spec);
  caps.spec_paged = static_cast<SpecSupport>(from.spec_paged);
  caps.workspace_bytes = from.workspace_bytes;
  return {};
}
static_assert(WW_MODEL_F32 == 1 << static_cast<int>(ModelDType::f32) &&
              WW_MODEL_BF16 == 1 << static_cast<int>(ModelDType::bf16) &&
              WW_MODEL_F16 == 1 << static_cast<int>(ModelDType::f16));
static_assert(WW_KV_F32 == static_cast<int>(KvFormat::f32) &&
              WW_KV_FP4_MLA == static_cast<int>(KvFormat::fp4_mla));
static_assert(WW_MODE_DRAFT_EXTEND == static_cast<int>(ForwardMode::draft_extend));

ww_dtype dtype_of(DType dtype) {
  if (dtype == DType::bf16) return {WW_DTYPE_BFLOAT, 16, 1};
  return {WW_DTYPE_FLOAT, static_cast<uint8_t>(dtype == DType::f16 ? 16 : 32), 1};
}

ww_dtype kv_dtype(KvFormat format) {
  switch (format) {
    case KvFormat::f32: return {WW_DTYPE_FLOAT, 32, 1};
    case KvFormat::bf16: return {WW_DTYPE_BFLOAT, 16, 1};
    case KvFormat::f16: return {WW_DTYPE_FLOAT, 16, 1};
    case KvFormat::fp8_e4m3: return {WW_DTYPE_FLOAT8_E4M3FN, 8, 1};
    case KvFormat::fp8_e5m2: return {WW_DTYPE_FLOAT8_E5M2, 8, 1};
    case KvFormat::fp4_e2m1:
    case KvFormat::fp8_ds_mla:
    case KvFormat::fp4_mla: return {WW_DTYPE_UINT, 8, 1};
  }
  return {};
}

// The shape and strides behind a ww_tensor.
struct Tensor {
  struct Dimension { int64_t size, stride; };

  Tensor(const void* data, ww_dtype dtype, bool on_gpu, std::initializer_list<Dimension> dimensions)
      : data(const_cast<void*>(data)), dtype(dtype), device{on_gpu ? WW_DEVICE_CUDA : WW_DEVICE_CPU, 0} {
    for (const Dimension& dimension : dimensions) {
      shape[ndim] = dimension.size;
      strides[ndim++] = dimension.stride;
    }
  }
  // Points into this object.
  ww_tensor view() { return {data, device, ndim, dtype, shape, strides, 0}; }

  void* data;
  ww_dtype dtype;
  ww_device device;
  int ndim = 0;
  int64_t shape[4], strides[4];
};

class PluginBackend : public AttentionBackend {
 public:
  PluginBackend(const PluginTable& plugin, const BackendContext& context)
      : plugin_(plugin), team_(context.team) {
    host_.struct_size = sizeof(host_);
    host_.threads = team_->size();
    host_.max_context_len = context.max_context_len;
    host_.page_size = context.page_size;
    host_.device = plugin.table.caps->devices;
    host_.host = this;
    host_.parallel_for = &PluginBackend::parallel_for;
  }
  ~PluginBackend() override {
    if (created_) plugin_.table.destroy(backend_);
  }

  Status create();
  const Caps& caps() const override { return plugin_.caps; }
  Status init_forward_metadata(const ForwardBatch& batch) override {
    return plan(batch, plugin_.table.init_forward_metadata);
  }
  Status forward_extend(const ForwardBatch& batch, const AttentionCall& call) override {
    return forward(batch, call, plugin_.table.forward_extend);
  }
  Status forward_decode(const ForwardBatch& batch, const AttentionCall& call) override {
    return forward(batch, call, plugin_.table.forward_decode);
  }
  Status init_cuda_graph_state(const GraphLimits& limits) override;
  Status init_forward_metadata_capture_cuda_graph(const ForwardBatch& batch) override;
  Status init_forward_metadata_replay_cuda_graph(const ForwardBatch& batch) override;

 private:
  using PlanFn = ww_status (*)(void*, const ww_forward_batch*, ww_plugin_error*);
  using ForwardFn = ww_status (*)(void*, const ww_forward_batch*, const ww_attention_call*, ww_plugin_error*);

  static void parallel_for(void* host, int64_t count, ww_parallel_body body, void* arg);
  Status plan(const ForwardBatch& batch, PlanFn function);
  Status forward(const ForwardBatch& batch, const AttentionCall& call, ForwardFn function);
  void read_batch(const ForwardBatch& batch);
  void read_pages(const ForwardBatch& batch);
  template <typename Function>
  Status checked(Function function);
  bool on_gpu() const { return host_.device == WW_RUNS_ON_CUDA; }
  Tensor kv_tensor(const KvPoolView& pool, int heads, int dim) const;

  const PluginTable& plugin_;
  ThreadTeam* team_;
  ww_plugin_host host_{};
  void* backend_ = nullptr;
  bool created_ = false;
  ww_forward_batch batch_{};
  int64_t pages_ = 0;  // one past the largest page id of the batch; 0: not known
};

void PluginBackend::parallel_for(void* host, int64_t count, ww_parallel_body body, void* arg) {
  ThreadTeam& team = *static_cast<PluginBackend*>(host)->team_;
  const int64_t grain = std::max<int64_t>(1, count / (team.size() * 8));
  std::atomic<int64_t> next{0};
  team.run([&](int member, int) {
    for (int64_t i; (i = next.fetch_add(grain, std::memory_order_relaxed)) < count;) {
      body(arg, i, std::min(count, i + grain), member);
    }
  });
}

// Runs a function that may fail, with room for its message.
template <typename Function>
Status PluginBackend::checked(Function function) {
  char text[kErrorBytes] = "";
  ww_plugin_error error = {text, sizeof(text)};
  const ww_status code = function(&error);
  if (code == WW_OK) return {};
  text[sizeof(text) - 1] = 0;
  const std::string message =
      fmt::format("attention backend {}: {}", plugin_.caps.name,
                  *text != 0 ? log_safe(text) : fmt::format("failed with code {}", code));
  return code == WW_INVALID_ARGUMENT     ? Status::invalid_argument(message)
         : code == WW_UNSUPPORTED        ? Status::unsupported(message)
         : code == WW_RESOURCE_EXHAUSTED ? Status::resource_exhausted(message)
                                         : Status::internal(message);
}

Status PluginBackend::create() {
  WW_RETURN_IF_ERROR(checked([&](ww_plugin_error* error) {
    return plugin_.table.create(&host_, &backend_, error);
  }));
  created_ = true;
  return {};
}

void PluginBackend::read_batch(const ForwardBatch& batch) {
  batch_ = {};
  batch_.struct_size = sizeof(batch_);
  batch_.mode = static_cast<int32_t>(batch.mode);
  batch_.num_requests = batch.num_reqs;
  batch_.num_rows = batch.num_tokens;
  batch_.max_q_len = batch.max_q_len;
  batch_.max_kv_len = batch.max_kv_len;
  batch_.page_size = batch.page_size;
  batch_.page_table_stride = batch.page_table_stride;
  batch_.q_indptr = batch.q_indptr.data();
  batch_.kv_lens = batch.kv_lens.data();
  if (!batch.tree_mask.empty()) {
    batch_.positions = batch.positions.data();
    batch_.tree_mask = batch.tree_mask.data();
    batch_.tree_mask_words = batch.tree_mask_words;
  }
  batch_.causal = batch.causal;
  batch_.stream = batch.device.stream;
  batch_.device = {batch.device.q_indptr, batch.device.kv_lens, batch.device.page_table, batch.device.positions,
                   batch.device.tree_mask};
  read_pages(batch);
}

void PluginBackend::read_pages(const ForwardBatch& batch) {
  batch_.page_table = batch.page_table.data();
  batch_.device.page_table = batch.device.page_table;
  pages_ = 0;
  if (on_gpu()) return;
  for (int r = 0; r < batch.num_reqs; ++r) {
    const int pages = (batch.kv_lens[r] + batch.page_size - 1) / batch.page_size;
    for (int p = 0; p < pages; ++p)
      pages_ = std::max<int64_t>(pages_, int64_t{batch.pages_of(r)[p]} + 1);
  }
}

Status PluginBackend::plan(const ForwardBatch& batch, PlanFn function) {
  read_batch(batch);
  return checked([&](ww_plugin_error* error) { return function(backend_, &batch_, error); });
}

Tensor PluginBackend::kv_tensor(const KvPoolView& pool, int heads, int dim) const {
  const int per_byte = pool.format == KvFormat::fp4_e2m1 ? 2 : 1;
  return {pool.data, kv_dtype(pool.format), on_gpu(),
          {{pages_, pool.page_stride / per_byte},
           {batch_.page_size, pool.token_stride / per_byte},
           {heads, pool.head_stride / per_byte},
           {dim / per_byte, 1}}};
}

Status PluginBackend::forward(const ForwardBatch& batch, const AttentionCall& call, ForwardFn function) {
  // Layers of another cache group than the planned batch's stand on other pages.
  if (batch_.page_table != batch.page_table.data() || batch_.device.page_table != batch.device.page_table)
    read_pages(batch);
  Tensor q(call.q, dtype_of(call.q_dtype), on_gpu(), {{batch_.num_rows, call.q_token_stride},
                          {call.num_q_heads, call.head_dim},
                          {call.head_dim, 1}});
  Tensor out(call.out, dtype_of(call.out_dtype), on_gpu(), {{batch_.num_rows, call.out_token_stride},
                              {call.num_q_heads, call.v_head_dim},
                              {call.v_head_dim, 1}});
  Tensor k = kv_tensor(call.k, call.num_kv_heads, call.head_dim);
  Tensor v = kv_tensor(call.v, call.num_kv_heads, call.v_head_dim);
  ww_attention_call c = {};
  c.struct_size = sizeof(c);
  c.kind = WW_KIND_MHA;
  c.layer = call.layer;
  c.num_q_heads = call.num_q_heads;
  c.num_kv_heads = call.num_kv_heads;
  c.head_dim = call.head_dim;
  c.v_head_dim = call.v_head_dim;
  c.scale = call.scale;
  c.logit_softcap = call.logit_softcap;
  c.window_left = call.window_left;
  c.window_right = batch_.causal ? 0 : -1;
  c.kv_format = static_cast<ww_kv_format>(call.k.format);
  c.sinks = call.sinks;
  c.k_scales = call.k.head_scales;
  c.v_scales = call.v.head_scales;
  c.k_block_scales = call.k.block_scales;
  c.v_block_scales = call.v.block_scales;
  c.q = q.view();
  c.k = k.view();
  c.v = v.view();
  c.out = out.view();
  c.lse_ln = call.lse;
  return checked([&](ww_plugin_error* error) { return function(backend_, &batch_, &c, error); });
}

Status PluginBackend::init_cuda_graph_state(const GraphLimits& limits) {
  if (!plugin_.caps.graph_capture) return AttentionBackend::init_cuda_graph_state(limits);
  const ww_graph_limits given = {sizeof(ww_graph_limits), limits.max_batch_size, limits.max_tokens,
                                 limits.max_pages_per_request};
  return checked([&](ww_plugin_error* error) {
    return plugin_.table.init_cuda_graph_state(backend_, &given, error);
  });
}
Status PluginBackend::init_forward_metadata_capture_cuda_graph(const ForwardBatch& batch) {
  if (!plugin_.caps.graph_capture)
    return AttentionBackend::init_forward_metadata_capture_cuda_graph(batch);
  return plan(batch, plugin_.table.init_forward_metadata_capture_cuda_graph);
}
Status PluginBackend::init_forward_metadata_replay_cuda_graph(const ForwardBatch& batch) {
  if (!plugin_.caps.graph_capture)
    return AttentionBackend::init_forward_metadata_replay_cuda_graph(batch);
  return plan(batch, plugin_.table.init_forward_metadata_replay_cuda_graph);
}

}  // namespace

Result<PluginTable> read_plugin_table(const ww_backend_table* table) {
  if (table == nullptr) {
    return Status::unsupported(
        fmt::format("has no backend for ABI version {}, this program's; build it against "
                    "this program's warpweave/plugin.h",
                    WW_PLUGIN_ABI_VERSION));
  }
  if (table->abi_version != WW_PLUGIN_ABI_VERSION) {
    return Status::unsupported(
        fmt::format("was built for ABI version {}, this program has version {}; build it "
                    "against this program's warpweave/plugin.h{}",
                    table->abi_version, WW_PLUGIN_ABI_VERSION,
                    table->abi_version == 1 ? ", in which forward_extend and forward_decode return a status" : ""));
  }
  // Both are whole since this version: smaller ones are mistakes, larger ones are newer.
  if (table->struct_size < sizeof(ww_backend_table)) {
    return invalid("struct_size", fmt::format("is {}, must be at least {}", table->struct_size,
                                              sizeof(ww_backend_table)));
  }
  if (table->caps == nullptr || table->caps->struct_size < sizeof(ww_backend_caps)) {
    return invalid("caps", table->caps == nullptr
                               ? "are NULL"
                               : fmt::format("have struct_size {}, must be at least {}",
                                             table->caps->struct_size, sizeof(ww_backend_caps)));
  }
  PluginTable plugin;
  plugin.table = *table;
  const ww_backend_table& t = plugin.table;
  if (t.create == nullptr || t.destroy == nullptr || t.init_forward_metadata == nullptr ||
      t.forward_extend == nullptr || t.forward_decode == nullptr) {
    return invalid("functions",
                   "create, destroy, init_forward_metadata, forward_extend and forward_decode must "
                   "all be there");
  }
  const int graphs = (t.init_cuda_graph_state != nullptr) +
                     (t.init_forward_metadata_capture_cuda_graph != nullptr) +
                     (t.init_forward_metadata_replay_cuda_graph != nullptr);
  if (graphs != 0 && graphs != 3)
    return invalid("functions", "for graphs must be all there or all NULL");
  WW_RETURN_IF_ERROR(read_caps(*t.caps, plugin.caps));
  plugin.caps.graph_capture = graphs == 3;
  return plugin;
}

std::unique_ptr<AttentionBackend> create_plugin_backend(const PluginTable& plugin,
                                                        const BackendContext& context) {
  auto backend = std::make_unique<PluginBackend>(plugin, context);
  const Status status = backend->create();
  if (status.ok()) return backend;
  LOG_ERROR("{}", status.message());
  return nullptr;
}

}  // namespace warpweave
