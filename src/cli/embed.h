// WW_EMBED(symbol, "path"): the assembler copies a file into read-only data; WW_EMBEDDED(symbol) is
// its bytes as a string_view. The file belongs into the source's OBJECT_DEPENDS.
#pragma once

#include <cstddef>
#include <string_view>

#define WW_EMBED(symbol, path)                                             \
  asm(".section .rodata\n.balign 64\n.global ww_" #symbol "\nww_" #symbol  \
      ":\n.incbin \"" path "\"\n.global ww_" #symbol                       \
      "_end\nww_" #symbol "_end:\n.byte 0\n.previous\n");                  \
  extern "C" const char ww_##symbol[];                                     \
  extern "C" const char ww_##symbol##_end[];
#define WW_EMBEDDED(symbol) \
  std::string_view(ww_##symbol, static_cast<size_t>(ww_##symbol##_end - ww_##symbol))
