"""`docs/draw_run.py` draws README's picture: real runs, and a ledger with each kind of event."""

import importlib.util
from pathlib import Path

import pytest

from planner.events.event import facts_of
from planner.events.failures import NodesLost
from planner.events.stopping import Notice
from planner.plan import BatchSizes, make_plan
from planner.store.ledger import LedgerWriter
from planner.store.records import NO_HEAD, CommitRecord, EventRecord, GenerationRecord, StepRecord, TrainingIdentity
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.wording.event_text import text_of

ROOT = Path(__file__).parents[2]
IDENTITY = TrainingIdentity(
    global_batch=64, seed=0, data="0" * 64, model="1" * 64, optimizer="adamw", recipe="2" * 64, equality="balanced"
)


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("draw_run", ROOT / "docs" / "draw_run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_generation(run, number, workers, first_step, num_steps, *events):
    """A segment of the ledger as rank 0 writes it: steps of 1 s, generations 60 s apart."""
    header = GenerationRecord(
        generation=number,
        run_id=run.identity().run_id,
        parent="",
        parent_sha256="",
        step=first_step,
        cursor=64 * first_step,
        world_size=workers,
        max_micro=8,
        layout_version=1,
        plan_digest=make_plan(BatchSizes(global_batch=64, max_micro=8), workers).digest,
        identity=IDENTITY,
        job_digest="3" * 64,
        total_steps=160,
        num_samples=1000,
        facts={},
        changed=(),
        time_s=60.0 * number,
    )
    ledger = LedgerWriter(run.storage, header, NO_HEAD)
    for step in range(first_step, first_step + num_steps):
        ledger.write(
            StepRecord(
                step=step, cursor=64 * (step + 1), samples=64, tokens=64, checksum="0" * 16,
                loss=1.0, grad_norm=1.0, lr=1e-3, seconds=1.0,
            )
        )  # fmt: skip
    for event in events:
        ledger.write(
            EventRecord(
                event=event.name, facts=facts_of(event), message=text_of(event), time_s=60.0 * number + num_steps
            )
        )
    ledger.write(CommitRecord(step=first_step + num_steps, name="commit", sha256="4" * 64, seconds=0.5))
    ledger.flush()


@pytest.fixture
def run(tmp_path):
    """4, 3, 5, 4 and 4 workers: a notice, two that join, a loss after two steps without a commit, a restart."""
    made = RunFolder(Storage(str(tmp_path / "run")))
    made.ensure_identity()
    write_generation(made, 1, 4, 0, 35, Notice(leaving=1, size=4, left_s=28.0, room=3, obstacle=None))
    write_generation(made, 2, 3, 35, 49)
    write_generation(made, 3, 5, 84, 28)
    write_generation(made, 4, 4, 110, 40, NodesLost(nodes=1, told=0, from_memory=False))
    write_generation(made, 5, 4, 150, 10)
    return made


def test_events_are_named_and_splits_are_shown(script, run, tmp_path, capsys):
    """In both files, which differ by their colours alone and stay small."""
    assert script.main([run.storage.url, "-o", str(tmp_path / "out" / "demo")]) == 0
    light, dark = (tmp_path / "out" / f"demo-{theme}.svg" for theme in ("light", "dark"))
    assert capsys.readouterr().out == f"{light}\n{dark}\n"
    text = light.read_text()
    words = ["preemption notice", "2 workers join", "node lost, 2 steps done again", "restart", "1 x 22 + 2 x 21"]
    assert [word for word in words if f">{word}</text>" not in text] == []
    assert max(light.stat().st_size, dark.stat().st_size) < 60_000
    colours = {script.THEMES["light"][name]: value for name, value in script.THEMES["dark"].items()}
    for before, after in colours.items():
        text = text.replace(before, after)
    assert text == dark.read_text()


def test_times_are_those_of_the_ledger(script, run):
    """A phase lasts as long as its steps and its commit. The rest is a pause."""
    phases = script.read_trained(run).phases
    assert [(phase.start_s, phase.end_s) for phase in phases[:2]] == [(0.0, 35.5), (60.0, 109.5)]
    assert {samples for phase in phases for samples in (*phase.batch.low, *phase.batch.high)} == {64}


def test_a_trained_run_is_drawn_twice_alike(script, recorded, tmp_path):
    """One worker, stopped and resumed. The files have no date."""
    files = []
    for name in ("one", "two"):
        assert script.main([str(recorded.run), "-o", str(tmp_path / name)]) == 0
        files.append((tmp_path / f"{name}-light.svg").read_text())
    assert ">restart</text>" in files[0]
    assert files[0] == files[1]


def test_nothing_is_drawn_without_a_run(script, tmp_path, capsys):
    """One line on stderr."""
    assert script.main([str(tmp_path / "none"), "-o", str(tmp_path / "picture")]) == 1
    assert "no run here" in capsys.readouterr().err
    assert list(tmp_path.glob("*.svg")) == []
