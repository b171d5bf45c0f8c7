#!/bin/sh
# nvcc_strict.sh ALLOWED COMMAND...: runs a compile command and fails it when ptxas says that a kernel spills
# registers to memory, or that its wgmma instructions wait for each other or its setmaxnreg is ignored (C75xx):
# such a kernel is right, and slow. Lines that match a pattern of the file ALLOWED pass.
# The object keeps no trace of the process that made it, so that the same sources give the same bytes.
# With WARPWEAVE_PTXAS_WARNINGS=1 in the environment they are only shown: for work on a kernel, and in builds whose
# warnings are no errors.
allowed=$1
shift
log=$(mktemp) || exit 1
trap 'rm -f "$log" "$log.patterns"' EXIT
"$@" >"$log" 2>&1
result=$?
cat "$log" >&2
[ "$result" -eq 0 ] || exit "$result"

# nvcc calls the C++ file between its passes after its own process, tmpxft_0000abcd_..., and the symbol table says so. It is
# stripped from packages, but the linker makes the program's build ID of it.
for argument; do
  if [ "$previous" = -o ] && [ -f "$argument" ]; then LC_ALL=C sed -i 's/tmpxft_[0-9a-f]\{8\}_/tmpxft_00000000_/g' "$argument"; fi
  previous=$argument
done

sed -e '/^#/d' -e '/^$/d' "$allowed" >"$log.patterns" || exit 1
found=$(grep -E 'Registers are spilled|\(C75[0-9][0-9]\)' "$log" | grep -vEf "$log.patterns")
if [ -z "$found" ] || [ "${WARPWEAVE_PTXAS_WARNINGS:-}" = 1 ]; then exit 0; fi
for argument; do
  if [ "$previous" = -o ]; then rm -f "$argument"; fi
  previous=$argument
done
echo "error: a kernel spills registers or its wgmma instructions are serialised (above); mend it, or, where a
measurement shows that it does not matter, add it with that measurement to cmake/ptxas_allowed.txt" >&2
exit 1
