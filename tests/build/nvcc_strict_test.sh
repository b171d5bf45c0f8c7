#!/bin/sh
# nvcc_strict_test.sh WRAPPER [NVCC]: spills and serialised wgmma fail a compile command, nothing else does, and two runs
# leave the same object.
wrapper=$1
nvcc=$2
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
failed=0

# expect WANTED NAME COMMAND...: "ok" leaves the object, "fail" leaves none.
expect() {
  wanted=$1 name=$2
  shift 2
  : >"$scratch/object"
  "$@" >"$scratch/log" 2>&1
  result=$?
  if [ "$wanted" = ok ]; then [ "$result" -eq 0 ] && [ -e "$scratch/object" ]; else [ "$result" -ne 0 ] && [ ! -e "$scratch/object" ]; fi ||
    { echo "FAILED: $name should $wanted, exit status $result"; cat "$scratch/log"; failed=1; }
}

cat >"$scratch/compiler" <<'STANDIN'
#!/bin/sh
echo "$MESSAGE" >&2
exit "${RESULT:-0}"
STANDIN
chmod +x "$scratch/compiler"
printf '# measured: no difference\nharmless_kernel\n' >"$scratch/allowed"
: >"$scratch/none"
strict() { MESSAGE=$1 sh "$wrapper" "$scratch/allowed" "$scratch/compiler" -c a.cu -o "$scratch/object"; }

spill="ptxas warning : Registers are spilled to local memory in function '_Zsome_kernel', 8 bytes spill stores, 8 bytes spill loads"
waits="ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient register resources for the wgmma pipeline in the function '_Zsome_kernel'"
ignored="ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry."
expect ok "a quiet compiler" strict ""
expect ok "other words" strict "ptxas info    : Used 255 registers, 0 bytes spill stores, 0 bytes spill loads"
expect fail "a spill" strict "$spill"
expect fail "serialised wgmma" strict "$waits"
expect fail "an ignored setmaxnreg" strict "$ignored"
expect ok "an allowed spill" strict "ptxas warning : Registers are spilled to local memory in function '_Zharmless_kernel', 8 bytes spill stores, 8 bytes spill loads"
expect fail "an allowed spill beside another" strict "harmless_kernel
$spill"
WARPWEAVE_PTXAS_WARNINGS=1
export WARPWEAVE_PTXAS_WARNINGS
expect ok "a spill while a kernel is worked on" strict "$spill"
unset WARPWEAVE_PTXAS_WARNINGS
RESULT=3
export RESULT
strict "error: no" >/dev/null 2>&1
[ $? -eq 3 ] || { echo "FAILED: a failing compiler's exit status is lost"; failed=1; }
unset RESULT

# twice NAME COMMAND...: writes the same to $scratch/object both times.
twice() {
  name=$1
  shift
  "$@" >/dev/null 2>&1 && cp "$scratch/object" "$scratch/first" && "$@" >/dev/null 2>&1 &&
    cmp "$scratch/first" "$scratch/object" || { echo "FAILED: two runs of $name leave other objects"; failed=1; }
}
cat >"$scratch/compiler" <<'STANDIN'
#!/bin/sh
printf 'code\n\0tmpxft_%08x_00000000-6_a.cudafe1.cpp\0end' $$ >"$4"
STANDIN
twice "a compiler that names its process" strict ""
[ "$(wc -c <"$scratch/object")" -eq 50 ] || { echo "FAILED: an object's size is another"; failed=1; }

if [ -n "$nvcc" ]; then
  compile() {
    sh "$wrapper" "$scratch/none" "$nvcc" -gencode arch=compute_80,code=sm_80 -std=c++17 -Xptxas -warn-spills "$@" \
      -c "$here/planted_spill.cu" -o "$scratch/object"
  }
  expect ok "a kernel with room" compile
  expect fail "the same kernel with 32 registers" compile -maxrregcount=32
  twice nvcc compile
fi
exit "$failed"
