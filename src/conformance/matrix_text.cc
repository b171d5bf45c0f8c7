// The matrix as Markdown and as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <ranges>
#include <nlohmann/json.hpp>

#include "conformance/matrix.h"

namespace warpweave::conformance {
namespace {

using Json = nlohmann::ordered_json;

struct KindText {
  AttentionKind kind;
  std::string_view title, flag;
};
constexpr KindText kKindTexts[] = {
    {AttentionKind::mha, "MHA (and GQA, MQA)", "--attention-backend"},
    {AttentionKind::mla, "MLA (DeepSeek's latent attention)", "--attention-backend"},
    {AttentionKind::sparse, "Sparse attention (DeepSeek V3.2)",
     "--attention-backend nsa, its kernels by --nsa-prefill-backend and --nsa-decode-backend"},
    {AttentionKind::linear, "Linear attention (GDN and KDA layers of hybrid models)", "--linear-attn-backend"},
    {AttentionKind::mm, "Multimodal (vision towers)", "--mm-attention-backend"},
};

// What stands behind a name of Caps::kernels.
struct FamilyText {
  std::string_view name, text;
};
constexpr FamilyText kFamilyTexts[] = {
    {"sm90_extend", "TMA and WGMMA on Hopper, `backends/fa3/kernels`"},
    {"sm80_extend", "tiles by mma.sync, `backends/flashinfer/kernels/sm80_extend.cuh`"},
    {"sm80_decode", "split-KV by mma.sync, `backends/flashinfer/kernels/sm80_decode.cuh`"},
    {"sm90_latent_extend",
     "long prompts of MLA with up-projected K and V, Q and K of 192, V of 128 dims, `backends/fa3/kernels`"},
    {"sm90_mla", "MLA by TMA and WGMMA, `cuda/mla/sm90_mla.cuh`"},
    {"sm80_mla", "MLA by mma.sync, `cuda/mla/sm80_mla.cuh`"},
    {"tile", "portable tiles, compiled at run time (NVRTC, OpenCL), `tile/kernels`"},
    {"cpu_tiles", "CPU tiles that backends share, `cpu_tiles`"},
    {"intel_amx", "CPU: AMX, AVX512-BF16, AVX-512, AVX2 or scalar, `backends/intel_amx`"},
    {"row by row", "one query row after the other, `backends/torch_native/backend.cc`"},
    {"row by row (CUDA)", "a block for each query row, `backends/torch_native/cuda_attention.cu`"},
    {"linear_tile", "GDN and KDA by chunks of 64 tokens, mma.sync on NVIDIA GPUs from sm_80 (`src/linear/cuda`)"},
    {"linear_wgmma", "the same with WGMMA on Hopper (`src/linear/cuda`)"},
    {"linear_step",
     "GDN and KDA token by token in f32 on NVIDIA GPUs; a step (`src/linear/cuda/decode.cuh`), all else "
     "(`recurrent.cuh`)"},
    {"linear_portable",
     "GDN and KDA in one source for OpenCL, CUDA and HIP: blocks of 16 tokens, steps, draft trees (`src/linear/tile`)"},
    {"linear_cpu", "GDN and KDA on CPUs: chunks, steps and draft trees, AMX to portable (`src/linear/cpu`)"},
};

std::string state_name(RowState state) {
  switch (state) {
    case RowState::proven: return "proven";
    case RowState::claimed: return "claimed";
    case RowState::not_written: return "not written";
  }
  return "";
}

std::string device_mark(int device, std::span<const DeviceReport> reports, const std::string& here) {
  const bool is_here = !here.empty() && reports[device - 1].device == here;
  return is_here ? "here" : fmt::format("[{}]", device);
}

std::string cell_text(const MatrixRow& row, const MatrixCell& cell, const std::string& device) {
  switch (cell.state) {
    case CellState::refused: return "-";
    case CellState::failed: return "FAILED " + device;
    case CellState::proven: return "proven " + device;
    case CellState::claimed: break;
  }
  return row.state == RowState::not_written ? "not written" : "claimed";
}

std::string archs_text(const MatrixRow& row) {
  return fmt::format("{}{}{}", fmt::join(row.archs, ", "),
                     row.tiers.empty() ? "" : fmt::format(": {}", fmt::join(row.tiers, ", ")),
                     row.via.empty() ? "" : " (through " + row.via + ")");
}

// Of a column that is about models, not about backends: nothing of vision is written for any row.
bool is_written(const MatrixRow& row, std::string_view column) {
  return row.state != RowState::not_written && column != "multimodal";
}

std::string table(const KindText& kind, const std::vector<MatrixRow>& rows, std::span<const DeviceReport> reports,
                  const std::string& here) {
  std::string head = "| backend | runs on | state |", line = "|---|---|---|";
  const bool pages = kind.kind != AttentionKind::linear && kind.kind != AttentionKind::mm;
  if (pages) head += " native pages |", line += "---|";
  const auto columns = columns_of(kind.kind);
  for (std::string_view column : columns) {
    head += fmt::format(" {} |", column);
    line += "---|";
  }
  std::string text = fmt::format("### {}\n\nChosen by `{}`.\n\n{}\n{}\n", kind.title, kind.flag, head, line);
  for (const MatrixRow& row : rows) {
    if (row.kind != kind.kind) continue;
    const std::string device = row.device > 0 ? device_mark(row.device, reports, here) : "";
    text += fmt::format("| `{}` | {} | {}{} |", row.name, archs_text(row), state_name(row.state),
                        device.empty() ? "" : " " + device);
    if (pages) text += fmt::format(" {} |", row.pages);
    for (size_t i = 0; i < columns.size(); ++i) {
      const bool unwritten = row.cells[i].state == CellState::claimed && !is_written(row, columns[i]);
      text += fmt::format(" {} |", unwritten ? "not written" : cell_text(row, row.cells[i], device));
    }
    text += "\n";
  }
  return text + "\n";
}

std::string devices_text(std::span<const DeviceReport> reports, const std::string& here) {
  std::string text;
  for (size_t d = 0; d < reports.size(); ++d) {
    std::string variants;
    for (const BackendReport& backend : reports[d].backends) {
      for (const std::string& name : backend.variants) {
        variants += fmt::format("{}{}{}", variants.empty() ? "" : ", ", name,
                                backend.via.empty() ? "" : " (through " + backend.via + ")");
      }
    }
    text += fmt::format("{}. {} ({}){}, {}{}: {}\n", d + 1, reports[d].device, reports[d].arch,
                        reports[d].device == here ? " (here)" : "", reports[d].date,
                        reports[d].commit.empty() ? "" : ", commit " + reports[d].commit, variants);
  }
  return text;
}

// Whether `kernels`, names with ", " between them, has `family`.
bool has_family(std::string_view kernels, std::string_view family) {
  for (const auto part : std::views::split(kernels, std::string_view(", "))) {
    if (std::string_view(part.begin(), part.end()) == family) return true;
  }
  return false;
}

// Who launches the kernels of one family, each name with its phases and architectures once.
std::string users_of(std::string_view family, const std::vector<MatrixRow>& rows) {
  std::map<std::string, std::string> seen;
  std::string text;
  for (const MatrixRow& row : rows) {
    const bool prefill = has_family(row.kernels.prefill, family) && row.cells[0].state != CellState::refused;
    const bool decode = has_family(row.kernels.decode, family);
    if (!prefill && !decode) continue;
    const std::string use = fmt::format("`{}` ({}; {})", row.name,
                                        prefill && decode ? "prefill, decode" : prefill ? "prefill" : "decode",
                                        archs_text(row));
    if (!seen.emplace(use, "").second) continue;
    text += (text.empty() ? "" : ", ") + use;
  }
  return text;
}

std::string kernels_text(const std::vector<MatrixRow>& rows) {
  std::string text =
      "## Kernels behind the names\n\n"
      "Every kernel is this project's own: `fa3`, `flashinfer`, `triton`, `torch_native` and the others are the\n"
      "names that users of SGLang know, not those libraries. Names in one row launch the same kernels.\n\n"
      "| kernels | what they are (in `src/attention`) | launched by |\n|---|---|---|\n";
  for (const FamilyText& family : kFamilyTexts) {
    text += fmt::format("| {} | {} | {} |\n", family.name, family.text, users_of(family.name, rows));
  }
  return text + "\n";
}

// By rule, in the order in which rules are first met; which rows each refuses.
std::string refusals_text(const std::vector<MatrixRow>& rows) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<std::string>> by_rule;
  for (const KindText& kind : kKindTexts) {
    const auto columns = columns_of(kind.kind);
    for (size_t i = 0; i < columns.size(); ++i) {
      for (const MatrixRow& row : rows) {
        if (row.kind != kind.kind || row.cells[i].state != CellState::refused) continue;
        const std::string rule = fmt::format("{}: {}", columns[i], row.cells[i].rule);
        if (!by_rule.contains(rule)) order.push_back(rule);
        by_rule[rule].push_back(fmt::format("`{}` ({}; {})", row.name, kind_name(row.kind), archs_text(row)));
      }
    }
  }
  std::string text;
  for (const std::string& rule : order) text += fmt::format("- **{}**: {}\n", rule, fmt::join(by_rule[rule], ", "));
  return text;
}

Json row_json(const MatrixRow& row, std::span<const DeviceReport> reports) {
  Json cells = Json::object();
  const auto columns = columns_of(row.kind);
  for (size_t i = 0; i < columns.size(); ++i) {
    const MatrixCell& cell = row.cells[i];
    const bool unwritten = cell.state == CellState::claimed && !is_written(row, columns[i]);
    Json& out = cells[std::string(columns[i])];
    out["state"] = cell.state == CellState::refused  ? "refused"
                   : cell.state == CellState::failed ? "failed"
                   : cell.state == CellState::proven ? "proven"
                   : unwritten                       ? "not written"
                                                     : "claimed";
    if (!cell.rule.empty()) out[cell.state == CellState::failed ? "failure" : "rule"] = cell.rule;
  }
  Json json = {{"backend", row.name}, {"kind", std::string(kind_name(row.kind))}, {"archs", row.archs},
               {"state", state_name(row.state)}};
  json["device"] = row.device > 0 ? Json(reports[row.device - 1].device) : Json();
  json["via"] = row.via.empty() ? Json() : Json(row.via);
  json["tiers"] = row.tiers;
  json["native_pages"] = row.pages;
  json["kernels"] = row.kernels.decode.empty() ? Json()
                                               : Json{{"prefill", row.kernels.prefill}, {"decode", row.kernels.decode}};
  json["cells"] = std::move(cells);
  return json;
}

}  // namespace

std::string matrix_markdown(std::span<const DeviceReport> reports, const std::string& here) {
  const std::vector<MatrixRow> rows = make_matrix(reports);
  std::string text =
      "# Attention backends: what is proven\n\n"
      "Written by `warpweave docs matrix` from the conformance results in `docs/conformance/`, one file per\n"
      "device, and from the Caps of what no result covers; do not edit. `warpweave backends --matrix` prints\n"
      "it with this machine's results marked, `--json` as data.\n\n"
      "- **proven [N]**: every case of the suite that needs it passed on device N, on every variant run. A row\n"
      "  is of one architecture that ran; nothing is concluded for others.\n"
      "- **claimed**: the code is written and built for these architectures and its Caps promise it, but no\n"
      "  device of theirs has run it.\n"
      "- **not written**: there is no code. The row says what the field's documentation claims for the name,\n"
      "  which is the least that an implementation here must reach.\n"
      "- **-**: refused by selection; the rules are below.\n\n## Devices\n\n";
  text += devices_text(reports, here) + "\n## Matrix\n\n";
  for (const KindText& kind : kKindTexts) text += table(kind, rows, reports, here);
  text += kernels_text(rows);
  return text + "## Refused, because\n\n" + refusals_text(rows);
}

std::string matrix_json(std::span<const DeviceReport> reports, const std::string& here) {
  const std::vector<MatrixRow> rows = make_matrix(reports);
  Json json = {{"devices", Json::array()}, {"columns", Json::object()}, {"rows", Json::array()}};
  for (const DeviceReport& report : reports) {
    json["devices"].push_back({{"device", report.device}, {"arch", report.arch}, {"date", report.date},
                               {"commit", report.commit}, {"here", report.device == here}});
  }
  for (const KindText& kind : kKindTexts) json["columns"][std::string(kind_name(kind.kind))] = columns_of(kind.kind);
  for (const MatrixRow& row : rows) json["rows"].push_back(row_json(row, reports));
  return json.dump(2) + "\n";
}

}  // namespace warpweave::conformance
