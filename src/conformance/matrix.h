// The support matrix, made of the committed reports, of the Caps that are written and of those that are
// only declared. It does not depend on this machine or this build.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/caps.h"
#include "conformance/report.h"

namespace warpweave::conformance {

enum class RowState {
  proven,       // a device ran it; its cells say what passed
  claimed,      // the code is written and built, no device of this architecture ran it
  not_written,  // a name of the field, whose documentation is all there is
};

struct MatrixCell {
  CellState state = CellState::refused;
  std::string rule;                  // that refuses it, or the first failure
};

// A backend on the architectures of one state; exactly one where it is proven.
struct MatrixRow {
  RowState state = RowState::not_written;
  AttentionKind kind = AttentionKind::mha;
  std::string name;
  std::vector<std::string> archs;
  int device = 0;                    // number of the report, from 1; 0: none
  std::string via;                   // "OpenCL, Portable Computing Language"
  std::vector<std::string> tiers;    // of CPU kernels that have several: "avx2", "amx_bf16"
  std::string pages;
  KernelNames kernels;
  std::vector<MatrixCell> cells;     // by columns_of(kind)
};

std::vector<std::string_view> columns_of(AttentionKind kind);

// In the order of the kinds, then of the documented names, then of the states.
std::vector<MatrixRow> make_matrix(std::span<const DeviceReport> reports);

// `here`: the device whose proofs are marked "here"; empty in docs/matrix.md.
std::string matrix_markdown(std::span<const DeviceReport> reports, const std::string& here = {});
std::string matrix_json(std::span<const DeviceReport> reports, const std::string& here = {});

}  // namespace warpweave::conformance
