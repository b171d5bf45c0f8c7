#include "conformance/matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "attention/registry.h"
#include "attention/select_rules.h"
#include "device/cpu/cpu_info.h"

namespace warpweave::conformance {
namespace {

constexpr std::string_view kMultimodal = "multimodal", kChunkedCache = "chunked prefix cache",
                           kBothWays = "bidirectional";

constexpr AttentionKind kKinds[] = {AttentionKind::mha, AttentionKind::mla, AttentionKind::sparse,
                                    AttentionKind::linear, AttentionKind::mm};

// The vision kernels that stand beside a backend's own, by the names of --mm-attention-backend.
struct VisionKernel {
  std::string_view backend, kernel;
};
constexpr VisionKernel kVisionKernels[] = {{"fa3", "fa3"},          {"fa4", "fa4"},
                                           {"triton", "triton_attn"}, {"torch_native", "sdpa"},
                                           {"intel_amx", "amx_attn"}, {"intel_xpu", "xpu_attn"},
                                           {"ascend", "sdpa"}};

// Whether the field has a vision kernel beside this backend. None is written here.
bool has_vision_kernel(const Caps& caps) {
  for (const VisionKernel& vision : kVisionKernels) {
    if (vision.backend != caps.name) continue;
    for (const KnownBackend& layer : known_layer_backends()) {
      const Caps& kernel = *layer.caps;
      if (kernel.kinds.has(AttentionKind::mm) && kernel.name == vision.kernel &&
          (kernel.archs.bits & caps.archs.bits) != 0) {
        return true;
      }
    }
  }
  return false;
}

// The rule by which Caps refuse a column of their kind; empty when they claim it.
std::string rule_of(const Caps& caps, AttentionKind kind, std::string_view column) {
  if (kind == AttentionKind::mm) return "";
  if (column == kChunkedCache) return caps.mla_chunked_prefix ? "" : "has no chunked prefix cache";
  if (column == kMultimodal) return has_vision_kernel(caps) ? "" : "has no kernels for vision towers";
  return refusal_of(caps, column);
}

EnumSet<DeviceArch> archs_without(EnumSet<DeviceArch> archs, EnumSet<DeviceArch> gone) {
  archs.bits &= ~gone.bits;
  return archs;
}

std::vector<std::string> names_of(EnumSet<DeviceArch> archs) {
  std::vector<std::string> names;
  for (int i = 0; i < kNumDeviceArchs; ++i) {
    if (archs.has(static_cast<DeviceArch>(i))) names.emplace_back(arch_name(static_cast<DeviceArch>(i)));
  }
  return names;
}

std::string pages_of(const Caps& caps) {
  return page_sizes_text(caps) + (caps.expands_pages ? ", others expanded" : "");
}

MatrixRow row_of(const Caps& caps, AttentionKind kind, EnumSet<DeviceArch> archs, RowState state) {
  MatrixRow row;
  row.state = state;
  row.kind = kind;
  row.name = caps.name;
  row.archs = names_of(archs);
  row.kernels = caps.kernels;
  row.pages = pages_of(caps);
  Caps narrowed = caps;
  narrowed.archs = archs;
  for (std::string_view column : columns_of(kind)) {
    const std::string rule = rule_of(narrowed, kind, column);
    row.cells.push_back({rule.empty() ? CellState::claimed : CellState::refused, rule});
  }
  return row;
}

// What a device proved of one backend: the report's cells, and columns that no case can prove.
MatrixRow proven_row(const Caps& caps, AttentionKind kind, const BackendReport& backend, const DeviceReport& report,
                     int device) {
  EnumSet<DeviceArch> ran;
  for (int i = 0; i < kNumDeviceArchs; ++i) {
    const auto arch = static_cast<DeviceArch>(i);
    if (arch_name(arch) == report.arch) ran.bits |= 1u << i;
  }
  MatrixRow row = row_of(caps, kind, ran, RowState::proven);
  row.device = device;
  row.via = backend.via;
  const auto columns = columns_of(kind);
  const auto of_report = matrix_columns(kind);
  for (size_t i = 0; i < columns.size(); ++i) {
    for (size_t j = 0; j < of_report.size(); ++j) {
      if (of_report[j].title == columns[i]) row.cells[i] = {backend.cells[j].state, backend.cells[j].text};
    }
  }
  return row;
}

// The tiers of a CPU that kernels are written for, one variant each (variants.cc); empty: there is one form.
std::vector<std::string> written_tiers(const Caps& caps) {
  std::vector<std::string> tiers;
  const bool linear = caps.kernels.decode == "linear_cpu";
  if (!linear && caps.kernels.decode != "intel_amx") return tiers;
  for (int i = 0; i <= static_cast<int>(CpuTier::amx_bf16); ++i) {
    const auto tier = static_cast<CpuTier>(i);
    if (!linear || tier != CpuTier::avx512_bf16) tiers.emplace_back(cpu_tier_name(tier));
  }
  return tiers;
}

std::vector<std::string> tiers_that_ran(const BackendReport& backend) {
  std::vector<std::string> tiers;
  for (const std::string& variant : backend.variants) tiers.push_back(variant.substr(variant.find('@') + 1));
  return tiers;
}

bool is_of(const BackendReport& backend, const Caps& caps) {
  const BackendReport claims = claims_of(caps);
  return backend.name == caps.name && backend.kind == claims.kind && backend.archs == claims.archs;
}

// Rows of what is written: one per architecture that ran, one for the rest.
void add_written(const Caps& caps, AttentionKind kind, std::span<const DeviceReport> reports,
                 std::vector<MatrixRow>& rows) {
  EnumSet<DeviceArch> open = caps.archs;
  std::vector<std::string> open_tiers = written_tiers(caps);
  const bool has_tiers = !open_tiers.empty();
  for (size_t d = 0; d < reports.size(); ++d) {
    for (const BackendReport& backend : reports[d].backends) {
      if (!is_of(backend, caps)) continue;
      rows.push_back(proven_row(caps, kind, backend, reports[d], static_cast<int>(d) + 1));
      if (has_tiers) rows.back().tiers = tiers_that_ran(backend);
      std::erase_if(open_tiers, [&](const std::string& tier) {
        return std::find(rows.back().tiers.begin(), rows.back().tiers.end(), tier) != rows.back().tiers.end();
      });
      for (int i = 0; i < kNumDeviceArchs; ++i) {
        if (arch_name(static_cast<DeviceArch>(i)) == reports[d].arch) open.bits &= ~(1u << i);
      }
    }
  }
  if (!open.has(DeviceArch::cpu_x86_64) && !open_tiers.empty()) {
    rows.push_back(row_of(caps, kind, {DeviceArch::cpu_x86_64}, RowState::claimed));
    rows.back().tiers = open_tiers;
  }
  if (open.bits != 0) rows.push_back(row_of(caps, kind, open, RowState::claimed));
}

bool is_declared(std::string_view name, AttentionKind kind) {
  const auto declared = declared_backends();
  return std::any_of(declared.begin(), declared.end(),
                     [&](const Caps& caps) { return caps.name == name && caps.kinds.has(kind); });
}

void add_backends(AttentionKind kind, std::span<const DeviceReport> reports, std::vector<MatrixRow>& rows) {
  for (const Caps& declared : declared_backends()) {
    if (!declared.kinds.has(kind)) continue;
    EnumSet<DeviceArch> missing = declared.archs;
    std::vector<MatrixRow> written;
    for (const Caps* caps : written_backends()) {
      if (caps->name != declared.name || !caps->kinds.has(kind)) continue;
      missing = archs_without(missing, caps->archs);
      add_written(*caps, kind, reports, written);
    }
    std::stable_sort(written.begin(), written.end(),
                     [](const MatrixRow& a, const MatrixRow& b) { return a.state < b.state; });
    rows.insert(rows.end(), written.begin(), written.end());
    if (missing.bits != 0) rows.push_back(row_of(declared, kind, missing, RowState::not_written));
  }
  // What the field does not have.
  for (const Caps* caps : written_backends()) {
    if (caps->kinds.has(kind) && !is_declared(caps->name, kind)) add_written(*caps, kind, reports, rows);
  }
}

// What a report says of a backend whose Caps are not those of this tree: a plug-in, or another version.
MatrixRow foreign_row(const BackendReport& backend, const DeviceReport& report, int device) {
  MatrixRow row;
  row.state = RowState::proven;
  row.name = backend.name;
  row.archs = {report.arch};
  row.device = device;
  row.via = backend.via;
  row.pages = backend.page_sizes + (backend.expands_pages ? ", others expanded" : "");
  for (const Cell& cell : backend.cells) row.cells.push_back({cell.state, cell.text});
  if (backend.kind == kind_name(AttentionKind::linear))
    row.kind = AttentionKind::linear;
  else
    row.cells.push_back({CellState::refused, "has no kernels for vision towers"});
  return row;
}

void add_foreign(std::span<const DeviceReport> reports, std::vector<MatrixRow>& rows) {
  std::vector<const Caps*> written(written_backends().begin(), written_backends().end());
  for (const KnownBackend& layer : known_layer_backends()) written.push_back(layer.caps);
  for (size_t d = 0; d < reports.size(); ++d) {
    for (const BackendReport& backend : reports[d].backends) {
      if (std::none_of(written.begin(), written.end(), [&](const Caps* caps) { return is_of(backend, *caps); })) {
        rows.push_back(foreign_row(backend, reports[d], static_cast<int>(d) + 1));
      }
    }
  }
}

}  // namespace

std::vector<std::string_view> columns_of(AttentionKind kind) {
  std::vector<std::string_view> titles;
  switch (kind) {
    case AttentionKind::mha:
      for (const Column& column : matrix_columns()) titles.push_back(column.title);
      titles.push_back(kMultimodal);
      break;
    case AttentionKind::mla:
      titles = {"prefill", "decode", "cached prefix", kChunkedCache, "pages > 1", "FP8 KV", "FP8 e5m2 KV",
                "FP4 KV", "topk = 1", "topk > 1", "deterministic", "graphs"};
      break;
    case AttentionKind::sparse:
      titles = {"prefill", "decode", "cached prefix", "FP8 KV", "topk = 1", "topk > 1", "graphs"};
      break;
    case AttentionKind::linear:
      for (const Column& column : matrix_columns(kind)) titles.push_back(column.title);
      break;
    case AttentionKind::mm: titles = {kBothWays}; break;
  }
  return titles;
}

std::vector<MatrixRow> make_matrix(std::span<const DeviceReport> reports) {
  std::vector<MatrixRow> rows;
  for (AttentionKind kind : kKinds) {
    add_backends(kind, reports, rows);
    if (kind == AttentionKind::mha) add_foreign(reports, rows);
    for (const KnownBackend& layer : known_layer_backends()) {
      if (!layer.caps->kinds.has(kind)) continue;
      if (layer.written)
        add_written(*layer.caps, kind, reports, rows);
      else
        rows.push_back(row_of(*layer.caps, kind, layer.caps->archs, RowState::not_written));
    }
  }
  return rows;
}

}  // namespace warpweave::conformance
