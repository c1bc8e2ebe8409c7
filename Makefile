# make demo and make test are all a newcomer needs; both set up .venv first.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# What installs: `PIP="uv pip"` does as well, which goes by VIRTUAL_ENV.
PIP ?= $(BIN)/python -m pip
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Threads that wait for each other by spinning make a busy machine ten times slower.
export OMP_WAIT_POLICY = PASSIVE
FAST = $(addprefix tests/,core objectives exchange server_steps experiment report \
  training/test_draws.py training/test_batches.py training/test_local_step.py \
  training/test_callbacks.py)

.PHONY: demo federation test federation-test flower-matrix ranks-test wheel-test lint types check \
  check-fast format results docs clean

demo: $(VENV)/.ready-demo
	@echo "Training nine runs on small images: half a minute on two cores."
	$(BIN)/python examples/demo.py

# A SuperLink and five SuperNodes on this machine; about two minutes.
federation: $(VENV)/.ready
	$(BIN)/fedmix federation run digits --nodes 5 --rounds 5 --out federation-out
	$(BIN)/fedmix report federation-out -o federation-out/report.html

test: lint types check

# Faults one at a time, cut links, many nodes: half an hour.
# `check` has a short part of it, tests/flower/test_trouble.py.
federation-test: $(VENV)/.ready
	$(BIN)/pytest -m federation tests/flower

# Processes of one run that are killed, hang or are stopped: some two minutes.
ranks-test: $(VENV)/.ready
	$(BIN)/pytest -m "faults or not faults" tests/ranks

# The tests of flower/ under each version of Flower that is allowed: a quarter of an hour.
flower-matrix: $(VENV)/.ready
	$(BIN)/python -m tests.flower.matrix

# The wheel, built, installed into a new environment and tested where no source tree is.
wheel-test: $(VENV)/.ready
	$(BIN)/python -m tests.wheel

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.ready
	$(BIN)/mypy

# For those who change code: under a minute.
check-fast: $(VENV)/.ready
	$(BIN)/pytest --numprocesses 2 --quiet $(FAST) \
	  -k "not (process or trains or compiled or importing or before)"

# More processes than cores, since many tests wait for processes of their own.
check: $(VENV)/.ready
	$(BIN)/pytest --numprocesses 6 --dist worksteal

format: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Tables in README and docs, from published runs and from the package.
results: $(VENV)/.ready
	$(BIN)/python -m docs.generate

docs: $(VENV)/.ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build dist demo-out federation-out .mypy_cache .pytest_cache .ruff_cache .hypothesis

# Versions are pinned in constraints.txt, so that every machine runs the same.
$(VENV)/.ready-demo: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing fedmix and its command line into $(VENV): one to three minutes, mostly PyTorch."
	VIRTUAL_ENV=$(VENV) $(PIP) install --quiet -c constraints.txt -e '.[cli]'
	@touch $@

$(VENV)/.ready: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing fedmix and the developers' tools into $(VENV): some minutes the first time."
	VIRTUAL_ENV=$(VENV) $(PIP) install --quiet -c constraints.txt -e '.[dev]'
	@touch $(VENV)/.ready-demo $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
