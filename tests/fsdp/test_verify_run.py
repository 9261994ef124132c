"""The verifier that needs no planner: it agrees with the audit on a real run, and sees each fault planted in a copy."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from hashlib import blake2b, sha256
from pathlib import Path

import numpy as np
import pytest
from forging import compact, forged, reseal
from hypothesis import given
from hypothesis import strategies as st
from sample_sets import write_rows
from test_training import crash_at
from worker_functions import make_job, records, run_job

from planner.data.base import no_progress
from planner.data.conversations import open_conversations
from planner.data.jsonl import JsonlDataset
from planner.data.prepare_tokens import prepare
from planner.data.text_files import TextDataset
from planner.data.tokens import TokensDataset
from planner.errors import TrainingFailed
from planner.job import ChatData, FeedbackData, GptModel, JsonlData, PairsData, TextData
from planner.order.order import Order
from planner.provenance.audit import audit
from planner.store.records import chained, joint_digest
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage

SCRIPT = Path(__file__).parents[2] / "docs" / "verify_run.py"


def verified(run, *options):
    """Exit code and output; isolated, and from another folder, so that nothing of ours can be imported."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(SCRIPT), str(run), *options],
        capture_output=True,
        text=True,
        check=False,
        env={},
        cwd="/",
        timeout=120,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


def audited(run):
    return audit(RunFolder(Storage(str(run))))


@pytest.fixture(scope="module")
def data(texts, tmp_path_factory):
    """A jsonl file of this module's own, to be altered in copies."""
    return shutil.copy(texts, tmp_path_factory.mktemp("verify") / "rows.jsonl")


@pytest.fixture(scope="module")
def healthy(workers, data, tmp_path_factory):
    """Bitwise, 20 steps into the second epoch: 4 -> 3 (killed two steps after a commit) -> 5 workers, rows held out."""
    url = tmp_path_factory.mktemp("run")
    job = make_job(
        str(data),
        steps=20,
        batch={"equality": "bitwise"},
        eval={"samples": 9, "every": 10},
        train={"seed": 5},
        checkpoint={"every": 4},
    )
    workers.run(run_job, 4, job, str(url), 6)
    with pytest.raises(TrainingFailed, match="planted crash"):
        workers.run(crash_at, 3, job, str(url), 4)
    workers.run(run_job, 5, job, str(url))
    return url


@pytest.fixture
def run(healthy, tmp_path):
    """A copy to harm."""
    return shutil.copytree(healthy, tmp_path / "run")


def newest_manifest(run):
    return max((run / "manifests").iterdir(), key=lambda file: (file.stem[13:], file.stem[:12]))


# -- clean runs


@pytest.mark.fsdp
def test_it_agrees_with_the_audit_on_a_clean_run(healthy):
    """Generations, steps and samples; the hash is the one that `planner verify` prints."""
    ours = audit(RunFolder(Storage(str(healthy))))
    assert ours.clean, ours.findings
    assert (ours.steps, ours.recomputed, [p.world_size for p in ours.phases]) == (20, 2, [4, 3, 5])
    code, output = verified(healthy)
    assert code == 0, output
    assert f"{ours.steps} steps used positions [0, {ours.samples})" in output
    for phase in ours.phases:
        place = f"steps [{phase.first_step}, {phase.end_step})"
        assert f"generation {phase.generation}: {phase.world_size} workers, {place}" in output
    tensors = json.loads(newest_manifest(healthy).read_text())["value"]["tensors"]
    weights = {name: digest for name, digest in tensors.items() if name.startswith("model/")}
    full = sha256(json.dumps(weights, sort_keys=True).encode()).hexdigest()
    assert len(weights) > 20
    assert f"weights SHA-256 {full}, on record" in output
    assert full == joint_digest(weights) == ours.weights


@pytest.mark.fsdp
def test_it_lists_the_rows_of_every_step(healthy):
    """As the order has them; over the lineage each step stands there once, recomputed or not."""
    order = Order(num_rows=200, num_held_out=9, seed=5)
    _, output = verified(healthy, "--list")
    listed = [line for line in output.splitlines() if line.startswith("step ")]
    assert listed == [
        f"step {step}, generation {generation}: rows {' '.join(map(str, order.rows(13 * step, 13 * step + 13)))}"
        for step, generation in enumerate([1] * 6 + [2] * 2 + [3] * 12)
    ]


@pytest.mark.fsdp
@pytest.mark.parametrize("pattern", ["", "/*.txt", "/a.txt"])
def test_text_is_read_as_planner_reads_it(workers, tmp_path, pattern):
    """A folder, a glob and a file; the last row is shorter, rows run over the ends of files, one file is empty."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for name, size in {"a.txt": 700, "b.txt": 0, "c-é.txt": 613}.items():
        (corpus / name).write_bytes(bytes(i * i % 251 for i in range(size)))
    job = make_job("", steps=6, data={"kind": "text", "path": f"{corpus}{pattern}"})
    workers.run(run_job, 1, job, str(tmp_path / "run"))
    assert audit(RunFolder(Storage(str(tmp_path / "run")))).clean
    code, output = verified(tmp_path / "run")
    assert code == 0, output
    assert "weights no SHA-256 is on record" in output  # it is no bitwise run


@pytest.fixture(scope="module")
def tuned(workers, tmp_path_factory):
    """Eight steps on pairs, at two sizes: the run, and its data."""
    url = tmp_path_factory.mktemp("tuned")
    path = Path(write_rows(url / "rows.jsonl", "pairs"))
    job = make_job("", steps=8, data={"kind": "pairs", "path": str(path)}, objective={"kind": "dpo"})
    workers.run(run_job, 2, job, str(url / "run"), 1)
    workers.run(run_job, 1, job, str(url / "run"))
    return url / "run", path


@pytest.mark.fsdp
def test_a_run_on_pairs_is_made_anew(tuned):
    """Rows in TRL's format, as a model over bytes reads them."""
    run, _ = tuned
    code, output = verified(run)
    assert code == 0, output
    assert "verify_run: clean. 8 steps used positions [0, 104)" in output
    assert audit(RunFolder(Storage(str(run)))).clean


@pytest.mark.fsdp
def test_other_pairs_are_found_in_a_few_lines(tuned, tmp_path):
    """The first steps that are wrong stand for the others."""
    run, path = tuned
    other = tmp_path / "rows.jsonl"
    other.write_text(path.read_text().replace("a", "z"))
    code, output = verified(run, "--data", str(other))
    assert code == 1
    assert output.count("what entered the forward pass is not the samples") == 1 + 5
    assert "WRONG generation 1: the data at" in output
    assert "WRONG generation 1: ... and" not in output
    assert "WRONG generation 2: ... and 2 more of this kind" in output


@pytest.mark.fsdp
def test_samples_that_it_does_not_make_have_a_verdict_of_their_own(workers, tmp_path):
    """Neither clean nor not: packed rows here; what is wrong beside them is still found."""
    path = write_rows(tmp_path / "rows.jsonl", "chat")
    data = {"kind": "chat", "path": path, "packing": True}
    job = make_job("", global_batch=3, steps=7, data=data, objective={"kind": "sft"})
    workers.run(run_job, 1, job, str(tmp_path / "run"))
    code, output = verified(tmp_path / "run")
    assert code == 3, output
    assert "samples NOT CHECKED: they were made by rows with data.packing" in output
    assert output.splitlines()[-1].startswith("verify_run: good but for the samples. 7 steps used positions [0, 21)")
    with_lines(tmp_path / "run", lambda lines: lines.pop(2))
    assert verified(tmp_path / "run")[0] == 1


@pytest.mark.fsdp
def test_the_data_may_lie_elsewhere(run, data, tmp_path):
    """The data at another path than during the run."""
    elsewhere = shutil.copy(data, tmp_path / "rows.jsonl")
    code, output = verified(run, "--data", str(elsewhere))
    assert code == 0, output


@pytest.mark.fsdp
def test_forging_without_a_change_is_harmless(run):
    """What is caught in forged runs below is the change, not the forging."""
    code, output = verified(forged(run))
    assert code == 0, output


# -- faults by changing files


def flip_a_byte(file, at=-1):
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def with_lines(run, change, generation=1):
    segment = run / "ledger" / f"{generation:06d}.jsonl"
    lines = segment.read_bytes().split(b"\n")
    change(lines)
    segment.write_bytes(b"\n".join(lines))


def swap_steps(lines):
    lines[3], lines[4] = lines[4], lines[3]


def alter_checksum(lines):
    at = lines[2].index(b'"checksum":"') + 12
    lines[2] = lines[2][:at] + (b"0" if lines[2][at : at + 1] != b"0" else b"1") + lines[2][at + 1 :]


def insert_garbage(lines):
    lines.insert(2, b"\xff\xfe\x00 garbage \x80")


def alter_seed(run):
    for file in (run / "jobs").iterdir():
        job = json.loads(file.read_text())
        job["train"]["seed"] = 6
        file.write_text(json.dumps(job, sort_keys=True, separators=(",", ":")))


FAULTS = {
    "a byte of the weights": (
        lambda run: flip_a_byte(run / "checkpoints" / newest_manifest(run).stem / "__0_0.distcp"),
        "torn or altered",
    ),
    "weights cut short": (
        lambda run: (run / "checkpoints" / newest_manifest(run).stem / "__1_0.distcp").write_bytes(b""),
        "torn or altered",
    ),
    "weights gone": (lambda run: shutil.rmtree(run / "checkpoints"), "FileNotFoundError"),
    "the manifest altered": (
        lambda run: newest_manifest(run).write_text(
            newest_manifest(run).read_text().replace('"step": 20', '"step": 19')
        ),
        "its manifest was altered",
    ),
    "the manifest cut short": (
        lambda run: newest_manifest(run).write_bytes(newest_manifest(run).read_bytes()[:500]),
        "torn or garbage",
    ),
    "the manifest garbage": (lambda run: newest_manifest(run).write_bytes(b"\xff\xfe\x00\x80"), "torn or garbage"),
    "the manifest another's": (
        lambda run: shutil.copy(min((run / "manifests").iterdir()), newest_manifest(run)),
        "its manifest is another commit's",
    ),
    "the newest manifest gone": (lambda run: newest_manifest(run).unlink(), "commit 000000000020-000003: missing"),
    "an older manifest of the lineage gone": (
        lambda run: (run / "manifests" / "000000000006-000001.json").unlink(),
        "the step that it went on from, '000000000006-000001', has no good manifest",
    ),
    "all manifests gone": (lambda run: shutil.rmtree(run / "manifests"), "there are no weights to account for"),
    "a step's checksum": (lambda run: with_lines(run, alter_checksum), "the chain breaks at line 3"),
    "a line removed": (lambda run: with_lines(run, lambda lines: lines.pop(2)), "the chain breaks at line 3"),
    "a line of garbage": (lambda run: with_lines(run, insert_garbage), "the chain breaks at line 3"),
    "two steps swapped": (lambda run: with_lines(run, swap_steps), "the chain breaks at line 4"),
    "a ledger cut short": (
        lambda run: with_lines(run, lambda lines: lines.__delitem__(slice(3, None)), generation=3),
        "does not reach the head",
    ),
    "a ledger torn in a line": (
        lambda run: (run / "ledger" / "000002.jsonl").write_bytes(
            (run / "ledger" / "000002.jsonl").read_bytes()[:1100]
        ),
        "does not reach the head",
    ),
    "a ledger empty": (lambda run: (run / "ledger" / "000001.jsonl").write_bytes(b""), "does not reach the head"),
    "a ledger gone": (lambda run: (run / "ledger" / "000002.jsonl").unlink(), "generation 2: missing"),
    "another seed in the job": (alter_seed, "its job was altered"),
    "the job gone": (lambda run: shutil.rmtree(run / "jobs"), "FileNotFoundError"),
}


@pytest.mark.fsdp
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(run, fault):
    """One line says which, the verdict says that it is not clean, and there is no traceback."""
    harm, finding = FAULTS[fault]
    harm(run)
    code, output = verified(run)
    assert code == 1, output
    assert output.splitlines()[-1] == "verify_run: NOT CLEAN"
    assert any(line.startswith("WRONG ") and finding in line for line in output.splitlines()), output


@pytest.mark.fsdp
@pytest.mark.parametrize("change", ["one sample", "a row less", "a file renamed", "no file", "garbage"])
def test_other_data_is_found(run, data, tmp_path, change):
    """One changed letter in one row is named with the steps that used it; anything else, too."""
    lines = Path(data).read_text().splitlines(keepends=True)
    row = int(Order(num_rows=200, num_held_out=9, seed=5).rows(13 * 7, 13 * 7 + 1)[0])
    if change == "one sample":
        lines[row] = lines[row].replace(f'"{row} ', f'"{row}.')
    if change == "a row less":
        del lines[row]
    elsewhere = tmp_path / ("renamed.jsonl" if change == "a file renamed" else "rows.jsonl")
    if change == "garbage":
        elsewhere.write_bytes(b"\xff\xfe\x80 not JSON\n")
    elif change != "no file":
        elsewhere.write_text("".join(lines))
    code, output = verified(run, "--data", str(elsewhere))
    assert code == 1, output
    named = [line for line in output.splitlines() if "what entered the forward pass" in line]
    if change == "one sample":
        assert 1 <= len(named) <= 2  # once in an epoch
        assert any("step 7: " in line for line in named)
    if change == "a file renamed":
        assert not named
    if change in {"one sample", "a row less", "a file renamed"}:
        assert "is not what it was trained on" in output
    if change in {"no file", "garbage"}:
        assert "data" in output.partition("WRONG")[2].splitlines()[0]


# -- faults by someone who can recompute all hashes


def alter_step(number, **changes):
    def alter(record):
        if record.get("kind") == "step" and record["step"] == number:
            record.update({key: change(record[key]) for key, change in changes.items()})

    return alter


@pytest.mark.fsdp
@pytest.mark.parametrize(
    ("alter", "finding"),
    [
        (alter_step(7, checksum=lambda _: "0123456789abcdef"), "step 7: what entered the forward pass"),
        (alter_step(7, tokens=lambda n: n + 1), "step 7: what entered the forward pass"),
        (alter_step(7, samples=lambda n: n - 1), "step 7: not 13 samples up to 104"),
        (alter_step(7, cursor=lambda n: n + 13), "step 7: not 13 samples up to 104"),
        (alter_step(7, cursor=str), "step 7: not 13 samples up to 104"),
    ],
)
def test_a_forged_step_is_found(run, alter, finding):
    """The chain is whole and the manifests are sealed anew: the data alone says what the step must have used."""
    code, output = verified(forged(run, alter))
    assert code == 1
    assert finding in output


@pytest.mark.fsdp
def test_two_steps_that_change_places_are_found(run):
    """What step 3 used stands under step 4, and the other way round."""
    used = {step["step"]: {key: step[key] for key in ("tokens", "checksum")} for step in records(run)}

    def swap(record):
        if record["kind"] == "step" and record["step"] in {3, 4}:
            record.update(used[7 - record["step"]])

    code, output = verified(forged(run, swap))
    assert code == 1
    assert [line for line in output.splitlines() if line.startswith("WRONG")] == [
        "WRONG generation 1: step 3: what entered the forward pass is not the samples at [39, 52)",
        "WRONG generation 1: step 4: what entered the forward pass is not the samples at [52, 65)",
    ]


@pytest.mark.fsdp
def test_a_forged_seed_is_found(run):
    """A job with another seed under its right digest, in every header and manifest: its order is not what was fed."""
    alter_seed(run)
    (file,) = (run / "jobs").iterdir()
    digest = sha256(file.read_bytes()).hexdigest()
    file.rename(file.with_name(f"{digest}.json"))

    def alter(value):
        if "job_digest" in value:
            value["job_digest"] = digest
            value["identity"]["seed"] = 6

    code, output = verified(forged(run, alter, alter))
    assert code == 1
    # Every step; a generation's first five are shown, and the rest are counted.
    shown = output.count("what entered the forward pass is not the samples")
    assert shown + sum(int(more) for more in re.findall(r"and (\d+) more of this kind", output)) == 20


@pytest.mark.fsdp
@pytest.mark.parametrize("change", [{"cursor": 247}, {"run_id": "another"}, {"job_digest": "0" * 64}])
def test_a_forged_manifest_is_found(run, change):
    """The newest commit must be where its ledger is."""

    def alter(value):
        if value["step"] == 20:
            value.update(change)

    code, output = verified(forged(run, alter_manifest=alter))
    assert code == 1
    assert "WRONG generation 3: " in output


@pytest.mark.fsdp
def test_a_change_of_identity_must_be_accepted(run):
    """From generation 3 on with another recipe: a finding, unless its header says that the user accepted it."""

    def alter(value):
        if value.get("generation") == 3:
            value["identity"]["recipe"] = "0" * 64

    def accept(value):
        alter(value)
        if value.get("generation") == 3:
            value["changed"] = ["recipe: accepted by name"]

    code, output = verified(forged(run, alter, alter))
    assert code == 1
    assert "generation 3: another 'recipe' than before, and nobody accepted it" in output
    assert verified(forged(run, accept, alter))[0] == 0


@pytest.mark.fsdp
@pytest.mark.parametrize(
    ("alter", "finding"),
    [
        (alter_step(7, lr=lambda rate: rate * (1 + 1e-9)), "step 7: its learning rate is 0.00100"),
        (lambda value: value.update(total_steps=21) if "total_steps" in value else None, "was to end at step 21"),
        (
            lambda value: value.update(num_samples=190) if "num_samples" in value else None,
            "has 190 samples in an epoch",
        ),
        (lambda value: value.update(format=9) if value.get("kind") == "generation" else None, "ledger is of format 9"),
        (lambda value: value.update(format=True) if value.get("files") else None, "manifest is of format True"),
        (lambda value: value.update(format=2) if value.get("files") else None, "manifest is of format 2"),
    ],
)
def test_what_the_job_says_is_derived(run, alter, finding):
    """Learning rates, lengths and formats, with every hash made anew."""
    code, output = verified(forged(run, alter, alter))
    assert code == 1
    assert finding in output


@pytest.mark.fsdp
def test_every_manifest_is_held_against_the_ledger(run):
    """Whichever it is, sealed anew: of the lineage, of a generation's midst, the newest."""
    for file in sorted((run / "manifests").iterdir()):
        before = file.read_bytes()
        reseal(file, lambda value: value.update(total_steps=21))
        code, output = verified(run)
        assert code == 1
        assert f"commit {file.stem}: its manifest is not the one that the ledger records" in output
        assert any(file.stem in finding and "ledger records" in finding for finding in audited(run).findings)
        file.write_bytes(before)
    assert verified(run)[0] == 0


@pytest.mark.fsdp
def test_a_parent_is_held_against_the_header_after_it(run):
    """A ledger's last line may be altered without a break in the chain; the next generation names the manifest."""
    file = run / "manifests" / "000000000006-000001.json"
    before = json.loads(file.read_text())["sha256"]
    after = reseal(file, lambda value: value["versions"].update(torch="9.9"))
    segment = run / "ledger" / "000001.jsonl"
    *lines, last = segment.read_text().splitlines()
    record = json.loads(last.replace(before, after))["record"]
    head = chained(json.loads(lines[-1])["head"], compact(record))
    segment.write_text("\n".join([*lines, f'{{"head":"{head}","record":{compact(record)}}}']) + "\n")
    assert record["sha256"] == after != before
    code, output = verified(run)
    assert code == 1
    assert "went on from another manifest of commit 000000000006-000001" in output
    finding = "commit 000000000006-000001: its manifest is not the one that generation 2 went on from"
    assert finding in audited(run).findings


@pytest.mark.fsdp
def test_a_commit_that_is_on_no_record_is_found(run):
    """Put between others of its generation. The last one may have none: its worker died before it wrote that."""
    file = run / "manifests" / "000000000005-000001.json"
    shutil.copy(run / "manifests" / "000000000004-000001.json", file)
    reseal(file, lambda value: value.update(name=file.stem, step=5))
    code, output = verified(run)
    assert code == 1
    assert "commit 000000000005-000001: the ledger has no record of it" in output
    assert "commit 000000000005-000001: the ledger has no record of it, and its generation went on" in (
        audited(run).findings
    )


# -- folders that are no runs, and wrong usage


@pytest.mark.process
def test_nothing_committed_is_no_clean_run(tmp_path):
    """An empty folder, and a run that has begun."""
    assert verified(tmp_path) == (1, verified(tmp_path)[1])
    RunFolder(Storage(str(tmp_path))).ensure_identity()
    code, output = verified(tmp_path)
    assert code == 1
    assert "no commit can be read here, so there are no weights to account for" in output


@pytest.mark.process
def test_wrong_usage_is_told_apart(tmp_path):
    """No folder, no argument, an unknown option."""
    assert verified(tmp_path / "none")[0] == 2
    assert verified(tmp_path, "--dat")[0] == 2
    assert verified(tmp_path, "--nonsense")[0] == 2


@pytest.fixture(scope="module")
def script():
    """The script as a module, by its path."""
    spec = importlib.util.spec_from_file_location("verify_run", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@given(
    num_rows=st.one_of(st.integers(1, 80), st.integers(1, 2**40)),
    held_out=st.integers(0, 50),
    seed=st.integers(0, 2**64 - 1),
    start=st.one_of(st.integers(0, 500), st.integers(0, 2**50)),
)
def test_its_order_is_ours(script, num_rows, held_out, seed, start):
    """For any size, held-out part, seed and place."""
    held_out = min(held_out, num_rows - 1)
    rows = Order(num_rows=num_rows, num_held_out=held_out, seed=seed).rows(start, start + 20)
    assert [script.row_at(p, num_rows, held_out, seed) for p in range(start, start + 20)] == rows.tolist()
    assert rows.dtype == np.int64


def same_data(script, dataset, path, field):
    rows, fingerprint = script.read_data(path, field, dataset.context)
    assert (len(rows), fingerprint) == (dataset.num_rows, dataset.fingerprint)
    for row in (*range(0, len(rows), 997), len(rows) - 1):
        assert rows[row] == dataset.tokens(row).tobytes()


def test_its_standard_library_is_ours(script):
    """The demo's data."""
    same_data(script, TextDataset.open("python-stdlib", 1000), "python-stdlib", "")


def test_its_jsonl_is_ours(script, tmp_path):
    """Blank lines, other line ends, no end of line, texts beyond ASCII and beyond the context, folders in a glob."""
    for name, content in {
        "b/1.jsonl": '{"t": "\\u00e9\\n"}\r\n\n \t\n{"t": "äöü日本"}',
        "a/2.jsonl": '{"t": ""}\n',
    }.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(content.encode())
    for path in (tmp_path, f"{tmp_path}/*/*.jsonl"):
        same_data(script, JsonlDataset.open(str(path), "t", 9), str(path), "t")


TURNS = [{"role": "system", "content": "be brief", "name": None}, {"role": "user", "content": "2 + 2, ä?"}]
FOUR, FIVE = ({"role": "assistant", "content": word} for word in ("four\u2028!", "five"))
SPOKEN = [*TURNS, FOUR, {"role": "user", "content": "and 3?"}, FIVE]
HALOS = {"type": "pairwise_feedback", "prompt": TURNS, "output_A": [FIVE], "output_B": [FOUR], "label": 0}
PAIRS = [
    [{"prompt": "what is 2 + 2?", "chosen": "four", "rejected": "five, not four"}],
    [{"prompt": "a text", "chosen": [*TURNS, FOUR], "rejected": [*TURNS, FIVE]}],
    [{"prompt": TURNS, "chosen": [FOUR], "rejected": [FIVE]}],
    [HALOS, {**HALOS, "label": True}],
]
ROWS = {
    "chat": [
        [{"messages": SPOKEN}, {"messages": [FOUR], "prompt": None}],
        [{"prompt": "2 + 2 is ", "completion": "four"}],
        [{"prompt": TURNS, "completion": [FOUR]}],
        [{"type": "sample", "prompt": TURNS, "output": [FIVE]}],
        *PAIRS,
    ],
    "pairs": PAIRS,
    "feedback": [
        *PAIRS,
        [{"prompt": "2 + 2 is ", "completion": "four", "label": True}, {"prompt": "3", "completion": "4", "label": 0}],
        [{"type": "binary_feedback", "prompt": TURNS, "output": [FIVE], "label": 0}],
    ],
}


@pytest.mark.parametrize(("kind", "rows"), [(kind, rows) for kind in ROWS for rows in ROWS[kind]])
@pytest.mark.parametrize("as_array", [False, True])
def test_its_rows_are_ours(script, tmp_path, kind, rows, as_array):
    """Every form that rows come in, whole and cut at either end, with the loss on completions and on all."""
    path = tmp_path / "rows"
    path.write_text(json.dumps(rows) if as_array else "".join(json.dumps(row) + "\n\n" for row in rows))
    made = {"chat": ChatData, "pairs": PairsData, "feedback": FeedbackData}[kind]
    losses = [{"loss_on": "completions"}, {"loss_on": "all"}] if kind == "chat" else [{}]
    for loss in losses:
        for context, most, side in [(200, None, "start"), (16, 7, "start"), (16, 7, "end"), (12, 1, "start")]:
            model = GptModel(kind="gpt", layers=1, width=8, heads=1, context=context)
            data = made(kind=kind, path=str(path), max_prompt=most, cut_prompt=side, **loss)
            ours = open_conversations(data, model, no_progress)
            job = {"data": data.model_dump(), "model": model.model_dump()}
            samples, fingerprint = script.read_any(job, str(path))
            assert (len(samples), fingerprint) == (ours.num_rows, ours.fingerprint)
            for row, sample in enumerate(samples):
                tokens, fed = script.fed(sample)
                digest = blake2b(row.to_bytes(8, "little") + fed, digest_size=8).digest()
                assert (tokens, int.from_bytes(digest, "little")) == ours.evidence(row)


def test_its_texts_are_ours(script, tmp_path):
    """TRL's column `text`, which has no completions."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "two words"}\n{"text": ""}\n')
    model = GptModel(kind="gpt", layers=1, width=8, heads=1, context=6)
    data = ChatData(kind="chat", path=str(path), loss_on="all")
    ours = open_conversations(data, model, no_progress)
    samples, fingerprint = script.read_any({"data": data.model_dump(), "model": model.model_dump()}, str(path))
    assert fingerprint == ours.fingerprint
    assert [script.fed(sample)[0] for sample in samples] == [ours.evidence(row)[0] for row in range(2)]


@pytest.mark.parametrize("settings", [{"packing": True}, {"split": "train"}, {"bad_rows": "skip"}])
def test_what_it_does_not_read_it_says(script, tmp_path, settings):
    """It is neither right nor wrong."""
    data = ChatData(kind="chat", path=str(tmp_path), **settings).model_dump()
    with pytest.raises(script.Unread):
        script.read_any({"data": data, "model": {"kind": "gpt", "context": 8}}, str(tmp_path))
    with pytest.raises(script.Unread, match="a tokenizer"):
        script.read_any({"data": data, "model": {"kind": "hf", "context": 8}}, str(tmp_path))


@pytest.mark.parametrize("kind", ["text", "jsonl"])
def test_its_token_files_are_ours(script, texts, tmp_path, kind):
    """Of a stream and of rows; and it takes the whole file's digest, of which an opening looks at parts."""
    source = TextData(kind="text", path=texts) if kind == "text" else JsonlData(kind="jsonl", path=texts)
    path = tmp_path / "tokens"
    prepare(source, path)
    dataset = TokensDataset.open(str(path), 40)
    rows, fingerprint = script.read_data(str(path), "", 40, "tokens")
    assert fingerprint == dataset.fingerprint
    assert rows == [dataset.tokens(row).tobytes() for row in range(dataset.num_rows)]
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(script.Wrong, match="torn, altered"):
        script.read_tokens(str(path), 40)
    with pytest.raises(script.Wrong, match="no token file"):
        script.read_tokens(texts, 40)


@pytest.mark.slow
@pytest.mark.parametrize("more_bytes", [0, 1, 12_345_678])
def test_its_fingerprint_of_large_data_is_ours(script, tmp_path, more_bytes):
    """Up to 1 GiB it is of the whole, above it is of blocks; here of two files with something in every block."""
    with (tmp_path / "a.txt").open("wb") as stream:
        for start in range(0, 2**30, 2**16):
            stream.seek(start)
            stream.write(start.to_bytes(8))
        stream.truncate(2**30 - 5 + more_bytes)
    (tmp_path / "b.txt").write_bytes(b"words")
    same_data(script, TextDataset.open(str(tmp_path), 2**20), str(tmp_path), "")
