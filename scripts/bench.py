#!/usr/bin/env python3
"""Compare gracekv-bench with llama-bench: both programs in turn, medians of single runs.

For every model and test each round runs gracekv-bench once, then llama-bench once with -fa 0 and once with -fa 1.
llama.cpp counts with its better setting, which the table names. Arguments after -- go to both programs.

Example: scripts/bench.py --models smollm2 --tests pp512,tg64 -r 3 -- -ctk q8_0
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = {
    "smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "qwen2": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "gemma3": "gemma-3-270m-q4_k_m.gguf",
}
TESTS = ["pp512", "tg64", "tg64@4096", "tg64@8192"]


class BenchError(Exception):
    """One line for the user: which command failed, and why."""


def parse_test(text):
    """`pp512` or `tg64@4096` as llama-bench's options: kind, tokens, @ depth of the cache."""
    match = re.fullmatch(r"(pp|tg)([1-9][0-9]*)(?:@([0-9]+))?", text)
    if match is None:
        raise BenchError(f"unknown test {text}; write ppN or tgN, with @DEPTH for a filled cache")
    kind, tokens, depth = match.groups()
    prompt, gen = (tokens, "0") if kind == "pp" else ("0", tokens)
    return ["-p", prompt, "-n", gen, "-d", depth or "0"]


def measure(program, options):
    """Tokens per second of one run."""
    command = [str(program.resolve()), *options, "-r", "1", "-o", "jsonl"]
    try:
        run = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise BenchError(f"{program}: {error.strerror}") from error
    rows = [line for line in run.stdout.splitlines() if line.startswith("{")]
    if run.returncode != 0 or len(rows) != 1:
        said = run.stderr.strip().splitlines() or ["no result"]
        raise BenchError(f"{' '.join(command)}: exit {run.returncode}: {said[-1]}")
    return float(json.loads(rows[0])["avg_ts"])


def cpu():
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    model = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    name = model.group(1) if model else platform.processor() or platform.machine()
    wide = [flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx512_fp16", "amx_int8") if re.search(rf"\b{flag}\b", text)]
    return f"{name}, {os.cpu_count()} cores" + (f" ({' '.join(wide)})" if wide else "")


def commit():
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def compare(args, extra, model, test):
    """The samples of gracekv and of llama.cpp per -fa, taken in turn."""
    options = ["-m", str(args.dir / MODELS[model]), "-t", str(args.threads), *parse_test(test), *extra]
    sides = {"gracekv": (args.gracekv, ["-fa", args.fa])}
    sides.update({f"llama.cpp -fa {fa}": (args.llama, ["-fa", fa]) for fa in ("0", "1")})
    samples = {side: [] for side in sides}
    for round_ in range(args.rounds):
        for side, (program, flags) in sides.items():
            samples[side].append(measure(program, [*options, *flags]))
            print(f"{model} {test} round {round_ + 1}/{args.rounds}: {side}: {samples[side][-1]:.2f} tokens/s",
                  file=sys.stderr, flush=True)
    return samples


def row(model, test, samples):
    medians = {side: statistics.median(values) for side, values in samples.items()}
    best = max((side for side in medians if side != "gracekv"), key=medians.get)
    ratio = medians["gracekv"] / medians[best]
    return f"| {model} | {test} | {medians['gracekv']:.2f} | {medians[best]:.2f} | {best[-1]} | {ratio:.2f} |"


def report(args, extra, results):
    flags = " ".join(["-t", str(args.threads), *extra])
    lines = [
        f"# gracekv-bench against llama-bench: {args.name}",
        "",
        f"- date: {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC",
        f"- CPU: {cpu()}; load at the end: {os.getloadavg()[0]:.1f}",
        f"- gracekv {commit()}, -fa {args.fa}; llama.cpp b11434, the better of -fa 0 and 1",
        f"- flags of both: {flags}",
        f"- medians of {args.rounds} single runs, the programs in turn; tokens per second; a test is ppN or tgN@depth",
        "",
        "| model | test | gracekv | llama.cpp | -fa | ratio |",
        "|---|---|---:|---:|---:|---:|",
        *(row(model, test, samples) for (model, test), samples in results.items()),
        "",
        "Samples:",
        "",
        "```",
    ]
    for (model, test), samples in results.items():
        for side, values in samples.items():
            lines.append(f"{model} {test} {side}: {' '.join(f'{value:.2f}' for value in values)}")
    return "\n".join([*lines, "```", ""])


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated (default: %(default)s)")
    parser.add_argument("--tests", default=",".join(TESTS), help="comma-separated ppN, tgN, tgN@DEPTH (default: %(default)s)")
    parser.add_argument("-r", "--rounds", type=int, default=5, help="runs per program and setting (default: %(default)s)")
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count(), help="(default: all cores, %(default)s)")
    parser.add_argument("--fa", default="auto", choices=["0", "1", "auto"], help="-fa of gracekv-bench (default: %(default)s)")
    parser.add_argument("--dir", type=pathlib.Path, default=ROOT / "models", help="folder of the models")
    parser.add_argument("--gracekv", type=pathlib.Path, default=ROOT / "target/release/gracekv-bench", metavar="PROGRAM")
    parser.add_argument("--llama", type=pathlib.Path, default=ROOT / "target/llama.cpp/build/bin/llama-bench", metavar="PROGRAM")
    parser.add_argument("--name", default="llama-bench", help="of the report's file (default: %(default)s)")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests/bench/runs", help="folder of the report")
    own, extra = sys.argv[1:], []
    if "--" in own:
        extra = own[own.index("--") + 1:]
        own = own[:own.index("--")]
    return parser.parse_args(own), extra


def main():
    args, extra = arguments()
    try:
        models, tests = args.models.split(","), args.tests.split(",")
        if args.rounds < 1:
            raise BenchError("-r must be at least 1")
        for model in models:
            if model not in MODELS:
                raise BenchError(f"unknown model {model}; known: {', '.join(MODELS)}")
            if not (args.dir / MODELS[model]).is_file():
                raise BenchError(f"{args.dir / MODELS[model]} is missing; run scripts/fetch_models.py {model}")
        for test in tests:
            parse_test(test)
        for program, remedy in ((args.gracekv, "make build"), (args.llama, "scripts/build_llama_cpp.sh")):
            if not program.is_file():
                raise BenchError(f"{program} is missing; run {remedy}")
        results = {(model, test): compare(args, extra, model, test) for model in models for test in tests}
        text = report(args, extra, results)
        print(text)
        args.out.mkdir(parents=True, exist_ok=True)
        path = args.out / f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}-{args.name}.md"
        path.write_text(text, encoding="utf-8")
        print(f"written to {path}", file=sys.stderr)
    except (BenchError, OSError) as error:
        sys.exit(f"bench: {error}")
    except KeyboardInterrupt:
        sys.exit("bench: interrupted; nothing was written")


if __name__ == "__main__":
    main()
