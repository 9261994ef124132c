"""planner's verdict on torchtune's configurations, against a computation from its source (`torchtune_judge`)."""

import re
from pathlib import Path

import pytest
import torchtune_judge as judge
from torchtune_rows import SIZES, launched, rows

from planner.errors import RecipeError
from planner.recipes import CheckOptions, RecipeOptions, job_of, read_recipe
from planner.recipes.config_reader import mapping_of, text_of
from planner.recipes.entries import flat
from planner.recipes.torchtune.read import _keys

CHECK = RecipeOptions(is_for_job=False, needs_micro=False)
SOME = [row for row in rows() if row.file.endswith(("llama3_1/8B_lora.yaml", "llama3_1/8B_full_dpo.yaml"))]
by_file = pytest.mark.parametrize("row", rows(), ids=lambda row: row.file)


def command(row, size, *overrides):
    """The documented command at a count, with the path of the configuration in place of its name."""
    words = list(row.words)
    words[words.index("--config") + 1] = str(judge.FOLDER / row.file)
    behind = [row.recipe, *words[words.index("--config") :], *overrides]
    launcher = [] if launched(row.recipe, size) is None else ["--nproc_per_node", str(size)]
    return " ".join(["tune run", *launcher, *behind])


def verdicts(foreign):
    outcomes = {count: foreign.outcome(count) for count in SIZES}
    return {count: "-" if its.verdict == "error" else str(its.batch) for count, its in outcomes.items()}


def test_there_are_enough_rows():
    assert len(rows()) >= 40


@by_file
def test_each_count_trains_the_batch_that_torchtune_computes(row):
    """Whatever count the command names, and the global batch is that of this count."""
    for size in [count for count in SIZES if row.expected[count] != "-"]:
        found = read_recipe(command(row, size), (), CHECK)
        assert (str(found.global_batch), found.gpus) == (row.expected[size], size)
        assert verdicts(found.foreign) == row.expected


@by_file
def test_the_file_alone_has_the_same_recipe(row):
    """By the comment at its head, or by its keys."""
    gpus = None if row.recipe not in judge.distributed_recipes() else 4
    options = RecipeOptions(gpus=gpus, is_for_job=False, needs_micro=False)
    found = read_recipe(str(judge.FOLDER / row.file), (), options)
    assert found.script == row.recipe
    assert verdicts(found.foreign) == row.expected


@by_file
def test_the_unit_is_that_of_torchtune(row):
    found = read_recipe(command(row, 1), (), CHECK)
    unit = judge.batch_at(row.recipe, row.config, launched(row.recipe, 1)).unit
    assert unit == {"example": "rows"}.get(found.unit, f"{found.unit}s")


def is_own(row):
    """Whether planner has no objective for it."""
    return (
        row.columns["method"] in {"kd", "ppo"}
        or "qat" in row.columns["tuning"]
        or "vision" in str(row.config.get("model"))
    )


@by_file
def test_each_converts_without_a_silent_key(row):
    """Into a job that planner takes. planner trains no DoRA."""
    options, length = RecipeOptions(), "tokenizer.max_seq_len=1024"
    if row.config.get("model", {}).get("use_dora"):
        with pytest.raises(RecipeError, match=r"model\.use_dora"):
            read_recipe(command(row, 1, length), (), options)
        return
    found = read_recipe(command(row, 4 if row.expected[4] != "-" else 1, length), (), options)
    job, _ = job_of(found)
    assert (job.batch.global_batch, job.objective.kind == "own") == (found.global_batch, is_own(row))
    told = {note.key for note in (*found.draft.carried, *found.draft.dropped)} | found.draft.told
    assert {name for name, its in flat(row.config, "").items() if its.value is not None} <= told


@pytest.mark.parametrize("row", SOME, ids=lambda row: row.file)
@pytest.mark.parametrize("num_rows", [100, 257, 400, 401, 1000])
@pytest.mark.parametrize("limit", ["null", "3"])
def test_a_larger_step_has_the_samples_of_torchtunes_loop(row, num_rows, limit):
    """The trap names the largest step of the run, and none if all steps have the same size."""
    overrides = ("epochs=3", "gradient_accumulation_steps=3", f"max_steps_per_epoch={limit}")
    found = read_recipe(command(row, 2, *overrides), (), CHECK)
    config = judge.load(judge.FOLDER / row.file, overrides)
    steps = judge.samples_of_steps(config, num_rows, 2)
    traps = {trap.name: trap.text for trap in found.traps(CheckOptions(counts=[2], rows=num_rows))}
    told = re.findall(r"then has (\d+) ", traps.get("left-over micro-batches", ""))
    assert [int(size) for size in told] == [size for size in [max(steps)] if size != found.global_batch]


LORA, FULL = "llama3_1/8B_lora.yaml", "llama3_3/70B_full.yaml"
OVERRIDES = [
    (LORA, ("~model.lora_rank", "~dataset.packed")),
    (FULL, ("checkpointer.checkpoint_files.max_filename=0004", "dtype=fp32")),
    *(
        (file, overrides)
        for file in (LORA, FULL)
        for overrides in (
            ("batch_size=3", "epochs=2"),
            ("optimizer=torch.optim.SGD", "optimizer.lr=1e-3"),
            ("seed=None", "mine.new.key=[1,2]", "mine.new.other=a"),
            ("dataset={a: 1}", "compile=yes"),
            ("tokenizer=null", "model.lora_attn_modules=[q_proj]"),
            ("metric_logger.log_dir=5", "loss=a.b", "loss.c="),
            ("clip_grad_norm=1_0", "seed=010", "device=on"),
        )
    ),
]


@pytest.mark.parametrize(("file", "overrides"), OVERRIDES)
def test_overrides_are_those_of_torchtune(file, overrides):
    """As OmegaConf merges them."""
    path = str(judge.FOLDER / "configs" / file)
    keys = _keys(mapping_of(text_of(path), path), path, overrides, RecipeOptions())
    assert not keys.mistakes
    theirs = flat(judge.load(path, overrides), path)
    plain = {name: its.value for name, its in theirs.items() if "${" not in str(its.value)}
    assert set(keys.entries) == set(theirs)
    assert {name: keys.entries[name].value for name in plain} == plain


def test_interpolations_are_filled_in():
    path = str(judge.FOLDER / SOME[0].file)
    keys = _keys(mapping_of(text_of(path), path), path, ("output_dir=/x",), RecipeOptions())
    assert Path(keys.entries["metric_logger.log_dir"].value) == Path("/x/logs")
