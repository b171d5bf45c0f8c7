// The support matrix as Markdown, made of the committed reports; what no report covers is taken from
// the declared Caps. It does not depend on this machine or this build.
#pragma once

#include <span>
#include <string>

#include "conformance/report.h"

namespace warpweave::conformance {

// `here`: the device whose proofs are marked "here"; empty in docs/matrix.md.
std::string matrix_markdown(std::span<const DeviceReport> reports, const std::string& here = {});

}  // namespace warpweave::conformance
