# make demo and make test are all a newcomer needs; both set up .venv first.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# Threads that wait for each other by spinning make a busy machine ten times slower.
export OMP_WAIT_POLICY = PASSIVE
FAST = $(addprefix tests/,core objectives exchange server_steps experiment report \
  training/test_draws.py training/test_batches.py training/test_local_step.py \
  training/test_callbacks.py)

.PHONY: demo federation test federation-test flower-matrix ranks-test lint types check check-fast \
  format docs clean

demo: $(VENV)/.ready
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

check: $(VENV)/.ready
	$(BIN)/pytest --numprocesses 4 --dist worksteal

format: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build dist demo-out federation-out .mypy_cache .pytest_cache .ruff_cache .hypothesis

# Versions are pinned in constraints.txt, so that every machine runs the same.
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@
