# The tasks of this repository; `make` alone lists them. Everything that is built or fetched lands in target/ and
# models/, which git ignores.

export PATH := $(CURDIR)/target/tools/bin:$(PATH)
CARGO ?= cargo
# The models of `make models`: smollm2 (98 MB), qwen2 (491 MB), gemma3 (253 MB), or all.
MODELS ?= smollm2
# ggml's backends beside the CPU: rpc, cuda, metal, vulkan. One set for all targets, so that ggml is built once.
FEATURES ?= rpc
# Arguments of scripts/bench.py, for example: make bench BENCH='--models smollm2 -r 3'
BENCH ?=
# How long each target is fuzzed, and which (all of fuzz/targets unless some are named); how long the soak takes.
SECONDS ?= 60
TARGETS ?=
MINUTES ?= 30

.DEFAULT_GOAL := help
.PHONY: help setup build models demo test bench check-robustness fuzz soak sanitize bindings clean-models

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

setup: ## check the tools, install cmake into target/tools where it is missing
	@scripts/setup.sh

build: setup ## build the programs into target/release
	$(CARGO) build --release --locked --features '$(FEATURES)'

models: ## fetch the models named in MODELS (default: smollm2) into models/
	@scripts/fetch_models.py $(MODELS)

demo: build models ## build, fetch a small model, and show what compression does
	@scripts/demo.py

# All models and llama.cpp's vocabularies (0.9 GB on disk), so that no test has to be skipped.
test: setup ## fetch all models and run all tests
	@scripts/fetch_models.py all vocab
	GRACEKV_REQUIRE_MODELS=1 $(CARGO) test --release --locked --features '$(FEATURES)'

bench: build ## build llama.cpp and measure both programs in turn (long; options in BENCH)
	@scripts/build_llama_cpp.sh
	@scripts/fetch_models.py all
	scripts/bench.py $(BENCH)

check-robustness: setup ## try a million hostile inputs and count what was refused, crashed or hung (5 to 15 minutes)
	@scripts/fetch_models.py smollm2 vocab
	$(CARGO) bench --locked --features '$(FEATURES)' --bench robustness

fuzz: setup ## fuzz each target of fuzz/ for SECONDS, guided by coverage, on the stable toolchain (Linux)
	FEATURES='$(FEATURES)' scripts/fuzz.sh $(SECONDS) $(TARGETS)

soak: setup ## load, read, compress, generate and drop for MINUTES, watching resident memory
	$(CARGO) bench --locked --features '$(FEATURES)' --bench soak -- $(MINUTES)

sanitize: setup ## run tests on a ggml with AddressSanitizer and UndefinedBehaviorSanitizer
	scripts/sanitize.sh ggml

# build.rs writes its bindings below target/, never into the sources; the newest ones are the ones just made.
bindings: setup ## regenerate bindings/ggml.rs (needs libclang)
	$(CARGO) build --release --locked --features bindgen
	cp "$$(ls -t target/release/build/gracekv-*/out/ggml.rs | head -n 1)" bindings/ggml.rs

clean-models: ## delete models/
	rm -rf models
