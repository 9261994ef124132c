"""A run that goes on from an earlier run (`after`), in real FSDP processes: SFT, then DPO from its weights."""

import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from sample_sets import write_rows
from test_hf_training import hf, run_hf
from worker_functions import TINY, records, run_job

from planner.data.job_folders import JobFolders
from planner.data.model_folder import ModelFolder
from planner.data.tokenizer import ByteTokenizer
from planner.errors import PlannerError, ResumeRefused, StoreError, UserError
from planner.job import Job
from planner.provenance.audit import audit
from planner.provenance.stage import pinned, stage_of
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.train.export import commit_at, export

pytestmark = pytest.mark.fsdp

DPO = {"kind": "dpo", "beta": 0.5}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Kind -> a file of rows."""
    folder = tmp_path_factory.mktemp("rows")
    return {kind: write_rows(folder / f"{kind}.jsonl", kind) for kind in ("chat", "pairs", "feedback")}


@pytest.fixture(autouse=True)
def _bytes_as_tokens(monkeypatch):
    """For audits in this process: a model of random weights has no tokenizer."""
    monkeypatch.setattr("planner.data.ahead_sets.tokenizer_of", lambda _model: ByteTokenizer())


def stage(rows, model, objective="sft", *, after=None, steps=4, **sections):
    """A job of four steps over seven samples each. The commit that it goes on from is pinned, as a start does."""
    kind = {"sft": "chat", "kto": "feedback"}.get(objective, "pairs") if isinstance(objective, str) else "pairs"
    job = {
        "name": "stage",
        "model": model if isinstance(model, dict) else model.model_dump(),
        "after": after if after is None or isinstance(after, dict) else str(after),
        "data": {"kind": kind, "path": rows[kind]},
        "objective": objective,
        "batch": {"global": 7, "max_micro": 2},
        "train": {"steps": steps, "optimizer": {"kind": "sgd", "lr": 0.1}, "clip_norm": None},
        "workers": {"gpus": 0},
        "checkpoint": {"every": 2, "keep": 3},
    }
    return pinned(Job.model_validate({**job, **sections}))


def run_of(url):
    return RunFolder(Storage(str(url)))


@pytest.fixture(scope="module")
def models(tiny_model):
    """Family -> a model section, and how a worker runs a job with it."""
    return {"gpt": (dict(TINY), run_job), "hf": (hf(tiny_model("llama")), run_hf)}


@pytest.fixture(scope="module")
def earlier(workers, rows, models, tmp_path_factory):
    """Family -> the folder of a finished SFT run of four steps on 2 workers."""
    found = {}
    for family, (model, run) in models.items():
        found[family] = tmp_path_factory.mktemp(f"sft-{family}")
        workers.run(run, 2, stage(rows, model), str(found[family]))
    return found


def first_weights(_rank, job, url, stop_at=None):
    """Digests of all weights before the first step of a generation, and of the weights in its run's newest commit."""
    from planner.train import generation
    from planner.train.state import TrainState
    from planner.train.world import World, cpu_device

    del url, stop_at
    world = World.join(cpu_device)

    setup = SimpleNamespace(folders=JobFolders.of(job, ModelFolder.find))
    fresh = SimpleNamespace(is_fresh=True, job=job, world=world, setup=setup)
    earlier = generation._earlier_weights(fresh)
    model = generation.make_model(setup.folders.model or job.model, job.train, world, earlier=earlier)
    state = TrainState(model=model, optimizer=torch.optim.SGD(model.parameters()), sums=None, shards={})
    digests = {}
    for name, parameter in state.model.named_parameters():
        whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        digests[name] = whole.detach().clone()
    return digests


def same(here, there):
    assert here.keys() == there.keys()
    differing = [name for name in here if not torch.equal(here[name].view(torch.uint8), there[name].view(torch.uint8))]
    assert differing == []


@pytest.mark.parametrize("family", ["gpt", "hf"])
def test_a_run_goes_on_from_the_weights_of_another(workers, rows, models, earlier, tmp_path, family):
    """SFT at 2 workers, then DPO at 3 and at 2: first rewards are 0, the audit is clean, manifests name the commit."""
    model, run = models[family]
    job = stage(rows, model, DPO, after=earlier[family])
    workers.run(run, 3, job, str(tmp_path), 2)
    workers.run(run, 2, job, str(tmp_path))
    steps = records(tmp_path)
    assert [step["step"] for step in steps] == [0, 1, 2, 3]
    assert steps[0]["metrics"]["chosen_reward"] == pytest.approx(0.0, abs=1e-4)
    assert abs(steps[3]["metrics"]["chosen_reward"]) > 1e-3
    found = audit(run_of(tmp_path))
    assert found.clean, found.findings
    last = run_of(earlier[family]).commits()[-1]
    for name in run_of(tmp_path).commits():
        began = stage_of(run_of(tmp_path).manifest(name).facts)
        assert (began.run, began.step) == (str(earlier[family]), 4)
        assert began.manifest == run_of(earlier[family]).manifest_digest(last)
    assert all(header["facts"]["after"] == began.model_dump() for header in records(tmp_path, "generation"))


@pytest.mark.parametrize(("size", "scheme"), [(1, ""), (3, "file://")])
def test_first_weights_of_a_gpt_are_those_of_the_commit(workers, rows, models, earlier, size, scheme):
    """To the last bit, at another number of workers, from a folder and from a URL."""
    from planner.train.checkpoints.checkpoint import read

    run = run_of(earlier["gpt"])
    saved = read(run.storage, run.manifest(run.commits()[-1]), "model/")
    job = stage(rows, models["gpt"][0], DPO, after=f"{scheme}{earlier['gpt']}")
    found = workers.run(first_weights, size, job, "")[0]
    same(found, {name.removeprefix("model/"): tensor for name, tensor in saved})


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="all weights"),
        pytest.param({"lora": {"rank": 2}}, id="adapters"),
        pytest.param({"lora": {"rank": 2}, "frozen": "nf4"}, id="adapters over 4 bits"),
    ],
)
def test_first_weights_are_those_of_the_export(workers, rows, models, earlier, tmp_path, settings):
    """To the last bit: as with the exported folder as `model.path`."""
    model = models["hf"][0]
    run = run_of(earlier["hf"])
    export(run, commit_at(run, None), tmp_path / "out")
    after = stage(rows, hf(model.path, **settings), DPO, after=earlier["hf"])
    by_path = stage(rows, hf(tmp_path / "out", **settings), DPO)
    same(workers.run(first_weights, 3, after, "")[0], workers.run(first_weights, 2, by_path, "")[0])


@pytest.mark.parametrize("objective", ["dpo", "kto"])
def test_the_reference_of_a_resume_is_the_earlier_runs(workers, rows, models, earlier, tmp_path, objective):
    """Two steps, then two more at another size: as four at once, and as with the exported folder."""
    model, run = models["hf"]
    job = stage(rows, model, objective, after=earlier["hf"])
    workers.run(run, 2, job, str(tmp_path / "whole"))
    workers.run(run, 2, job, str(tmp_path / "cut"), 2)
    workers.run(run, 3, job, str(tmp_path / "cut"))
    sft = run_of(earlier["hf"])
    export(sft, commit_at(sft, None), tmp_path / "out")
    workers.run(run, 2, stage(rows, hf(tmp_path / "out"), objective), str(tmp_path / "exported"))
    whole, cut, exported = (records(tmp_path / name) for name in ("whole", "cut", "exported"))
    for step in range(4):
        assert cut[step]["loss"] == pytest.approx(whole[step]["loss"], rel=1e-5)
        assert exported[step]["loss"] == whole[step]["loss"]
        assert exported[step]["grad_norm"] == whole[step]["grad_norm"]


def test_adapters_over_an_earlier_runs_weights_go_on(workers, rows, models, earlier, tmp_path):
    """Every generation reads the weights below the adapters again."""
    model, run = models["hf"]
    job = stage(rows, hf(model.path, lora={"rank": 2}), DPO, after=earlier["hf"])
    workers.run(run, 2, job, str(tmp_path / "whole"))
    workers.run(run, 3, job, str(tmp_path / "cut"), 2)
    workers.run(run, 2, job, str(tmp_path / "cut"))
    whole, cut = records(tmp_path / "whole"), records(tmp_path / "cut")
    assert [step["loss"] for step in cut] == pytest.approx([step["loss"] for step in whole], rel=1e-5)
    assert audit(run_of(tmp_path / "cut")).clean


@pytest.mark.parametrize("frozen", ["fp32", "nf4"])
def test_adapters_over_an_earlier_runs_weights_are_merged_into_those(workers, rows, models, earlier, tmp_path, frozen):
    """As the adapters over the earlier run's export are. Alone, they would belong to `model.path`, which is not so."""
    model, run = models["hf"]
    sft = run_of(earlier["hf"])
    export(sft, commit_at(sft, None), tmp_path / "base")
    settings = {"lora": {"rank": 2}, "frozen": frozen}
    for name, path, after in (("after", model.path, earlier["hf"]), ("exported", tmp_path / "base", None)):
        workers.run(run, 2, stage(rows, hf(path, **settings), DPO, after=after), str(tmp_path / name))
        done = run_of(tmp_path / name)
        export(done, commit_at(done, None), tmp_path / f"merged-{name}", merge=True)
    here, there = (load_file(tmp_path / f"merged-{name}" / "model.safetensors") for name in ("after", "exported"))
    same(here, there)
    assert not torch.equal(here["lm_head.weight"], load_file(f"{model.path}/model.safetensors")["lm_head.weight"])
    done = run_of(tmp_path / "after")
    with pytest.raises(UserError, match=r"its adapters belong to the weights of an earlier run .*--merge"):
        export(done, commit_at(done, None), tmp_path / "adapters")


@pytest.fixture
def moved(earlier, tmp_path):
    """Copies of the finished runs, which a test may harm."""
    return {family: shutil.copytree(url, tmp_path / f"earlier-{family}") for family, url in earlier.items()}


def test_a_resume_needs_the_earlier_run_only_for_what_no_commit_holds(workers, rows, models, moved, tmp_path):
    """Without a reference it goes on alone. With one, it says what is missing."""
    model, run = models["gpt"]
    free = stage(rows, model, "simpo", after=moved["gpt"])
    held = stage(rows, model, DPO, after=moved["gpt"])
    for name, job in (("free", free), ("held", held)):
        workers.run(run, 2, job, str(tmp_path / name), 2)
    shutil.rmtree(moved["gpt"])
    workers.run(run, 3, free, str(tmp_path / "free"))
    assert len(records(tmp_path / "free")) == 4
    with pytest.raises(StoreError, match=r"^after: the reference cannot be read from step 4 of .*Put that run back"):
        workers.run(run, 3, held, str(tmp_path / "held"))


def test_an_altered_commit_is_refused_by_all_workers(workers, rows, models, moved, tmp_path):
    """A file of the same size, and a manifest of another commit."""
    model, run = models["gpt"]
    job = stage(rows, model, DPO, after=moved["gpt"])
    folder = max((moved["gpt"] / "checkpoints").iterdir())
    file = next(file for file in sorted(folder.iterdir()) if file.suffix == ".distcp")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(StoreError, match="altered since it was written"):
        workers.run(run, 2, job, str(tmp_path / "run"))
    other = job.model_copy(update={"after": job.after.model_copy(update={"manifest": "0" * 64})})
    with pytest.raises(StoreError, match="has no commit with manifest 0000000000000000"):
        workers.run(run, 2, other, str(tmp_path / "other"))


def test_another_model_is_refused(workers, rows, models, earlier, tiny_model, tmp_path):
    """With the difference, on every worker."""
    (gpt, run), (llama, run_llama) = models["gpt"], models["hf"]
    wider = stage(rows, {**gpt, "layers": 2}, DPO, after=earlier["gpt"])
    with pytest.raises(UserError, match=r"trained another model .*\(model.layers: 1 there, 2 here\)"):
        workers.run(run, 2, wider, str(tmp_path / "a"))
    with pytest.raises(UserError, match=r"\(model.kind: hf there, gpt here\)"):
        workers.run(run, 2, stage(rows, gpt, DPO, after=earlier["hf"]), str(tmp_path / "b"))
    theta = hf(tiny_model("llama", rope_theta=5e5))  # tensors of the same names and shapes
    with pytest.raises(UserError, match=r"\(rope_(parameters|theta): .* there, .* here\)"):
        workers.run(run_llama, 2, stage(rows, theta, DPO, after=earlier["hf"]), str(tmp_path / "c"))
    alike = hf(tiny_model("llama", eos_token_id=3))
    assert alike.path != llama.path
    assert workers.run(run_llama, 2, stage(rows, alike, DPO, after=earlier["hf"]), str(tmp_path / "d"))[0].finished


def test_a_run_of_adapters_is_refused(workers, rows, models, tmp_path):
    """Its commits hold no other weights, and the reference of what follows would be another model."""
    model, run = models["hf"]
    adapters = stage(rows, hf(model.path, lora={"rank": 2}), steps=2)
    workers.run(run, 2, adapters, str(tmp_path / "sft"))
    with pytest.raises(UserError, match=r"trained adapters.* planner export .*/sft -o FOLDER --merge"):
        workers.run(run, 2, stage(rows, model, DPO, after=tmp_path / "sft"), str(tmp_path / "dpo"))


def test_a_run_that_is_not_finished_is_refused_without_a_step(workers, rows, models, tmp_path):
    """It says which step to name, and then that one is used."""
    model, run = models["gpt"]
    workers.run(run, 2, stage(rows, model), str(tmp_path / "sft"), 2)
    with pytest.raises(UserError, match=r"is not finished \(its newest commit is of step 2 of 4\)\. .*step: 2\}"):
        stage(rows, model, DPO, after=tmp_path / "sft")
    job = stage(rows, model, DPO, after={"run": str(tmp_path / "sft"), "step": 2})
    workers.run(run, 2, job, str(tmp_path / "dpo"))
    assert len(records(tmp_path / "dpo")) == 4


def test_a_job_that_no_start_has_pinned_is_refused(workers, rows, models, earlier, tmp_path):
    """Two generations could begin from two commits."""
    model, run = models["gpt"]
    job = stage(rows, model, DPO, after=earlier["gpt"])
    bare = job.model_copy(update={"after": job.after.model_copy(update={"manifest": None})})
    with pytest.raises(PlannerError, match="is not pinned to a commit"):
        workers.run(run, 2, bare, str(tmp_path))


def test_a_resume_from_another_commit_is_refused(workers, rows, models, earlier, tmp_path):
    """The workers compare the identity, which holds the digest."""
    model, run = models["gpt"]
    workers.run(run, 2, stage(rows, model, DPO, after=earlier["gpt"]), str(tmp_path), 2)
    other = stage(rows, model, DPO, after={"run": str(earlier["gpt"]), "step": 2})
    with pytest.raises(ResumeRefused, match=r"another model \(after.manifest: .* -> .*after.step: 4 -> 2\)"):
        workers.run(run, 2, other, str(tmp_path))
