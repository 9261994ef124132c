# Two commands on a fresh machine: `make demo` and `make test`. Everything lands in .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-all test-fast properties path memory wheel-test lint docs bench gpu gpu-smoke chaos fuzz clean

# Tests start thousands of processes. Each would compile planner again where a container has this variable.
unexport PYTHONDONTWRITEBYTECODE

demo: .venv/ready
	$(BIN)/planner demo

# The pure tests first: they fail fast. Then those that start processes: up to three that fail are run once more.
test: .venv/ready
	$(BIN)/python tests/harness/run_tests.py

# Those that CI leaves out, too (marker `slow`): .github/CONTRIBUTING.md says how long it takes.
test-all: .venv/ready
	$(BIN)/python tests/harness/run_tests.py --all

# The pure tests alone, which start no process.
test-fast: .venv/ready
	$(BIN)/pytest -n 2 -m "not slow and not process"

# The pure tests with new random examples, twenty times as many, in random order, for MINUTES from SEED on. `make test`
# takes the same ones each time. A pass takes about 25 minutes.
properties: MINUTES := $(if $(filter command line environment,$(origin MINUTES)),$(MINUTES),10)
properties: .venv/ready
	$(BIN)/python tests/harness/properties.py --minutes $(MINUTES) --seed $(SEED)

# The lines that the tests of five pure rooms reach. On Python 3.11 the tracer makes them take 1.2 to 4 times as long.
COVERED := job notice plan report store
.PHONY: coverage
coverage: .venv/ready
	$(BIN)/pytest -q -n 2 -m "not slow and not process" $(COVERED:%=tests/%) $(COVERED:%=--cov=planner.%)

# The one path that must always work: a cluster file, a token, `ray job submit`, and nodes that come and go. Beside it, a
# submitted job that is left, stopped and sent again, and nodes that an autoscaler starts and ends for a job.
path: .venv/ready
	$(BIN)/pytest tests/dispatch/test_path.py \
		tests/dispatch/test_submit.py::test_one_leaves_a_job_stops_it_and_sends_it_again \
		tests/dispatch/test_autoscaler.py::test_nodes_come_for_a_job_that_follows_them_and_go_when_it_ends

# Resizes and deaths from memory: twenty and ten in random order at one to six workers in `bitwise`, and on Ray with two
# workers on each node.
memory: .venv/ready
	$(BIN)/pytest tests/fsdp/test_memory_histories.py tests/dispatch/test_two_per_node.py

# Workers that run out of memory: on Ray at each place, and five times in each of four runs at places of the dice (quarter
# of an hour). What they tell, and what the controller decides.
.PHONY: out-of-memory
out-of-memory: .venv/ready
	$(BIN)/pytest tests/dispatch/test_memory_on_ray.py tests/fsdp/test_memory_facts.py tests/elastic/test_out_of_memory.py

# Commits in the background under every fault: ten resizes and five kills in each configuration. How runs end on Ray, also
# when their head is killed, a death in the midst of a change, and three short storms (half an hour).
.PHONY: faults
faults: .venv/ready
	$(BIN)/pytest tests/fsdp/test_background_kills.py tests/fsdp/test_background_failures.py \
		tests/dispatch/test_durable_ends.py tests/dispatch/test_run.py \
		tests/dispatch/test_elastic.py::test_a_survivor_that_dies_in_the_midst_of_a_change_costs_no_step \
		tests/dispatch/test_command_line.py::test_a_head_that_is_killed_ends_the_run_with_what_is_committed tests/chaos/test_chaos.py

# All trackers on a real run that loses nodes and its driver, servers that die or are slow, and Ray's metrics endpoint while
# a run is resized (six minutes).
.PHONY: trackers
trackers: .venv/ready
	$(BIN)/pytest tests/tracking tests/cli/test_track_command.py tests/dispatch/test_metrics_endpoint.py

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

# Without the chaos runs, which take as long as you like, and without resizes at real sizes, which take hours.
bench: .venv/ready
	for script in $(filter-out bench/chaos.py bench/gpu.py bench/resize.py,$(wildcard bench/[a-z]*.py)); do $(BIN)/python $$script || exit 1; done
	$(BIN)/python bench/_table.py

# What a GPU has to say, docs/gpu.md; toy sizes where there is none.
gpu: .venv/ready
	$(BIN)/python bench/gpu.py

# Every piece of `make gpu` on the CPU, at toy size (three minutes). `make test` tries one of them.
gpu-smoke: .venv/ready
	$(BIN)/pytest tests/bench/test_gpu_bench.py

# Everything that can happen to a cluster, for MINUTES, by the dice of SEED; bench/chaos.py keeps what was found.
MINUTES ?= 20
SEED ?= 1
chaos: .venv/ready
	$(BIN)/python tests/chaos/storm.py --minutes $(MINUTES) --seed $(SEED)

# Odd files for every reader, for an hour. Fails if one was neither read nor refused in a sentence. Before that, BATCHES
# commands of TRL, whose batch must be the Trainer's (ten minutes), and recipes of axolotl, LLaMA-Factory and torchtune,
# whose batch must be theirs (a third of MINUTES). bench/results/fuzz*.json keep the counts.
BATCHES ?= 10000
fuzz: MINUTES := $(if $(filter command line environment,$(origin MINUTES)),$(MINUTES),60)
fuzz: .venv/ready
	$(BIN)/python tests/fuzz/fuzz_batches.py --cases $(BATCHES) --seed $(SEED) --results
	$(BIN)/python tests/fuzz/fuzz_recipes.py --minutes $(shell awk 'BEGIN { print $(MINUTES) / 3 }') --seed $(SEED) --results
	$(BIN)/python tests/fuzz/fuzz.py --minutes $(MINUTES) --seed $(SEED) --results
	$(BIN)/python tests/fuzz/fuzz_shell_words.py --cases 10000 --seed $(SEED)

# torch first and by itself: resolved beside the rest, pip may choose a build that nobody asked for. On Linux, PyPI has
# the CUDA build. An extra index has the CPU build, whose version (`+cpu`) pip takes as the newer one.
CPU_TORCH := PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt
SAY_WHILE := $(PYTHON) tests/harness/say_while.py
NEEDS := planner needs Python 3.11 or newer, and $(PYTHON) is %d.%d. Name another: make PYTHON=python3.11
.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; now = sys.version_info[:2]; sys.exit("$(NEEDS)" % now if now < (3, 11) else 0)'
	@echo "planner, torch and Ray go into .venv. torch is a download of 2.7 GB with CUDA, as PyPI has it."
	@echo "For the CPU alone, 0.2 GB:"
	@echo "    $(CPU_TORCH) make $(or $(MAKECMDGOALS),demo)"
	@$(SAY_WHILE) "making .venv" $(PYTHON) -m venv .venv
	@$(SAY_WHILE) "1 of 2: downloading and installing torch" $(INSTALL) torch
	@$(SAY_WHILE) "2 of 2: downloading and installing planner, Ray and what tests need" $(INSTALL) --editable '.[dev]'
	@touch .venv/ready

clean:
	rm -rf .venv runs .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
