#!/usr/bin/env bash
# Builds llama.cpp b11434 as programs of their own: the oracle of the tests and the other side of the benchmarks.
# The options are llama.cpp's defaults (native CPU, OpenMP, shared libraries), less network and web UI.
#
#   scripts/build_llama_cpp.sh [--dir DIR] [--jobs N]      default: target/llama.cpp, all cores
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
dir=$root/target/llama.cpp
jobs=$(nproc)
while [ $# -gt 0 ]; do
  case $1 in
    --dir | --jobs)
      [ $# -ge 2 ] || { echo "build_llama_cpp: $1 needs a value" >&2; exit 1; }
      if [ "$1" = --dir ]; then dir=$2; else jobs=$2; fi
      shift 2 ;;
    *) echo "build_llama_cpp: unknown option $1 (known: --dir DIR, --jobs N)" >&2; exit 1 ;;
  esac
done

programs=(llama-completion llama-cli llama-bench llama-perplexity llama-tokenize)
PATH=$root/target/tools/bin:$PATH
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)

"$root/scripts/fetch_models.py" llama.cpp --dir "$dir"

# gcc 12 removes the stores that fill the AMX tile configuration as dead, and on CPUs with AMX the first product then
# dies with SIGILL. Only one file is concerned; the two passes are switched off from outside, the sources stay as is.
cat > "$dir/amx_dse.cmake" <<'CMAKE'
if (CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    cmake_language(DEFER CALL set_property
        SOURCE "${CMAKE_SOURCE_DIR}/ggml/src/ggml-cpu/amx/mmq.cpp" TARGET_DIRECTORY ggml-cpu
        APPEND PROPERTY COMPILE_OPTIONS -fno-tree-dse -fno-dse)
endif()
CMAKE

cmake -S "$dir/llama.cpp-b11434" -B "$dir/build" -Wno-dev \
  -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_PROJECT_llama.cpp_INCLUDE="$dir/amx_dse.cmake" \
  -DLLAMA_BUILD_NUMBER=11434 -DLLAMA_BUILD_COMMIT=b11434 \
  -DGGML_NATIVE=ON -DGGML_CCACHE=OFF \
  -DLLAMA_OPENSSL=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
  -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF > "$dir/configure.log" 2>&1 ||
  { tail -n 20 "$dir/configure.log" >&2; echo "build_llama_cpp: cmake failed, see $dir/configure.log" >&2; exit 1; }
cmake --build "$dir/build" --parallel "$jobs" --target "${programs[@]}"

echo "llama.cpp b11434: ${programs[*]} are in $dir/build/bin"
