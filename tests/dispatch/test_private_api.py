"""The table of Ray's private names: it has all that the source uses, nothing else, and this Ray has all of it.

What it says of a Ray without a name is what then happens.
"""

import ast
import builtins
import importlib
import inspect
import re
import sys
import tomllib
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest

from planner.dispatch.ray_internal import (
    compatibility,
    drain_node,
    kv_get,
    kv_put,
    shapes,
    trainer,
)
from planner.dispatch.ray_internal.compatibility import _lacks, missing
from planner.dispatch.ray_internal.loopback import loopback_torch_config
from planner.dispatch.ray_internal.node_drainer import NodeDrainer
from planner.dispatch.ray_internal.private_api import CONTRACT, TORCH_STORE, IfMissing
from planner.errors import UserError
from planner.local_cluster import supervisor
from planner.submit.submission import OLDEST_RAY

PACKAGE = Path(__file__).parents[2] / "planner"
ROOMS = ("dispatch", "elastic", "local_cluster", "rehearsal", "submit")
FILES = [str(path.relative_to(PACKAGE)) for room in ROOMS for path in sorted((PACKAGE / room).rglob("*.py"))]
# What Ray documents (https://docs.ray.io/en/latest/ray-references/api.html), as far as planner uses it.
PUBLIC_MODULES = {
    "ray",
    "ray.exceptions",
    "ray.job_submission",
    "ray.train",
    "ray.train.torch",
    "ray.tune",
    "ray.util",
    "ray.util.metrics",
    "ray.util.placement_group",
    "ray.util.scheduling_strategies",
}
PUBLIC_NAMES = {"from_hex", "gcs_address", "get_runtime_context", "inc", "set_default_tags"}
# Of torch and of the C library.
FOREIGN_NAMES = {
    *("TCPStore", "cuda", "destroy_process_group", "empty_cache", "init_process_group", "is_available"),
    *("is_initialized", "malloc_trim", "prctl"),
}
# In other files, Ray or another package documents all public names.
LOOKS_INSIDE = [
    file
    for file in FILES
    if file.startswith("dispatch/ray_internal/") or file in {"local_cluster/supervisor.py", "submit/private_names.py"}
]
LOOKS_INSIDE.remove("dispatch/ray_internal/compatibility.py")  # it asks whatever it is given
# For the local cluster's supervisor: a command, and a process that has ended.
ADD = {"op": "add", "shape": {"cpus": 1}}
DEAD = SimpleNamespace(process=SimpleNamespace(poll=lambda: 0))
OF_FILE = [(file, row) for file, rows in CONTRACT.items() for row in rows]


def tree(file):
    return ast.parse((PACKAGE / file).read_text())


def imports(file):
    """(module, name) of all that it imports from; the name is empty for `import module`."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.module, alias.name) for alias in node.names)
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


def attributes(file):
    """The names of all attributes that it reads."""
    return {node.attr for node in ast.walk(tree(file)) if isinstance(node, ast.Attribute)}


def listed(file):
    """owner -> names, without their parameters."""
    found = {}
    for row in CONTRACT.get(file, ()):
        found.setdefault(row.owner, set()).update(re.search(r"\w+", name)[0] for name in row.names)
    return found


def listed_names(file):
    return set(chain.from_iterable(listed(file).values()))


def parts_of_modules(file):
    """`_private` and `state` are read on the way to `ray._private.state.state.get_draining_nodes`."""
    return {part for owner in listed(file) for part in owner.partition(":")[0].split(".")}


def names_of_ours():
    """What planner's dispatch itself defines: functions, classes, and attributes that are set."""
    shapes_file = "dispatch/ray_internal/shapes.py"  # its types are ours, their members are Ray's
    files = [file for file in FILES if file != shapes_file]
    for node in chain(tree(shapes_file).body, *map(ast.walk, map(tree, files))):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name), value=None) if name.startswith("_"):
                pass  # the type of an attribute that Ray sets
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))


def names_of_others(file):
    """What is in the modules of the standard library that it imports, in their classes, and in built-in types."""
    used = {module for module, _ in imports(file) if module.partition(".")[0] in sys.stdlib_module_names}
    for module in map(importlib.import_module, {*used, "re", "subprocess", "socket"}):
        yield from dir(module)
        for value in vars(module).values():
            if inspect.isclass(value):
                yield from dir(value)
    yield from chain.from_iterable(dir(value) for value in vars(builtins).values() if inspect.isclass(value))


OURS = set(names_of_ours())

_EXECUTION = "ray.train.v2._internal.execution"
_GROUP = f"{_EXECUTION}.worker_group"
_PROTOBUF = "ray.core.generated.autoscaler_pb2"
# Each type in `shapes.py`, and whose members it names.
SHAPES = {
    "ActorMetadata": f"{_GROUP}.worker:ActorMetadata",
    "AutoscalingState": f"{_PROTOBUF}:AutoscalingState",
    "ClusterResourceState": f"{_PROTOBUF}:ClusterResourceState",
    "ClusterStatus": f"{_PROTOBUF}:GetClusterStatusReply",
    "Coordinator": "ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator:_AutoscalingCoordinatorActor",
    "ExecutionContext": f"{_EXECUTION}.context:ExecutionContext",
    "FailedInstanceRequest": f"{_PROTOBUF}:FailedInstanceRequest",
    "GcsClient": "ray._raylet:InnerGcsClient",
    "GcsNodeInfo": "ray.core.generated.gcs_pb2:GcsNodeInfo",
    "PlacementGroupHandle": f"{_GROUP}.placement_group_handle:PlacementGroupHandle",
    "PollStatus": f"{_GROUP}.poll:WorkerGroupPollStatus",
    "ScalingConfig": "ray.train:ScalingConfig",
    "SyncActor": f"{_EXECUTION}.checkpoint.sync_actor:SynchronizationActor",
    "ThreadRunner": f"{_GROUP}.thread_runner:ThreadRunner",
    "TorchConfig": "ray.train.torch:TorchConfig",
    "TrainFunctionRef": "ray.train.v2._internal.util:ObjectRefWrapper",
    "TrainContext": f"{_EXECUTION}.context:TrainContext",
    "TrainRunContext": f"{_EXECUTION}.context:TrainRunContext",
    "TrainingReport": f"{_EXECUTION}.training_report:_TrainingReport",
    "Worker": f"{_GROUP}.worker:Worker",
    "WorkerActor": f"{_GROUP}.worker:RayTrainWorker",
    "WorkerGroup": f"{_GROUP}:WorkerGroup",
    "WorkerGroupCallback": f"{_EXECUTION}.callback:WorkerGroupCallback",
    "WorkerGroupContext": f"{_GROUP}.state:WorkerGroupContext",
    "WorkerGroupState": f"{_GROUP}.state:WorkerGroupState",
    "WorkerGroupStateBuilder": f"{_GROUP}.state:WorkerGroupStateBuilder",
    "WorkerStatus": f"{_GROUP}.poll:WorkerStatus",
}
# Ray documents these: actors' methods, placement groups, node ids, trainers and their configuration.
DOCUMENTED_SHAPES = {"NodeId", "PlacementGroup", "RemoteMethod", "RunConfig", "Trainer"}


@pytest.mark.parametrize("file", FILES)
def test_what_is_imported_from_within_ray_is_listed(file):
    """A module that Ray does not document, or a name with an underscore in one that it does."""
    found = [(module, name) for module, name in imports(file) if module.partition(".")[0] == "ray"]
    private = [(module, name) for module, name in found if module not in PUBLIC_MODULES or name.startswith("_")]
    known = {(owner, name) for owner, names in listed(file).items() for name in names}
    known |= {(f"{owner}.{name}", "") for owner, name in known}
    assert set(private) <= known


@pytest.mark.parametrize("file", FILES)
def test_an_attribute_with_an_underscore_that_is_not_ours_is_listed(file):
    """`worker_group._callbacks`, say."""
    private = {name for name in attributes(file) if name.startswith("_") and not name.startswith("__")}
    known = OURS | parts_of_modules(file) | {"_current_frames", "_exit"}  # those are of `sys` and `os`
    assert private - known <= listed_names(file)


@pytest.mark.parametrize("file", LOOKS_INSIDE)
def test_in_a_file_that_looks_into_ray_every_attribute_is_accounted_for(file):
    """It is ours, the standard library's, torch's, documented by Ray, or listed."""
    known = {*OURS, *names_of_others(file), *dir(importlib.import_module("ray")), *PUBLIC_NAMES, *FOREIGN_NAMES}
    assert attributes(file) - known - parts_of_modules(file) <= listed_names(file)


@pytest.mark.parametrize("file", CONTRACT)
def test_what_is_listed_is_used(file):
    """As an attribute, an import, a method that is overridden, or a parameter of one; exceptions also by name."""
    names = {node.id for node in ast.walk(tree(file)) if isinstance(node, ast.Name)}
    names |= {node.name for node in ast.walk(tree(file)) if isinstance(node, ast.FunctionDef)}
    names |= {node.value for node in ast.walk(tree(file)) if isinstance(node, ast.Constant)}
    names |= {name for pair in imports(file) for part in pair for name in part.split(".")}
    assert listed_names(file) <= names | attributes(file)


@pytest.mark.usefixtures("ray_environment")
class TestThisRay:
    @pytest.mark.parametrize("file", CONTRACT)
    def test_it_has_all_that_is_listed(self, file):
        """On another release this says what has to be written anew."""
        assert list(missing(file)) == []

    @pytest.mark.parametrize("file", CONTRACT)
    def test_what_we_override_is_listed(self, file):
        """Ray calls it by that name, so Ray would silently stop calling one that is renamed."""
        module = importlib.import_module(
            f"planner.{file.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__")
        )
        for ours in filter(inspect.isclass, vars(module).values()):
            if ours.__module__ != module.__name__:
                continue
            of_ray = [base for base in ours.__mro__ if base.__module__.startswith("ray.")]
            overridden = {name for name in vars(ours) if any(name in vars(base) for base in of_ray)}
            assert {name for name in overridden if not name.startswith("__")} - {"_abc_impl"} <= listed_names(file)

    def test_with_all_of_it_the_run_is_ours(self):
        """Else users of the pinned version would get less than we say."""
        assert trainer.best_trainer() == ("ours", "")
        assert trainer.can_keep_processes()

    def test_without_a_parameter_it_is_callbacks(self, monkeypatch):
        """As with Ray 2.59, whose coordinator cannot look again at once: no group would ever start."""
        from ray.data._internal.cluster_autoscaler import default_autoscaling_coordinator as coordinator

        actor = coordinator._AutoscalingCoordinatorActor
        monkeypatch.setattr(actor, "get_reserved_resources", lambda self, requester_id: [])  # noqa: ARG005
        tier, why = trainer.best_trainer()
        assert tier == "callbacks"
        assert why.endswith("_AutoscalingCoordinatorActor has no get_reserved_resources(recompute))")

    def test_without_the_internals_it_is_callbacks_and_then_stock(self, monkeypatch):
        """With the name of what is missing."""
        from ray.train.v2._internal.execution.callback import ControllerCallback
        from ray.train.v2._internal.execution.worker_group import WorkerGroup

        monkeypatch.delattr(WorkerGroup, "_clear_state")
        tier, why = trainer.best_trainer()
        assert tier == "callbacks"
        assert "_clear_state" in why
        monkeypatch.delattr(ControllerCallback, "before_controller_execute_resize_decision")
        tier, why = trainer.best_trainer()
        assert tier == "stock"
        assert "before_controller_execute_resize_decision" in why

    @pytest.mark.parametrize(
        ("owner", "name", "says"),
        [
            ("ray.no_such_module", "x", "No module named 'ray.no_such_module'"),
            ("ray.train:NoSuchClass", "x", "NoSuchClass"),
            ("ray.train:ScalingConfig", "no_such_method", "has no no_such_method"),
            ("ray.train:ScalingConfig", ".no_such_field", "has no .no_such_field"),
            ("ray.experimental.internal_kv", "_internal_kv_get(key, no_such)", "has no _internal_kv_get(no_such)"),
            ("ray.core.generated.gcs_pb2:GcsNodeInfo", ".no_such_field", "has no .no_such_field"),
            ("ray._private.worker:connect", ".no_such_field", "has no .no_such_field"),
            ("ray._private.worker:global_worker", ".no_such_field", "has no .no_such_field"),
            ("ray", "__version__(no_such)", "has no __version__(no_such)"),
            (f"{_GROUP}:WorkerGroup", "_start_impl[no_such]", "has no _start_impl[no_such]"),
        ],
    )
    def test_what_is_not_there_is_named(self, owner, name, says):
        """Modules, classes, methods, parameters, fields of classes and messages, and what a function sets or reads."""
        (lack,) = _lacks(owner, (name,))
        assert says in lack


def test_every_shape_is_rays_and_documented_or_listed():
    """The types say of Ray's objects what the table says: a member that no row has would hide from both."""
    described = {name: shape for name, shape in vars(shapes).items() if getattr(shape, "_is_protocol", False)}
    assert {*SHAPES, *DOCUMENTED_SHAPES} == set(described) - {"Protocol"}
    for name, owner in SHAPES.items():
        shape = described[name]
        methods = {each for each, value in vars(shape).items() if inspect.isfunction(value) and each[:2] != "__"}
        listed_members = set().union(*(listed(file).get(owner, set()) for file in CONTRACT))
        assert {*shape.__annotations__, *methods} <= listed_members, name


def test_every_row_says_what_it_is_for_and_what_happens_without_it():
    """People who port planner to another Ray read the table."""
    assert all(row.names and row.used_for and row.without != IfMissing() for _, row in OF_FILE)


class TestARayWithoutAName:
    """Each name of the table is taken away by itself."""

    @pytest.fixture
    def lack(self, monkeypatch):
        """Let Ray have all but this name."""

        def take_away(owner, name):
            def lacks(asked, names):
                yield from (f"{owner} has no {name}" for _ in range(asked == owner and name in names))

            monkeypatch.setattr(compatibility, "_lacks", lacks)

        return take_away

    def test_the_policy_is_the_one_that_the_table_says(self, lack):
        """With the name in the warning, unless the policy is ours all the same."""
        wrong = []
        for file, row in OF_FILE:
            for name in row.names:
                lack(row.owner, name)
                policy, why = trainer.best_trainer()
                if policy != row.without.policy or (name in why) != (policy != "ours"):
                    wrong.append(f"{file}: {row.owner} {name}: {policy}, not {row.without.policy}")
        assert not wrong

    def test_what_is_refused_says_which_name_is_missing(self, lack):
        """All that the table says is refused, but for the supervisor's, which has Ray's own error."""

        def give_notice():
            drain_node("node", 1.0, "test")

        def find_node():
            NodeDrainer.find("127.0.0.1:1", "")

        doors = {
            "exchange messages": (lambda: kv_put("key", "word"), lambda: kv_get("key")),
            "give a node notice": (give_notice, find_node),
        }
        for file, row in OF_FILE:
            if not row.without.refused or file == "local_cluster/supervisor.py":
                continue
            found = (find_node,) if file.endswith("node_drainer.py") else ()
            found += tuple(chain.from_iterable(these for use, these in doors.items() if use in row.used_for))
            assert found, row
            for name in row.names:
                lack(row.owner, name)
                for door in found:
                    with pytest.raises(UserError, match=re.escape(name)):
                        door()

    @pytest.mark.usefixtures("ray_environment")
    def test_torchs_store_is_rays_with_a_warning(self, lack):
        """Whichever of the names is missing."""
        from ray.train.torch import TorchConfig

        for row in TORCH_STORE:
            assert row.without.lost.startswith("torch's store listens on all interfaces")
            for name in row.names:
                lack(row.owner, name)
                with pytest.warns(RuntimeWarning, match=f"listen on all interfaces: .*{re.escape(name)}"):
                    made = loopback_torch_config("gloo", 60)
                assert type(made) is TorchConfig

    @pytest.mark.usefixtures("ray_environment")
    @pytest.mark.parametrize(
        ("name", "command", "cluster", "node"),
        [
            ("address", {"op": "start"}, {}, {}),
            ("add_node", ADD, {}, {}),
            ("node_id", ADD, {"add_node": lambda **_: SimpleNamespace()}, {}),
            ("all_processes", {"op": "nodes"}, {}, {}),
            ("process", {"op": "nodes"}, {}, {"all_processes": {"raylet": [SimpleNamespace()]}}),
            ("remove_node", {"op": "remove", "node_id": "a"}, {}, {"all_processes": {"raylet": [DEAD]}}),
        ],
    )
    def test_the_supervisor_passes_on_what_ray_says(self, monkeypatch, name, command, cluster, node):
        """One line with the name, to a driver that asked for a cluster or a node."""
        monkeypatch.setattr(supervisor, "_handle_signals", lambda: None)
        monkeypatch.setattr("ray.cluster_utils.Cluster", lambda **_: SimpleNamespace(**cluster))
        supervised = supervisor.Supervisor()
        supervised._cluster, supervised._nodes = SimpleNamespace(**cluster), {"a": SimpleNamespace(**node)}
        assert name in listed_names("local_cluster/supervisor.py")
        assert re.search(rf"Ray says .*'{name}'", supervised.answer(command)["error"])
        monkeypatch.delattr("ray.cluster_utils.Cluster")
        assert re.search("Ray says .*'Cluster'", supervised.answer({"op": "start"})["error"])


def test_the_trainer_asks_for_all_files_that_a_policy_imports():
    """One that was left out would fail in the midst of a run, not choose another policy before it."""
    for files, first in ((trainer._OURS, "elastic_trainer"), (trainer._CALLBACKS, "fallback_callback")):
        needed, new = set(), {f"dispatch/ray_internal/{first}.py"}
        while new:
            needed |= new
            modules = {f"{module}.{name}" for file in new for module, name in imports(file)}
            modules |= {module for file in new for module, _ in imports(file)}
            paths = {module.removeprefix("planner.").replace(".", "/") + ".py" for module in modules}
            new = {path for path in paths if path in CONTRACT} - needed
        assert set(files) == needed


def test_the_releases_that_are_named_are_the_same_everywhere():
    """What may be installed begins where `planner submit` begins, and the release that we test with keeps processes."""
    root = PACKAGE.parent
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    (ray,) = (text for text in project["dependencies"] if text.startswith("ray"))
    (tested,) = (line for line in (root / "constraints.txt").read_text().splitlines() if line.startswith("ray=="))
    assert f">={'.'.join(map(str, OLDEST_RAY))}," in ray
    assert tested.removeprefix("ray==") in trainer.KEEPS_PROCESSES_ON
