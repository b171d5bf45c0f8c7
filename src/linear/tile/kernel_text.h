// The files of kernels/ and linear_tile_args.h as text, put into the program by CMake.
#pragma once

#include <string_view>

namespace warpweave::linear_tile {

extern const std::string_view kArgsText;
extern const std::string_view kLanesText;
extern const std::string_view kRequestsText;
extern const std::string_view kPrepareText;
extern const std::string_view kOutputsText;
extern const std::string_view kStepsText;
extern const std::string_view kChunksText;

}  // namespace warpweave::linear_tile
