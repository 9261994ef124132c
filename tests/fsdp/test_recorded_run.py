"""A run that real FSDP processes trained, with a crash and two resizes: all verifiers agree on it.

The made-up run of `made_up_runs.make_history` stands for it where tensors do not matter.
"""

import json
import shutil
from hashlib import sha256

import pytest
from forging import forged
from test_training import crash_at
from verifiers import audited, by_script, run_script
from worker_functions import make_job, run_job

from planner.base.text import counted
from planner.errors import TrainingFailed
from planner.order.order import Order
from planner.runner.audit_run import audit
from planner.store.records import joint_digest
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.train.checkpoints.checkpoint import read

pytestmark = pytest.mark.fsdp
ROWS, HELD_OUT, BATCH, SEED = 24, 4, 5, 5


@pytest.fixture(scope="module")
def trained(workers, tmp_path_factory):
    """Bitwise, eight steps in two epochs: 2 -> 1 (killed two steps after a commit) -> 2 workers."""
    folder = tmp_path_factory.mktemp("trained")
    rows = ({"text": f"{number} " + "abcdefg " * (number % 5)} for number in range(ROWS))
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    job = make_job(
        str(folder / "rows.jsonl"),
        steps=8,
        global_batch=BATCH,
        max_micro=2,
        model={"layers": 1, "width": 16},
        batch={"equality": "bitwise"},
        eval={"samples": HELD_OUT, "every": 4},
        train={"seed": SEED},
        checkpoint={"every": 2},
    )
    url = str(folder / "run")
    workers.run(run_job, 2, job, url, 2)
    with pytest.raises(TrainingFailed, match="planted crash"):
        workers.run(crash_at, 1, job, url, 4)
    workers.run(run_job, 2, job, url)
    return folder / "run"


def test_the_verifiers_agree_on_a_trained_run(trained):
    """Generations, steps and samples, and the hash of the weights. The audit compares the tensors in the files."""
    ours = audit(trained)
    assert ours.clean, ours.findings
    assert (ours.steps, ours.recomputed, [phase.world_size for phase in ours.phases]) == (8, 2, [2, 1, 2])
    code, output = run_script(trained)
    assert code == 0, output
    assert f"{ours.steps} steps used positions [0, {ours.samples})" in output
    for phase in ours.phases:
        place = f"steps [{phase.first_step}, {phase.end_step})"
        assert f"generation {phase.generation}: {counted(phase.world_size, 'worker')}, {place}\n" in output
    manifest = max((trained / "manifests").iterdir())
    tensors = json.loads(manifest.read_text())["value"]["tensors"]
    weights = {name: digest for name, digest in tensors.items() if name.startswith("model/")}
    assert len(weights) > 10
    assert f"weights SHA-256 {joint_digest(weights)}, on record" in output
    assert joint_digest(weights) == ours.weights


def test_the_script_lists_the_rows_that_were_trained_on(trained):
    """As the order has them. Each step is listed once, with the generation whose work counts."""
    order = Order(num_rows=ROWS, num_held_out=HELD_OUT, seed=SEED)
    _, output = run_script(trained, "--list")
    listed = [line for line in output.splitlines() if line.startswith("step ")]
    rows = (order.rows(BATCH * step, BATCH * step + BATCH) for step in range(8))
    assert [line.partition(": rows ")[2] for line in listed] == [" ".join(map(str, each)) for each in rows]
    assert [line.partition(": rows ")[0] for line in listed] == [
        f"step {step}, generation {number}" for step, number in enumerate([1] * 2 + [2] * 2 + [3] * 4)
    ]


def test_other_weights_under_new_hashes_are_found_by_their_certificate(trained, tmp_path):
    """One bit of a tensor, with the digest of its file, of the manifest and of the ledger made anew.

    Only the audit reads tensors. The script compares files with the manifest alone.
    """
    run = shutil.copytree(trained, tmp_path / "run")
    folder = RunFolder(Storage(str(run)))
    newest = folder.manifest(folder.commits()[-1])
    weights = dict(read(folder.storage, newest, "model/"))["model/head.weight"]
    file = run / newest.folder / "__0_0.distcp"
    content = bytearray(file.read_bytes())
    content[content.index(weights[0].numpy().tobytes())] ^= 1  # rank 0 has the first row
    file.write_bytes(content)

    def name_file(value):
        if value["name"] == newest.name:
            [named] = [each for each in value["files"] if each["name"] == file.name]
            named["sha256"] = sha256(content).hexdigest()

    forged(run, alter_manifest=name_file)
    assert audit(run).findings == (
        f"commit {newest.name}: 1 tensors are not those of its certificate, first model/head.weight",
    )
    assert audited(run).clean
    assert by_script(run, trained).clean
