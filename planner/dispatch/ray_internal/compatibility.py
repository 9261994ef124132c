"""How a private name of Ray is written down, and the check that the installed Ray has it.

`cluster_names.py`, `group_names.py` and `train_names.py` have a class per owner of private names. It names the owner in
Ray (`of`), and its members are the names. So one class is the type that mypy checks our code with, and the row that
`require` compares with the installed Ray. Importing this module does not import Ray. Calling `lacking` and `require`
does.
"""

import dis
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from types import MappingProxyType, ModuleType
from typing import Any, Concatenate, NewType, ParamSpec, Protocol, TypeVar, cast

from planner.errors import UserError

Names = TypeVar("Names")
Parameters = ParamSpec("Parameters")

ObjectRef = NewType("ObjectRef", object)
"""what a remote call returns at once: an argument for `ray.get` and `ray.wait`"""

OWNERS: dict[type, str] = {}
"""each class of private names, and the owner of these names in Ray: `module` or `module:Class`"""


class RemoteMethod(Protocol[Parameters]):
    """A method of an actor (documented by Ray)."""

    def remote(self, *arguments: Parameters.args, **options: Parameters.kwargs) -> ObjectRef:
        """Call it in the actor's process. Does not wait."""


def of(owner: str) -> Callable[[Names], Names]:
    """A class decorator: the members are private names of this owner in Ray, `module` or `module:Class`."""

    def written_down(names: Names) -> Names:
        OWNERS[cast("type", names)] = owner
        return names

    return written_down


def remote(method: Callable[Concatenate[Any, Parameters], object]) -> RemoteMethod[Parameters]:
    """A decorator for the method of an actor's class: its callers call `.remote(...)` with the same parameters."""
    return cast("RemoteMethod[Parameters]", method)


def names_in(*topics: ModuleType) -> list[type]:
    """The classes of private names in these modules."""
    modules = {topic.__name__ for topic in topics}
    return [names for names in OWNERS if names.__module__ in modules]


def require(*topics: ModuleType) -> None:
    """Check that the installed Ray has all private names of these modules.

    Raises:
        UserError: it lacks a name.
    """
    if lack := next(lacking(names_in(*topics)), ""):
        raise UserError(f"this Ray's internals are not those of 2.60: {lack}. Install ray[train]>=2.60,<2.61")


def lacking(classes: Iterable[type]) -> Iterator[str]:
    """The names and parameters in these classes that the installed Ray lacks, one text each."""
    for names in classes:
        owner = OWNERS[names]
        try:
            found = _find(owner)
        except (ImportError, AttributeError) as error:
            yield f"{owner}: {error}"
            continue
        yield from (f"{owner} has no {part}" for part in _lacking_parts(found, names))


def members(names: type) -> dict[str, Callable[..., object] | None]:
    """Name -> our method with the parameters that planner passes. None for an attribute."""
    methods = {
        name: value
        for name, value in vars(names).items()
        if inspect.isfunction(value) and value.__module__ == names.__module__  # not those that `Protocol` adds
    }
    return {**dict.fromkeys(inspect.get_annotations(names)), **methods}


def _find(owner: str) -> object:
    module, _, path = owner.partition(":")
    found = importlib.import_module(module)
    return getattr(found, path) if path else found


def _lacking_parts(owner: object, names: type) -> Iterator[str]:
    for name, method in members(names).items():
        if method is None:
            if not hasattr(owner, name) and name not in _instance_names(owner):
                yield name
        elif not hasattr(owner, name):
            yield name
        else:
            yield from (f"{name}({parameter})" for parameter in _lacking_parameters(getattr(owner, name), method))


def _lacking_parameters(rays: Any, ours: Callable[..., object]) -> Iterator[str]:
    """The names of our method's parameters that Ray's has not. Nothing if Ray's takes any keyword."""
    try:
        known = inspect.signature(rays).parameters
    except (TypeError, ValueError):  # it is no function any more, or Python cannot tell its parameters
        known = MappingProxyType({})
    if any(each.kind is each.VAR_KEYWORD for each in known.values()):
        return
    _self, *passed = inspect.signature(ours).parameters.values()
    for each in passed:
        if each.kind not in {each.VAR_POSITIONAL, each.VAR_KEYWORD} and each.name not in known:
            yield each.name


def _instance_names(owner: object) -> set[str]:
    """The attributes of instances: fields of a message or a data class, and attributes that methods set."""
    if hasattr(owner, "DESCRIPTOR"):
        return set(owner.DESCRIPTOR.fields_by_name)
    if inspect.isfunction(owner):
        return _stored(inspect.unwrap(owner))
    names: set[str] = set()
    for base in inspect.getmro(owner) if inspect.isclass(owner) else ():
        names |= {*getattr(base, "__annotations__", {}), *vars(base)}
        for function in filter(inspect.isfunction, vars(base).values()):
            names |= _stored(function)
    return names


def _stored(function: Callable[..., object]) -> set[str]:
    """The attributes that a function sets."""
    return {step.argval for step in dis.get_instructions(function) if step.opname == "STORE_ATTR"}
