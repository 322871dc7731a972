#!/usr/bin/env python3
"""Writes special_ids.json: ids of texts around special and added tokens, by llama-tokenize.

    special.py LLAMA_TOKENIZE VOCAB_FOLDER > special_ids.json      (the folder that `scripts/fetch_models.py vocab` fetches)
"""
import json
import pathlib
import subprocess
import sys

TOKENS = {
    "command-r": ["<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>"],
    "deepseek-llm": ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"],
    "gpt-2": ["<|endoftext|>"],
    "llama-bpe": ["<|begin_of_text|>", "<|eot_id|>"],
    "llama-spm": ["<s>", "</s>"],
    "phi-3": ["<|assistant|>", "<|end|>", "</s>"],
    "qwen2": ["<|im_start|>", "<|im_end|>"],
}
FORMS = ["{} hello", "{}hello", "hello{}", "hello {} world", "{}{}", "a {}\n\n b", "{}  x", " {}"]


def main(tokenize, folder):
    vocabularies = []
    for name, tokens in TOKENS.items():
        cases = []
        for text in (form.replace("{}", token) for token in tokens for form in FORMS):
            path = pathlib.Path(folder) / f"ggml-vocab-{name}.gguf"
            command = [tokenize, "-m", str(path), "--ids", "--log-disable", "-p", text]
            ids = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            cases.append(json.dumps({"text": text, "ids": ids}, ensure_ascii=False))
        vocabularies.append(f"{json.dumps(name)}: [\n" + ",\n".join(cases) + "\n]")
    print("{\n" + ",\n".join(vocabularies) + "\n}")


main(*sys.argv[1:])
