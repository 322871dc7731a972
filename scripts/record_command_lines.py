#!/usr/bin/env python3
"""Record what llama-completion prints for the command lines of tests/golden/cli/command_lines.json.

    scripts/record_command_lines.py --program llama.cpp/build/bin/llama-completion --models models

The file holds both the command lines and what was recorded, so a new case is added by writing its `args` (and `stdin`,
`files`, `model`) and running this script. `here` is written by hand and kept: what gracekv-run does otherwise (`stdout`, `echo`,
`exit`, recorded lines that are `missing`, or `text` "other" where the generated text is not compared), and the `reason`.
`echo` is what stands before the generated text, which is compared on every machine; the text itself only on one like this.
In `args`, {model} is the model's path and {name} the path of the file `name`. Of standard error the lines are kept that
begin with one of LINES, without time, level and function; numbers that change from run to run become #.
"""

import argparse
import json
import pathlib
import re
import subprocess
import tempfile

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/cli/command_lines.json"

# Lines that scripts look for, or that tell the user what is going on.
LINES = (
    "chat template is available", "generate: n_ctx", "sampler seed: 1", "sampler seed: 4", "common_perf_print:", "prompt is too long",
    "context full and", "interactive mode on.", "Reverse prompt:", "Input prefix", "Input suffix", "== Running in",
    " - Press", " - To return", " - If you want", " - Not using system message", "*** User-specified prompt",
    "number of tokens in prompt", "static prompt based on n_keep", "prompt: '", "input is empty", "error", "Tokens consumed",
    "warning: minimum context size", "in-suffix/prefix is specified", "usage:", "to show complete usage",
)
STAMP = re.compile(r"^\d+\.\d+\.\d+\.\d+ [IWED] ")
FUNCTION = re.compile(r"^(llama_completion|main): ")
COLOR = re.compile(r"\x1b\[[0-9;]*m")


def lines_of(stderr, seed_is_given):
    """The lines of standard error that are compared."""
    kept = []
    for line in stderr.split("\n"):
        line = FUNCTION.sub("", STAMP.sub("", COLOR.sub("", line)))
        is_token = re.match(r"^ *\d+ -> '", line)
        if not (line.startswith(LINES) or is_token) or (line.startswith("sampler seed") and not seed_is_given):
            continue
        if line.startswith("common_perf_print:"):
            # Times change, and how long a line with a time is.
            line = re.sub(r" +", " ", re.sub(r" *\d+\.\d+", " #", line))
            line = "common_perf_print: graphs reused" if "graphs reused" in line else line
        kept.append(line.rstrip())
    return kept


def echo_of(case):
    """The part of standard output before the generated text."""
    out, args = case["stdout"], case["args"]
    prompt = args[args.index("-p") + 1] if "-p" in args else ""
    for flag in ("-f", "-bf"):
        prompt = case["files"]["prompt"] if flag in args and "files" in case else prompt
    unescaped = re.sub(r"\\(x[0-9a-f]{2}|.)", lambda m: {"n": "\n", "t": "\t"}.get(m[1], chr(int(m[1][1:], 16)) if m[1][0] == "x" else m[1]), prompt)
    for text in (unescaped, unescaped.removesuffix("\n"), prompt):
        if text and out.startswith(text):
            return text
    before, mark, _ = out.partition("assistant\n")
    return before + mark if mark else ""


def record(case, program, models, folder):
    paths = {"model": models / case.get("model", "SmolLM2-135M-Instruct.Q4_1.gguf")}
    for name, text in case.get("files", {}).items():
        paths[name] = folder / name
        paths[name].write_text(text)
    fill = lambda a: re.sub(r"\{(\w+)\}", lambda m: str(paths[m[1]]) if m[1] in paths else m[0], a)
    args = [fill(a) for a in case["args"]]
    done = subprocess.run([program, *args], input=case.get("stdin", "").encode(), capture_output=True, timeout=120)
    case["exit"] = done.returncode
    case["stdout"] = done.stdout.decode(errors="replace")
    found = lines_of(done.stderr.decode(errors="replace"), "-s" in args or "--seed" in args)
    for name, path in paths.items():
        found = [line.replace(str(path), "{" + name + "}") for line in found]
    case["stderr"] = found
    case["echo"] = echo_of(case)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", type=pathlib.Path, required=True, help="llama-completion of build b11434")
    parser.add_argument("--models", type=pathlib.Path, required=True, help="folder of scripts/fetch_models.py")
    parser.add_argument("--only", help="record the cases whose name contains this")
    options = parser.parse_args()
    golden = json.loads(GOLDEN.read_text())
    with tempfile.TemporaryDirectory() as folder:
        for case in golden["cases"]:
            if options.only is None or options.only in case["name"]:
                record(case, options.program.resolve(), options.models.resolve(), pathlib.Path(folder))
                print(case["name"], case["exit"], json.dumps(case["stdout"][-60:]))
    GOLDEN.write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
