"""Parts of a cluster for tests of the policy, without Ray: workers, groups, and a controller that decides nothing."""

from types import SimpleNamespace

from planner.elastic.controller import ElasticController
from planner.elastic.states import Rules
from planner.plan import BatchSizes, WorkerRange
from planner.plan.growth import ResizeCost
from planner.plan.lowered_caps import Caps, LoweredCaps


def elastic_controller(least=1, most=4, max_micro=4, clock=lambda: 0.0, floor=0):
    """A controller of 8 samples a step that has seen nothing yet."""
    sizes = BatchSizes(global_batch=8, max_micro=max_micro)
    rules = Rules(sizes=sizes, workers=WorkerRange(least=least, most=most), has_eval=False, floor=floor)
    return ElasticController(rules, cost=ResizeCost(grow_s=1.0, shrink_s=1.0), clock=clock)


def silent_controller(**others):
    """What takes all that it is told, and has no events."""
    parts = {"started": lambda _nodes: None, "reported": lambda _metrics: None, "events": (), "bad_nodes": ()}
    parts["floor"] = 0
    return SimpleNamespace(**{**parts, "caps": LoweredCaps(of=Caps(max_micro=4)), **others})


def workers_on(nodes, asked=None):
    """A worker on each node. `asked` gets (function, arguments) of each call in one."""
    execute = SimpleNamespace(remote=lambda *call: None if asked is None else asked.append((call[0], call[1:])))
    actor = SimpleNamespace(execute=execute)
    return [SimpleNamespace(metadata=SimpleNamespace(node_id=node), actor=actor) for node in nodes]


def group_on(nodes):
    """A group that runs, with no newcomers."""
    workers = workers_on(nodes)
    return SimpleNamespace(
        get_workers=lambda: workers,
        give_up=lambda _nodes: None,
        silent_ranks=list,
        newcomers=lambda: "none",
        newcomer_nodes=list,
    )


def poll(metrics, rank=0):
    """What Ray's poll found: a report of one rank."""
    return SimpleNamespace(worker_statuses={rank: SimpleNamespace(training_report=SimpleNamespace(metrics=metrics))})
