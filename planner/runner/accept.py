"""Parses which changes of a run's job the user accepts."""

from collections.abc import Iterable

from planner.errors import UserError
from planner.provenance.identity import ACCEPTABLE


def parse_accept(fields: Iterable[str]) -> frozenset[str]:
    """Return the fields that `--accept` names. A single string counts as one field.

    Raises:
        UserError: a field does not exist.
    """
    named = frozenset([fields] if isinstance(fields, str) else fields)
    if unknown := sorted(named - set(ACCEPTABLE)):
        raise UserError(f"--accept {unknown[0]}: write one of {', '.join(ACCEPTABLE)}")
    return named
