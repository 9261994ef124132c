"""Compares `private_api.py` with the installed Ray, and says which private names it lacks.

Importing this module does not import Ray. Calling its functions does.
"""

import dis
import importlib
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from types import FunctionType

from planner.dispatch.ray_internal.private_api import CONTRACT, PrivateName
from planner.errors import UserError

_NAME = re.compile(r"(\w+)(?:\(([\w, ]*)\))?(?:\[(\w+)\])?")


def missing(*files: str) -> Iterator[str]:
    """The names that these files use and the installed Ray lacks, one text each."""
    for file in files:
        yield from lacking(CONTRACT[file])


def lacking(rows: Iterable[PrivateName]) -> Iterator[str]:
    """The names in these rows that the installed Ray lacks, one text each."""
    for row in rows:
        yield from _lacks(row.owner, row.names)


def require(rows: Iterable[PrivateName]) -> None:
    """Check that the installed Ray has all names in these rows.

    Raises:
        UserError: it lacks a name.
    """
    if lack := next(lacking(rows), ""):
        raise UserError(f"this Ray's internals are not those of 2.60: {lack}. Install ray[train]>=2.60,<2.61")


def _lacks(owner: str, names: tuple[str, ...]) -> Iterator[str]:
    module, _, path = owner.partition(":")
    try:
        found = importlib.import_module(module)
        if path:
            found = getattr(found, path)
    except (ImportError, AttributeError) as error:
        yield f"{owner}: {error}"
        return
    for name in names:
        yield from (f"{owner} has no {part}" for part in _lacking_parts(found, name))


def _lacking_parts(owner: object, name: str) -> Iterator[str]:
    if name.startswith("."):
        if name[1:] not in _instance_names(owner):
            yield name
        return
    parts = _NAME.fullmatch(name)
    assert parts is not None, name
    plain, parameters, read = parts.groups("")
    if not hasattr(owner, plain):
        yield plain
        return
    found = getattr(owner, plain)
    known = _parameters(found)
    yield from (f"{plain}({one})" for one in filter(None, parameters.split(", ")) if one not in known)
    if read and not (isinstance(found, FunctionType) and read in found.__code__.co_names):
        yield name


def _parameters(found: object) -> Collection[str]:
    """The names of its parameters. Empty if it is not callable or Python cannot tell its signature."""
    if not callable(found):
        return ()
    try:
        return inspect.signature(found).parameters
    except (TypeError, ValueError):
        return ()


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
