#!/usr/bin/env bash
# What must hold on a machine with an NVIDIA GPU, in under 8 minutes once `cargo build --release --features cuda` is done:
#   text     at ratio 1 the text of the GPU is that of the CPU, as far as rounding allows (most of its first words)
#   ratio    at ratio 32 every model answers, and the device's free memory grows by what the pass reports as freed
#   speed    decoding after 8k and 32k tokens, full and at ratio 32
# Prints what it finds and exits with 1 when a check fails. Needs the models of `make models MODELS=all` in models/.
#
# Example: scripts/check_gpu.sh target/release
set -euo pipefail

bin=${1:-target/release}
root=$(cd "$(dirname "$0")/.." && pwd)
models=$root/models
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

say() { printf '%s\n' "$*"; }
bad() { say "FAILED: $*"; failed=1; }

"$bin/gracekv-run" --list-devices | tee "$work/devices"
grep -q CUDA "$work/devices" || { say "no CUDA device"; exit 1; }

# Some 6,000 tokens of sentences that are all different.
python3 - > "$work/long.txt" <<'P'
for i in range(420):
    print(f"Report {i}: the gate in sector {i % 17} was opened {i * 7 % 23} times and closed again before noon.")
print("Summary of the reports:")
P
head -c 1500 "$work/long.txt" > "$work/short.txt"

for model in SmolLM2-135M-Instruct.Q4_1 qwen2.5-coder-0.5b-instruct-q4_k_m gemma-3-270m-q4_k_m; do
  file=$models/$model.gguf
  run() { "$bin/gracekv-run" -m "$file" -no-cnv --temp 0 --no-warmup --no-display-prompt "$@"; }
  run -f "$work/short.txt" -n 24 -c 2048 -dev none > "$work/cpu" 2> /dev/null
  run -f "$work/short.txt" -n 24 -c 2048 -ngl all > "$work/gpu" 2> "$work/log" || { cat "$work/log"; bad "$model on the GPU"; continue; }
  # Sums round differently, and a text may part at any tie; the first words must agree.
  same=$(cmp "$work/cpu" "$work/gpu" 2> /dev/null | sed -n 's/.*byte \([0-9]*\),.*/\1/p' || true)
  say "$model ratio 1: texts $([ -z "$same" ] && echo "are equal" || echo "part at byte $same")"
  [ -z "$same" ] || [ "$same" -gt 8 ] || bad "$model: the text of the GPU is another one"
  run -f "$work/long.txt" -n 32 -c 8192 -ngl all --kv-ratio 32 --kv-report "$work/report.json" > "$work/text" 2> "$work/log" \
    || { cat "$work/log"; bad "$model at ratio 32"; continue; }
  grep '^gracekv:' "$work/log" || true
  say "$model ratio 32: $(head -c 160 "$work/text" | tr '\n' ' ')"
  python3 - "$work/report.json" <<'P' || bad "$model: memory of the device"
import json, sys
m = json.load(open(sys.argv[1]))["memory"]
freed, seen = m["kv_bytes_before"] - m["kv_bytes_after"], m["device_bytes_freed"]
print(f"  KV {freed / 2**20:.1f} MiB freed, the device says {seen / 2**20:.1f} MiB")
# Drivers hand out and take back pieces of 2 MiB.
sys.exit(not seen >= 0.8 * freed - 64 * 2**20)
P
done

for depth in 8192 32768; do
  "$bin/gracekv-bench" -m "$models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf" -ngl all -p 0 -n 64 -d $depth -r 3 --kv-ratio 1,32
done

[ "$failed" = 0 ] && say "check_gpu: all checks passed"
exit "$failed"
