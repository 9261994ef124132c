"""Files that are neither a job nor a recipe, such as a cluster's: what they are, and what takes them.

Only marks that no job has count, so a job with mistakes is never taken for something else.
"""

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from planner.data.foreign_files import binary_name
from planner.errors import printable
from planner.files.loader import YamlMistake, documents
from planner.files.messages import cut

KINDS = ("RayCluster", "RayJob")
"""kinds of KubeRay's objects that `--cluster` reads"""
SHELL_SUFFIXES = (".sh", ".bash", ".zsh", ".slurm", ".sbatch")
_BESIDE_JOB = "Write a job, and give this file beside it"
_TAKES_CLUSTER = "planner plan JOB --cluster"
_MODEL = "A job names its folder as model.path"
_KIND = re.compile(r"^kind:[ \t]*[\"']?([A-Za-z]+)", re.MULTILINE)
_API = re.compile(r"^apiVersion:[ \t]*\S", re.MULTILINE)
_RAY_UP = re.compile(r"^(?:available_node_types|head_node_type|head_start_ray_commands)[ \t]*:", re.MULTILINE)
_PACKAGE = re.compile(r"[A-Za-z0-9][\w.-]*(?:\[[\w, -]+\])?\s*(?:(?:[=<>!~]=|[<>@;]).*)?")
_PYTHON = re.compile(r"^(?:import [\w.]+|from [\w.]+ import .+|def \w+\(.*|class \w+.*:)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class KnownFile:
    """What a file is, and what takes it."""

    what: str
    """such as `a Python file`"""
    fix: str = ""
    """what to write, as a sentence without a full stop. Empty: another path"""
    command: str = ""
    """the command that `fix` speaks of, which takes the file's path at its end. Empty: none"""
    path: str = ""
    """the file's path"""

    def instead_of(self, wanted: str) -> str:
        """The error if this file stands where `wanted`, such as `a job`, belongs."""
        command = f": {self.command} {printable(shlex.quote(self.path))}" if self.command else ""
        return f"found {self.what}, not {wanted}. {self.fix or f'Write the path of {wanted}'}{command}"


@dataclass(frozen=True, kw_only=True)
class _Mark:
    """Keys of a YAML or JSON mapping by which a file is known."""

    known: KnownFile
    has: Callable[[Mapping[Any, Any]], bool]


def is_job(values: Mapping[Any, Any]) -> bool:
    """Whether a mapping is meant as a job of planner, with mistakes or without."""
    sections = [values.get(name) for name in ("model", "data")]
    has_kind = any(isinstance(section, dict) and "kind" in section for section in sections)
    return has_kind or isinstance(values.get("batch"), dict) or {"batch", "train"} <= set(values)


def known_binary(head: bytes) -> KnownFile | None:
    """What a file that is no text is, from its first bytes. None if its format is unknown."""
    name = binary_name(head)
    return KnownFile(what=name) if name else None


def known_file(path: str, text: str) -> KnownFile | None:
    """What a text file is, None if it may be a job or a recipe.

    Args:
        path: its path. Only its name is looked at.
        text: its content.
    """
    mappings = [each for each in _documents(text) if isinstance(each, dict)]
    if any(map(is_job, mappings)):
        return None
    found = _cluster_of(text, mappings)
    if found is None and mappings:
        found = next((mark.known for mark in _MARKS if mark.has(mappings[0])), None)
    elif found is None:
        found = _of_text(PurePath(path), text)
    return found and replace(found, path=path)


def _documents(text: str) -> list[Any]:
    """The YAML documents of a text, none if it is no YAML, such as a template of Helm."""
    try:
        return documents(text)
    except YamlMistake:
        return []


def is_ray_up(values: Mapping[Any, Any]) -> bool:
    """Whether a mapping is a cluster of `ray up`."""
    return "kind" not in values and ("provider" in values or "available_node_types" in values)


def _cluster_of(text: str, mappings: list[dict[Any, Any]]) -> KnownFile | None:
    """The cluster, or another object of Kubernetes. Lines decide if the text is no YAML."""
    kinds = [str(each["kind"]) for each in mappings if "kind" in each and "apiVersion" in each]
    kinds = kinds or [str(each["kind"]) for each in mappings if each.get("kind") in KINDS]
    if not mappings and _API.search(text):
        kinds = _KIND.findall(text)
    if kinds:
        return _of_kinds(kinds)
    if any(map(_is_ray_up_surely, mappings)) or (not mappings and _RAY_UP.search(text)):
        return KnownFile(what="a cluster file of `ray up`", fix=_BESIDE_JOB, command=_TAKES_CLUSTER)
    return None


def _is_ray_up_surely(values: Mapping[Any, Any]) -> bool:
    marks = {"cluster_name", "provider", "available_node_types", "head_node_type", "max_workers", "docker"}
    return is_ray_up(values) and len(marks & set(values)) > 1


def _of_kinds(kinds: list[str]) -> KnownFile:
    if ours := next((kind for kind in kinds if kind in KINDS), None):
        return KnownFile(what=f"a {ours} of KubeRay", fix=_BESIDE_JOB, command=_TAKES_CLUSTER)
    if "RayService" in kinds:
        fix = f"Of KubeRay's files, planner plan --cluster reads a {' or a '.join(KINDS)}"
        return KnownFile(what="a RayService of KubeRay", fix=fix)
    return KnownFile(what=f"a Kubernetes file of kind {cut(kinds[0])}")


def _keys(*names: str) -> Callable[[Mapping[Any, Any]], bool]:
    """Whether a mapping has all of these keys."""
    return lambda values: set(names) <= set(values)


def _is_compose(values: Mapping[Any, Any]) -> bool:
    services = values.get("services")
    return isinstance(services, dict) and any(
        isinstance(each, dict) and {"image", "build"} & set(each) for each in services.values()
    )


def _is_sealed(values: Mapping[Any, Any]) -> bool:
    return {"value", "sha256"} <= set(values) and isinstance(values["value"], dict) and "format" in values["value"]


def _is_model(values: Mapping[Any, Any]) -> bool:
    return isinstance(values.get("model_type"), str) and bool(
        {"architectures", "transformers_version", "hidden_size", "vocab_size"} & set(values)
    )


_LEDGER = KnownFile(what="the ledger of a run", fix="Write RUN, the run's folder: planner show RUN")
_OF_RUN = KnownFile(what="a file of a run's folder", fix="Write RUN, the folder itself: planner show RUN")
_ROWS = KnownFile(what="rows of data", fix="A job names their file as data.path")
_SHELL = KnownFile(what="a shell script", fix="If it starts a training, make a job of it", command="planner convert")
_PYTHON_FILE = KnownFile(
    what="a Python file", fix="A job names a training loop of your own as data.path: docs/guides/your-own-loop.md"
)
_BY_SUFFIX = {
    **dict.fromkeys(SHELL_SUFFIXES, _SHELL),
    ".toml": KnownFile(what="a TOML file"),
    ".dockerfile": KnownFile(what="a Dockerfile"),
    ".ini": KnownFile(what="an INI file"),
}
_MARKS = (
    _Mark(known=_LEDGER, has=_keys("head", "record")),
    _Mark(known=_OF_RUN, has=_keys("durable", "launch", "parent")),
    _Mark(
        known=KnownFile(what="a Docker Compose file"),
        has=_is_compose,
    ),
    _Mark(known=KnownFile(what="the config.json of a model", fix=_MODEL), has=_is_model),
    _Mark(
        known=KnownFile(what="the adapter_config.json of peft"),
        has=_keys("peft_type", "base_model_name_or_path"),
    ),
    _Mark(
        known=KnownFile(what="a file of a tokenizer", fix=_MODEL),
        has=lambda values: "tokenizer_class" in values or _keys("added_tokens", "pre_tokenizer", "model")(values),
    ),
    _Mark(
        known=KnownFile(what="an index of a model's weights", fix=_MODEL),
        has=_keys("weight_map", "metadata"),
    ),
    _Mark(known=_OF_RUN, has=_is_sealed),
    _Mark(
        known=KnownFile(what="a notebook", fix="Write the code of its training into a Python file"),
        has=_keys("cells", "nbformat"),
    ),
    _Mark(
        known=KnownFile(what="a workflow of GitHub"),
        has=lambda values: "jobs" in values and bool({"on", True} & set(values)),
    ),
    _Mark(known=_ROWS, has=_keys("messages")),
    _Mark(known=_ROWS, has=_keys("prompt", "chosen", "rejected")),
    _Mark(known=_ROWS, has=_keys("prompt", "completion")),
)


def _of_text(path: PurePath, text: str) -> KnownFile | None:
    """What a text is that has no YAML mapping, from its name and its lines."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    start = text.splitlines()[0] if text.startswith("#!") else ""
    if path.suffix == ".py" or "python" in start or _PYTHON.search(text):
        return _PYTHON_FILE
    if path.suffix == ".jsonl":
        is_ledger = text.startswith('{"head":') and '"record":' in text
        return _LEDGER if is_ledger else _ROWS
    if path.suffix == ".txt" and lines and all(map(_PACKAGE.fullmatch, lines)):
        return KnownFile(what="a list of Python packages")
    return _BY_SUFFIX.get(path.suffix, _SHELL if start else None)
