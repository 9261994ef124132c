"""What a Ray worker hands to its generation: the driver's hooks, and a rehearsal's in their place."""

import pickle
from functools import partial
from types import SimpleNamespace

import pytest
from message import Message

from planner.base.user_errors import CodeError, UserCodeFailed
from planner.dispatch import mailbox, warmup, worker
from planner.dispatch.worker import WorkerConfig, own_gpu, train_worker, worker_hooks
from planner.errors import DataError
from planner.events.sizing import Waited
from planner.job import Job
from planner.rehearsal import on_ray
from planner.rehearsal.stages import stages
from planner.store.code_failure import read_failure
from planner.store.storage import Storage
from planner.train import generation
from planner.train.hooks import GenerationEnd, Hooks
from planner.train.setup import Launch


def ray_train():
    """Ray reads its token when it is imported, so no test module may do that while tests are collected."""
    import ray.train

    return ray.train


@pytest.fixture
def launch(tmp_path):
    job = Job.model_validate(
        {
            "name": "hooks",
            "model": {"kind": "gpt", "layers": 1, "width": 16, "heads": 2, "context": 16},
            "data": {"kind": "text", "path": str(tmp_path / "text")},
            "batch": {"global": 2, "max_micro": 1},
            "train": {"steps": 4, "optimizer": {"kind": "adamw", "lr": 1e-3}},
            "workers": {"gpus": 0},
        }
    )
    return Launch(job=job, url=str(tmp_path / "run"), launch_id="this")


@pytest.fixture
def in_stage(monkeypatch):
    """Makes the hooks of a rehearsal of (2, 1) workers, two steps each, in a stage, at a world size."""

    def make(launch, number, world_size):
        monkeypatch.setattr(on_ray, "kv_get", {"stage-this": str(number)}.__getitem__)
        context = SimpleNamespace(get_world_size=lambda: world_size)
        monkeypatch.setattr(ray_train().__name__ + ".get_context", lambda: context)
        return on_ray.observed_hooks(stages([2, 1], 4), launch)

    return make


def test_a_worker_trains_with_the_hooks_that_it_was_handed(launch, monkeypatch):
    """They are made in the worker, of its launch."""
    seen = []
    done = GenerationEnd(step=4, total_steps=4, repeated_steps=0)
    monkeypatch.setattr(generation, "train", lambda _launch, _device, hooks: seen.append(hooks) or done)
    own = Hooks()
    made = {id(launch): own}
    train_worker({"worker": WorkerConfig(launch=launch, on_cpu=True, hooks=lambda launch: made[id(launch)])})
    assert seen == [own]


def test_without_others_they_are_rays(launch):
    """Reports go to Ray, and a stop comes from the controller."""
    hooks = WorkerConfig(launch=launch, on_cpu=True).hooks(launch)
    assert hooks.report is ray_train().report
    assert hooks.events is mailbox.take_events
    assert not hooks.should_stop(1)
    assert hooks.may_hold()
    assert hooks.keepers() is None  # the launch has no secret
    try:
        mailbox.request_stop(True)
        assert hooks.should_stop(1)
        assert hooks.may_hold()
        mailbox.request_stop()
        assert not hooks.may_hold()
        assert not hooks.should_cut()
        mailbox.request_stop(True, True)
        assert hooks.should_cut()
    finally:
        mailbox.reset()


@pytest.mark.parametrize("is_held", [True, False])
def test_a_worker_that_parks_reports_where_its_last_step_is(launch, monkeypatch, is_held):
    """And then waits."""
    done, order = (
        GenerationEnd(step=2, total_steps=4, repeated_steps=0, commit_s=0.5, durable_after_s=0.7, is_held=is_held),
        [],
    )
    monkeypatch.setattr(generation, "train", lambda *_: done)
    monkeypatch.setattr(ray_train().__name__ + ".report", order.append)
    monkeypatch.setattr(mailbox, "park", lambda: order.append("parks"))
    train_worker({"worker": WorkerConfig(launch=launch, on_cpu=True, hooks=lambda _launch: Hooks())})
    report = {mailbox.PARKED: True, "commit_s": 0.5, "durable_after_s": 0.7, "is_held": is_held}
    assert order == [report, "parks"]


def failing(launch, monkeypatch, error):
    def train(*_):
        raise error

    monkeypatch.setattr(generation, "train", train)
    monkeypatch.setattr(ray_train().__name__ + ".get_context", lambda: SimpleNamespace(get_world_rank=lambda: 0))
    told = {}
    monkeypatch.setattr("planner.dispatch.worker.kv_put", told.__setitem__)
    config = {"worker": WorkerConfig(launch=launch, on_cpu=True, hooks=lambda _launch: Hooks())}
    return config, told


@pytest.mark.parametrize(("origin", "is_kept"), [("code", True), ("environment", True), ("peers", False)])
def test_an_error_of_the_users_code_is_kept_in_the_run(launch, monkeypatch, origin, is_kept):
    """With its traceback, by the worker itself. A collective that other workers broke says nothing."""
    error = CodeError(kind="NameError", message="x", place="loop.py:7, in train", traceback="Traceback")
    config, _ = failing(launch, monkeypatch, UserCodeFailed(error, origin, 0))
    with pytest.raises(UserCodeFailed):
        train_worker(config)
    found = read_failure(Storage(launch.url))
    assert (found is not None) == is_kept
    if found:
        text = "train() raised NameError: x (loop.py:7, in train)"
        assert (found.launch, found.text, found.traceback) == ("this", text, "Traceback")


@pytest.mark.parametrize("traceback", ["Traceback", ""])
def test_an_error_of_the_users_data_is_kept_and_refuses_the_run(launch, monkeypatch, traceback):
    """All workers agree on it. One without a traceback is not of their code."""
    error = DataError("sample 3 of your data set: KeyError: 'x' (loop.py:7, in __getitem__)")
    error.code_traceback = traceback
    config, told = failing(launch, monkeypatch, error)
    train_worker(config)
    assert told == {"refusal-this": str(error)}
    found = read_failure(Storage(launch.url))
    assert (found.text if found else "") == (str(error) if traceback else "")


def test_a_rehearsals_hooks_travel_to_a_worker_by_name(launch):
    """Plain pickle takes them, so a worker runs the code that is installed there."""
    hooks = partial(on_ray.observed_hooks, tuple(stages([2, 1], 4)))
    config = pickle.loads(pickle.dumps(WorkerConfig(launch=launch, on_cpu=True, hooks=hooks)))
    assert config.hooks.func is on_ray.observed_hooks
    assert config.hooks.args == hooks.args
    assert pickle.loads(pickle.dumps(WorkerConfig(launch=launch, on_cpu=True))).hooks is worker_hooks


@pytest.mark.parametrize(
    ("number", "world_size", "step", "waits"),
    [(0, 2, 2, False), (0, 2, 3, True), (0, 1, 1, True), (1, 1, 3, False), (1, 1, 5, False), (1, 2, 3, True)],
)
def test_a_rehearsed_worker_keeps_to_its_stage(launch, in_stage, monkeypatch, number, world_size, step, waits):
    """It waits at the stage's last step, and at a size that is not the stage's; a stop ends the wait."""
    hooks = in_stage(launch, number, world_size)
    assert hooks.may_hold is mailbox.may_hold
    answers = [False, True]
    monkeypatch.setattr(mailbox, "stop_requested", lambda: answers.pop(0))
    monkeypatch.setattr(on_ray, "_POLL_S", 0.0)
    assert hooks.should_stop(step) is waits
    assert hooks.report is ray_train().report


def test_an_event_reaches_the_ledger():
    """Once, in order."""
    mailbox.reset()
    events = [Message(text="one"), Waited(waited_s=40.0)]
    for event in events:
        mailbox.post_event(event)
    assert mailbox.take_events() == events
    assert mailbox.take_events() == []


@pytest.fixture
def gpu_job(launch):
    workers = launch.job.workers.model_copy(update={"gpus": 1.0})
    return launch.job.model_copy(update={"workers": workers})


@pytest.fixture
def _new_process():
    """As if this process had not looked for its GPU yet."""
    own_gpu.cache_clear()
    yield
    own_gpu.cache_clear()


@pytest.mark.usefixtures("_new_process")
def test_a_process_keeps_its_gpu_when_ray_counts_anew(gpu_job, monkeypatch):
    """Another worker came to the node: Ray now says device 1, and CUDA in this process knows only device 0."""
    import ray
    import torch

    monkeypatch.setattr(ray, "get_gpu_ids", lambda: [3])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config = WorkerConfig(launch=Launch(job=gpu_job, url=""), on_cpu=False)
    for visible in ("3", "2,3"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert worker._device(config) == torch.device("cuda:0")
    own_gpu.cache_clear()  # a process that begins now
    assert worker._device(config) == torch.device("cuda:1")


class CountsGpus(Exception):
    """From here on, CUDA does not notice another CUDA_VISIBLE_DEVICES."""


@pytest.mark.usefixtures("_new_process")
@pytest.mark.parametrize("gpus", [0, 1])
def test_a_newcomer_looks_for_its_gpu_before_it_warms_up(gpu_job, monkeypatch, gpus):
    """Warming up makes torch count GPUs. A newcomer of a job without GPUs has none to look for.

    It is not in a training function yet, where `ray.train.torch.get_device` raises an error.
    """
    import ray
    import torch.distributed

    def start(*_, **__):
        raise CountsGpus

    monkeypatch.setattr(ray, "get_gpu_ids", lambda: [3])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setattr(torch.distributed, "init_process_group", start)
    workers = gpu_job.workers.model_copy(update={"gpus": gpus})
    with pytest.raises(CountsGpus):
        warmup.warm_up(gpu_job.model_copy(update={"workers": workers}))
    assert own_gpu.cache_info().currsize == gpus
