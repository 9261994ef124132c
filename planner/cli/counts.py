"""GPU counts as people type them."""

from planner.errors import UserError
from planner.plan.limits import MAX_WORKERS

_EXAMPLES = {"--gpus": "1-16, 7 or 3,5,7", "--history": "4,3,5,1"}


def parse_counts(text: str) -> list[int]:
    """`1-4,7` -> [1, 2, 3, 4, 7]: in the order written, each once.

    Raises:
        UserError: not of that form, or outside of 1 to 65536.
    """
    counts: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        low = _count(first, "--gpus", text)
        high = _count(last, "--gpus", text) if dash else low
        if low > high:
            raise UserError(f"--gpus {text[:60]}: {part.strip()} runs backwards; write {high}-{low}")
        counts.update(dict.fromkeys(range(low, high + 1)))
    return list(counts)


def _count(text: str, option: str, whole: str) -> int:
    # isascii: int() would take other scripts' digits, too. Six digits hold every count there is.
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and 1 <= int(text) <= MAX_WORKERS):
        found = f"{text[:20]!r} is not a count from 1 to {MAX_WORKERS}" if text else "a count is missing"
        raise UserError(f"{option} {whole[:60]!r}: {found}; write {_EXAMPLES[option]}")
    return int(text)


def parse_history(text: str, most: int) -> list[int]:
    """`4,3,5,1` -> [4, 3, 5, 1]: in the order written, as often as written.

    Raises:
        UserError: not of that form, or above `most`.
    """
    sizes = [_count(part.strip(), "--history", text) for part in text.split(",")]
    if max(sizes) > most:
        raise UserError(f"--history {text[:60]}: this machine rehearses with at most {most} workers")
    return sizes
