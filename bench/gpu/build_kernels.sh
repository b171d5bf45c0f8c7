#!/bin/sh
# Builds the attention kernels into one library for the Python programs here: build_kernels.sh [OUT.so]
# Two such libraries may be loaded side by side (-fno-gnu-unique). Needs nvcc; prints what ptxas says against a kernel
# (spills, serialised wgmma).
set -e
here=$(cd "$(dirname "$0")" && pwd)
src=$here/../../src
out=${1:-$here/ww_kernels.so}
objects=${out%.so}.objects
mkdir -p "$objects"
flags="-gencode arch=compute_90a,code=sm_90a -O3 -std=c++20 --expt-relaxed-constexpr -Xptxas -v -Xcompiler -fPIC,-fno-gnu-unique -diag-suppress 177 -I$src -I$src/../include"
files=$(cd "$src" && ls device/cuda/tensor_map.cc attention/cuda/split_work.cc attention/cuda/*.cu attention/cuda/mla/mla_decode.cc attention/cuda/mla/*.cu attention/backends/flashinfer/kernels/*.cu attention/backends/fa3/kernels/*.cu)
for f in $files "$here/kernels_entry.cu" "$here/mla_entry.cu"; do
  case $f in /*) path=$f ;; *) path=$src/$f ;; esac
  echo "$path $objects/$(echo "${path#"$src"/}" | tr '/.' '__').o"
done | xargs -P "$(nproc)" -L 1 sh -c 'nvcc '"$flags"' -c "$0" -o "$1" >"$1.log" 2>&1 || { echo "cannot compile $0"; cat "$1.log"; exit 255; }'
grep -h "C75\|error" "$objects"/*.log | cut -c1-160 || true
grep -h -B1 "spill" "$objects"/*.log | grep -v " 0 bytes spill stores" | grep -B1 "spill stores" | cut -c1-240 || true
nvcc -shared -gencode arch=compute_90a,code=sm_90a -o "$out" "$objects"/*.o
