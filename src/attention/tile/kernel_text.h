// The files of kernels/ and tile_args.h as text, put into the program by CMake.
#pragma once

#include <string_view>

namespace warpweave::tile {

extern const std::string_view kTileArgsText;
extern const std::string_view kDialectText;
extern const std::string_view kValuesText;
extern const std::string_view kNumbersText;
extern const std::string_view kRowsText;
extern const std::string_view kLanesText;
extern const std::string_view kDpasText;
extern const std::string_view kMmaText;
extern const std::string_view kModifiersText;
extern const std::string_view kAttendText;

}  // namespace warpweave::tile
