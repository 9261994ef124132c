"""Collects rows that cannot be used, with place and reason, for an error or a note."""

import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice

from planner.errors import MAX_CHARS, lines_within, shortened

NO_SKIP = "data.tokenize: ahead with data.bad_rows: skip"
"""the settings that leave bad rows out, for a job that tokenizes on demand"""
_NAMED = 5
# A reason may quote the data, and there may be a million reasons.
_MAX_PLACE, _MAX_REASON = 200, 300


@dataclass
class BadRows:
    """The unusable rows found so far. It grows while rows are read."""

    found: dict[str, str] = field(default_factory=dict)
    """place -> the first reason, in the order of the files. A row of several samples may have several"""
    what: str = "rows"
    instead: str = "data.bad_rows: skip"
    """the settings that leave such rows out"""

    def add(self, where: str, reason: object) -> None:
        """Add a row by its place and the reason."""
        self.found.setdefault(where, shortened(str(reason), _MAX_REASON))

    def refusal(self, num_rows: int) -> str:
        """The text of an error: how many of `num_rows` rows, what to do, and the first rows, one per line."""
        count = len(self.found)
        reasons = ["", *self.found.values()]
        # If a file has an unknown form, all of its rows have one reason.
        lines = [
            f"  {shortened(where, _MAX_PLACE)}: {'the same' if reason == before else reason}"
            for (where, reason), before in zip(islice(self.found.items(), _NAMED), reasons, strict=False)
        ]
        fix = "Correct them" if count == num_rows else f"Correct them, or write {self.instead}"
        head = f"data.path: {count} of {num_rows} {self.what} cannot be used. {fix}"
        return "\n".join([head, *lines_within(lines, count, MAX_CHARS - len(head) - 1, indent="  ")])

    def note(self, num_rows: int) -> str:
        """The text of a note: how many of `num_rows` rows were left out, and the first row of each common reason."""
        # One reason may quote other numbers and names in each row.
        reasons = Counter(map(_kind_of, self.found.values()))
        first = {
            _kind_of(reason): (shortened(where, _MAX_PLACE), reason) for where, reason in reversed(self.found.items())
        }
        examples = [f"{n} as {first[kind][0]}: {first[kind][1]}" for kind, n in reasons.most_common(_NAMED)]
        return f"{len(self.found)} of {num_rows} rows were left out (data.bad_rows: skip): {'; '.join(examples)}"


def _kind_of(reason: str) -> str:
    return re.sub(r"\d+|'[^']*'", "#", reason)
