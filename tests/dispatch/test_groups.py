"""What one worker group hands over to the next, without a cluster: Ray's own start runs, its actors are stand-ins."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.usefixtures("ray_environment")


class Actor:
    """A worker's process; a call returns its answer at once."""

    def __init__(self, node_id="a"):
        self.killed = False
        self.node_id = node_id
        self.failing = set()

    def __getattr__(self, name):
        return SimpleNamespace(remote=lambda *_, **__: self._answer(name))

    def _answer(self, name):
        if name in self.failing:
            return RuntimeError(name)
        answers = {
            "get_metadata": SimpleNamespace(node_id=self.node_id, node_ip="127.0.0.1", pid=1, accelerator_ids={})
        }
        return answers.get(name, 0)


class Ray:
    """As much of Ray as the groups call; references are the answers themselves."""

    def __init__(self):
        self.given_back = []

    def get(self, answers, **_):
        from ray.exceptions import RayError

        for answer in answers if isinstance(answers, list) else [answers]:
            if isinstance(answer, Exception):
                raise RayError(answer)
        return answers

    def wait(self, pending, **_):
        return pending, []

    def kill(self, actor):
        actor.killed = True


class Owner:
    """Who hears of the groups of one controller, and makes them."""

    def __init__(self, groups):
        self.groups = groups.GroupFactory(
            listener=self, places_name="planner-test-", warm_up=lambda: None, keeps_processes=True
        )
        self.hand_over = self.groups.hand_over

    def label_selectors(self, _kept, _count):
        return None

    def kept_workers(self, nodes, size):
        return list(range(len(nodes)))[:size]

    def started(self, group):
        pass

    def start_failed(self, error):
        pass

    def new_group(self, num_workers, **resources):
        """Ray's controller starts a group."""
        run_config = SimpleNamespace(storage_context=None, worker_runtime_env={})
        run = SimpleNamespace(run_config=run_config, backend_config=None, scaling_config=None)
        context = SimpleNamespace(
            num_workers=num_workers,
            resources_per_worker={"CPU": 1, **resources},
            label_selector=None,
            train_fn_ref=None,
        )
        return self.groups.create(train_run_context=run, worker_group_context=context, callbacks=[])


@pytest.fixture
def ray():
    return Ray()


@pytest.fixture
def sync_actors():
    """The synchronisation actors that Ray's start has made."""
    return []


@pytest.fixture
def groups(monkeypatch, ray, sync_actors):
    """The module, with stand-ins for actors, placement groups and the cluster."""
    import ray as real
    from ray.train.v2._internal.execution.worker_group import worker_group as stock

    from planner.dispatch.ray_internal import groups, hand_over

    def take_places(_self, count, _kept):
        made = []
        for _ in range(count):
            actor = Actor(node_id=f"node-{len(made)}")
            group = SimpleNamespace(wait=lambda _seconds: True)
            made.append(groups.WorkerSlot(actor=actor, group=group, metadata=actor.get_metadata.remote()))
        return made

    class SynchronizationActor:
        @staticmethod
        def options(**_):
            return SynchronizationActor

        @staticmethod
        def remote(**_):
            sync_actors.append(Actor())
            return sync_actors[-1]

    for name in ("get", "wait", "kill"):
        monkeypatch.setattr(real, name, getattr(ray, name))
    monkeypatch.setattr(
        real, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "head", current_actor=0)
    )
    monkeypatch.setattr(hand_over, "remove_placement_group", ray.given_back.append)
    monkeypatch.setattr(groups.KeepingGroup, "_take_places", take_places)
    monkeypatch.setattr(stock, "SynchronizationActor", SynchronizationActor)
    monkeypatch.setattr(stock.WorkerGroup, "_check_cluster_resources_and_raise_if_insufficient", lambda *_: None)
    monkeypatch.setattr(stock.WorkerGroup, "_decorate_worker_log_file_paths", lambda *_: None)
    monkeypatch.setattr(groups, "invoke_context_managers", lambda _: nullcontext())
    return groups


def actors_of(group):
    return [worker.actor for worker in group.get_workers()]


def test_two_policies_in_one_process_do_not_see_each_others_hand_over(groups, sync_actors):
    """The survivors of one, its newcomers, its synchronisation actor and its failures stay its own."""
    ours, theirs = Owner(groups), Owner(groups)
    first, other = ours.new_group(2), theirs.new_group(1)
    survivors = actors_of(first)
    first.warm(1, set())
    assert first.newcomers() == "ready"
    assert other.newcomers() == "none"
    first.plan_change(3, set())
    first.shutdown()
    other.plan_change(1, set())
    actors_of(other)[0].failing.add("forget")
    other.shutdown()
    with pytest.raises(Exception, match="a kept worker failed in the hand-over"):
        theirs.new_group(3)
    unrelated = theirs.new_group(3)
    second = ours.new_group(3)
    assert set(survivors) < set(actors_of(second))
    assert not set(actors_of(second)) & set(actors_of(unrelated))
    assert not any(actor.killed for actor in actors_of(second))
    # Theirs could not be kept, so a third one was started for them.
    assert [actor.killed for actor in sync_actors] == [False, True, False]
    assert second._worker_group_state.sync_actor is sync_actors[0]


def test_workers_on_silent_nodes_are_ended_before_the_others(groups):
    """Ray would wait for them until it knows that their nodes are dead."""
    group = Owner(groups).new_group(3)
    group.give_up({"node-1", "another"})
    assert [actor.killed for actor in actors_of(group)] == [False, True, False]


def test_each_controller_finds_the_factory_of_its_own_policy():
    """Two controllers of one process share neither it nor what one group leaves to the next."""
    from planner.dispatch.ray_internal.policy import Policy
    from planner.dispatch.ray_internal.trainer import PolicyTrainController

    factories = []
    for _ in range(2):
        controller = object.__new__(PolicyTrainController)
        controller._scaling_policy = Policy(
            SimpleNamespace(_resources_per_worker_not_none={}),
            SimpleNamespace(),
            run="r",
            launch_id="l",
            warm_up=lambda: None,
            keep_processes=True,
            make_census=lambda: None,
        )
        assert controller.worker_group_cls is controller.worker_group_cls
        factories.append(controller.worker_group_cls)
    first, second = factories
    assert first.listener is not second.listener
    assert first.hand_over is not second.hand_over


def test_the_synchronisation_actor_is_kept_without_touching_rays_module(groups, monkeypatch, sync_actors):
    """Seen in the midst of the start that uses it; a start that fails there leaves the module as it was, too."""
    from ray.train.v2._internal.execution.worker_group import worker_group as stock

    seen, original = [], stock.SynchronizationActor
    create_workers = groups.KeepingGroup._create_workers

    def look(self, *arguments, **options):
        seen.append(stock.SynchronizationActor)
        if len(seen) == 3:
            raise MemoryError
        return create_workers(self, *arguments, **options)

    monkeypatch.setattr(groups.KeepingGroup, "_create_workers", look)
    owner = Owner(groups)
    for _ in range(2):
        group = owner.new_group(2)
        group.plan_change(2, set())
        group.shutdown()
    with pytest.raises(MemoryError):
        owner.new_group(2)
    assert seen == [original] * 3
    assert stock.SynchronizationActor is original
    assert len(sync_actors) == 1


def test_a_start_that_fails_ends_the_workers_that_it_was_handed(groups, monkeypatch, ray):
    """Survivors and newcomers, and their places. The next start has none of them."""
    owner = Owner(groups)
    group = owner.new_group(2)
    survivors = actors_of(group)
    group.warm(1, set())
    group.plan_change(3, set())
    group.shutdown()
    newcomers = [place.actor for place in owner.hand_over.newcomers]
    with monkeypatch.context() as patch:
        patch.setattr(groups.WorkerGroup, "_init_train_context", lambda *_: ray.get(RuntimeError("a worker died")))
        with pytest.raises(groups.WorkerGroupStartupFailedError, match="a group could not be started"):
            owner.new_group(3)
    assert all(actor.killed for actor in [*survivors, *newcomers])
    assert len(ray.given_back) >= 3
    assert owner.hand_over == groups.HandOver()
    fresh = owner.new_group(2)
    assert not set(actors_of(fresh)) & {*survivors, *newcomers}


def test_a_shutdown_that_was_not_planned_keeps_nobody(groups):
    """Newcomers go with the group that warmed them."""
    owner = Owner(groups)
    group = owner.new_group(2)
    group.warm(1, set())
    actors = [*actors_of(group), *(place.actor for place in owner.hand_over.newcomers)]
    group.shutdown()
    assert all(actor.killed for actor in actors)
    assert owner.hand_over == groups.HandOver()


@pytest.mark.parametrize(("gpus", "node", "is_kept"), [(1, "node-0", False), (1, "node-9", True), (0, "node-0", True)])
def test_workers_that_come_to_share_a_node_with_gpus_start_anew(groups, gpus, node, is_kept):
    """A process that has counted its GPUs does not see another worker's. Without GPUs, nothing is to be seen."""
    owner = Owner(groups)
    group = owner.new_group(1, GPU=gpus)
    (survivor,) = actors_of(group)
    group.warm(1, set())
    (newcomer,) = owner.hand_over.newcomers
    newcomer.metadata.node_id = node
    group.plan_change(2, set())
    group.shutdown()
    assert survivor.killed == newcomer.actor.killed == (not is_kept)
    assert [place.actor for place in owner.hand_over.kept] == [survivor] * is_kept
