#!/usr/bin/env python3
"""Check that decoding does not collapse while another process keeps one core busy.

Runs gracekv-bench alone and beside a process that does nothing but compute, in turn, with a thread for every core.
Fails when the median speed beside it is below a third of the median speed alone.

Example: scripts/check_busy.py -r 5
"""

import argparse
import contextlib
import os
import pathlib
import statistics
import subprocess
import sys

from bench import MODELS, ROOT, BenchError, measure


@contextlib.contextmanager
def busy_core():
    """A process that never waits, until the block ends."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=pathlib.Path, default=ROOT / "models" / MODELS["smollm2"])
    parser.add_argument("-n", "--tokens", type=int, default=64, help="tokens of a run (default: %(default)s)")
    parser.add_argument("-r", "--rounds", type=int, default=5, help="runs of each kind (default: %(default)s)")
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count(), help="(default: all cores, %(default)s)")
    parser.add_argument("--least", type=float, default=1 / 3, help="share of the speed that must be left (default: a third)")
    parser.add_argument("--gracekv", type=pathlib.Path, default=ROOT / "target/release/gracekv-bench", metavar="PROGRAM",
                        help="gracekv-bench, or llama-bench to compare")
    return parser.parse_args()


def main():
    args = arguments()
    options = ["-m", str(args.model), "-t", str(args.threads), "-p", "0", "-n", str(args.tokens)]
    alone, beside = [], []
    try:
        for round_ in range(args.rounds):
            alone.append(measure(args.gracekv, options))
            with busy_core():
                beside.append(measure(args.gracekv, options))
            print(f"round {round_ + 1}/{args.rounds}: alone {alone[-1]:.2f}, beside a busy process {beside[-1]:.2f} tokens/s",
                  file=sys.stderr, flush=True)
    except (BenchError, OSError) as error:
        sys.exit(f"check_busy: {error}")
    except KeyboardInterrupt:
        sys.exit("check_busy: interrupted")
    before, after = statistics.median(alone), statistics.median(beside)
    passed = after >= args.least * before
    print(f"{'pass' if passed else 'FAIL'}: {after:.2f} of {before:.2f} tokens/s are left ({after / before:.0%}; at least {args.least:.0%} wanted)")
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
