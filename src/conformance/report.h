// Results of a conformance run as facts to keep: per backend and column of the matrix, whether it is
// proven on this device, claimed, or refused and by which rule. One JSON file per device lies in
// docs/conformance/; the matrix is made of those files.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "conformance/suite.h"
#include "warpweave/status.h"

namespace warpweave::conformance {

// A column of the matrix: what a user may ask of a backend.
struct Column {
  std::string_view title;    // "FP8 KV"
  std::string_view feature;  // of features_of, that proves it; empty: by no case
};
// Of backends of a kind of layer: those of linear layers, or those of all others.
std::span<const Column> matrix_columns(AttentionKind kind = AttentionKind::mha);
// The column of linear layers that a phase ("prefill", "decode", "target verify") of a kind ("GDN", "KDA") proves.
std::string linear_column(std::string_view kind, std::string_view phase);

enum class CellState { refused, claimed, proven, failed };

struct Cell {
  CellState state = CellState::refused;
  int checks = 0;       // that passed, or failed
  std::string text;     // the rule that refuses; the first failure
};

struct BackendReport {
  std::string name;
  std::string kind;                    // "MHA", "linear"
  std::vector<std::string> archs;      // that its Caps list, by arch_name
  std::string via;                     // "OpenCL, Portable Computing Language"; empty: the device itself
  std::vector<std::string> variants;   // that ran: "intel_amx@avx2"
  std::vector<Cell> cells;             // by matrix_columns() of the kind
  bool expands_pages = false;
  std::string page_sizes;              // native ones
};

// What a KV format costs before attention begins, over the cases that ran: root mean square change
// of K and V by rounding, relative to the root mean square of K and V.
struct KvError {
  std::string format;                  // "fp8_e4m3"
  int cases = 0;
  double mean = 0, largest = 0;
};

struct DeviceReport {
  std::string device;                  // "AMD EPYC 9R14 (avx512_bf16)"
  std::string arch;                    // by arch_name: of the code that ran
  std::string date;                    // 2026-01-31
  std::string commit;                  // of the tree that ran; empty: not told
  std::vector<BackendReport> backends;
  std::vector<KvError> kv_errors;      // formats that round; reports of older programs have none
};

// What Caps alone say: refused or claimed.
BackendReport claims_of(const Caps& caps);
// The rule by which they refuse a column of their kind's; empty when they claim it.
std::string refusal_of(const Caps& caps, std::string_view column);

std::vector<KvError> kv_errors_of(std::span<const CheckResult> results);

DeviceReport make_report(std::span<const Variant> variants, std::span<const CheckResult> results,
                         std::string date, std::string commit);

std::string report_json(const DeviceReport& report);
Result<DeviceReport> parse_report(std::string_view json);

// The files of docs/conformance/ inside the program.
std::vector<DeviceReport> committed_reports();

}  // namespace warpweave::conformance
