#!/usr/bin/env python3
"""Check what compression promises: memory that is really freed, a cheap pass, and speed.

For every ratio gracekv-run reads a prompt of some 7,500 tokens, compresses its cache and goes on for a while; then

  kv        KV bytes after the pass are at most 1.1 * full / ratio, plus the tokens since and the room for those to come
  resident  the process's resident memory falls by at least 80 % of what is reported as freed
  peak      resident memory during the pass stays below that before it plus 10 % of the full cache
  pass      the pass takes at most 10 % of the time of reading the prompt (the lookahead tokens are part of the answer)
  empty     decoding after the pass runs at 0.85 or more of the speed with an empty cache
  llama     and, with --llama-bench, at least 4 times as fast as llama.cpp's better setting of -fa at the same depth

Speeds are medians of --rounds short runs, each beside one on an empty cache: the state after the pass is kept as a prompt
cache, so that nothing is read again. llama.cpp's speed is compared by way of the speed on an empty cache, too, because that of a
machine changes from minute to minute. Exits with 1 when a check fails.

Example: scripts/check_memory.py --ratios 32 --llama-bench target/llama.cpp/build/bin/llama-bench
"""

import argparse
import dataclasses
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile

from bench import MODELS, ROOT, BenchError, measure

RATIOS = [4, 8, 16, 32, 64, 128]
N_LOOKAHEAD = 32
WORDS = (
    "the of and to in a is that it was for on are with as his they be at one have this from or had by word but what some "
    "we can out other were all there when up use your how said an each she which do their time if will way about many then "
    "them would like so these her long make thing see him two has look more day could go come did number sound no most "
    "people my over know water than call first who may down side been now find any new work part take get place made live "
    "where after back little only round man year came show every good me give our under name very through just form much "
    "great think say help low line before turn cause same mean differ move right boy old too does tell sentence set three "
    "want air well also play small end put home read hand port large spell add even land here must big high such follow"
).split()


@dataclasses.dataclass
class Run:
    """What one run of gracekv-run told."""

    report: dict
    prompt_ms: float


def pseudo_english(n_tokens):
    """Sentences of common words; a vocabulary of English has nearly all of them as one token."""
    rng = random.Random(1)
    sentences, n = [], 0
    while n < n_tokens:
        length = rng.randint(6, 16)
        sentences.append(" ".join(rng.choice(WORDS) for _ in range(length)).capitalize() + ".")
        n += length + 1
    return " ".join(sentences)


def prompt(args):
    if not args.text:
        return pseudo_english(args.tokens)
    text = "\n\n".join(path.read_text(encoding="utf-8") for path in args.text)
    # About 4.3 characters are one token of English prose.
    return text[: int(args.tokens * 4.3)]


def find(pattern, text, what):
    match = re.search(pattern, text)
    if match is None:
        raise BenchError(f"gracekv-run did not print its {what}; this script and the program do not fit together")
    return float(match.group(1))


def generate(args, file, ratio, folder, *more):
    """What is said by a run that begins with the state in the folder, where there is one."""
    command = [str(args.gracekv_run.resolve()), "-m", str(args.model), "-f", str(file), "-c", str(args.context), "-t", str(args.threads),
               "-n", str(N_LOOKAHEAD + args.generate), "--temp", "0", "--ignore-eos", "-no-cnv", "--no-display-prompt",
               "--kv-ratio", str(ratio), "--kv-lookahead", str(N_LOOKAHEAD), "--prompt-cache", str(pathlib.Path(folder) / "state"), *more]
    run = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if run.returncode != 0:
        said = run.stderr.strip().splitlines() or ["no message"]
        raise BenchError(f"{' '.join(command)}: exit {run.returncode}: {said[-1]}")
    return run.stderr


def compress(args, file, ratio, folder):
    """Reads the prompt and compresses it; the state stays in the folder."""
    report = pathlib.Path(folder) / "report.json"
    said = generate(args, file, ratio, folder, "--kv-report", str(report))
    return Run(json.loads(report.read_text(encoding="utf-8")), find(r"prompt eval time =\s*([0-9.]+) ms", said, "prompt eval time"))


def speeds(args, file, ratio, folder):
    """Tokens per second from the compressed cache and from an empty one, in turn; medians."""
    def after_the_pass():
        said = generate(args, file, ratio, folder, "--prompt-cache-ro")
        return find(r" eval time =.* runs .*?([0-9.]+) tokens per second", said, "speed from a prompt cache")

    pairs = [(after_the_pass(), empty_speed(args)) for _ in range(args.rounds)]
    return [statistics.median(of_one) for of_one in zip(*pairs)]


def check(ratio, run, context, speed, empty, llama):
    """Name, measured, limit and verdict of each check; `llama` is a share of the speed on an empty cache."""
    memory, plan = run.report["memory"], run.report["plan"]
    before, after = memory["kv_bytes_before"], memory["kv_bytes_after"]
    per_token = before / context
    allowed = 1.1 * per_token * plan["n_tokens"] / ratio + memory["kv_bytes_room"] + per_token * plan["n_lookahead"]
    fell = memory["resident_bytes_before"] - memory["resident_bytes_after"]
    rose = memory["resident_bytes_peak"] - memory["resident_bytes_before"]
    share = run.report["time_ms"]["total"] / run.prompt_ms
    mib = 2**20
    checks = [
        ("kv", f"{after / mib:.2f} MiB", f"<= {allowed / mib:.2f} MiB", after <= allowed),
        ("resident", f"-{fell / mib:.1f} MiB", f">= {0.8 * (before - after) / mib:.1f} MiB", fell >= 0.8 * (before - after)),
        ("peak", f"+{rose / mib:.1f} MiB", f"<= {0.1 * before / mib:.1f} MiB", rose <= 0.1 * before),
        ("pass", f"{run.report['time_ms']['total']:.0f} ms = {share:.1%}", "<= 10% of prefill", share <= 0.1),
        ("empty", f"{speed:.2f} t/s = {speed / empty:.2f}", ">= 0.85 of empty", speed >= 0.85 * empty),
    ]
    if llama:
        checks.append(("llama", f"{speed / empty / llama:.1f} x", ">= 4 x llama.cpp", speed >= 4 * llama * empty))
    return checks


def bench(args, program, *more):
    return measure(program, ["-m", str(args.model), "-t", str(args.threads), "-p", "0", "-n", str(args.generate), *more])


def empty_speed(args):
    """Tokens per second of gracekv on an empty cache."""
    return bench(args, args.gracekv_bench, "-d", "0")


def llama_share(args, n_depth):
    """llama.cpp's speed at the depth, better setting, as a share of gracekv's on an empty cache."""
    empty = [empty_speed(args)]
    depth = []
    for fa in ("0", "1"):
        depth.append(bench(args, args.llama_bench, "-d", str(n_depth), "-fa", fa))
        empty.append(empty_speed(args))
    return max(depth) / statistics.median(empty)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=pathlib.Path, default=ROOT / "models" / MODELS["smollm2"])
    parser.add_argument("--ratios", default=",".join(map(str, RATIOS)), help="comma-separated (default: %(default)s)")
    parser.add_argument("--text", type=pathlib.Path, nargs="*", metavar="FILE", help="texts of the prompt (default: made up)")
    parser.add_argument("--tokens", type=int, default=7500, help="of the prompt, about (default: %(default)s)")
    parser.add_argument("-c", "--context", type=int, default=8192, help="(default: %(default)s)")
    parser.add_argument("-n", "--generate", type=int, default=96, help="tokens after the pass (default: %(default)s)")
    parser.add_argument("-r", "--rounds", type=int, default=9, help="of each speed (default: %(default)s)")
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count(), help="(default: all cores, %(default)s)")
    parser.add_argument("--gracekv-run", type=pathlib.Path, default=ROOT / "target/release/gracekv-run", metavar="PROGRAM")
    parser.add_argument("--gracekv-bench", type=pathlib.Path, default=ROOT / "target/release/gracekv-bench", metavar="PROGRAM")
    parser.add_argument("--llama-bench", type=pathlib.Path, metavar="PROGRAM", help="compare with llama.cpp too")
    return parser.parse_args()


def main():
    args = arguments()
    n_failed = 0
    try:
        ratios = [float(ratio) if "." in ratio else int(ratio) for ratio in args.ratios.split(",")]
        print("| ratio | check | measured | wanted | |\n|---:|---|---:|---|---|", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "prompt.txt"
            file.write_text(prompt(args), encoding="utf-8")
            llama = llama_share(args, args.tokens) if args.llama_bench else 0.0
            for i, ratio in enumerate(ratios):
                print(f"ratio {ratio} ({i + 1}/{len(ratios)})", file=sys.stderr, flush=True)
                (pathlib.Path(folder) / "state").unlink(missing_ok=True)
                run = compress(args, file, ratio, folder)
                speed, empty = speeds(args, file, ratio, folder)
                for name, measured, wanted, passed in check(ratio, run, args.context, speed, empty, llama):
                    n_failed += not passed
                    print(f"| {ratio} | {name} | {measured} | {wanted} | {'pass' if passed else 'FAIL'} |", flush=True)
        print(f"\n{run.report['plan']['n_tokens']} tokens; {n_failed} checks failed" if n_failed else "\nall checks passed")
    except (BenchError, OSError, ValueError) as error:
        sys.exit(f"check_memory: {error}")
    except KeyboardInterrupt:
        sys.exit("check_memory: interrupted")
    sys.exit(1 if n_failed else 0)


if __name__ == "__main__":
    main()
