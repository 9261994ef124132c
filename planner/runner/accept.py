"""Which changes of a run's job the user accepts."""

from collections.abc import Iterable

from planner.errors import UserError
from planner.provenance.identity import ACCEPTABLE


def parse_accept(fields: Iterable[str]) -> frozenset[str]:
    """The fields, as `--accept` names them; a string is one field.

    Raises:
        UserError: there is no such field.
    """
    named = frozenset([fields] if isinstance(fields, str) else fields)
    if unknown := sorted(named - set(ACCEPTABLE)):
        raise UserError(f"--accept {unknown[0]}: write one of {', '.join(ACCEPTABLE)}")
    return named
