"""Rows that cannot be used: where they are and why, for an error or for a note."""

import re
from collections import Counter
from dataclasses import dataclass, field

from planner.errors import MAX_CHARS, lines_within, shortened

_NAMED = 5
# A reason may quote what a stranger wrote, and there may be a million.
_MAX_PLACE, _MAX_REASON = 200, 300


@dataclass
class Flaws:
    """Grows while rows are read."""

    found: list[tuple[str, str]] = field(default_factory=list)
    """place and reason, in the order of the files"""

    def add(self, where: str, reason: object) -> None:
        """One more."""
        self.found.append((shortened(where, _MAX_PLACE), shortened(str(reason), _MAX_REASON)))

    def refusal(self, num_rows: int) -> str:
        """The first ones, line by line, and what to do."""
        count = len(self.found)
        reasons = ["", *(reason for _, reason in self.found)]
        # Where a file is of a form that is not read, all rows have one reason.
        lines = [
            f"  {where}: {'the same' if reason == before else reason}"
            for (where, reason), before in zip(self.found[:_NAMED], reasons, strict=False)
        ]
        way_out = "mend them" if count == num_rows else "mend them, or leave them out: data.bad_rows: skip"
        head = f"data.path: {count} of {num_rows} rows cannot be used; {way_out}"
        return "\n".join([head, *lines_within(lines, count, MAX_CHARS - len(head) - 1, indent="  ")])

    def note(self, num_rows: int) -> str:
        """How many were left out, the commonest reasons and where the first one of each is."""
        # Numbers and names differ from row to row where the reason is one.
        reasons = Counter(_kind_of(reason) for _, reason in self.found)
        first = {_kind_of(reason): (where, reason) for where, reason in reversed(self.found)}
        words = [f"{n} as {first[kind][0]}: {first[kind][1]}" for kind, n in reasons.most_common(_NAMED)]
        return f"{len(self.found)} of {num_rows} rows were left out (data.bad_rows: skip): {'; '.join(words)}"


def _kind_of(reason: str) -> str:
    return re.sub(r"\d+|'[^']*'", "#", reason)
