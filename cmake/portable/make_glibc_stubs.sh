#!/bin/sh
# make_glibc_stubs.sh FOLDER BASELINE CC: stand-ins for glibc's shared objects, to link against, that offer what glibc
# BASELINE (such as 2.28) offered. A program linked with them asks for no newer symbol, and so runs wherever glibc is
# at least that old: glibc keeps every symbol it ever had, with its version, so the build machine's own libraries say
# which there were. What a later glibc moved from libpthread, libdl and librt into libc stands in libc's stand-in; the
# program names the old libraries too (cmake/portable.cmake), where an older glibc has it.
set -eu
folder=$1
baseline=$2
cc=$3
mkdir -p "$folder"

# stub LIBRARY: symbols by readelf, each with its highest version up to the baseline, as an assembler file and a
# version script.
stub() {
  real=$("$cc" -print-file-name="$1")
  [ -e "$real" ] || { echo "make_glibc_stubs: $cc knows no $1" >&2; exit 1; }
  LC_ALL=C readelf --wide --dyn-syms "$real" |
    awk -v baseline="$baseline" -v source="$folder/$1.s" -v script="$folder/$1.map" '
      function rank(version,  part, count) {
        count = split(version, part, ".")
        return part[1] * 1000000 + part[2] * 1000 + (count > 2 ? part[3] : 0)
      }
      $7 != "UND" && $7 != "ABS" && $8 ~ /@GLIBC_[0-9.]+$/ && ($4 == "FUNC" || $4 == "IFUNC" || $4 == "OBJECT") {
        name = $8; sub(/@.*/, "", name)
        version = $8; sub(/.*@GLIBC_/, "", version)
        if (rank(version) > rank(baseline) || (name in best && rank(version) <= rank(best[name]))) next
        best[name] = version; type[name] = $4; size[name] = $3; bind[name] = $5
      }
      END {
        for (name in best) {
          print (bind[name] == "WEAK" ? ".weak " : ".globl ") name > source
          if (type[name] == "OBJECT") {
            print ".bss\n.balign 32\n.type " name ", %object\n.size " name ", " size[name] "\n" name ": .skip " size[name] > source
          } else {
            print ".text\n.type " name ", %function\n" name ": .byte 0" > source
          }
          members[best[name]] = members[best[name]] " " name ";"
        }
        print ".section .note.GNU-stack,\"\",%progbits" > source
        for (version in members) print "GLIBC_" version " { global:" members[version] " };" > script
      }'
  "$cc" -shared -nostdlib -fuse-ld=bfd -Wl,--soname="$1" -Wl,--version-script="$folder/$1.map" -o "$folder/$1" "$folder/$1.s"
}

# empty LIBRARY: has nothing to offer any more, but its name.
empty() {
  : >"$folder/$1.s"
  "$cc" -shared -nostdlib -fuse-ld=bfd -Wl,--soname="$1" -o "$folder/$1" "$folder/$1.s"
}

loader=$(basename "$(LC_ALL=C readelf --wide --dynamic "$("$cc" -print-file-name=libc.so.6)" |
  sed -n 's/.*Shared library: \[\(ld-.*\)\]/\1/p')")
stub "$loader"
stub libc.so.6
stub libm.so.6
empty libpthread.so.0
empty libdl.so.2
empty librt.so.1
# What -lc and -lm find.
nonshared=$("$cc" -print-file-name=libc_nonshared.a)
echo "GROUP ( $folder/libc.so.6 $nonshared AS_NEEDED ( $folder/$loader ) )" >"$folder/libc.so"
echo "INPUT ( $folder/libm.so.6 )" >"$folder/libm.so"
