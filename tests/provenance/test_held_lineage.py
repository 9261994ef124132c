"""A run whose generations began at durable steps and at steps that were only held: what an audit makes of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from forging import forged, reseal
from hypothesis import given
from hypothesis import strategies as st
from made_up_runs import MadeUpRun

from planner.provenance.audit import audit
from planner.provenance.compare import read_trace
from planner.store.run_folder import commit_name

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).parents[2] / "docs" / "verify_run.py"


def verified(run):
    """Exit code and output of the verifier that imports nothing of ours."""
    command = [sys.executable, "-I", "-S", str(SCRIPT), run.storage.url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={}, cwd="/", timeout=120)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


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


# -- damage


def held_file(made, generation=1):
    [name] = [name for name in made.run.held_steps() if int(name[13:]) == generation]
    return Path(made.run.storage.url) / "held" / f"{name}.json"


def altered(**changes):
    """Reseal the first held step with other values, as somebody who knows the digest would."""
    return lambda made: reseal(held_file(made), lambda value: value.update(changes))


def without_a_seal(made):
    document = json.loads(held_file(made).read_text())
    document["value"]["cursor"] += 1
    held_file(made).write_text(json.dumps(document))


HELD = commit_name(5, 1)
NO_GOOD = f"generation 2 resumed from memory at held step {HELD}, and its manifest is no good: "
DAMAGES = {
    "gone": (lambda made: held_file(made).unlink(), NO_GOOD, "resumed from memory: missing, torn or garbage"),
    "torn": (lambda made: held_file(made).write_bytes(held_file(made).read_bytes()[:200]), NO_GOOD, "missing, torn"),
    "altered": (without_a_seal, f"{NO_GOOD}held/{HELD}.json: altered since it was written", "the seal does not match"),
    "of another run": (altered(run_id="x"), "belongs to another run", "not the one that this generation went on from"),
    "with files": (
        altered(files=[{"name": "f", "size_bytes": 1, "sha256": "a" * 64}]),
        f"{NO_GOOD}held/{HELD}.json: torn or not written by this version",
        "which has shards and no files",
    ),
    "resealed": (
        altered(time_s=1.0),
        f"held step {HELD}: its manifest is not the one that generation 2 went on from",
        f"held step {HELD}: its manifest is not the one that this generation went on from",
    ),
    "of another step": (altered(step=4), NO_GOOD, "its manifest is another commit's"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_held_step_is_found(made, damage):
    """By the audit and by the independent verifier."""
    harm, ours, theirs = DAMAGES[damage]
    harm(made)
    found = audit(made.run)
    assert not found.clean
    if damage != "of another step":
        assert any(ours in finding for finding in found.findings), found.findings
    code, output = verified(made.run)
    assert (code, theirs in output) == (1, True), output


def forge(made, alter_held=lambda _: None, alter_header=lambda _: None):
    """Alter the first held step and the header that names it, and make every digest anew up to the newest manifest."""
    forged(
        Path(made.run.storage.url),
        lambda value: alter_header(value) if value.get("generation") == 2 else None,
        lambda value: alter_held(value) if value["name"] == HELD else None,
    )


def test_forging_without_a_change_is_harmless(made):
    """What is found below is the change."""
    forge(made)
    found = audit(made.run)
    assert found.clean, found.findings
    assert verified(made.run)[0] == 0


def unchanged(_value):
    pass


def shifted(**changes):
    return lambda value: value.update(changes)


FORGERIES = {
    "another world size": (
        shifted(world_size=7),
        unchanged,
        "its plan, length, machine or run",
        "another run, place, plan",
    ),
    "another plan": (
        shifted(plan_digest="x"),
        unchanged,
        "its plan, length, machine or run",
        "another run, place, plan",
    ),
    "another length": (
        shifted(total_steps=99),
        unchanged,
        "its plan, length, machine or run",
        "another run, place, plan",
    ),
    "another identity": (
        lambda value: value["identity"].update(seed=9),
        unchanged,
        "its plan, length, machine or run",
        "another run, place, plan",
    ),
    "another cursor": (
        shifted(cursor=16),
        unchanged,
        f"held step {HELD}: it says step 5 and sample 16, and its ledger step 5 and sample 15",
        "is not as far after its parent",
    ),
    "a head that its ledger lacks": (
        shifted(ledger_head="a" * 64),
        unchanged,
        f"it does not reach the head that held step {HELD} names",
        f"does not reach the head that held step {HELD} names",
    ),
    "a later beginning": (
        unchanged,
        shifted(step=6),
        "it begins at step 6, not where held step",
        "does not begin where",
    ),
    "a header that calls it durable": (
        unchanged,
        shifted(parent_is_held=False),
        "it says that it resumed from a durable step, and its parent is not durable but held",
        "has no good manifest",
    ),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_held_step_is_found(made, forgery):
    """With all digests made anew, so that nothing but the values contradict."""
    alter_held, alter_header, ours, theirs = FORGERIES[forgery]
    forge(made, alter_held, alter_header)
    found = audit(made.run)
    assert any(ours in finding for finding in found.findings), found.findings
    code, output = verified(made.run)
    assert (code, theirs in output) == (1, True), output


def test_a_commit_that_poses_as_a_held_step_is_found(made):
    """A held step has no certificate. A commit that says it has shards would need none."""
    poses = {"shards": {"0/a": "0" * 32}, "tensors": {}}
    forged(
        Path(made.run.storage.url),
        lambda _value: None,
        lambda value: value.update(poses) if value["name"] == made.name else None,
    )
    assert not audit(made.run).clean
    code, output = verified(made.run)
    assert (code, "has shards of memory, which no commit has" in output) == (1, True), output


def test_a_held_step_outside_the_lineage_is_checked_too(tmp_path):
    """A header names it, and manifests are never removed."""
    made = MadeUpRun(tmp_path).begin(2).steps(3).commit().steps(2)
    made.begin(3, made.name, is_held=True).steps(4)
    made.begin(1, commit_name(3, 1)).steps(2).commit()
    held_file(made).unlink()
    [finding] = audit(made.run).findings
    assert finding.startswith(NO_GOOD)
    assert verified(made.run)[0] == 1


def test_a_replaced_held_step_outside_the_lineage_is_found_too(tmp_path):
    """Its seal is right, and the header names another digest."""
    made = MadeUpRun(tmp_path).begin(2).steps(3).commit().steps(2)
    made.begin(3, made.name, is_held=True).steps(4)
    made.begin(1, commit_name(3, 1)).steps(2).commit()
    altered(time_s=1.0)(made)
    assert audit(made.run).findings == (DAMAGES["resealed"][1],)
    assert DAMAGES["resealed"][2] in verified(made.run)[1]


@pytest.mark.parametrize("damage", ["gone", "resealed"])
def test_what_is_wrong_is_said_once(made, damage):
    """Of a held step in the lineage."""
    DAMAGES[damage][0](made)
    assert sum(DAMAGES[damage][1] in finding for finding in audit(made.run).findings) == 1


def test_a_held_step_that_no_header_names_is_nobodys_business(made):
    """The workers died between writing it and their header."""
    name = made.name
    made.run.storage.write(f"held/{name}.json", b"torn")
    assert audit(made.run).clean
    assert verified(made.run)[0] == 0


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
