"""Compares the answers of `planner check` and `planner convert` with the frozen ones, or freezes them again.

    python tests/recipes/freeze.py [--write] [PAGE ...]

Without `--write` it shows the cases whose answer differs from the page's, and exits with 1 if there are some.
"""

import argparse
import difflib
import sys

import frozen_pages

_MOST_CASES = 20
_MOST_LINES = 40


def differences(page):
    """A text for each case of a page whose answer of today is another: its name, and the lines that differ."""
    stored = frozen_pages.read(page)
    today = frozen_pages.answered(stored)
    return [_difference(page, its, today[name]) for name, its in stored.items() if its.lines != today[name].lines]


def _difference(page, stored, today):
    before, after = ([f"{word} | {text}" for word, text in block.lines] for block in (stored, today))
    lines = [line for line in difflib.ndiff(before, after) if line[:2] in {"- ", "+ "}]
    more = [f"  and {len(lines) - _MOST_LINES} more lines"] if len(lines) > _MOST_LINES else []
    return "\n".join([f"{page}: {stored.case.name}", *(f"  {line}" for line in lines[:_MOST_LINES]), *more])


def message(page, found):
    """What a user must see of the differences of a page."""
    more = [f"and {len(found) - _MOST_CASES} more cases"] if len(found) > _MOST_CASES else []
    fix = (
        f"{len(found)} answers of {page} changed (- frozen, + today). If each change is meant, write the page again: "
        f"python tests/recipes/freeze.py --write {page}"
    )
    return "\n\n".join([*found[:_MOST_CASES], *more, fix])


def main(arguments=None):
    """The exit code: 1 if an answer changed and was not written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the pages again")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"by default all: {', '.join(frozen_pages.names())}")
    options = parser.parse_args(arguments)
    pages = options.pages or frozen_pages.names()
    if unknown := sorted(set(pages) - set(frozen_pages.names())):
        parser.error(f"no such page: {', '.join(unknown)}. Write one of {', '.join(frozen_pages.names())}")
    changed = False
    for page in pages:
        found = differences(page)
        if options.write:
            frozen_pages.write(page, frozen_pages.answered(frozen_pages.read(page)))
            print(f"{page}: {len(found)} answers changed, written")
        elif found:
            changed = True
            print(message(page, found))
    return int(changed)


if __name__ == "__main__":
    sys.exit(main())
