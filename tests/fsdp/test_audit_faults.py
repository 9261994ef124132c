"""What the audit must catch: every fault here is planted in a run that otherwise looks healthy."""

import json
import shutil
from pathlib import Path

import pytest
from worker_functions import make_job, records, run_job

from planner.errors import DataError, NewerFormat, StoreError
from planner.provenance.audit import audit
from planner.store.records import Manifest, seal
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage

pytestmark = pytest.mark.fsdp


def audited(url):
    return audit(RunFolder(Storage(str(url))))


@pytest.fixture(scope="module")
def healthy(workers, texts, tmp_path_factory):
    """Two generations, W = 2 and 3, six steps, clean."""
    url = tmp_path_factory.mktemp("healthy")
    job = make_job(texts, steps=6, checkpoint={"every": 2})
    workers.run(run_job, 2, job, str(url), 3)
    workers.run(run_job, 3, job, str(url))
    assert audited(url).clean
    return url


@pytest.fixture
def run_copy(healthy, tmp_path):
    """A copy to harm."""
    return shutil.copytree(healthy, tmp_path / "run")


def broken(rank, job, url, fault):
    """Train with a fault of the loader or the loop on every rank."""
    from planner.train import loop
    from planner.train.batches import Loader

    load, accumulate = Loader.load, loop.accumulate
    if fault == "a sample twice":
        Loader.load = lambda self, cursor: [duplicate(batch) for batch in load(self, cursor)]
    elif fault == "another seed":
        Loader.load = lambda self, cursor: load(self, cursor + 1)
    elif fault == "a row's tokens changed":
        Loader.load = lambda self, cursor: [corrupt(batch) for batch in load(self, cursor)]
    elif fault == "a label changed":
        Loader.load = lambda self, cursor: [mislabel(batch) for batch in load(self, cursor)]
    elif fault == "a round dropped":
        # FSDP needs the round on every worker, so a dropped round runs empty.
        Loader.load = lambda self, cursor: drop_last(load(self, cursor))
    elif fault == "a worker's share twice":
        Loader.load = lambda self, cursor: load(type(self)(**{**vars_of(self), "rank": 0}), cursor)
    try:
        return run_job(rank, job, url)
    finally:
        Loader.load, loop.accumulate = load, accumulate


def vars_of(loader):
    return {name: getattr(loader, name) for name in ("dataset", "order", "plan", "rank")}


def duplicate(batch):
    """The first row stands in the place of the last."""
    from dataclasses import replace

    inputs, labels = batch.inputs.clone(), batch.labels.clone()
    inputs[-1], labels[-1] = inputs[0], labels[0]
    return replace(batch, rows=(*batch.rows[:-1], batch.rows[0]), inputs=inputs, labels=labels)


def corrupt(batch):
    """One token of one row is another one; the row's number is right."""
    from dataclasses import replace

    inputs = batch.inputs.clone()
    inputs[0, 1] ^= 1
    return replace(batch, inputs=inputs)


def mislabel(batch):
    """One target in the middle is another one; every input is right."""
    from dataclasses import replace

    labels = batch.labels.clone()
    labels[0, 0] ^= 1
    return replace(batch, labels=labels)


def drop_last(batches):
    """The last round becomes a ghost."""
    from planner.train.batches import collate

    return [*batches[:-1], collate((), ())]


@pytest.mark.parametrize(
    ("fault", "finding"),
    [
        ("a sample twice", "what entered the forward pass is not the samples at [0, 13)"),
        ("another seed", "what entered the forward pass is not the samples at [0, 13)"),
        ("a row's tokens changed", "what entered the forward pass is not the samples at [0, 13)"),
        ("a label changed", "what entered the forward pass is not the samples at [0, 13)"),
        ("a round dropped", "step 0: computed 9 samples instead of 13"),
        ("a worker's share twice", "step 0: computed 14 samples instead of 13"),
    ],
)
def test_a_broken_run_is_caught(workers, texts, tmp_path, fault, finding):
    """The run trains on without complaint; the audit names the first step and what is wrong with it."""
    workers.run(broken, 2, make_job(texts, steps=3), str(tmp_path), fault)
    result = audited(tmp_path)
    assert not result.clean
    assert any(finding in found for found in result.findings), result.findings
    assert result.mismatched == 3


def test_the_fault_harness_itself_is_harmless(workers, texts, tmp_path):
    """Without a fault, the same path is clean: what is caught above is the fault."""
    workers.run(broken, 2, make_job(texts, steps=3), str(tmp_path), "none")
    assert audited(tmp_path).clean


def test_a_dropped_round_counts_as_lost(workers, texts, tmp_path):
    """Samples that no worker computed are counted."""
    workers.run(broken, 2, make_job(texts, steps=3), str(tmp_path), "a round dropped")
    result = audited(tmp_path)
    assert (result.lost, result.repeated) == (12, 0)


@pytest.mark.parametrize("line", range(8))
def test_an_altered_ledger_line_is_caught(run_copy, line):
    """Wherever it is before the commit that the lineage goes through."""
    segment = run_copy / "ledger" / "000001.jsonl"
    lines = segment.read_text().splitlines()
    committed = next(i for i, text in enumerate(lines) if '"kind":"commit"' in text and "000000000003" in text)
    target = min(line, committed - 1)
    start = max(80, lines[target].find('"generation":'))  # another format would end the audit
    digit = next(c for c in lines[target][start:] if c in "123456789")
    at = lines[target].index(digit, start)
    lines[target] = lines[target][:at] + str(int(digit) % 9 + 1) + lines[target][at + 1 :]
    segment.write_text("\n".join(lines) + "\n")
    result = audited(run_copy)
    assert not result.clean
    assert any("000001.jsonl" in finding for finding in result.findings)


def test_a_removed_line_is_caught(run_copy):
    """A step cannot be cut out."""
    segment = run_copy / "ledger" / "000002.jsonl"
    lines = segment.read_text().splitlines()
    del lines[1]
    segment.write_text("\n".join(lines) + "\n")
    assert any("the chain breaks here" in finding for finding in audited(run_copy).findings)


def test_a_rewritten_chain_is_caught_by_the_manifest(run_copy):
    """Even with all hashes recomputed, the chain does not end at the head that the commit names."""
    from planner.store.records import NO_HEAD, chained

    segment = run_copy / "ledger" / "000001.jsonl"
    head, forged = NO_HEAD, []
    for text in segment.read_text().splitlines():
        body = text[text.index('"record":') + len('"record":') : -1].replace('"samples":13', '"samples":12')
        head = chained(head, body)
        forged.append(f'{{"head":"{head}","record":{body}}}')
    segment.write_text("\n".join(forged) + "\n")
    assert any("does not reach the head" in finding for finding in audited(run_copy).findings)


def reseal(file, **changes):
    """Change a manifest and recompute its digests."""
    value = json.loads(file.read_text())["value"]
    file.write_bytes(seal(Manifest.model_validate({**value, **changes})))


@pytest.mark.parametrize("changes", [{"cursor": 65}, {"step": 5}])
def test_a_forged_position_is_caught(run_copy, changes):
    """Where the newest commit says it is must be where its ledger ends."""
    reseal(max((run_copy / "manifests").iterdir()), **changes)
    assert any("and its ledger step 6 and sample 78" in finding for finding in audited(run_copy).findings)


@pytest.mark.parametrize("harm", ["gone", "torn"])
def test_a_lost_manifest_is_caught(run_copy, harm):
    """The newest commit's, and one in the middle of a generation that the lineage does not need."""
    for name in ("000000000006-000002", "000000000002-000001"):
        file = run_copy / "manifests" / f"{name}.json"
        if harm == "gone":
            file.unlink()
        else:
            file.write_text("{")
        assert any(name in finding for finding in audited(run_copy).findings)


def test_no_manifest_is_not_nothing_committed(run_copy):
    """The ledger knows better."""
    shutil.rmtree(run_copy / "manifests")
    with pytest.raises(StoreError, match=r"the ledger records \d commits, and no manifest can be read"):
        audited(run_copy)


def test_a_newer_format_ends_the_audit(run_copy):
    """An older commit is not the newest."""
    newer_format(max((run_copy / "manifests").iterdir()))
    with pytest.raises(NewerFormat, match="format 2, this one reads 1"):
        audited(run_copy)


def newer_format(file):
    """As another version of planner would write it."""
    file.write_text(json.dumps({"sha256": "?", "value": {"format": 2}}))


def test_a_missing_segment_is_caught(run_copy):
    """The lineage has a hole."""
    (run_copy / "ledger" / "000001.jsonl").unlink()
    assert not audited(run_copy).clean


def test_an_altered_job_is_caught(run_copy):
    """The job that the audit derives from must be the one that was run."""
    for file in (run_copy / "jobs").iterdir():
        job = json.loads(file.read_text())
        file.write_text(json.dumps({**job, "train": {**job["train"], "seed": 5}}))
    with pytest.raises(StoreError, match="altered since it was written"):
        audited(run_copy)


def test_a_harmed_checkpoint_file_is_caught(run_copy):
    """The newest commit's tensors are part of the verdict."""
    newest = max((run_copy / "checkpoints").iterdir())
    file = newest / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-1])
    assert any("torn" in finding for finding in audited(run_copy).findings)


def test_changed_data_is_named_once(workers, texts, tmp_path):
    """Data that is no longer the run's cannot prove anything, and the audit says so instead of guessing."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text(Path(texts).read_text())
    workers.run(run_job, 2, make_job(str(rows), steps=2), str(tmp_path / "run"))
    rows.write_text(rows.read_text().replace("abc", "abd"))
    result = audited(tmp_path / "run")
    assert len(result.findings) == 1
    assert "is not what it was trained on" in result.findings[0]
    rows.unlink()
    with pytest.raises(DataError, match="no file at"):
        audited(tmp_path / "run")


def test_nothing_committed_is_nothing_to_audit(tmp_path):
    """An empty folder is not a run, and a run without a commit has nothing to audit."""
    with pytest.raises(StoreError, match="no run here"):
        audited(tmp_path)
    RunFolder(Storage(str(tmp_path))).ensure_identity()
    with pytest.raises(StoreError, match="nothing was committed yet"):
        audited(tmp_path)


def test_work_after_the_last_commit_is_told_apart(workers, texts, tmp_path):
    """Steps that a crash would do again are not counted as trained, nor as recomputed yet."""
    from test_training import crash_at

    from planner.errors import TrainingFailed

    job = make_job(texts, steps=9, checkpoint={"every": 4})
    with pytest.raises(TrainingFailed):
        workers.run(crash_at, 2, job, str(tmp_path), 7)
    result = audited(tmp_path)
    assert (result.steps, result.uncommitted, result.recomputed) == (4, 3, 0)
    assert result.clean
    assert len(records(tmp_path)) == 7
