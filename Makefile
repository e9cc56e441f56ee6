# make demo   set up .venv if needed, train a tiny model on Countdown, show what it learnt
# make test   set up .venv if needed, run all tests
# make vllm   set up .venv-vllm if needed, run the tests of vLLM's colocate and server modes, and of ZeRO, on a CPU
# make lint   ruff, check and format
# make types  mypy, over the package
# make hunt   random input against all of it for HUNT_SECONDS (600); what it finds is written to hunted/ as tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

VLLM := .venv-vllm

.PHONY: demo test test-fast vllm lint types hunt format clean help
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# make/make/p' Makefile

# The CPU build of torch where there is no GPU and pip can find one (it carries the version's +cpu), else what pip takes.
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
GPU := $(shell command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -c GPU || true)

$(READY): setup.cfg pyproject.toml constraints.txt
	@start=$$(date +%s); set -e; \
	echo "== set-up of $(VENV)"; \
	$(PYTHON) -c "import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))" \
	  || { echo "$(PYTHON) is not Python 3.11 to 3.13. Name one that is: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }; \
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV); \
	if ! $(BIN)/python -c "import torch" 2>/dev/null; then \
	  if [ -n "$(GPU)" ] && [ "$(GPU)" != 0 ]; then \
	    $(BIN)/python -m pip install -q "torch==$(TORCH)"; \
	  else \
	    $(BIN)/python -m pip install -q "torch==$(TORCH)+cpu" 2>/dev/null || $(BIN)/python -m pip install -q "torch==$(TORCH)"; \
	  fi; \
	fi; \
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[dev]"; \
	touch $(READY); \
	echo "== set-up: $$(( $$(date +%s) - start )) s"

demo: $(READY)
	@start=$$(date +%s); $(BIN)/grpo-ext demo && echo "== demo: $$(( $$(date +%s) - start )) s"

test: $(READY)
	@start=$$(date +%s); $(BIN)/python -m pytest && echo "== tests: $$(( $$(date +%s) - start )) s"

# make test-fast   the core suite, without the tests that train or start processes
test-fast: $(READY)
	@$(BIN)/python -m pytest -m "not slow"

# The CPU build of torch on every machine: these tests are of vLLM's CPU backend. vLLM has engines of its own beside pytest's
# process, so that a core is left to each.
$(VLLM)/.ready: setup.cfg pyproject.toml constraints-vllm.txt
	@start=$$(date +%s); set -e; \
	echo "== set-up of $(VLLM)"; \
	$(PYTHON) -c "import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))" \
	  || { echo "$(PYTHON) is not Python 3.11 to 3.13. Name one that is: make vllm PYTHON=python3.12"; exit 1; }; \
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM); \
	if ! $(VLLM)/bin/python -c "import torch" 2>/dev/null; then \
	  $(VLLM)/bin/python -m pip install -q -c constraints-vllm.txt "torch==$(TORCH)+cpu" 2>/dev/null \
	    || $(VLLM)/bin/python -m pip install -q -c constraints-vllm.txt "torch==$(TORCH)"; \
	fi; \
	$(VLLM)/bin/python -m pip install -q --no-deps -r constraints-vllm.txt; \
	$(VLLM)/bin/python -m pip install -q --no-deps --no-build-isolation -e .; \
	touch $(VLLM)/.ready; \
	echo "== set-up: $$(( $$(date +%s) - start )) s"

vllm: $(VLLM)/.ready
	@start=$$(date +%s); OMP_NUM_THREADS=1 $(VLLM)/bin/python -m pytest tests/engine && echo "== vllm: $$(( $$(date +%s) - start )) s"

lint: $(READY)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(READY)
	@$(BIN)/mypy

# `make hunt HUNT_SEED=7` hunts once more what seed 7 did, as far as there is time.
HUNT_SECONDS ?= 600
HUNT_SEED ?= $(NOW)
NOW := $(shell date +%s)
hunt: $(READY)
	@echo "== hunt: $(HUNT_SECONDS) s, HUNT_SEED=$(HUNT_SEED)"; rm -rf hunted; \
	HUNT_SECONDS=$(HUNT_SECONDS) HUNT_SEED=$(HUNT_SEED) OMP_NUM_THREADS=1 nice $(BIN)/python -m pytest -q -s -rN -p no:cacheprovider \
	  tests/hunt/hunt_*.py

# make format   let ruff put the code in order
format: $(READY)
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(VLLM) build dist *.egg-info
