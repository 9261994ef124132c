"""The witness of the chaos runs finds what it is there to find."""

import re
import subprocess
import sys

import pytest
from chaos_witness import Rank, newest_rank, reconcile
from storm import write_job, write_witness

from planner.data.user_dataset import function_of
from planner.files import read_job
from planner.job import batch_sizes
from planner.provenance.audit import audit
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage

pytestmark = pytest.mark.fsdp

# 55 steps of 12 samples: the epoch of 509 samples is over after 42 of them.
_TRAIN = """
import multiprocessing
import sys
from planner.files import read_job
from planner.rehearsal.stages import SizePhase
from planner.rehearsal.local_workers import LocalWorkers
from planner.rehearsal.on_processes import rehearse, train_observed
from planner.train.setup import Launch

if __name__ == "__main__":
    job = read_job(sys.argv[1], ["train.steps=55"])
    parts = [SizePhase(world_size=2, end_step=20), SizePhase(world_size=3, end_step=55)]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["planner.train.generation"])
    with LocalWorkers(3, context=context) as workers:
        rehearse(workers, Launch(job=job, url=job.run_path), parts, train_observed)
"""


@pytest.fixture(scope="module")
def witnessed(tmp_path_factory):
    """A run at 2 and then at 3 workers, and what was seen of it."""
    folder = tmp_path_factory.mktemp("witnessed")
    job = write_job(folder / "watched", folder / "run")
    witness = write_witness(folder / "watched", pause_s=0)
    script = folder / "train_it.py"
    script.write_text(_TRAIN)
    subprocess.run([sys.executable, str(script), job], check=True)
    plain = write_job(folder / "plain", folder / "unused").replace("job.yaml", "points.py")
    run = RunFolder(Storage(str(folder / "run")))
    found = audit(run, code=plain)
    assert found.clean
    phases = [(phase.generation, phase.first_step, phase.end_step) for phase in found.phases]
    return run, witness, batch_sizes(read_job(job, [])), function_of(plain, "dataset")(), phases


def hear(witnessed, witness):
    run, _, sizes, samples, phases = witnessed
    return reconcile(run, witness, sizes, samples, phases)


def altered(witnessed, tmp_path, alter):
    """The witness's files with one of them altered: the one that saw most of the last generation."""
    witness = tmp_path / "witness"
    witness.mkdir()
    for path in sorted(witnessed[1].glob("*.log")):
        (witness / path.name).write_text(path.read_text())
    path = next(path for path in sorted(witness.glob("*.log")) if "generation 2" in path.read_text())
    path.write_text("\n".join(alter(path.read_text().splitlines())) + "\n")
    return witness


def test_both_agree_on_a_run_that_is_whole(witnessed):
    found = hear(witnessed, witnessed[1])
    assert found.findings == ()
    assert found.steps == 55
    assert found.reads >= 55 * 12


def test_a_read_that_nobody_saw(witnessed, tmp_path):
    witness = altered(witnessed, tmp_path, lambda lines: lines[:-8])
    assert any("no worker read its samples" in text for text in hear(witnessed, witness).findings)


def test_another_row_than_the_one_trained_on(witnessed, tmp_path):
    def alter(lines):
        at = next(i for i, line in enumerate(lines) if line.startswith("generation 2")) + 1
        row = int(lines[at].split()[1])
        return [*lines[:at], f"read {(row + 1) % 509}", *lines[at + 1 :]]

    text = " ".join(hear(witnessed, altered(witnessed, tmp_path, alter)).findings)
    assert "other samples were read than trained" in text
    assert re.search(r"epoch 0: rows \[\d+\] were trained on more than once", text)
    assert "epoch 0: 1 rows were never trained on" in text


def test_two_processes_that_were_the_same_rank(witnessed, tmp_path):
    """Two groups of one generation would both read, and the ledger would have the steps of only one of them."""
    witness = altered(witnessed, tmp_path, lambda lines: lines)
    twin = next(path for path in sorted(witness.glob("*.log")) if "generation 2" in path.read_text())
    (witness / "twin.log").write_text(twin.read_text())
    assert any("two processes were rank" in text for text in hear(witnessed, witness).findings)


def test_phases_with_a_hole(witnessed):
    """Steps that no phase has would be in no epoch, either."""
    run, witness, sizes, samples, phases = witnessed
    findings = reconcile(run, witness, sizes, samples, phases[1:]).findings
    assert any("do not follow one another" in text for text in findings)


def test_a_committed_step_that_is_not_on_record(witnessed):
    run, witness, sizes, samples, phases = witnessed
    longer = [*phases[:-1], (phases[-1][0], phases[-1][1], phases[-1][2] + 1)]
    findings = reconcile(run, witness, sizes, samples, longer).findings
    assert findings == ("generation 2, step 55: committed, and not on record",)


def test_which_worker_a_process_was_last(tmp_path):
    """By its newest generation, in any of its files. A line that is half written does not count."""
    (tmp_path / "71-5.log").write_text("generation 2 rank 1 of 3 alone\nread 4\n")
    (tmp_path / "71-9.log").write_text("generation 3 rank 0 of 2 kept\nread 4\ngeneration 4 rank 1")
    (tmp_path / "7-9.log").write_text("generation 8 rank 0 of 2 kept\n")
    assert newest_rank(tmp_path, 71) == Rank(generation=3, rank=0, world_size=2, is_kept=True)
    assert newest_rank(tmp_path, 1) is None
