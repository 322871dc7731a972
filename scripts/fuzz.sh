#!/usr/bin/env bash
# Coverage-guided fuzzing with libFuzzer on the stable toolchain (Linux): fuzz.sh SECONDS [TARGET..]
#   SECONDS         how long for each target; the targets are the files of fuzz/targets, all of them if none is named
#   fuzz.sh TARGET FILE    runs one input, for example one that an earlier run has found
# Inputs that lead somewhere new are kept in target/fuzz/corpus and those that fail in target/fuzz/found. Ends with a table,
# and with 1 where an input failed. Flags as in cargo-fuzz with `--sanitizer none`, which needs no nightly compiler.
set -euo pipefail
cd "$(dirname "$0")/.."

out=$PWD/target/fuzz
host=$(rustc -vV | sed -n 's/^host: //p')
names=$(cd fuzz/targets && ls ./*.rs | sed 's|^\./||; s|\.rs$||')
# A finding is an input that takes this long (seconds) or this much memory (MiB).
limits=(-timeout=30 -rss_limit_mb=4096)

# ggml need not be built again where the programs were built with the same features.
lib=$(ls -td target/release/build/gracekv-*/out/build/lib 2> /dev/null | head -n 1 || true)
[ -z "${GRACEKV_GGML_LIB:-}" ] && [ -n "$lib" ] && export GRACEKV_GGML_LIB=$PWD/$lib

coverage='-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
  -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Ccodegen-units=1'
RUSTFLAGS=$(echo $coverage) cargo build --release --locked --manifest-path fuzz/Cargo.toml --target "$host" --target-dir "$out" \
  --features "${FEATURES:-rpc}"
bin=$out/$host/release

export TMPDIR=$out/tmp
rm -rf "$TMPDIR"
mkdir -p "$TMPDIR"
trap 'rm -rf "$TMPDIR"' EXIT

if ! [[ ${1:-} =~ ^[0-9]+$ ]]; then
  [ $# -eq 2 ] && [ -x "$bin/$1" ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 1; }
  exec "$bin/$1" "${limits[@]}" "$2"
fi
seconds=$1
shift
SEEDS=$out/seeds "$bin/seeds" > "$out/seeds.log" 2>&1 || { tail -n 20 "$out/seeds.log"; exit 1; }

# Fuzzes one target and leaves its line of the table.
fuzz() {
  local name=$1 begun inputs log=$out/$1.log dictionary=fuzz/dictionaries/$1.dict
  local args=("${limits[@]}" -max_total_time="$seconds" -print_final_stats=1 -artifact_prefix="$out/found/$name/")
  [ -e "$dictionary" ] && args+=(-dict="$dictionary")
  mkdir -p "$out/corpus/$name" "$out/found/$name"
  begun=$(date +%s)
  if ! "$bin/$name" "${args[@]}" "$out/corpus/$name" "$out/seeds/$name" > "$log" 2>&1; then
    touch "$out/$name.failed"
    sed -n '/panicked at\|^==[0-9]*==\|ERROR\|SUMMARY/p' "$log"
    find "$out/found/$name" -type f -newer "$out/seeds" -exec echo "again: scripts/fuzz.sh $name" {} \;
  fi
  inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  printf '%-14s%12s%10s%10s%8s\n' "$name" "${inputs:--}" $(($(date +%s) - begun)) \
    "$(find "$out/corpus/$name" -type f | wc -l)" "$(find "$out/found/$name" -type f -newer "$out/seeds" | wc -l)" > "$out/$name.row"
}

targets=(${*:-$names})
echo "${#targets[@]} targets, $seconds s each, $(nproc) at a time"
rm -f "$out"/*.row "$out"/*.failed
for name in "${targets[@]}"; do
  [ "$(jobs -rp | wc -l)" -lt "$(nproc)" ] || wait -n
  fuzz "$name" &
done
wait
printf '%-14s%12s%10s%10s%8s\n' target inputs seconds corpus found
for name in "${targets[@]}"; do cat "$out/$name.row"; done
! ls "$out"/*.failed > /dev/null 2>&1
