"""Parses GPU counts and histories of world sizes from the command line."""

from planner.errors import UserError
from planner.plan.factory import MAX_WORKERS

_EXAMPLES = {"--gpus": "1-16, 7 or 3,5,7", "--history": "4,3,5,1"}


def parse_counts(text: str) -> list[int]:
    """Parse `1-4,7` into [1, 2, 3, 4, 7]: in the written order, each count once.

    Raises:
        UserError: the text has another form, or a count is outside of 1 to 65536.
    """
    counts: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        low = _count(first, "--gpus", text)
        high = _count(last, "--gpus", text) if dash else low
        if low > high:
            raise UserError(f"--gpus {text[:60]}: {part.strip()} runs backwards. Write {high}-{low}")
        counts.update(dict.fromkeys(range(low, high + 1)))
    return list(counts)


def _count(text: str, option: str, whole: str) -> int:
    # isascii, because int() also takes digits of other scripts. Every valid count has at most six digits.
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and 1 <= int(text) <= MAX_WORKERS):
        found = f"{text[:20]!r} is not a count from 1 to {MAX_WORKERS}" if text else "a count is missing"
        raise UserError(f"{option} {whole[:60]!r}: {found}. Write counts such as {_EXAMPLES[option]}")
    return int(text)


def parse_history(text: str, most: int) -> list[int]:
    """Parse `4,3,5,1` into [4, 3, 5, 1]: in the written order, with repetitions.

    Raises:
        UserError: the text has another form, or a size is above `most`.
    """
    sizes = [_count(part.strip(), "--history", text) for part in text.split(",")]
    if max(sizes) > most:
        raise UserError(f"--history {text[:60]}: {max(sizes)} workers are too many. Write at most {most}")
    return sizes
