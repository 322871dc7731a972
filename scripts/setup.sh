#!/usr/bin/env bash
# Checks for the tools that building needs and installs the one that is often missing, cmake, from PyPI into
# target/tools (no root, no system package manager). Safe to run again; prints one line per tool.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
tools=$root/target/tools
cmake_wanted=3.19   # vendor/CMakeLists.txt and scripts/build_llama_cpp.sh
cmake_package=cmake==3.31.6

fail() { echo "setup: $*" >&2; exit 1; }

# need NAME REMEDY COMMAND..: the first line of the command's output, or the remedy.
need() {
  local name=$1 remedy=$2 line
  shift 2
  command -v "$1" > /dev/null || fail "$name is missing: $remedy"
  line=$("$@" 2>&1) || fail "$name does not run (${line##*$'\n'}): $remedy"
  printf '%-7s %s\n' "$name" "${line%%$'\n'*}"
}

# recent_cmake PROGRAM: whether it runs and is at least $cmake_wanted.
recent_cmake() {
  local version
  version=$("$1" --version 2> /dev/null | sed -n '1s/^cmake version //p')
  [ -n "$version" ] && [ "$(printf '%s\n' "$cmake_wanted" "$version" | sort -V | head -n 1)" = "$cmake_wanted" ]
}

need cargo "install Rust, see https://rustup.rs" cargo --version
need c++ "install g++ or clang (Debian: apt-get install g++)" "${CXX:-c++}" --version
need make "install it (Debian: apt-get install make)" make --version
need python "install python3 (Debian: apt-get install python3)" python3 --version
need pip "install it (Debian: apt-get install python3-pip)" python3 -m pip --version

export PATH=$tools/bin:$PATH
if ! recent_cmake cmake; then
  # --target is allowed where the system's Python is marked as externally managed (PEP 668). The package's
  # program needs nothing of Python, so a link to it is enough.
  rm -rf "$tools/cmake"
  PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --target "$tools/cmake" "$cmake_package" ||
    fail "pip could not install $cmake_package: install cmake $cmake_wanted or newer by hand"
  mkdir -p "$tools/bin"
  ln -sfn ../cmake/cmake/data/bin/cmake "$tools/bin/cmake"
  recent_cmake "$tools/bin/cmake" || fail "$cmake_package does not run here: install cmake $cmake_wanted or newer by hand"
fi
printf '%-7s %s (%s)\n' cmake "$(cmake --version | sed -n '1s/^cmake version //p')" "$(command -v cmake)"
