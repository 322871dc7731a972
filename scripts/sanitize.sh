#!/usr/bin/env bash
# Undefined behaviour, as far as tools find it: sanitize.sh [ggml|miri] [FILTER..]
#   ggml   tests on a ggml built with gcc's or clang's AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer; the
#          stable toolchain will do. Memory of both languages is watched, accesses those of C and C++ only.
#   miri   unit tests of the parts without C, interpreted (rustup component add miri rust-src --toolchain nightly)
# Filters are names of tests; without any, those of the parts that the tool is for.
set -euo pipefail
cd "$(dirname "$0")/.."

tool=${1:-ggml}
[ $# -eq 0 ] || shift
host=$(rustc -vV | sed -n 's/^host: //p')

case $tool in
ggml)
  out=$PWD/target/sanitize
  flags='-fsanitize=address,undefined -fno-omit-frame-pointer -g1'
  cargo fetch --locked
  source=$(cargo metadata --format-version=1 --locked --offline |
    python3 -c 'import json, os, sys
[p] = [p for p in json.load(sys.stdin)["packages"] if p["name"] == "llama-cpp-sys-2"]
print(os.path.join(os.path.dirname(p["manifest_path"]), "llama.cpp", "ggml"))')
  cmake -S vendor -B "$out/ggml" -DGGML_SOURCE_DIR="$source" -DCMAKE_BUILD_TYPE=Release -DGGML_CCACHE=OFF -DGGML_OPENMP=OFF \
    -DGGML_NATIVE=ON -DGGML_LLAMAFILE=ON -DGGML_RPC=ON -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" > "$out.log" 2>&1
  cmake --build "$out/ggml" --target ggml -j "$(nproc)" >> "$out.log" 2>&1 || { tail "$out.log"; exit 1; }
  export GRACEKV_GGML_LIB=$out/ggml/lib
  # Every report ends the test in which it is made. The allocator takes terabytes of addresses, which tests of limits cannot have.
  export ASAN_OPTIONS=abort_on_error=1:detect_leaks=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
  [ $# -gt 0 ] || set -- ggml:: engine:: pass:: kv_types:: threads:: prompt_cache::
  RUSTFLAGS='-Clink-arg=-fsanitize=address,undefined' cargo test --release --locked --features rpc --target "$host" \
    --target-dir "$out" --test it -- --skip memory:: "$@"
  ;;
miri)
  # Folders of temporary files, the clock and the number of processors are the system's. crossbeam-epoch, below rayon, breaks
  # the rules of Stacked Borrows, which are stricter than what compilers use; those of Tree Borrows hold.
  export MIRIFLAGS='-Zmiri-disable-isolation -Zmiri-tree-borrows' DOCS_RS=1
  [ $# -gt 0 ] || set -- gguf:: compress:: sample::
  cargo +nightly miri test --locked --target-dir target/miri --lib -- "$@"
  ;;
*)
  sed -n '2,6s/^# //p' "$0" >&2
  exit 1
  ;;
esac
