#!/usr/bin/env bash
# `make wheel-test`: build the wheel, install it into a clean environment outside the checkout, and use it there.
# PYTHON is the interpreter to make the environment with.
set -euo pipefail
checkout=$(cd "$(dirname "$0")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/source" "$scratch/elsewhere"
# From a copy: in the checkout, setuptools would leave build/ behind, and pack what an older build left there.
cp -rL "$checkout"/{planner,pyproject.toml,README.md,LICENSE} "$scratch/source"

"${PYTHON:-python3}" -m venv "$scratch/venv"
export PATH="$scratch/venv/bin:$PATH"
unset PYTHONPATH
# Not compiled: that takes as long as the rest, and most of torch is never imported here.
install=(python -m pip install --quiet --no-compile --constraint "$checkout/constraints.txt")
"${install[@]}" torch  # first and by itself, as in the Makefile
python -m pip wheel --quiet --no-deps --wheel-dir "$scratch" "$scratch/source"
"${install[@]}" "$scratch"/*.whl
python -m pip check

cd "$scratch/elsewhere"
python -I "$checkout/tests/wheel/import_all.py"
[ "$(command -v planner)" = "$scratch/venv/bin/planner" ]
planner --version
planner init
planner plan job.yaml --gpus 1-4
planner run job.yaml --dry-run
planner demo --dry-run
planner check "python -u train.py model=pythia69 datasets=[hh] loss=sft exp_name=sft gradient_accumulation_steps=2 \
    batch_size=64 eval_batch_size=32 trainer=FSDPTrainer" --tuned-for 4 --gpus 3-5
