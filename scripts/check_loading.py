#!/usr/bin/env python3
"""Check how fast text becomes tokens and a model becomes ready, against llama.cpp: both programs in turn, medians.

  encode  1 MB of each text becomes tokens in at most the time of llama.cpp: the clock of llama-perplexity and
          gracekv-perplexity around just that, or llama-tokenize's time for 1 MB less that for 1 kB, whichever is less
  vocab   reading and building the vocabulary takes less than a second
  first   from the start of the program to the first token: at most the time of llama-completion
  peak    the most memory that was resident then: at most that of llama-completion

`first` and `peak` are of short runs with the same options, once as is and once per set in --options: both programs
copy weights that multiply faster in another layout, --no-repack stops that, -lm none reads the file instead of mapping
it. Files are read once before, so that none comes from the disk. Exits with 1 when a check fails.

Example: scripts/check_loading.py --models gemma3 --english wiki.test.raw --llama target/llama.cpp/build/bin
"""

import argparse
import dataclasses
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

from bench import MODELS, ROOT, BenchError, commit, cpu
from check_memory import pseudo_english

SIZE = 1_000_000
OPTIONS = ["", "-lm none", "--no-repack", "-lm none --no-repack"]
CHECKS = ["encode", "vocab", "first"]
LIMIT_S = 100


@dataclasses.dataclass
class Pair:
    """Samples of both programs and what is asked of them."""

    model: str
    check: str
    unit: str
    gracekv: list
    llama: list
    limit: float = None

    def verdict(self):
        wanted = self.limit if self.limit is not None else statistics.median(self.llama)
        return statistics.median(self.gracekv) <= wanted

    def row(self):
        ours = statistics.median(self.gracekv)
        theirs = statistics.median(self.llama) if self.llama else None
        cells = [f"{ours:.1f} {self.unit}"]
        cells += [f"{theirs:.1f} {self.unit}", f"{ours / theirs:.2f}"] if theirs else [f"(< {self.limit:.0f})", ""]
        return f"| {self.model} | {self.check} | {' | '.join(cells)} | {'pass' if self.verdict() else 'FAIL'} |"

    def samples(self):
        lists = [("gracekv", self.gracekv), ("llama.cpp", self.llama)]
        return [f"{self.model} {self.check} {name}: {' '.join(f'{x:.1f}' for x in xs)}" for name, xs in lists if xs]


def repeated(text, size=SIZE):
    """`size` bytes of UTF-8, cut at a character."""
    data = text.encode()
    return (data * (size // len(data) + 1))[:size].decode(errors="ignore")


def texts(args):
    """Three usual texts and four that have no word boundaries, 1 MB each."""
    rng = random.Random(1)
    english = args.english.read_text(encoding="utf-8") if args.english else pseudo_english(SIZE // 4)
    code = "\n".join(path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("src/**/*.rs")))
    chinese = "".join(chr(rng.randint(0x4E00, 0x9FA5)) if rng.random() < 0.93 else rng.choice("，。！？\n") for _ in range(SIZE // 3))
    emoji = "".join(chr(rng.randint(0x1F300, 0x1F64F)) for _ in range(SIZE // 4))
    word = "".join(rng.choice("etaoinshrdlucmfw") for _ in range(SIZE))
    made = {"english": english, "code": code, "chinese": chinese, "emoji": emoji, "one word": word, "one letter": "a", "spaces": " "}
    return {name: repeated(text) for name, text in made.items()}


def run(command, **more):
    """The finished process, its time in ms and the most memory it had in MiB, and the time of its first output."""
    start = time.monotonic()
    process = subprocess.Popen([str(x) for x in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, **more)
    process.stdout.read(1)
    first = time.monotonic() - start
    process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise BenchError(f"{' '.join(map(str, command))}: status {status}")
    return first * 1e3, (time.monotonic() - start) * 1e3, usage.ru_maxrss / 1024


def logged(command, pattern):
    """The number that `pattern` finds in what the command writes to its error output."""
    with tempfile.TemporaryFile() as log:
        try:
            subprocess.run([str(x) for x in command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
                           check=True, timeout=LIMIT_S)
        except subprocess.SubprocessError as error:
            raise BenchError(str(error)) from error
        log.seek(0)
        found = re.search(pattern, log.read().decode(errors="replace"))
    if found is None:
        raise BenchError(f"{command[0]} did not print what matches {pattern}; this script and the program do not fit together")
    return float(found.group(1))


def tokenization(program, model, file):
    """The program's own clock around the tokenizer, in ms."""
    command = [program, "-m", model, "-f", file, "-c", "16", "-b", "16", "-ub", "16", "--chunks", "1", "--no-repack", "--no-warmup"]
    return logged(command, r"tokenization took ([0-9.e+]+) ms")


def tokenize(args, model, file):
    """The whole time of llama-tokenize, in ms."""
    return run([args.llama / "llama-tokenize", "-m", model, "-f", file, "--ids", "--no-escape"], stderr=subprocess.DEVNULL)[1]


def check_encode(args, name, model, folder):
    for text_name, text in texts(args).items():
        if args.texts and text_name not in args.texts.split(","):
            continue
        file, short = folder / "text.txt", folder / "short.txt"
        file.write_text(text, encoding="utf-8")
        short.write_text(text[:1000], encoding="utf-8")
        pair = Pair(name, f"encode {text_name}", "ms", [], [])
        whole = []
        for _ in range(args.rounds):
            pair.gracekv.append(tokenization(args.gracekv / "gracekv-perplexity", model, file))
            pair.llama.append(tokenization(args.llama / "llama-perplexity", model, file))
            whole.append(tokenize(args, model, file) - tokenize(args, model, short))
        if statistics.median(whole) < statistics.median(pair.llama):
            pair.llama = whole
        yield pair


def check_vocab(args, name, model, _):
    command = [args.gracekv / "gracekv-run", "-m", model, "-p", "a", "-n", "1", "-no-cnv", "-c", "512", "-lv", "4"]
    pattern = r"vocabulary: [0-9]+ tokens, loaded in ([0-9.]+) ms"
    yield Pair(name, "vocab", "ms", [logged(command, pattern) for _ in range(args.rounds)], [], 1000)


def check_first(args, name, model, _):
    run_, complete = args.gracekv / "gracekv-run", args.llama / "llama-completion"
    # Threads of OpenMP that spin wait long for one that has lost its core; llama.cpp counts with the better way.
    sides = [(run_, {}), (complete, {}), (complete, {"OMP_WAIT_POLICY": "passive"})]
    for options in args.options or OPTIONS:
        flags = ["-m", model, "-p", "Once upon a time", "-n", "1", "-no-cnv", "--no-display-prompt", "--temp", "0",
                 "-c", args.context, "-t", args.threads, *options.split()]
        # The first run brings file and program into memory.
        rounds = [[run([program, *flags], env={**os.environ, **env}, stderr=subprocess.DEVNULL) for program, env in sides]
                  for _ in range(args.rounds + 1)][1:]
        first, peak = ([[r[side][i] for r in rounds] for side in range(len(sides))] for i in (0, 2))
        yield Pair(name, f"first token {options}".rstrip(), "ms", first[0], min(first[1:], key=statistics.median))
        yield Pair(name, f"peak {options}".rstrip(), "MiB", peak[0], min(peak[1:], key=statistics.median))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated (default: %(default)s)")
    parser.add_argument("--checks", default=",".join(CHECKS), help="comma-separated (default: %(default)s; peak goes with first)")
    parser.add_argument("--english", type=pathlib.Path, metavar="FILE", help="1 MB of English (default: made up)")
    parser.add_argument("--texts", help="comma-separated names of texts to encode (default: all)")
    parser.add_argument("--options", action="append", metavar="FLAGS", help="of both programs for first and peak, may be repeated (default: four sets)")
    parser.add_argument("-r", "--rounds", type=int, default=5, help="runs per program and setting (default: %(default)s)")
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count(), help="(default: all cores, %(default)s)")
    parser.add_argument("-c", "--context", type=int, default=2048, help="(default: %(default)s)")
    parser.add_argument("--dir", type=pathlib.Path, default=ROOT / "models", help="folder of the models")
    parser.add_argument("--gracekv", type=pathlib.Path, default=ROOT / "target/release", metavar="DIR", help="gracekv's programs")
    parser.add_argument("--llama", type=pathlib.Path, default=ROOT / "target/llama.cpp/build/bin", metavar="DIR", help="llama.cpp's programs")
    return parser.parse_args()


def main():
    args = arguments()
    pairs = []
    try:
        checks = {"encode": check_encode, "vocab": check_vocab, "first": check_first}
        unknown = [f"check {c}" for c in args.checks.split(",") if c not in checks]
        unknown += [f"model {m}" for m in args.models.split(",") if m not in MODELS]
        if unknown:
            raise BenchError(f"unknown {unknown[0]}; see --help")
        print(f"gracekv {commit()}; {cpu()}; {args.rounds} rounds\n")
        print("| model | check | gracekv | llama.cpp | ratio | |\n|---|---|---:|---:|---:|---|", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            for name in args.models.split(","):
                for check in args.checks.split(","):
                    for pair in checks[check](args, name, args.dir / MODELS[name], pathlib.Path(folder)):
                        pairs.append(pair)
                        print(pair.row(), flush=True)
    except (BenchError, OSError, ValueError) as error:
        sys.exit(f"check_loading: {error}")
    except KeyboardInterrupt:
        sys.exit("check_loading: interrupted")
    n_failed = sum(not pair.verdict() for pair in pairs)
    print("\nSamples:\n\n```", *(line for pair in pairs for line in pair.samples()), "```", sep="\n")
    print(f"\n{n_failed} of {len(pairs)} checks failed" if n_failed else "\nall checks passed")
    sys.exit(1 if n_failed else 0)


if __name__ == "__main__":
    main()
