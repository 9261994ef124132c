"""Clean runs whose generations began at durable steps and at steps that were only held: what verifiers make of them.

Faults in such runs are in `forging.py`.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_runs import MadeUpRun, text_job
from verifiers import run_script

from planner.base.format_versions import STORED
from planner.provenance.audit import audit
from planner.provenance.compare import read_trace
from planner.store.run_folder import commit_name


def verified(run):
    """Exit code and output of `docs/verify_run.py`."""
    return run_script(run.storage.url)


@pytest.fixture
def made(tmp_path):
    """4 workers hold step 5 (durable: 3), 2 go on from memory, die at 9, hold 8 (durable: 6), 3 go on to the end."""
    made = MadeUpRun(tmp_path, steps=12)
    made.begin(4).steps(3).commit().steps(2)
    made.begin(2, made.name, is_held=True).steps(1).commit().steps(2)
    name = made.name
    made.steps(1)
    return made.begin(3, name, is_held=True).steps(4).commit()


def test_a_run_that_went_on_from_memory_is_clean(made):
    """Each step counts once. Only the step after the held one was computed again."""
    found = audit(made.run)
    assert found.clean, found.findings
    assert (found.steps, found.samples, found.recomputed, found.uncommitted) == (12, 36, 1, 0)
    assert [(phase.first_step, phase.end_step, phase.recomputed_before) for phase in found.phases] == [
        (0, 5, 0),
        (5, 8, 0),
        (8, 12, 1),
    ]
    assert [phase.from_memory for phase in found.phases] == [False, True, True]
    assert read_trace(made.run, b"").final.name == made.name
    code, output = verified(made.run)
    assert code == 0, output
    assert "generation 2: 2 workers, steps [5, 8), from memory" in output
    assert "generation 1: 4 workers, steps [0, 5)\n" in output


def test_a_run_on_its_way_has_lost_nothing(tmp_path):
    """Steps that the newest generation goes on from in memory are not committed yet, and nobody computes them again."""
    made = MadeUpRun(tmp_path).begin(2).steps(3).commit().steps(2)
    made.begin(3, made.name, is_held=True).steps(2)
    name = made.name
    made.steps(1)
    made.begin(1, name, is_held=True).steps(4)
    found = audit(made.run)
    assert found.clean, found.findings
    assert (found.steps, found.recomputed, found.uncommitted) == (3, 1, 2 + 2 + 4)
    assert verified(made.run)[0] == 0


def test_if_all_memory_is_lost_the_steps_are_computed_again(tmp_path):
    """The run falls back to its durable commit. What was held and used before is outside the lineage."""
    made = MadeUpRun(tmp_path).begin(2).steps(3).commit().steps(2)
    made.begin(3, made.name, is_held=True).steps(4)
    made.begin(1, commit_name(3, 1)).steps(7).commit()
    found = audit(made.run)
    assert found.clean, found.findings
    assert (found.steps, found.recomputed, found.uncommitted) == (10, 2 + 4, 0)
    assert [phase.recomputed_before for phase in found.phases] == [0, 6]
    assert verified(made.run)[0] == 0


def test_a_step_may_become_durable_after_it_was_resumed_from_in_memory(tmp_path):
    """A writer that was cut off wrote its manifest late. The header names the digest of the held step."""
    made = MadeUpRun(tmp_path).begin(2).steps(3)
    other = MadeUpRun.__new__(MadeUpRun)
    other.__dict__.update(made.__dict__)
    made.begin(3, made.name, is_held=True)
    manifest = made._points[commit_name(3, 1)]
    other.run.require_current = lambda _generation: None
    other.commit(is_recorded=False)
    del other.run.require_current
    assert made.run.is_held(manifest.name)
    assert made.run.manifest(manifest.name).files
    made.steps(2).commit()
    found = audit(made.run)
    assert found.clean, found.findings
    assert [phase.from_memory for phase in found.phases] == [False, True]
    assert verified(made.run)[0] == 0


@pytest.mark.parametrize("equality", ["balanced", "bitwise"])
def test_a_generation_may_go_on_from_memory_at_the_last_step(tmp_path, equality):
    """The workers died while the last commit was written. The next ones had nothing to compute. No copy has a hash."""
    made = MadeUpRun(tmp_path, steps=4, equality=equality).begin(2).steps(4)
    made.begin(3, made.name, is_held=True).commit()
    found = audit(made.run)
    assert found.clean, found.findings
    assert (found.steps, found.total_steps) == (4, 4)
    assert verified(made.run)[0] == 0


def test_a_held_step_that_no_header_names_is_nobodys_business(made):
    """The workers died between writing it and their header."""
    name = made.name
    made.run.storage.write(f"held/{name}.json", b"torn")
    assert audit(made.run).clean
    assert verified(made.run)[0] == 0


def test_steps_after_the_last_commit_are_uncommitted(tmp_path):
    """They count neither as trained nor as computed again: a crash would lose them."""
    made = MadeUpRun(tmp_path, steps=9).begin(2).steps(4).commit().steps(3)
    found = audit(made.run)
    assert found.clean, found.findings
    assert (found.steps, found.uncommitted, found.recomputed) == (4, 3, 0)
    assert verified(made.run)[0] == 0


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"changed": ("recipe: accepted by name",)},
        {"accepted": ()},
        {"format": 2, "changed": ("recipe: accepted by name",)},
    ],
    ids=["refused", "only in a text", "accepted", "accepted in format 2"],
)
def test_a_change_of_the_recipe_must_be_accepted(tmp_path, fields):
    """By the header of the generation that begins with another job."""
    made = MadeUpRun(tmp_path).begin(2, format=fields.get("format", STORED["ledger"])).steps(3).commit()
    made.change_job(text_job(tmp_path, train={"clip_norm": 0.5}))
    fields = {**fields, "accepted": made.accepted} if "accepted" in fields else fields
    made.begin(3, made.name, **fields).steps(2).commit()
    found = audit(made.run).findings
    code, output = verified(made.run)
    if "accepted" in fields or "format" in fields:
        assert (found, code) == ((), 0), output
    else:
        assert found == ("generation 2: another recipe than before, and nobody accepted it",)
        assert "WRONG generation 2: another 'recipe' than before, and nobody accepted it" in output


SCHEDULES = [
    {"kind": "constant"},
    {"kind": "linear", "warmup": "20%"},
    {"kind": "cosine", "warmup": "9 examples", "final_fraction": 0.1},
    {"kind": "cosine", "warmup": "0.2 epochs"},
]
LENGTHS = [{"steps": 6}, {"steps": None, "epochs": 0.9}, {"steps": None, "examples": 33}]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("length", LENGTHS, ids=str)
def test_every_schedule_and_length_is_derived(tmp_path, schedule, length):
    """By the audit and by the script, which has arithmetic of its own."""
    made = MadeUpRun(tmp_path, job=text_job(tmp_path, train={**length, "schedule": schedule})).begin(2)
    made.steps(made.total_steps).commit()
    found = audit(made.run)
    assert found.clean, found.findings
    assert found.steps == found.total_steps > 5
    code, output = verified(made.run)
    assert code == 0, output


# -- any history

MOVES = st.lists(
    st.tuples(
        st.integers(1, 4),  # workers
        st.integers(0, 4),  # steps before its commit, or none
        st.booleans(),  # whether it commits
        st.integers(0, 3),  # steps after that
        st.sampled_from(["held", "a copy before the end", "durable"]),  # how the next one goes on
    ),
    min_size=1,
    max_size=6,
)


@given(moves=MOVES)
def test_any_history_is_clean_and_its_steps_are_counted(tmp_path_factory, moves):
    """Deaths and hand-overs in any order, to the end."""
    made = MadeUpRun(tmp_path_factory.mktemp("history"), steps=60)
    parent, is_held, durable, done = "", False, "", 0
    for workers, before, commits, after, way in moves:
        made.begin(workers, parent, is_held=is_held).steps(before)
        if commits:
            durable = made.commit().name
        made.steps(after)
        done += before + after
        # A copy that is older than the newest commit is of no use.
        first = max(made.step - after if commits else 0, made.first_step)
        copied = made.step if way == "held" else max(made.step - 1, first)
        newest = commit_name(copied, made.generation)
        parent, is_held = (newest, newest != durable) if way != "durable" else (durable, False)
    if durable:
        found = audit(made.run)
        assert found.clean, found.findings
        assert found.steps == int(durable[:12])
        assert found.uncommitted == made.step - found.steps
        assert found.recomputed == done - made.step
    made.begin(2, parent, is_held=is_held).steps(1).commit()
    found = audit(made.run)
    assert found.clean, found.findings
    assert (found.steps, found.uncommitted) == (made.step, 0)
    assert found.recomputed == done + 1 - found.steps
    assert (found.lost, found.repeated, found.mismatched) == (0, 0, 0)
