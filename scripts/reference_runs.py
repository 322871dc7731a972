#!/usr/bin/env python3
"""What llama-completion writes with options that change a model, for the tiny models of the tests: tests/golden/changes/runs.json.

    cargo test --release --test it changes     # writes the models to target/tmp, whatever its result
    python3 scripts/reference_runs.py LLAMA_COMPLETION target/tmp

The models have random weights in f32 or f16, so their texts are noise; but noise of the very same kind in both programs, and
without the near ties of quantised models. A text is kept as its bytes, each a character.
"""

import json
import subprocess
import sys
from pathlib import Path

OUT = Path(__file__).resolve().parent.parent / "tests/golden/changes/runs.json"
PROMPT = "the rain in the inner harbour and the heat of an inert rhine, then a thin hint of a tern in the heather"
COMMON = "-no-cnv -n 32 -c 512 --temp 0 --ignore-eos --no-display-prompt -t 1 --no-warmup".split()
YARN = "--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 128"
# Tied embeddings of random weights repeat one token for ever.
VARIED = "--repeat-penalty 4"
RUNS = [
    ("llama", ""),
    ("llama", "--rope-freq-base 500"),
    ("llama", "--rope-scale 4"),
    ("llama", "--rope-scaling linear --rope-freq-scale 0.5"),
    ("llama", "--rope-scaling none --rope-scale 4"),
    ("llama", YARN),
    ("llama", YARN + " --yarn-ext-factor 0.5 --yarn-beta-fast 8 --yarn-beta-slow 2"),
    ("llama", "--yarn-ext-factor 0.7 --rope-scale 8"),
    ("llama", "--yarn-attn-factor 1.3"),
    ("llama", "--override-kv llama.attention.layer_norm_rms_epsilon=float:0.5"),
    ("llama", "--override-kv llama.rope.scaling.type=str:yarn,llama.rope.scaling.factor=float:4"),
    ("llama", "--override-kv tokenizer.ggml.add_bos_token=bool:true --override-kv tokenizer.ggml.bos_token_id=int:65"),
    ("llama", "--lora {llama-lora}"),
    ("llama", "--lora-scaled {llama-lora}:0.5,{llama-lora}:-1.5"),
    ("llama", "--control-vector {control}"),
    ("llama", "--control-vector-scaled {control}:-2 --control-vector-layer-range 2 2"),
    ("llama", "-ctk q8_0 -ctv q8_0"),
    ("wide-llama", ""),
    ("wide-llama", "-ctk q8_0 -ctv q8_0"),
    ("wide-llama", "-ctk q4_0 -ctv q4_0"),
    ("wide-llama", "-ctk q5_1 -ctv iq4_nl"),
    ("wide-gemma3", VARIED + " -ctk q4_0 -ctv q4_0"),
    ("qwen3", YARN),
    ("qwen3", "--lora {qwen3-lora}"),
    ("gemma3", VARIED),
    ("gemma3", VARIED + " " + YARN),
    ("gemma3", VARIED + " --rope-freq-base 500 --rope-freq-scale 0.5"),
    ("gemma3", VARIED + " --lora {gemma3-lora} --control-vector {control}"),
]


def main():
    program, folder = sys.argv[1], Path(sys.argv[2])
    runs = []
    for arch, options in RUNS:
        files = {path.stem.removeprefix("tiny-"): str(path) for path in folder.glob("tiny-*.gguf")}
        args = [arg.format_map(files) for arg in options.split()]
        model = str(folder / f"tiny-{arch}.gguf")
        done = subprocess.run([program, "-m", model, "-p", PROMPT, *COMMON, *args], capture_output=True, check=True)
        runs.append({"model": arch, "options": options, "text": done.stdout.removesuffix(b"\n\n").decode("latin-1")})
        print(arch, options, repr(runs[-1]["text"]))
    version = subprocess.run([program, "--version"], capture_output=True, text=True).stderr.splitlines()[0]
    golden = {"program": f"llama-completion, {version}", "prompt": PROMPT, "common": COMMON, "runs": runs}
    OUT.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
