#!/usr/bin/env python3
"""Show what compression does: one long text, one question, the full cache beside a cache that is 32 times smaller.

The text is generated here from a seed: the log of a harbour, with an access code written once, somewhere in the middle.
The answer at the higher ratio comes from the compressed cache alone (--kv-discard-lookahead).

Example: scripts/demo.py --ratio 16 -t 4
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Sentences of the prompt (about 4,000 tokens), and the context it is read in.
N_SENTENCE, N_CTX = 230, 4352
# Perplexity: tokens of context, tokens scored after them, and sentences that are enough for both.
N_PREFIX, N_CONTINUATION, N_SENTENCE_PPL = 2000, 256, 150
# Tokens of an answer at most; tokens over which decoding is timed.
N_ANSWER, N_TIMED = 32, 32

NAMES = ["Anna", "Tom", "Maria", "Peter", "Helen", "Jonas", "Clara", "Victor", "Ruth", "Simon", "Nora", "Felix"]
TRADES = ["fisherman", "baker", "carpenter", "teacher", "pilot", "mechanic", "painter", "doctor", "cook", "clerk"]
PLACES = ["the old harbour", "the fish market", "the lighthouse", "the boat yard", "the station", "the small chapel",
          "the library", "the stone bridge", "the north beach", "the school", "the rope factory", "the town hall"]
GOODS = ["apples", "timber", "salt", "wool", "coffee", "bricks", "lamp oil", "rice", "copper wire", "glass", "paper", "tea"]
SHIPS = ["Swallow", "Marigold", "Northern Star", "Patience", "Grey Heron", "Juniper", "Halcyon", "Merry Ann"]
WEATHER = ["The wind turned to the west", "A thick fog came in from the sea", "The rain stopped before noon",
           "The sky stayed clear all day", "A light snow fell in the evening", "The tide was higher than usual"]
EFFECTS = ["the ferry waited for two hours", "the boats went out early", "the children played on the pier",
           "the market closed before four", "nobody wanted to work outside", "the streets were almost empty",
           "the keeper lit the lamp at once", "the smell of bread reached the quay"]
FEELINGS = ["was pleased with the result", "did not say a word about it", "laughed and went home",
            "wrote a long letter to a cousin", "promised to come back soon", "asked for a second opinion",
            "wanted to know the price", "remembered a similar day long ago"]
WORK = ["repaired the roof of", "cleaned the windows of", "painted the door of", "measured the walls of",
        "took photographs of", "swept the floor of", "carried chairs into", "counted the visitors of"]
MONTHS = ["January", "March", "April", "June", "August", "October", "November"]

QUESTION = "What is the access code of the north gate?"


def sentence(rng):
    """One sentence about nothing in particular."""
    pick = rng.choice
    n = rng.randint(3, 90)
    forms = [
        lambda: f"{pick(WEATHER)}, and {pick(EFFECTS)}.",
        lambda: f"{pick(NAMES)} the {pick(TRADES)} {pick(WORK)} {pick(PLACES)} and {pick(FEELINGS)}.",
        lambda: f"The {pick(SHIPS)} unloaded {n} crates of {pick(GOODS)} near {pick(PLACES)}.",
        lambda: f"On the {rng.randint(1, 28)}th of {pick(MONTHS)}, {pick(NAMES)} met {pick(NAMES)} at {pick(PLACES)}.",
        lambda: f"{pick(NAMES)} sold {n} sacks of {pick(GOODS)} to the {pick(TRADES)}, who {pick(FEELINGS)}.",
        lambda: f"Because {pick(EFFECTS)}, {pick(NAMES)} walked from {pick(PLACES)} to {pick(PLACES)}.",
        lambda: f"It took the {pick(TRADES)} about {n} minutes to find {pick(PLACES)}.",
        lambda: f"After that, {pick(NAMES)} and the {pick(TRADES)} shared a pot of tea and talked about {pick(GOODS)}.",
    ]
    return pick(forms)()


def story(rng, n_sentence):
    """Paragraphs of five to nine sentences."""
    paragraphs = []
    while n_sentence > 0:
        n = min(rng.randint(5, 9), n_sentence)
        paragraphs.append([sentence(rng) for _ in range(n)])
        n_sentence -= n
    return paragraphs


def prompt(seed, n_sentence):
    """The story with the code hidden 40 to 60 % in, and the question, in ChatML; and the code."""
    rng = random.Random(seed)
    paragraphs = story(rng, n_sentence)
    code = str(rng.randint(10000, 99999))
    place = paragraphs[int(len(paragraphs) * rng.uniform(0.4, 0.6))]
    place.insert(len(place) // 2, f"The access code of the north gate is {code}.")
    text = "\n\n".join(" ".join(p) for p in paragraphs)
    user = f"Read this log of a harbour town.\n\n{text}\n\n{QUESTION}"
    return f"<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n", code


class DemoError(Exception):
    """One line for the user: which program failed, and why."""


def step(i, text):
    print(f"[{i}/4] {text}", file=sys.stderr, flush=True)


def run(args, program, *options):
    """The standard output of one of our programs; on a terminal its progress is seen."""
    command = [str(args.programs / program), "-m", str(args.model), *map(str, options)]
    if args.threads:
        command += ["-t", str(args.threads)]
    terminal = sys.stderr.isatty()
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=None if terminal else subprocess.PIPE, text=True)
    except OSError as error:
        raise DemoError(f"{command[0]}: {error.strerror}; run make build") from error
    if done.returncode != 0:
        said = ((done.stderr or "").strip().splitlines() or ["see above"])[-1]
        raise DemoError(f"{program}: exit {done.returncode}: {said}")
    return done.stdout


def answer(args, text, *options):
    """What the model answers; `[end of text]` is the program's own mark."""
    out = run(args, "gracekv-run", "-f", text, "-c", N_CTX, "-n", N_ANSWER, "--temp", 0, "-no-cnv",
              "--no-display-prompt", "--no-perf", *options)
    return " ".join(out.replace("[end of text]", "").split())


def measure(args, folder):
    """The question, the right code, and the rows of the table: name, full cache, compressed cache."""
    text, code = prompt(args.seed, N_SENTENCE)
    # The programs drop one line break at the end of a file.
    question, other, report, ppl = (folder / name for name in ("prompt.txt", "text.txt", "kept.json", "ppl.json"))
    question.write_text(text + "\n", encoding="utf-8")
    paragraphs = story(random.Random(args.seed + 1), N_SENTENCE_PPL)
    other.write_text("\n\n".join(" ".join(p) for p in paragraphs) + "\n", encoding="utf-8")

    step(1, "the answer from the full cache")
    full = answer(args, question)
    step(2, f"the answer from a cache {args.ratio:g} times smaller")
    small = answer(args, question, "--kv-ratio", args.ratio, "--kv-discard-lookahead", "--kv-report", report)
    kept = json.loads(report.read_text(encoding="utf-8"))
    plan, memory = kept["plan"], kept["memory"]
    step(3, f"decoding speed after {plan['n_tokens']:,} tokens")
    speeds = json.loads(run(args, "gracekv-bench", "-p", 0, "-n", N_TIMED, "-d", plan["n_tokens"], "-r", 1,
                            "--kv-ratio", f"1,{args.ratio:g}", "-o", "json"))
    step(4, f"perplexity of {N_CONTINUATION} tokens after {N_PREFIX:,} others")
    run(args, "gracekv-perplexity", "-f", other, "--prefix", N_PREFIX, "--continuation", N_CONTINUATION,
        "--kv-ratio", f"1,{args.ratio:g}", "--json", ppl)
    rows = json.loads(ppl.read_text(encoding="utf-8"))["rows"]

    def mib(name):
        return [f"{memory[f'{name}_bytes_{when}'] / 2**20:.1f} MiB" for when in ("before", "after")]

    return plan["n_tokens"], code, kept["time_ms"]["total"], [
        ["answer", full, small],
        ["cache entries", f"{plan['n_entries_before']:,}", f"{plan['n_entries_after']:,}"],
        ["KV memory", *mib("kv")],
        ["resident memory", *mib("resident")],
        ["decoding", *(f"{row['avg_ts']:.1f} tokens/s" for row in speeds)],
        ["perplexity", *(f"{row['all']['ppl']:.2f}" for row in rows)],
    ]


def table(heads, rows):
    """Aligned columns, long cells wrapped."""
    lines = []
    for row in [heads, *rows]:
        cells = [textwrap.wrap(cell, 30) or [""] for cell in row]
        for i in range(max(map(len, cells))):
            parts = [cell[i] if i < len(cell) else "" for cell in cells]
            lines.append(f"{parts[0]:<17}{parts[1]:<32}{parts[2]}".rstrip())
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ratio", type=float, default=32, help="how many times smaller (default: %(default)g)")
    parser.add_argument("--seed", type=int, default=1, help="of the text (default: %(default)s)")
    parser.add_argument("-t", "--threads", type=int, help="(default: the programs' own)")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models" / MODEL, metavar="FILE",
                        help=f"written for ChatML (default: models/{MODEL})")
    parser.add_argument("--programs", type=pathlib.Path, default=ROOT / "target/release", metavar="DIR",
                        help="(default: target/release)")
    args = parser.parse_args()
    try:
        if not args.model.is_file():
            raise DemoError(f"{args.model} is missing; run make models")
        with tempfile.TemporaryDirectory(prefix="gracekv-demo-") as folder:
            n_tokens, code, pass_ms, rows = measure(args, pathlib.Path(folder))
    except (DemoError, OSError) as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit("demo: interrupted")
    print(f"{args.model.name}: a generated text of {n_tokens:,} tokens; somewhere in it stands a code: {code}")
    print(f"Question: {QUESTION}\n")
    print(table(["", "full cache", f"{args.ratio:g} times smaller"], rows))
    print(f"\nThe cache was compressed in {pass_ms / 1e3:.1f} s. Compression is lossy; the second answer comes from what it left.")


if __name__ == "__main__":
    main()
