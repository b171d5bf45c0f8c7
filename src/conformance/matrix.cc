#include "conformance/matrix.h"

#include <fmt/format.h>

#include <algorithm>

#include "attention/registry.h"

namespace warpweave::conformance {
namespace {

// One line of the table: a backend as one device proved it, or as it is declared.
struct Row {
  const BackendReport* backend = nullptr;
  int device = 0;  // number in the list of devices; 0: no report
};

std::string device_mark(int device, std::span<const DeviceReport> reports, const std::string& here) {
  const bool is_here = !here.empty() && reports[device - 1].device == here;
  return is_here ? "here" : fmt::format("[{}]", device);
}

std::string cell_text(const Row& row, size_t column, std::span<const DeviceReport> reports,
                      const std::string& here) {
  const Cell& cell = row.backend->cells[column];
  switch (cell.state) {
    case CellState::refused: return "-";
    case CellState::claimed: return "claimed";
    case CellState::failed: return fmt::format("FAILED {}", device_mark(row.device, reports, here));
    case CellState::proven: break;
  }
  return fmt::format("proven {}", device_mark(row.device, reports, here));
}

std::string pages_text(const BackendReport& backend) {
  return backend.page_sizes + (backend.expands_pages ? ", others expanded" : "");
}

// The declared Caps of the devices that no report covers.
std::vector<BackendReport> uncovered(std::span<const DeviceReport> reports) {
  std::vector<BackendReport> list;
  for (const Caps& caps : declared_backends()) {
    BackendReport declared = claims_of(caps);
    for (const DeviceReport& report : reports) {
      for (const BackendReport& backend : report.backends) {
        if (backend.name != declared.name || backend.kind != declared.kind) continue;
        std::erase_if(declared.archs, [&](const std::string& arch) {
          return std::find(backend.archs.begin(), backend.archs.end(), arch) != backend.archs.end();
        });
      }
    }
    if (!declared.archs.empty()) list.push_back(std::move(declared));
  }
  return list;
}

// In the order of the documented names; unknown ones (plug-ins) last.
size_t rank(const BackendReport& backend) {
  const auto declared = declared_backends();
  for (size_t i = 0; i < declared.size(); ++i) {
    if (declared[i].name == backend.name && claims_of(declared[i]).kind == backend.kind) return i;
  }
  return declared.size();
}

std::string table(const std::vector<Row>& rows, std::span<const DeviceReport> reports,
                  const std::string& here) {
  std::string head = "| backend | kind | devices | native pages |", line = "|---|---|---|---|";
  for (const Column& column : matrix_columns()) {
    head += fmt::format(" {} |", column.title);
    line += "---|";
  }
  std::string text = head + "\n" + line + "\n";
  for (const Row& row : rows) {
    text += fmt::format("| `{}` | {} | {} | {} |", row.backend->name, row.backend->kind,
                        fmt::join(row.backend->archs, ", "), pages_text(*row.backend));
    for (size_t i = 0; i < matrix_columns().size(); ++i) {
      text += fmt::format(" {} |", cell_text(row, i, reports, here));
    }
    text += "\n";
  }
  return text;
}

std::string refusals(const std::vector<Row>& rows) {
  std::string text;
  for (const Row& row : rows) {
    std::string list;
    for (size_t i = 0; i < matrix_columns().size(); ++i) {
      const Cell& cell = row.backend->cells[i];
      if (cell.state != CellState::refused) continue;
      list += fmt::format("{}{}: {}", list.empty() ? "" : "; ", matrix_columns()[i].title, cell.text);
    }
    if (list.empty()) continue;
    text += fmt::format("- `{}` ({}; {}): {}\n", row.backend->name, row.backend->kind,
                        fmt::join(row.backend->archs, ", "), list);
  }
  return text;
}

}  // namespace

std::string matrix_markdown(std::span<const DeviceReport> reports, const std::string& here) {
  const std::vector<BackendReport> declared = uncovered(reports);
  std::vector<Row> rows;
  for (size_t d = 0; d < reports.size(); ++d) {
    for (const BackendReport& backend : reports[d].backends) {
      rows.push_back({&backend, static_cast<int>(d) + 1});
    }
  }
  for (const BackendReport& backend : declared) rows.push_back({&backend, 0});
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return rank(*a.backend) < rank(*b.backend);
  });

  std::string text =
      "# Attention backends: what is proven\n\n"
      "Written by `warpweave docs matrix` from the conformance results in `docs/conformance/`, one "
      "file per\ndevice, and from the Caps of what no result covers; do not edit.\n\n"
      "- proven [N]: every case of the suite that needs it passed on device N, on every variant run.\n"
      "- claimed: Caps promise it, no result of ours shows it yet. Where no device proved a row, its\n"
      "  Caps are the field's, and the backend may not be built.\n"
      "- \"-\": refused by selection; the rule is below.\n\n## Devices\n\n";
  for (size_t d = 0; d < reports.size(); ++d) {
    std::string variants;
    for (const BackendReport& backend : reports[d].backends) {
      for (const std::string& name : backend.variants) {
        variants += fmt::format("{}{}", variants.empty() ? "" : ", ", name);
      }
    }
    text += fmt::format("{}. {}{}, {}{}: {}\n", d + 1, reports[d].device,
                        reports[d].device == here ? " (here)" : "", reports[d].date,
                        reports[d].commit.empty() ? "" : ", commit " + reports[d].commit, variants);
  }
  text += "\n## Matrix\n\n" + table(rows, reports, here);
  text += "\n## Refused, because\n\n" + refusals(rows);
  return text;
}

}  // namespace warpweave::conformance
