"""The rows of keys, and the engine that reads and writes by them."""

import pytest

from planner.files.schema import job_schema
from planner.recipes.engine import (
    carried,
    carried_if_set,
    has_marks,
    refuse_types,
    refuse_unknown,
    refuse_values,
    rename,
)
from planner.recipes.entries import COMMAND_LINE, Entry, KeyReader, flat
from planner.recipes.recipe import Draft
from planner.recipes.rule import NESTED, Rules, about, key, keys, refuses
from planner.recipes.systems import MARKED, READ, reader

SYSTEMS = [*(system for system in READ if system.rules.rows), reader("trainer")]
RULES = Rules((
    *about(
        "what it trains",
        key("rate", into="learning_rate", ours="train.optimizer.lr", value="number", default={"sft": 2e-5, "": 1e-6}),
        key("clip", ours="train.clip_norm", value="norm", default=1.0),
        key("seed", ours="train.seed", value="whole", least=0, default=42),
        key("old_rate", into="learning_rate", value="number", is_old=True),
    ),
    *about(
        "where results go", key("log_*", why="planner logs"), keys("folder run", why="the run has a folder", mark=True)
    ),
))  # fmt: skip


def reader_of(method="", **values):
    entries = {name: Entry(value=value, where=COMMAND_LINE) for name, value in values.items()}
    made = KeyReader(source="r.yaml", entries=entries, rules=RULES, versions="in v1", method=method)
    rename(made)
    return made


def schema_paths(node, schema, path=""):
    """The dotted names of all values of a job, of every kind of section."""
    if "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    for each in (*node.get("anyOf", ()), *node.get("oneOf", ())):
        yield from schema_paths(each, schema, path)
    for name, field in node.get("properties", {}).items():
        yield f"{path}{name}"
        yield from schema_paths(field, schema, f"{path}{name}.")


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_each_row_names_a_key_of_the_job(system):
    schema = job_schema()
    known = set(schema_paths(schema, schema))
    named = {row.ours for row in system.rules if row.ours and not row.ours.startswith("tracking.")}
    assert len(named) > 2
    assert named - known == set()


@pytest.mark.parametrize("system", [its for its in SYSTEMS if its.name != "torchtune"], ids=lambda its: its.name)
def test_only_a_section_or_a_tree_has_keys_below_it(system):
    """Otherwise a reader would ask for a key that is not there, and take its default. torchtune has no types."""
    refuse = refuse_types if system.name == "axolotl" else refuse_values
    for row in system.rules:
        name = row.name
        for value in () if "." in name or name.endswith("*") else ({}, {"a": 1}):
            reader = KeyReader(source="r.yaml", entries=flat({name: value}, "r.yaml"), rules=system.rules)
            rename(reader)
            refuse(reader, "it")
            of_row = [each for each in reader.mistakes if each.startswith(f"{name}: found")]
            assert bool(of_row) == (row.value not in NESTED), (name, value)


@pytest.mark.parametrize("system", MARKED, ids=lambda system: system.name)
def test_a_mark_is_a_key_of_one_system_alone(system):
    marks = {row.name for row in system.rules if row.mark}
    # Two of them that claim a recipe are told apart by the keys that they do not know.
    others = {row.name for other in SYSTEMS if other not in MARKED for row in other.rules}
    assert marks & others == set()


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_a_row_is_renamed_to_a_key_that_the_layer_below_reads(system):
    """The system itself has hardly a key with the name below: one of generation, and another name of the same."""
    renamed = {row.into: row.name for row in system.rules if row.into}
    both = {name for name in renamed if system.rules.exact(name) and not system.rules.exact(renamed[name]).is_old}
    assert both <= {"max_length", "use_liger_kernel"}


def test_a_row_may_not_stand_twice():
    with pytest.raises(ValueError, match="several rows for seed"):
        Rules((key("seed"), key("seed")))


def test_rows_of_others_replace_those_of_the_same_name():
    joined = RULES | Rules((key("seed", default=1),))
    assert joined["seed"].default == 1
    assert len(joined.rows) == len(RULES.rows)


def test_a_row_stands_for_its_section_and_for_a_beginning():
    assert RULES.row("folder.inner").name == "folder"
    assert RULES.row("log_every").why == "planner logs"
    assert RULES.row("nothing") is None
    assert RULES.reasons(["log_every", "seed"])["log_every"] == "planner logs"


def test_a_renamed_key_is_read_below_and_shown_as_written():
    made = reader_of(rate=1e-3)
    assert made.read("learning_rate") == 1e-3
    assert made.shown("learning_rate") == "rate"
    assert reader_of(old_rate=1e-3).shown("learning_rate") == "old_rate"
    with_both = reader_of(rate=1, old_rate=2)
    assert with_both.mistakes == ["old_rate and rate: both set the same value. Remove one"]


@pytest.mark.parametrize(("method", "rate"), [("sft", 2e-5), ("dpo", 1e-6)])
def test_a_default_may_depend_on_the_method(method, rate):
    made, draft = reader_of(method), Draft()
    carried(draft, made, "learning_rate")
    assert draft.job == {"train": {"optimizer": {"lr": rate}}}
    assert draft.derived[0].text.endswith("the default of rate in v1")


def test_values_are_carried_with_a_note():
    made, draft = reader_of(clip=0, seed=7), Draft()
    carried(draft, made, "clip", "seed")
    carried_if_set(draft, made, "learning_rate")
    assert draft.job == {"train": {"clip_norm": None, "seed": 7}}
    assert [note.key for note in draft.carried] == ["clip", "seed"]


def test_a_wrong_value_is_named_as_the_recipe_has_it():
    made = reader_of(rate="fast", seed=-1)
    made.read("learning_rate")
    made.read("seed")
    assert made.mistakes[0].startswith('rate: found "fast"')
    assert made.mistakes[1].startswith("seed: found -1")


def test_an_unknown_key_is_a_mistake_with_the_nearest_row():
    made = reader_of(sed=1, log_every=2, quite_other=3)
    refuse_unknown(made, "Sys")
    assert made.mistakes == [
        "sed: Sys does not know this key and refuses the recipe. Did you mean seed?",
        "quite_other: Sys does not know this key and refuses the recipe. Remove it, or correct its name",
    ]


def test_two_marks_name_a_system():
    assert has_marks(RULES, {"folder": 1, "run": 2, "seed": 3})
    assert not has_marks(RULES, {"folder": 1, "seed": 3})


def test_an_effect_takes_a_value_of_the_same_type_alone():
    effect = refuses("why", 1, False)
    assert effect.takes(None)
    assert effect.takes(1)
    assert not effect.takes(True)
    assert not effect.takes(0)


def test_a_key_keeps_the_name_that_the_recipe_has():
    """Also where another row is renamed to it."""
    assert [reader_of(**{name: 1}).shown("learning_rate") for name in ("learning_rate", "rate", "old_rate")] == [
        "learning_rate", "rate", "old_rate"
    ]  # fmt: skip
    assert reader_of().shown("learning_rate") == "rate"


def test_two_names_of_one_value_are_refused_in_either_order():
    rules = Rules((key("rate"), key("old_rate", into="rate", is_old=True)))
    for names in (("rate", "old_rate"), ("old_rate", "rate")):
        entries = {name: Entry(value=1, where=COMMAND_LINE) for name in names}
        made = KeyReader(source="r.yaml", entries=entries, rules=rules)
        rename(made)
        assert made.mistakes == ["old_rate and rate: both set the same value. Remove one"]
