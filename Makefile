# Two commands on a fresh machine: `make demo` and `make test`. Everything lands in .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-fast path wheel-test lint docs bench gpu chaos fuzz clean

demo: .venv/ready
	$(BIN)/planner demo

# The pure rooms first: they fail fast.
test: .venv/ready
	$(BIN)/pytest -n 2 -m "not slow and not fsdp and not ray"
	$(BIN)/pytest -m "not slow and (fsdp or ray)"

# The pure rooms alone, without processes of FSDP or Ray.
test-fast: .venv/ready
	$(BIN)/pytest -n 2 -m "not slow and not fsdp and not ray"

# Not in `make test`: on Python 3.11 the tracer makes pure tests take 1.2 to 4 times as long. These rooms take about a minute.
COVERED := job notice plan report store
.PHONY: coverage
coverage: .venv/ready
	$(BIN)/pytest -q -n 2 -m "not slow and not fsdp and not ray" $(COVERED:%=tests/%) $(COVERED:%=--cov=planner.%)

# The one path that must always work: a cluster file, a token, `ray job submit`, and nodes that come and go.
path: .venv/ready
	$(BIN)/pytest tests/dispatch/test_path.py

# The built wheel in an environment of its own, outside the checkout: does it bring what it needs?
wheel-test:
	PYTHON=$(PYTHON) tests/wheel/try.sh

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# What follows from the code: the schema, the tables of docs/reference/ and the figures of docs/benchmarks.md.
docs: .venv/ready
	$(BIN)/planner schema > jobs/job.schema.json
	$(BIN)/python docs/generate.py
	$(BIN)/python bench/_table.py

# Without the chaos runs, which take as long as you like.
bench: .venv/ready
	for script in $(filter-out bench/chaos.py bench/gpu.py,$(wildcard bench/[a-z]*.py)); do $(BIN)/python $$script || exit 1; done
	$(BIN)/python bench/_table.py

# What a GPU has to say, docs/gpu.md; toy sizes where there is none.
gpu: .venv/ready
	$(BIN)/python bench/gpu.py

# Everything that can happen to a cluster, for MINUTES, by the dice of SEED; bench/chaos.py keeps what was found.
MINUTES ?= 20
SEED ?= 1
chaos: .venv/ready
	$(BIN)/python tests/chaos/storm.py --minutes $(MINUTES) --seed $(SEED)

# Odd files for every reader, for an hour. Fails if one was neither read nor refused in a sentence; bench/results/fuzz.json
# keeps the counts.
fuzz: MINUTES := $(if $(filter command line environment,$(origin MINUTES)),$(MINUTES),60)
fuzz: .venv/ready
	$(BIN)/python tests/fuzz/fuzz.py --minutes $(MINUTES) --seed $(SEED) --results

# torch first and by itself: resolved beside the rest, pip may choose a build that nobody asked for.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch .venv/ready

clean:
	rm -rf .venv runs .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
