#!/usr/bin/env bash
# Compiles and links gracekv with --features cuda for one architecture (default: sm_90) with the CUDA 13 compiler of NVIDIA's
# Python packages: no GPU, no driver and no root are needed, and nothing of CUDA has to be installed. Everything lands in
# target/cuda. ggml has well over a hundred CUDA sources, so the first run takes an hour and more on a small machine; a run
# that is ended goes on where it was.
#
# Example: scripts/check_cuda_build.sh 90
set -euo pipefail

arch=${1:-90}
root=$(cd "$(dirname "$0")/.." && pwd)
pip=$root/target/cuda/pip
cuda=$pip/nvidia/cu13
packages=(nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt nvidia-cuda-cccl nvidia-cuda-runtime nvidia-cublas)

fail() { echo "check_cuda_build: $*" >&2; exit 1; }

if [ ! -x "$cuda/bin/nvcc" ] || [ ! -e "$cuda/lib/libcublas.so" ]; then
  PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --disable-pip-version-check --upgrade --only-binary :all: \
    --target "$pip" "${packages[@]}"
  [ -x "$cuda/bin/nvcc" ] || fail "the packages have no $cuda/bin/nvcc"
  # Wheels carry libcudart.so.13, the linker wants libcudart.so.
  for lib in "$cuda"/lib/lib*.so.*; do ln -sf "$(basename "$lib")" "${lib%%.so.*}.so"; done
  ln -sfn lib "$cuda/lib64"
fi
# The driver's library comes with a GPU's driver; to link, its names are enough.
if [ ! -e "$cuda/lib/stubs/libcuda.so" ]; then
  mkdir -p "$cuda/lib/stubs"
  for name in cuGetErrorString cuInit cuDeviceGet cuDeviceGetAttribute cuMemAddressFree cuMemAddressReserve cuMemCreate \
    cuMemGetAllocationGranularity cuMemMap cuMemRelease cuMemSetAccess cuMemUnmap; do
    echo "int $name(void) { return 999; }"
  done | ${CC:-cc} -shared -fPIC -x c - -Wl,-soname,libcuda.so.1 -o "$cuda/lib/stubs/libcuda.so"
fi
"$cuda/bin/nvcc" --version | tail -n 2

export PATH=$root/target/tools/bin:$PATH CUDA_PATH=$cuda CUDACXX=$cuda/bin/nvcc CUDAARCHS=$arch CUDAToolkit_ROOT=$cuda
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target/cuda/build} LD_LIBRARY_PATH=$cuda/lib:${LD_LIBRARY_PATH:-}
unset GRACEKV_GGML_LIB
cd "$root"
cargo build --release --locked --features cuda
program=$CARGO_TARGET_DIR/release/gracekv-run
ldd "$program" | grep -E 'libcuda|libcudart|libcublas' || fail "$program is not linked with CUDA"
echo "check_cuda_build: $program is compiled and linked for sm_$arch"
