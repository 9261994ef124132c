"""The table of Ray's private names: it has all that the source uses, nothing else, and this Ray has all of it."""

import ast
import builtins
import importlib
import inspect
import re
import socket
import sys
import tomllib
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest

from planner.dispatch.connection import connected, require_ray
from planner.dispatch.ray_internal import cluster_names, compatibility, group_names, train_names
from planner.dispatch.ray_internal.compatibility import OWNERS, lacking, members, names_in
from planner.dispatch.ray_internal.node_drainer import NodeDrainer
from planner.errors import UserError
from planner.local_cluster import supervisor
from planner.submit.submission import OLDEST_RAY

PACKAGE = Path(__file__).parents[2] / "planner"
ROOMS = ("dispatch", "elastic", "local_cluster", "rehearsal", "submit")
TOPICS = {
    "dispatch/ray_internal/cluster_names.py": cluster_names,
    "dispatch/ray_internal/group_names.py": group_names,
    "dispatch/ray_internal/train_names.py": train_names,
}
FILES = [str(path.relative_to(PACKAGE)) for room in ROOMS for path in sorted((PACKAGE / room).rglob("*.py"))]
FILES = [file for file in FILES if file not in TOPICS]
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
PUBLIC_NAMES = {
    *("from_hex", "gcs_address", "get_node_id", "get_runtime_context", "inc", "set_default_tags"),
    *("driver_exit_code", "get_job_info", "is_terminal", "message", "submit_job", "tail_job_logs"),
}
# Of torch, the C library, requests and aiohttp.
FOREIGN_NAMES = {
    *("TCPStore", "cuda", "destroy_process_group", "empty_cache", "init_process_group", "is_available"),
    *("is_initialized", "malloc_trim", "prctl"),
    *("ClientError", "HTTPError", "InvalidURL", "ReadTimeout", "Response"),
}
# In other files, Ray or another package documents all public names.
LOOKS_INSIDE = [
    file
    for file in FILES
    if file.startswith("dispatch/ray_internal/") or file in {"local_cluster/supervisor.py", "submit/jobs_api.py"}
]
LOOKS_INSIDE.remove("dispatch/ray_internal/compatibility.py")  # it asks whatever it is given
# For the local cluster's supervisor: a command, and a process that has ended.
ADD = {"op": "add", "shape": {"cpus": 1}}
DEAD = SimpleNamespace(process=SimpleNamespace(poll=lambda: 0))

TABLE = names_in(*TOPICS.values())
LISTED = {name for names in TABLE for name in members(names)}
# Of types that Ray documents: actors' methods, placement groups, node ids.
DOCUMENTED = {"hex", "ready", "remote", "wait"}
# `_private` and `state` are read on the way to `ray._private.state.state.get_draining_nodes`.
PARTS_OF_MODULES = {part for owner in OWNERS.values() for part in owner.partition(":")[0].split(".")}


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


def names_of_ours():
    """What planner's dispatch itself defines: functions, classes, and attributes that are set."""
    for node in chain.from_iterable(ast.walk(tree(file)) for file in FILES):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name), value=None) if name.startswith("_"):
                pass  # the type of an attribute that Ray sets
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
    yield from (node.name for file in TOPICS for node in tree(file).body if isinstance(node, ast.ClassDef))
    yield "SignalHandler"


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


@pytest.mark.parametrize("file", FILES)
def test_what_is_imported_from_within_ray_is_listed(file):
    """A module that Ray does not document, or a name with an underscore in one that it does."""
    found = [(module, name) for module, name in imports(file) if module.partition(".")[0] == "ray"]
    private = [(module, name) for module, name in found if module not in PUBLIC_MODULES or name.startswith("_")]
    known = {(owner, name) for names, owner in OWNERS.items() for name in members(names)}
    known |= {tuple(owner.split(":")) for owner in OWNERS.values() if ":" in owner}
    known |= {tuple(owner.rsplit(".", 1)) for owner in OWNERS.values() if ":" not in owner}
    assert set(private) <= known


@pytest.mark.parametrize("file", FILES)
def test_an_attribute_with_an_underscore_that_is_not_ours_is_listed(file):
    """`worker_group._callbacks`, say."""
    private = {name for name in attributes(file) if name.startswith("_") and not name.startswith("__")}
    known = OURS | PARTS_OF_MODULES | {"_current_frames", "_exit"}  # those are of `sys` and `os`
    assert private - known <= LISTED


@pytest.mark.parametrize("file", LOOKS_INSIDE)
def test_in_a_file_that_looks_into_ray_every_attribute_is_accounted_for(file):
    """It is ours, the standard library's, torch's, documented by Ray, or listed."""
    known = {*OURS, *names_of_others(file), *dir(importlib.import_module("ray")), *PUBLIC_NAMES, *FOREIGN_NAMES}
    assert attributes(file) - known - PARTS_OF_MODULES - DOCUMENTED <= LISTED


def test_what_is_listed_is_used():
    """As an attribute, an import, a method that is overridden, or a string."""
    used = set()
    for file in FILES:
        nodes = list(ast.walk(tree(file)))
        used |= {node.id for node in nodes if isinstance(node, ast.Name)}
        used |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        used |= {node.value for node in nodes if isinstance(node, ast.Constant)}
        used |= {name for pair in imports(file) for part in pair for name in part.split(".")}
        used |= attributes(file)
    assert LISTED - {"__init__", "__len__"} <= used


@pytest.mark.parametrize("file", TOPICS)
def test_each_name_says_what_it_is_for_and_each_owner_what_breaks_without_it(file):
    """People who port planner to another Ray read the table."""
    for node in tree(file).body:
        if not isinstance(node, ast.ClassDef) or vars(TOPICS[file])[node.name] not in OWNERS:
            continue
        assert re.search(r"\bWithout (it|them), ", ast.get_docstring(node)), node.name
        for member, after in zip(node.body[1:], [*node.body[2:], None], strict=True):
            if isinstance(member, ast.FunctionDef):
                assert ast.get_docstring(member), (node.name, member.name)
            elif isinstance(member, ast.AnnAssign):
                assert isinstance(after, ast.Expr), (node.name, member.target.id)


def overridden(ours):
    """The names of Ray's that our class defines again."""
    of_ray = [base for base in ours.__mro__ if base.__module__.startswith("ray.")]
    found = {name for name in vars(ours) if any(name in vars(base) for base in of_ray)}
    return {name for name in found if not name.startswith("__")} - {"_abc_impl"}


@pytest.mark.usefixtures("ray_environment")
class TestThisRay:
    @pytest.mark.parametrize("names", TABLE, ids=lambda names: names.__name__)
    def test_it_has_all_that_is_listed(self, names):
        """On another release this says what has to be written anew."""
        assert list(lacking([names])) == []

    @pytest.mark.parametrize("file", [file for file in LOOKS_INSIDE if file.startswith("dispatch/")])
    def test_what_we_override_is_listed(self, file):
        """Ray calls it by that name, so Ray would silently stop calling one that is renamed."""
        name = f"planner.{file.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__")
        module = importlib.import_module(name)
        for ours in filter(inspect.isclass, vars(module).values()):
            if ours.__module__ == module.__name__:
                assert overridden(ours) <= LISTED

    @pytest.mark.parametrize(
        ("owner", "body", "says"),
        [
            ("ray.no_such_module", {}, "No module named 'ray.no_such_module'"),
            ("ray.train:NoSuchClass", {}, "NoSuchClass"),
            ("ray.train:ScalingConfig", {"x": None}, "has no x"),
            ("ray.train:ScalingConfig", {"f": lambda self: 0}, "has no f"),  # noqa: ARG005
            ("ray", {"__version__": lambda self, part: 0}, "has no __version__(part)"),  # noqa: ARG005
            ("ray.core.generated.gcs_pb2:GcsNodeInfo", {"x": None}, "has no x"),
            ("ray._private.worker:connect", {"x": None}, "has no x"),
            ("ray._private.worker:global_worker", {"x": None}, "has no x"),
            (
                "ray.experimental.internal_kv",
                {"_internal_kv_get": lambda self, key, other: 0},  # noqa: ARG005
                "has no _internal_kv_get(other)",
            ),
        ],
    )
    def test_what_is_not_there_is_named(self, monkeypatch, owner, body, says):
        """Modules, classes, methods, parameters, fields of classes and messages, and what a function sets."""
        attributes = {name: value for name, value in body.items() if value is None}
        methods = {name: value for name, value in body.items() if value is not None}
        made = type("Made", (), {"__annotations__": attributes, "__module__": __name__, **methods})
        monkeypatch.setitem(OWNERS, made, owner)
        (lack,) = lacking([made])
        assert says in lack

    @pytest.mark.parametrize("door", ["a run", "a connection", "a notice", "a submission"])
    def test_a_ray_that_lacks_a_name_is_refused_in_a_sentence(self, monkeypatch, door):
        """Before anything is started, joined or sent: what is missing, and what to install."""
        monkeypatch.setattr(compatibility, "lacking", lambda _classes: iter(["ray.train:X has no y"]))
        text = "this Ray's internals are not those of 2.60: ray.train:X has no y. Install ray[train]>=2.60,<2.61"
        from planner.submit.jobs_api import JobsApi

        doors = {
            "a run": lambda _address: require_ray(""),
            "a connection": lambda address: connected(address, verbose=False).__enter__(),
            "a notice": lambda address: NodeDrainer.find(address, ""),
            "a submission": lambda address: JobsApi.connect(f"http://{address}"),
        }
        with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(UserError, match=re.escape(text)):
            doors[door](f"127.0.0.1:{server.getsockname()[1]}")


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
def test_the_supervisor_passes_on_what_ray_says(monkeypatch, name, command, cluster, node):
    """One line with the name, to a driver that asked for a cluster or a node."""
    monkeypatch.setattr(supervisor, "_handle_signals", lambda: None)
    monkeypatch.setattr("ray.cluster_utils.Cluster", lambda **_: SimpleNamespace(**cluster))
    supervised = supervisor.Supervisor()
    supervised._cluster, supervised._nodes = SimpleNamespace(**cluster), {"a": SimpleNamespace(**node)}
    assert name in LISTED
    assert re.search(rf"Ray says .*'{name}'", supervised.answer(command)["error"])
    monkeypatch.delattr("ray.cluster_utils.Cluster")
    assert re.search("Ray says .*'Cluster'", supervised.answer({"op": "start"})["error"])


def test_the_releases_that_are_named_are_the_same_everywhere():
    """What may be installed begins where `planner submit` begins, and is what we test with."""
    root = PACKAGE.parent
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    (ray,) = (text for text in project["dependencies"] if text.startswith("ray"))
    (tested,) = (line for line in (root / "constraints.txt").read_text().splitlines() if line.startswith("ray=="))
    oldest = ".".join(map(str, OLDEST_RAY))
    assert f">={oldest}," in ray
    assert tested.startswith(f"ray=={oldest}.")
