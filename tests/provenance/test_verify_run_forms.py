"""`docs/verify_run.py` has its own list of what planner stores and of a job's defaults. Both are held to planner's."""

import json
from pathlib import Path

import pytest
from forging import HELD, MIDST, NEWEST, PARENT
from hypothesis import given
from hypothesis import strategies as st
from made_up_runs import make_job
from pydantic import ValidationError
from verifiers import load_script

from planner.errors import StoreError
from planner.files import read_job
from planner.job import After, GptModel, HfModel, Job, Lora, Schedule
from planner.job.objectives import OURS
from planner.job.optimizer import SGD, AdamW, RMSprop
from planner.job.settings import Batch, Train, Workers
from planner.plan import BatchSizes, make_plan
from planner.plan.by_length import BY_LENGTH_LAYOUTS
from planner.plan.factory import MAX_GLOBAL_BATCH, MAX_MICRO, MAX_TOKENS, MAX_WORKERS
from planner.plan.layout import LAYOUTS
from planner.provenance.identity import identity_of
from planner.store.jobs import job_file
from planner.store.records import HeldManifest, Manifest, parse_record

JOBS = sorted((Path(__file__).parents[2] / "jobs").rglob("*.yaml"))


@pytest.fixture(scope="module")
def script():
    """The script as a module, by its path."""
    return load_script()


# -- records and manifests


@pytest.fixture(scope="module")
def stored(history):
    """One record of each kind, and the manifests of commits and of a held step."""
    lines = (line for file in sorted((history / "ledger").iterdir()) for line in file.read_text().splitlines())
    records = {record["kind"]: record for record in (json.loads(line)["record"] for line in lines)}
    files = [history / "manifests" / f"{name}.json" for name in (MIDST, PARENT, NEWEST)]
    manifests = [json.loads(file.read_text())["value"] for file in (*files, history / "held" / f"{HELD}.json")]
    return [*records.values(), *manifests]


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([2**63 - 1, 2**63, -(2**70), 0.5, -1.0, 1e308, "", "x", "0" * 16, "0" * 64, "0" * 64 + "\n"]),
    st.sampled_from([[], ["x"], [1], {}, {"x": 1}, {"x": 0.5}, {"x": "0" * 64}, {"0/x": "0" * 32}, {"9/x": "0" * 32}]),
)


def taken_by_script(script, value):
    if "versions" in value:
        return script.IS_MANIFEST(value)
    try:
        script.require_record(value, "it")
    except script.Wrong:
        return False
    return True


def taken_by_planner(value):
    text = json.dumps(value)
    try:
        if "versions" in value:
            Manifest.model_validate_json(text)
        else:
            parse_record(text, "it")
    except (StoreError, ValidationError):
        return False
    return True


@given(data=st.data())
def test_it_takes_the_values_that_planner_takes(script, stored, data):
    """With an odd value in the place of another, a key less, or a key more, at any depth."""
    value = json.loads(json.dumps(data.draw(st.sampled_from(stored))))
    items = (item for part in value.values() for item in (part if isinstance(part, list) else [part]))
    part = data.draw(st.sampled_from([value, *(item for item in items if isinstance(item, dict) and item)]))
    key = data.draw(st.sampled_from([*sorted({*part} - {"format", "versions"}), "another"]))
    if data.draw(st.booleans()):
        part[key] = data.draw(ODD)
    else:
        part.pop(key, None)
    assert taken_by_script(script, value) == taken_by_planner(value)


def test_nothing_is_changed_and_everything_is_taken(script, stored):
    """Or the property above would hold for a script that takes nothing."""
    assert {value.get("kind", "manifest") for value in stored} == {*script.IS_RECORD, "manifest"}
    assert all(taken_by_script(script, value) and taken_by_planner(value) for value in stored)


@pytest.mark.parametrize(
    "change", [{"files": [{"name": "f"}]}, {"tensors": {"a": "0" * 64}}, {"shards": {"9/a": "0" * 32}}]
)
def test_no_held_step_has_what_planner_refuses(script, run, change):
    """Its own manifest is taken."""
    file = run / "held" / f"{HELD}.json"
    value = json.loads(file.read_text())["value"]
    HeldManifest.model_validate_json(json.dumps(value))
    assert script.read_manifest(run, HELD, value["run_id"], "held")["name"] == HELD
    value.update(change)
    with pytest.raises(ValidationError):
        HeldManifest.model_validate_json(json.dumps(value))
    file.write_text(json.dumps({"sha256": script.sha256(script.compact(value)).hexdigest(), "value": value}))
    with pytest.raises(script.Wrong, match="its manifest"):
        script.read_manifest(run, HELD, value["run_id"], "held")


# -- settings


def settings():
    """Every setting that an identity depends on: dotted key -> the defaults that it has in the sections with it."""
    sections = [("model.", GptModel), ("model.", HfModel), ("model.lora.", Lora), ("train.schedule.", Schedule)]
    sections += [("train.optimizer.", kind) for kind in (AdamW, RMSprop, SGD)]
    sections += [("objective.", spec.config) for spec in OURS.values()]
    fields = [(f"{prefix}{name}", field) for prefix, kind in sections for name, field in kind.model_fields.items()]
    fields += [
        (f"train.{key}", Train.model_fields[key]) for key in ("clip_norm", "precision", "activation_checkpointing")
    ]
    fields += [(f"batch.{key}", Batch.model_fields[key]) for key in ("max_micro", "max_tokens", "attention_at")]
    fields.append(("workers.cpus", Workers.model_fields["cpus"]))
    fields.append(("after.manifest", After.model_fields["manifest"]))
    found = {}
    for key, field in fields:
        found.setdefault(key, []).append(... if field.is_required() else json.loads(json.dumps(field.default)))
    return found


def test_its_defaults_are_ours(script):
    """Each setting is in one of its two tables. `beta` has another default in SimPO than in the others."""
    found = settings()
    assert {*script.DEFAULTS} - {"objective.beta of simpo"} == {
        key for key, defaults in found.items() if defaults.count(...) < len(defaults)
    }
    assert {key for key, defaults in found.items() if ... in defaults} - {"objective.kind"} == script.NO_DEFAULT
    for key, defaults in found.items():
        wanted = {json.dumps(script.DEFAULTS[name]) for name in (key, f"{key} of simpo") if name in script.DEFAULTS}
        assert {json.dumps(default) for default in defaults if default is not ...} == wanted, key
    assert {*OURS} == script.OBJECTIVES
    assert (*LAYOUTS, *BY_LENGTH_LAYOUTS) == script.LAYOUTS
    assert (script.MOST_GLOBAL_BATCH, script.MOST_WORKERS) == (MAX_GLOBAL_BATCH, MAX_WORKERS)
    assert script.MOST_OF_LIMIT == {"max_micro": MAX_MICRO, "max_tokens": MAX_TOKENS, "attention_at": MAX_TOKENS}


class _Data:
    """An identity needs no more of a data set and an order."""

    fingerprint, num_rows, num_withheld = "f", 9, 0


def same_identity(script, job):
    ours = identity_of(job, _Data, _Data).model_dump()
    theirs = script.identity_of(json.loads(job_file(job)), ours["model"])
    assert {field: ours[field] for field in theirs} == theirs
    assert {*ours} - {*theirs} == {"data"}
    return ours["model"], ours["recipe"]


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_it_knows_the_identity_of_the_jobs_that_we_ship(script, path):
    """Model, optimizer, recipe, batch, seed and equality."""
    same_identity(script, read_job(path))


HF = {"kind": "hf", "path": "m", "context": 8}
PAIRS, FEEDBACK, CHAT = ({"kind": kind, "path": "d"} for kind in ("pairs", "feedback", "chat"))
VARIED = {
    "lm": ({"kind": "text", "path": "t"}, [{}]),
    "sft": (CHAT, [{"mean_over": "samples"}]),
    "dpo": (PAIRS, [{"beta": 0.5}, {"label_smoothing": 0.25}, {"reference": "cached"}, {"reference": "none"}]),
    "ipo": (PAIRS, [{"beta": 2.0}, {"log_probs": "sum"}]),
    "simpo": (PAIRS, [{"beta": 0.1}, {"beta": 2.0}, {"gamma_beta_ratio": 0.0}]),
    "orpo": (PAIRS, [{"beta": 0.1}, {"beta": 2.0}]),
    "kto": (FEEDBACK, [{"desirable_weight": 2.0}, {"undesirable_weight": 0.5}]),
}
OTHERS = [
    {"model": {"dropout": 0.5}},
    {"model": {"tied_embeddings": True}},
    {"train": {"clip_norm": None}},
    {"train": {"clip_norm": 1.0}},
    {"train": {"precision": "bf16"}},
    {"train": {"activation_checkpointing": "selective"}},
    {"train": {"seed": 9}},
    {"train": {"schedule": {"kind": "linear", "warmup": "10%", "final_fraction": 0.5}}},
    {"train": {"schedule": {"warmup": 0}}},
    {"train": {"optimizer": {"kind": "adamw", "lr": 1e-4, "betas": [0.9, 0.95], "eps": 1e-6, "weight_decay": 0.1}}},
    {"train": {"optimizer": {"kind": "rmsprop", "lr": 1e-4, "alpha": 0.9}}},
    {"train": {"optimizer": {"kind": "sgd", "lr": 0.5, "momentum": 0.9}}},
    {"workers": {"cpus": 2.0}},
    {"batch": {"max_micro": 1}},
    {"batch": {"max_tokens": 64}},
    {"batch": {"max_tokens": 64, "attention_at": 96}},
    {"model": {**HF}, "data": CHAT, "objective": {"kind": "sft"}},
    {"model": {**HF, "weights": "random", "attention": "eager", "revision": "r", "chat_template": "c"}, "data": CHAT},
    {"model": {**HF, "lora": {}}, "data": CHAT},
    {"model": {**HF, "lora": {"rank": 8, "targets": ["q"]}, "frozen": "nf4"}, "data": CHAT},
]


@pytest.mark.parametrize("equality", ["balanced", "bitwise"])
def test_it_knows_the_identity_of_any_job(script, equality):
    """Each setting in turn at another value, and no two of them the same, but for those that change no identity."""
    jobs = [
        make_job(data, objective={"kind": kind, **changes}, batch={"equality": equality})
        for kind, (data, varied) in VARIED.items()
        for changes in ({}, *varied)
    ]
    for others in OTHERS:
        job = make_job({"kind": "text", "path": "t"}, batch={"equality": equality}).model_dump(by_alias=True)
        for name, section in others.items():
            job[name] = section if "kind" in section else {**job[name], **section}
        if job["data"] == CHAT:
            job["objective"] = {"kind": "sft"}
        jobs.append(Job.model_validate(job))
    found = [same_identity(script, job) for job in jobs]
    assert len(set(found)) > len(jobs) // 2


def test_adapters_at_their_defaults_are_not_the_same_as_none(script):
    """A run of the one must not go on as the other."""
    job = make_job(CHAT, objective={"kind": "sft"}).model_dump(by_alias=True)
    plain, adapted = (Job.model_validate({**job, "model": {**HF, **more}}) for more in ({}, {"lora": {}}))
    assert same_identity(script, plain)[0] != same_identity(script, adapted)[0]


def test_settings_that_it_does_not_know_are_told(script):
    """An objective of a package is not checked, and another setting is wrong."""
    job = json.loads(job_file(make_job({"kind": "text", "path": "t"})))
    with pytest.raises(script.Unread, match="'mine', which another package brings"):
        script.identity_of({**job, "objective": {"kind": "mine", "beta": 0.1}}, "")
    job["train"]["optimizer"]["nesterov"] = True
    with pytest.raises(script.Wrong, match=r"does not know: train\.optimizer\.nesterov"):
        script.identity_of(job, "")


@given(
    size=st.integers(1, 300),
    workers=st.integers(1, 40),
    most=st.integers(1, 40),
    mode=st.sampled_from(["balanced", "bitwise"]),
    caps=st.tuples(st.integers(1, 2**24), st.none() | st.integers(1, 2**24)) | st.just((None, None)),
)
def test_its_plans_are_ours(script, size, workers, most, mode, caps):
    """By their digests."""
    limits = dict(zip(("max_tokens", "attention_at"), caps, strict=True))
    plan = make_plan(BatchSizes(global_batch=size, max_micro=most, equality=mode, **limits), workers)
    header = {"world_size": workers, "max_micro": most, "layout_version": plan.layout_version, **limits}
    identity = {"global_batch": size, "equality": mode}
    assert script.plan_digest({**header, "identity": identity}) == plan.digest
